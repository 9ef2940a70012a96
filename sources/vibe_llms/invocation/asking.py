"""Calls a function that a program passed in, async or not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from vibe_llms.invocation.threads import run_in_thread

Q = TypeVar("Q")
A = TypeVar("A")


async def ask(handler: Callable[[Q], Awaitable[A] | A], question: Q) -> A:
    """Its result. A function that is not async runs in a thread, because a person may be slow."""
    given: Any
    if inspect.iscoroutinefunction(handler):
        given = handler(question)
    else:
        given = await run_in_thread(lambda: handler(question))
    answer: A = await given if inspect.isawaitable(given) else given
    return answer
