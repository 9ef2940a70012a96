"""Headers with a user's limits and what is left of them, as OpenAI and Anthropic send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from vibe_llms.runs.rates import RateState

RateHeaders: TypeAlias = Callable[[RateState], Iterator[tuple[bytes, bytes]]]


def produce_openai_headers(state: RateState) -> Iterator[tuple[bytes, bytes]]:
    """Yield OpenAI's headers; a reset is a duration.

    Source: https://platform.openai.com/docs/guides/rate-limits (2026-11).
    """
    reset = _write_duration(state.resets)
    for kind, most, left in _survey(state):
        yield f"x-ratelimit-limit-{kind}".encode(), str(most).encode()
        yield f"x-ratelimit-remaining-{kind}".encode(), str(left).encode()
        yield f"x-ratelimit-reset-{kind}".encode(), reset


def produce_anthropic_headers(state: RateState) -> Iterator[tuple[bytes, bytes]]:
    """Yield Anthropic's headers; a reset is a time.

    Source: https://platform.claude.com/docs/en/api/rate-limits (2026-11).
    """
    ends = datetime.now(UTC) + timedelta(seconds=state.resets)
    reset = f"{ends:%Y-%m-%dT%H:%M:%SZ}".encode()
    for kind, most, left in _survey(state):
        yield f"anthropic-ratelimit-{kind}-limit".encode(), str(most).encode()
        yield f"anthropic-ratelimit-{kind}-remaining".encode(), str(left).encode()
        yield f"anthropic-ratelimit-{kind}-reset".encode(), reset


def _survey(state: RateState) -> Iterator[tuple[str, int, int]]:
    limit = state.limit
    if limit.requests_per_minute is not None:
        yield "requests", limit.requests_per_minute, state.requests_left or 0
    if limit.tokens_per_minute is not None:
        yield "tokens", limit.tokens_per_minute, state.tokens_left or 0


def _write_duration(seconds: float) -> bytes:
    """Return a duration like `250ms`, `7.66s` or `1m0s`.

    >>> [_write_duration(one) for one in (0, 0.25, 7.66, 60)]
    [b'0s', b'250ms', b'7.66s', b'1m0s']
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms".encode()
    minutes, rest = divmod(round(seconds, 2), 60)
    return f"{minutes:.0f}m{rest:g}s".encode() if minutes else f"{rest:g}s".encode()
