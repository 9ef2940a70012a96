"""Markdown on a terminal, drawn while it streams.

Finished blocks are drawn once; the open block is drawn again with each piece of text. A drawing
never reaches above the screen: of a long open block, the lines that can no longer change are
finished, and of a table, whose columns may still change, only the end is shown until it is
complete. Lines in the scrollback are never drawn twice.

`rich` draws it, with changes for conversations: code has no frame, so it can be copied; line breaks
and `<tags>` are kept; the address of a link is shown.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, NamedTuple, TextIO

from vibe_llms.cli.terminal import can_redraw, write
from vibe_llms.messages.hidden import visible

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.segment import Segment

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_LIST = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_PAUSE_SECONDS = 0.08
#: Maximum share of the time spent drawing.
_SHARE = 0.2
_STYLES = {
    "markdown.code": "cyan",
    "markdown.code_block": "cyan",
    "markdown.block_quote": "italic",
    "markdown.h1": "bold underline",
    "markdown.h2": "bold underline",
    "markdown.h3": "bold",
    "markdown.h4": "bold italic",
    "markdown.link": "none",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
}


class MarkdownStream:
    """Markdown that is drawn on a terminal as it arrives."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redraws = can_redraw(stream)
        self._open = ""
        self._committed: list[DrawnRow] = []
        self._window: list[DrawnRow] = []
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._failure: OSError | None = None

    def feed(self, text: str) -> None:
        """Add text."""
        if self._failure is not None:
            raise self._failure
        self._open += text
        if not self._redraws:
            if "\n" in text:
                self._draw()
        elif self._timer is None:
            wait = self._next - time.monotonic()
            if wait > 0:
                self._timer = asyncio.get_running_loop().call_later(wait, self._draw_later)
            else:
                self._draw()

    def hide(self) -> None:
        """Remove the open block for other output; the next text draws it again."""
        if self._window:
            self._paint([])

    def close(self) -> None:
        """End the text."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._open.strip():
            self._draw_finished(self._open)
        self._open = ""

    def _draw_later(self) -> None:
        self._timer = None
        try:
            self._draw()
        except OSError as error:
            # A timer cannot raise it to the caller; the next `feed` does.
            self._failure = error

    def _draw(self) -> None:
        began = time.monotonic()
        done, rest = split_blocks(self._open)
        if done.strip():
            self._draw_finished(done)
        self._open = rest
        if self._redraws and rest.strip():
            self._show(rest)
        now = time.monotonic()
        self._next = now + max(_PAUSE_SECONDS, (now - began) / _SHARE)

    def _draw_finished(self, text: str) -> None:
        """Draw finished blocks."""
        rows = self._render(text)
        self._paint(rows[self._count_finished(rows) :])
        self._window, self._committed = [], []
        self._begun = True

    def _show(self, text: str) -> None:
        """Draw the open block, so that it can be drawn again."""
        rows = self._render(text)
        fresh = rows[self._count_finished(rows) :]
        first = self._find_first(fresh)
        if _has_table(text):
            self._paint(fresh[first:])
            return
        self._paint(fresh)
        self._committed += fresh[:first]
        self._window = fresh[first:]

    def _count_finished(self, rows: Sequence[DrawnRow]) -> int:
        """Return the number of leading rows that are finished.

        If finished rows have changed after all, it is 0 and the block is drawn again, because a
        repetition is better than a gap.
        """
        if rows[: len(self._committed)] != self._committed:
            self._committed = []
        return len(self._committed)

    def _find_first(self, rows: Sequence[DrawnRow]) -> int:
        """Return the index of the first row of those that fit on the screen at the end."""
        room = self._drawing.height - 1
        first = len(rows)
        while first > 0 and (room := room - self._drawing.measure(rows[first - 1 : first])) >= 0:
            first -= 1
        return first

    def _paint(self, rows: Sequence[DrawnRow]) -> None:
        """Replace the window by rows; equal rows at its top are not drawn again."""
        pairs = zip(self._window, rows, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        up = self._drawing.measure(self._window[same:])
        self._window = list(rows)
        erase = f"\r\x1b[{up}A\x1b[J" if up else ""
        if text := erase + "".join(f"{row.text}\n" for row in rows[same:]):
            write(self._stream, text)

    def _render(self, text: str) -> list[DrawnRow]:
        rows = self._drawing.render(visible(text))
        return [DrawnRow("", 0), *rows] if self._begun and rows else rows

    @cached_property
    def _drawing(self) -> Drawing:
        # Imports rich, so only when there is something to draw.
        return Drawing(self._stream)


def _has_table(text: str) -> bool:
    """Return True if a line looks like the separator below the header of a table."""
    return any(
        "|" in line and "-" in line and not line.strip(" \t|:-") for line in text.split("\n")
    )


def split_blocks(text: str) -> tuple[str, str]:
    r"""Split text into the blocks that later text can no longer change, and the open rest.

    A block ends at an empty line outside a fence, unless the next line continues a list or is
    indented: then it may continue code.

    >>> split_blocks("One.\n\nTwo")
    ('One.\n\n', 'Two')
    >>> split_blocks("- a\n\n- b")
    ('', '- a\n\n- b')
    """
    lines = text.split("\n")
    fence = ""
    in_list = False
    done = 0
    position = 0
    for index, line in enumerate(lines):
        if found := _FENCE.match(line):
            if not fence:
                fence = found[1]
            elif found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif not fence:
            if _LIST.match(line):
                in_list = True
            elif line.strip() and not line.startswith((" ", "\t")) and not lines[index - 1].strip():
                in_list = False
        position += len(line) + 1
        if line.strip() or fence or index + 1 >= len(lines):
            continue
        following = lines[index + 1]
        if not following or following[0] in " \t" or (in_list and _LIST.match(following)):
            continue
        if in_list and len(following) < 3 and index + 2 >= len(lines):
            continue
        done = position
        in_list = False
    return text[:done], text[done:]


class DrawnRow(NamedTuple):
    """A drawn line: its text with styles, and its width in cells."""

    text: str
    cells: int


class Drawing:
    """A renderer of Markdown in the width and the colors of a stream."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import COLOR_SYSTEMS, Console
        from rich.theme import Theme

        self._console: Console = Console(file=stream, highlight=False, theme=Theme(_STYLES))
        self._colours = COLOR_SYSTEMS.get(self._console.color_system or "")

    @property
    def height(self) -> int:
        """Current number of lines of the screen."""
        return self._console.height

    def render(self, text: str) -> list[DrawnRow]:
        """Draw Markdown as lines with styles; the terminal wraps long lines of code."""
        from rich.segment import Segment

        segments = self._console.render(_produce_markdown(text))
        rows = [self._encode(line) for line in Segment.split_lines(segments)]
        while rows and not rows[-1].text:
            rows.pop()
        if _FENCE.match(text.lstrip("\n")):
            # Its first rows belong to the code even if they are empty.
            return rows
        return list(dropwhile(lambda row: not row.text, rows))

    def measure(self, rows: Iterable[DrawnRow]) -> int:
        """Return the number of screen lines that the rows take at the current width."""
        width = self._console.width
        return sum(max(1, -(-row.cells // width)) for row in rows)

    def _encode(self, line: Sequence[Segment]) -> DrawnRow:
        from rich.cells import cell_len

        parts: list[str] = []
        cells = 0
        for index, (text, style, control) in enumerate(line):
            shown = visible(text.rstrip() if index == len(line) - 1 else text)
            if shown and not control:
                cells += cell_len(shown)
                parts.append(style.render(shown, color_system=self._colours) if style else shown)
        return DrawnRow("".join(parts), cells)


def _produce_markdown(text: str) -> Markdown:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown = _load_dialect()("", hyperlinks=False)
    markdown.parsed = _adapt(parser.parse(text))
    return markdown


def _adapt(tokens: Sequence[Token]) -> list[Token]:
    """Change tokens to keep line breaks and the addresses of images, which rich would drop."""
    for token in tokens:
        children = token.children or []
        for child in children:
            if child.type == "softbreak":
                child.type = "hardbreak"
            elif child.type == "image":
                child.type, child.tag = "text", ""
                child.content = f"![{child.content}]({child.attrs.get('src', '')})"
                child.children = None
        token.children = list(_without_repetitions(children)) if children else token.children
    # Skip an empty code block: its text has not arrived yet.
    return [token for token in tokens if token.type != "fence" or token.content.strip()]


def _without_repetitions(tokens: Sequence[Token]) -> Iterable[Token]:
    """Return the tokens without links whose text is their address."""
    dropped: set[int] = set()
    for index, token in enumerate(tokens[:-2]):
        if token.type == "link_open" and tokens[index + 2].type == "link_close":
            address = str(token.attrs.get("href", ""))
            if address.removeprefix("mailto:") == tokens[index + 1].content:
                dropped |= {index, index + 2}
    return (token for index, token in enumerate(tokens) if index not in dropped)


@cache
def _load_dialect() -> type[Markdown]:
    from rich import box
    from rich.console import ConsoleOptions, RenderResult
    from rich.markdown import (
        CodeBlock,
        Heading,
        HorizontalRule,
        Markdown,
        MarkdownElement,
        TableElement,
    )
    from rich.rule import Rule
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    class Code(CodeBlock):
        """Code without a frame, so that it can be copied."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = str(self.text).rstrip()
            syntax = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default")
            if syntax.lexer is None or self.lexer_name == "text":
                text = Text(code, style="markdown.code_block")
            else:
                text = syntax.highlight(code)
                text.rstrip()
            if options.max_width == console.width:
                # The terminal wraps long lines, and copies them whole.
                text.no_wrap, text.overflow = True, "ignore"
            else:
                text.overflow = "fold"
            yield text

    class PlainHeading(Heading):
        """A heading, left-aligned."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield self.text

    class Line(HorizontalRule):
        """A horizontal line."""

        new_line = True

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Rule(style="markdown.hr", characters="─")

    class PlainTable(TableElement):
        """A table with a line below its header and no empty lines around it."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            table = Table(
                box=box.SIMPLE_HEAD,
                pad_edge=False,
                show_edge=False,
                style="markdown.table.border",
                header_style="markdown.table.header",
            )
            for cell in self.header.row.cells if self.header and self.header.row else ():
                table.add_column(
                    cell.content, justify=cell.content.justify or "default", overflow="fold"
                )
            for row in self.body.rows if self.body else ():
                table.add_row(*(cell.content for cell in row.cells))
            yield table

    class Dialect(Markdown):
        """Markdown with the elements above."""

        elements: dict[str, type[MarkdownElement]] = {  # type: ignore[misc]  # noqa: RUF012
            **Markdown.elements,
            "fence": Code,
            "code_block": Code,
            "heading_open": PlainHeading,
            "hr": Line,
            "table_open": PlainTable,
        }

    return Dialect
