"""T3: nothing waits for ever, wherever a reply stalls, and the error says which limit fired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.fakes.interfaces import ANTHROPIC, Interface, Player, every_interface
from tests.fakes.server import Answer
from vibe_llms.configuration import StreamSettings
from vibe_llms.events import Event, MessageFailedEvent
from vibe_llms.exceptions import ReplyTimeout
from vibe_llms.messages.canisters import UserCanister
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
    answer: Answer,
    limit: str,
    settings: StreamSettings = SHORT,
    *,
    streaming: bool = True,
) -> None:
    """A reply that stalls ends with an error that names the limit, and soon after it."""
    with Player([answer]) as server:
        events: list[Event] = []
        model = await interface.produce_model(
            server.url, stream=settings, event_handler=events.append
        )
        seconds = getattr(settings, limit.replace("-", "_"))
        error: BaseException | None = None
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await model.converse(HELLO, context=TurnContext(streaming=streaming))
        except (ReplyTimeout, TimeoutError) as raised:
            error = raised
        assert isinstance(error, ReplyTimeout), f"{answer.stall}: {error!r}"
        assert (error.limit, error.seconds) == (limit, seconds), f"{answer.stall}: {error}"
        assert limit in str(error)
        check_events(events, turn=False)
        assert isinstance(events[-1], MessageFailedEvent)
        await model.client.close()
        await server.settled()
        assert server.closed_by_client == 1


@pytest.mark.storm
@every_interface
async def test_a_reply_that_stalls_anywhere_ends_at_the_limit_for_that_place(
    interface: Interface, rounds: Callable[[int, int], int]
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
    monkeypatch.setattr(Watch, "expect", lambda self, limit, seconds=0.0: None)
    settings = StreamSettings(first_byte_seconds=0.2, reply_seconds=0.5, retries=0)
    with pytest.raises(AssertionError):
        await check_stall(
            interface, interface.stream_bytes([b"x"], stall=-1), "first-byte-seconds", settings
        )


@every_interface
async def test_a_reply_that_trickles_ends_at_the_limit_of_the_whole(interface: Interface) -> None:
    chunks = interface.encode(interface.texts(*"abcdefghijkl"))
    halves = [byte for chunk in chunks for byte in (chunk[:1], chunk[1:])]
    settings = StreamSettings(reply_seconds=1.0, idle_seconds=0.6, retries=0)
    drip = interface.stream_bytes(halves, pause=0.2)
    await check_stall(interface, drip, "reply-seconds", settings)


@every_interface
async def test_an_unstreamed_request_has_no_limit_for_the_first_byte(interface: Interface) -> None:
    settings = StreamSettings(
        first_byte_seconds=0.1, idle_seconds=0.6, reply_seconds=1.0, retries=0
    )
    late = interface.whole(interface.texts("Hello."))
    late.delay = 0.4
    with Player([late]) as server:
        model = await interface.produce_model(server.url, stream=settings)
        (reply,) = await model.converse(HELLO, context=TurnContext(streaming=False))
        assert getattr(reply, "text", "") == "Hello."
        await model.client.close()
    never = interface.stream_bytes([b"x"], stall=-1)
    await check_stall(interface, never, "reply-seconds", settings, streaming=False)
    begun = interface.whole(interface.texts("Hello."))
    begun.stall = 10
    await check_stall(interface, begun, "idle-seconds", settings, streaming=False)


@pytest.mark.parametrize(("stall", "limit"), [(-1, "first-byte-seconds"), (3, "idle-seconds")])
async def test_counting_has_the_same_limits(stall: int, limit: str) -> None:
    answer = ANTHROPIC.failures["broken"]()
    answer.stall = stall
    with Player([answer]) as server:
        model = await ANTHROPIC.produce_model(server.url, stream=SHORT)
        async with asyncio.timeout(GRACE_SECONDS):
            with pytest.raises(ReplyTimeout) as caught:
                await model.count_tokens(HELLO)
        assert caught.value.limit == limit
        await model.client.close()
