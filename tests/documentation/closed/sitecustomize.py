"""On the path of every process that a page starts: nothing reaches further than this machine."""

import socket
from typing import Any

_connect = socket.socket.connect


def connect_here(self: socket.socket, address: Any) -> None:
    """Connect, if it is to this machine."""
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a page wanted to reach {address}")
    _connect(self, address)


socket.socket.connect = connect_here  # type: ignore[assignment, method-assign]
