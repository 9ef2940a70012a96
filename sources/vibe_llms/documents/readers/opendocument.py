"""Reader of ODT and ODP files: headings, lists, tables, charts, notes, comments, and slides."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents.readers.archives import local_name, opened_zip, read_xml
from vibe_llms.documents.readers.drawings import describe_comment
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import (
    Cell,
    draw_table,
    fill_spans,
    join_blocks,
    read_span,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_SPACES = "urn:oasis:names:tc:opendocument:xmlns:"
_TEXT = f"{{{_SPACES}text:1.0}}"
_TABLE = f"{{{_SPACES}table:1.0}}"
_DRAW = f"{{{_SPACES}drawing:1.0}}"
_SLIDES = f"{{{_SPACES}presentation:1.0}}"
_STYLE = f"{{{_SPACES}style:1.0}}"
_CHART = f"{{{_SPACES}chart:1.0}}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_IDENTITY = "{http://www.w3.org/XML/1998/namespace}id"
#: Elements that are not text of the document: its former versions, and styles.
_SKIPPED = frozenset({"tracked-changes", "automatic-styles", "font-face-decls", "forms", "title"})
#: Elements in a paragraph that are not part of its line.
_APART = frozenset({"text-box", "object", "annotation", "note"})
_CHARTS = {
    "bar": "Bar chart",
    "line": "Line chart",
    "circle": "Pie chart",
    "ring": "Doughnut chart",
    "area": "Area chart",
    "scatter": "Scatter chart",
    "radar": "Radar chart",
    "filled-radar": "Radar chart",
    "bubble": "Bubble chart",
    "stock": "Stock chart",
}
_LONGEST_SPACE = 1000
_MOST_REPEATED = 100
_DEEPEST = 10


def read_opendocument(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the text as Markdown, or a part for each slide of a presentation."""
    with opened_zip(source.file) as archive:
        if "meta.xml" in archive.namelist():
            title = next(read_xml(archive, "meta.xml").iter(f"{_DC}title"), None)
            yield ReaderNotice(
                title=" ".join(((title.text if title is not None else "") or "").split())
            )
        content = read_xml(archive, "content.xml")
        trees = [content]
        if "styles.xml" in archive.NameToInfo:
            trees.append(read_xml(archive, "styles.xml"))
        document = _Document(archive, trees)
        slides = [element for element in content.iter() if local_name(element.tag) == "page"]
        if slides:
            yield ReaderNotice(pages=len(slides))
            for page, slide in enumerate(slides, 1):
                title_of, text = document.draw_slide(slide)
                yield Part(text, Place(page, "", title_of))
        else:
            margins = [document.draw_margins(trees[1:], kind) for kind in ("header", "footer")]
            yield from split_headings(
                "\n\n".join(filter(None, [margins[0], document.draw(content), margins[1]]))
            )
        for problem in document.describe(slides):
            yield ReaderNotice(problem=problem)


class _Change(NamedTuple):
    """A tracked change: `ins` or `del`, its author, and the deleted text."""

    mark: str
    author: str
    text: str


class _Document:
    """Converter of a file's elements, with its styles and tracked changes."""

    def __init__(self, archive: zipfile.ZipFile, trees: Sequence[Element]) -> None:
        self._archive = archive
        #: Marks around the text of a style: struck or hidden.
        self._marks: dict[str, tuple[str, str]] = {}
        self._invisible: set[str] = set()
        #: Levels of list styles that have numbers.
        self._numbered: dict[str, set[int]] = {}
        for tree in reversed(trees):
            self._read_styles(tree)
        self._changes = dict(self._read_changes(trees[0]))
        authors = {change.author for change in self._changes.values()} - {""}
        self._named = len(authors) > 1
        self._hidden = False
        #: Converted charts and tables, by path.
        self._objects: dict[str, str] = {}

    def describe(self, slides: Sequence[Element]) -> Iterator[str]:
        """Yield notes about the text for readers."""
        if self._changes:
            authors = {change.author for change in self._changes.values()} - {""}
            names = ", ".join(sorted(authors)[:10])
            yield (
                f"it has tracked changes{names and ' by '}{names}: <ins> is around inserted text, "
                "<del> around deleted text"
            )
        if self._hidden:
            yield "it has hidden text: <hidden> is around it"
        hidden = [str(page) for page, one in enumerate(slides, 1) if self._is_invisible(one)]
        if hidden:
            yield f"hidden slides, which are read too: {', '.join(hidden)}"

    def draw_slide(self, slide: Element) -> tuple[str, str]:
        """Return the title of a slide, and its text followed by the notes."""
        title = ""
        rest: list[str] = []
        for shape in slide:
            text = self.draw(shape)
            if local_name(shape.tag) == "notes":
                rest += [f"Notes: {text}"] if text else []
            elif shape.get(f"{_SLIDES}class") == "title" and text and not title:
                title = " ".join(text.split())
            else:
                rest += [text] if text else []
        # Some files have the notes before the comments.
        rest.sort(key=lambda text: text.startswith("Notes: "))
        about = "(hidden slide)" if self._is_invisible(slide) else ""
        heading = f"## {title} {about}".rstrip() if title else about
        return title, "\n\n".join(filter(None, [heading, *rest]))

    def draw_margins(self, trees: Sequence[Element], kind: str) -> str:
        """Return the text of the headers or footers of all kinds of pages, each once."""
        texts: dict[str, None] = {}
        for tree in trees:
            for margin in tree.iter():
                if local_name(margin.tag) in (kind, f"{kind}-left", f"{kind}-first"):
                    text = self.draw(margin)
                    # A page number does not count as text.
                    if any(map(str.isalpha, text)):
                        texts[f"{kind.capitalize()}: {text}"] = None
        return "\n\n".join(texts)

    def draw(self, root: Element) -> str:
        """Return the blocks below an element as Markdown."""
        blocks: list[str] = []
        # Each element with the number of lists around it, their style, and its marker.
        stack: list[tuple[Element, int, str, str]] = [(root, 0, "", "")]
        while stack:
            element, depth, style, marker = stack.pop()
            tag = local_name(element.tag)
            if tag in _SKIPPED:
                continue
            if tag == "h":
                level = element.get(f"{_TEXT}outline-level", "1")
                marks = "#" * (min(int(level), 6) if level.isdecimal() else 1)
                if text := self._read(element):
                    blocks.append(f"{marks} {' '.join(text.split())}")
                stack += self._survey_apart(element)
            elif tag == "p":
                indent = "  " * min(depth - 1, _DEEPEST)
                if text := self._read(element):
                    blocks.append(f"{indent}{marker or '- ' * bool(depth)}{text}")
                stack += self._survey_apart(element)
            elif tag == "list":
                style = element.get(f"{_TEXT}style-name") or style
                stack += reversed([*self._number(element, depth + 1, style)])
            elif tag == "table":
                blocks += filter(None, [draw_table(self._survey_rows(element))])
            elif tag == "object":
                blocks += filter(None, [self._draw_object(element)])
            elif tag == "annotation":
                blocks.append(self._describe_comment(element))
            elif tag == "note":
                blocks += filter(None, [self._draw_note(element)])
            else:
                children = [(child, depth, style, marker) for child in element]
                # Only the first paragraph of an item has its marker.
                if tag in ("list-item", "list-header"):
                    children[1:] = [(one[0], depth, style, "  ") for one in children[1:]]
                stack += reversed(children)
        return join_blocks(blocks)

    def _number(
        self, element: Element, depth: int, style: str
    ) -> Iterator[tuple[Element, int, str, str]]:
        """Yield the items of a list with their markers."""
        numbered = depth in self._numbered.get(style, ())
        number = 0
        for item in element:
            marker = "- "
            if numbered and local_name(item.tag) == "list-item":
                start = item.get(f"{_TEXT}start-value", "")
                number = int(start) if start.isdecimal() and len(start) < 9 else number + 1
                marker = f"{number}. "
            yield item, depth, style, marker

    def _survey_apart(self, paragraph: Element) -> list[tuple[Element, int, str, str]]:
        """Return the frames, notes, and comments in a paragraph, last one first."""
        found: list[Element] = []
        stack = [paragraph]
        while stack:
            element = stack.pop()
            if local_name(element.tag) in _APART:
                found.append(element)
            else:
                stack.extend(reversed(element))
        return [(element, 0, "", "") for element in reversed(found)]

    def _read(self, element: Element) -> str:
        """Return the line of a paragraph, without its frames and notes."""
        words: list[str] = []
        stack: list[Element | str] = [element]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                words.append(item)
                continue
            after: list[Element | str] = []
            match local_name(item.tag):
                case "text-box" | "title" | "desc" | "annotation" | "object":
                    continue
                case "note":
                    words.append(f"[{_find_text(item, 'note-citation')}]")
                    continue
                case "s":
                    count = item.get(f"{_TEXT}c", "1")
                    size = min(int(count), _LONGEST_SPACE) if count.isdecimal() else 1
                    words.append(" " * size)
                case "tab":
                    words.append("\t")
                case "line-break":
                    words.append("\n")
                case "change" | "change-start" | "change-end" as tag:
                    words.append(self._mark(item, tag))
                case "span" | "p" | "h":
                    style = item.get(f"{_TEXT}style-name", "")
                    if (marks := self._marks.get(style)) and any(map(str.strip, item.itertext())):
                        self._hidden = self._hidden or marks[0] == "<hidden>"
                        words.append(marks[0])
                        after = [marks[1]]
                case _:
                    pass
            stack += after
            for child in reversed(item):
                stack += [child.tail or "", child]
            stack.append(item.text or "")
        return "".join(words).strip()

    def _mark(self, element: Element, tag: str) -> str:
        change = self._changes.get(element.get(f"{_TEXT}change-id", ""))
        if change is None:
            return ""
        about = f' author="{change.author}"' if self._named and change.author else ""
        if change.mark == "del":
            return f"<del{about}>{change.text}</del>" if tag == "change" and change.text else ""
        return "</ins>" if tag == "change-end" else f"<ins{about}>" if tag != "change" else ""

    def _survey_rows(self, table: Element) -> Iterator[list[str]]:
        return fill_spans([*self._survey_cells(row)] for row in _survey_rows(table))

    def _survey_cells(self, row: Element) -> Iterator[Cell]:
        for cell in row:
            if local_name(cell.tag) == "table-cell":
                texts = [self._read(one) for one in cell.iter(f"{_TEXT}p")]
                text = " ".join(filter(None, texts))
                repeated = cell.get(f"{_TABLE}number-columns-repeated", "1")
                times = min(int(repeated), _MOST_REPEATED) if repeated.isdecimal() else 1
                across = read_span(cell.get(f"{_TABLE}number-columns-spanned"))
                down = read_span(cell.get(f"{_TABLE}number-rows-spanned"))
                yield from [Cell(text, across, down)] * times

    def _draw_object(self, element: Element) -> str:
        """Return an embedded chart or table, or "" for other objects."""
        path = posixpath.normpath(posixpath.join(element.get(_LINK, ""), "content.xml"))
        if path in self._archive.NameToInfo and path not in self._objects:
            self._objects[path] = self._draw_chart(read_xml(self._archive, path))
        return self._objects.get(path, "")

    def _draw_chart(self, root: Element) -> str:
        tables = [draw_table(self._survey_rows(table)) for table in root.iter(f"{_TABLE}table")]
        chart = next(root.iter(f"{_CHART}chart"), None)
        if chart is not None:
            kind = chart.get(f"{_CHART}class", "").rpartition(":")[2]
            title = " ".join(_find_text(chart, "title").split())
            tables.insert(0, f"{_CHARTS.get(kind, 'Chart')}{title and ': '}{title}")
        return "\n\n".join(filter(None, tables))

    def _draw_note(self, element: Element) -> str:
        body = next((one for one in element if local_name(one.tag) == "note-body"), None)
        text = "" if body is None else self.draw(body)
        return f"[{_find_text(element, 'note-citation')}] {text}" if text else ""

    def _describe_comment(self, element: Element) -> str:
        text = " ".join(self._read(one) for one in element.iter(f"{_TEXT}p"))
        author, time = _find_text(element, "creator"), _find_text(element, "date")
        return describe_comment(text, author, time)

    def _is_invisible(self, slide: Element) -> bool:
        return slide.get(f"{_DRAW}style-name", "") in self._invisible

    def _read_styles(self, tree: Element) -> None:
        for style in tree.iter(f"{_STYLE}style"):
            name = style.get(f"{_STYLE}name", "")
            self._marks.pop(name, None)
            for properties in style:
                if properties.get(f"{_TEXT}display") == "none":
                    self._marks[name] = ("<hidden>", "</hidden>")
                elif properties.get(f"{_STYLE}text-line-through-style", "none") != "none":
                    self._marks[name] = ("~~", "~~")
                if properties.get(f"{_SLIDES}visibility") == "hidden":
                    self._invisible.add(name)
        for style in tree.iter(f"{_TEXT}list-style"):
            self._numbered[style.get(f"{_STYLE}name", "")] = {
                int(level)
                for one in style
                if local_name(one.tag) == "list-level-style-number"
                and (level := one.get(f"{_TEXT}level", "")).isdecimal()
                and len(level) < 3
                and one.get(f"{_STYLE}num-format")
            }

    def _read_changes(self, content: Element) -> Iterator[tuple[str, _Change]]:
        for region in content.iter(f"{_TEXT}changed-region"):
            identity = region.get(f"{_TEXT}id", region.get(_IDENTITY, ""))
            for change in region:
                author = _find_text(change, "creator").replace('"', "'")
                match local_name(change.tag):
                    case "insertion":
                        yield identity, _Change("ins", author, "")
                    case "deletion":
                        texts = [
                            "".join(one.itertext())
                            for one in change.iter()
                            if local_name(one.tag) in ("p", "h")
                        ]
                        yield identity, _Change("del", author, " ".join(filter(None, texts)))
                    case _:
                        pass


def _survey_rows(table: Element) -> Iterator[Element]:
    """Yield the rows of a table, without rows of nested tables."""
    stack = [table]
    while stack:
        element = stack.pop()
        if local_name(element.tag) == "table-row":
            yield element
        elif element is table or local_name(element.tag) != "table":
            stack.extend(reversed(element))


def _find_text(element: Element, name: str) -> str:
    """Return the text of the first element with a name, or ""."""
    found = next((one for one in element.iter() if local_name(one.tag) == name), None)
    return "" if found is None else "".join(found.itertext()).strip()


register("opendocument", read_opendocument)
