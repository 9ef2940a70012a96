"""Pictures, sounds and files for both interfaces: which a model takes, and their encoded bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    Location,
    MediaContent,
    Reference,
    Upload,
    repair_text,
)
from vibe_llms.providers.conversions import name_content, name_file
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Slot, encode_json

PDF = "application/pdf"
#: Names of sound formats in the interface, by MIME type.
SOUNDS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def unsupported(content: MediaContent, model: Model, places: Mapping[str, tuple[str, ...]]) -> str:
    """Return why a model does not accept a content, or an empty text if it does.

    `places` lists, by kind (`image`, `audio`, `file`), accepted forms of data other than bytes in
    the request: `url`, `upload`.
    """
    name = name_content(content)
    kind = str(content.__struct_config__.tag)
    if kind not in places:
        return name
    textual = is_textual(content)
    match content.data:
        case Upload(row=row):
            if row != model.provider:
                return f"{name} that was uploaded to {row!r}"
            taken = "upload" in places[kind] and (textual or _known(content, model))
        case Location(url):
            if not url.startswith(("http://", "https://")):
                return f"{name} at {url!r}, which is not an http(s) address"
            taken = "url" in places[kind] and _known(content, model)
        case data:
            if not (data.size if isinstance(data, Reference) else len(data)):
                return f"{name} without any bytes"
            taken = textual or _known(content, model)
            if isinstance(content, AudioContent):
                taken = taken and content.mimetype in SOUNDS
    return "" if taken else name


def is_textual(content: MediaContent) -> bool:
    """Return True if a file is text, which is sent as text."""
    return isinstance(content, FileContent) and content.mimetype.startswith("text/")


def encode_slot(
    content: MediaContent,
    before: bytes,
    after: bytes,
    instead: Mapping[str, Any],
    origin: str,
    *,
    uri: bool = False,
) -> Block:
    """Return the block of a content whose bytes are filled in when it is sent.

    The bytes are put between `before` and `after`: a text file as text after its name, others as
    base64, with `uri` as a data URI. `instead` replaces the block if it is left out.
    """
    data = content.data
    if isinstance(data, Location | Upload):
        raise TypeError("only bytes and references have a slot")
    textual = is_textual(content)
    prefix = b""
    if textual:
        # A heading keeps a file of blank lines from being an empty part, which is refused.
        name = name_file(content)
        prefix = encode_json(f"File {name}:\n\n" if name else "A file:\n\n")[1:-1]
    elif uri:
        prefix = encode_json(f"data:{repair_text(content.mimetype)};base64,")[1:-1]
    return (
        Slot(
            data,
            "text" if textual else "base64",
            before,
            after,
            encode_json(instead),
            name_content(content),
            origin,
            prefix,
        ),
    )


def describe_left_out(content: MediaContent) -> str:
    """Return the text that replaces a content that is left out."""
    return f"[{name_content(content)}, left out to save room]"


def name_sent(content: MediaContent) -> str:
    """Return the name of a file, which the interfaces require with its bytes."""
    return name_file(content) or ("document.pdf" if content.mimetype == PDF else "file")


def _known(content: MediaContent, model: Model) -> bool:
    attributes = model.attributes
    kind = str(content.__struct_config__.tag)
    if isinstance(content.data, Location | Upload) and not content.mimetype:
        return kind in attributes.accepts or (kind == "file" and PDF in attributes.accepts)
    fits = content.mimetype.startswith(f"{kind}/") or (kind == "file" and content.mimetype == PDF)
    return fits and content.mimetype in attributes.accepts
