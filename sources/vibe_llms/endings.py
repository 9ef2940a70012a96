"""What is closed when the program ends, while threads and event loops still work."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (it ends its threads after what registers later)
import threading
from collections.abc import Callable
from contextlib import suppress

_waiting: list[Callable[[], object]] = []


def close_at_end(close: Callable[[], object]) -> None:
    """Call something when the program ends, unless it is forgotten before."""
    _waiting.append(close)


def forget(close: Callable[[], object]) -> None:
    """Do not call something when the program ends."""
    with suppress(ValueError):
        _waiting.remove(close)


def _close_all() -> None:
    while _waiting:
        _waiting.pop()()


# `atexit` comes too late: by then no thread may be started, and nothing can be stored.
# Source: the module `concurrent.futures.thread` of Python, which ends its threads in this way.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
