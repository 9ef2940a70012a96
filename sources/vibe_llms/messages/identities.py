"""Identities of messages and replies: UUIDv7 as text, so that they sort by time.

Identities of conversations are shorter and live with the archive.
"""

from __future__ import annotations

import os
import time


def produce_identity() -> str:
    """A new UUIDv7: 48 bits of milliseconds, then 74 random bits.

    >>> identity = produce_identity()
    >>> len(identity), identity[14], identity[19] in "89ab"
    (36, '7', True)

    Source: RFC 9562, section 5.7.
    """
    milliseconds = time.time_ns() // 1_000_000
    noise = int.from_bytes(os.urandom(10), "big")
    value = (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (noise >> 68 & 0xFFF) << 64
        | 0b10 << 62
        | noise & 0x3FFF_FFFF_FFFF_FFFF
    )
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
