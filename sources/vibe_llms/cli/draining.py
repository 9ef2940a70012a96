"""The end of a session at a terminal: waiting for what is still done with what was said."""

from __future__ import annotations

import signal

from vibe_llms.cli.running import ENDINGS, signals
from vibe_llms.cli.terminal import note
from vibe_llms.cli.waiting import Waiting
from vibe_llms.session import Session


async def hold_work(session: Session, *, leave: bool = False, quiet: bool = False) -> None:
    """Wait for what attendants still do with what was said; a second Ctrl-C gives it up.

    With `leave` the person has no time: it is given up at once. What is not done is told.
    """
    presses = 0
    waiting = Waiting(enabled=not quiet)

    def press() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            session.give_up()
            return
        waiting.clear()
        if not quiet:
            note(f"\n(still at work on {_count(session)}; Ctrl-C again gives it up)", dim=True)

    if leave:
        session.give_up()
    if not session.unfinished:
        return
    waiting.show(f"remembering {_count(session)}")
    try:
        with signals({signal.SIGINT: press, **dict.fromkeys(ENDINGS, session.give_up)}):
            await session.drain()
    finally:
        waiting.clear()


def _count(session: Session) -> str:
    turns = session.unfinished
    return "a turn" if turns == 1 else f"{turns} turns"
