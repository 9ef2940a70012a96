"""Sections of Markdown, each with the headings above it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vibe_llms.conversations.document_texts import Part, Place

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
#: Marks of emphasis, code, and links, which are removed from headings.
_MARKS = re.compile(r"[*`]+|!?\[([^\]]{0,200})\](?:\([^)]{0,400}\))?")
_LONGEST_HEADING = 200
SEPARATOR = " > "


class Headings:
    """Headings above the current place of a document."""

    def __init__(self) -> None:
        self._above: list[tuple[int, str]] = []

    def enter(self, level: int, text: str) -> str:
        """Begin a section, and return the headings above its text."""
        while self._above and self._above[-1][0] >= level:
            self._above.pop()
        text = " ".join(text[: 2 * _LONGEST_HEADING].split())
        if title := _MARKS.sub(r"\1", text)[:_LONGEST_HEADING].strip():
            self._above.append((level, title))
        return SEPARATOR.join(title for _, title in self._above)


def split_headings(markdown: str, place: Place = Place()) -> Iterator[Part]:
    """Yield the sections of a Markdown text with their headings. Text before them keeps `place`."""
    headings = Headings()
    heading = place.heading
    lines: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        if marks := _FENCE.match(line):
            if not fence:
                fence = marks[1]
            elif marks[1].startswith(fence) and not line.strip(" \t`~"):
                fence = ""
        elif not fence and line.lstrip(" ").startswith("#") and (found := _HEADING.match(line)):
            yield from _produce(lines, place, heading)
            lines = []
            heading = headings.enter(len(found[1]), line[found.end() :].rstrip(" \t#"))
        lines.append(line)
    yield from _produce(lines, place, heading)


def _produce(lines: Iterable[str], place: Place, heading: str) -> Iterator[Part]:
    text = "\n".join(lines).strip("\n")
    if text.strip():
        yield Part(text, Place(place.page, place.sheet, heading))
