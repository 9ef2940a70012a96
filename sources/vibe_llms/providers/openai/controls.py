"""What both interfaces make of controls, and what only they need to know of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from vibe_llms.controls import Controls
from vibe_llms.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import name_tools
from vibe_llms.providers import requests
from vibe_llms.providers.interfaces import Model

_LONGEST_SCHEMA_NAME = 64


class NativeAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """What only these interfaces need to know of a model: `native` in its attributes.

    `output-limit` is the name of the member of Chat Completions that bounds a reply. `system-role`
    is the role of system text, `system-messages` whether it may be in the middle of a
    conversation. `summaries` says that reasoning can be summed up. `replays-reasoning` says that
    the model wants the reasoning of its earlier replies back, in the member or between the tags in
    which it came; `reasoning_details` go back unless it is false. `reasoning-tags` says that the
    model writes reasoning into its text, between tags. `short-calls` says that identities of calls
    have nine letters and digits, as Mistral's do. `tool-schemas` is the language of the schemas of
    tools: `openapi` for servers that refuse what OpenAPI 3.0 does not know.
    """

    output_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: Literal["system", "developer"] = "system"
    system_messages: bool = False
    summaries: bool = False
    replays_reasoning: bool | None = None
    reasoning_tags: bool = False
    short_calls: bool = False
    tool_schemas: Literal["json-schema", "openapi"] = "json-schema"


def read_native(model: Model) -> NativeAttributes:
    """What only this provider knows of a model; `ConfigurationError` where it is wrong."""
    return requests.read_native(model, NativeAttributes)


def nativize_shared(controls: Controls) -> dict[str, Any]:
    """The members that have the same name and form in both interfaces."""
    body: dict[str, Any] = {}
    for name in ("temperature", "top_p", "service_tier"):
        if (value := getattr(controls, name)) is not None:
            body[name] = value
    return body


def refuse_control(name: str, reason: str, model: Model) -> ControlInvalid:
    """The error of a control that has no place in an interface."""
    return ControlInvalid(
        f"the control {name!r} cannot be sent: {reason}",
        control=name,
        model=model.name,
        unsupported=True,
    )


def nativize_choice(controls: Controls, names: Mapping[str, str]) -> str | None:
    """`auto`, `required`, `none`, or the name on the wire of the tool to call; `None` if open.

    `names` are the names on the wire of the tools that are offered. Without any, what asks for no
    call is fulfilled as it is.
    """
    choice = controls.tool_choice
    if choice is None or (not names and choice in ("auto", "none")):
        return None
    if names and choice in ("auto", "any", "none"):
        return "required" if choice == "any" else choice
    if choice in names:
        return names[choice]
    raise ControlInvalid(
        f"there is no tool {choice!r} to choose; {name_tools(sorted(names))}", control="tool-choice"
    )


def nativize_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema with the name that it must have, strict where it can be."""
    title = schema.get("title")
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", title if isinstance(title, str) else "")
    return {
        "name": name[:_LONGEST_SCHEMA_NAME] or "reply",
        "schema": schema,
        "strict": can_be_strict(schema),
    }


def can_be_strict(schema: object) -> bool:
    """Whether every object of a schema is closed and requires all of its properties.

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
