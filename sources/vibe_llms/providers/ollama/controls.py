"""Controls for Ollama: members of the body, and its `options`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from vibe_llms.messages.controls import Controls
from vibe_llms.providers import requests
from vibe_llms.providers.interfaces import Model

_OPTIONS = ("temperature", "top_p", "top_k", "stop", "seed")


class OllamaAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Attributes of a model that only this provider reads: `native` in the model's attributes.

    `thinking` is set by a `switch` or by `levels` of effort. `think` asks for thinking unless a
    control decides.
    """

    thinking: Literal["switch", "levels"] = "switch"
    think: bool = False


def nativize_controls(controls: Controls, model: Model) -> Mapping[str, Any]:
    """Return the request members for controls that the model's attributes accept."""
    options: dict[str, Any] = {
        name: value for name in _OPTIONS if (value := getattr(controls, name)) is not None
    }
    bound = controls.output_tokens or model.attributes.default_output_tokens
    if bound is not None:
        options["num_predict"] = bound
    body: dict[str, Any] = {"options": options}
    if controls.response_schema is not None:
        body["format"] = controls.response_schema
    if (think := _nativize_thinking(controls, model)) is not None:
        body["think"] = think
    return body


def _nativize_thinking(controls: Controls, model: Model) -> bool | str | None:
    native = read_native(model)
    if controls.reasoning_tokens == 0 or controls.effort == "none":
        return False if model.attributes.reasoning else None
    if controls.effort is not None:
        return controls.effort if native.thinking == "levels" else True
    return True if native.think or controls.reasoning_tokens else None


def read_native(model: Model) -> OllamaAttributes:
    """Return the model's native attributes; raise `ConfigurationError` if they are invalid."""
    return requests.read_native(model, OllamaAttributes)
