"""Controls for Anthropic's interface, version 2026-10-21.

This version has no `temperature`, `top_p` or `top_k`; the models' attributes refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import name_tools
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import requests
from vibe_llms.providers.interfaces import Model

# Output limit of an unstreamed reply, in tokens. A longer one could take over ten minutes, and
# proxies close such connections. Source: `_calculate_nonstreaming_timeout` of anthropic 2.12.0.
UNSTREAMED_OUTPUT_TOKENS = 21_333
CAREFUL_OUTPUT_TOKENS = 8_192
SMALLEST_BUDGET_TOKENS = 1_024
ThinkingType = Literal["adaptive", "enabled", "disabled", "between_tools"]


class AnthropicAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Attributes of a model that only this provider reads: `native` in the model's attributes.

    `thinking` lists the accepted types; `thinking-default` is sent unless a control asks for
    another. With `system-messages`, system text may be in the middle of a conversation.
    """

    thinking: tuple[ThinkingType, ...] = ()
    thinking_default: ThinkingType | None = None
    system_messages: bool = False


def nativize_controls(
    controls: Controls, model: Model, *, streaming: bool = True
) -> Mapping[str, Any]:
    """Return the request members for controls that the model's attributes accept."""
    body: dict[str, Any] = {"max_tokens": _bound(controls, model, streaming)}
    if controls.stop is not None:
        if not all(text.strip() for text in controls.stop):
            raise ControlInvalid(
                "the control 'stop' cannot contain an empty text or only white space",
                control="stop",
                model=model.name,
            )
        body["stop_sequences"] = controls.stop
    if controls.service_tier is not None:
        body["service_tier"] = controls.service_tier
    output: dict[str, Any] = {}
    if controls.effort is not None:
        output["effort"] = controls.effort
    if controls.response_schema is not None:
        output["format"] = {"type": "json_schema", "schema": controls.response_schema}
    if output:
        body["output_config"] = output
    if (thinking := _nativize_thinking(controls, model)) is not None:
        body["thinking"] = thinking
    return body


def nativize_choice(
    controls: Controls, names: Mapping[str, str], *, offered: bool
) -> Mapping[str, Any] | None:
    """Return the `tool_choice`, or None if it need not be sent.

    `names` maps our names of tools to those on the wire. `offered` is True if the request has any
    tools, named or not; the interface takes no choice without tools.
    """
    choice = controls.tool_choice
    if choice is None and controls.parallel_invocations is None:
        return None
    native: dict[str, Any]
    if choice in (None, "auto", "none"):
        if not offered:
            return None
        native = {"type": choice or "auto"}
    elif choice == "any" and offered:
        native = {"type": "any"}
    elif choice in names:
        native = {"type": "tool", "name": names[choice]}
    else:
        required = "a call" if choice == "any" else f"a call of {choice!r}"
        raise ControlInvalid(
            f"{required} cannot be required; {name_tools(sorted(names))}", control="tool-choice"
        )
    if controls.parallel_invocations is not None and native["type"] != "none":
        native["disable_parallel_tool_use"] = not controls.parallel_invocations
    return native


def _bound(controls: Controls, model: Model, streaming: bool) -> int:
    budget = controls.reasoning_tokens or 0
    if controls.output_tokens is not None:
        if budget and budget >= controls.output_tokens:
            raise ControlInvalid(
                f"the control 'reasoning-tokens' cannot be {budget}: it must be less than "
                f"output-tokens, which is {controls.output_tokens} and counts both",
                control="reasoning-tokens",
                model=model.name,
            )
        return controls.output_tokens
    attributes = model.attributes
    longest = attributes.output_tokens
    needed = budget + CAREFUL_OUTPUT_TOKENS
    bound = attributes.default_output_tokens or longest or needed
    if not streaming:
        bound = min(bound, max(UNSTREAMED_OUTPUT_TOKENS, needed))
    if budget >= bound:
        bound = needed if longest is None else min(needed, longest)
    if budget >= bound:
        raise ControlInvalid(
            f"the control 'reasoning-tokens' cannot be {budget}: it must be less than what a "
            f"whole reply may have, which is {bound}",
            control="reasoning-tokens",
            model=model.name,
        )
    return bound


def _nativize_thinking(controls: Controls, model: Model) -> Mapping[str, Any] | None:
    native = read_native(model)
    known = native.thinking
    budget = controls.reasoning_tokens
    if budget == 0:
        if known and "disabled" not in known and "between_tools" in known:
            return _think_between_tools(controls, model)
        return _accepted("disabled", {"type": "disabled"}, known, model)
    if budget is not None:
        thinking = {"type": "enabled", "budget_tokens": budget}
        if budget < SMALLEST_BUDGET_TOKENS:
            raise ControlInvalid(
                f"the control 'reasoning-tokens' cannot be {budget}: it must be 0 or at least "
                f"{SMALLEST_BUDGET_TOKENS}",
                control="reasoning-tokens",
                model=model.name,
            )
        accepted = _accepted("enabled", thinking, known, model)
        if controls.tool_choice not in (None, "auto", "none"):
            # Adaptive thinking allows every choice. Source:
            # https://platform.claude.com/docs/en/build-with-claude/thinking-tool-workflows
            # (2026-11).
            raise ControlInvalid(
                f"the control 'reasoning-tokens' cannot be {budget} where a call is demanded: "
                f"tool-choice is {controls.tool_choice!r}, not 'auto' or 'none'",
                control="reasoning-tokens",
                model=model.name,
            )
        return accepted
    if "adaptive" in known and (
        controls.effort is not None or native.thinking_default == "adaptive"
    ):
        return {"type": "adaptive", "display": "summarized"}
    return None


def _think_between_tools(controls: Controls, model: Model) -> Mapping[str, Any]:
    # The least thinking of claude-sonnet-5-5, which refuses it with these levels of effort. Source:
    # https://platform.claude.com/docs/en/models/sonnet-5-5/whats-new-sonnet-5-5 (2026-11).
    if controls.effort in ("xhigh", "max"):
        raise ControlInvalid(
            f"the control 'reasoning-tokens' cannot be 0 with the effort {controls.effort!r}; the "
            "model accepts it up to 'high'",
            control="reasoning-tokens",
            model=model.name,
        )
    return {"type": "between_tools"}


def _accepted(
    kind: ThinkingType,
    thinking: Mapping[str, Any],
    known: Sequence[ThinkingType],
    model: Model,
) -> Mapping[str, Any]:
    if known and kind not in known:
        advice = "it decides on its own; use effort" if kind == "enabled" else "it always thinks"
        raise ControlInvalid(
            f"the model does not accept this value of reasoning-tokens: {advice}",
            control="reasoning-tokens",
            model=model.name,
        )
    return thinking


def read_native(model: Model) -> AnthropicAttributes:
    """Return the model's native attributes; raise `ConfigurationError` if they are invalid."""
    return requests.read_native(model, AnthropicAttributes)
