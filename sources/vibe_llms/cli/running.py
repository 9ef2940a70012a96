"""Running a turn at a terminal: the event loop, Ctrl-C, and background work at the end."""

from __future__ import annotations

import asyncio
import functools
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.terminal import note
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import Turn
from vibe_llms.session.core import Session

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds within which a second Ctrl-C leaves the program.
SECOND_PRESS_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
#: Signals with which the system ends a program.
ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def asynchronous(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a command of a coroutine function."""

    @functools.wraps(work)
    def command(*arguments: P.args, **options: P.kwargs) -> T:
        return asyncio.run(work(*arguments, **options))

    return command


async def run_turn(conversation: Conversation, turn: Awaitable[Turn]) -> tuple[Turn, bool]:
    """Run a turn that Ctrl-C interrupts; received content is kept.

    Also return True if the program should end: Ctrl-C was pressed twice within a second, or the
    system sent a signal to end.
    """
    task = asyncio.ensure_future(turn)
    leave = False
    pressed = -math.inf
    stopping: set[asyncio.Task[None]] = set()

    def stop() -> None:
        stopping.add(asyncio.ensure_future(conversation.cancel()))

    def press() -> None:
        nonlocal leave, pressed
        now = time.monotonic()
        leave = leave or now - pressed < SECOND_PRESS_SECONDS
        pressed = now
        stop()

    def end() -> None:
        nonlocal leave
        leave = True
        stop()

    with signals({signal.SIGINT: press, **dict.fromkeys(ENDINGS, end)}):
        result = await task
        await asyncio.gather(*stopping)
    return result, leave


async def finish_work(session: Session, *, leave: bool = False, quiet: bool = False) -> None:
    """Wait for the work of hooks after turns; the second Ctrl-C, or `leave`, cancels it."""
    presses = 0
    waiting = Waiting(enabled=not quiet)

    def press() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            session.background.cancel()
            return
        waiting.clear()
        if not quiet:
            note(f"\n(still remembering {_count(session)}; Ctrl-C again cancels)", dim=True)

    if leave:
        session.background.cancel()
    if not session.background.pending:
        return
    waiting.show(f"remembering {_count(session)}")
    try:
        with signals({signal.SIGINT: press, **dict.fromkeys(ENDINGS, session.background.cancel)}):
            await session.background.wait()
    finally:
        waiting.clear()


def _count(session: Session) -> str:
    turns = session.background.pending
    return "a turn" if turns == 1 else f"{turns} turns"


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt code that blocks the event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Ignore Ctrl-C while another program, such as an editor, has the terminal."""
    # A handler instead of SIG_IGN, which the program would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def bound_import(seconds: float) -> Iterator[None]:
    """Limit an import to some seconds, then raise `TimeoutError`; Ctrl-C interrupts it.

    Signals interrupt Python code and most system calls, but not code in C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s (import-seconds)")

    with interruptible():
        before = signal.signal(signal.SIGALRM, expire)
        # Repeated, because the code may catch the error.
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextmanager
def signals(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Handle signals in the event loop inside the block."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, old)
