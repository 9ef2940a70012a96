"""Text laid out in the cells of a terminal: how wide it is, cut, padded, wrapped and in columns.

A terminal counts cells, not characters: a Chinese character takes two, an accent none. Terminals
disagree about some emoji, so each cluster counts as wide as the widest terminal draws it: a line
that fits here fits everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_ELLIPSIS = "…"
_TAB_CELLS = 4
#: A last column narrower than this is put below the others instead.
_LEAST_CELLS = 12
_WORD = re.compile(r"(?<! )( *)([^ ]+)")


def width(text: str) -> int:
    """The number of cells that a text takes in one line.

    >>> width("abc"), width("日本")
    (3, 4)
    """
    if text.isascii():
        return len(text)
    return sum(cells for _, cells in _split_clusters(text))


def cut(text: str, cells: int) -> str:
    """The text, shortened to so many cells where it takes more.

    >>> cut("some words", 6), cut("日本語", 5)
    ('some …', '日本…')
    """
    if len(_take(text, cells)) == len(text):
        return text
    return f"{_take(text, cells - 1)}{_ELLIPSIS}" if cells > 0 else ""


def pad(text: str, cells: int) -> str:
    """The text with blanks behind it, so that it takes at least so many cells."""
    return text + " " * (cells - width(text))


def fold(text: str, cells: int) -> list[str]:
    r"""The lines of a text, each broken wherever it is full: nothing is moved or left out.

    >>> fold("if x:\n  go()", 4)
    ['if x', ':', '  go', '()']
    """
    return [part for line in text.split("\n") for part in _break(_expand(line), cells)]


def wrap(text: str, cells: int, hang: str = "") -> list[str]:
    """The lines of a text, broken between words.

    What does not fit goes on under the beginning of its line, or indented with `hang`.

    >>> wrap("a list of words", 9)
    ['a list of', 'words']
    >>> wrap("-o some words", 8, "   ")
    ['-o some', '   words']
    """
    return [part for line in text.split("\n") for part in _wrap_line(_expand(line), cells, hang)]


def draw_columns(rows: Iterable[Sequence[str]], cells: int | None = None) -> list[str]:
    """Rows whose columns are aligned; with `cells`, the last column wraps at words.

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
        elif cells - indent >= _LEAST_CELLS or indent + width(row[-1]) <= cells:
            wrapped = wrap(row[-1], max(1, cells - indent))
            lines += [f"{begun}{wrapped[0]}".rstrip()]
            lines += [" " * indent + part for part in wrapped[1:]]
        else:
            lines += wrap(begun.rstrip(), cells)
            lines += wrap(f"    {row[-1]}", cells)
    return lines


def _wrap_line(line: str, cells: int, hang: str) -> Iterator[str]:
    if width(line) <= cells:
        yield line
        return
    indent = line[: len(line) - len(line.lstrip(" "))]
    indent, hang = (one if width(one) <= cells // 2 else "" for one in (indent, hang or indent))
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
    """Pieces of at most so many cells, at least one cluster in each."""
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
    """As much of the beginning as fits."""
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
    """The clusters of a text, each with the most cells that a terminal gives it."""
    from wcwidth import iter_graphemes, wcwidth

    for cluster in iter_graphemes(text):
        if len(cluster) == 1:
            yield cluster, max(0, wcwidth(cluster))
        else:
            single = sum(max(0, wcwidth(character)) for character in cluster)
            yield cluster, max(single, 2 if "\ufe0f" in cluster else 0)


def _expand(line: str) -> str:
    return line.expandtabs(_TAB_CELLS) if "\t" in line else line
