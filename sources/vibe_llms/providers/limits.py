"""Requests and tokens per minute: one limiter for each row that has limits, shared by a session.

The sessions of a server share them too, and servers of one database count together.

Requests wait in a queue, in order of arrival, until they fit into the limits of the last 60
seconds. Tokens are first counted as estimated, then corrected by what the reply reports. When a
server says how long to wait, the whole queue waits. Without limits there is no limiter.
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

from vibe_llms.events import Notice
from vibe_llms.exceptions import RateLimited, VibeLlmsError
from vibe_llms.messages.canisters import Usage
from vibe_llms.providers.interfaces import Notifier

WINDOW_SECONDS = 60.0
#: Shorter waits are not reported.
NOTICE_SECONDS = 2.0
#: How often a request that waits for other processes looks again.
_LOOK_SECONDS = 1.0


class _Spent(Struct, eq=False):
    """Tokens that count from a point in time; `number` is the request's in the shared window."""

    time: float
    tokens: int
    number: int | None = None


class _Waiting(Struct, eq=False):
    """A request in the queue; `patience` is the longest wait for a server that it accepts."""

    tokens: int
    patience: float
    admitted: asyncio.Future[_Spent]


class Window(Protocol):
    """What several processes have sent in the last 60 seconds to the providers of rows.

    It raises `VibeLlmsError` where it cannot be asked.
    """

    async def enter(
        self, row: str, tokens: int, most_requests: int | None, most_tokens: int | None
    ) -> tuple[int | None, float, bool]:
        """Count a request if it fits: its number, or how long it has to wait.

        The last value says whether the provider has asked for that wait.
        """
        ...

    async def settle(self, row: str, number: int, tokens: int) -> None:
        """Replace the estimate of a request by what it used."""
        ...

    async def pause(self, row: str, seconds: float) -> None:
        """Let no process send requests for some seconds."""
        ...


class Limiter:
    """Lets requests pass in order of arrival, never more in 60 seconds than the limits allow.

    `None` means no limit. A request whose estimate exceeds the whole limit of tokens passes when
    nothing else counts. A limiter serves one event loop and uses that loop's clock.

    With a `window`, requests that passed here also wait for those of other processes. While that
    cannot be asked, the limits hold for this process.
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
        # One asks the window at a time, in the order of arrival.
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
        """Wait until a request of about so many tokens may be sent; longer waits are reported.

        Raises `RateLimited` if the server asked for a wait of more than `patience` seconds. A
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
        """Wait for what other processes have sent."""
        noted = False
        async with self._entering:
            while True:
                try:
                    number, seconds, asked = await window.enter(
                        self.row, spent.tokens, self.requests, self.tokens
                    )
                except VibeLlmsError:
                    # The store is away; the limits of this process hold.
                    return
                if number is not None:
                    spent.number = number
                    return
                if asked and seconds > patience:
                    raise self._refusal(seconds)
                if seconds > NOTICE_SECONDS and not noted:
                    noted = True
                    notify(Notice("wait", f"{self.row}: waiting for requests of other servers"))
                # Some may have used less than they estimated.
                await asyncio.sleep(min(seconds, _LOOK_SECONDS))

    def settle(self, spent: _Spent, usage: Usage | None) -> None:
        """Replace the estimate of a request by what it really used.

        Tokens above the estimate count from now.
        """
        if usage is None or self.tokens is None:
            return
        if self._window is not None and spent.number is not None:
            self._report(self._window.settle(self.row, spent.number, usage.total_tokens))
        excess = usage.total_tokens - spent.tokens
        if excess > 0:
            self._spent.append(_Spent(_now(), excess))
        else:
            spent.tokens += excess
        self._advance()

    def pause(self, seconds: float) -> None:
        """Let no request pass for some seconds."""
        self._paused_until = max(self._paused_until, _now() + seconds)
        self._advance()
        if self._window is not None:
            self._report(self._window.pause(self.row, seconds))

    def _report(self, work: Coroutine[Any, Any, None]) -> None:
        """Report something to other processes, without waiting for them."""

        async def report() -> None:
            with suppress(VibeLlmsError):
                await work

        self._reports.add(task := asyncio.create_task(report(), name="limits of providers"))
        task.add_done_callback(self._reports.discard)

    async def close(self) -> None:
        """Wait until other processes know what was used."""
        if self._reports:
            await asyncio.wait(self._reports)

    def _advance(self) -> None:
        """Let the requests pass that may go, and schedule the next one."""
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
        """How long the next request has to wait, as far as is known now."""
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
            # It passed and was then cancelled before it was sent.
            spent = waiting.admitted.result()
            if spent in self._spent:
                self._spent.remove(spent)
                self._starts.remove(spent.time)
        self._advance()

    def _explain(self) -> str:
        if self._paused_until > _now():
            return f"since its server asked for {self._paused_until - _now():.0f} s"
        limits = [f"requests-per-minute = {self.requests}"] if self.requests is not None else []
        limits += [f"tokens-per-minute = {self.tokens}"] if self.tokens is not None else []
        return f"so as not to exceed {' and '.join(limits)}"

    def _refusal(self, seconds: float) -> RateLimited:
        error = RateLimited(
            f"the server has asked for a wait of {seconds:.0f} s, longer than retry-wait-seconds",
            provider=self.row,
        )
        error.retry_after = seconds
        return error


class Limiters:
    """The limiters of the rows that have limits, made when they are first needed.

    With a `window`, other processes count too.
    """

    def __init__(self, window: Window | None = None) -> None:
        self._window = window
        self._limiters: dict[str, Limiter] = {}

    def access(self, row: str, requests: int | None, tokens: int | None) -> Limiter | None:
        """The limiter of a row, if it has limits."""
        if requests is None and tokens is None:
            return None
        if row not in self._limiters:
            self._limiters[row] = Limiter(
                row, requests=requests, tokens=tokens, window=self._window
            )
        return self._limiters[row]

    async def close(self) -> None:
        """Wait until other processes know what was used."""
        for limiter in self._limiters.values():
            await limiter.close()


class LimiterSlot:
    """The place of one round trip in a limiter; each attempt enters again."""

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
            # It did not pass, so none of its tokens count.
            self.settle(Usage())
            if error.retry_after is not None:
                self._limiter.pause(error.retry_after)

    def settle(self, usage: Usage | None) -> None:
        """Record the end of the round trip, and what its last attempt used if that is known."""
        spent, self._spent = self._spent, None
        if spent is not None:
            self._limiter.settle(spent, usage)


_SLOT: ContextVar[LimiterSlot | None] = ContextVar("slot", default=None)


def limited(limiter: Limiter | None, tokens: int = 0) -> AbstractContextManager[None]:
    """Send what is sent in this context through a limiter, as about so many tokens."""
    return nullcontext() if limiter is None else _limited(limiter, tokens)


@contextmanager
def _limited(limiter: Limiter, tokens: int) -> Iterator[None]:
    token = _SLOT.set(LimiterSlot(limiter, tokens))
    try:
        yield
    finally:
        _SLOT.reset(token)


def access_slot() -> LimiterSlot | None:
    """The slot of the current round trip, if its row has limits."""
    return _SLOT.get()


def _now() -> float:
    return asyncio.get_running_loop().time()
