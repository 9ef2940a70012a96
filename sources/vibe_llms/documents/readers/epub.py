"""Reader of EPUB books, chapter by chapter."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from urllib.parse import unquote

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part
from vibe_llms.documents.readers.archives import local_name, opened_zip, read_xml
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import draw_markdown, parse_html
from vibe_llms.documents.readers.texts import decode_page


def read_book(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the chapters in their reading order."""
    with opened_zip(source.file) as archive:
        container = read_xml(archive, "META-INF/container.xml")
        roots = [one for one in container.iter() if local_name(one.tag) == "rootfile"]
        if not roots:
            raise DocumentUnreadable("it is not a valid EPUB book: it does not name a package")
        package = roots[0].get("full-path", "")
        folder = posixpath.dirname(package)
        files: dict[str, str] = {}
        chapters: list[str] = []
        for element in read_xml(archive, package).iter():
            match local_name(element.tag):
                case "title" if element.text:
                    yield ReaderNotice(title=" ".join(element.text.split()))
                case "item":
                    files[element.get("id", "")] = unquote(element.get("href", ""))
                case "itemref":
                    chapters.append(element.get("idref", ""))
                case _:
                    pass
        names = set(archive.namelist())
        for chapter in dict.fromkeys(chapters):
            name = posixpath.normpath(posixpath.join(folder, files.get(chapter, "")))
            if name in names:
                body = parse_html(decode_page(archive.read(name))).body
                if body is not None:
                    yield from split_headings(draw_markdown(body))


register("epub", read_book)
