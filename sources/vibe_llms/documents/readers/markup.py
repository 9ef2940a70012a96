"""Conversion of HTML to Markdown: headings, lists, tables, code, links, and paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vibe_llms.documents.readers.packages import import_package

_SKIPPED = frozenset(
    {"script", "style", "template", "noscript", "head", "svg", "iframe", "object", "_comment"}
)
#: Elements that begin and end a paragraph. All others continue it.
_BLOCKS = frozenset(
    {
        *(
            "address",
            "article",
            "aside",
            "blockquote",
            "body",
            "caption",
            "center",
            "dd",
            "details",
        ),
        *("dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "html", "legend", "li"),
        *("main", "menu", "nav", "ol", "option", "p", "pre", "section", "select", "summary"),
        # A table that contains tables is a layout.
        *("table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul"),
    }
)
#: Marks of struck, deleted, or inserted text, by element.
_MARKED = {
    "s": ("~~", "~~"),
    "strike": ("~~", "~~"),
    "del": ("<del>", "</del>"),
    "ins": ("<ins>", "</ins>"),
}
_LISTS = frozenset({"ul", "ol", "menu"})
_SPACES = re.compile(r"[ \t\n\r\f]+")
#: Text at the beginning of a line that Markdown would read as a heading or a fence.
_MARK = re.compile(r"(#{1,6}[ \t]|`{3,}|~{3,})")
_ITEM = re.compile(r" *(?:-|\d+\.) ")
_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s()<>]{1,500}", re.IGNORECASE)
#: Maximum number of cells of a table whose rows are padded to the same length.
_MOST_CELLS = 1_000_000
#: Limits for a hostile table, whose cells may span a million columns.
_MOST_COLUMNS = 1000
_MOST_SPAN = 100


def parse_html(text: str) -> Any:
    """Return the tree of an HTML text."""
    return import_package("selectolax.lexbor", "selectolax", "reading HTML").LexborHTMLParser(text)


def draw_markdown(root: Any) -> str:
    """Return the text below an element as Markdown."""
    writer = _Writer()
    # An explicit stack, because a hostile page may be nested deeper than Python allows.
    stack = [(root, iter(root.iter(include_text=True)))]
    while stack:
        node, children = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            if stack:
                writer.leave(node)
        elif child.tag == "-text":
            writer.write(child.text_content or "")
        elif child.tag not in _SKIPPED and writer.enter(child):
            stack.append((child, iter(child.iter(include_text=True))))
    return writer.close()


def join_blocks(blocks: Sequence[str]) -> str:
    """Join paragraphs by empty lines, and items of a list by line feeds."""
    joined: list[str] = []
    before = False
    for block in blocks:
        item = _ITEM.match(block) is not None
        joined += ["" if not joined else "\n" if item and before else "\n\n", block]
        before = item and "\n" not in block
    return "".join(joined)


def draw_table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown. Its first row is the heading."""
    drawn = [[_draw_cell(cell) for cell in row] for row in rows]
    drawn = [row for row in drawn if any(row)]
    if not drawn:
        return ""
    for row in drawn:
        while len(row) > 1 and not row[-1]:
            row.pop()
    width = max(map(len, drawn))
    if width * len(drawn) <= _MOST_CELLS:
        drawn = [row + [""] * (width - len(row)) for row in drawn]
    lines = [f"| {' | '.join(cells)} |" for cells in drawn]
    lines.insert(1, f"|{' --- |' * len(drawn[0])}")
    return "\n".join(lines)


class Cell(NamedTuple):
    """A cell of a table, and the number of columns and rows that it covers."""

    text: str
    across: int = 1
    down: int = 1


def fill_spans(rows: Iterable[Iterable[Cell]]) -> Iterator[list[str]]:
    """Yield the rows of a table, with the text of a cell repeated in all places that it covers.

    `rows` omits the covered places.
    """
    spans: dict[int, tuple[int, str]] = {}
    for row in rows:
        cells: list[str] = []
        for cell in row:
            for _ in range(cell.across):
                _repeat(cells, spans)
                if cell.down > 1:
                    spans[len(cells)] = (cell.down, cell.text)
                if len(cells) < _MOST_COLUMNS:
                    cells.append(cell.text)
        _repeat(cells, spans)
        spans = {place: (down - 1, text) for place, (down, text) in spans.items() if down > 1}
        yield cells


def read_span(value: str | None) -> int:
    """Return the number of columns or rows that a span attribute names, within limits."""
    return max(1, min(int(value), _MOST_SPAN)) if value and value.isdecimal() else 1


def _repeat(cells: list[str], spans: Mapping[int, tuple[int, str]]) -> None:
    """Add the cells of rows above that extend into this one."""
    while (span := spans.get(len(cells))) is not None and len(cells) < _MOST_COLUMNS:
        cells.append(span[1])


def _draw_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


class _Writer:
    """Markdown of elements that are entered and left in the order of the document."""

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._lists: list[int] = []
        self._marker = ""
        self._links: list[tuple[str, int]] = []
        #: Starts of the open marks in the line, by mark.
        self._marks: dict[tuple[str, str], list[int]] = {}

    def write(self, text: str) -> None:
        """Add text to the paragraph."""
        self._line.append(text)

    def enter(self, node: Any) -> bool:
        """Begin an element. Return True if its children should be visited."""
        tag = node.tag
        if tag == "br":
            self._line.append("\0")
            return False
        if tag == "img":
            self._line.append(f" {node.attributes.get('alt') or ''} ")
            return False
        if tag == "input":
            self._write_box(node)
            return False
        if tag == "a":
            self._links.append((node.attributes.get("href") or "", len(self._line)))
        elif marks := _MARKED.get(tag):
            self._marks.setdefault(marks, []).append(len(self._line))
        if tag not in _BLOCKS:
            return True
        self._end_paragraph()
        if tag == "pre":
            self._write_code(node)
            return False
        if tag == "table" and node.css_first("table table") is None:
            self._write_table(node)
            return False
        if tag in _LISTS:
            self._lists.append(1 if tag == "ol" else 0)
        elif tag == "li":
            self._begin_item()
        return True

    def leave(self, node: Any) -> None:
        """End an element."""
        tag = node.tag
        if tag == "a" and self._links:
            self._end_link(*self._links.pop())
        elif marks := _MARKED.get(tag):
            self._end_mark(marks)
        if tag not in _BLOCKS:
            return
        level = int(tag[1]) if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit() else 0
        self._end_paragraph(level)
        if tag in _LISTS and self._lists:
            self._lists.pop()
            if not self._lists:
                self._marker = ""

    def close(self) -> str:
        """Return the complete Markdown."""
        self._end_paragraph()
        return join_blocks(self._blocks)

    def _begin_item(self) -> None:
        number = self._lists[-1] if self._lists else 0
        self._marker = f"{number}. " if number else "- "
        if number:
            self._lists[-1] += 1

    def _end_link(self, address: str, start: int) -> None:
        text = "".join(self._line[start:])
        if text.strip() and _ADDRESS.fullmatch(address) and address not in text:
            self._line[start:] = [f"[{text.strip()}]({address})"]

    def _end_mark(self, marks: tuple[str, str]) -> None:
        starts = self._marks[marks]
        start = starts.pop()
        # Of nested marks of the same kind, the outermost counts.
        if not starts:
            del self._marks[marks]
            self._mark(marks, start)

    def _mark(self, marks: tuple[str, str], start: int) -> None:
        text = "".join(self._line[start:])
        if bare := text.strip():
            # Keep the surrounding spaces, which may be the only ones between words.
            before, _, after = text.partition(bare)
            self._line[start:] = [f"{before}{marks[0]}{bare}{marks[1]}{after}"]

    def _write_box(self, node: Any) -> None:
        """Write a checkbox or radio button. Values of other fields are not part of a page."""
        if node.attributes.get("type") in ("checkbox", "radio"):
            self._line.append("[x] " if "checked" in node.attributes else "[ ] ")

    def _end_paragraph(self, level: int = 0) -> None:
        for marks, (start, *_) in reversed(self._marks.items()):
            self._mark(marks, start)
        self._marks = {marks: [0] * len(starts) for marks, starts in self._marks.items()}
        text = _SPACES.sub(" ", "".join(self._line))
        text = "\n".join(line.strip() for line in text.split("\0")).strip()
        self._line.clear()
        self._links = [(address, 0) for address, _ in self._links]
        if not text:
            return
        if level:
            self._blocks.append(f"{'#' * level} {' '.join(text.split())}")
            return
        text = "\n".join(_escape(line) for line in text.split("\n"))
        self._add(text)

    def _add(self, text: str) -> None:
        marker, self._marker = self._marker, ""
        indent = "  " * max(0, len(self._lists) - 1)
        if marker:
            text = f"{indent}{marker}{text}"
        elif self._lists:
            text = f"{indent}  {text}"
        self._blocks.append(text)

    def _write_code(self, node: Any) -> None:
        code = node.text(deep=True).strip("\n")
        if code.strip():
            longest = max((len(run) for run in re.findall("`+", code)), default=0)
            fence = "`" * max(3, longest + 1)
            self._blocks.append(f"{fence}\n{code}\n{fence}")

    def _write_table(self, table: Any) -> None:
        for caption in table.css("caption"):
            self._line.append(caption.text(deep=True, separator=" "))
            self._end_paragraph()
        if drawn := draw_table(_survey_rows(table)):
            self._add(drawn)


def _escape(line: str) -> str:
    return f"\\{line}" if _MARK.match(line) else line


def _survey_rows(table: Any) -> Iterator[list[str]]:
    return fill_spans(
        [
            Cell(
                " ".join(draw_markdown(cell).split()),
                read_span(cell.attributes.get("colspan")),
                read_span(cell.attributes.get("rowspan")),
            )
            for cell in row.iter()
            if cell.tag in ("td", "th")
        ]
        for row in table.css("tr")
    )
