"""What the cache of a strict server holds of a conversation's requests, and what breaks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.anthropic_cache import AnthropicCache
from tests.fakes.server import ReceivedRequest
from tests.fakes.strict import Events
from tests.pictures import make_png
from vibe_llms import open_session
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.caching import CacheBreak, summarize_caching
from vibe_llms.messages.canisters import DigestCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.anthropic.history import AnthropicHistory
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.wires.anthropic_replies import reply, text_block, tool_block

MODEL, OTHER = "anthropic/claude-opus-5", "anthropic/claude-haiku-5-5"
LONG = "So many words are in this text. " * 400


def weather(city: str) -> str:
    """Forecast."""
    return f"{city}: {LONG[:3000]}"


def time() -> str:
    """Now."""
    return "noon"


class CachingServer(FakeAnthropic):
    """Counts tokens as its cache does: a token is four bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: dict[str, AnthropicCache] = {}
        self.calls = 0

    def next_reply(self, request: ReceivedRequest, otherwise: Any) -> Any:
        body = request.json
        cache = self.caches.setdefault(body["model"], AnthropicCache())
        self.counted = counted = cache.ask(body)
        usage = {
            "input_tokens": (counted.size - counted.read - counted.written) // 4,
            "cache_read_input_tokens": counted.read // 4,
            "cache_creation_input_tokens": counted.written // 4,
        }
        calls, self.calls = self.calls, 0
        return self._speak(calls, usage)

    @staticmethod
    def _speak(calls: int, usage: Mapping[str, int]) -> Events:
        if not calls:
            return reply(text_block(0, "Well. "), usage=usage)
        blocks = [
            tool_block(number, "weather", f'{{"city":"Ur {number}"}}', call=f"toolu_{number}")
            for number in range(calls)
        ]
        return reply(*blocks, stop_reason="tool_use", usage=usage)


@asynccontextmanager
async def talking(home: Path) -> AsyncIterator[tuple[Session, CachingServer]]:
    with CachingServer() as server:
        async with open_session(
            configuration={"providers": {"anthropic": {"base-url": server.url, "retries": 0}}},
            archive=DirectoryArchive(home),
            keys={"anthropic": server.key},
        ) as session:
            yield session, server
        assert not server.refusals


def reasons(conversation: Conversation) -> list[str]:
    return [one.reason for one in conversation.caching if one.reason]


async def begin(session: Session) -> Conversation:
    conversation = await session.begin(MODEL, supervisor=LONG, invokers=[weather])
    await conversation.converse(LONG)
    return conversation


async def hold_long_conversation(session: Session, server: CachingServer) -> Conversation:
    """Turns with calls, pictures and an interruption, in a fork and in a resumed conversation."""
    conversation = await begin(session)
    server.calls = 25
    await conversation.converse("What is the weather in many cities?")
    await conversation.converse([TextualContent("Look."), ImageContent(make_png(), "image/png")])
    conversation = await conversation.fork()
    server.calls = 3
    await conversation.converse("And now?")
    conversation = await session.resume(conversation.identity, invokers=[weather])
    server.calls = 2
    await conversation.converse(LONG)
    for _ in range(5):
        await conversation.converse("Go on.")
    return conversation


async def test_no_request_of_a_conversation_breaks_the_cache(tmp_path: Path) -> None:
    async with talking(tmp_path) as (session, server):
        conversation = await hold_long_conversation(session, server)
    assert len(conversation.caching) == 13
    assert reasons(conversation) == []
    assert summarize_caching(conversation.caching).rewrite_factor < 1.1


async def test_that_check_sees_a_history_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talking(tmp_path) as (session, _):
        conversation = await begin(session)
        push = AnthropicHistory.push

        def change(self: Any, recent: Any, exchange: Any, *, last: bool) -> None:
            push(self, recent, exchange, last=last)
            if not last and len(recent) == 1:
                recent[0].blocks.insert(0, (b'{"type":"text","text":"changed"}',))

        monkeypatch.setattr(AnthropicHistory, "push", change)
        await conversation.converse("b")
    assert reasons(conversation) == [CacheBreak.UNEXPECTED]


async def test_changed_tools_instructions_and_models_are_named(tmp_path: Path) -> None:
    async with talking(tmp_path) as (session, _):
        conversation = await begin(session)
        await conversation.converse("b", invokers=[weather, time])
        assert reasons(conversation) == [CacheBreak.TOOLS]
        await conversation.switch(OTHER)
        await conversation.converse("c", invokers=[weather, time])
        assert reasons(conversation)[1:] == [CacheBreak.MODEL]
        await conversation.converse("d", invokers=[weather, time])
        assert reasons(conversation)[1:] == [CacheBreak.MODEL]
        again = await session.resume(conversation.identity)
        # Other processes know only what the messages tell.
        assert reasons(again) == [CacheBreak.UNKNOWN, CacheBreak.MODEL]


async def test_a_change_of_the_controls_is_not_a_break_if_the_cache_holds(tmp_path: Path) -> None:
    async with talking(tmp_path) as (session, _):
        conversation = await begin(session)
        await conversation.converse("b", controls=Controls(effort="low"))
    assert reasons(conversation) == []


async def test_a_digest_is_a_break_and_its_own_request_is_not(tmp_path: Path) -> None:
    async with talking(tmp_path) as (session, server):
        conversation = await hold_long_conversation(session, server)
        before = conversation.caching[-1].input_tokens
        await conversation.compact()
        assert server.counted.read // 4 > 0.99 * before
        await conversation.converse("Go on.")
        await conversation.converse("Go on.")
        assert reasons(conversation) == [CacheBreak.COMPACTED]
        again = await session.resume(conversation.identity)
        assert reasons(again) == [CacheBreak.COMPACTED]


async def test_a_pin_is_not_taken_for_a_summary(tmp_path: Path) -> None:
    async with talking(tmp_path) as (session, _):
        conversation = await begin(session)
        await conversation.converse("b")
        await conversation.pin(conversation.canisters[1].identity)
        await conversation.converse("c", invokers=[weather, time])
        # It changed nothing, but the tools did.
        assert reasons(conversation) == [CacheBreak.TOOLS]


async def test_a_message_that_is_pinned_after_it_was_shortened_is_named(tmp_path: Path) -> None:
    async with talking(tmp_path) as (session, server):
        conversation = await hold_long_conversation(session, server)
        await conversation.compact()
        await conversation.converse("Go on.")
        digest = next(one for one in conversation.canisters if isinstance(one, DigestCanister))
        await conversation.pin(next(iter(digest.shortened)))
        await conversation.converse("Go on.")
        assert reasons(conversation) == [CacheBreak.COMPACTED, CacheBreak.PINNED]
        again = await session.resume(conversation.identity)
        assert reasons(again) == [CacheBreak.COMPACTED, CacheBreak.PINNED]
