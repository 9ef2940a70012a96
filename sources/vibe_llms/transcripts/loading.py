"""Contents with the data that an archive has for them."""

from __future__ import annotations

import msgspec

from vibe_llms.messages.contents import Content, ReasoningContent, Reference, TextualContent
from vibe_llms.storage.interfaces import ContentArchive


async def load_content(content: Content, archive: ContentArchive) -> Content:
    """Return the content with its data loaded from the archive."""
    loaded: dict[str, str | bytes] = {}
    for member in ("data", "whole"):
        reference = getattr(content, member, None)
        if isinstance(reference, Reference):
            if isinstance(content, TextualContent | ReasoningContent):
                loaded[member] = await load_text(reference, archive)
            else:
                loaded[member] = await archive.load(reference)
    return msgspec.structs.replace(content, **loaded) if loaded else content


async def load_text(data: str | Reference, archive: ContentArchive) -> str:
    """Return a text, which may be a reference."""
    if isinstance(data, str):
        return data
    return (await archive.load(data)).decode("utf-8", "replace")
