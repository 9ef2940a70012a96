"""T7 where the server counts beforehand, and where only its refusal tells; pictures that give way.

`providers/test_overflows.py` holds the shapes of what is too long with every interface.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic, failure, tools_reply
from tests.fakes.server import Answer, Request
from vibe_llms import room
from vibe_llms.configuration import StorageSettings
from vibe_llms.conversation import Conversation
from vibe_llms.events import Event, NoticeEvent
from vibe_llms.exceptions import ContextOverflow, RequestTooLarge
from vibe_llms.ledger import Ledger
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.prompts import Prompt
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import check_events

LIMIT_TOKENS = 2_000
LIMIT_PICTURES = 20
LIMIT_BYTES = 40_000


class CountingServer(FakeAnthropic):
    """Refuses what has too many tokens, pictures or bytes, in the words of the real one."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.overflows = 0
        self.counted = 0

    def respond(self, request: Request) -> Answer:
        if request.method != "POST":
            return super().respond(request)
        tokens, pictures = _measure(request)
        if request.path.endswith("count_tokens"):
            self.counted += 1
            self.count = tokens if self.counts else failure(404, "not_found_error")
            return super().respond(request)
        if refusal := _refuse(tokens, pictures, len(request.body)):
            self.overflows += 1
            return refusal
        return super().respond(request)


def _measure(request: Request) -> tuple[int, int]:
    """The tokens and the pictures of a request, by rule of thumb."""
    kinds = json.dumps(request.json["messages"]).count('"type": "image"')
    text = len(request.body) if not kinds else len(request.body) // 10
    return text // 4, kinds


def _refuse(tokens: int, pictures: int, size: int) -> Answer | None:
    kind = "invalid_request_error"
    if size > LIMIT_BYTES:
        return failure(413, "request_too_large", "Request exceeds the maximum size")
    if pictures > LIMIT_PICTURES:
        words = f"too many images and documents: {pictures} + 0 > {LIMIT_PICTURES}"
        return failure(400, kind, words)
    if tokens > LIMIT_TOKENS:
        words = f"prompt is too long: {tokens} tokens > {LIMIT_TOKENS} maximum"
        return failure(400, kind, words)
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


LONG_TEXT: Prompt = "word " * 3_000
MANY_PICTURES: Prompt = ["Look:", *(picture(number) for number in range(30))]
MANY_RESULTS: Prompt = "Read it all"
#: What is said, and how many round trips it has before it overflows.
SHAPES: dict[str, tuple[Prompt, int]] = {
    "long text": (LONG_TEXT, 0),
    "many pictures": (MANY_PICTURES, 0),
    "many results": (MANY_RESULTS, 1),
}


async def check_overflow(server: CountingServer, home: Path, shape: str) -> ContextOverflow:
    """The error of an overflow; the conversation goes on as if it had not been."""
    prompt, round_trips = SHAPES[shape]
    events: list[Event] = []
    async with opened(home, server) as session:
        conversation = await session.begin(
            "anthropic/claude-opus-5", invokers=[read], event_handler=events.append, name="talk"
        )
        await conversation.converse("Hello")
        before = conversation.canisters
        if round_trips:
            server.replies = [tools_reply(*(("read", f'{{"page":{n}}}') for n in range(12)))]
        with pytest.raises(ContextOverflow) as caught:
            await conversation.converse(prompt)
        server.replies = []
        assert conversation.canisters == before
        await check_usable(session, conversation, server)
        check_events(events)
    return caught.value


async def check_usable(session: Session, conversation: Conversation, server: FakeAnthropic) -> None:
    """A shorter turn works, now and after a restart; nothing of the long one is sent."""
    assert (await conversation.converse("Something shorter")).text == "Hello."
    again = await session.resume(conversation.identity)
    assert (await again.converse("And now?")).text == "Hello."
    assert conversation.name == "talk"
    assert server.refusals == []


@pytest.mark.parametrize("counts", [True, False], ids=["counting", "not counting"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_an_overflow_is_told_and_the_conversation_stays_usable(
    shape: str, counts: bool, tmp_path: Path
) -> None:
    with CountingServer(counts=counts) as server:
        error = await check_overflow(server, tmp_path, shape)
        # Text is counted beforehand where that can be; the rest only the refusal tells.
        assert server.overflows == (0 if counts and shape == "long text" else 1)
        assert server.counted >= (shape != "many results")
    assert "fork" in str(error)
    if shape == "many pictures":
        assert isinstance(error, RequestTooLarge)
        assert "too many images and documents: 30 + 0 > 20" in str(error)
    else:
        assert error.tokens is not None
        assert error.tokens > LIMIT_TOKENS == error.limit
        assert str(error.tokens) in str(error)


async def test_pictures_that_are_too_large_together_are_told_before_they_are_sent(
    tmp_path: Path,
) -> None:
    with CountingServer(counts=True) as server:
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
    with CountingServer(counts=True) as server:
        async with opened(tmp_path, server, bytes_known=True) as session:
            conversation = await session.begin(
                "anthropic/claude-opus-5", event_handler=events.append, name="talk"
            )
            for number in range(12):
                turn = await conversation.converse([f"Look {number}", picture(number, 6_000)])
                assert turn.text == "Hello."
            assert server.overflows == 0
            await check_usable(session, conversation, server)
    told = [one.notice for one in events if isinstance(one, NoticeEvent)]
    left_out = [notice for notice in told if "is left out" in notice.text]
    # Each once, the oldest first.
    assert len({notice.canister for notice in left_out}) == len(left_out) == 8
    said = [one.identity for one in conversation.canisters if isinstance(one, UserCanister)]
    assert [notice.canister for notice in left_out] == said[:8]


async def test_a_reply_that_fills_the_window_is_kept_as_one_of_its_length(tmp_path: Path) -> None:
    with CountingServer(counts=True) as server:
        async with opened(tmp_path, server) as session:
            conversation = await session.begin("anthropic/claude-opus-5", name="talk")
            server.replies = [tools_reply(("read", '{"page":1}'))]
            server.replies[0][-2]["delta"]["stop_reason"] = "model_context_window_exceeded"  # type: ignore[index]
            turn = await conversation.converse("Hello", invokers=[read])
            assert turn.stop_reason == "length"
            await check_usable(session, conversation, server)


# Bugs that these would find.


def keep_what_overflowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def withdraw(*arguments: Any) -> None:
        pass

    monkeypatch.setattr(Ledger, "withdraw", withdraw)


def count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "estimate_tokens", lambda backwards: 0)


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (keep_what_overflowed, "many pictures"),
        (keep_what_overflowed, "many results"),
        (count_nothing, "long text"),
    ],
)
async def test_an_overflow_that_is_hidden_would_be_found_out(
    seed: Callable[[pytest.MonkeyPatch], None],
    shape: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with pytest.raises(AssertionError):
        await test_an_overflow_is_told_and_the_conversation_stays_usable(shape, True, tmp_path)
