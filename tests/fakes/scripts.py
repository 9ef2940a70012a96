"""Random scripts for the scripted provider, and tools for the calls in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.providers.scripted.scripts import FAULTS, Part, Script, ScriptedReply

WORDS = ("sky", "is", "blue", "\u00e9t\u00e9", "\U0001f600", "\u2028", "\n\n", "", " ", "```", "{")
#: Tools by these names are called; `missing` is one that there is none of.
TOOLS = ("add", "fail", "missing")


def add(a: int = 0, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def fail(reason: str = "because") -> str:
    """Fail for a reason."""
    raise LookupError(reason)


def produce_text(chance: random.Random) -> str | tuple[str, ...]:
    """Text, or the very chunks of it, some of them empty."""
    words = tuple(chance.choices(WORDS, k=chance.randrange(0, 6)))
    return words if chance.random() < 0.5 else " ".join(words)


def produce_call(chance: random.Random) -> Part:
    """A call, its arguments good, wrong or no JSON at all."""
    name = chance.choice(TOOLS)
    good: dict[str, Any] = {"a": chance.randrange(9), "b": 2}
    choices: list[dict[str, Any] | str] = [
        {}, good, {"a": "x"}, {"c": 1}, "", "{", "[1]", '{"a":1}x', '{"a":1'
    ]  # fmt: skip
    arguments = chance.choice(choices)
    return Part(invocation=name, arguments=arguments)


def produce_reply(
    chance: random.Random, *, calls: bool = True, faults: bool = True
) -> ScriptedReply:
    """A reply of any parts in any order, which may fail or be cut anywhere."""
    parts: list[Part] = []
    for _ in range(chance.randrange(0, 6)):
        kind = chance.randrange(4 if calls else 2)
        match kind:
            case 0:
                parts.append(Part(text=produce_text(chance)))
            case 1:
                parts.append(Part(reasoning=produce_text(chance)))
            case _:
                parts.append(produce_call(chance))
    if faults and chance.random() < 0.4:
        fault = chance.choice([Part(cut=True), Part(error=chance.choice(list(FAULTS)))])
        parts.insert(chance.randrange(len(parts) + 1), fault)
    usage = chance.choice([None, Usage(1, 2, 3, 4, 5)])
    reasons = [None, None, None, StopReason.LENGTH, StopReason.REFUSED, "novel"]
    return ScriptedReply(parts=tuple(parts), usage=usage, stop_reason=chance.choice(reasons))


def produce_script(
    chance: random.Random, *, calls: bool = True, faults: bool = True, last: str = "Done."
) -> Script:
    """Some random replies, and at last one that is sound, for whatever comes after them."""
    replies: Sequence[ScriptedReply] = [
        produce_reply(chance, calls=calls, faults=faults) for _ in range(chance.randrange(1, 5))
    ]
    return Script((*replies, *(ScriptedReply.from_chunks(last) for _ in range(20))))
