"""T7: too many pictures, pictures that give way, and replies that fill the window.

`laws/test_overflows.py` holds the shapes of what is too long with every interface.
"""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic, failure
from tests.fakes.server import HttpAnswer, ReceivedRequest
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import RequestTooLarge
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.wires.anthropic_replies import tools_reply

LIMIT_TOKENS = 2_000
LIMIT_PICTURES = 20
LIMIT_BYTES = 40_000


class LimitedServer(FakeAnthropic):
    """Refuses what has too many pictures or bytes, in the words of the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.overflows = 0

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path == "/v1/messages" and (refusal := _refuse(request)):
            self.overflows += 1
            return refusal
        return super().respond(request)


def _refuse(request: ReceivedRequest) -> HttpAnswer | None:
    pictures = json.dumps(request.json["messages"]).count('"type": "image"')
    if len(request.body) > LIMIT_BYTES:
        return failure(413, "request_too_large", "Request exceeds the maximum size")
    if pictures > LIMIT_PICTURES:
        words = f"too many images and documents: {pictures} + 0 > {LIMIT_PICTURES}"
        return failure(400, "invalid_request_error", words)
    return None


def opened(
    home: Path, server: FakeAnthropic, *, bytes_known: bool = False
) -> AbstractAsyncContextManager[Session]:
    attributes: dict[str, Any] = {"context-tokens": LIMIT_TOKENS}
    if bytes_known:
        attributes["request-bytes"] = LIMIT_BYTES
    row = {"base-url": server.url, "retries": 0, "models": {"claude-opus-5": attributes}}
    return open_session(
        configuration={"providers": {"anthropic": row}},
        archive=DirectoryArchive(home, StorageSettings(durability="fast")),
        keys={"anthropic": server.key},
    )


def picture(number: int, size: int = 30) -> ImageContent:
    return ImageContent(number.to_bytes(2, "big") * (size // 2), "image/png")


def read(page: int) -> str:
    """Read a page."""
    return f"page {page} " * 150


async def test_too_many_pictures_are_reported_and_the_next_turn_works(tmp_path: Path) -> None:
    with LimitedServer() as server:
        async with opened(tmp_path, server) as session:
            conversation = await session.begin("anthropic/claude-opus-5", name="talk")
            pictures = [picture(number) for number in range(30)]
            with pytest.raises(RequestTooLarge, match=r"images and documents: 30 \+ 0 > 20"):
                await conversation.converse(["Look:", *pictures])
            assert (server.overflows, conversation.canisters) == (1, ())
            await check_usable(session, conversation, server)


async def check_usable(session: Session, conversation: Conversation, server: FakeAnthropic) -> None:
    """A shorter turn works, now and after a restart; nothing of the long one is sent."""
    assert (await conversation.converse("Something shorter")).text == "Hello."
    again = await session.resume(conversation.identity)
    assert (await again.converse("And now?")).text == "Hello."
    assert conversation.name == "talk"
    assert server.refusals == []


async def test_pictures_that_are_too_large_together_are_reported_before_they_are_sent(
    tmp_path: Path,
) -> None:
    with LimitedServer() as server:
        async with opened(tmp_path, server, bytes_known=True) as session:
            conversation = await session.begin("anthropic/claude-opus-5", name="talk")
            await conversation.converse("Hello")
            count = len(server.requests)
            pictures = [picture(number, 4_000) for number in range(9)]
            with pytest.raises(RequestTooLarge, match=f"claude-opus-5 takes {LIMIT_BYTES}"):
                await conversation.converse(["Look:", *pictures])
            assert len(conversation.canisters) == 2
            paths = [request.path for request in server.requests[count:]]
            assert "/v1/messages" not in paths
            await check_usable(session, conversation, server)


async def test_older_pictures_give_way_with_a_notice_and_no_error(tmp_path: Path) -> None:
    events: list[Event] = []
    with LimitedServer() as server:
        async with opened(tmp_path, server, bytes_known=True) as session:
            conversation = await session.begin(
                "anthropic/claude-opus-5",
                event_handler=events.append,
                name="talk",
                context_mode="off",
            )
            for number in range(12):
                turn = await conversation.converse([f"Look {number}", picture(number, 6_000)])
                assert turn.text == "Hello."
            assert server.overflows == 0
            await check_usable(session, conversation, server)
    reported = [one.notice for one in events if isinstance(one, NoticeEvent)]
    left_out = [notice for notice in reported if "is left out" in notice.text]
    # Each once, the oldest first.
    assert len({notice.canister for notice in left_out}) == len(left_out) == 8
    said = [one.identity for one in conversation.canisters if isinstance(one, UserCanister)]
    assert [notice.canister for notice in left_out] == said[:8]


async def test_a_reply_that_fills_the_window_is_kept_as_one_of_its_length(tmp_path: Path) -> None:
    with LimitedServer() as server:
        async with opened(tmp_path, server) as session:
            conversation = await session.begin("anthropic/claude-opus-5", name="talk")
            server.replies = [tools_reply(("read", '{"page":1}'))]
            server.replies[0][-2]["delta"]["stop_reason"] = "model_context_window_exceeded"  # type: ignore[index]
            turn = await conversation.converse("Hello", invokers=[read])
            assert turn.stop_reason == "length"
            await check_usable(session, conversation, server)
