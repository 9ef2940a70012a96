"""Converts the sources that Gemini names to citations.

Source: `GroundingMetadata` and `CitationMetadata` of google-genai 3.6.1, and
https://ai.google.dev/gemini-api/docs/google-search (2026-11). Their indices are those in the
reply, which a citation cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.contents import Citation, repair_text


class _Source(Struct, rename="camel"):
    uri: str | None = None
    title: str | None = None
    text: str | None = None
    document_name: str | None = None
    page_number: int | None = None

    def cite(self) -> Citation:
        page = self.page_number
        return Citation(
            quote=repair_text(self.text or ""),
            title=repair_text(self.title or ""),
            source=repair_text(self.uri or self.document_name or ""),
            start=page,
            end=None if page is None else page + 1,
            unit="" if page is None else "page",
        )


class _Chunk(Struct, rename="camel"):
    web: _Source | None = None
    retrieved_context: _Source | None = None
    maps: _Source | None = None


class _Grounding(Struct, rename="camel"):
    grounding_chunks: list[_Chunk] | None = None


class _Recitation(Struct, rename="camel"):
    # The API names the list `citationSources`, Vertex AI `citations`.
    citation_sources: list[_Source] | None = None
    citations: list[_Source] | None = None


_GROUNDING = msgspec.json.Decoder(_Grounding)
_RECITATION = msgspec.json.Decoder(_Recitation)


def read_grounding(raw: Raw) -> Iterator[Citation]:
    """Yield the sources that a tool of the server found; none if the metadata is of a new kind."""
    try:
        chunks = _GROUNDING.decode(raw).grounding_chunks or ()
    except ValueError:
        return
    for chunk in chunks:
        source = chunk.web or chunk.retrieved_context or chunk.maps
        if source is not None:
            yield source.cite()


def read_recitation(raw: Raw) -> Iterator[Citation]:
    """Yield the sources that the reply quotes."""
    try:
        metadata = _RECITATION.decode(raw)
    except ValueError:
        return
    for source in metadata.citation_sources or metadata.citations or ():
        yield source.cite()
