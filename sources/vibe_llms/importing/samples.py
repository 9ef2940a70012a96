"""The beginnings of files, by which importers recognize their own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms.importing.exports import ExportFile
from vibe_llms.importing.interfaces import Sample
from vibe_llms.importing.json_importers import unwrap
from vibe_llms.importing.json_values import Damaged, JsonValues, read_lines
from vibe_llms.importing.sqlite import MAGIC, survey_tables

_HEAD_BYTES = 64 * 1024
_LINES = 20
_VALUES = 5
#: JSON, an SQLite database, or YAML with a key at its beginning.
_CANDIDATE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:[\[{]|[a-z_]+:)|" + re.escape(MAGIC))


def is_candidate(file: ExportFile) -> bool:
    """Return True if a file may have conversations, by its first bytes."""
    with file.opened() as opened:
        return _CANDIDATE.match(opened.read(64)) is not None


def read_sample(file: ExportFile) -> Sample:
    """Return the beginning of a file."""
    with file.opened() as opened:
        head = opened.read(_HEAD_BYTES)
    if head.startswith(MAGIC):
        return Sample(file.name, head, tables=survey_tables(file))
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lines = _read_lines(file) if text.startswith(b"{") else ()
    value = _read_value(file) if text.startswith((b"[", b"{")) and len(lines) < 2 else None
    return Sample(file.name, head, value, lines)


def describe_damage(file: ExportFile) -> str:
    """Return why the first value in a file of JSON cannot be read; empty for other files."""
    with file.opened() as opened:
        if not opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"[", b"{")):
            return ""
    with file.opened() as opened:
        first = next(iter(JsonValues(opened)), None)
    return first.reason if isinstance(first, Damaged) else ""


def _read_lines(file: ExportFile) -> Sequence[Mapping[str, Any]]:
    """Return the first lines of JSON; none if the first line is not a whole object."""
    with file.opened() as opened:
        found = [*itertools.islice(read_lines(opened), _LINES)]
    if not found or isinstance(found[0], Damaged):
        return ()
    return [one for one in found if not isinstance(one, Damaged)]


def _read_value(file: ExportFile) -> Any:
    with file.opened() as opened:
        found = itertools.islice(JsonValues(opened), _VALUES)
        inner = (one for value in found for one in unwrap(value))
        return next((one for one in inner if isinstance(one, dict)), None)
