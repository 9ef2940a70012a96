"""Converts sources of a text of Responses to citations."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.contents import Citation, repair_text


class _Annotation(Struct):
    type: str = ""
    url: str | None = None
    title: str | None = None
    filename: str | None = None
    file_id: str | None = None
    start_index: int | None = None
    end_index: int | None = None


_ANNOTATION = msgspec.json.Decoder(_Annotation)


def read_citation(raw: Raw) -> Citation | None:
    """Return an annotation as a citation, or None if it does not cite a source.

    Source: the annotations in `types/responses/response_output_text.py` of openai 3.54.0. Their
    indices are those in the reply, which a citation cannot hold.
    """
    try:
        reported = _ANNOTATION.decode(raw)
    except ValueError:
        return None
    if not reported.type.endswith("citation"):
        return None
    return Citation(
        title=repair_text(reported.title or reported.filename or ""),
        source=repair_text(reported.url or reported.file_id or ""),
    )
