"""Ports for programs that have to be told theirs before they listen."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_port() -> int:
    """A port that is free, and that Linux gives to no other test, which asks for any port."""
    end = int(_RANGE.read_text().split()[0])
    while True:
        # Not `random`: it is seeded alike in every process that runs tests.
        port = 10_000 + secrets.randbelow(end - 10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
