"""Identities of messages and replies: UUIDv7 as text, so they sort by time.

Identities that derive from others are UUIDv8. Conversations have shorter ones, from the archive.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


def produce_identity() -> str:
    """Return a new UUIDv7: 48 bits of milliseconds, 12 of the rest of the time, 62 random bits.

    Identities of one process sort by time of creation, even within a millisecond.

    >>> identity = produce_identity()
    >>> len(identity), identity[14], identity[19] in "89ab"
    (36, '7', True)
    >>> identity < produce_identity()
    True

    Source: RFC 9562, sections 5.7 and 6.2 (method 3).
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    value = (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (rest * 4096 // 1_000_000) << 64
        | 0b10 << 62
        | int.from_bytes(os.urandom(8), "big") >> 2
    )
    return _write(value)


def derive_identity(identity: str, purpose: str) -> str:
    """Return the UUIDv8 of a message that derives from another; it is the same in every process.

    >>> derive_identity("a", "correction") == derive_identity("a", "correction")
    True
    >>> derive_identity("a", "correction") == derive_identity("b", "correction")
    False
    >>> len(derive_identity("a", "correction")), derive_identity("a", "correction")[14]
    (36, '8')

    Source: RFC 9562, section 5.8.
    """
    import hashlib

    digest = hashlib.sha256(f"{purpose}\0{identity}".encode()).digest()
    value = int.from_bytes(digest[:16], "big")
    return _write(value & ~(0xF << 76 | 0b11 << 62) | 0x8 << 76 | 0b10 << 62)


def derive_timed_identity(created: datetime | None, name: str) -> str:
    """Return the identity of a message of another program, by its time and its name there.

    It is a UUIDv7 with this time and a hash of the name in place of random bits, or a UUIDv8 if the
    time is unknown or before 1970. It is the same in every process.

    >>> from datetime import UTC, datetime
    >>> derive_timed_identity(datetime(2026, 11, 26, tzinfo=UTC), "chatgpt a")
    '01a21526-e400-720e-90c1-03511bab7c5b'
    >>> derive_timed_identity(None, "chatgpt a")[14]
    '8'

    Source: RFC 9562, section 5.7.
    """
    import hashlib

    milliseconds = -1 if created is None else int(created.timestamp() * 1000)
    if milliseconds < 0:
        return derive_identity(name, "import")
    digest = int.from_bytes(hashlib.sha256(f"import\0{name}".encode()).digest()[:10], "big")
    value = (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (digest >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | digest & 0x3FFF_FFFF_FFFF_FFFF
    )
    return _write(value)


def _write(value: int) -> str:
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
