"""Detection of damaged images by their structure, without decoding them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_GIF = (b"GIF87a", b"GIF89a")
#: The parts of a PNG that every program needs.
_CRITICAL = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
#: A marker in the data of a JPEG that is neither a stuffed byte nor a restart.
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_GIF_EXTENSION, _GIF_IMAGE, _GIF_END = 0x21, 0x2C, 0x3B
_EARLY = "it ends early"
#: Advice to the user about a damaged image.
REPAIR = "copy or export it again"


def find_damage(data: bytes) -> str:
    r"""Return why an image cannot be shown; empty if it is intact or of an unknown format.

    PNG, JPEG, GIF, and WebP are known. Data after the end of an image is ignored.

    >>> find_damage(b"\x89PNG\r\n\x1a\n"), find_damage(b"BM, or some text")
    ('the image is damaged: it ends early', '')
    """
    find: Callable[[bytes], str]
    if data.startswith(_PNG):
        find = _follow_png
    elif data.startswith(_JPEG):
        find = _follow_jpeg
    elif data.startswith(_GIF):
        find = _follow_gif
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        find = _follow_webp
    else:
        return ""
    try:
        problem = find(data)
    except IndexError:
        problem = _EARLY
    return f"the image is damaged: {problem}" if problem else ""


def _follow_png(data: bytes) -> str:
    place, seen = len(_PNG), set[bytes]()
    view = memoryview(data)
    while place < len(data):
        length = int.from_bytes(view[place : place + 4], "big")
        kind = bytes(view[place + 4 : place + 8])
        end = place + 8 + length
        if not seen and kind != b"IHDR":
            return "its header is missing"
        if end + 4 > len(data):
            return _EARLY
        if kind in _CRITICAL:
            check = int.from_bytes(view[end : end + 4], "big")
            if zlib.crc32(view[place + 4 : end]) != check:
                return "some of its bytes were changed"
        seen.add(kind)
        if kind == b"IEND":
            return "" if b"IDAT" in seen else "it has no pixels"
        place = end + 4
    return _EARLY


def _follow_jpeg(data: bytes) -> str:
    place, scanned = 2, False
    while True:
        if data[place] != 0xFF:
            return "its header is not valid"
        while data[place] == 0xFF:
            place += 1
        marker = data[place]
        place += 1
        if marker == _JPEG_END:
            return "" if scanned else "it has no pixels"
        if marker in _JPEG_ALONE:
            continue
        length = int.from_bytes(data[place : place + 2], "big")
        if place + length > len(data):
            return _EARLY
        place += length
        if marker == _JPEG_SCAN:
            scanned = True
            found = _MARKER.search(data, place)
            if found is None:
                return _EARLY
            place = found.start()


def _follow_gif(data: bytes) -> str:
    place = 13 + _measure_colors(data[10])
    images = 0
    # Many programs leave out the end marker.
    while place < len(data) or not images:
        kind = data[place]
        if kind == _GIF_END:
            return "" if images else "it has no pixels"
        if kind == _GIF_IMAGE:
            place += 10 + _measure_colors(data[place + 9]) + 1
            images += 1
        elif kind == _GIF_EXTENSION:
            place += 2
        else:
            return "some of its bytes were changed"
        while size := data[place]:
            place += size + 1
        place += 1
    return ""


def _measure_colors(flags: int) -> int:
    """Return the size of a color table in bytes, from the flags that describe it."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _follow_webp(data: bytes) -> str:
    return _EARLY if 8 + int.from_bytes(data[4:8], "little") > len(data) + 1 else ""
