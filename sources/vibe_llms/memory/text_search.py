"""Search for words in entries, in other files, and in file names."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vibe_llms.base.exceptions import MemoryDamaged
from vibe_llms.base.files import read_file
from vibe_llms.memory.entries import LARGEST_BYTES, Entry, Scope, decode_entry
from vibe_llms.memory.interfaces import TextReader
from vibe_llms.memory.places import identity_in
from vibe_llms.messages.contents import repair_text

#: Front matter common to all of our files, which is not searched.
_PLAIN = re.compile(
    r"^(?:(?:id|role|created_at|importance|conversation_id|turn|replaced_by):[^#\n]*"
    r"|(?:category|topics|speaker|merged_from):)",
    re.MULTILINE,
)
#: Ids in a summary, which are not searched either.
_SUMMED_UP = re.compile(r"^sums_up: '?[0-9a-f]{12}(?: [0-9a-f]{12})*'?$", re.MULTILINE)

#: Bytes of a chunk that are read again with the next one, for words that cross the boundary.
_OVERLAP = 64 * 1024


def fold(text: str) -> str:
    """Normalize a text for comparison, ignoring case, spaces, and the form of accents."""
    return " ".join(unicodedata.normalize("NFKC", repair_text(text)).casefold().split())


def holds(wanted: str, texts: Sequence[str]) -> bool:
    """Return True if one of the texts contains the folded words."""
    return any(wanted in fold(text) for text in texts)


def find_holding(files: TextReader, scope: Scope, wanted: str) -> list[tuple[str, Entry]]:
    """Return the places within a scope that contain folded words, and their entries."""
    found: list[tuple[str, Entry]] = []
    for place, data in files.read_all(scope):
        if data is None:
            created, name = datetime.fromtimestamp(0, UTC), os.path.basename(place)
            parts = files.read_parts(scope, place)
            if holds(wanted, [name]) or _holds_in_parts(wanted, parts):
                found.append(
                    (place, Entry(content=name, identity="", scope=scope, created=created))
                )
            continue
        entry, texts = examine(data, scope, place)
        if holds(wanted, texts):
            found.append((place, entry))
    return found


def find_all(files: TextReader, scope: Scope) -> list[tuple[str, Entry]]:
    """Return all places within a scope, and their entries."""
    # Every text contains the empty string.
    return find_holding(files, scope, "")


def _holds_in_parts(wanted: str, parts: Iterable[bytes]) -> bool:
    """Return True if a text too long to be read at once contains the words."""
    before = b""
    for part in parts:
        data = before + part
        if holds(wanted, [data.decode("utf-8", "replace")]):
            return True
        before = data[-_OVERLAP:]
    return False


def find_strays(files: TextReader, wanted: str) -> list[Path]:
    """Return the files outside the scopes that contain folded words: their purpose is unknown."""
    found: list[Path] = []
    for path in files.survey_strays():
        with suppress(OSError):
            if path.stat().st_size <= LARGEST_BYTES:
                text = read_file(path, LARGEST_BYTES).decode("utf-8", "replace")
                if holds(wanted, (text, path.name)):
                    found.append(path)
    return found


def examine(data: bytes, scope: Scope, place: str) -> tuple[Entry, Sequence[str]]:
    """Parse a file's bytes; return its entry, or the whole text as one, and all its texts."""
    text = data.decode("utf-8", "replace")
    own = identity_in(place)
    name = "" if own else os.path.basename(place)
    try:
        entry = decode_entry(data, scope, place, modified=0.0)
    except MemoryDamaged:
        created = datetime.fromtimestamp(0, UTC)
        return Entry(content=text, identity=own, scope=scope, created=created), (text, name)
    said = (entry.content, entry.category, *entry.topics, entry.speaker)
    further = entry.further.items()
    reported = [one for one in further if not _SUMMED_UP.fullmatch(": ".join(map(str, one)))]
    return entry, (*said, *_find_texts(reported), _SUMMED_UP.sub("", _PLAIN.sub("", text)), name)


def _find_texts(value: Any) -> list[str]:
    """Return all texts in a YAML value."""
    texts: list[str] = []
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set):
            left += one
        else:
            texts.append(str(one))
    return texts
