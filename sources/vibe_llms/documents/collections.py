"""Named collections of files and folders.

Users keep the definition of a collection in a file. The index holds derived data: the files that
were read, and the hashes of their texts.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import CollectionNotFound, RequestError, StorageError
from vibe_llms.base.files import read_file, walk_files
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.documents.database import DocumentDatabase
from vibe_llms.messages.contents import repair_text

FOLDER = "collections"
_SUFFIX = ".toml"
_NAME = re.compile(r"[^\W_][\w.-]{0,63}")
_LARGEST = 1024 * 1024
_NO_TEXT = "the path is not UTF-8; rename the file"


class CollectionFile(Struct, frozen=True):
    """A file of a collection, with the hash of its text or the problem with it.

    `size` in bytes and `modified` in nanoseconds describe the file when it was read.
    """

    path: str
    size: int = 0
    modified: int = 0
    hash: str = ""
    problem: str = ""


class Collection(Struct, frozen=True):
    """A collection: the paths of its files and folders, and its files when they were last read.

    With `follow_links`, links to files in its folders are followed.
    """

    name: str
    paths: tuple[str, ...] = ()
    files: tuple[CollectionFile, ...] = ()
    follow_links: bool = False


class Collections:
    """Collections of one owner, in a folder, or in memory without one. Methods block."""

    def __init__(
        self, folder: Path | None, database: DocumentDatabase, *, lock_seconds: float
    ) -> None:
        self._folder = None if folder is None else folder / FOLDER
        self._database = database
        self._lock_seconds = lock_seconds
        self._lock = threading.Lock()
        self._kept: dict[str, _Definition] = {}

    def survey(self) -> Sequence[Collection]:
        """Return all collections, sorted by name."""
        return [self.access(name) for name in sorted(self._survey_names())]

    def access(self, name: str) -> Collection:
        """Return a collection, or raise `CollectionNotFound`."""
        definition = self._read_definition(name)
        files = tuple(self.survey_files(name))
        return Collection(name, definition.paths, files, definition.follow_links)

    def survey_files(self, name: str) -> Sequence[CollectionFile]:
        """Return the stored states of a collection's files, by path."""
        rows = self._database.read(
            lambda database: database.execute(
                "select path, size, modified, hash, problem from files "
                "where collection = ? order by path",
                [name],
            ).fetchall()
        )
        return [CollectionFile(*row) for row in rows]

    def add(self, name: str, paths: Iterable[Path], *, follow_links: bool = False) -> None:
        """Add paths to a collection, and create it if necessary. Nothing is read yet.

        With `follow_links`, links in its folders are followed from now on. Without paths, the
        collection must exist.
        """
        check_name(name)
        added = [os.path.abspath(path.expanduser()) for path in paths]
        for path in added:
            if repair_text(path) != path:
                raise RequestError(f"{repair_text(path)}: {_NO_TEXT}")
            if not os.path.exists(path):
                raise RequestError(f"{path}: no such file or folder")
        with self._changing():
            # An empty list of paths must not create a collection.
            exists = not added or name in self._survey_names()
            before = self._read_definition(name) if exists else _Definition()
            after = tuple(dict.fromkeys((*before.paths, *added)))
            self._write(name, _Definition(after, before.follow_links or follow_links))

    def remove(self, name: str) -> None:
        """Remove a collection. Its files stay, and their texts until they expire."""
        with self._changing():
            self._read_definition(name)
            if self._folder is None:
                del self._kept[name]
            else:
                with storage_errors(self._folder):
                    os.unlink(self._folder / f"{name}{_SUFFIX}")
        self._database.write(
            lambda database: database.execute("delete from files where collection = ?", [name])
        )

    def record(self, name: str, file: CollectionFile) -> None:
        """Store the state of a collection's file."""
        self._database.write(
            lambda database: database.execute(
                "insert or replace into files values (?, ?, ?, ?, ?, ?)",
                (name, *msgspec.structs.astuple(file)),
            )
        )

    def leave_out(self, name: str, paths: Iterable[str]) -> None:
        """Remove files that no longer exist from a collection."""
        rows = [(name, path) for path in paths]
        statement = "delete from files where collection = ? and path = ?"
        self._database.write(lambda database: database.executemany(statement, rows))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the folder of the definitions, and create it if necessary."""
        with self._lock, ExitStack() as stack:
            if self._folder is not None:
                with storage_errors(self._folder):
                    make_folder(self._folder)
                    stack.enter_context(locked(self._folder, seconds=self._lock_seconds))
            yield

    def _survey_names(self) -> Sequence[str]:
        if self._folder is None:
            return [*self._kept]
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(str(error.strerror), path=str(self._folder)) from error
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return [stem for stem in stems if _NAME.fullmatch(stem)]

    def _read_definition(self, name: str) -> _Definition:
        if name not in self._survey_names():
            raise CollectionNotFound(
                f"collection {name!r} not found; available: "
                f"{', '.join(sorted(self._survey_names())) or 'none'}"
            )
        if self._folder is None:
            return self._kept[name]
        path = self._folder / f"{name}{_SUFFIX}"
        with storage_errors(path):
            data = read_file(path, _LARGEST)
        try:
            return msgspec.toml.decode(data, type=_Definition)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(f"cannot be read: {error}", path=str(path)) from error

    def _write(self, name: str, definition: _Definition) -> None:
        if self._folder is None:
            self._kept[name] = definition
            return
        path = self._folder / f"{name}{_SUFFIX}"
        with storage_errors(path):
            replace_file(path, msgspec.toml.encode(definition), _LARGEST)


class _Definition(Struct, frozen=True, omit_defaults=True, rename="kebab"):
    paths: tuple[str, ...] = ()
    follow_links: bool = False


# msgspec 0.22 crashes if two threads use a type for the first time at once, so use it here first.
msgspec.json.Decoder(_Definition)


def check_name(name: str) -> None:
    """Raise `RequestError` if a collection cannot have a name."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is not a valid name of a collection: use up to 64 letters, digits, '.', "
            "'_', and '-', with a letter or digit first"
        )


def survey_files(
    paths: Iterable[str], *, follow_links: bool = False
) -> Iterator[tuple[str, os.stat_result | OSError]]:
    """Yield each regular file at and below some paths once, with its status.

    Links to folders are not followed, and names that begin with a dot are skipped. A link to a file
    is an error, unless it is one of the paths or `follow_links` is true.
    """
    seen = set[str]()
    for root in paths:
        for path, found in _walk(root, follow_links=follow_links):
            shown = repair_text(path)
            if shown not in seen:
                seen.add(shown)
                yield shown, found if shown == path else OSError(errno.EILSEQ, _NO_TEXT)


def _walk(root: str, *, follow_links: bool) -> Iterator[tuple[str, os.stat_result | OSError]]:
    if os.path.isdir(root):
        yield from walk_files(root, follow_links=follow_links)
        return
    try:
        yield root, os.stat(root)
    except OSError as error:
        yield root, error
