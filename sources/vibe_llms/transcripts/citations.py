"""The sources that an answer cites, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vibe_llms.messages.contents import Citation, Content, TextualContent
from vibe_llms.messages.hidden import one_line, visible

#: Maximum characters of a quotation.
_QUOTE = 120


def list_citations(contents: Iterable[Content]) -> Sequence[str]:
    """List the sources of contents without repeats, such as `report.pdf, page 3: "Sales fell"`."""
    lines = (
        _describe(citation)
        for content in contents
        if isinstance(content, TextualContent)
        for citation in content.citations
    )
    return [*dict.fromkeys(filter(None, lines))]


def _describe(citation: Citation) -> str:
    name = citation.title or citation.source
    if citation.title and citation.source.startswith(("http://", "https://")):
        name += f" <{citation.source}>"
    place = citation.place or _describe_pages(citation)
    quote = one_line(citation.quote).strip()
    if len(quote) > _QUOTE:
        quote = quote[:_QUOTE].rpartition(" ")[0] + " …"
    where = ", ".join(filter(None, (name, place)))
    said = f'"{quote}"' if quote else ""
    return one_line(visible(": ".join(filter(None, (where, said)))))


def _describe_pages(citation: Citation) -> str:
    if citation.unit != "page" or citation.start is None:
        return ""
    last = (citation.end or citation.start + 1) - 1
    if last <= citation.start:
        return f"page {citation.start}"
    return f"pages {citation.start}-{last}"
