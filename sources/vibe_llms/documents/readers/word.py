"""Reader of DOCX files, with mammoth.

Mammoth omits formulas, charts, headers, and deleted text, and does not distinguish inserted and
hidden text from other text. So all of these become plain text first, in a copy of the file.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from vibe_llms.conversations.document_texts import Part
from vibe_llms.documents.readers.archives import (
    Relation,
    find_relations,
    local_name,
    opened_zip,
    parse_xml,
    read_identity,
    read_relations,
)
from vibe_llms.documents.readers.drawings import read_graphic
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import draw_markdown, parse_html
from vibe_llms.documents.readers.packages import import_package

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_PROPERTIES = "docProps/core.xml"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_STYLES = "comment-reference => sup"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
#: Marks of changed text, by the element around it.
_CHANGES = {"ins": "ins", "moveTo": "ins", "del": "del", "moveFrom": "del"}
#: Elements with other names in deleted text.
_DELETED = {"delText": "t", "delInstrText": "instrText"}
_FALSE = frozenset({"0", "false", "off"})
#: Parts with text of their own, by the last word of their type.
_NOTES = ("footnotes", "endnotes", "comments")
_MARGINS = {"headerReference": "Header", "footerReference": "Footer"}
_GRAPHICS = ("chart", "chartEx", "diagramData")
#: Placeholder of a graphic, with a private-use character, until the graphic is drawn.
_GRAPHIC = re.compile("\ue0f7([0-9]{1,9})\ue0f7")
_MOST_STYLES = 20


def read_word(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the text with headings, lists, tables, and comments, as Markdown."""
    package = import_package("mammoth", "mammoth", "reading DOCX files")
    with opened_zip(source.file) as archive:
        title = ""
        if _PROPERTIES in archive.namelist():
            title = parse_xml(archive.read(_PROPERTIES)).findtext(_TITLE) or ""
        plain = _PlainCopy(archive)
        file = plain.write(source.file)
    if title.strip():
        yield ReaderNotice(title=" ".join(title.split()))
    page = package.convert_to_html(
        file,
        style_map=_STYLES,
        convert_image=package.images.img_element(lambda _: {}),
        include_embedded_style_map=False,
    ).value
    root = parse_html(page).body
    if root is not None:
        text = draw_markdown(root)
        for mark in ("hidden", "ins", "del"):
            text = text.replace(f"</{mark}><{mark}>", "")
        yield from split_headings(_GRAPHIC.sub(plain.draw, text))
    for problem in plain.describe():
        yield ReaderNotice(problem=problem)


class _PlainCopy:
    """A copy of a file in which everything that mammoth omits is plain text."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._authors: set[str] = set()
        self._hidden = False
        self._graphics: list[str] = []

    def write(self, file: BinaryIO) -> BinaryIO:
        """Return the copy, or the original bytes if nothing changed."""
        from xml.etree import ElementTree as ET

        archive = self._archive
        starts = find_relations(read_relations(archive, ""), "officeDocument")
        body = starts[0] if starts else "word/document.xml"
        relations = read_relations(archive, body)
        trees = {
            path: parse_xml(archive.read(path))
            for path in (body, *find_relations(relations, *_NOTES))
        }
        for tree in trees.values():
            self._authors.update(_survey_authors(tree))
        styles = _read_styles(archive, relations)
        changed: dict[str, bytes] = {}
        for path, tree in trees.items():
            writer = _Writer(tree, styles, named=len(self._authors) > 1)
            writer.write()
            if path == body:
                self._add_graphics(writer, relations)
                self._add_margins(writer, relations, styles)
            self._hidden = self._hidden or writer.hidden
            if writer.changed:
                changed[path] = ET.tostring(tree)
        if not changed:
            # Mammoth uses the name of an open file, and this one has none.
            file.seek(0)
            return io.BytesIO(file.read())
        copy = io.BytesIO()
        with zipfile.ZipFile(copy, "w") as written:
            for name in archive.NameToInfo:
                written.writestr(name, changed.get(name) or archive.read(name))
        copy.seek(0)
        return copy

    def draw(self, found: re.Match[str]) -> str:
        """Return the text of a graphic by its number."""
        number = int(found[1])
        return self._graphics[number] if number < len(self._graphics) else ""

    def describe(self) -> Iterator[str]:
        """Yield notes about the text for readers."""
        if self._authors:
            names = ", ".join(sorted(self._authors - {""})[:10])
            yield (
                f"it has tracked changes{names and ' by '}{names}: <ins> is around inserted text, "
                "<del> around deleted text"
            )
        if self._hidden:
            yield "it has hidden text: <hidden> is around it"

    def _add_graphics(self, writer: _Writer, relations: Mapping[str, Relation]) -> None:
        if not find_relations(relations, *_GRAPHICS):
            return
        for block, graphic in writer.survey_graphics():
            if text := read_graphic(self._archive, graphic, relations):
                writer.add_after(block, f"\ue0f7{len(self._graphics)}\ue0f7")
                self._graphics.append(text)

    def _add_margins(
        self, writer: _Writer, relations: Mapping[str, Relation], styles: Mapping[str, _Style]
    ) -> None:
        """Put the headers before the text and the footers after it, each once."""
        texts: set[str] = set()
        for reference in [*writer.survey("headerReference", "footerReference")]:
            relation = relations.get(read_identity(reference))
            if relation is None:
                continue
            root = parse_xml(self._archive.read(relation.path))
            text = "".join(root.itertext())
            # A page number does not count as text.
            if text in texts or not any(map(str.isalpha, text)):
                continue
            texts.add(text)
            margin = _Writer(root, styles, named=len(self._authors) > 1)
            margin.write()
            self._hidden = self._hidden or margin.hidden
            writer.add_margin(_MARGINS[local_name(reference.tag)], margin)


class _Style(NamedTuple):
    """Flags of a style that matter for its text, including those of its base style."""

    struck: bool
    hidden: bool


class _Writer:
    """Tree of one part of a document, in which everything that mammoth omits becomes plain text."""

    def __init__(self, root: Element, styles: Mapping[str, _Style], *, named: bool) -> None:
        self._root = root
        self._styles = styles
        #: True if marks name the author of a change.
        self._named = named
        self._space = root.tag[: root.tag.rfind("}") + 1]
        self._headers = 0
        self.changed = False
        self.hidden = False

    def write(self) -> None:
        """Change the tree, inner elements before outer ones."""
        elements = [self._root]
        for element in elements:
            elements.extend(element)
            match local_name(element.tag):
                case "p":
                    self._prepare_paragraph(element)
                case "tr":
                    self._prepare_row(element)
                case _:
                    pass
        for element in reversed(elements):
            match local_name(element.tag):
                case "r":
                    self._write_run(element)
                case "oMath":
                    text = "".join(one.text or "" for one in self._survey(element, "t"))
                    element[:] = [self._make_run(text)]
                    element.tag = f"{self._space}smartTag"
                    self.changed = True
                case "oMathPara":
                    element.tag = f"{self._space}smartTag"
                case _:
                    pass
            if any(local_name(child.tag) in _CHANGES for child in element):
                self._mark_changes(element)

    def survey(self, *names: str) -> Iterator[Element]:
        """Yield the elements with these names."""
        return self._survey(self._root, *names)

    def survey_graphics(self) -> Iterator[tuple[Element, Element]]:
        """Yield the charts and diagrams, each with the block of text around it."""
        for body in self._survey(self._root, "body"):
            for block in list(body):
                for graphic in self._survey(block, "chart", "relIds"):
                    yield block, graphic

    def add_after(self, block: Element, text: str) -> None:
        """Add a paragraph after a block of the text."""
        self.changed = True
        for body in self._survey(self._root, "body"):
            paragraph = block.makeelement(f"{self._space}p", {})
            paragraph.append(self._make_run(text))
            body.insert(list(body).index(block) + 1, paragraph)

    def add_margin(self, label: str, margin: _Writer) -> None:
        """Add a header before the text, or a footer after it."""
        for element in margin.survey():
            # Its references belong to its own part.
            for name in [one for one in element.attrib if "/relationships}" in one]:
                del element.attrib[name]
        first = next(margin.survey("p"), None)
        body = next(self.survey("body"), None)
        if first is None or body is None:
            return
        self.changed = True
        has_properties = len(first) > 0 and local_name(first[0].tag) == "pPr"
        first.insert(int(has_properties), self._make_run(f"{label}: "))
        if label == _MARGINS["headerReference"]:
            body[self._headers : self._headers] = list(margin._root)
            self._headers += len(margin._root)
        else:
            end = len(body)
            while end and local_name(body[end - 1].tag) == "sectPr":
                end -= 1
            body[end:end] = list(margin._root)

    def _survey(self, element: Element, *names: str) -> Iterator[Element]:
        return (one for one in element.iter() if not names or local_name(one.tag) in names)

    def _make_run(self, text: str) -> Element:
        run = self._root.makeelement(f"{self._space}r", {})
        run.append(self._make_text(text))
        return run

    def _make_text(self, text: str) -> Element:
        made = self._root.makeelement(f"{self._space}t", {_SPACE: "preserve"})
        made.text = text
        return made

    def _find(self, element: Element, *path: str) -> Element | None:
        return element.find("/".join(f"{self._space}{name}" for name in path))

    def _prepare_paragraph(self, paragraph: Element) -> None:
        """Keep a deleted paragraph separate from the next one, and apply its style."""
        if (marks := self._find(paragraph, "pPr", "rPr")) is not None:
            deleted = marks.find(f"{self._space}del")
            if deleted is not None and not _has_kept_text(paragraph):
                marks.remove(deleted)
        style = self._find(paragraph, "pPr", "pStyle")
        if style is not None and (found := self._styles.get(style.get(f"{self._space}val", ""))):
            for run in self._survey(paragraph, "r"):
                self._apply(found, run)

    def _prepare_row(self, row: Element) -> None:
        """Mark the text of a row that was inserted or deleted, and keep the row."""
        properties = self._find(row, "trPr")
        for change in list(properties if properties is not None else ()):
            if local_name(change.tag) not in ("ins", "del") or properties is None:
                continue
            properties.remove(change)
            self.changed = True
            for paragraph in self._survey(row, "p"):
                inside = [one for one in paragraph if local_name(one.tag) != "pPr"]
                if not any(local_name(one.tag) in _CHANGES for one in inside):
                    around = change.makeelement(change.tag, dict(change.attrib))
                    around.extend(inside)
                    for one in inside:
                        paragraph.remove(one)
                    paragraph.append(around)

    def _write_run(self, run: Element) -> None:
        properties = self._find(run, "rPr")
        if properties is None:
            return
        style = self._find(run, "rPr", "rStyle")
        if style is not None and (found := self._styles.get(style.get(f"{self._space}val", ""))):
            self._apply(found, run)
        if (double := self._find(run, "rPr", "dstrike")) is not None:
            double.tag = f"{self._space}strike"
            self.changed = True
        if self._is_set(properties, "vanish") and _has_text(run):
            run.insert(list(run).index(properties) + 1, self._make_text("<hidden>"))
            run.append(self._make_text("</hidden>"))
            self.hidden = self.changed = True

    def _apply(self, style: _Style, run: Element) -> None:
        """Add the properties of a style to a run, unless the run overrides them."""
        properties = self._find(run, "rPr")
        if properties is None:
            properties = run.makeelement(f"{self._space}rPr", {})
            run.insert(0, properties)
        for name, wanted in (("strike", style.struck), ("vanish", style.hidden)):
            if wanted and properties.find(f"{self._space}{name}") is None:
                properties.append(run.makeelement(f"{self._space}{name}", {}))
                self.changed = True

    def _is_set(self, properties: Element, name: str) -> bool:
        found = properties.find(f"{self._space}{name}")
        return found is not None and found.get(f"{self._space}val", "1") not in _FALSE

    def _mark_changes(self, element: Element) -> None:
        """Mark the changes among the children of an element. Adjacent changes share a mark."""
        children: list[Element] = []
        for change, group in groupby(element, self._describe_change):
            members = list(group)
            if change is None:
                children += members
                continue
            self.changed = True
            for member in members:
                # Mammoth reads this element, but omits deleted text.
                member.tag = f"{self._space}ins"
                for one in member.iter():
                    if (name := _DELETED.get(local_name(one.tag))) is not None:
                        one.tag = f"{self._space}{name}"
            mark, author = change
            about = f' author="{author}"' if self._named and author else ""
            children += [self._make_run(f"<{mark}{about}>"), *members, self._make_run(f"</{mark}>")]
        element[:] = children

    def _describe_change(self, element: Element) -> tuple[str, str] | None:
        """Return the kind and author of a change to an element's text, or `None` if unchanged."""
        mark = _CHANGES.get(local_name(element.tag))
        if mark is None or not _has_text(element):
            return None
        return mark, element.get(f"{self._space}author", "").replace('"', "'")


def _has_text(element: Element) -> bool:
    return any(one.text for one in element.iter() if local_name(one.tag) in ("t", "delText"))


def _has_kept_text(paragraph: Element) -> bool:
    """Return True if a paragraph has text that was neither deleted nor moved away."""
    moved = {
        one
        for gone in paragraph.iter()
        if local_name(gone.tag) == "moveFrom"
        for one in gone.iter()
    }
    return any(
        one.text for one in paragraph.iter() if local_name(one.tag) == "t" and one not in moved
    )


def _survey_authors(root: Element) -> Iterator[str]:
    """Yield the authors of changes, or "" for an unnamed author."""
    for element in root.iter():
        if local_name(element.tag) in _CHANGES and _has_text(element):
            yield next(
                (value for name, value in element.attrib.items() if local_name(name) == "author"),
                "",
            )


def _read_styles(
    archive: zipfile.ZipFile, relations: Mapping[str, Relation]
) -> Mapping[str, _Style]:
    """Return the styles whose text is struck or hidden."""
    own: dict[str, tuple[_Style, str]] = {}
    for path in find_relations(relations, "styles")[:1]:
        root = parse_xml(archive.read(path))
        space = root.tag[: root.tag.rfind("}") + 1]
        for style in root.iter(f"{space}style"):
            flags = []
            for name in ("strike", "vanish"):
                found = style.find(f"{space}rPr/{space}{name}")
                flags.append(found is not None and found.get(f"{space}val", "1") not in _FALSE)
            base = style.find(f"{space}basedOn")
            own[style.get(f"{space}styleId", "")] = (
                _Style(*flags),
                "" if base is None else base.get(f"{space}val", ""),
            )
    found_styles = {}
    for name in own:
        struck = hidden = False
        place = name
        for _ in range(_MOST_STYLES):
            if place not in own:
                break
            style_of, place = own[place]
            struck, hidden = struck or style_of.struck, hidden or style_of.hidden
        if struck or hidden:
            found_styles[name] = _Style(struck, hidden)
    return found_styles


register("word", read_word)
