"""Readers of HTML: one for all words of a file, and one for the main content of a page."""

from __future__ import annotations

from collections.abc import Iterator

from vibe_llms.conversations.document_texts import Part
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import draw_markdown, parse_html
from vibe_llms.documents.readers.packages import import_package
from vibe_llms.documents.readers.texts import decode_page


def read_html(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield all words of a page as Markdown."""
    tree = parse_html(decode_page(source.file.read()))
    if title := tree.css_first("title"):
        yield ReaderNotice(title=" ".join(title.text(deep=True).split()))
    if tree.root is not None:
        yield from split_headings(draw_markdown(tree.root))


def read_page(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the main content of a web page as Markdown, or all of it if none stands out."""
    package = import_package("trafilatura", "trafilatura", "reading web pages")
    text = decode_page(source.file.read())
    tree = parse_html(text)
    if title := tree.css_first("title"):
        yield ReaderNotice(title=" ".join(title.text(deep=True).split()))
    content: str | None = package.extract(
        text,
        output_format="markdown",
        include_comments=False,
        include_tables=True,
        include_links=True,
        favor_recall=True,
    )
    if not content and tree.root is not None:
        content = draw_markdown(tree.root)
    yield from split_headings(content or "")


register("html", read_html)
register("page", read_page)
