"""The text of a document as a value, with the place of each part."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from msgspec import Struct

#: Separator between the parts of a document.
BREAK = "\n\n"
_START = itemgetter(0)


class Place(Struct, frozen=True, omit_defaults=True, array_like=True):
    """The place of a part in a document, to the extent that its format records it.

    `page` counts from 1 and is 0 without pages; slides count as pages. `heading` contains the
    headings above the part, from the outermost one, joined by " > ".
    """

    page: int = 0
    sheet: str = ""
    heading: str = ""

    def __str__(self) -> str:
        """Return the place for a reader, such as "page 3, Methods > Data"; empty if unknown."""
        page = f"page {self.page}" if self.page else ""
        sheet = f"sheet {self.sheet}" if self.sheet else ""
        return ", ".join(filter(None, (page, sheet, self.heading)))


class Part(Struct, frozen=True, omit_defaults=True, array_like=True):
    """A piece of a document's text in reading order, from a single place.

    Tables are Markdown, and so are headings if the format has them.
    """

    text: str
    place: Place = Place()


class DocumentText(Struct, frozen=True, omit_defaults=True):
    """The text of a document.

    `marks` are the places and the offsets in characters of `text` where they begin. `pages` is the
    number of pages, 0 without pages. `notices` describe unreadable parts, such as pages that are
    only pictures; `complete` is False if the text ends early because of a limit.
    """

    title: str
    text: str
    format: str = ""
    marks: tuple[tuple[int, Place], ...] = ()
    pages: int = 0
    notices: tuple[str, ...] = ()
    complete: bool = True

    def place_at(self, offset: int) -> Place:
        """Return the place of the character at an offset."""
        index = bisect_right(self.marks, offset, key=_START) - 1
        return self.marks[index][1] if index >= 0 else Place()


def join_parts(parts: Iterable[Part]) -> tuple[str, tuple[tuple[int, Place], ...]]:
    """Join parts to one text; return it with the offsets at which their places begin.

    >>> join_parts([Part("a", Place(1)), Part("b", Place(1)), Part("c", Place(2))])[1]
    ((0, Place(page=1, sheet='', heading='')), (6, Place(page=2, sheet='', heading='')))
    """
    texts: list[str] = []
    marks: list[tuple[int, Place]] = []
    offset = 0
    for part in parts:
        if not (text := part.text.strip("\n")):
            continue
        if not marks or marks[-1][1] != part.place:
            marks.append((offset, part.place))
        texts.append(text)
        offset += len(text) + len(BREAK)
    return BREAK.join(texts), tuple(marks)
