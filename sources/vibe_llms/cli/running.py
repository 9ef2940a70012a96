"""Running a turn at a terminal: the event loop, and what Ctrl-C means while a turn runs."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from vibe_llms.conversation import Conversation
from vibe_llms.messages.canisters import Turn

T = TypeVar("T")

#: Two presses of Ctrl-C within this time mean that the person wants to leave.
SECOND_PRESS_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
#: What the system asks us to end with.
ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the work of a command to its end."""
    return asyncio.run(work)


async def hold_turn(conversation: Conversation, turn: Awaitable[Turn]) -> tuple[Turn, bool]:
    """A turn that Ctrl-C ends: what had arrived is kept, and the turn says `interrupted`.

    Also whether the person wants to leave: Ctrl-C was pressed twice within a second, or the system
    asked us to end.
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


@contextmanager
def interruptible() -> Iterator[None]:
    """What waits without the event loop's knowledge: Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deaf() -> Iterator[None]:
    """What has the terminal for a while, an editor say: Ctrl-C is for it alone."""
    # A handler, and not SIG_IGN, which a program would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def bound_import(seconds: float) -> Iterator[None]:
    """An import that ends after so many seconds, with `TimeoutError`; Ctrl-C ends it at once.

    Signals end what runs in Python and most of what waits; code in C that does neither goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s (import-seconds)")

    with interruptible():
        before = signal.signal(signal.SIGALRM, give_up)
        # Again and again, for what catches it.
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextmanager
def signals(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Signals that are handled in the event loop for a while, each in its own way."""
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
