"""Grammars (GBNF) that hold llama.cpp to a form: JSON that follows a schema, or tool calls.

Source: `grammars/README.md` of llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vibe_llms.providers.llamacpp.templates import CALL, CALL_END

# Any JSON, with only the white space that most models write. Rule names differ from those that the
# package makes for a schema.
_CALLS = r"""
call ::= {begin} call-space call-body call-space {end} call-space
call-body ::= "{{\"name\": " call-name ", \"arguments\": " call-object "}}"
call-name ::= {names}
call-object ::= "{{" call-space (call-member ("," call-space call-member)*)? "}}" call-space
call-member ::= call-string ":" call-space call-value
call-array ::= "[" call-space (call-value ("," call-space call-value)*)? "]" call-space
call-value ::= call-object | call-array | call-string | call-number | call-word call-space
call-word ::= "true" | "false" | "null"
call-string ::= "\"" call-character* "\"" call-space
call-character ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{{4}})
call-number ::= "-"? [0-9]+ ("." [0-9]+)? ([eE] [-+]? [0-9]+)? call-space
call-space ::= [ \n]?
"""


def produce_grammar(
    schema: Mapping[str, Any] | None,
    names: Sequence[str],
    choice: str,
    convert: Callable[[Mapping[str, Any]], str],
) -> str:
    """Return the grammar of a reply, or an empty string if its form is free.

    `names` are the offered tools, `choice` is `auto`, `any`, or one of them. With a schema, the
    reply is JSON that follows it, or calls. `convert` makes the grammar of a schema.
    """
    forced = bool(names) and choice != "auto"
    if schema is None and not forced:
        return ""
    if schema is not None and not names:
        return convert(schema)
    calls = _CALLS.format(
        begin=json.dumps(CALL),
        end=json.dumps(CALL_END),
        names=" | ".join(
            json.dumps(json.dumps(name))
            for name in (names if choice in ("auto", "any") else [choice])
        ),
    )
    if schema is None or forced:
        return f"root ::= call+{calls}"
    answer = re.sub(r"^root ::=", "answer ::=", convert(schema), flags=re.MULTILINE)
    return f"root ::= answer | call+{calls}{answer}\n"
