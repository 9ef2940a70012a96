"""Conversation history for a model without native tool calls: calls and results become text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, Reference, TextualContent, repair_text
from vibe_llms.messages.events import Notice
from vibe_llms.providers.contract.prompt import write_answer, write_call, write_result
from vibe_llms.providers.interfaces import Loader
from vibe_llms.providers.pieces import load_texts

_NOTHING = "(It returned nothing.)"


class RewrittenHistory:
    """Rewritten canisters of one conversation, which grow as the conversation does.

    A rewritten canister stays the same object so that the wrapped model finds it in its cache.
    `instructions` are added after the instructions at the beginning of the conversation.
    """

    def __init__(self, instructions: SupervisorCanister) -> None:
        self._instructions = instructions
        self._begun = False
        self._rewritten: list[Canister] = []
        # The calls of the last reply and their results, in the order of the calls.
        self._calls: dict[str, InvocationCanister] = {}
        self._answers: dict[str, UserCanister] = {}
        self._reply = ""

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Add the next canister. Nothing is lost, so there are never notices."""
        match canister:
            case SupervisorCanister() if not self._begun:
                self._rewritten.append(canister)
                return ()
            case ResultCanister() if self._awaits(canister):
                name = self._calls[canister.invocation].name
                self._answers[canister.invocation] = _rewrite_result(canister, name, texts)
                return ()
        self._begin()
        match canister:
            case InvocationCanister() | AssistantCanister() if self._answers or (
                self._calls and canister.reply != self._reply
            ):
                self._close()
            case InvocationCanister() | AssistantCanister():
                pass
            case _:
                self._close()
        match canister:
            case InvocationCanister():
                self._reply = canister.reply
                self._calls[canister.identity] = canister
                self._rewritten.append(_rewrite_call(canister))
            case AssistantCanister():
                self._rewritten.append(_rewrite_reply(canister, texts))
            case ResultCanister():
                self._rewritten.append(_rewrite_result(canister, "", texts))
            case _:
                self._rewritten.append(canister)
        return ()

    def canisters(self) -> Sequence[Canister]:
        """Return all canisters, with a result for every call."""
        self._begin()
        return [*self._rewritten, *self._collect_answers()]

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._rewritten.append(self._instructions)

    def _awaits(self, result: ResultCanister) -> bool:
        return result.invocation in self._calls and result.invocation not in self._answers

    def _close(self) -> None:
        """Close the calls of the last reply; report calls without a result as interrupted."""
        self._rewritten += self._collect_answers()
        self._calls, self._answers = {}, {}

    def _collect_answers(self) -> Sequence[Canister]:
        return [
            self._answers.get(identity) or _interrupt(call)
            for identity, call in self._calls.items()
        ]


async def read_texts(canisters: Sequence[Canister], load: Loader) -> Mapping[str, bytes]:
    """Load the texts of the canisters that are rewritten, and no others."""
    rewritten = [one for one in canisters if isinstance(one, AssistantCanister | ResultCanister)]
    return await load_texts(rewritten, load)


def _rewrite_call(call: InvocationCanister) -> AssistantCanister:
    return AssistantCanister(
        (TextualContent(write_call(call)),),
        reply=call.reply,
        provenance=call.provenance,
        identity=call.identity,
        created=call.created,
    )


def _rewrite_reply(canister: AssistantCanister, texts: Mapping[str, bytes]) -> AssistantCanister:
    paused = canister.ending is not None and canister.ending.reason == StopReason.PAUSED
    if paused or not any(isinstance(content, TextualContent) for content in canister.contents):
        # A provider requires a paused reply back unchanged.
        return canister
    contents: list[Content] = []
    for content in canister.contents:
        if not isinstance(content, TextualContent):
            contents.append(content)
        elif text := _read(content, texts):
            contents.append(TextualContent(write_answer(text)))
    return msgspec.structs.replace(canister, contents=tuple(contents))


def _rewrite_result(result: ResultCanister, name: str, texts: Mapping[str, bytes]) -> UserCanister:
    said = [_read(one, texts) for one in result.contents if isinstance(one, TextualContent)]
    others = [one for one in result.contents if not isinstance(one, TextualContent)]
    text = "\n\n".join(part for part in said if part) or ("" if others else _NOTHING)
    head = TextualContent(write_result(name, text, failed=result.failed))
    return UserCanister((head, *others), identity=result.identity, created=result.created)


def _interrupt(call: InvocationCanister) -> UserCanister:
    return UserCanister.from_text(write_result(call.name, INTERRUPTED, failed=True))


def _read(content: TextualContent, texts: Mapping[str, bytes]) -> str:
    if isinstance(content.data, Reference):
        return texts[content.data.hash].decode("utf-8", "replace")
    return repair_text(content.data)
