"""Excerpts of a document for a model: pages, an outline, the beginning, and passages."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.conversations.document_texts import DocumentText, Place

#: Length in characters of a page that a model reads.
PAGE = 10_000
#: Maximum characters and outline lines in the beginning of a document that is too long.
_BEGINNING = 6000
_OUTLINE = 60


def count_pages(document: DocumentText) -> int:
    """Return the number of pages of `PAGE` characters, at least 1."""
    return max(1, -(-len(document.text) // PAGE))


def write_page(name: str, document: DocumentText, page: int) -> str:
    """Return a page with its place in the document, or raise a `ValueError`."""
    pages = count_pages(document)
    if not 1 <= page <= pages:
        raise ValueError(f"{name} has no page {page}; it has {pages}")
    start, end = (page - 1) * PAGE, min(page * PAGE, len(document.text))
    places = describe_range(document, start, end)
    head = f"{name} ({places})" if places else name
    return f"{head}\n\n{document.text[start:end]}\n\n**Page #{page}. Total pages: {pages}**"


def describe_range(document: DocumentText, start: int, end: int) -> str:
    """Return the places of a range of the text, such as "pages 3-5"; empty if unknown."""
    return describe_places(document.place_at(start), document.place_at(max(start, end - 1)))


def describe_places(first: Place, last: Place) -> str:
    """Return the places from one to another, such as "pages 3-5"; empty if unknown."""
    if first.page and last.page > first.page:
        return f"pages {first.page}-{last.page}"
    if first.page or first == last:
        return str(first)
    return str(Place(sheet=first.sheet, heading=first.heading))


def write_outline(document: DocumentText) -> Sequence[str]:
    """Return the headings or sheets of a document as lines, each with its page."""
    lines: dict[str, str] = {}
    for _, place in document.marks:
        if name := place.heading or place.sheet:
            *above, label = place.heading.split(" > ") if place.heading else (name,)
            page = f" (page {place.page})" if place.page else ""
            lines.setdefault(name, f"{'  ' * len(above)}- {label}{page}")
    shown = [*lines.values()]
    if len(shown) > _OUTLINE:
        return [*shown[:_OUTLINE], f"… and {len(shown) - _OUTLINE} more"]
    return shown


def write_beginning(name: str, document: DocumentText, room: int, search: str) -> str:
    """Return the outline and start of a document in at most about `room` characters.

    `search` tells how to find the rest, or is empty. Without room, the result is one line.
    """
    pages = f"{document.pages} pages, " if document.pages > 1 else ""
    size = f"{pages}{len(document.text):,} characters"
    if room <= 0:
        return f"{name} ({size}) is not included: no room is left."
    lines = [f"{name} is too long to include in full ({size})."]
    lines[0] += f" Its outline and beginning follow.{search and ' '}{search}"
    outline = write_outline(document)
    if outline and sum(map(len, outline)) < room // 2:
        lines += ["", "Outline:", *outline]
    left = min(_BEGINNING, room - sum(map(len, lines)))
    if left > 0:
        lines += ["", "Beginning:", "", document.text[:left].rpartition(" ")[0] + " …"]
    return "\n".join(lines)


def describe_size(document: DocumentText) -> str:
    """Return the size of a document, such as "PDF, 12 pages, 30,120 characters"."""
    pages = f"{document.pages} pages" if document.pages > 1 else ""
    return ", ".join(filter(None, (document.format, pages, f"{len(document.text):,} characters")))
