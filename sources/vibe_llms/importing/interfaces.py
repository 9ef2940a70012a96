"""Interface of the readers of other programs' conversations, and their registration.

A module registers a reader, and a row of `[importers]` names the module:

```toml
[importers.my-chat]
module = "my_package.my_chat"
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import IMPORTERS
from vibe_llms.base.registries import Registry, Row
from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.messages import ExportedConversation


class Sample(Struct, frozen=True):
    """The beginning of a file, by which a reader recognizes it.

    `value` is the first conversation: the first element of a JSON array, a single JSON object, or
    of lines of JSON, None. `lines` are the first lines of JSON. `tables` are those of a database,
    with their columns. `head` is the first bytes.
    """

    name: str
    head: bytes = b""
    value: Any = None
    lines: Sequence[Mapping[str, Any]] = ()
    tables: Mapping[str, frozenset[str]] = {}


class ExportedRecord(Struct, frozen=True):
    """One conversation before it is understood.

    `value` is the reader's own. If it could not be read, `problem` is the reason. `consumed` is the
    number of bytes of the file that were read so far, for the display of progress.
    """

    file: ExportFile
    value: Any = None
    problem: str = ""
    consumed: int = 0


class Importer(Protocol):
    """A reader of one program's conversations. All methods block."""

    def recognize(self, sample: Sample) -> bool:
        """Return True if a file is this program's, by its structure; ignore names."""
        ...

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield the conversations of a file, one at a time."""
        ...

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation; raises `ValueError` if it is not one, with the reason."""
        ...


class ImporterConfiguration(Struct, frozen=True):
    """Arguments of an importer's factory besides its name; `settings` are the row's other keys."""

    settings: Mapping[str, Any] = {}


ImporterFactory: TypeAlias = Callable[[str, ImporterConfiguration], Importer]

_REGISTRY: Registry[ImporterFactory] = Registry(IMPORTERS)


def register(name: str, factory: ImporterFactory) -> None:
    """Register an importer's factory for the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_importer(row: Row) -> Importer:
    """Import a row's module and return its importer; raises `RegistrationError` on failure."""
    return _REGISTRY.access(row)(row.name, ImporterConfiguration(row.settings))
