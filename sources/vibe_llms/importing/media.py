"""Files of an export as contents that refer to their bytes."""

from __future__ import annotations

import base64
from functools import partial
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.conversations.attachments import UNKNOWN_TYPE, detect_type, read_text
from vibe_llms.importing.messages import ExportedMedia
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    MediaContent,
    Reference,
    TextualContent,
    VideoContent,
)


class LoadedMedia(Struct, frozen=True):
    """The content of a file of an export, and where its bytes are read again."""

    content: MediaContent | TextualContent
    media: ExportedMedia


def load_media(media: ExportedMedia) -> LoadedMedia:
    """Read a file, and return its content: its text, or a reference to its bytes.

    The bytes are read again when they are stored, because a conversation may have many files.
    Raises `ImportUnreadable` if the file is missing, damaged or empty.
    """
    data = media.load()
    if not data:
        raise ImportUnreadable(f"{media.name or 'a file'} is empty")
    found = detect_type(data, media.name)
    if found.startswith("text/") and (text := read_text(data)) is not None:
        return LoadedMedia(TextualContent(text, found), media)
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
    return LoadedMedia(content, media)


def read_data_address(address: str) -> ExportedMedia | None:
    """Return the file in a `data:` address, or None if it is another address."""
    head, comma, data = address.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    kind, *marks = head.removeprefix("data:").split(";")
    load = partial(_decode_base64 if "base64" in marks else _decode_text, data)
    return ExportedMedia(load, kind)


def _decode_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=False)
    except ValueError as error:
        raise ImportUnreadable(f"a file is not valid base64: {error}") from error


def _decode_text(data: str) -> bytes:
    return unquote_to_bytes(data)
