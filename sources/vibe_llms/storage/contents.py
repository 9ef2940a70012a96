"""Content store: bytes in a folder, each stored once under its hash.

`content/{hash}/data` holds the bytes. `content/{hash}/metadata.toml` holds their size and, as a
hint, the first MIME type seen. Such a folder appears completely or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ContentDamaged, ContentMissing, StorageError
from vibe_llms.base.files import LARGEST_FILE
from vibe_llms.base.folders import (
    make_folder,
    new_folder,
    open_folder,
    read_parts,
    read_within,
    refuse_link,
    remove_folder,
    replace_file,
    storage_errors,
    synchronise_folder,
    write_new,
)
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.deposits import Deposit, separate

_HASH = re.compile(r"[0-9a-f]{64}")
#: Errors for existing data that has another size or is not a file.
_NO_SUCH_DATA = (errno.EFBIG, errno.EINVAL)
_MIMETYPE = re.compile(r"[\w.+/-]+")
C = TypeVar("C", bound=Canister)


class ContentStore:
    """Folder of contents."""

    def __init__(self, folder: Path, settings: StorageSettings) -> None:
        self.folder = folder
        self.settings = settings
        self._durable = settings.durability == "safe"

    def put(self, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes durably. Existing bytes are not written again."""
        deposit = Deposit.from_bytes(data, mimetype)
        self.keep(deposit)
        return deposit.reference

    def keep(self, deposit: Deposit) -> None:
        """Store a deposit, as `put` does."""
        data = deposit.data
        if len(data) > LARGEST_FILE:
            raise StorageError(f"a content of {len(data)} bytes is too large")
        path = self._path(deposit.reference.hash)
        with storage_errors(path):
            if not self._refresh(path, data):
                make_folder(self.folder)
                try:
                    self._write(path, data, deposit.mimetype)
                except FileExistsError:
                    # Another process was faster.
                    if not self._refresh(path, data):
                        raise
            if self._durable:
                # Also sync what another process stored, because it may not have synced yet.
                synchronise_folder(self.folder)

    def prepare(self, deposit: Deposit, stack: ExitStack, *, durable: bool) -> None:
        """Write a deposit into a temporary folder; the end of the stack moves it to its place.

        Unless it is `durable`, the caller syncs it before that.
        """
        path = self._path(deposit.reference.hash)
        with storage_errors(path):
            if not self._refresh(path, deposit.data):
                # Another process, or another deposit of the same bytes, may be faster.
                stack.enter_context(suppress(FileExistsError))
                temporary = stack.enter_context(new_folder(path, durable=durable))
                _fill(temporary, deposit.data, deposit.mimetype, durable=durable)

    def load(self, reference: Reference) -> bytes:
        """Return the bytes of a reference, checked against its hash.

        Raises `ContentMissing` or `ContentDamaged`.
        """
        path = self._path(reference.hash)
        with storage_errors(path):
            try:
                data = read_within(path, "data")
            except FileNotFoundError:
                raise _missing(path) from None
        if Reference.from_bytes(data).hash != reference.hash:
            raise _damaged(path)
        return data

    def check(self, digest: str) -> None:
        """Read a content and check its hash. Raises the errors of `load`."""
        path = self._path(digest)
        found = hashlib.sha256()
        with storage_errors(path):
            try:
                for part in read_parts(path, "data"):
                    found.update(part)
            except FileNotFoundError:
                raise _missing(path) from None
        if found.hexdigest() != digest:
            raise _damaged(path)

    def find(self, digests: Collection[str]) -> Mapping[str, Reference]:
        """Return the references of stored contents among these hashes without reading the bytes."""
        found: dict[str, Reference] = {}
        for digest in digests:
            with storage_errors(self.folder):
                try:
                    size = os.stat(self._path(digest) / "data", follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
            found[digest] = Reference(digest, size)
        return found

    def holds(self, reference: Reference) -> bool:
        """Return True if a file with this hash and size is stored. Its bytes are not read."""
        path = self._path(reference.hash)
        with storage_errors(path):
            try:
                with open_folder(path) as folder:
                    status = os.stat("data", dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
        return stat.S_ISREG(status.st_mode) and status.st_size == reference.size

    def locate(self, reference: Reference) -> Path | None:
        """Return the file with the bytes of a reference, or `None`."""
        return self._path(reference.hash) / "data" if self.holds(reference) else None

    def survey(self) -> Iterator[str]:
        """Yield the hashes of all contents."""
        with storage_errors(self.folder):
            try:
                names = os.listdir(self.folder)
            except FileNotFoundError:
                return
        yield from (name for name in names if _HASH.fullmatch(name))

    def remove(self, digest: str) -> None:
        """Delete a content."""
        path = self._path(digest)
        with storage_errors(path):
            remove_folder(path)

    def deposit(self, canister: C) -> tuple[C, C]:
        """Store a canister's contents, and return its stored form and its in-memory form."""
        separated = separate(canister, self.settings.inline_bytes)
        for one in separated.deposits:
            self.keep(one)
        return separated.stored, separated.kept

    def _refresh(self, path: Path, data: bytes) -> bool:
        """Return True if the content is stored. Reset its age, and repair its bytes if needed."""
        held: bytes | None = None
        try:
            held = read_within(path, "data", len(data))
        except FileNotFoundError:
            if not path.is_dir():
                return False
        except OSError as error:
            if error.errno not in _NO_SUCH_DATA:
                raise
        if held != data:
            # Storing the same bytes again repairs damage.
            replace_file(path / "data", data, LARGEST_FILE, durable=self._durable)
        os.utime(path)
        return True

    def _write(self, path: Path, data: bytes, mimetype: str) -> None:
        with new_folder(path, durable=self._durable) as temporary:
            _fill(temporary, data, mimetype, durable=self._durable)

    def _path(self, digest: str) -> Path:
        if not _HASH.fullmatch(digest):
            raise ContentMissing(f"{digest!r} is not a SHA-256 in hexadecimal")
        with storage_errors(self.folder):
            refuse_link(self.folder)
        return self.folder / digest


def _fill(folder: Path, data: bytes, mimetype: str, *, durable: bool) -> None:
    hint = f'mimetype = "{mimetype}"\n' if _MIMETYPE.fullmatch(mimetype) else ""
    write_new(folder / "data", data, durable=durable)
    write_new(folder / "metadata.toml", f"size = {len(data)}\n{hint}".encode(), durable=durable)


def _missing(path: Path) -> ContentMissing:
    return ContentMissing(
        "this content, to which a message refers, is missing from the store; restore it "
        "from a backup",
        path=str(path),
    )


def _damaged(path: Path) -> ContentDamaged:
    return ContentDamaged(
        "the bytes no longer match this hash; restore them from a backup", path=str(path)
    )
