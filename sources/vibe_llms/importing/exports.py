"""Files of an export: a single file, those of a folder, or those in a ZIP file.

Names in ZIP files are never used as paths. What unpacks to far more than it should is refused.
"""

from __future__ import annotations

import bisect
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self

from msgspec import Struct

from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.base.files import describe_size, open_regular, walk_files
from vibe_llms.importing.zstandard import ZSTANDARD, open_zstandard

#: Maximum ratio of unpacked to packed size, above a size in bytes at which it matters.
#: Deflate reaches 1,000; JSON of conversations reaches 20, and with much repetition 100.
_LARGEST_RATIO = 250
_RATIO_FROM = 64 * 1024**2
_MOST_FILES = 500_000
_LARGEST_MEDIA = 512 * 1024**2
_ZIP = b"PK"
#: End of a name's first part.
_FOLLOWS = re.compile(r"[^A-Za-z0-9_]|\Z")
#: Errors of damaged, encrypted, or unsupported ZIP files.
DAMAGE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error),
    *(NotImplementedError, EOFError, OSError),
)


class ExportFile(Struct, frozen=True):
    """A file of an export.

    `size` is in bytes when unpacked. `path` is its place on the disk, None in a ZIP file.
    """

    name: str
    size: int
    changed: datetime
    opener: Callable[[], BinaryIO]
    path: Path | None = None

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file; raises `ImportUnreadable` for damage, also while it is read."""
        try:
            with self.opener() as file:
                yield file
        except RuntimeError as error:
            # `zipfile` raises it for encrypted files.
            raise ImportUnreadable(f"{self.name}: {error}") from error
        except DAMAGE as error:
            raise ImportUnreadable(f"{self.name} is damaged or cannot be read: {error}") from error

    def read(self, limit: int = _LARGEST_MEDIA) -> bytes:
        """Return all bytes; raises `ImportUnreadable` if there are more than `limit`."""
        with self.opened() as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ImportUnreadable(f"{self.name} is larger than {describe_size(limit)}")
        return data


class Export:
    """All files that belong together, by their names. Closes ZIP files at the end of its block."""

    def __init__(self) -> None:
        self.files: list[ExportFile] = []
        self._stack = ExitStack()
        self._by_name: dict[str, ExportFile] = {}
        self._names: list[str] = []
        #: What importers have read of the export as a whole, by names of their own.
        self.cache: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @classmethod
    def open(cls, paths: Iterable[Path]) -> Export:
        """Open files, folders, and ZIP files.

        Raises `ImportUnreadable` for one that cannot be opened.
        """
        export = cls()
        with export._stack:
            for path in paths:
                export._add(path)
            # Nothing is closed if all could be opened.
            export._stack = export._stack.pop_all()
        return export

    def find(self, name: str) -> ExportFile | None:
        """Return the file with this name, in any folder of the export; the last one if several."""
        return self._by_name.get(name)

    def find_prefixed(self, prefix: str) -> ExportFile | None:
        """Return the first file whose name is a prefix, alone or before a suffix or more words.

        >>> import re
        >>> bool(_FOLLOWS.match("-photo.png")), bool(_FOLLOWS.match("b.png"))
        (True, False)
        """
        if len(self._names) != len(self._by_name):
            self._names = sorted(self._by_name)
        for place in range(bisect.bisect_left(self._names, prefix), len(self._names)):
            name = self._names[place]
            if not name.startswith(prefix):
                break
            if _FOLLOWS.match(name, len(prefix)):
                return self._by_name[name]
        return None

    def _add(self, path: Path) -> None:
        try:
            if path.is_dir():
                self._add_folder(path)
            else:
                self._add_file(path, path.name)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ImportUnreadable(f"cannot read {path}: {reason}") from error

    def _add_folder(self, folder: Path) -> None:
        for name, status in walk_files(folder):
            # Links may lead out of the folder.
            if not isinstance(status, OSError):
                self._add_file(Path(name), os.path.relpath(name, folder))

    def _add_file(self, path: Path, name: str) -> None:
        descriptor = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            head = file.read(4)
        if head[:2] == _ZIP and head[2:] in (b"\3\4", b"\5\6", b"\7\x08"):
            self._add_zip(path)
            return
        changed = datetime.fromtimestamp(int(status.st_mtime), UTC)
        opener = partial(open_zstandard if head == ZSTANDARD else _open_file, path)
        self._keep(ExportFile(name, status.st_size, changed, opener, path))

    def _add_zip(self, path: Path) -> None:
        file = self._stack.enter_context(os.fdopen(open_regular(path), "rb"))
        try:
            archive = self._stack.enter_context(zipfile.ZipFile(file))
        except DAMAGE as error:
            raise ImportUnreadable(
                f"{path} is a damaged or incomplete ZIP file ({error}); download it again"
            ) from error
        members = [one for one in archive.infolist() if not one.is_dir()]
        _refuse_bombs(members, os.fstat(file.fileno()).st_size, path)
        for member in members:
            if _is_harmless(member.filename):
                changed = _read_time(member.date_time)
                opener = partial(_open_member, archive, member)
                self._keep(ExportFile(member.filename, member.file_size, changed, opener))

    def _keep(self, file: ExportFile) -> None:
        self.files.append(file)
        self._by_name[PurePosixPath(file.name).name] = file


def _open_file(path: Path) -> BinaryIO:
    return os.fdopen(open_regular(path), "rb")


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    return archive.open(member)  # type: ignore[return-value]


def _refuse_bombs(members: Sequence[zipfile.ZipInfo], size: int, path: Path) -> None:
    """Raise `ImportUnreadable` for a ZIP file that unpacks to far more than its size."""
    if len(members) > _MOST_FILES:
        raise ImportUnreadable(f"{path} has more than {_MOST_FILES:,} files")
    # Members that share their bytes count each time.
    packed = [(one.file_size, one.compress_size, one.filename) for one in members]
    for unpacked, stored, name in [*packed, (sum(one[0] for one in packed), size, "")]:
        if unpacked > _RATIO_FROM and unpacked > stored * _LARGEST_RATIO:
            what = f"its file {name!r}" if name else "it"
            raise ImportUnreadable(
                f"{path} is refused: {what} unpacks from {describe_size(stored)} to "
                f"{describe_size(unpacked)}, as only harmful files do"
            )


def _is_harmless(name: str) -> bool:
    """Return True unless the name of a member would lead out of a folder, or is a system's own."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return not (name.startswith(("/", "\\", "__MACOSX/")) or ".." in parts or "\0" in name)


def _read_time(moment: tuple[int, int, int, int, int, int]) -> datetime:
    try:
        return datetime(*moment, tzinfo=UTC)
    except ValueError:
        return datetime(1980, 1, 1, tzinfo=UTC)
