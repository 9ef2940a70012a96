"""The end at a terminal: work is waited for, and a person may give it up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.cli.command import streams
from tests.fakes.attendants import Companion
from tests.fakes.models import endless
from vibe_llms.cli.draining import hold_work
from vibe_llms.cli.running import hold_turn
from vibe_llms.messages.canisters import StopReason, Turn, UserCanister
from vibe_llms.session import open_session


async def _for_ever(_: Turn) -> None:
    await asyncio.Event().wait()


def press(after: float, *numbers: signal.Signals) -> None:
    """Send signals to this process, one after the other, while its loop runs."""
    loop = asyncio.get_running_loop()
    for count, number in enumerate(numbers, 1):
        loop.call_later(after * count, os.kill, os.getpid(), number)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((signal.SIGINT, signal.SIGINT), True),
        ((signal.SIGTERM,), False),
        ((signal.SIGHUP,), False),
    ],
)
async def test_a_second_press_or_the_system_ends_it(
    home: Path, numbers: tuple[signal.Signals, ...], told: bool
) -> None:
    with streams() as (_, errors):
        async with open_session(home=home) as session:
            conversation = await session.begin(endless(), attendants=[Companion(work=_for_ever)])
            await conversation.converse("x")
            before = signal.getsignal(signal.SIGINT)
            press(0.1, *numbers)
            await hold_work(session)
            assert session.unfinished == 0
            assert signal.getsignal(signal.SIGINT) is before
        assert ("(still at work on a turn; Ctrl-C again gives it up)" in errors.text) == told


async def test_the_first_press_does_not_end_it(home: Path) -> None:
    done: list[str] = []

    async def work(turn: Turn) -> None:
        await asyncio.sleep(0.3)
        done.append(turn.text)

    with streams() as (_, errors):
        async with open_session(home=home) as session:
            conversation = await session.begin(endless(), attendants=[Companion(work=work)])
            await conversation.converse("x")
            await conversation.converse("y")
            press(0.05, signal.SIGINT)
            await hold_work(session, quiet=True)
        assert errors.text == ""
    assert done == ["Works.", "Works."]


async def test_who_leaves_at_once_waits_for_nothing(home: Path) -> None:
    async with open_session(home=home) as session:
        conversation = await session.begin(endless(), attendants=[Companion(work=_for_ever)])
        await conversation.converse("x")
        await hold_work(session, leave=True)
        await asyncio.wait_for(session.drain(), 10)
        assert session.unfinished == 0
        await hold_work(session)


async def test_ctrl_c_while_attendants_are_asked_keeps_what_was_said(home: Path) -> None:
    companion = Companion("x", waits=True)
    async with open_session(home=home) as session:
        conversation = await session.begin(endless(), attendants=[companion])
        held = asyncio.ensure_future(hold_turn(conversation, conversation.converse("My words")))
        await companion.begun.wait()
        os.kill(os.getpid(), signal.SIGINT)
        turn, leave = await held
        assert (turn.stop_reason, leave) == (StopReason.INTERRUPTED, False)
        stored = await session.archive.restore(conversation.identity)
        assert [type(one) for one in stored.canisters] == [UserCanister]
        companion.waits = False
        again = await conversation.regenerate()
        assert (await again.converse()).text == "Works."
