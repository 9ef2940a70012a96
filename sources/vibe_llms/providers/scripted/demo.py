"""The model `demo`: a small conversation about this library, and calls of the tools it is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from vibe_llms.configuration import shipped_folder
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.scripted.scripts import Part, Script, ScriptedReply, read_script


@cache
def _topics() -> Script:
    return read_script(shipped_folder() / "scripts" / "demo.toml")


def improvise(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
    """The demo's answer: what tools returned, a call of a tool that was named, or a topic."""
    if canisters and isinstance(canisters[-1], ResultCanister):
        return ScriptedReply(parts=(Part(text=_report(canisters)),))
    words = last_words(canisters)
    if calls := [part for invoker in invokers if (part := _call(invoker, words)) is not None]:
        return ScriptedReply(parts=(Part(text="Let me use what I was given. "), *calls))
    reply = _topics().choose(words, 0)
    documents = sum(isinstance(canister, DocumentCanister) for canister in canisters)
    if documents and reply is _topics().replies[-1]:
        note = f"I was given {documents} document(s), but a script cannot read them. "
        return ScriptedReply(parts=(Part(text=note), *reply.parts))
    return reply


def last_words(canisters: Sequence[Canister]) -> str:
    """The text of the last message of the person, or of the last result."""
    for canister in reversed(canisters):
        if isinstance(canister, UserCanister | ResultCanister):
            return "\n".join(
                content.data if isinstance(content.data, str) else ""
                for content in canister.contents
                if isinstance(content, TextualContent)
            )
    return ""


def _report(canisters: Sequence[Canister]) -> str:
    calls = {c.identity: c.name for c in canisters if isinstance(c, InvocationCanister)}
    lines = []
    for canister in reversed(canisters):
        if not isinstance(canister, ResultCanister):
            break
        texts = [
            f"({content.data.size} bytes)" if isinstance(content.data, Reference) else content.data
            for content in canister.contents
            if isinstance(content, TextualContent)
        ]
        name = calls.get(canister.invocation, "a tool")
        verb = "failed" if canister.failed else "returned"
        lines.append(f"`{name}` {verb}: {' '.join(texts) or 'something that is no text'}")
    return "\n\n".join(reversed(lines))


def _call(invoker: Invoker, words: str) -> Part | None:
    """A call of a tool whose name is in the words, its arguments taken from them."""
    bare = invoker.name.rpartition("/")[2]
    spoken = re.escape(bare).replace("_", "[ _-]?")
    if not re.search(rf"\b{spoken}\b", words, re.IGNORECASE):
        return None
    properties: Mapping[str, Any] = invoker.arguments_schema.get("properties", {})
    required = invoker.arguments_schema.get("required", ())
    numbers = iter(re.findall(r"-?\d+(?:\.\d+)?", words))
    quoted = iter(re.findall(r"[\"'“]([^\"'”]+)[\"'”]", words))
    arguments: dict[str, Any] = {}
    for name, schema in properties.items():
        kind = schema.get("type")
        value: Any = None
        if kind in ("integer", "number"):
            text = next(numbers, None)
            value = None if text is None else float(text) if "." in text else int(text)
        elif kind == "string":
            value = schema.get("enum", [None])[0] or next(quoted, None)
            if value is None and name in required:
                value = _after(words, bare)
        elif kind == "boolean" and name in required:
            value = True
        if value is not None:
            arguments[name] = value
    return Part(invocation=invoker.name, arguments=arguments)


def _after(words: str, name: str) -> str:
    spoken = re.escape(name).replace("_", "[ _-]?")
    rest = re.split(rf"\b{spoken}\b", words, maxsplit=1, flags=re.IGNORECASE)[-1]
    return re.sub(r"^\W*(?:in|of|for|with|on|about)?\W+|[\s?.!]+$", "", rest) or words.strip()
