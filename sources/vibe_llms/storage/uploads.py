"""Records of files that a user has uploaded. Their bytes are contents.

`files/{id}.json` is the record of a file. Its id is the hash of its bytes unless another was given.
Uploading the same bytes again without an id gives the same file with the newer name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vibe_llms.base.exceptions import ContentMissing, StorageError
from vibe_llms.base.files import LARGEST_FILE
from vibe_llms.base.folders import make_folder, read_within, replace_file, storage_errors
from vibe_llms.storage.interfaces import UploadedFile

_SUFFIX = ".json"
_IDENTITY = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")


_DECODER = msgspec.json.Decoder(UploadedFile)


class UploadFolder:
    """Folder with the records of a user's files."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.folder = folder
        self._durable = durable

    def keep(self, file: UploadedFile) -> None:
        """Keep a record, and replace an earlier one with its id."""
        with storage_errors(self.folder):
            make_folder(self.folder)
            replace_file(
                self._path(file.id), msgspec.json.encode(file), LARGEST_FILE, durable=self._durable
            )

    def survey(self) -> Sequence[UploadedFile]:
        """Return all files, newest first."""
        with storage_errors(self.folder):
            try:
                names = os.listdir(self.folder)
            except FileNotFoundError:
                return ()
        known = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        files = [self._read(one) for one in known if _IDENTITY.fullmatch(one)]
        return sorted(filter(None, files), key=lambda one: (one.created, one.id), reverse=True)

    def access(self, identity: str) -> UploadedFile:
        """Return a file, or raise `ContentMissing`."""
        file = self._read(identity) if _IDENTITY.fullmatch(identity) else None
        if file is None:
            raise ContentMissing(f"file {identity!r} not found")
        return file

    def remove(self, identity: str) -> UploadedFile:
        """Delete the record of a file. Its bytes stay while a message needs them."""
        file = self.access(identity)
        with storage_errors(self.folder):
            try:
                os.unlink(self._path(identity))
            except FileNotFoundError:
                raise ContentMissing(f"file {identity!r} not found") from None
        return file

    def _read(self, identity: str) -> UploadedFile | None:
        path = self._path(identity)
        with storage_errors(path):
            try:
                data = read_within(self.folder, path.name)
            except FileNotFoundError:
                return None
        try:
            return _DECODER.decode(data)
        except ValueError as error:
            raise StorageError(f"not a record of a file: {error}", path=str(path)) from error

    def _path(self, identity: str) -> Path:
        return self.folder / f"{identity}{_SUFFIX}"
