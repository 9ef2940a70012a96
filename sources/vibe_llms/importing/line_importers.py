"""Base of the importers of session files, which are lines of JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from vibe_llms.importing.exports import ExportFile
from vibe_llms.importing.fields import NativeParts, write_json
from vibe_llms.importing.interfaces import ImporterConfiguration
from vibe_llms.importing.json_values import Damaged, read_lines
from vibe_llms.importing.trees import count


class LineImporter:
    """Base of importers of lines of JSON; `module` is the importer's own."""

    def __init__(self, name: str, configuration: ImporterConfiguration) -> None:
        del configuration
        self.native = NativeParts(type(self).__module__, name)


class SessionLines:
    """Iterator over the lines of a session; lines that cannot be read are counted."""

    def __init__(self, file: ExportFile) -> None:
        self._file = file
        self._damaged = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._file.opened() as opened:
            for line in read_lines(opened):
                if isinstance(line, Damaged):
                    self._damaged += 1
                else:
                    yield line

    @property
    def losses(self) -> list[str]:
        """Lines that could not be read, as a counted loss."""
        return [count(self._damaged, "line that cannot be read")] if self._damaged else []


def chain(before: str, value: object) -> str:
    """Return the id of a message that has none, by its contents and those before it."""
    return hashlib.sha256(f"{before}\0{write_json(value)}".encode()).hexdigest()[:32]
