"""Where work on messages runs: small work on the event loop, the rest in threads.

No request may hold the loop for long. Work that takes time in proportion to a whole request or
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

#: The bytes of a body, or the messages, up to which work is done on the loop: a few milliseconds.
LOOP_BYTES = 32 * 1024
LOOP_MESSAGES = 250
#: Python runs one thread at a time: more would only take turns with the loop more often.
_THREADS = 2


@cache
def _access_executor() -> futures.Executor:
    return futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="vibe-llms requests")


async def offload(large: bool, work: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Return the result of some work, which is done in a thread if it is large."""
    if not large:
        return work(*values, **named)
    context = contextvars.copy_context()
    call = partial(context.run, partial(work, *values, **named))
    return await asyncio.get_running_loop().run_in_executor(_access_executor(), call)
