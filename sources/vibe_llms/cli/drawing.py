"""Markdown as lines of a terminal, every character of it made harmless.

Built on rich, with what a conversation wants otherwise: code can be copied as it stands, no line
break and no `<tag>` is swallowed, and an address stands beside its link instead of behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import dropwhile
from typing import TYPE_CHECKING, NamedTuple, TextIO

from vibe_llms.cli.terminal import visible

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.segment import Segment

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


class Row(NamedTuple):
    """A drawn line: the text with its styles, and the number of cells that it takes."""

    text: str
    cells: int


class Drawing:
    """Draws Markdown for one stream, in its width and with the colours that it knows."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import COLOR_SYSTEMS, Console
        from rich.theme import Theme

        self._console: Console = Console(file=stream, highlight=False, theme=Theme(_STYLES))
        self._colours = COLOR_SYSTEMS.get(self._console.color_system or "")

    @property
    def height(self) -> int:
        """The lines of the screen, as it is now."""
        return self._console.height

    def render(self, text: str) -> list[Row]:
        """The lines of Markdown, with their styles; a long line of code is left to the terminal."""
        from rich.segment import Segment

        segments = self._console.render(_produce_markdown(text))
        rows = [self._encode(line) for line in Segment.split_lines(segments)]
        while rows and not rows[-1].text:
            rows.pop()
        return list(dropwhile(lambda row: not row.text, rows))

    def measure(self, rows: Iterable[Row]) -> int:
        """How many lines of the screen the rows take, as wide as it is now."""
        width = self._console.width
        return sum(max(1, -(-row.cells // width)) for row in rows)

    def _encode(self, line: Sequence[Segment]) -> Row:
        from rich.cells import cell_len

        parts: list[str] = []
        cells = 0
        for index, (text, style, control) in enumerate(line):
            shown = visible(text.rstrip() if index == len(line) - 1 else text)
            if shown and not control:
                cells += cell_len(shown)
                parts.append(style.render(shown, color_system=self._colours) if style else shown)
        return Row("".join(parts), cells)


def _produce_markdown(text: str) -> Markdown:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown = _load_dialect()("", hyperlinks=False)
    markdown.parsed = _adapt(parser.parse(text))
    return markdown


def _adapt(tokens: Sequence[Token]) -> list[Token]:
    """Tokens with what would be lost otherwise: line breaks, and the addresses of pictures."""
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
    # Code of which nothing has come yet is no block.
    return [token for token in tokens if token.type != "fence" or token.content.strip()]


def _without_repetitions(tokens: Sequence[Token]) -> Iterable[Token]:
    """Tokens without the links whose text is their address already."""
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
                # The terminal wraps what is too long, and gives it back whole when it is copied.
                text.no_wrap, text.overflow = True, "ignore"
            else:
                text.overflow = "fold"
            yield text

    class PlainHeading(Heading):
        """A heading at the left."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield self.text

    class Line(HorizontalRule):
        """A line across."""

        new_line = True

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Rule(style="markdown.hr", characters="─")

    class PlainTable(TableElement):
        """A table with a line under its header and no empty lines around it."""

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
        """Markdown as it is drawn here."""

        elements: dict[str, type[MarkdownElement]] = {  # type: ignore[misc]  # noqa: RUF012
            **Markdown.elements,
            "fence": Code,
            "code_block": Code,
            "heading_open": PlainHeading,
            "hr": Line,
            "table_open": PlainTable,
        }

    return Dialect
