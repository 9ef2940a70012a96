"""The value of `--schema`: a JSON Schema as text, from a file, or in a short form."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from vibe_llms.attachments import read_bytes, read_text
from vibe_llms.cli.terminal import is_terminal, write_json
from vibe_llms.exceptions import AttachmentUnreadable, RequestError

# The short form is that of https://llm.datasette.io/en/stable/schemas.html (2026-11).
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def read_schema(text: str) -> dict[str, Any]:
    """A JSON Schema from JSON, from the path of a file that holds it, or from its short form.

    The short form lists the members of an object: `name, age int, bio: a short text`.

    >>> read_schema("name, age int")["properties"]
    {'name': {'type': 'string'}, 'age': {'type': 'integer'}}
    """
    if text.lstrip().startswith("{"):
        return _read_json(text, "--schema")
    if os.path.exists(text):
        return _read_json(read_text(read_bytes(Path(text))) or "", text)
    if text.endswith(".json") or os.sep in text.partition(":")[0]:
        raise AttachmentUnreadable(f"{text}: there is no such file")
    return _read_short(text)


def print_output(value: object) -> None:
    """A typed output as JSON: on one line in a pipe, indented on a terminal."""
    indent = 2 if is_terminal(sys.stdout) else None
    write_json(json.dumps(value, ensure_ascii=False, indent=indent))


def _read_json(text: str, origin: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{origin}: this is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RequestError(f"{origin}: a JSON Schema is an object")
    return schema


def _read_short(text: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for field in text.split("\n" if "\n" in text else ","):
        if not field.strip():
            continue
        head, _, description = field.partition(":")
        match head.split():
            case [name]:
                kind = "str"
            case [name, kind] if kind in _TYPES:
                pass
            case _:
                raise RequestError(
                    f"--schema: {field.strip()!r} is not NAME, NAME TYPE or "
                    f"NAME TYPE: DESCRIPTION; the types are {', '.join(_TYPES)}"
                )
        properties[name] = {"type": _TYPES[kind]}
        if description := description.strip():
            properties[name]["description"] = description
    if not properties:
        raise RequestError("--schema: it is empty")
    return {"type": "object", "properties": properties, "required": list(properties)}
