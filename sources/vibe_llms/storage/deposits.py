"""Split a canister into its line and the contents that are stored separately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import Canister, SupervisorCanister
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    ReasoningContent,
    Reference,
    TextualContent,
    VideoContent,
    repair_text,
)

C = TypeVar("C", bound=Canister)

#: Contents stored more recently are not collected, because their lines may not be written yet.
GRACE_SECONDS = 3600.0


class Deposit(Struct, frozen=True):
    """Bytes to be stored under their hash. The MIME type is a hint."""

    reference: Reference
    data: bytes
    mimetype: str = ""

    @classmethod
    def from_bytes(cls, data: bytes, mimetype: str = "") -> Deposit:
        """Return the deposit of some bytes."""
        return cls(Reference.from_bytes(data), data, mimetype)


class Separated(Struct, Generic[C], frozen=True):
    """Stored form and in-memory form of a canister, with the deposits to store first."""

    stored: C
    kept: C
    deposits: Sequence[Deposit] = ()


def belongs_inline(text: str, *, limit: int, supervisor: bool = False) -> bool:
    """Return True if a text stays in its message line instead of the content store.

    `limit` is in UTF-8 bytes, not characters. A supervisor's text never stays inline, because
    conversations and their forks share it.

    >>> belongs_inline("é" * 511, limit=1024), belongs_inline("é" * 512, limit=1024)
    (True, False)

    Source: documentation/adr/0008-hybrid-content-storage.md
    """
    if supervisor or len(text) >= limit:
        return False
    return len(text) * 4 < limit or len(text.encode("utf-8", "replace")) < limit


def concerns_contents(canister: Canister, limit: int) -> bool:
    """Return True if a canister refers to stored contents or has some that should be stored."""
    supervisor = isinstance(canister, SupervisorCanister)
    for content in canister.contents:
        data = getattr(content, "data", None)
        if isinstance(data, str):
            if _is_long(data, limit, supervisor):
                return True
        elif isinstance(data, (bytes, Reference)):
            return True
        if isinstance(content, TextualContent) and content.whole is not None:
            return True
    return False


def separate(canister: C, limit: int) -> Separated[C]:
    """Separate a canister from the contents that are stored on their own.

    In the stored form, all media and large texts are references; `limit` is `inline-bytes`. In
    memory, only media are, so that recent text can be read without the archive.
    """
    contents: tuple[Content, ...] = canister.contents
    supervisor = isinstance(canister, SupervisorCanister)
    deposits: list[Deposit] = []

    def deposit(data: bytes, mimetype: str) -> Reference:
        deposits.append(Deposit.from_bytes(data, mimetype))
        return deposits[-1].reference

    stored: list[Content] = []
    kept: list[Content] = []
    for each in contents:
        content = each
        if isinstance(content, TextualContent) and isinstance(content.whole, str):
            # The complete text of an excerpt is stored too.
            reference = deposit(repair_text(content.whole).encode(), "text/plain")
            content = msgspec.structs.replace(content, whole=reference)
        match content:
            case TextualContent(data=str() as text) | ReasoningContent(data=str() as text) if (
                _is_long(text, limit, supervisor)
            ):
                reference = deposit(repair_text(text).encode(), "text/plain")
                stored.append(msgspec.structs.replace(content, data=reference))
                kept.append(content)
            case (
                ImageContent(data=bytes() as data, mimetype=mimetype)
                | AudioContent(data=bytes() as data, mimetype=mimetype)
                | VideoContent(data=bytes() as data, mimetype=mimetype)
                | FileContent(data=bytes() as data, mimetype=mimetype)
            ):
                stored.append(msgspec.structs.replace(content, data=deposit(data, mimetype)))
                kept.append(stored[-1])
            case _:
                stored.append(content)
                kept.append(content)
    if not deposits:
        return Separated(canister, canister)
    replace = msgspec.structs.replace
    return Separated(
        replace(canister, contents=tuple(stored)),
        replace(canister, contents=tuple(kept)),
        deposits,
    )


def references_of(canister: Canister) -> Iterator[Reference]:
    """Yield the references that a canister needs."""
    for content in canister.contents:
        for data in (getattr(content, "data", None), getattr(content, "whole", None)):
            if isinstance(data, Reference):
                yield data


def _is_long(text: str, limit: int, supervisor: bool) -> bool:
    return bool(text) and not belongs_inline(text, limit=limit, supervisor=supervisor)
