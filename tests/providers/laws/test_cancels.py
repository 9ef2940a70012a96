"""T4: a cancel closes the connection to the server and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.interfaces import Interface, asked, every_interface
from tests.faults.leaks import nothing_left
from vibe_llms import open_session
from vibe_llms.events import Event, MessageFailedEvent
from vibe_llms.messages.canisters import StopReason
from vibe_llms.providers import round_trip
from vibe_llms.testing import check_events


async def check_cancels(interface: Interface, number: int, *, patience: float = 10.0) -> None:
    """Cancel so many turns, each at another point, in one of two ways."""
    chance = random.Random(interface.row)
    said = interface.texts(*"abcdefgh")
    size = sum(map(len, interface.encode(said)))
    with interface.produce_server() as server:
        interface.remember(server, said)
        async with (
            nothing_left(),
            open_session(
                configuration=interface.configure(server.url), keys=interface.keys(server)
            ) as session,
        ):
            for count in range(number):
                events: list[Event] = []
                conversation = await session.begin(
                    interface.address, save=False, event_handler=events.append
                )
                stall = chance.randrange(-1, size - 40)
                server.replies = [interface.stream(said, stall=stall, pause=0.001)]
                before = len(asked(server))
                turn = asyncio.ensure_future(conversation.converse("Hi"))
                async with asyncio.timeout(patience):
                    while len(asked(server)) == before:
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(chance.random() * 0.02)
                    if chance.random() < 0.5:
                        await conversation.cancel()
                        assert (await turn).stop_reason == StopReason.INTERRUPTED
                    else:
                        turn.cancel()
                        await asyncio.wait([turn])
                        assert turn.cancelled()
                await _closed(server, count + 1, patience)
                server.replies = []
                assert (await conversation.converse("Next?")).text == "Hello."
                assert server.refusals == []
                check_events(events)
                # The reply failed once, however little of it had come.
                failed = [event for event in events if isinstance(event, MessageFailedEvent)]
                assert len(failed) == 1, stall
        await server.settled()


async def _closed(server: object, count: int, patience: float) -> None:
    try:
        async with asyncio.timeout(patience):
            while getattr(server, "closed_by_client") < count:  # noqa: B009
                await asyncio.sleep(0.001)
    except TimeoutError as error:
        raise AssertionError("the connection of a cancelled reply stays open") from error


@pytest.mark.storm
@every_interface
async def test_a_cancelled_turn_closes_its_connection_and_the_next_is_accepted(
    interface: Interface, rounds: Callable[[int, int], int]
) -> None:
    await check_cancels(interface, rounds(12, 200))


@every_interface
async def test_a_reply_that_is_read_on_after_a_cancel_would_be_detected(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = round_trip._attempt
    reading: list[asyncio.Future[None]] = []

    async def read_on(*arguments: Any) -> None:
        reading.append(asyncio.ensure_future(attempt(*arguments)))
        await asyncio.shield(reading[-1])

    monkeypatch.setattr(round_trip, "_attempt", read_on)
    # Its connection stays open, or what it still says gets into the next turn.
    with pytest.raises(AssertionError):
        await check_cancels(interface, 3, patience=1.0)
    for one in reading:
        one.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
