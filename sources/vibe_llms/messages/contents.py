"""The pieces of a message: text, pictures, sound, film, files, reasoning, and what stays opaque.

A content holds its data or says where it lies. Values know no files: whoever needs the data of a
`Reference` asks the archive, `await archive.load(reference)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ContentNotLoaded


class _Place(Struct, frozen=True, gc=False, tag_field="by", forbid_unknown_fields=True):
    """Where data lies that a content does not hold itself."""


class Reference(_Place, frozen=True, tag="hash"):
    """Bytes that are kept elsewhere: the SHA-256 of them in hexadecimal, and their number."""

    hash: str
    size: int

    @classmethod
    def from_bytes(cls, data: bytes) -> Reference:
        """The reference under which these bytes would be kept."""
        return cls(hash_bytes(data), len(data))


class Location(_Place, frozen=True, tag="url"):
    """An address that the provider itself shall read; nothing is downloaded here."""

    url: str


class Upload(_Place, frozen=True, tag="upload"):
    """A file that was uploaded to a provider before; only the row `row` knows its `identity`."""

    identity: str
    row: str


class Issuer(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Who made a native payload: the provider's module, its row, and the model."""

    module: str
    row: str
    model: str


class NativePayload(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a provider sent and wants back word for word; `data` is its own JSON.

    Replayed to the issuer only: another module, row or model is never sent it.
    """

    issuer: Issuer
    data: msgspec.Raw


class Citation(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Where a text was taken from, as far as its provider said.

    `start` and `end` count in `unit`: characters, pages (from 1) or blocks of the source; `end` is
    not included.
    """

    quote: str = ""
    title: str = ""
    source: str = ""
    start: int | None = None
    end: int | None = None
    unit: str = ""


class _Content(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag_field="kind",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What all contents share. Two contents are equal when their data has the same hash."""

    native: NativePayload | None = None

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            _same(getattr(self, field), getattr(other, field)) for field in self.__struct_fields__
        )

    def __hash__(self) -> int:
        data = getattr(self, "data", None)
        return hash((type(self), _fingerprint(data)))


class TextualContent(_Content, frozen=True, tag="text"):
    """Text, plain unless its MIME type says otherwise; perhaps with citations.

    Where `data` is an excerpt that is short enough for a model, `whole` is all of the text.
    """

    data: str | Reference
    mimetype: str = "text/plain"
    citations: tuple[Citation, ...] = ()
    whole: str | Reference | None = None

    @property
    def text(self) -> str:
        """The text itself; `ContentNotLoaded` where only a reference is held."""
        return loaded_text(self.data)


class ImageContent(_Content, frozen=True, tag="image"):
    """A picture."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""


class AudioContent(_Content, frozen=True, tag="audio"):
    """Sound."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""


class VideoContent(_Content, frozen=True, tag="video"):
    """Film."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""


class FileContent(_Content, frozen=True, tag="file"):
    """Any other file, a PDF say; `name` is shown to the model and to people."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""
    name: str = ""


class ReasoningContent(_Content, frozen=True, tag="reasoning"):
    """What a model thought; empty where its provider keeps it secret and sent only a payload."""

    data: str | Reference = ""

    @property
    def text(self) -> str:
        """The text itself; `ContentNotLoaded` where only a reference is held."""
        return loaded_text(self.data)


class NativeContent(_Content, frozen=True, tag="native"):
    """A block that only its provider understands, kept in its place among the others.

    `label` is the provider's own name for it, `server_tool_use` say, so that people can be told.
    """

    label: str = ""


class UnknownContent(_Content, frozen=True, tag="?"):
    """A content of a kind that a newer version wrote; kept as it is."""

    label: str = ""
    source: msgspec.Raw = msgspec.Raw(b"null")


MediaContent: TypeAlias = ImageContent | AudioContent | VideoContent | FileContent
Content: TypeAlias = (
    TextualContent
    | ImageContent
    | AudioContent
    | VideoContent
    | FileContent
    | ReasoningContent
    | NativeContent
    | UnknownContent
)


def loaded_text(data: str | Reference) -> str:
    """The text, or `ContentNotLoaded` where it is kept elsewhere."""
    if isinstance(data, Reference):
        raise ContentNotLoaded(
            f"the text {data.hash[:12]}… ({data.size} bytes) is kept in the archive; "
            "load it with: await archive.load(reference)"
        )
    return data


def text_of(contents: Iterable[Content]) -> str:
    """The visible text of contents, one after the other; reasoning is not part of it."""
    return "".join(content.text for content in contents if isinstance(content, TextualContent))


def repair_text(text: str) -> str:
    r"""The text without lone surrogates: pairs are joined, lone ones become U+FFFD.

    No provider, file or terminal accepts a lone surrogate, so every way in passes through here.

    >>> repair_text("a\ud83d\ude00b\ud83d")
    'a😀b\ufffd'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _fingerprint(data: object) -> object:
    match data:
        case Reference(hash=digest):
            return digest
        case str():
            return hash_bytes(data.encode("utf-8", "surrogatepass"))
        case bytes():
            return hash_bytes(data)
        case _:
            return data


def _same(one: object, other: object) -> bool:
    if isinstance(one, Reference) != isinstance(other, Reference):
        return _fingerprint(one) == _fingerprint(other)
    return one == other


def hash_bytes(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    import hashlib

    return hashlib.sha256(data).hexdigest()
