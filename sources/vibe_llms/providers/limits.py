"""Limits of requests and tokens per minute: one limiter per row, shared by a session.

The sessions of a server share limiters, and servers with one database count together. Requests wait
in a queue, in order of arrival, until they fit into the limits of the last 60 seconds. Tokens are
first estimated, then corrected by what the reply reports. If a server says how long to wait, the
whole queue waits. Rows without limits have no limiter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct

from vibe_llms.base.exceptions import RateLimited, VibeLlmsError
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Notifier

WINDOW_SECONDS = 60.0
#: Seconds of waiting before a notice is sent.
NOTICE_SECONDS = 2.0
#: Seconds between polls of a request that waits for other processes.
_POLL_SECONDS = 1.0


class _Spent(Struct, eq=False):
    """Tokens that count from a point in time; `number` is the request's in the shared window."""

    time: float
    tokens: int
    number: int | None = None


class _Waiting(Struct, eq=False):
    """Request in the queue; `patience` is the longest wait for a server that it accepts."""

    tokens: int
    patience: float
    admitted: asyncio.Future[_Spent]


class Window(Protocol):
    """Window of the last 60 seconds, with the requests of several processes by row.

    Methods raise `VibeLlmsError` if it is not available.
    """

    async def enter(
        self, row: str, tokens: int, most_requests: int | None, most_tokens: int | None
    ) -> tuple[int | None, float, bool]:
        """Count a request if it fits; return its number, or the seconds to wait.

        The last value is True if the provider has asked for that wait.
        """
        ...

    async def record_usage(self, row: str, number: int, tokens: int) -> None:
        """Replace the estimate of a request by its usage."""
        ...

    async def pause(self, row: str, seconds: float) -> None:
        """Stop the requests of all processes for some seconds."""
        ...


class Limiter:
    """Queue that admits requests in order of arrival, within the limits of 60 seconds.

    `None` means no limit. A request whose estimate exceeds the whole limit of tokens is admitted
    when nothing else counts. A limiter serves one event loop and uses that loop's clock.

    With a `window`, admitted requests also wait for those of other processes. While it is not
    available, the limits hold for this process.
    """

    def __init__(
        self,
        row: str,
        *,
        requests: int | None = None,
        tokens: int | None = None,
        window: Window | None = None,
    ) -> None:
        self.row = row
        self._window = window
        # One request at a time asks the window, in the order of arrival.
        self._entering = asyncio.Lock()
        self._reports: set[asyncio.Task[None]] = set()
        self.requests, self.tokens = requests, tokens
        self._starts: deque[float] = deque()
        self._spent: deque[_Spent] = deque()
        self._queue: deque[_Waiting] = deque()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Limiter({self.row!r}, requests={self.requests}, tokens={self.tokens})"

    async def enter(self, tokens: int, notify: Notifier, patience: float) -> _Spent:
        """Wait until a request of about this many tokens may be sent; report longer waits.

        Raise `RateLimited` if the server asked for a wait of more than `patience` seconds. A
        cancelled request leaves the queue.
        """
        waiting = _Waiting(tokens, patience, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._advance()
        with ExitStack() as undoing:
            undoing.callback(self._withdraw, waiting)
            await asyncio.wait([waiting.admitted], timeout=NOTICE_SECONDS)
            if not waiting.admitted.done():
                notify(Notice("wait", f"{self.row}: waiting, {self._explain()}"))
                await asyncio.wait([waiting.admitted])
            spent = waiting.admitted.result()
            if self._window is not None:
                await self._enter_window(self._window, spent, notify, patience)
            undoing.pop_all()
        return spent

    async def _enter_window(
        self, window: Window, spent: _Spent, notify: Notifier, patience: float
    ) -> None:
        """Wait for requests of other processes."""
        noted = False
        async with self._entering:
            while True:
                try:
                    number, seconds, asked = await window.enter(
                        self.row, spent.tokens, self.requests, self.tokens
                    )
                except VibeLlmsError:
                    # The store is not available; the limits of this process hold.
                    return
                if number is not None:
                    spent.number = number
                    return
                if asked and seconds > patience:
                    raise self._refusal(seconds)
                if seconds > NOTICE_SECONDS and not noted:
                    noted = True
                    notify(Notice("wait", f"{self.row}: waiting for requests of other processes"))
                # Some requests may have used less than estimated.
                await asyncio.sleep(min(seconds, _POLL_SECONDS))

    def record_usage(self, spent: _Spent, usage: Usage | None) -> None:
        """Replace the estimate of a request by its usage.

        Tokens above the estimate count from now.
        """
        if usage is None or self.tokens is None:
            return
        if self._window is not None and spent.number is not None:
            self._report(self._window.record_usage(self.row, spent.number, usage.total_tokens))
        excess = usage.total_tokens - spent.tokens
        if excess > 0:
            self._spent.append(_Spent(_now(), excess))
        else:
            spent.tokens += excess
        self._advance()

    def pause(self, seconds: float) -> None:
        """Admit no request for some seconds."""
        self._paused_until = max(self._paused_until, _now() + seconds)
        self._advance()
        if self._window is not None:
            self._report(self._window.pause(self.row, seconds))

    def _report(self, work: Coroutine[Any, Any, None]) -> None:
        """Send a report to other processes, without waiting for them."""

        async def report() -> None:
            with suppress(VibeLlmsError):
                await work

        self._reports.add(task := asyncio.create_task(report(), name="limits of providers"))
        task.add_done_callback(self._reports.discard)

    async def close(self) -> None:
        """Wait until the reports to other processes are sent."""
        if self._reports:
            await asyncio.wait(self._reports)

    def _advance(self) -> None:
        """Admit the requests that may be sent, and schedule the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = _now()
        paused = self._paused_until - now
        for waiting in [one for one in self._queue if one.patience < paused]:
            self._queue.remove(waiting)
            waiting.admitted.set_exception(self._refusal(paused))
        while self._queue:
            wait = self._measure(self._queue[0].tokens, now)
            if wait > 0:
                self._timer = asyncio.get_running_loop().call_later(wait, self._advance)
                return
            waiting = self._queue.popleft()
            spent = _Spent(now, waiting.tokens)
            self._starts.append(now)
            self._spent.append(spent)
            waiting.admitted.set_result(spent)

    def _measure(self, tokens: int, now: float) -> float:
        """Return the seconds that the next request has to wait, from what is known now."""
        while self._starts and self._starts[0] + WINDOW_SECONDS <= now:
            self._starts.popleft()
        while self._spent and self._spent[0].time + WINDOW_SECONDS <= now:
            self._spent.popleft()
        free = self._paused_until
        if self.requests is not None and len(self._starts) >= self.requests:
            free = max(free, self._starts[-self.requests] + WINDOW_SECONDS)
        if self.tokens is not None:
            over = sum(one.tokens for one in self._spent) + min(tokens, self.tokens) - self.tokens
            for one in self._spent:
                if over <= 0:
                    break
                over -= one.tokens
                free = max(free, one.time + WINDOW_SECONDS)
        return free - now

    def _withdraw(self, waiting: _Waiting) -> None:
        if waiting in self._queue:
            self._queue.remove(waiting)
        elif waiting.admitted.done() and waiting.admitted.exception() is None:
            # It was admitted, and was cancelled before it was sent.
            spent = waiting.admitted.result()
            if spent in self._spent:
                self._spent.remove(spent)
                self._starts.remove(spent.time)
        self._advance()

    def _explain(self) -> str:
        if self._paused_until > _now():
            return f"because its server asked to wait {self._paused_until - _now():.0f} s"
        limits = [f"requests-per-minute = {self.requests}"] if self.requests is not None else []
        limits += [f"tokens-per-minute = {self.tokens}"] if self.tokens is not None else []
        return f"to stay within {' and '.join(limits)}"

    def _refusal(self, seconds: float) -> RateLimited:
        error = RateLimited(
            f"the server asked for a wait of {seconds:.0f} s, longer than retry-wait-seconds",
            provider=self.row,
        )
        error.retry_after = seconds
        return error


class Limiters:
    """Limiters of the rows that have limits, created when they are first needed.

    With a `window`, other processes count too.
    """

    def __init__(self, window: Window | None = None) -> None:
        self._window = window
        self._limiters: dict[str, Limiter] = {}

    def access(self, row: str, requests: int | None, tokens: int | None) -> Limiter | None:
        """Return the limiter of a row, or None if it has no limits."""
        if requests is None and tokens is None:
            return None
        if row not in self._limiters:
            self._limiters[row] = Limiter(
                row, requests=requests, tokens=tokens, window=self._window
            )
        return self._limiters[row]

    async def close(self) -> None:
        """Wait until the reports to other processes are sent."""
        for limiter in self._limiters.values():
            await limiter.close()


class LimiterSlot:
    """Place of one round trip in a limiter; each attempt enters again."""

    def __init__(self, limiter: Limiter, tokens: int) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._spent: _Spent | None = None

    async def enter(self, notify: Notifier, patience: float) -> None:
        """Wait until the next attempt may be made."""
        self._spent = await self._limiter.enter(self._tokens, notify, patience)

    def fail(self, error: Exception) -> None:
        """Record a failed attempt; a server's advice on waiting applies to all requests."""
        if isinstance(error, RateLimited):
            # The server refused it, so none of its tokens count.
            self.record_usage(Usage())
            if error.retry_after is not None:
                self._limiter.pause(error.retry_after)

    def record_usage(self, usage: Usage | None) -> None:
        """Record the end of the round trip, and the usage of its last attempt, if known."""
        spent, self._spent = self._spent, None
        if spent is not None:
            self._limiter.record_usage(spent, usage)


_SLOT: ContextVar[LimiterSlot | None] = ContextVar("slot", default=None)


def limited(limiter: Limiter | None, tokens: int = 0) -> AbstractContextManager[None]:
    """Pass the requests of this context through a limiter, as about this many tokens."""
    return nullcontext() if limiter is None else _limited(limiter, tokens)


@contextmanager
def _limited(limiter: Limiter, tokens: int) -> Iterator[None]:
    token = _SLOT.set(LimiterSlot(limiter, tokens))
    try:
        yield
    finally:
        _SLOT.reset(token)


def access_slot() -> LimiterSlot | None:
    """Return the slot of the current round trip, or None if its row has no limits."""
    return _SLOT.get()


def _now() -> float:
    return asyncio.get_running_loop().time()
