"""Bounded waits: what takes longer than it may fails, instead of hanging."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """An `AssertionError` where the work within takes longer; in the main thread only."""

    def stop(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class TimeLimitExceeded(BaseException):
    """A test took longer than its time limit. No handler of `Exception` catches this, and after it
    the event loop still runs the teardown of fixtures, which `pytest.fail` would keep from running.
    """


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Fail a test at its time limit, with the stacks of all tasks and threads.

    pytest-timeout itself uses SIGALRM, which the package uses and resets. This signal is repeated
    every second, for what catches the exception and for a teardown that hangs too, and counts only
    while pytest runs a part of the test.
    """
    over = threading.Event()
    part = pytest.CallInfo.from_call.__func__.__code__  # type: ignore[attr-defined]

    def fail(_: int, frame: FrameType | None) -> None:
        running = any(one.f_code is part for one, _ in traceback.walk_stack(frame))
        if running and not over.is_set():
            raise TimeLimitExceeded(f"more than {settings.timeout:g} s\n{_show_stacks()}")

    def watch() -> None:
        seconds = settings.timeout
        while not over.wait(seconds):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            seconds = 1

    signal.signal(signal.SIGUSR2, fail)
    threading.Thread(target=watch, name="time limit", daemon=True).start()
    item.cancel_timeout = over.set  # type: ignore[attr-defined]
    return True


def _show_stacks() -> str:
    """The stacks of the tasks of the running loop, and of the other threads."""
    shown = io.StringIO()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        tasks = set()
    for task in tasks:
        task.print_stack(file=shown)
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.name != "time limit":
            stack = traceback.format_stack(frames.get(thread.ident or 0))
            shown.write(f"\n{thread.name}:\n{''.join(stack)}")
    return shown.getvalue()
