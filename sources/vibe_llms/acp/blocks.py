"""Contents of messages as blocks of the protocol, and the ids of a message's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vibe_llms.acp.updates import Block, SentAudio, SentImage, SentText
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    MediaContent,
    Reference,
    TextualContent,
    Upload,
    VideoContent,
)

#: Bytes by the hash of their reference.
Blobs = Mapping[str, bytes]


def produce_blocks(contents: Sequence[Content], blobs: Blobs) -> list[Block]:
    """Return the visible contents as blocks; those without a block are described in words."""
    blocks: list[Block] = []
    for content in contents:
        match content:
            case TextualContent():
                if text := _read_text(content.data, blobs):
                    blocks.append(SentText(text))
            case ImageContent() | AudioContent() | VideoContent() | FileContent():
                blocks.append(_produce_media(content, blobs))
            case _:
                # Reasoning has chunks of its own; native blocks have no form for people.
                continue
    return blocks


def _read_text(data: str | Reference, blobs: Blobs) -> str:
    if isinstance(data, str):
        return data
    return blobs[data.hash].decode("utf-8", "replace") if data.hash in blobs else ""


def _produce_media(content: MediaContent, blobs: Blobs) -> Block:
    data = content.data
    if isinstance(data, Reference):
        data = blobs.get(data.hash, data)
    kind = content.mimetype or "unknown type"
    match content, data:
        case ImageContent(mimetype=str(mimetype)), bytes() if mimetype:
            return SentImage(data, mimetype)
        case AudioContent(mimetype=str(mimetype)), bytes() if mimetype:
            return SentAudio(data, mimetype)
        case _, Location(url=url):
            return SentText(f"[{kind}: {url}]")
        case _, Upload(identity=identity):
            return SentText(f"[{kind}: the uploaded file {identity}]")
        case _, bytes():
            name = getattr(content, "name", "") or "file"
            return SentText(f"[{name}: {kind}, {len(data):,} bytes]")
        case _:
            return SentText(f"[{kind}: not in the archive]")


class PartIds:
    """The ids of the parts of a message: text and thoughts are parts of their own.

    The first text has the identity of the message, so that other interfaces find the message by it.
    """

    def __init__(self) -> None:
        self._message = ""
        self._thinks = False
        self._numbers = {False: 0, True: 0}

    def find(self, message: str, *, thinks: bool) -> str:
        """Return the id of the part that the next text or thought belongs to."""
        if message != self._message:
            self._message, self._thinks = message, thinks
            self._numbers = {thinks: 1, not thinks: 0}
        elif thinks != self._thinks:
            self._thinks = thinks
            self._numbers[thinks] += 1
        number = self._numbers[thinks]
        name = f"{message}-thought" if thinks else message
        return name if number == 1 else f"{name}-{number}"
