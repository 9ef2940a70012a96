"""Time limits of a reply: until the first byte, for silence, and in total."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

from vibe_llms.base.exceptions import ReplyTimeout

BLOCKED_SECONDS = 0.05
#: Seconds until the timer of a reply checks its limits for the first time.
_FIRST_CHECK_SECONDS = 5.0


class Watch:
    """Timer that ends a wait when a limit runs out, with a `ReplyTimeout` that names the limit.

    Time counts from `expect`. After `work` only `reply-seconds` runs, the limit of the whole reply;
    `expect` checks it too, because a flood leaves no time for a timer. After `rest` no limit runs
    until the next `expect`, because readers may take any time. `spare` gives back the time of slow
    handlers. One timer serves all limits, so that a chunk starts none.
    """

    def __init__(self, provider: str, reply_seconds: float) -> None:
        self._provider = provider
        self._reply_seconds = reply_seconds
        self._scope = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + reply_seconds
        self._due = math.inf
        self._limit = ("reply-seconds", reply_seconds)
        self._rested: float | None = None
        self._worked = math.inf
        self._armed = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._fired: tuple[str, float] | None = None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        # Before most limits run out, so that few of them need their own timer.
        self._arm(self._loop.time() + _FIRST_CHECK_SECONDS)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fired, self._fired = self._fired, self._fired or self._limit
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            assert fired is not None
            raise self._failure(*fired) from timeout

    def expect(self, limit: str, seconds: float = math.inf, steps: int = 1) -> None:
        """Require that something arrives within this many seconds.

        `steps` is the number of steps of the work before; the time of its handlers is given back.
        """
        now = self._loop.time()
        if self._rested is not None:
            self._end += now - self._rested
            self._rested = None
        elif now - self._worked > BLOCKED_SECONDS:
            self.spare(now - self._worked, steps)
        self._worked = math.inf
        if now >= self._end:
            raise self._failure("reply-seconds", self._reply_seconds)
        self._due = due = now + seconds
        self._limit = (limit, seconds)
        if due < self._armed or self._timer is None:
            self._arm(due)

    def work(self) -> None:
        """Record that something arrived and is being processed."""
        self._due = math.inf
        self._worked = self._loop.time()

    def spare(self, seconds: float, steps: int = 1) -> None:
        """Give back the time of these steps if it exceeds what they take without a handler."""
        if seconds > BLOCKED_SECONDS * steps:
            self._end += seconds

    def rest(self) -> None:
        """Stop the clock; nothing is expected."""
        self._due = self._worked = math.inf
        if self._rested is None:
            self._rested = self._loop.time()

    def _failure(self, limit: str, seconds: float) -> ReplyTimeout:
        whole = limit == "reply-seconds"
        words = "the reply was not complete" if whole else "no answer"
        return ReplyTimeout(
            f"{words} within {seconds:g} s ({limit})",
            provider=self._provider,
            limit=limit,
            seconds=seconds,
        )

    def _arm(self, when: float) -> None:
        if self._fired is not None:
            # An expired scope cannot expire again.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed = min(when, self._end)
        self._timer = self._loop.call_at(self._armed, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        late = now - self._armed > BLOCKED_SECONDS
        self._armed = math.inf
        self._timer = None
        if self._rested is not None:
            return
        if late:
            # The loop was blocked: what arrived in that time has not been delivered yet.
            self._armed = now + BLOCKED_SECONDS
            self._timer = self._loop.call_at(self._armed, self._tick)
        elif now >= self._end:
            self._expire("reply-seconds", self._reply_seconds)
        elif now >= self._due:
            self._expire(*self._limit)
        else:
            self._arm(self._due)

    def _expire(self, limit: str, seconds: float) -> None:
        self._fired = (limit, seconds)
        self._scope.reschedule(self._loop.time())
