"""Controls for Anthropic's interface, version 2026-10-21.

`temperature`, `top_p` and `top_k` are no part of it any more; the models' attributes refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from vibe_llms.controls import Controls
from vibe_llms.exceptions import ConfigurationError, ControlInvalid
from vibe_llms.providers.interfaces import Model

# What an unstreamed reply may have: more could take over ten minutes, and then some proxy on the
# way closes the connection. Source: `_calculate_nonstreaming_timeout` of anthropic 2.12.0.
UNSTREAMED_OUTPUT_TOKENS = 21_333
CAREFUL_OUTPUT_TOKENS = 8_192
SMALLEST_BUDGET_TOKENS = 1_024
ThinkingType = Literal["adaptive", "enabled", "disabled", "between_tools"]


class NativeAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """What only this provider needs to know of a model: `native` in its attributes.

    `thinking` are the accepted types, `thinking-default` is sent where nothing else is asked for.
    `system-messages` tells whether system text may stand in the middle of a conversation.
    """

    thinking: tuple[ThinkingType, ...] = ()
    thinking_default: ThinkingType | None = None
    system_messages: bool = False


class AnthropicControlsProcessor:
    """Controls to members of the request's body."""

    def nativize(
        self, controls: Controls, model: Model, *, streaming: bool = True
    ) -> Mapping[str, Any]:
        """The members; controls that the attributes refuse have been refused before."""
        body: dict[str, Any] = {"max_tokens": self._bound(controls, model, streaming)}
        if controls.stop is not None:
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
        if (thinking := self._nativize_thinking(controls, model)) is not None:
            body["thinking"] = thinking
        return body

    def nativize_choice(
        self, controls: Controls, names: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """The `tool_choice`; `names` are the names on the wire of the tools that are offered."""
        choice = controls.tool_choice
        if choice is None and controls.parallel_invocations is None:
            return None
        if choice in (None, "auto", "any", "none"):
            native: dict[str, Any] = {"type": choice or "auto"}
        elif choice in names:
            native = {"type": "tool", "name": names[choice]}
        else:
            offered = ", ".join(sorted(names)) or "none"
            raise ControlInvalid(
                f"there is no tool {choice!r} to choose; the tools are {offered}",
                control="tool-choice",
            )
        if controls.parallel_invocations is not None and native["type"] != "none":
            native["disable_parallel_tool_use"] = not controls.parallel_invocations
        return native

    def _bound(self, controls: Controls, model: Model, streaming: bool) -> int:
        budget = controls.reasoning_tokens or 0
        if controls.output_tokens is not None:
            if budget >= controls.output_tokens:
                raise ControlInvalid(
                    f"the control 'reasoning-tokens' cannot be {budget}: it must be less than "
                    f"output-tokens, which is {controls.output_tokens} and counts both",
                    control="reasoning-tokens",
                    model=model.name,
                )
            return controls.output_tokens
        attributes = model.attributes
        bound = (
            attributes.default_output_tokens
            or attributes.output_tokens
            or budget + CAREFUL_OUTPUT_TOKENS
        )
        if not streaming:
            bound = min(bound, max(UNSTREAMED_OUTPUT_TOKENS, budget + CAREFUL_OUTPUT_TOKENS))
        return bound

    def _nativize_thinking(self, controls: Controls, model: Model) -> Mapping[str, Any] | None:
        native = read_native(model)
        known = native.thinking
        budget = controls.reasoning_tokens
        if budget == 0:
            return self._accepted("disabled", {"type": "disabled"}, known, model)
        if budget is not None:
            thinking = {"type": "enabled", "budget_tokens": budget}
            if budget < SMALLEST_BUDGET_TOKENS:
                raise ControlInvalid(
                    f"the control 'reasoning-tokens' cannot be {budget}: it must be 0 or at least "
                    f"{SMALLEST_BUDGET_TOKENS}",
                    control="reasoning-tokens",
                    model=model.name,
                )
            return self._accepted("enabled", thinking, known, model)
        if "adaptive" in known and (
            controls.effort is not None or native.thinking_default == "adaptive"
        ):
            return {"type": "adaptive", "display": "summarized"}
        return None

    def _accepted(
        self,
        kind: ThinkingType,
        thinking: Mapping[str, Any],
        known: Sequence[ThinkingType],
        model: Model,
    ) -> Mapping[str, Any]:
        if known and kind not in known:
            advice = "it decides by itself; use effort" if kind == "enabled" else "it always thinks"
            raise ControlInvalid(
                f"the model takes no reasoning-tokens of this value: {advice}",
                control="reasoning-tokens",
                model=model.name,
            )
        return thinking


def read_native(model: Model) -> NativeAttributes:
    """The provider's own attributes of a model; `ConfigurationError` where they are wrong."""
    try:
        return msgspec.convert(model.attributes.native, NativeAttributes)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"the attributes of {model.name!r} are wrong: {error}",
            table=f"providers.{model.provider}.models",
            key="native",
        ) from error
