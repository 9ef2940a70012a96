"""Settings in `[documents]`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from vibe_llms.base.configuration import Configuration, Positive, Seconds


class ReadingLimits(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[documents.limits]`: limits of the time, memory, and size for reading a document.

    A file of more than `file_bytes` is refused. Text beyond the other limits is omitted, and a
    notice says so. A reader's row may have its own `seconds` and `memory_bytes`.
    """

    seconds: Seconds = 60.0
    memory_bytes: Positive = 2 * 1024**3
    file_bytes: Positive = 256 * 1024**2
    characters: Positive = 20_000_000
    pages: Positive = 10_000


class ReaderRowSettings(Struct, frozen=True, rename="kebab"):
    """Keys of every row of `[documents.readers]`. The reader gets the others."""

    types: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    seconds: Seconds | None = None
    memory_bytes: Positive | None = None


class DocumentSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[documents]`: settings for reading, keeping, and searching documents.

    `readers` are the rows of `[documents.readers]`. Texts that were not used for `ttl_hours` are
    dropped, except those of collections. `embedder` is a row of `[embedders]`, with or without a
    model, or `PROVIDER/MODEL`; without one, only words find passages.
    """

    limits: ReadingLimits = ReadingLimits()
    readers: dict[str, dict[str, Any]] = {}
    ttl_hours: Seconds = 24.0
    embedder: str = ""


def read_document_settings(configuration: Configuration) -> DocumentSettings:
    """Return the settings of `[documents]`; a `ConfigurationError` names an invalid key."""
    return configuration.read(DocumentSettings, configuration.documents, "documents")
