"""Controls for Chat Completions."""

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


def nativize_controls(
    controls: Controls, model: Model, names: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Return the request members for controls that the model's attributes accept.

    `names` maps our names of tools to those on the wire.
    """
    body = nativize_shared(controls)
    if controls.output_tokens is not None:
        body[read_native(model).output_limit] = controls.output_tokens
    # Local servers take these; the attributes of OpenAI's models refuse them.
    for name, value in (("top_k", controls.top_k), ("seed", controls.seed)):
        if value is not None:
            body[name] = value
    if controls.stop is not None:
        body["stop"] = controls.stop
    if controls.effort is not None:
        body["reasoning_effort"] = controls.effort
    if controls.reasoning_tokens is not None:
        raise refuse_control(
            "reasoning-tokens", "Chat Completions has no reasoning budget; use effort", model
        )
    if controls.response_schema is not None:
        schema = nativize_schema(controls.response_schema)
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    choice = nativize_choice(controls, names)
    if choice in ("auto", "required", "none"):
        body["tool_choice"] = choice
    elif choice is not None:
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}
    if controls.parallel_invocations is not None and names:
        body["parallel_tool_calls"] = controls.parallel_invocations
    return body
