"""`[documents]` as checked settings."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from vibe_llms.configuration import Configuration, Positive, Seconds


class ReadingLimits(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[documents.limits]`: how much of a document is read, and at what cost.

    A file of more than `file_bytes` is refused. What exceeds the other limits is left out, and the
    text says so. A reader's row may have `seconds` and `memory_bytes` of its own.
    """

    seconds: Seconds = 60.0
    memory_bytes: Positive = 2 * 1024**3
    file_bytes: Positive = 256 * 1024**2
    characters: Positive = 20_000_000
    pages: Positive = 10_000


class ReaderRowSettings(Struct, frozen=True, rename="kebab"):
    """The keys of every row of `[documents.readers]`; the others are for the reader."""

    types: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    seconds: Seconds | None = None
    memory_bytes: Positive | None = None


class DocumentSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[documents]`: how documents are read, kept and searched.

    `readers` are the rows of `[documents.readers]`. Texts that were not used for `ttl_hours` are
    dropped, except those of collections. `embedder` is a row of `[embedders]`, with or without a
    model, or `PROVIDER/MODEL`; without one, only words find passages.
    """

    limits: ReadingLimits = ReadingLimits()
    readers: dict[str, dict[str, Any]] = {}
    ttl_hours: Seconds = 24.0
    embedder: str = ""


def read_document_settings(configuration: Configuration) -> DocumentSettings:
    """The settings of `[documents]`; a `ConfigurationError` names the key of an invalid value."""
    return configuration.read(DocumentSettings, configuration.documents, "documents")
