"""Controls and native attributes that both interfaces share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import name_tools
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import requests
from vibe_llms.providers.interfaces import Model

_LONGEST_SCHEMA_NAME = 64


class OpenaiAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Attributes of a model that only these interfaces read: `native` in the model's attributes.

    `output-limit` is the member of Chat Completions that limits a reply. `system-role` is the role
    of system text; with `system-messages`, it may be in the middle of a conversation. `summaries`
    means that reasoning can be summarized. `replays-reasoning` means that the model wants the
    reasoning of its earlier replies back, in the member or between the tags in which it came;
    `reasoning_details` are sent back unless it is false. `reasoning-tags` means that the model
    writes reasoning into its text, between tags. `short-calls` means that ids of calls have nine
    letters and digits, as Mistral's do. `tool-schemas` is the language of the schemas of tools:
    `openapi` for servers that refuse what OpenAPI 3.0 does not know. `cache-key` means that the
    model's requests may have a `prompt_cache_key`, where the server knows it.
    """

    output_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: Literal["system", "developer"] = "system"
    system_messages: bool = False
    summaries: bool = False
    replays_reasoning: bool | None = None
    reasoning_tags: bool = False
    short_calls: bool = False
    tool_schemas: Literal["json-schema", "openapi"] = "json-schema"
    cache_key: bool = False


def read_native(model: Model) -> OpenaiAttributes:
    """Return the model's native attributes; raise `ConfigurationError` if they are invalid."""
    return requests.read_native(model, OpenaiAttributes)


def nativize_shared(controls: Controls) -> dict[str, Any]:
    """Return the members that have the same name and form in both interfaces."""
    body: dict[str, Any] = {}
    for name in ("temperature", "top_p", "service_tier"):
        if (value := getattr(controls, name)) is not None:
            body[name] = value
    return body


def refuse_control(name: str, reason: str, model: Model) -> ControlInvalid:
    """Return the error for a control that the interface lacks."""
    return ControlInvalid(
        f"the control {name!r} cannot be sent: {reason}",
        control=name,
        model=model.name,
        unsupported=True,
    )


def nativize_choice(controls: Controls, names: Mapping[str, str]) -> str | None:
    """Return `auto`, `required`, `none`, or the wire name of the tool to call; None if open.

    `names` maps our names of tools to those on the wire. Without any tools, `auto` and `none` need
    not be sent.
    """
    choice = controls.tool_choice
    if choice is None or (not names and choice in ("auto", "none")):
        return None
    if names and choice in ("auto", "any", "none"):
        return "required" if choice == "any" else choice
    if choice in names:
        return names[choice]
    raise ControlInvalid(
        f"tool {choice!r} cannot be required; {name_tools(sorted(names))}", control="tool-choice"
    )


def nativize_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema with the name that it needs, strict if possible."""
    title = schema.get("title")
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", title if isinstance(title, str) else "")
    return {
        "name": name[:_LONGEST_SCHEMA_NAME] or "reply",
        "schema": schema,
        "strict": can_be_strict(schema),
    }


def can_be_strict(schema: object) -> bool:
    """Return True if every object of a schema is closed and requires all of its properties.

    Source: https://developers.openai.com/api/docs/guides/structured-outputs (2026-11).

    >>> can_be_strict({"type": "object", "properties": {"a": {}}, "required": ["a"]})
    False
    """
    if isinstance(schema, list):
        return all(map(can_be_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, Mapping):
        names = set(properties) if isinstance(properties, Mapping) else set()
        closed = schema.get("additionalProperties") is False
        if not closed or names != set(schema.get("required", [])):
            return False
    inner = [value for name, value in schema.items() if name not in ("enum", "const", "default")]
    return all(map(can_be_strict, inner))
