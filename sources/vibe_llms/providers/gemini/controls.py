"""Controls for Gemini's interface: members of `generationConfig`, and `toolConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import name_tools
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import requests
from vibe_llms.providers.interfaces import Model

_NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "output_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
}
#: Budgets of the levels, for models that take only budgets.
#: Source: https://ai.google.dev/gemini-api/docs/openai, "Thinking" (2026-11).
_BUDGETS: Mapping[str, int] = {
    "none": 0,
    "minimal": 1_024,
    "low": 1_024,
    "medium": 8_192,
    "high": 24_576,
}


#: Keywords of a schema whose members are schemas by any name, and those with values.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_DATA = ("enum", "default", "examples")


class GeminiAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Attributes of a model that only this provider reads: `native` in the model's attributes.

    `thinking` is how effort is sent: as a level, or as the budget that it stands for. A model with
    `signatures` refuses calls without a thought signature, and takes media within results. A model
    with `images` answers with images too.
    """

    thinking: Literal["level", "budget"] = "level"
    signatures: bool = False
    images: bool = False


def nativize_controls(controls: Controls, model: Model) -> Mapping[str, Any]:
    """Return the request members for controls that the model's attributes accept."""
    native = read_native(model)
    config: dict[str, Any] = {
        name: value
        for field, name in _NAMES.items()
        if (value := getattr(controls, field)) is not None
    }
    bound = model.attributes.default_output_tokens
    if controls.output_tokens is None and bound is not None:
        config["maxOutputTokens"] = bound
    if controls.response_schema is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = fit_response(controls.response_schema)
    if native.images:
        config["responseModalities"] = ["TEXT", "IMAGE"]
    if thinking := _nativize_thinking(controls, model, native):
        config["thinkingConfig"] = thinking
    members: dict[str, Any] = {"generationConfig": config} if config else {}
    if controls.service_tier is not None:
        members["serviceTier"] = controls.service_tier
    return members


def fit_response(schema: Any) -> Any:
    """Return the schema of a reply without forms that the interface refuses or ignores.

    A reference may only have members that begin with `$`, and `const` is an `enum` of one value.
    Source: `responseJsonSchema` at https://ai.google.dev/api/generate-content (2026-11).
    """
    if isinstance(schema, list | tuple):
        return [fit_response(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    fitted: dict[str, Any] = {}
    for name, one in schema.items():
        if name in _BY_NAME and isinstance(one, Mapping):
            fitted[name] = {key: fit_response(inner) for key, inner in one.items()}
        elif name in _DATA:
            fitted[name] = one
        elif name == "const":
            fitted.setdefault("enum", [one])
        elif "$ref" not in schema or name.startswith("$"):
            fitted[name] = fit_response(one)
    return fitted


def nativize_choice(
    controls: Controls, names: Mapping[str, str], *, offered: bool
) -> Mapping[str, Any] | None:
    """Return the `toolConfig`, or None if it need not be sent.

    `names` maps our names of tools to those on the wire. The interface takes no choice without
    functions; `offered` is True if there are some, named or not.
    """
    choice = controls.tool_choice
    if choice is None or (choice in ("auto", "none") and not offered):
        return None
    config: dict[str, Any]
    if choice in ("auto", "none"):
        config = {"mode": choice.upper()}
    elif choice == "any" and offered:
        config = {"mode": "ANY"}
    elif choice in names:
        config = {"mode": "ANY", "allowedFunctionNames": [names[choice]]}
    else:
        required = "a call" if choice == "any" else f"a call of {choice!r}"
        raise ControlInvalid(
            f"{required} cannot be required; {name_tools(sorted(names))}", control="tool-choice"
        )
    return {"functionCallingConfig": config}


def _nativize_thinking(
    controls: Controls, model: Model, native: GeminiAttributes
) -> Mapping[str, Any]:
    if not model.attributes.reasoning:
        return {}
    budget, effort = controls.reasoning_tokens, controls.effort
    if budget is not None and effort is not None:
        # The interface answers 400 to a level with a budget.
        raise ControlInvalid(
            "the controls 'effort' and 'reasoning-tokens' cannot be given together",
            control="reasoning-tokens",
            model=model.name,
        )
    # Thoughts are not shown unless they are asked for.
    thinking: dict[str, Any] = {"includeThoughts": True}
    if effort is not None and native.thinking == "level":
        thinking["thinkingLevel"] = effort.upper()
    elif effort is not None:
        if effort not in _BUDGETS:
            raise ControlInvalid(
                f"the control 'effort' cannot be {effort!r}: it must be one of "
                f"{', '.join(_BUDGETS)}",
                control="effort",
                model=model.name,
            )
        budget = _BUDGETS[effort]
    if budget is not None:
        thinking = {"includeThoughts": budget > 0, "thinkingBudget": budget}
    return thinking


def read_native(model: Model) -> GeminiAttributes:
    """Return the model's native attributes; raise `ConfigurationError` if they are invalid."""
    return requests.read_native(model, GeminiAttributes)
