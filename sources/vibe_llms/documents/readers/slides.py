"""Reader of PPTX files: the text of slides, their tables, charts, notes, and comments."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents.readers.archives import (
    Relation,
    local_name,
    opened_zip,
    read_identity,
    read_relations,
    read_xml,
)
from vibe_llms.documents.readers.drawings import (
    describe_comment,
    read_graphic,
    read_paragraphs,
)
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import Cell, draw_table, fill_spans, read_span

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_START = "ppt/presentation.xml"
_TITLES = frozenset({"title", "ctrTitle"})
_TRUE = frozenset({"1", "true"})


def read_slides(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield a part for each slide, with its title as the heading."""
    with opened_zip(source.file) as archive:
        targets = read_relations(archive, _START)
        slides = [
            relation.path
            for element in read_xml(archive, _START).iter(f"{_SLIDES}sldId")
            if (relation := targets.get(read_identity(element))) is not None
        ]
        yield ReaderNotice(pages=len(slides))
        authors = _read_authors(archive, targets)
        hidden: list[str] = []
        for page, name in enumerate(slides, 1):
            relations = read_relations(archive, name)
            slide = read_xml(archive, name)
            title, blocks = _Slide(archive, relations).read(slide)
            heading = f"## {title}" if title else ""
            if slide.get("show") in ("0", "false"):
                hidden.append(str(page))
                heading = f"{heading} (hidden slide)".strip()
            for relation in relations.values():
                if "/notesSlides/" in relation.path:
                    _, notes = _Slide(archive, {}).read(
                        read_xml(archive, relation.path), notes=True
                    )
                    if notes:
                        blocks.append("Notes: " + "\n".join(notes))
                elif "comment" in relation.path.rpartition("/")[2].lower():
                    root = read_xml(archive, relation.path)
                    blocks += filter(None, ["\n".join(_read_comments(root, authors))])
            yield Part("\n\n".join(filter(None, [heading, *blocks])), Place(page, "", title))
        if hidden:
            yield ReaderNotice(problem=f"hidden slides, which are read too: {', '.join(hidden)}")


class _Slide:
    """Reader of a slide's shapes. The relations lead to its charts and diagrams."""

    def __init__(self, archive: zipfile.ZipFile, relations: Mapping[str, Relation]) -> None:
        self._archive = archive
        self._relations = relations

    def read(self, slide: Element, *, notes: bool = False) -> tuple[str, list[str]]:
        """Return the title, and the other paragraphs and tables in the order of the file.

        In `notes`, the number of the slide is omitted.
        """
        title = ""
        blocks: list[str] = []
        stack = [slide]
        while stack:
            element = stack.pop()
            match local_name(element.tag):
                case "AlternateContent":
                    stack += _choose(element)
                case "tbl":
                    blocks += filter(None, [_draw_table(element)])
                case "chart" | "relIds":
                    graphic = read_graphic(self._archive, element, self._relations)
                    blocks += filter(None, [graphic])
                case "sp":
                    kind = _find_kind(element)
                    lines = list(read_paragraphs(element))
                    if kind in _TITLES and not title:
                        title = " ".join(lines)
                    elif lines and not (notes and kind == "sldNum"):
                        blocks.append("\n".join(lines))
                case _:
                    stack.extend(reversed(element))
        return title, blocks


def _choose(alternatives: Element) -> list[Element]:
    """Return the first of several alternatives that has text or a graphic."""
    for choice in alternatives:
        for element in choice.iter():
            tag = local_name(element.tag)
            if tag in ("chart", "relIds") or (tag == "t" and element.text):
                return [choice]
    return []


def _find_kind(shape: Element) -> str:
    mark = next(shape.iter(f"{_SLIDES}ph"), None)
    return "" if mark is None else mark.get("type", "")


def _draw_table(table: Element) -> str:
    return draw_table(
        fill_spans(
            [
                Cell(
                    " ".join(read_paragraphs(cell)),
                    read_span(cell.get("gridSpan")),
                    read_span(cell.get("rowSpan")),
                )
                for cell in row.iter(f"{_DRAWING}tc")
                if not {cell.get("hMerge"), cell.get("vMerge")} & _TRUE
            ]
            for row in table.iter(f"{_DRAWING}tr")
        )
    )


def _read_authors(archive: zipfile.ZipFile, relations: Mapping[str, Relation]) -> dict[str, str]:
    """Return the names of comment authors, by the identity that comments use."""
    return {
        element.get("id", ""): element.get("name", "")
        for relation in relations.values()
        if relation.path.lower().endswith("authors.xml")
        for element in read_xml(archive, relation.path).iter()
        if local_name(element.tag) in ("author", "cmAuthor")
    }


def _read_comments(root: Element, authors: Mapping[str, str]) -> Iterator[str]:
    """Yield the comments, each followed by its replies."""
    for element in root.iter():
        if local_name(element.tag) not in ("cm", "reply"):
            continue
        texts: list[str] = []
        for child in element:
            if local_name(child.tag) == "text":
                texts.append(child.text or "")
            elif local_name(child.tag) == "txBody":
                texts += read_paragraphs(child)
        author = authors.get(element.get("authorId", ""), "")
        time = element.get("dt", element.get("created", ""))
        yield describe_comment(" ".join(texts), author, time)


register("slides", read_slides)
