"""The parts of a message: text, images, audio, video, files, reasoning, and opaque blocks.

A content has its data or a reference to it. To load the data of a `Reference`, use the archive:
`await archive.load(reference)`.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ContentNotLoaded


class _Place(Struct, frozen=True, gc=False, tag_field="by", forbid_unknown_fields=True):
    """The place of data that is not in the content itself."""


class Reference(_Place, frozen=True, tag="hash"):
    """Bytes that are stored elsewhere: their SHA-256 in hexadecimal, and their number."""

    hash: str
    size: int

    @classmethod
    def from_bytes(cls, data: bytes) -> "Reference":
        """Return the reference to these bytes."""
        return cls(hash_bytes(data), len(data))


class Location(_Place, frozen=True, tag="url"):
    """A URL that the provider reads; the library downloads nothing."""

    url: str


class Upload(_Place, frozen=True, tag="upload"):
    """A file that was uploaded to a provider; its `identity` is valid only for this `row`."""

    identity: str
    row: str


class Issuer(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The source of a native payload: the provider's module, its row, and the model."""

    module: str
    row: str
    model: str


class NativePayload(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Data that a provider sent and needs back unchanged; `data` is its own JSON.

    It is sent only to its issuer: the same module, row, and model.
    """

    issuer: Issuer
    data: msgspec.Raw


class Citation(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The source of a text, to the extent that its provider reports it.

    `start` and `end` count in `unit`: characters, pages (from 1), or blocks of the source; `end` is
    exclusive. `place` is the position in a document that was given as text, such as "page 3".
    """

    quote: str = ""
    title: str = ""
    source: str = ""
    start: int | None = None
    end: int | None = None
    unit: str = ""
    place: str = ""


class _Content(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag_field="kind",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Common base of all contents. Two contents are equal if their data has the same hash."""

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
    """Text, plain unless its MIME type says otherwise, with optional citations.

    If `data` is an excerpt that is short enough for a model, `whole` is the complete text.
    """

    data: str | Reference
    mimetype: str = "text/plain"
    citations: tuple[Citation, ...] = ()
    whole: str | Reference | None = None

    @property
    def text(self) -> str:
        """The text; raises `ContentNotLoaded` if there is only a reference."""
        return loaded_text(self.data)


class ImageContent(_Content, frozen=True, tag="image"):
    """An image."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""


class AudioContent(_Content, frozen=True, tag="audio"):
    """An audio recording."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""


class VideoContent(_Content, frozen=True, tag="video"):
    """A video."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""


class FileContent(_Content, frozen=True, tag="file"):
    """Another file, such as a PDF; `name` is shown to the model and to people."""

    data: bytes | Reference | Location | Upload
    mimetype: str = ""
    name: str = ""


class ReasoningContent(_Content, frozen=True, tag="reasoning"):
    """Reasoning of a model; empty if its provider sent only an opaque payload."""

    data: str | Reference = ""

    @property
    def text(self) -> str:
        """The text; raises `ContentNotLoaded` if there is only a reference."""
        return loaded_text(self.data)


class NativeContent(_Content, frozen=True, tag="native"):
    """A block that only its provider understands, in its position among the contents.

    `label` is the provider's name for it, such as `server_tool_use`, for display.
    """

    label: str = ""


class UnknownContent(_Content, frozen=True, tag="?"):
    """A content of a kind from a newer version, kept unchanged."""

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
    """Return the text; raises `ContentNotLoaded` if it is stored elsewhere."""
    if isinstance(data, Reference):
        raise ContentNotLoaded(
            f"the text {data.hash[:12]}… ({data.size} bytes) is in the archive; load it with: "
            "await archive.load(reference)"
        )
    return data


def text_of(contents: Iterable[Content]) -> str:
    """Return the joined visible text of contents, without reasoning."""
    return "".join(content.text for content in contents if isinstance(content, TextualContent))


def repair_text(text: str) -> str:
    r"""Join surrogate pairs, and replace lone surrogates by U+FFFD.

    No provider, file, or terminal accepts lone surrogates, so all incoming text is repaired.

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
    """Return the SHA-256 of bytes, in hexadecimal."""
    import hashlib

    return hashlib.sha256(data).hexdigest()
