"""Interface of the readers of formats, built-in or third-party, and their registration.

A module registers its reader, and a row of `[documents.readers]` names the module and the files
that it reads:

```toml
[documents.readers.scans]
module = "my_ocr"
types = ["image/tiff"]
suffixes = [".tif", ".tiff"]
```

A reader runs in a separate process with limits on time, memory, and output. If it takes too
long or crashes, the caller gets an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeAlias

from msgspec import Struct

from vibe_llms.base.registries import Registry, Row
from vibe_llms.conversations.document_texts import Part

READERS = "documents.readers"


class Source(Struct, frozen=True):
    """A file to read: its bytes as an open, seekable file, and its name, only for its suffix.

    `password` opens an encrypted file. `settings` are the keys of the reader's row.
    """

    file: BinaryIO
    name: str = ""
    password: str = ""
    settings: Mapping[str, Any] = {}


class ReaderNotice(Struct, frozen=True, array_like=True, tag=True):
    """Data about a document besides its text.

    `title` is the document's own title, `pages` its number of pages, and `format` the row that
    reads it. `problem` is a sentence for the user about an unreadable part. `complete` is False if
    the text ends early.
    """

    title: str = ""
    pages: int = 0
    problem: str = ""
    format: str = ""
    complete: bool = True


#: Yields the parts of a document in order, each as soon as it is read, and notices at any time. A
#: part without text is a page without text. Parts yielded before an error are kept.
Reader: TypeAlias = Callable[[Source], Iterator[Part | ReaderNotice]]

_REGISTRY: Registry[Reader] = Registry(READERS)


def register(name: str, reader: Reader) -> None:
    """Offer a reader to the rows that name the calling module."""
    _REGISTRY.register(name, reader)


def access_reader(row: Row) -> Reader:
    """Import a row's module and return its reader, or raise a `RegistrationError`."""
    return _REGISTRY.access(row)
