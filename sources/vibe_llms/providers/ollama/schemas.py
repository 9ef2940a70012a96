"""Tools in Ollama's format: JSON Schemas in the form that its server can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.tool_names import nativize_name

_DEEPEST = 32


def nativize_invoker(invoker: Invoker) -> dict[str, Any]:
    """The declaration of a tool.

    The server takes any name; the templates and parsers of its models were made for those that the
    hosted interfaces take.
    """
    return {
        "type": "function",
        "function": {
            "name": nativize_name(invoker.name),
            "description": invoker.description or "",
            "parameters": nativize_schema(invoker.arguments_schema),
        },
    }


def nativize_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema with all that it says, in the form that the server can read.

    The server reads the properties into types of its own, which know no `$ref` and no schema that
    is only `true`: what a local reference means is put in its place, and `true` becomes `{}`.

    Source: `ToolFunctionParameters` and `ToolProperty` in `api/types.go` of the server.
    """
    definitions = {
        f"#/{table}/{name}": found
        for table in ("$defs", "definitions")
        for name, found in (schema.get(table) or {}).items()
    }
    native = {"type": "object", **schema}
    native["properties"] = {
        name: _nativize_property(found, definitions, ())
        for name, found in (schema.get("properties") or {}).items()
    }
    return native


def _nativize_property(
    schema: Any, definitions: Mapping[str, Any], within: tuple[str, ...]
) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {} if schema is not False else {"not": {}}
    found = dict(schema)
    reference = found.get("$ref")
    if isinstance(reference, str) and reference in definitions and len(within) < _DEEPEST:
        if reference in within:
            return found
        within = (*within, reference)
        del found["$ref"]
        return {**_nativize_property(definitions[reference], definitions, within), **found}
    if isinstance(found.get("properties"), Mapping):
        found["properties"] = {
            name: _nativize_property(one, definitions, within)
            for name, one in found["properties"].items()
        }
    if isinstance(found.get("anyOf"), Sequence):
        found["anyOf"] = [_nativize_property(one, definitions, within) for one in found["anyOf"]]
    if isinstance(found.get("items"), Mapping):
        found["items"] = _nativize_property(found["items"], definitions, within)
    return found
