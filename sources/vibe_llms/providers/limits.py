"""Requests and tokens per minute: one limiter for each row that has limits, shared by a session.

Who asks waits in a queue, in the order of arrival, until the request fits into the last 60 seconds.
Tokens are counted as they were estimated, and corrected by what the reply reports. A server that
says how long to wait holds the whole queue back. Without limits nothing of this is made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from msgspec import Struct

from vibe_llms.events import Notice
from vibe_llms.exceptions import RateLimited
from vibe_llms.messages.canisters import Usage
from vibe_llms.providers.interfaces import Notifier

WINDOW_SECONDS = 60.0
#: A shorter wait is not told.
TOLD_SECONDS = 2.0


class _Spent(Struct, eq=False):
    """Tokens that count from a point in time on."""

    time: float
    tokens: int


class _Waiting(Struct, eq=False):
    """Somebody in the queue; `patience` is the longest wait of a server's that is borne."""

    tokens: int
    patience: float
    admitted: asyncio.Future[_Spent]


class Limiter:
    """Lets requests pass so that no 60 seconds have more than the limits, in order of arrival.

    `None` is no limit. A request that is estimated above the whole limit of tokens passes when
    nothing else counts. It serves one event loop; time is that loop's.
    """

    def __init__(self, row: str, *, requests: int | None = None, tokens: int | None = None) -> None:
        self.row = row
        self.requests, self.tokens = requests, tokens
        self._starts: deque[float] = deque()
        self._spent: deque[_Spent] = deque()
        self._queue: deque[_Waiting] = deque()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Limiter({self.row!r}, requests={self.requests}, tokens={self.tokens})"

    async def enter(self, tokens: int, notify: Notifier, patience: float) -> _Spent:
        """Wait until a request of about so many tokens may be sent; a longer wait is told.

        `RateLimited` where the server has asked for a wait that is longer than `patience` seconds.
        A cancel gives the place in the queue up.
        """
        waiting = _Waiting(tokens, patience, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._advance()
        with ExitStack() as undoing:
            undoing.callback(self._withdraw, waiting)
            await asyncio.wait([waiting.admitted], timeout=TOLD_SECONDS)
            if not waiting.admitted.done():
                notify(Notice("wait", f"{self.row}: waiting, {self._explain()}"))
                await asyncio.wait([waiting.admitted])
            spent = waiting.admitted.result()
            undoing.pop_all()
        return spent

    def settle(self, spent: _Spent, usage: Usage | None) -> None:
        """Correct what a request was estimated at by what it has really used.

        What it used beyond that counts from now on.
        """
        if usage is None or self.tokens is None:
            return
        excess = usage.total_tokens - spent.tokens
        if excess > 0:
            self._spent.append(_Spent(_now(), excess))
        else:
            spent.tokens += excess
        self._advance()

    def pause(self, seconds: float) -> None:
        """Let nobody pass for so many seconds, counted from now."""
        self._paused_until = max(self._paused_until, _now() + seconds)
        self._advance()

    def _advance(self) -> None:
        """Let pass whoever may, and come back when the next one may."""
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
        """How long the next one has to wait, as far as is known now."""
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
            # It was let pass and then cancelled before it was sent.
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


class Passage:
    """One round trip on its way through a limiter; each attempt enters anew."""

    def __init__(self, limiter: Limiter, tokens: int) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._spent: _Spent | None = None

    async def enter(self, notify: Notifier, patience: float) -> None:
        """Wait until the next attempt may be made."""
        self._spent = await self._limiter.enter(self._tokens, notify, patience)

    def fail(self, error: Exception) -> None:
        """An attempt has failed; a server's advice on waiting holds for all."""
        if isinstance(error, RateLimited):
            # It was not let in there, so none of its tokens count.
            self.settle(Usage())
            if error.retry_after is not None:
                self._limiter.pause(error.retry_after)

    def settle(self, usage: Usage | None) -> None:
        """The round trip is over; what its last attempt used is known, or is not."""
        spent, self._spent = self._spent, None
        if spent is not None:
            self._limiter.settle(spent, usage)


_PASSAGE: ContextVar[Passage | None] = ContextVar("passage", default=None)


@contextmanager
def limited(limiter: Limiter | None, tokens: int = 0) -> Iterator[None]:
    """What is sent within passes through the limiter, if there is one, as about so many tokens."""
    if limiter is None:
        yield
        return
    token = _PASSAGE.set(Passage(limiter, tokens))
    try:
        yield
    finally:
        _PASSAGE.reset(token)


def access_passage() -> Passage | None:
    """The way through the limiter of the round trip that is running, if its row has limits."""
    return _PASSAGE.get()


def _now() -> float:
    return asyncio.get_running_loop().time()
