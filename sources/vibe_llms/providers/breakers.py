"""Models whose last request failed, so that a conversation with a fallback asks another one."""

from __future__ import annotations

import time
from collections.abc import Callable

from vibe_llms.base.exceptions import ProviderError

#: Seconds for which a model is not asked after a request failed.
OPEN_SECONDS = 30.0
#: Longest such time, if the server asks for more.
LONGEST_SECONDS = 600.0


class Breakers:
    """Breakers of models, by address. The sessions of a server share them.

    A breaker opens when a request has failed after all its retries, and closes after 30 seconds or
    when the server's `retry_after` is over. A model without a fallback is asked anyway.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def open(self, address: str, error: ProviderError) -> None:
        """Record that a request to a model failed."""
        asked = getattr(error, "retry_after", None) or OPEN_SECONDS
        self._until[address] = self._clock() + min(asked, LONGEST_SECONDS)

    def close(self, address: str) -> None:
        """Record that a model answered."""
        self._until.pop(address, None)

    def is_open(self, address: str) -> bool:
        """Return True if a request to a model failed a short time ago."""
        return self._until.get(address, 0.0) > self._clock()
