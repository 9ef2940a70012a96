"""Identities of messages and replies: UUIDv7 as text, so they sort by time.

Identities that derive from others are UUIDv8. Conversations have shorter ones, from the archive.
"""

from __future__ import annotations

import os
import time


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


def _write(value: int) -> str:
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
