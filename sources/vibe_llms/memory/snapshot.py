"""Snapshots of an index: a folder with a checksum for each part, which appears atomically.

A snapshot that does not match its checksums is ignored, and the index is rebuilt from the files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.files import LARGEST_FILE, LARGEST_SETTINGS, read_file
from vibe_llms.base.folders import make_folder, new_folder, storage_errors, write_new

#: Raise it when a part changes its format, or the chunks that are embedded change.
FORMAT = f"6 {sys.byteorder}"
_MANIFEST = "manifest"


class _Manifest(Struct):
    format: str
    embedder: str
    checksums: dict[str, str]


_DECODER = msgspec.json.Decoder(_Manifest)


def read_snapshot(folder: Path, wanted: Collection[str]) -> tuple[str, dict[str, bytes]]:
    """Read the embedder of a snapshot's vectors, and its wanted parts.

    Raise `ValueError`, `OSError`, or `StorageError` if the snapshot is missing or damaged.
    """
    manifest = _DECODER.decode(read_file(folder / _MANIFEST, LARGEST_SETTINGS))
    if manifest.format != FORMAT:
        raise ValueError("written by another version")
    parts = {
        name: read_file(folder / name, LARGEST_FILE)
        for name in manifest.checksums
        if name in wanted
    }
    checksums = {name: _digest(data, manifest.embedder) for name, data in parts.items()}
    if not checksums.items() <= manifest.checksums.items():
        raise ValueError("checksums do not match")
    return manifest.embedder, parts


def write_snapshot(place: Path, embedder: str, parts: Mapping[str, bytes]) -> None:
    """Write a snapshot into a folder, then remove everything else there."""
    checksums = {name: _digest(data, embedder) for name, data in parts.items()}
    manifest = msgspec.json.encode(_Manifest(FORMAT, embedder, checksums))
    with storage_errors(place):
        make_folder(place)
        old = os.listdir(place)
        with new_folder(place / os.urandom(8).hex(), durable=False) as folder:
            for name, data in parts.items():
                write_new(folder / name, data, durable=False)
            write_new(folder / _MANIFEST, manifest, durable=False)
        _remove(place, old)


class FolderSnapshots:
    """Snapshots in a folder."""

    #: The next process starts with it, so any change justifies one.
    least = 1

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        """Yield complete snapshots: the embedder, and the wanted parts."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            with suppress(OSError, ValueError, StorageError):
                yield read_snapshot(self._folder / name, wanted)

    def write(self, embedder: str, parts: Mapping[str, bytes]) -> None:
        """Store one snapshot in place of all others."""
        write_snapshot(self._folder, embedder, parts)

    def discard(self) -> None:
        """Remove all snapshots."""
        discard_snapshots(self._folder)


def discard_snapshots(place: Path) -> None:
    """Remove everything in a folder of snapshots."""
    with storage_errors(place), suppress(FileNotFoundError):
        _remove(place, os.listdir(place))


def _remove(place: Path, names: Collection[str]) -> None:
    for name in names:
        path = place / name
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _digest(data: bytes, embedder: str) -> str:
    return hashlib.sha256(embedder.encode() + b"\0" + data).hexdigest()
