"""`BodyRoom`: the memory that the bodies of all requests may take."""

from __future__ import annotations

from collections import Counter

from vibe_llms.server.failures import Rejected
from vibe_llms.server.settings import ServerSettings

_RETRY_SECONDS = 1.0
#: So many bytes of bodies are held at once for a user, and for all; a single body always may be.
_USER_BYTES = 128 * 1024 * 1024
_ALL_BYTES = 512 * 1024 * 1024


class BodyRoom:
    """How many bytes the bodies of all requests have that have not ended."""

    def __init__(self, settings: ServerSettings) -> None:
        self._user_bytes = max(_USER_BYTES, settings.body_bytes)
        self._all_bytes = max(_ALL_BYTES, settings.body_bytes)
        self._held: Counter[str] = Counter()
        self._all = 0

    def take(self, user: str, size: int) -> None:
        """Hold so many more bytes; `Rejected` where there is no room for them."""
        if self._held[user] + size > self._user_bytes:
            raise Rejected(
                "the requests of this user that are in progress are too large together; wait until "
                "one ends",
                status=429,
                type="rate_limit_error",
                code="too_many_bytes",
                retry_after=_RETRY_SECONDS,
            )
        if self._all + size > self._all_bytes:
            raise Rejected(
                "the requests in progress are too large together; try again in a moment",
                status=503,
                type="server_error",
                code="overloaded",
                retry_after=_RETRY_SECONDS,
            )
        self._held[user] += size
        self._all += size

    def give_back(self, user: str, size: int) -> None:
        """Hold so many bytes less."""
        self._held[user] -= size
        self._all -= size
        if not self._held[user]:
            del self._held[user]
