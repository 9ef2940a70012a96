"""Files of an export as contents that refer to their bytes."""

from __future__ import annotations

from msgspec import Struct

from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.conversations.attachments import UNKNOWN_TYPE, detect_type
from vibe_llms.importing.messages import ExportedMedia
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    MediaContent,
    Reference,
    VideoContent,
)


class LoadedMedia(Struct, frozen=True):
    """The content of a file of an export, and where its bytes are read again."""

    content: MediaContent
    reference: Reference
    media: ExportedMedia


def load_media(media: ExportedMedia) -> LoadedMedia:
    """Read a file, and return its content without its bytes, which may be many.

    Raises `ImportUnreadable` if it is missing, damaged or empty.
    """
    data = media.load()
    if not data:
        raise ImportUnreadable(f"{media.name or 'a file'} is empty")
    found = detect_type(data, media.name)
    mimetype = found if found != UNKNOWN_TYPE and not found.startswith("text/") else media.mimetype
    mimetype = mimetype or found
    reference = Reference.from_bytes(data)
    match mimetype.partition("/")[0]:
        case "image":
            content: MediaContent = ImageContent(reference, mimetype)
        case "audio":
            content = AudioContent(reference, mimetype)
        case "video":
            content = VideoContent(reference, mimetype)
        case _:
            content = FileContent(reference, mimetype, media.name)
    return LoadedMedia(content, reference, media)
