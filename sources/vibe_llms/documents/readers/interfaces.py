"""What a reader of a format is, built-in or third-party, and how it registers.

A module registers its reader, and a row of `[documents.readers]` names the module and the files
that it reads::

    [documents.readers.scans]
    module = "my_ocr"
    types = ["image/tiff"]
    suffixes = [".tif", ".tiff"]

A reader runs in a process of its own with limits on time, memory and output. It may be slow or
crash: the caller gets an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeAlias

from msgspec import Struct

from vibe_llms.documents.texts import Part
from vibe_llms.registries import Registry, Row

READERS = "documents.readers"


class Source(Struct, frozen=True):
    """A file to read: its bytes as an open, seekable file, and its name, for its suffix only.

    `password` opens an encrypted file. `settings` are the keys of the reader's row.
    """

    file: BinaryIO
    name: str = ""
    password: str = ""
    settings: Mapping[str, Any] = {}


class Remark(Struct, frozen=True, array_like=True, tag=True):
    """What a reader says of a document besides its text.

    `title` is the document's own title, `pages` how many it has, `format` the row that reads it.
    `problem` says what cannot be read, as a sentence for the user. `complete` is false if the text
    ends early.
    """

    title: str = ""
    pages: int = 0
    problem: str = ""
    format: str = ""
    complete: bool = True


#: Gives the parts of a document in order, as soon as each is read, and remarks at any time. A part
#: without text says that its page has none. Raises `DocumentUnreadable`; what was given before that
#: counts.
Reader: TypeAlias = Callable[[Source], Iterator[Part | Remark]]

_REGISTRY: Registry[Reader] = Registry(READERS)


def register(name: str, reader: Reader) -> None:
    """Offer a reader to the rows that name the calling module."""
    _REGISTRY.register(name, reader)


def access_reader(row: Row) -> Reader:
    """The reader that a row names; imports its module. `RegistrationError` says why not."""
    return _REGISTRY.access(row)
