"""Model `demo`: a short conversation about this library, and calls of the offered tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import msgspec

from vibe_llms.base.configuration import shipped_folder
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.scripted.examples import Examples
from vibe_llms.providers.scripted.scripts import Part, Script, ScriptedReply, read_script


@cache
def _topics() -> Script:
    return read_script(shipped_folder() / "scripts" / "demo.toml")


def improvise(
    canisters: Sequence[Canister], invokers: Sequence[Invoker], controls: Controls = Controls()
) -> ScriptedReply:
    """Return the demo's reply: tool results, a call of a tool that was named, or a topic.

    Controls can force a tool that was not named, or a schema for the reply.
    """
    words = last_words(canisters)
    ended = bool(canisters) and isinstance(canisters[-1], ResultCanister)
    if not ended and (chosen := _choose(invokers, words, controls.tool_choice)):
        calls = [_call(invoker, words) for invoker in chosen]
        # A model that is forced to call a tool writes no text first.
        forced = controls.tool_choice not in (None, "auto")
        said = () if forced else (Part(text="Let me use a tool. "),)
        return ScriptedReply(parts=(*said, *calls))
    if controls.response_schema is not None:
        value = Examples(controls.response_schema, words, words).produce()
        return ScriptedReply(parts=(Part(text=msgspec.json.encode(value).decode()),))
    if ended:
        return ScriptedReply(parts=(Part(text=_report(canisters)),))
    reply = _topics().choose(words, 0)
    documents = sum(isinstance(canister, DocumentCanister) for canister in canisters)
    if documents and reply is _topics().replies[-1]:
        counted = "1 document" if documents == 1 else f"{documents} documents"
        note = f"The conversation contains {counted}, which a script cannot read. "
        return ScriptedReply(parts=(Part(text=note), *reply.parts))
    return reply


def last_words(canisters: Sequence[Canister]) -> str:
    """Return the text of the last user message or result."""
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
        lines.append(f"`{name}` {verb}: {' '.join(texts) or 'content other than text'}")
    return "\n\n".join(reversed(lines))


def _choose(invokers: Sequence[Invoker], words: str, choice: str | None) -> Sequence[Invoker]:
    """Choose the tools to call: the required one, or those named in the words."""
    if choice not in (None, "auto", "any"):
        return [invoker for invoker in invokers if invoker.name == choice]
    return [one for one in invokers if _names(words, _spoken(one))] or invokers[: choice == "any"]


def _call(invoker: Invoker, words: str) -> Part:
    """Return a call of a tool with arguments taken from the words."""
    examples = Examples(invoker.arguments_schema, words, _after(words, _spoken(invoker)))
    return Part(invocation=invoker.name, arguments=examples.produce())


def _spoken(invoker: Invoker) -> str:
    """Return the pattern of a tool's name; that of `get_weather` also matches "weather"."""
    bare = invoker.name.rpartition("/")[2]
    return re.escape(bare.removeprefix("get_")).replace("_", "[ _-]?")


def _names(words: str, spoken: str) -> bool:
    return re.search(rf"\b{spoken}\b", words, re.IGNORECASE) is not None


def _after(words: str, spoken: str) -> str:
    rest = re.split(rf"\b{spoken}\b", words, maxsplit=1, flags=re.IGNORECASE)[-1]
    return re.sub(r"^\W*(?:in|of|for|with|on|about)?\W+|[\s?.!]+$", "", rest) or words.strip()
