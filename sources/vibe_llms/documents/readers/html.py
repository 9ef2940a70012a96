"""The readers of HTML: one keeps all words of a file, the other the main content of a page."""

from __future__ import annotations

from collections.abc import Iterator

from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.readers.markup import draw_markdown, parse_html
from vibe_llms.documents.readers.texts import decode_page
from vibe_llms.documents.texts import Part


def read_html(source: Source) -> Iterator[Part | Remark]:
    """All words of a page as Markdown."""
    tree = parse_html(decode_page(source.file.read()))
    if title := tree.css_first("title"):
        yield Remark(title=" ".join(title.text(deep=True).split()))
    if tree.root is not None:
        yield from split_headings(draw_markdown(tree.root))


register("html", read_html)
