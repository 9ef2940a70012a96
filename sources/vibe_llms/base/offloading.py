"""Runs small work on the event loop and large work in threads.

No request may block the loop for long. Work whose time is proportional to a whole request or
history goes through `offload`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent import futures
from functools import cache, partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Bytes of a body, and number of messages, up to which work runs on the loop (a few milliseconds).
LOOP_BYTES = 32 * 1024
LOOP_MESSAGES = 250
#: Number of threads. Python runs one at a time: more would compete with the loop more often.
_THREADS = 2


@cache
def _access_executor() -> futures.Executor:
    return futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="vibe-llms requests")


async def offload(large: bool, work: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Return the result of some work, which runs in a thread if it is large."""
    if not large:
        return work(*values, **named)
    context = contextvars.copy_context()
    call = partial(context.run, partial(work, *values, **named))
    return await asyncio.get_running_loop().run_in_executor(_access_executor(), call)
