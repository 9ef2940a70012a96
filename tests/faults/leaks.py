"""What is left over when it should not be: tasks of the loop, and open descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


def count_descriptors() -> int:
    """The number of files and sockets that this process has open."""
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """An `AssertionError` where the work within leaves a task or a descriptor behind."""
    tasks = asyncio.all_tasks()
    gc.collect()
    descriptors = count_descriptors()
    yield
    # What is being closed takes a few steps of the loop, and a server's side its own thread.
    try:
        async with asyncio.timeout(5):
            while count_descriptors() > descriptors or asyncio.all_tasks() - tasks:
                await asyncio.sleep(0.005)
    except TimeoutError:
        left = [task.get_name() for task in asyncio.all_tasks() - tasks]
        gc.collect()
        raise AssertionError(
            f"descriptors: {descriptors} before, {count_descriptors()} after; tasks: {left}"
        ) from None
