"""Whether the event loop answers all the while."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_BEAT_SECONDS = 0.005
#: Nothing that a server sends keeps the loop busy for longer.
PROMISED_SECONDS = 0.05
#: Without a beat for so long, whatever else runs on the machine, something waits in the loop.
_SILENT_SECONDS = 10.0


@asynccontextmanager
async def steady(busy_seconds: float = 0.5) -> AsyncIterator[None]:
    """An `AssertionError` where the loop is busy with one thing for longer than this.

    What counts is the time for which the loop's thread itself is running, so that a loaded machine
    makes no difference, and not the collection of what earlier tests left.
    """
    thread = threading.get_ident()
    worst = silent = 0.0
    busy, now = time.thread_time(), time.monotonic()

    async def beat() -> None:
        nonlocal worst, silent, busy, now
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            busy, before = time.thread_time(), busy
            now, earlier = time.monotonic(), now
            worst, silent = max(worst, busy - before), max(silent, now - earlier)

    def collect(phase: str, _: dict[str, int]) -> None:
        nonlocal busy
        if threading.get_ident() == thread:
            busy += time.thread_time() if phase == "stop" else -time.thread_time()

    gc.callbacks.append(collect)
    beating = asyncio.create_task(beat(), name="heartbeat")
    try:
        yield
    finally:
        # One more beat, for what has just been done.
        await asyncio.sleep(2 * _BEAT_SECONDS)
        beating.cancel()
        await asyncio.wait([beating])
        gc.callbacks.remove(collect)
    assert worst < busy_seconds, f"the loop was busy for {worst:.3f} s with one thing"
    assert silent < _SILENT_SECONDS, f"the loop was silent for {silent:.3f} s"
