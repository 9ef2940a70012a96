"""`BodyRoom`: the memory limit for the bodies of all requests."""

from __future__ import annotations

from collections import Counter

from vibe_llms.server.failures import Rejected
from vibe_llms.server.settings import ServerSettings

_RETRY_SECONDS = 1.0
#: Maximum bytes of bodies held at once, per user and in total; raised to the size of one body.
_USER_BYTES = 128 * 1024 * 1024
_ALL_BYTES = 512 * 1024 * 1024


class BodyRoom:
    """Count of the bytes in the bodies of all active requests."""

    def __init__(self, settings: ServerSettings) -> None:
        self._user_bytes = max(_USER_BYTES, settings.body_bytes)
        self._all_bytes = max(_ALL_BYTES, settings.body_bytes)
        self._used: Counter[str] = Counter()
        self._used_by_all = 0

    def reserve(self, user: str, size: int) -> None:
        """Reserve bytes; `Rejected` if there is no room for them."""
        if self._used[user] + size > self._user_bytes:
            raise Rejected(
                "this user's requests in progress are too large in total; wait until one ends",
                status=429,
                type="rate_limit_error",
                code="too_many_bytes",
                retry_after=_RETRY_SECONDS,
            )
        if self._used_by_all + size > self._all_bytes:
            raise Rejected(
                "the requests in progress are too large in total; try again in a moment",
                status=503,
                type="server_error",
                code="overloaded",
                retry_after=_RETRY_SECONDS,
            )
        self._used[user] += size
        self._used_by_all += size

    def release(self, user: str, size: int) -> None:
        """Release reserved bytes."""
        self._used[user] -= size
        self._used_by_all -= size
        if not self._used[user]:
            del self._used[user]
