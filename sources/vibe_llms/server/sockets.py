"""The listening socket of the server."""

from __future__ import annotations

import errno
import ipaddress
import socket

from vibe_llms.base.exceptions import RequestError

_REASONS = {
    errno.EACCES: "ports below 1024 need special privileges; choose another: --port",
    errno.EADDRINUSE: "the port is in use; choose another: --port",
    errno.EADDRNOTAVAIL: "this machine does not have the address; choose another: --host",
}


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; `RequestError` explains a failure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Asyncio sets TCP_NODELAY only on sockets created with IPPROTO_TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        why = _REASONS.get(error.errno or 0)
        if isinstance(error, socket.gaierror):
            why = "it is not an address of this machine; choose another: --host"
        raise RequestError(
            f"cannot listen on {host}, port {port}: {why or error.strerror}"
        ) from error
    return bound


def is_in_use(host: str, port: int) -> bool:
    """Return True if another program listens at an address."""
    try:
        bind(host, port).close()
    except RequestError as error:
        cause = error.__cause__
        return isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
    return False


def is_loopback(host: str) -> bool:
    """Return True if a host can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
