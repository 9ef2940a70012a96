"""Text for a terminal: its layout in cells.

A terminal counts cells, not characters: a Chinese character takes two, an accent none. Terminals
disagree about some emoji, so each cluster counts as wide as the widest terminal draws it. A line
that fits here fits everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

_ELLIPSIS = "…"
_TAB_CELLS = 4
#: Minimum cells of a last column; a narrower one is printed below the others.
_MIN_CELLS = 12
#: End of a word; the blanks after it belong to the next piece.
_PIECES = re.compile(r"(?<=\S)(?=\s)")
#: Maximum characters that wait for the end of a word.
_LONGEST_PENDING = 30
#: Cells of a cluster of three, as some terminals draw it.
_WIDEST = 6
_WORD = re.compile(r"(?<! )( *)([^ ]+)")


def spell(name: str) -> str:
    r"""Return a name with non-ASCII letters spelled out, because they may look like others.

    >>> spell("read"), spell("r\u0435ad")
    ('read', '"r\u0435ad" (spelled "r\\u0435ad")')
    """
    if name.isascii():
        return name
    return f"{json.dumps(name, ensure_ascii=False)} (spelled {json.dumps(name)})"


def width(text: str) -> int:
    """Return the width of a text in cells.

    >>> width("abc"), width("日本")
    (3, 4)
    """
    if text.isascii():
        return len(text)
    return sum(cells for _, cells in _split_clusters(text))


def cut(text: str, cells: int) -> str:
    """Shorten the text to a number of cells.

    >>> cut("some words", 6), cut("日本語", 5)
    ('some …', '日本…')
    """
    if len(_take(text, cells)) == len(text):
        return text
    return f"{_take(text, cells - 1)}{_ELLIPSIS}" if cells > 0 else ""


def pad(text: str, cells: int) -> str:
    """Pad the text with blanks to at least a number of cells."""
    return text + " " * (cells - width(text))


def fold(text: str, cells: int) -> list[str]:
    r"""Break a text into lines at exactly the width; every character is kept.

    >>> fold("if x:\n  go()", 4)
    ['if x', ':', '  go', '()']
    """
    return [part for line in text.split("\n") for part in _break(_expand(line), cells)]


def wrap(text: str, cells: int, hang: str = "") -> list[str]:
    """Break a text into lines between words.

    Continuation lines have the indent of their line, or `hang`.

    >>> wrap("a list of words", 9)
    ['a list of', 'words']
    >>> wrap("-o some words", 8, "   ")
    ['-o some', '   words']
    """
    return [part for line in text.split("\n") for part in _wrap_line(_expand(line), cells, hang)]


def draw_columns(rows: Iterable[Sequence[str]], cells: int | None = None) -> list[str]:
    """Draw rows in aligned columns; with `cells`, the last column wraps at words.

    >>> draw_columns([("a", "one"), ("long", "some more words")], 20)
    ['a     one', 'long  some more', '      words']
    """
    rows = [tuple(row) for row in rows]
    heads = [row[:-1] for row in rows]
    widths = [
        max(width(head[index]) for head in heads if index < len(head))
        for index in range(max(map(len, heads), default=0))
    ]
    indent = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for row in rows:
        begun = "".join(f"{pad(one, size)}  " for one, size in zip(row[:-1], widths, strict=False))
        if cells is None or width(begun) + width(row[-1]) <= cells:
            lines.append(f"{begun}{row[-1]}".rstrip())
        elif cells - indent >= _MIN_CELLS or indent + width(row[-1]) <= cells:
            wrapped = wrap(row[-1], max(1, cells - indent))
            lines += [f"{begun}{wrapped[0]}".rstrip()]
            lines += [" " * indent + part for part in wrapped[1:]]
        else:
            lines += wrap(begun.rstrip(), cells)
            lines += wrap(f"    {row[-1]}", cells)
    return lines


class Flow:
    """Streamed text, broken between words; the last word waits for its end.

    >>> flow = Flow()
    >>> print(*(flow.feed(text, 9) for text in ("a lis", "t of wo", "rds")), flow.close(9), sep="")
    a list of
    words
    """

    def __init__(self) -> None:
        self._column = 0
        self._pending = ""

    def feed(self, text: str, cells: int) -> str:
        """Return the text to show, with a new line before each word that would not fit."""
        *pieces, self._pending = _PIECES.split(self._pending + text)
        if len(self._pending) > _LONGEST_PENDING or not self._pending.isascii():
            # It may be text without blanks between words.
            pieces, self._pending = [*pieces, self._pending], ""
        return "".join(self._put(piece, cells) for piece in pieces if piece)

    def close(self, cells: int) -> str:
        """Return the rest; the next text begins a line."""
        left, self._pending = self._put(self._pending, cells), ""
        self._column = 0
        return left

    def _put(self, piece: str, cells: int) -> str:
        if "\n" in piece:
            self._column = width(piece.rpartition("\n")[2])
            return piece
        self._column += width(piece)
        if self._column <= cells or piece.isspace():
            return piece
        piece = piece.lstrip(" ")
        # The terminal breaks words longer than a line.
        self._column = width(piece) % max(1, cells)
        return f"\n{piece}"


def _wrap_line(line: str, cells: int, hang: str) -> Iterator[str]:
    if width(line) <= cells:
        yield line
        return
    indent = line[: len(line) - len(line.lstrip(" "))]
    most = cells // 2 if line.isascii() else min(cells // 2, cells - _WIDEST)
    indent, hang = (one if width(one) <= most else "" for one in (indent, hang or indent))
    current, used, begun = indent, width(indent), False
    for before, word in _WORD.findall(line.strip(" ")):
        gap, size = before, width(word)
        if begun and used + len(gap) + size > cells:
            yield current
            current, used, begun, gap = hang, width(hang), False, ""
        *full, rest = (
            [word] if used + size <= cells else _break(word, cells - max(used, width(hang)))
        )
        if full:
            yield f"{current}{gap}{full[0]}"
            yield from (hang + part for part in full[1:])
            current, used, gap = hang, width(hang), ""
        current, used, begun = f"{current}{gap}{rest}", used + len(gap) + width(rest), True
    yield current


def _break(text: str, cells: int) -> list[str]:
    """Break a text into pieces of at most `cells`, with at least one cluster in each."""
    cells = max(1, cells)
    if width(text) <= cells:
        return [text]
    if text.isascii():
        return [text[start : start + cells] for start in range(0, len(text), cells)]
    parts, begin, used, position = [], 0, 0, 0
    for cluster, size in _split_clusters(text):
        if used + size > cells and used:
            parts.append(text[begin:position])
            begin, used = position, 0
        used += size
        position += len(cluster)
    return [*parts, text[begin:]]


def _take(text: str, cells: int) -> str:
    """Return the beginning that fits."""
    if text.isascii():
        return text[: max(0, cells)]
    used = position = 0
    for cluster, size in _split_clusters(text):
        used += size
        if used > cells:
            break
        position += len(cluster)
    return text[:position]


def _split_clusters(text: str) -> Iterator[tuple[str, int]]:
    """Yield the clusters of a text, each with the most cells that any terminal gives it."""
    from wcwidth import iter_graphemes, wcwidth

    for cluster in iter_graphemes(text):
        if len(cluster) == 1:
            yield cluster, max(0, wcwidth(cluster))
        else:
            single = sum(max(0, wcwidth(character)) for character in cluster)
            yield cluster, max(single, 2 if "\ufe0f" in cluster else 0)


def _expand(line: str) -> str:
    return line.expandtabs(_TAB_CELLS) if "\t" in line else line
