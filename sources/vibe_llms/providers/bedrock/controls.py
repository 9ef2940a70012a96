"""Controls for Converse: common ones, and those that only a family of models has.

Sources: the shapes `InferenceConfiguration`, `OutputConfig` and `ToolChoice` in botocore 1.44, and
the pages on each family's parameters below
https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import name_tools
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import requests
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import encode_json

SMALLEST_BUDGET_TOKENS = 1_024
CAREFUL_OUTPUT_TOKENS = 8_192
#: Controls that are sent, by their names in `inferenceConfig`; other members for the empty ones.
SENT: Mapping[str, str] = {
    "output-tokens": "maxTokens",
    "temperature": "temperature",
    "top-p": "topP",
    "stop": "stopSequences",
    "top-k": "",
    "effort": "",
    "reasoning-tokens": "",
    "tool-choice": "",
    "response-schema": "",
    "service-tier": "",
}


class BedrockAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Attributes of a model that only this provider reads: `native` in the model's attributes.

    `cache-points` lists the parts of a request that can be cached, and `cache-hour` says that they
    can be for an hour. With `citations`, files can be cited. With `result-status`, a result can be
    marked as failed. With `s3`, images and files can be read from S3. `effort` is where the effort
    goes: `output` is a member of Converse, `reasoning-effort` and `nova` are members of the model's
    own. `thinking` lists the accepted types of Anthropic's thinking. `top-k` is the name of that
    control. With `counts-cached`, the input tokens of a stream include those of the cache. `images`
    and `files` are the most that a request may have, `image-bytes` and `file-bytes` the most that
    each may have.
    """

    cache_points: tuple[Literal["tools", "system", "messages"], ...] = ()
    cache_hour: bool = False
    citations: bool = False
    result_status: bool = False
    s3: bool = False
    effort: Literal["output", "reasoning-effort", "nova"] = "output"
    thinking: tuple[Literal["adaptive", "enabled", "disabled"], ...] = ()
    thinking_default: Literal["adaptive"] | None = None
    top_k: Literal["top_k", "inferenceConfig.topK"] = "top_k"
    counts_cached: bool = False
    images: int = 20
    files: int = 5
    image_bytes: int = 3_932_160
    file_bytes: int = 4_718_592


def nativize_controls(controls: Controls, model: Model) -> dict[str, Any]:
    """Return the request members for controls that the model's attributes accept."""
    native = read_native(model)
    if controls.stop is not None and not all(text.strip() for text in controls.stop):
        raise ControlInvalid(
            "the control 'stop' cannot contain an empty text or only white space",
            control="stop",
            model=model.name,
        )
    fields: dict[str, Any] = {}
    output: dict[str, Any] = {}
    given = controls.given()
    config = {SENT[name]: value for name, value in given.items() if SENT.get(name)}
    if controls.top_k is not None:
        _set_deeply(fields, native.top_k, controls.top_k)
    if controls.effort is not None:
        match native.effort:
            case "output":
                output["effort"] = controls.effort
            case "reasoning-effort":
                fields["reasoning_effort"] = controls.effort
            case "nova":
                reasoning = {"type": "enabled", "maxReasoningEffort": controls.effort}
                fields["reasoningConfig"] = reasoning
    thinking = _nativize_thinking(controls, model, native)
    if thinking is not None:
        fields["thinking"] = thinking
        budget = thinking.get("budget_tokens", 0)
        if budget and controls.output_tokens is None:
            # The default of a model may be less than the budget, which counts as output.
            most = model.attributes.output_tokens
            wanted = budget + CAREFUL_OUTPUT_TOKENS
            config["maxTokens"] = wanted if most is None else min(wanted, most)
    if "maxTokens" not in config and model.attributes.default_output_tokens:
        config["maxTokens"] = model.attributes.default_output_tokens
    if controls.response_schema is not None:
        output["textFormat"] = _nativize_schema(controls.response_schema)
    members: dict[str, Any] = {}
    if config:
        members["inferenceConfig"] = config
    if fields:
        members["additionalModelRequestFields"] = fields
    if output:
        members["outputConfig"] = output
    if controls.service_tier is not None:
        members["serviceTier"] = {"type": controls.service_tier}
    return members


def nativize_choice(controls: Controls, names: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the `toolChoice`, or None if it need not be sent; there is none to forbid calls.

    `names` maps our names of tools to those on the wire.
    """
    choice = controls.tool_choice
    if choice in (None, "auto", "none"):
        return None
    if choice == "any" and names:
        return {"any": {}}
    if choice in names:
        return {"tool": {"name": names[choice]}}
    required = "a call" if choice == "any" else f"a call of {choice!r}"
    raise ControlInvalid(
        f"{required} cannot be required; {name_tools(sorted(names))}", control="tool-choice"
    )


def read_native(model: Model) -> BedrockAttributes:
    """Return the model's native attributes; raise `ConfigurationError` if they are invalid."""
    return requests.read_native(model, BedrockAttributes)


def _nativize_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a reply; the schema is JSON within a string."""
    name = schema.get("title")
    named = {"name": name} if isinstance(name, str) and name else {}
    text = encode_json(schema).decode()
    return {"type": "json_schema", "structure": {"jsonSchema": {"schema": text, **named}}}


def _nativize_thinking(
    controls: Controls, model: Model, native: BedrockAttributes
) -> dict[str, Any] | None:
    """Return Anthropic's member `thinking`, which is passed on to the model."""
    budget, known = controls.reasoning_tokens, native.thinking
    if budget is None:
        wanted = controls.effort is not None or native.thinking_default == "adaptive"
        adaptive = {"type": "adaptive", "display": "summarized"}
        return adaptive if wanted and "adaptive" in known else None
    if budget == 0:
        return _accept("disabled", {"type": "disabled"}, model, native)
    if budget < SMALLEST_BUDGET_TOKENS:
        raise _refuse_budget(
            budget, f"it must be 0 or at least {SMALLEST_BUDGET_TOKENS}", model.name
        )
    limit = controls.output_tokens or model.attributes.output_tokens
    if limit is not None and budget >= limit:
        words = f"it must be less than the output tokens, at most {limit}, which count both"
        raise _refuse_budget(budget, words, model.name)
    if controls.tool_choice not in (None, "auto", "none"):
        words = f"tool-choice is {controls.tool_choice!r}, which demands a call"
        raise _refuse_budget(budget, words, model.name)
    return _accept("enabled", {"type": "enabled", "budget_tokens": budget}, model, native)


def _accept(
    kind: str, thinking: dict[str, Any], model: Model, native: BedrockAttributes
) -> dict[str, Any]:
    if kind in native.thinking:
        return thinking
    advice = "it decides on its own; use effort" if kind == "enabled" else "it always thinks"
    raise ControlInvalid(
        f"the model does not accept this value of reasoning-tokens: {advice}",
        control="reasoning-tokens",
        model=model.name,
    )


def _refuse_budget(budget: int, words: str, name: str) -> ControlInvalid:
    return ControlInvalid(
        f"the control 'reasoning-tokens' cannot be {budget}: {words}",
        control="reasoning-tokens",
        model=name,
    )


def _set_deeply(fields: dict[str, Any], path: str, value: object) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        fields = fields.setdefault(folder, {})
    fields[name] = value
