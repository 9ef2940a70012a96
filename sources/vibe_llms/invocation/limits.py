"""Time limits that pause while a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Self, TypeAlias

#: Returns a context manager that pauses a clock.
Pause: TypeAlias = Callable[[], AbstractContextManager[None]]


class Limit:
    """A pausable `asyncio.timeout`; `expired` is True if it ended the block."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._left = seconds
        self._pauses = 0
        self._open = False

    @property
    def expired(self) -> bool:
        """True if the time ran out."""
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        await self._timeout.__aexit__(kind, error, trace)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause the limit during the block; pauses may overlap."""
        loop = asyncio.get_running_loop()
        self._pauses += 1
        if self._pauses == 1 and self._runs:
            self._left = (self._timeout.when() or 0) - loop.time()
            self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses and self._runs:
                self._timeout.reschedule(loop.time() + self._left)

    @property
    def _runs(self) -> bool:
        return self._open and not self._timeout.expired()


class SharedLimits:
    """The time limits of all callers of one server, paused together while it asks a person."""

    def __init__(self) -> None:
        self._pauses: dict[object, Pause] = {}

    @contextmanager
    def register(self, pause: Pause) -> Iterator[None]:
        """Include a caller's limit during the block."""
        mark = object()
        self._pauses[mark] = pause
        try:
            yield
        finally:
            del self._pauses[mark]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause all limits during the block, in which a person is asked."""
        with ExitStack() as stack:
            for pause in list(self._pauses.values()):
                stack.enter_context(pause())
            yield
