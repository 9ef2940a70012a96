"""What is derived, stored as one generation: a folder that appears whole, counted, checksummed.

One that does not fit is passed over, and what it held is made anew from the files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.files import LARGEST_FILE, LARGEST_SETTINGS, read_file
from vibe_llms.storage.files import make_folder, new_folder, storage_errors, write_new

#: Raised when what is stored changes its form, or is made of other parts than before, as vectors
#: are of passages; another one is made anew.
_FORMAT = f"4 {sys.byteorder}"
_MANIFEST = "manifest"
_COUNTS = "counts"


class Counts(Struct, frozen=True, forbid_unknown_fields=True):
    """How much each part of a generation holds, and the embedder that its vectors are of."""

    entries: int
    words: int
    vectors: int = 0
    embedder: str = ""


class _Manifest(Struct):
    format: str
    counts: Counts
    checksums: dict[str, str]


def read_generation(folder: Path, wanted: Collection[str]) -> tuple[Counts, dict[str, bytes]]:
    """The counts and some parts of a generation; `ValueError` or `OSError` if it is none."""
    manifest = msgspec.json.decode(read_file(folder / _MANIFEST, LARGEST_SETTINGS), type=_Manifest)
    if manifest.format != _FORMAT:
        raise ValueError("another version made it")
    named = [name for name in manifest.checksums if name in wanted]
    parts = {name: read_file(folder / name, LARGEST_FILE) for name in named}
    whole = {**parts, _COUNTS: msgspec.json.encode(manifest.counts)}
    if any(_digest(data) != manifest.checksums.get(name) for name, data in whole.items()):
        raise ValueError("its checksums do not fit")
    return manifest.counts, parts


def write_generation(place: Path, counts: Counts, parts: Mapping[str, bytes]) -> None:
    """Write a generation among the others of a place, then remove those."""
    whole = {**parts, _COUNTS: msgspec.json.encode(counts)}
    checksums = {name: _digest(data) for name, data in whole.items()}
    manifest = msgspec.json.encode(_Manifest(_FORMAT, counts, checksums))
    with storage_errors(place):
        make_folder(place)
        old = os.listdir(place)
        with new_folder(place / os.urandom(8).hex(), durable=False) as folder:
            for name, data in parts.items():
                write_new(folder / name, data, durable=False)
            write_new(folder / _MANIFEST, manifest, durable=False)
        for name in old:
            _remove(place / name)


def discard_generations(place: Path) -> None:
    """Remove whatever lies in a place."""
    with storage_errors(place), suppress(FileNotFoundError):
        for name in os.listdir(place):
            _remove(place / name)


def _remove(path: Path) -> None:
    """What lies among the generations, whatever it is."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
