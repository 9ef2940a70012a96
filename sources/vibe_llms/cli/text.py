"""Text for a terminal: hidden characters, and its layout in cells.

Hidden characters are those that hide, move or reorder text, by their Unicode properties. Joiners
and selectors stay where a script or an emoji needs them: between letters from Arabic to Mongolian,
between emoji, after a sign with two forms, after an ideograph.

A terminal counts cells, not characters: a Chinese character takes two, an accent none. Terminals
disagree about some emoji, so each cluster counts as wide as the widest terminal draws it. A line
that fits here fits everywhere.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

# Default_Ignorable_Code_Point, from DerivedCoreProperties.txt of Unicode 17.0: invisible if a font
# lacks it. Python's `unicodedata` does not have this property.
_IGNORABLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5)),
    *((0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0)),
    *((0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
# Prepended_Concatenation_Mark, from PropList.txt of Unicode 17.0: category Cf, but visible.
_DRAWN = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
_HIDDEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# Category So, but invisible.
_BLANK = "\u2800"

_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_EMOJI = ((0x2600, 0x27BF), (0xFE0F, 0xFE0F), (0x1F000, 0x1FAFF))

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


@lru_cache(4096)
def is_hidden(character: str) -> bool:
    r"""Return True if a character is invisible or controls a terminal, except for white space.

    >>> is_hidden("\u00ad"), is_hidden("\u202e"), is_hidden("a"), is_hidden("\n")
    (True, True, False, False)
    """
    if character in "\n\t" or character in _DRAWN:
        return False
    return (
        unicodedata.category(character) in _HIDDEN_CATEGORIES
        or _is_in(character, _IGNORABLE)
        or character == _BLANK
    )


def spell(name: str) -> str:
    r"""Return a name with non-ASCII letters spelled out, because they may look like others.

    >>> spell("read"), spell("r\u0435ad")
    ('read', '"r\u0435ad" (spelled "r\\u0435ad")')
    """
    if name.isascii():
        return name
    return f"{json.dumps(name, ensure_ascii=False)} (spelled {json.dumps(name)})"


def replace_hidden(text: str, show: Callable[[str], str]) -> str:
    """Replace each hidden character by the result of `show`."""
    hidden = {character for character in set(text) if is_hidden(character)}
    if not hidden:
        return text
    return "".join(
        show(character) if character in hidden and not _belongs(text, index) else character
        for index, character in enumerate(text)
    )


def _belongs(text: str, index: int) -> bool:
    """Return True if the text around a hidden character needs it."""
    character = text[index]
    before = text[index - 1] if index else "\0"
    after = text[index + 1] if index + 1 < len(text) else "\0"
    match ord(character):
        case 0x200D:
            return (_is_in(before, _EMOJI) or _is_joined(before)) and (
                _is_in(after, (*_EMOJI, (0x2190, 0x21FF))) or _is_joined(after)
            )
        case 0x200C:
            return _is_joined(before) and _is_joined(after)
        case 0xFE0E | 0xFE0F:
            return _has_two_forms(before)
        case 0xFE00 | 0xFE01 | 0xFE02:
            return _is_in(before, _IDEOGRAPHS)
        case 0x180E:
            return _is_mongolian(before) and _is_mongolian(after)
        case 0x180B | 0x180C | 0x180D | 0x180F:
            return _is_mongolian(before)
        case code:
            return 0xE0100 <= code <= 0xE01EF and _is_in(before, _IDEOGRAPHS)


def _is_joined(character: str) -> bool:
    """Return True for a letter or a mark of a script that joins its letters."""
    return "\u0600" <= character < "\u1d00" and unicodedata.category(character)[0] in "LM"


def _is_mongolian(character: str) -> bool:
    return "\u1820" <= character <= "\u18aa"


def _has_two_forms(character: str) -> bool:
    """Return True if the character has a text form and an emoji form."""
    if character in "#*0123456789‼⁉\u2139〰":
        return True
    return character > "\x7f" and unicodedata.category(character) in ("So", "Sm", "Sk")


def _is_in(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in ranges)


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
