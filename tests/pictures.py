"""Whole images for tests: a model is given no other."""

from __future__ import annotations

import struct
import zlib


def make_png(filling: int = 0) -> bytes:
    """A PNG of one pixel; with so many bytes more that no program looks at."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\0\0\xff")),
        *([(b"fiLl", bytes(filling))] if filling else []),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def make_jpeg() -> bytes:
    """The structure of a JPEG: a header, a scan with a restart and a stuffed byte, the end."""
    head = b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
    return head + b"\xff\xda\0\x08\1\1\0\0\x3f\0" + b"pixels\xff\xd0\xff\0more" + b"\xff\xd9"


def make_gif() -> bytes:
    """A GIF of one pixel."""
    head = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff"
    extension = b"!\xf9\4\1\0\0\0\0"
    return head + extension + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"


def make_webp() -> bytes:
    """The structure of a WebP file."""
    body = b"WEBPVP8 " + struct.pack("<I", 4) + b"\0\0\0\0"
    return b"RIFF" + struct.pack("<I", len(body)) + body
