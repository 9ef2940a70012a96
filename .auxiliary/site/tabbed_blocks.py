"""Extension of Markdown: blocks for the same task in several ways become tabs.

Where a page has two or more of the labels in `LABELS` one after the other, each in bold on a line
of its own and followed by blocks of code only, the site shows a tab for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

LABELS = ("At the terminal", "In Python", "Over HTTP")
_LABEL = re.compile(rf"\*\*({'|'.join(LABELS)})\*\*")


class TabsPreprocessor(Preprocessor):
    """Writes labels and their blocks in the syntax of `pymdownx.tabbed`."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of a page with tabs."""
        return list(_convert(lines))


class TabbedBlocksExtension(Extension):
    """Runs before fences are read (25), after line ends are normalized (30)."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Add the preprocessor."""
        md.preprocessors.register(TabsPreprocessor(md), "tabbed_blocks", 28)


def makeExtension(**options: Any) -> TabbedBlocksExtension:  # noqa: N802
    """Return the extension; Markdown looks for this name."""
    return TabbedBlocksExtension(**options)


def _convert(lines: Sequence[str]) -> Iterator[str]:
    place, fence = 0, ""
    while place < len(lines):
        line = lines[place]
        if not fence and _LABEL.fullmatch(line):
            tabs, end = _read_tabs(lines, place)
            if len(tabs) > 1:
                for label, block in tabs:
                    yield from (
                        f'=== "{label}"',
                        "",
                        *(f"    {one}" if one else "" for one in block),
                    )
                place = end
                continue
        fence = _follow_fence(fence, line)
        yield line
        place += 1


def _read_tabs(lines: Sequence[str], place: int) -> tuple[list[tuple[str, list[str]]], int]:
    """Return labels with the lines of their blocks, and the place behind the last one."""
    tabs: list[tuple[str, list[str]]] = []
    fence = ""
    while place < len(lines):
        line = lines[place]
        found = None if fence else _LABEL.fullmatch(line)
        if found:
            tabs.append((found[1], []))
        elif fence or line == "" or line.startswith("```"):
            tabs[-1][1].append(line)
            fence = _follow_fence(fence, line)
        else:
            break
        place += 1
    return tabs, place


def _follow_fence(fence: str, line: str) -> str:
    """Return the fence that is open after a line, or nothing."""
    if fence:
        return "" if line == fence else fence
    found = re.match(r"`{3,}", line)
    return found[0] if found else ""
