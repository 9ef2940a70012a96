"""T3: nothing waits for ever, wherever a reply stalls, and the error says which limit fired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.backends import Interface
from tests.fakes.interfaces import (
    ANTHROPIC,
    HttpInterface,
    RecordedInterface,
    every_interface,
    every_server,
    every_vendor,
)
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ReplyTimeout
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import Event, MessageFailedEvent
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.watch import Watch
from vibe_llms.testing import check_events

HELLO = [UserCanister.from_text("Hi")]
#: The limits of the shipped configuration, shortened a hundredfold; see `test_transport.py` for
#: that of connecting.
SHORT = StreamSettings(
    first_byte_seconds=1.2,
    idle_seconds=0.6,
    reply_seconds=6.0,
    retries=0,
)
#: What a limit may be late, on a machine with other things to do.
GRACE_SECONDS = 8.0


async def check_stall(
    interface: Interface,
    reply: Any,
    limit: str,
    settings: StreamSettings = SHORT,
    *,
    streaming: bool = True,
) -> None:
    """A reply that stalls ends with an error that names the limit, and soon after it."""
    with interface.play(reply) as backend:
        events: list[Event] = []
        model = await interface.produce_model(backend, stream=settings, event_handler=events.append)
        seconds = getattr(settings, limit.replace("-", "_"))
        error: BaseException | None = None
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await model.converse(HELLO, context=TurnContext(streaming=streaming))
        except (ReplyTimeout, TimeoutError) as raised:
            error = raised
        assert isinstance(error, ReplyTimeout), repr(error)
        assert (error.limit, error.seconds) == (limit, seconds), str(error)
        assert limit in str(error)
        check_events(events, turn=False)
        assert isinstance(events[-1], MessageFailedEvent)
        await model.client.close()
        await backend.settled()
        assert interface.count_left(backend) == 1


@every_interface
async def test_a_reply_that_stalls_ends_at_the_limit_for_that_place_and_keeps_what_came(
    interface: Interface,
) -> None:
    settings = StreamSettings(first_byte_seconds=0.3, idle_seconds=0.3, retries=0)
    said = interface.texts(*"abcdefgh")
    await check_stall(interface, interface.stall(said, -1), "first-byte-seconds", settings)
    await check_stall(interface, interface.stall(said, 0.6), "idle-seconds", settings)
    settings = StreamSettings(reply_seconds=0.3, retries=0)
    await check_stall(interface, interface.stall(said, 0.6), "reply-seconds", settings)


@pytest.mark.storm
@every_vendor
async def test_a_reply_that_stalls_at_any_byte_ends_at_the_limit_for_that_place(
    interface: RecordedInterface, rounds: Callable[[int, int], int]
) -> None:
    raw = interface.recordings.load("tools")
    chunks = [raw[start : start + 100] for start in range(0, len(raw), 100)]
    points = rounds(6, 20) - 1
    # Few at a time: more of them would be late on their own.
    few = asyncio.Semaphore(4)

    async def check(stall: int) -> None:
        limit = "first-byte-seconds" if stall <= 0 else "idle-seconds"
        async with few:
            await check_stall(interface, interface.stream_bytes(chunks, stall=stall), limit)

    async with asyncio.TaskGroup() as group:
        for stall in (-1, *(len(raw) * place // points for place in range(points))):
            group.create_task(check(stall))


@every_interface
async def test_a_limit_of_the_whole_alone_would_be_detected(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect = Watch.expect
    monkeypatch.setattr(Watch, "expect", lambda self, *_: expect(self, "reply-seconds"))
    settings = StreamSettings(first_byte_seconds=0.2, reply_seconds=0.5, retries=0)
    silent = interface.stall(interface.texts("Hello."), -1)
    with pytest.raises(AssertionError):
        await check_stall(interface, silent, "first-byte-seconds", settings)


@every_server
async def test_a_reply_that_trickles_ends_at_the_limit_of_the_whole(
    interface: HttpInterface,
) -> None:
    chunks = interface.encode(interface.texts(*"abcdefghijkl"))
    halves = [byte for chunk in chunks for byte in (chunk[:1], chunk[1:])]
    settings = StreamSettings(reply_seconds=1.0, idle_seconds=0.6, retries=0)
    drip = interface.stream_bytes(halves, pause=0.2)
    await check_stall(interface, drip, "reply-seconds", settings)


@every_server
async def test_an_unstreamed_request_has_no_limit_for_the_first_byte(
    interface: HttpInterface,
) -> None:
    settings = StreamSettings(
        first_byte_seconds=0.1, idle_seconds=0.6, reply_seconds=1.0, retries=0
    )
    late = interface.whole(interface.texts("Hello."))
    late.delay = 0.4
    with interface.play(late) as server:
        model = await interface.produce_model(server, stream=settings)
        (reply,) = await model.converse(HELLO, context=TurnContext(streaming=False))
        assert getattr(reply, "text", "") == "Hello."
        await model.client.close()
    never = interface.stream_bytes([b"x"], stall=-1)
    begun = interface.whole(interface.texts("Hello."))
    begun.stall = 10
    async with asyncio.TaskGroup() as group:
        for answer, limit in (never, "reply-seconds"), (begun, "idle-seconds"):
            check = check_stall(interface, answer, limit, settings, streaming=False)
            group.create_task(check)


@pytest.mark.parametrize(("stall", "limit"), [(-1, "first-byte-seconds"), (3, "idle-seconds")])
async def test_counting_has_the_same_limits(stall: int, limit: str) -> None:
    answer = ANTHROPIC.failures["broken"]()
    answer.stall = stall
    with ANTHROPIC.play(answer) as server:
        model = await ANTHROPIC.produce_model(server, stream=SHORT)
        async with asyncio.timeout(GRACE_SECONDS):
            with pytest.raises(ReplyTimeout) as caught:
                await model.count_tokens(HELLO)
        assert caught.value.limit == limit
        await model.client.close()
