"""Base of the importers of JSON exports: a file is an array of conversations, or one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.fields import NativeParts
from vibe_llms.importing.interfaces import ExportedRecord, ImporterConfiguration
from vibe_llms.importing.json_values import Damaged, JsonValues

#: Keys of objects that only wrap the list of conversations.
_WRAPPERS = ("conversations", "data", "chats")


class JsonImporter:
    """Base of importers of JSON exports; `module` is the importer's own."""

    def __init__(self, name: str, configuration: ImporterConfiguration) -> None:
        del configuration
        self.native = NativeParts(type(self).__module__, name)

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield the conversations of a file, one at a time."""
        del export
        with file.opened() as opened:
            values = JsonValues(opened)
            for value in values:
                for one in unwrap(value):
                    if isinstance(one, Damaged):
                        yield ExportedRecord(file, problem=one.reason, consumed=values.consumed)
                    else:
                        yield ExportedRecord(file, one, consumed=values.consumed)


def unwrap(value: Any) -> Iterator[Any]:
    """Yield the conversations in an object that only wraps them, or the value itself."""
    if isinstance(value, dict):
        for key in _WRAPPERS:
            inner = value.get(key)
            if isinstance(inner, list) and len(value) <= 4:
                yield from inner
                return
    yield value


def require_object(value: Any) -> Mapping[str, Any]:
    """Return a conversation; raises `ValueError` if it is not an object."""
    if not isinstance(value, dict):
        raise ValueError("it is not a conversation but another value")  # noqa: TRY004
    return value
