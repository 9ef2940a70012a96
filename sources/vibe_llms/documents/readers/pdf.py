"""Reader of PDF files, one page at a time, with pypdfium2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents.readers.annotations import PageAnnotations
from vibe_llms.documents.readers.headings import Headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.packages import import_package

#: PDFium's marks of a hyphen at the end of a line.
_HYPHENS = re.compile("[\ufffe\x02]\r?\n?(?=(\\w?))")
_MOST_BOOKMARKS = 10_000
_MOST_ATTACHMENTS = 20
_PASSWORD_ERROR = 4
_REPAIR = "copy or export it again"


def read_pdf(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the text of each page with the outline's headings; a scanned page is empty.

    Annotations follow the text of their page.
    """
    package = import_package("pypdfium2", "pypdfium2", "reading PDF files")
    try:
        document = package.PdfDocument(source.file.read(), password=source.password or None)
    except package.PdfiumError as error:
        if error.err_code == _PASSWORD_ERROR:
            raise DocumentUnreadable(
                "the password is wrong" if source.password else "it needs a password",
                password=True,
            ) from error
        raise DocumentUnreadable(
            f"it is not a valid PDF file, or it is damaged; {_REPAIR}", damaged=True
        ) from error
    with closing(document):
        yield from _read_document(document, package)


def _read_document(document: Any, package: Any) -> Iterator[Part | ReaderNotice]:
    title = str(document.get_metadata_value("Title")).strip()
    with suppress(package.PdfiumError):
        document.init_forms()
    yield ReaderNotice(title=title, pages=len(document))
    if not len(document):
        raise DocumentUnreadable(f"it has no pages, so it is damaged; {_REPAIR}", damaged=True)
    reader = PageAnnotations(document, package.raw)
    outline = _read_outline(document)
    headings = Headings()
    heading = ""
    broken: list[int] = []
    for index in range(len(document)):
        try:
            text, added = _read_page(document, index, reader)
        except package.PdfiumError:
            broken.append(index + 1)
            yield Part("", Place(index + 1, "", heading))
            continue
        entries = outline.get(index, ())
        start = 0
        for level, name in entries:
            found = _find_heading(text, name, start)
            if found > start and text[start:found].strip():
                yield Part(text[start:found], Place(index + 1, "", heading))
                start = found
            heading = headings.enter(level, name)
        if added:
            text = f"{text}\n\n{added}" if text else added
        yield Part(text[start:], Place(index + 1, "", heading))
    if len(broken) == len(document):
        raise DocumentUnreadable(
            f"none of its pages can be read, so it is damaged; {_REPAIR}", damaged=True
        )
    if broken:
        yield ReaderNotice(problem=f"{len(broken):,} pages are damaged, first page {broken[0]}")
    yield from _describe(document, package)


def _describe(document: Any, package: Any) -> Iterator[ReaderNotice]:
    """Yield remarks on the parts of a document that are not read."""
    if document.get_formtype() == package.raw.FORMTYPE_XFA_FULL:
        yield ReaderNotice(
            problem="its form is XFA, which only Adobe's programs show; print it to a new PDF"
        )
    names = [
        document.get_attachment(index).get_name()
        for index in range(min(document.count_attachments(), _MOST_ATTACHMENTS))
    ]
    if names:
        yield ReaderNotice(problem=f"files in it are not read: {', '.join(names)}")


def _read_page(document: Any, index: int, reader: PageAnnotations) -> tuple[str, str]:
    """Return the text of a page, and its annotations."""
    page = document[index]
    try:
        text_page = page.get_textpage()
        try:
            text: str = text_page.get_text_range()
            text = _HYPHENS.sub(_join_word, text).replace("\r\n", "\n").replace("\0", "").strip()
            return text, reader.read(page, text_page, text)
        finally:
            text_page.close()
    finally:
        page.close()


def _join_word(found: re.Match[str]) -> str:
    return "" if found[1].islower() else "-"


def _read_outline(document: Any) -> dict[int, list[tuple[int, str]]]:
    """Return the bookmarks of each page: their levels and titles."""
    outline: dict[int, list[tuple[int, str]]] = {}
    for number, bookmark in enumerate(document.get_toc()):
        if number == _MOST_BOOKMARKS:
            break
        target = bookmark.get_dest()
        index = target.get_index() if target is not None else None
        if index is not None:
            outline.setdefault(index, []).append((bookmark.level + 1, bookmark.get_title()))
    return outline


def _find_heading(text: str, name: str, start: int) -> int:
    """Return the offset of the line that begins with a heading, or -1."""
    words = name.split()
    if not words:
        return -1
    pattern = r"\s+".join(map(re.escape, words))
    found = re.compile(rf"^[ \t]*(?:[\d.]+[ \t]+)?{pattern}", re.MULTILINE).search(text, start)
    return found.start() if found else -1


register("pdf", read_pdf)
