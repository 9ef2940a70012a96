"""The reader of ODT and ODP files: headings, lists, tables and slides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vibe_llms.documents.readers.archives import local_name, opened_zip, read_xml
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.readers.markup import draw_table, join_blocks
from vibe_llms.documents.texts import Part, Place

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
#: What is not text of the document: former versions of it, and descriptions of its format.
_SKIPPED = frozenset({"tracked-changes", "automatic-styles", "font-face-decls", "forms", "title"})
_LONGEST_SPACE = 1000
_MOST_REPEATED = 100
_DEEPEST = 10


def read_opendocument(source: Source) -> Iterator[Part | Remark]:
    """The text as Markdown; of a presentation, a part for each slide."""
    with opened_zip(source.file) as archive:
        if "meta.xml" in archive.namelist():
            title = next(read_xml(archive, "meta.xml").iter(_TITLE), None)
            yield Remark(title=" ".join(((title.text if title is not None else "") or "").split()))
        content = read_xml(archive, "content.xml")
    slides = [element for element in content.iter() if local_name(element.tag) == "page"]
    if not slides:
        yield from split_headings(_draw(content))
        return
    yield Remark(pages=len(slides))
    for page, slide in enumerate(slides, 1):
        yield Part(_draw(slide), Place(page))


def _draw(root: Element) -> str:
    """The blocks below an element as Markdown."""
    blocks: list[str] = []
    # Each element with the number of lists around it.
    stack = [(root, 0)]
    while stack:
        element, depth = stack.pop()
        tag = local_name(element.tag)
        if tag in _SKIPPED:
            continue
        if tag == "h":
            level = element.get(f"{_TEXT}outline-level", "1")
            marks = "#" * (min(int(level), 6) if level.isdecimal() else 1)
            if text := _read(element):
                blocks.append(f"{marks} {' '.join(text.split())}")
        elif tag == "p":
            mark = f"{'  ' * min(depth - 1, _DEEPEST)}- " if depth else ""
            if text := _read(element):
                blocks.append(f"{mark}{text}")
            # A frame in a paragraph holds paragraphs of its own.
            stack += [(frame, 0) for frame in reversed(list(_survey_frames(element)))]
        elif tag == "table":
            blocks += filter(None, [draw_table(_survey_rows(element))])
        else:
            stack += [(child, depth + (tag == "list")) for child in reversed(element)]
    return join_blocks(blocks)


def _survey_frames(paragraph: Element) -> Iterator[Element]:
    """The frames of a paragraph, without those in other frames."""
    stack = [paragraph]
    while stack:
        element = stack.pop()
        if local_name(element.tag) == "text-box":
            yield element
        else:
            stack.extend(reversed(element))


def _read(element: Element) -> str:
    """The text of a paragraph without what its frames hold."""
    words: list[str] = []
    stack: list[Element | str] = [element]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            words.append(item)
            continue
        tag = local_name(item.tag)
        if tag in ("text-box", "title", "desc"):
            continue
        if tag == "s":
            count = item.get(f"{_TEXT}c", "1")
            words.append(" " * (min(int(count), _LONGEST_SPACE) if count.isdecimal() else 1))
        elif tag in ("tab", "line-break"):
            words.append("\t" if tag == "tab" else "\n")
        for child in reversed(item):
            stack += [child.tail or "", child]
        stack.append(item.text or "")
    return "".join(words).strip()


def _survey_rows(table: Element) -> Iterator[list[str]]:
    for row in table.iter(f"{_TABLE}table-row"):
        cells: list[str] = []
        for cell in row:
            if local_name(cell.tag) in ("table-cell", "covered-table-cell"):
                text = " ".join(_read(one) for one in cell.iter(f"{_TEXT}p"))
                repeated = cell.get(f"{_TABLE}number-columns-repeated", "1")
                times = min(int(repeated), _MOST_REPEATED) if repeated.isdecimal() else 1
                cells += [text] * times
        yield cells


register("opendocument", read_opendocument)
