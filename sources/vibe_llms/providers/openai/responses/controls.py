"""Controls for Responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.controls import (
    nativize_choice,
    nativize_schema,
    nativize_shared,
    read_native,
    refuse_control,
)

_ABSENT = ("stop", "seed", "top_k", "reasoning_tokens")


def nativize_controls(
    controls: Controls, model: Model, names: Mapping[str, str] = {}, summary: str = "auto"
) -> dict[str, Any]:
    """Return the request members for controls that the model's attributes accept.

    `names` maps our names of tools to those on the wire; `summary` is the form of reasoning
    summaries.
    """
    for name in _ABSENT:
        if getattr(controls, name) is not None:
            raise refuse_control(name.replace("_", "-"), "Responses has no such parameter", model)
    body = nativize_shared(controls)
    if controls.output_tokens is not None:
        body["max_output_tokens"] = controls.output_tokens
    reasoning: dict[str, Any] = {}
    if controls.effort is not None:
        reasoning["effort"] = controls.effort
    if summary != "off" and read_native(model).summaries and controls.effort != "none":
        reasoning["summary"] = summary
    if reasoning:
        body["reasoning"] = reasoning
    if controls.response_schema is not None:
        schema = nativize_schema(controls.response_schema)
        body["text"] = {"format": {"type": "json_schema", **schema}}
    choice = nativize_choice(controls, names)
    if choice in ("auto", "required", "none"):
        body["tool_choice"] = choice
    elif choice is not None:
        body["tool_choice"] = {"type": "function", "name": choice}
    if controls.parallel_invocations is not None and names:
        body["parallel_tool_calls"] = controls.parallel_invocations
    return body
