"""T4: a cancel ends the reply where it is made, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.backends import Interface
from tests.fakes.embedded import peek
from tests.fakes.interfaces import every_interface
from tests.faults.leaks import nothing_left
from vibe_llms.messages.canisters import StopReason
from vibe_llms.messages.events import Event, MessageFailedEvent
from vibe_llms.providers import round_trip
from vibe_llms.testing import check_events


async def check_cancels(interface: Interface, number: int, *, patience: float = 10.0) -> None:
    """Cancel so many turns, each at another point, in one of two ways."""
    chance = random.Random(interface.name)
    said = interface.texts(*"abcdefgh")
    with interface.serve() as backend:
        interface.remember(backend, said)
        async with nothing_left(), interface.open_session(backend) as session:
            for count in range(number):
                events: list[Event] = []
                conversation = await session.begin(
                    interface.address, invokers=[peek], save=False, event_handler=events.append
                )
                place = chance.uniform(-0.1, 0.7)
                backend.replies = [interface.stall(said, place)]
                before = len(interface.sent(backend))
                turn = asyncio.ensure_future(conversation.converse("Hi"))
                async with asyncio.timeout(patience):
                    while len(interface.sent(backend)) == before:
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(chance.random() * 0.02)
                    if chance.random() < 0.5:
                        await conversation.cancel()
                        assert (await turn).stop_reason == StopReason.INTERRUPTED
                    else:
                        turn.cancel()
                        await asyncio.wait([turn])
                        assert turn.cancelled()
                await _left(interface, backend, count + 1, patience)
                backend.replies = []
                assert (await conversation.converse("Next?")).text == "Hello."
                assert not backend.refusals
                check_events(events)
                # The reply failed once, however little of it had come.
                failed = [event for event in events if isinstance(event, MessageFailedEvent)]
                assert len(failed) == 1, place
        await backend.settled()


async def _left(interface: Interface, backend: Any, count: int, patience: float) -> None:
    try:
        async with asyncio.timeout(patience):
            while interface.count_left(backend) < count:
                await asyncio.sleep(0.001)
    except TimeoutError as error:
        raise AssertionError("a cancelled reply goes on") from error


@pytest.mark.storm
@every_interface
async def test_a_cancelled_turn_ends_its_reply_and_the_next_is_accepted(
    interface: Interface, rounds: Callable[[int, int], int]
) -> None:
    await check_cancels(interface, rounds(8, 200))


@pytest.mark.slow
@every_interface
async def test_a_reply_that_is_read_on_after_a_cancel_would_be_detected(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat = round_trip._repeat
    reading: list[asyncio.Future[Any]] = []

    async def read_on(*arguments: Any) -> Any:
        reading.append(asyncio.ensure_future(repeat(*arguments)))
        return await asyncio.shield(reading[-1])

    monkeypatch.setattr(round_trip, "_repeat", read_on)
    # It stays open, or what it still says gets into the next turn.
    with pytest.raises(AssertionError):
        await check_cancels(interface, 3, patience=1.0)
    for one in reading:
        one.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
