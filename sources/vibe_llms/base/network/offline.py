"""Offline mode: requests that would leave this machine raise an error.

Every transport checks it before sending. Requests to loopback addresses are always allowed.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from vibe_llms.base.exceptions import RequestForbidden

VARIABLE = "VIBE_LLMS_OFFLINE"
_ALLOWING = ("", "0", "false")

_lock = threading.Lock()
_open_blocks = 0


@contextmanager
def forbid_requests() -> Iterator[None]:
    """Forbid requests of this process that leave the machine; blocks can be nested.

    Such a request raises `RequestForbidden` before any part of a turn is stored or sent. All
    threads are affected, which suits test fixtures.
    """
    global _open_blocks  # noqa: PLW0603  (the state of the process, under its lock)
    with _lock:
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1


def requests_forbidden() -> bool:
    """Return True if a block or `VIBE_LLMS_OFFLINE` forbids requests in this process."""
    return bool(_open_blocks) or os.environ.get(VARIABLE, "").lower() not in _ALLOWING


def permit_request(address: str, purpose: str, *, offline: bool = False) -> None:
    """Raise `RequestForbidden` if a request to this address is not allowed.

    `purpose` starts the error message; `offline` is the configuration key. Invalid addresses pass.
    """
    if not offline and not requests_forbidden():
        return
    try:
        host = urlsplit(address).hostname
    except ValueError:
        return
    if host and not is_loopback(host):
        reason = "by forbid_requests()" if _open_blocks else f"offline, or {VARIABLE}"
        raise RequestForbidden(
            f"{purpose} would go to {host}, but real requests are forbidden ({reason}); allow "
            "them, use a scripted model, or use a server on this machine: "
            "vibe_llms.testing.fake_server",
            host=host,
        )


def is_loopback(host: str) -> bool:
    """Return True if a host name means this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "localhost.example.com")]
    [True, True, True, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
