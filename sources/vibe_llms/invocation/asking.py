"""Calls a function of a program, async or not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from vibe_llms.invocation.threads import run_in_thread

Q = TypeVar("Q")
A = TypeVar("A")


async def ask(handler: Callable[[Q], Awaitable[A] | A], question: Q) -> A:
    """Call a handler and return its answer; if it is not async, it runs in a thread."""
    given: Any
    if inspect.iscoroutinefunction(handler):
        given = handler(question)
    else:
        given = await run_in_thread(lambda: handler(question))
    answer: A = await given if inspect.isawaitable(given) else given
    return answer
