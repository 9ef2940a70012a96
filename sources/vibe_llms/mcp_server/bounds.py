"""Limits on the size of results: models read them whole."""

from __future__ import annotations

import msgspec

#: Maximum number of bytes of the JSON of a result's texts.
MOST_BYTES = 32 * 1024


def cut_text(text: str, most: int = MOST_BYTES) -> tuple[str, bool]:
    """Return the beginning of a text whose JSON has at most some bytes, and True if it was cut.

    >>> cut_text("abc", 2), cut_text("äb", 2), cut_text("ab", 2)
    (('ab', True), ('ä', True), ('ab', False))
    """
    if measure_text(text[: most + 1]) <= most and len(text) <= most:
        return text, False
    low, high = 0, min(len(text), most)
    while low < high:
        middle = (low + high + 1) // 2
        if measure_text(text[:middle]) <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low], True


def measure_text(text: str) -> int:
    r"""Return the number of bytes of a text in JSON, without quotes.

    >>> measure_text("a"), measure_text("ä"), measure_text("\x00")
    (1, 2, 6)
    """
    return len(msgspec.json.encode(text)) - 2
