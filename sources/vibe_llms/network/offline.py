"""The switch that forbids real requests: requests that would leave this machine raise an error.

Every transport checks it before sending. Requests to loopback addresses are always allowed.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from vibe_llms.exceptions import RequestForbidden

VARIABLE = "VIBE_LLMS_OFFLINE"
_ALLOWING = ("", "0", "false")

_lock = threading.Lock()
_open_blocks = 0


@contextmanager
def forbid_requests() -> Iterator[None]:
    """Within the block, no request of this process leaves the machine; blocks can be nested.

    Such a request raises `RequestForbidden` before anything of a turn is stored or sent. It applies
    to all threads, so it works as a test fixture.
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
    """Whether requests are forbidden in this process, by a block or by `VIBE_LLMS_OFFLINE`."""
    return bool(_open_blocks) or os.environ.get(VARIABLE, "").lower() not in _ALLOWING


def permit_request(address: str, purpose: str, *, offline: bool = False) -> None:
    """Raise `RequestForbidden` if a request to this address is not allowed.

    `purpose` names the purpose, for the beginning of a sentence; `offline` is the configuration
    key. An invalid address is left to the sender.
    """
    if not offline and not requests_forbidden():
        return
    try:
        host = urlsplit(address).hostname
    except ValueError:
        return
    if host and not is_loopback(host):
        reason = "by a block of forbid_requests()" if _open_blocks else f"offline, or {VARIABLE}"
        raise RequestForbidden(
            f"{purpose} would go to {host}, but real requests are forbidden ({reason}); allow "
            "them, use a scripted model, or use a server on this machine: "
            "vibe_llms.testing.fake_server",
            host=host,
        )


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "localhost.example.com")]
    [True, True, True, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
