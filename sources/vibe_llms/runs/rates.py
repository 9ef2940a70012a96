"""Requests and tokens of a user in the last minute, and their report to the user's request.

All processes of an installation share one count. It is a sliding window: a request counts for a
minute from its reservation, so no minute, wherever it begins, contains more than the limit. An
entry leaves after a minute even if its process has died, so nothing else needs to release it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.configuration import RateLimit

#: Seconds for which a request counts.
WINDOW_SECONDS = 60.0


class RateState(Struct, frozen=True, kw_only=True):
    """Use of a user's limits in the last minute.

    `tokens` include `reserved` tokens of requests that are not settled. The window is empty in
    `resets` seconds. `request_wait` and `token_wait` are the seconds until a claim fits the limit,
    or None if it fits. If `busy`, it would fit without the reserved tokens.
    """

    limit: RateLimit
    requests: int = 0
    tokens: int = 0
    reserved: int = 0
    resets: float = 0.0
    request_wait: float | None = None
    token_wait: float | None = None
    busy: bool = False

    @classmethod
    def from_row(cls, limit: RateLimit, now: float, row: Sequence[Any]) -> RateState:
        """Create the state from the sums of a store and the times of entries, in seconds.

        Those are the newest one, and the newest ones that must leave before a claim fits: because
        of requests, of tokens, and of the tokens of settled requests.
        """
        requests, tokens, reserved, *times = row
        newest, of_requests, of_tokens, of_settled = (
            None if one is None else max(one + WINDOW_SECONDS - now, 0.0) for one in times
        )
        return cls(
            limit=limit,
            requests=requests,
            tokens=tokens,
            reserved=reserved,
            resets=newest or 0.0,
            request_wait=of_requests,
            token_wait=of_tokens,
            busy=of_requests is None and of_settled is None and of_tokens is not None,
        )

    def add(self, requests: int, tokens: int) -> RateState:
        """Return the state with another request, whose tokens are reserved."""
        return replace(
            self,
            requests=self.requests + requests,
            tokens=self.tokens + tokens,
            reserved=self.reserved + tokens,
            resets=WINDOW_SECONDS,
        )

    @property
    def wait(self) -> float | None:
        """Seconds until the claim fits, or None if it fits."""
        waits = [one for one in (self.request_wait, self.token_wait) if one is not None]
        return max(waits) if waits else None

    @property
    def requests_left(self) -> int | None:
        """Requests that are left in this minute, or None without a limit."""
        most = self.limit.requests_per_minute
        return None if most is None else max(most - self.requests, 0)

    @property
    def tokens_left(self) -> int | None:
        """Tokens that are left in this minute, or None without a limit."""
        most = self.limit.tokens_per_minute
        return None if most is None else max(most - self.tokens, 0)


def spare(limit: RateLimit, requests: int, tokens: int) -> tuple[int | None, int | None]:
    """Return how many requests and tokens others may have used for a claim to fit.

    None if it does not matter, because the claim has none or there is no limit.
    """
    left = [
        most - need if most is not None and need else None
        for most, need in (
            (limit.requests_per_minute, requests),
            (limit.tokens_per_minute, tokens),
        )
    ]
    return left[0], left[1]


class RateReport:
    """Latest state of the limits in one request of a client, for the headers of its response."""

    def __init__(self) -> None:
        self.state: RateState | None = None


_REPORT: ContextVar[RateReport | None] = ContextVar("rate_report", default=None)


@contextmanager
def reporting_rates() -> Iterator[RateReport]:
    """Yield a report that the reservations of this context fill."""
    report = RateReport()
    token = _REPORT.set(report)
    try:
        yield report
    finally:
        _REPORT.reset(token)


def report_rates(state: RateState) -> None:
    """Report a state to the client's request that this context belongs to, if any."""
    if (report := _REPORT.get()) is not None:
        report.state = state
