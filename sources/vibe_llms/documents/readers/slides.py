"""The reader of PPTX files: the text of slides, their tables and notes."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vibe_llms.documents.readers.archives import local_name, opened_zip, read_xml
from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.readers.markup import draw_table
from vibe_llms.documents.texts import Part, Place

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_START = "ppt/presentation.xml"
_TITLES = frozenset({"title", "ctrTitle"})


def read_slides(source: Source) -> Iterator[Part | Remark]:
    """A part for each slide, with its title as the heading."""
    with opened_zip(source.file) as archive:
        targets = _read_relations(archive, _START)
        numbers = read_xml(archive, _START).iter(f"{_SLIDES}sldId")
        slides = [
            targets[number]
            for element in numbers
            if (number := element.get(_RELATION, "")) in targets
        ]
        yield Remark(pages=len(slides))
        for page, name in enumerate(slides, 1):
            title, blocks = _read_slide(read_xml(archive, name))
            for other in _read_relations(archive, name).values():
                if "/notesSlides/" in other:
                    _, notes = _read_slide(read_xml(archive, other), numbers=False)
                    if notes:
                        blocks.append("Notes: " + "\n".join(notes))
            if title:
                blocks.insert(0, f"## {title}")
            yield Part("\n\n".join(blocks), Place(page, "", title))


def _read_relations(archive: zipfile.ZipFile, name: str) -> dict[str, str]:
    """The files that a file refers to, by the identities that it uses."""
    folder, file = posixpath.split(name)
    place = f"{folder}/_rels/{file}.rels"
    if place not in archive.namelist():
        return {}
    found = {}
    for element in read_xml(archive, place):
        target = element.get("Target", "")
        path = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
        if element.get("TargetMode") != "External" and path in archive.namelist():
            found[element.get("Id", "")] = path
    return found


def _read_slide(slide: Element, *, numbers: bool = True) -> tuple[str, list[str]]:
    """The title of a slide and its other paragraphs and tables, in the order of the file."""
    title = ""
    blocks: list[str] = []
    stack = [slide]
    while stack:
        element = stack.pop()
        tag = local_name(element.tag)
        if tag == "tbl":
            blocks += filter(None, [_draw_table(element)])
        elif tag == "sp":
            kind = _find_kind(element)
            lines = list(_read_paragraphs(element))
            if kind in _TITLES and not title:
                title = " ".join(lines)
            elif lines and (numbers or kind != "sldNum"):
                blocks.append("\n".join(lines))
        else:
            stack.extend(reversed(element))
    return title, blocks


def _find_kind(shape: Element) -> str:
    mark = next(shape.iter(f"{_SLIDES}ph"), None)
    return "" if mark is None else mark.get("type", "")


def _read_paragraphs(shape: Element) -> Iterator[str]:
    for paragraph in shape.iter(f"{_DRAWING}p"):
        text = "".join(
            (element.text or "") if element.tag == f"{_DRAWING}t" else " "
            for element in paragraph.iter()
            if element.tag in (f"{_DRAWING}t", f"{_DRAWING}br")
        )
        if line := " ".join(text.split()):
            properties = paragraph.find(f"{_DRAWING}pPr")
            level = "0" if properties is None else properties.get("lvl", "0")
            yield f"{'  ' * int(level)}- {line}" if level in "12345678" else line


def _draw_table(table: Element) -> str:
    return draw_table(
        [" ".join(_read_paragraphs(cell)) for cell in row.iter(f"{_DRAWING}tc")]
        for row in table.iter(f"{_DRAWING}tr")
    )


register("slides", read_slides)
