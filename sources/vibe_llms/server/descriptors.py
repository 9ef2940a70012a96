"""Limits on connections, derived from the process's limit of file descriptors.

Each connection uses a descriptor. Without free descriptors, no file opens, and the event loop keeps
failing to accept. So connections are capped below the limit of the process.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from vibe_llms.base.credentials import get_logger
from vibe_llms.server.failures import Rejected
from vibe_llms.server.settings import ServerSettings

#: Descriptors reserved for files, databases, and connections to providers: the greater of this
#: number and this fraction of all.
_RESERVE = 64
_RESERVED_PART = 0.25
#: The limit to request if the system sets none.
_MOST_DESCRIPTORS = 65_536
_RETRY_SECONDS = 1.0
_WARN_SECONDS = 60.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOGGER = get_logger("vibe_llms.server")


class WaitingConnection(Protocol):
    """A connection that can be closed because it has no complete request."""

    def dismiss(self) -> None:
        """Close the connection."""
        ...


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; return the new limit."""
    try:
        import resource
    except ImportError:
        # Windows does not limit sockets this way.
        return _MOST_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            # macOS has a lower limit that it does not report.
            wanted = soft
    return max(soft, wanted) if soft != resource.RLIM_INFINITY else wanted


class ConnectionLimits:
    """Maximum connections in total, and maximum concurrent requests per user.

    `waiting` has the connections without a complete request, longest wait first.
    """

    def __init__(self, settings: ServerSettings, descriptors: int) -> None:
        reserve = max(_RESERVE, int(descriptors * _RESERVED_PART))
        self.all = max(min(settings.connections, descriptors - reserve), 1)
        # Half of them are left for other users.
        self.user = max(min(settings.user_connections, self.all // 2), 1)
        self.waiting: dict[WaitingConnection, None] = {}
        self._requests: Counter[str] = Counter()
        self._warn_after = 0.0

    @contextmanager
    def counting(self, user: str) -> Iterator[None]:
        """Count a request of a user while it runs; `Rejected` if the user has too many."""
        if self._requests[user] >= self.user:
            raise Rejected(
                f"too many requests at once ({self.user:,}, user-connections); wait until one ends",
                status=429,
                type="rate_limit_error",
                code="too_many_connections",
                retry_after=_RETRY_SECONDS,
            )
        self._requests[user] += 1
        try:
            yield
        finally:
            self._requests[user] -= 1
            if not self._requests[user]:
                del self._requests[user]

    def admit(self, connections: int) -> bool:
        """Return True if a new connection may stay, given the number including it.

        Above the limit, the connection that has waited longest for a request is closed instead.
        """
        if connections <= self.all:
            return True
        self.warn(f"all {self.all:,} connections are in use; see connections in [server]")
        for oldest in self.waiting:
            oldest.dismiss()
            return True
        return False

    def warn(self, text: str) -> None:
        """Log a warning, at most once a minute."""
        now = time.monotonic()
        if now >= self._warn_after:
            self._warn_after = now + _WARN_SECONDS
            _LOGGER.warning("%s", text)

    @contextmanager
    def watch_loop(self) -> Iterator[None]:
        """Log missing descriptors at most once a minute, instead of for every failed accept."""
        loop = asyncio.get_running_loop()
        former = loop.get_exception_handler()

        def handle(one: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                self.warn(f"no connection can be accepted: {error.strerror}")
            elif former is not None:
                former(one, context)
            else:
                one.default_exception_handler(context)

        loop.set_exception_handler(handle)
        try:
            yield
        finally:
            loop.set_exception_handler(former)
