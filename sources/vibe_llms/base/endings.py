"""Cleanup at the end of the program, while threads and event loops still work."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (it ends its threads after what registers later)
import threading
from collections.abc import Callable
from contextlib import suppress

_waiting: list[Callable[[], object]] = []


def close_at_end(close: Callable[[], object]) -> None:
    """Register a function to call when the program ends, unless `forget` removes it first."""
    _waiting.append(close)


def forget(close: Callable[[], object]) -> None:
    """Remove a function that `close_at_end` registered."""
    with suppress(ValueError):
        _waiting.remove(close)


def _close_all() -> None:
    while _waiting:
        _waiting.pop()()


# `atexit` runs too late: by then no thread can be started and nothing can be stored.
# Source: `concurrent.futures.thread` of the standard library, which ends its threads in this way.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
