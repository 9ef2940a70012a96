"""Custom tools with text input, which are offered to models as functions with one argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vibe_llms.server.failures import Rejected

#: Name of the argument with the text.
INPUT = "input"
#: Schema of the arguments.
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


def describe_format(form: Mapping[str, Any] | None, param: str) -> str:
    """Return the note that tells the model the grammar of a custom tool."""
    if not form or form.get("type") != "grammar":
        return ""
    # Chat Completions nests the grammar in a member; Responses does not.
    grammar = form.get("grammar", form)
    definition = grammar.get("definition") if isinstance(grammar, Mapping) else None
    if not isinstance(definition, str):
        raise Rejected("a grammar needs a definition", param=f"{param}.format")
    syntax = grammar.get("syntax", "")
    return f"\n\nThe text must match this {syntax} grammar:\n{definition}"


def read_text(arguments: str) -> str:
    """Return the text in the arguments of a call.

    Some models write the bare text, or choose another name for it, such as `patch`.

    >>> read_text('{"input": "+1"}'), read_text('{"patch": "+1"}'), read_text("+1")
    ('+1', '+1', '+1')
    """
    try:
        members = msgspec.json.decode(arguments, type=dict[str, Any])
    except (ValueError, RecursionError):
        return arguments
    texts = [members[INPUT]] if INPUT in members else [*members.values()]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else arguments
