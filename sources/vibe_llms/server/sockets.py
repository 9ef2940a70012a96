"""Where the server listens: a socket, and whether it is on this machine only."""

from __future__ import annotations

import errno
import ipaddress
import socket

from vibe_llms.exceptions import RequestError

_REASONS = {
    errno.EACCES: "ports below 1024 need rights of their own; choose another: --port",
    errno.EADDRINUSE: "the port is in use; choose another: --port",
    errno.EADDRNOTAVAIL: "this machine does not have the address; choose another: --host",
}


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; `RequestError` says why there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only sockets that say TCP are set by asyncio to send small packets at once.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        why = _REASONS.get(error.errno or 0)
        if isinstance(error, socket.gaierror):
            why = "it is no address of this machine; choose another: --host"
        raise RequestError(
            f"cannot listen on {host}, port {port}: {why or error.strerror}"
        ) from error
    return bound


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
