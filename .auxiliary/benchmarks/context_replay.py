"""Conversations of the library with a model that replays replies, for measures without a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from vibe_llms import Conversation
from vibe_llms.base.exceptions import ContextOverflow
from vibe_llms.conversations.context_use import measure_tools
from vibe_llms.conversations.context_view import HEADING
from vibe_llms.conversations.context_window import measure_tokens
from vibe_llms.conversations.digests import DECISIONS, GOAL, INSTRUCTIONS, STATE
from vibe_llms.conversations.rereading import produce_reread
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    Ending,
    InvocationCanister,
    ReplyCanister,
    StopReason,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.identities import produce_identity
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import Loader, TokenCount, TurnContext, refuse_loading

#: The beginning of the program's request for a summary.
ORDER = "[This message is from the program"
_WORDS = re.compile(r"Write at most (\d+) words")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_DECIDED = re.compile(r"(?i)\b(?:decided|agreed|decision)\b")
_INSTRUCTED = re.compile(r"(?i)\b(?:never|always|do not|don't|must|only|instead)\b")


@dataclass(frozen=True)
class Step:
    """One reply: its text, or calls as pairs of a name and arguments."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Sent:
    """One request as the model gets it."""

    messages: Sequence[Canister]
    tools: Sequence[Invoker]
    tokens: int
    order: bool
    output: int


def summarize(messages: Sequence[Canister]) -> str:
    """Return a summary of first sentences, as a stand-in for one that a model writes.

    Instructions and decisions are taken only from messages that no earlier summary has replaced.
    """
    order = messages[-1]
    assert isinstance(order, UserCanister)
    found = _WORDS.search(order.text)
    room = int(found[1]) if found else 200
    said = [one for one in messages[:-1] if isinstance(one, UserCanister)]
    own = [one for one in said if not one.text.startswith(HEADING[:40])]
    decided = [one for said in own for one in _sentences(said.text) if _DECIDED.search(one)]
    instructed = [
        one
        for said in own
        for one in _sentences(said.text)
        if _INSTRUCTED.search(one) and one not in decided
    ]
    state: list[str] = []
    words = room // 2
    for message in reversed(messages):
        if isinstance(message, AssistantCanister) and (first := next(_sentences(message.text), "")):
            words -= len(first.split())
            if words < 0:
                break
            state.append(first)
    parts = {
        GOAL: next(_sentences(own[0].text), "") if own else "",
        INSTRUCTIONS: "\n".join(f"- {one}" for one in instructed),
        DECISIONS: "\n".join(f"- {one}" for one in decided),
        STATE: "\n".join(reversed(state)),
    }
    return "\n\n".join(f"## {name}\n{text}" for name, text in parts.items() if text)


def _sentences(text: str) -> Iterator[str]:
    return (one.strip() for one in _SENTENCE.split(text) if one.strip())


def is_order(messages: Sequence[Canister]) -> bool:
    """Return True if a request asks for a summary."""
    last = messages[-1]
    return isinstance(last, UserCanister) and last.text.startswith(ORDER)


@dataclass
class ReplayModel:
    """A model with prepared replies that refuses requests longer than its window.

    It counts `scale` tokens where the library estimates one, unless `count` does. `prepare` changes
    a request before it is sent, and `watch` gets each one that is.
    """

    window: int
    watch: Callable[[Sent], None] | None = None
    scale: float = 1.0
    prepare: Callable[[Sequence[Canister]], Sequence[Canister]] = lambda messages: messages
    summarize: Callable[[Sequence[Canister]], str] = summarize
    count: Callable[[Sequence[Canister]], int] | None = None
    steps: list[Step] = field(default_factory=list)
    refused: int = 0
    provider: str = "replay"
    name: str = "replay"

    @property
    def attributes(self) -> ModelAttributes:
        return ModelAttributes(context_tokens=self.window, tools="native")

    def produce_cache(self) -> object:
        return None

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Accept everything."""

    def measure(self, messages: Sequence[Canister], tools: Sequence[Invoker]) -> int:
        if self.count is not None:
            return self.count(messages)
        return round(self.scale * (measure_tools(tools) + sum(map(measure_tokens, messages))))

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        messages = self.prepare(canisters)
        tokens = self.measure(messages, invokers)
        if tokens > self.window:
            self.refused += 1
            error = ContextOverflow(f"{tokens} tokens", provider=self.provider)
            error.tokens, error.limit = tokens, self.window
            raise error
        order = is_order(messages)
        step = Step(self.summarize(messages)) if order else self.steps.pop(0)
        reply = self._reply(step, tokens)
        ending = reply[-1].ending
        assert ending is not None
        assert ending.usage is not None
        if self.watch is not None:
            self.watch(Sent(messages, invokers, tokens, order, ending.usage.output_tokens))
        return reply

    def _reply(self, step: Step, tokens: int) -> tuple[ReplyCanister, ...]:
        name = produce_identity()
        spoken = (TextualContent(step.text),)
        reply: list[ReplyCanister] = [AssistantCanister(spoken, reply=name)] if step.text else []
        reply += [
            InvocationCanister(name=tool, arguments=text, reply=name) for tool, text in step.calls
        ]
        output = round(self.scale * sum(map(measure_tokens, reply)))
        usage = Usage(uncached_input_tokens=tokens, output_tokens=output)
        reason = StopReason.INVOCATIONS if step.calls else StopReason.FINISHED
        *before, last = reply
        return (*before, _end(last, Ending(reason, usage)))

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        return TokenCount(self.measure(self.prepare(canisters), invokers), estimated=False)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        return b"{}"


def _end(last: ReplyCanister, ending: Ending) -> ReplyCanister:
    return replace(last, ending=ending)


def digests_of(messages: Sequence[Canister]) -> Sequence[DigestCanister]:
    """Return the digests of a history that leave something out."""
    found = (one for one in messages if isinstance(one, DigestCanister))
    return [one for one in found if one.last or one.shortened]


def infer_schema(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema of the arguments that were observed."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    properties = {
        name: {"type": kinds.get(type(value), "object")}
        for one in calls
        for name, value in one.items()
    }
    return {"type": "object", "properties": properties}


async def reread(conversation: Conversation, **arguments: Any) -> str:
    """Return the answer of the tool `reread`."""
    canisters = conversation.canisters
    tool = produce_reread(lambda: canisters, refuse_loading)
    text = json.dumps(arguments)
    call = InvocationCanister(name=tool.name, arguments=text)
    output = await tool.invoke(text, InvocationContext("", call, lambda *_, **__: None))
    return output.text
