"""The repository of a memory: ours alone, in the memory's own folder, with a commit for changes.

A commit is made by `git fast-import`, out of bytes that we have read: neither the index of git nor
its filters take part, and what is cut leaves nothing behind. One process commits at a time; the
lock is on the folder and is handed to git, so it is held as long as any git of ours lives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import VersioningFailed
from vibe_llms.files import LARGEST_FILE, LARGEST_SETTINGS, read_file
from vibe_llms.memory.entries import LARGEST_BYTES
from vibe_llms.memory.files import ENTRIES
from vibe_llms.memory.git import LIMIT_SECONDS, Git, is_held
from vibe_llms.memory.objects import Run, quote, read_tree
from vibe_llms.storage.files import (
    TEMPORARY,
    make_folder,
    new_folder,
    read_within,
    replace_file,
    storage_errors,
    write_new,
)
from vibe_llms.storage.locks import locked

#: What tells that a repository is ours.
MARK = "vibe-llms"
AUTHOR = "vibe-llms <vibe-llms@localhost>"
_IGNORE = ".gitignore"
_HALF = TEMPORARY.encode()
#: What is derived from the entries, or lies beside them, is not kept.
_IGNORED = f"/*\n!/{_IGNORE}\n!/{ENTRIES}/\n{TEMPORARY}*\n"
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = false
\tbare = false
\tlogallrefupdates = true
"""
#: A lock of git that is older, and that nobody living has, belongs to nobody.
_OLD_SECONDS = 600.0
#: A file that was changed so shortly before it was read may have changed again unseen.
_SETTLED_NANOSECONDS = 1_000_000_000


class _Seen(Struct, frozen=True, array_like=True):
    """The blob that a file was, and what tells that it has not changed since."""

    size: int
    modified: int
    changed: int
    inode: int
    blob: str


class Repository:
    """Below `folder`, which is also its work tree."""

    def __init__(self, folder: Path, *, seconds: float = LIMIT_SECONDS) -> None:
        self.folder = folder
        self.git = Git(folder)
        self._seconds = seconds

    @property
    def exists(self) -> bool:
        """Whether there is a repository, and it is ours."""
        return self._is_folder(self.git.directory) and self._is_folder(self.git.directory / MARK)

    def check(self) -> None:
        """`VersioningFailed` where nothing can be committed, and why."""
        if Git.find() is None:
            raise VersioningFailed("git is not installed, or not in PATH")
        directory = self.git.directory
        if not os.path.lexists(directory) or self.exists:
            return
        if not self._is_folder(directory):
            raise VersioningFailed(
                "it is a link or a file, so no repository of ours; move it away",
                path=str(directory),
            )
        raise VersioningFailed(
            "this repository was not made by vibe-llms; move it away, or let it be used: "
            f"mkdir {directory / MARK}",
            path=str(directory),
        )

    @contextmanager
    def working(self, seconds: float | None = None) -> Iterator[Run]:
        """Hold the repository, which must exist, for some commands within one limit of time."""
        ends = time.monotonic() + (self._seconds if seconds is None else seconds)
        directory = self.git.directory
        with storage_errors(directory):
            patience = max(ends - time.monotonic(), 0.0)
            with locked(directory, seconds=patience) as descriptor:
                self._clear_locks()

                def run(*arguments: str, data: bytes = b"", index: Path | None = None) -> bytes:
                    return self.git.run(
                        *arguments, data=data, ends=ends, index=index, held=(descriptor,)
                    )

                note = directory / MARK / "running"
                note.touch(0o600)
                yield run
                # A crash leaves it, and with it what git had locked; see `_clear_locks`.
                note.unlink(missing_ok=True)

    def commit(self, *, seconds: float | None = None) -> int:
        """Commit what has changed below the entries, within so many seconds; how many files."""
        with storage_errors(self.folder):
            if not os.path.isdir(self.folder / ENTRIES):
                return 0
            self.check()
            if os.path.islink(self.folder / ENTRIES):
                raise VersioningFailed(
                    "it is a link, and git keeps nothing that lies behind one",
                    path=str(self.folder / ENTRIES),
                )
            self._make()
        with self.working(seconds) as run:
            return self.commit_within(run)

    def commit_within(self, run: Run) -> int:
        """The same, for who holds the repository already."""
        branch = self._branch()
        parent = run("for-each-ref", "--format=%(objectname)", branch).decode().strip()
        before = read_tree(run("ls-tree", "-r", "-z", "--full-tree", branch)) if parent else {}
        seen = self._load_seen()
        kept: dict[bytes, _Seen] = {}
        changed: dict[bytes, bytes] = {}
        now: set[bytes] = set()
        for path in self._list_files(run):
            blob, data = self._look(path, seen, kept)
            if not blob:
                continue
            now.add(path)
            if before.get(path) != blob:
                found = data if data is not None else self._read(path)
                if found is not None:
                    changed[path] = found
        gone = [path for path in before if path not in now]
        if changed or gone:
            words = _describe(changed.keys() - before.keys(), changed.keys() & before.keys(), gone)
            stream = _produce_stream(branch, parent, words, changed, gone)
            run("fast-import", "--quiet", "--done", data=stream)
            self._tidy(run)
        self._store_seen(kept)
        return len(changed) + len(gone)

    def _tidy(self, run: Run) -> None:
        # For who looks with git itself; another git may hold the index, and nothing needs it.
        with suppress(VersioningFailed):
            run("read-tree", "--reset", "HEAD")
            collect(run, "--auto")

    def _make(self) -> None:
        """Make the repository where there is none: it appears whole, and with our mark."""
        if not (self.folder / _IGNORE).exists():
            with suppress(FileExistsError):
                write_new(self.folder / _IGNORE, _IGNORED.encode(), durable=False)
        if self.exists:
            return
        try:
            with new_folder(self.git.directory, durable=False) as folder:
                for name in (MARK, "objects/info", "objects/pack", "refs/heads", "refs/tags"):
                    make_folder(folder / name)
                write_new(folder / "config", _CONFIG.encode(), durable=False)
                write_new(folder / "HEAD", b"ref: refs/heads/main\n", durable=False)
        except (FileExistsError, FileNotFoundError):
            # Another process was quicker, and may have cleared this away; see `_clear_locks`.
            if not self.exists:
                raise

    def _branch(self) -> str:
        head = read_file(self.git.directory / "HEAD", LARGEST_SETTINGS).decode()
        kind, _, branch = head.strip().partition(" ")
        if kind != "ref:":
            raise VersioningFailed(
                "no branch is checked out here; check one out: git switch main",
                path=str(self.folder),
            )
        return branch

    def _list_files(self, run: Run) -> Iterator[bytes]:
        # Without an index every file is a stranger to git, so it lists what is not ignored.
        none = self.git.directory / MARK / "no-index"
        listed = run(
            *("ls-files", "--others", "--exclude-standard", "-z", "--", _IGNORE, ENTRIES),
            index=none,
        )
        for path in filter(None, listed.split(b"\0")):
            # Another repository is listed as a folder; what is half written is never kept.
            if not path.endswith(b"/") and not os.path.basename(path).startswith(_HALF):
                yield path

    def _look(
        self, path: bytes, seen: Mapping[bytes, _Seen], kept: dict[bytes, _Seen]
    ) -> tuple[str, bytes | None]:
        """The blob that a file is, and its bytes if it had to be read; empty where it is none."""
        try:
            status = os.lstat(os.path.join(os.fsencode(self.folder), path))
        except OSError:
            return "", None
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_BYTES:
            return "", None
        look = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        known = seen.get(path)
        if known is not None and look == msgspec.structs.astuple(known)[:4]:
            kept[path] = known
            return known.blob, None
        settled = time.time_ns() - _SETTLED_NANOSECONDS
        data = self._read(path)
        if data is None:
            return "", None
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if max(status.st_mtime_ns, status.st_ctime_ns) < settled:
            kept[path] = _Seen(*look, blob)
        return blob, data

    def _read(self, path: bytes) -> bytes | None:
        place = self.folder / os.fsdecode(path)
        try:
            return read_within(place.parent, place.name)
        except OSError:
            return None

    def _load_seen(self) -> Mapping[bytes, _Seen]:
        try:
            data = read_file(self.git.directory / MARK / "seen", LARGEST_FILE)
            return msgspec.msgpack.decode(data, type=dict[bytes, _Seen])
        except (OSError, msgspec.DecodeError):
            return {}

    def _store_seen(self, kept: Mapping[bytes, _Seen]) -> None:
        replace_file(
            self.git.directory / MARK / "seen", msgspec.msgpack.encode(kept), durable=False
        )

    def _clear_locks(self) -> None:
        """Remove the locks that a git which was killed has left; to be called with our lock."""
        directory = self.git.directory
        # We hold the lock that every git of ours has until it ends, so what ours made is stale.
        interrupted = (directory / MARK / "running").exists()
        locks = [*directory.glob("*.lock"), *(directory / "refs").rglob("*.lock")]
        if interrupted:
            # What it had not finished takes room, of which there was perhaps too little.
            locks += (directory / "objects").glob("*/tmp_*")
        for lock in (*locks, directory / "gc.pid"):
            with suppress(FileNotFoundError):
                old = time.time() - os.lstat(lock).st_mtime > _OLD_SECONDS
                if (interrupted or old) and not is_held(lock, self.folder):
                    lock.unlink()
        for report in directory.glob("fast_import_crash_*"):
            report.unlink(missing_ok=True)
        # A repository that was never given its name; this one has it.
        for folder in self.folder.glob(f"{TEMPORARY}*/"):
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _is_folder(path: Path) -> bool:
        return path.is_dir() and not path.is_symlink()


def collect(run: Run, *options: str) -> None:
    """Let git collect its garbage, unless its settings name a program that would take part."""
    hook = "gc.recentObjectsHook"
    try:
        run("config", "--get-all", hook)
    except VersioningFailed as error:
        if error.slow:
            raise
        # Nothing was found.
        run("gc", "--quiet", *options)
        return
    raise VersioningFailed(
        f"a setting names a program, which is not run: git config --unset {hook}"
    )


def _produce_stream(
    branch: str, parent: str, words: str, changed: Mapping[bytes, bytes], gone: list[bytes]
) -> bytes:
    message = words.encode()
    parts = [
        b"feature done\ncommit %s\n" % branch.encode(),
        b"committer %s %d +0000\n" % (AUTHOR.encode(), time.time()),
        b"data %d\n%s\n" % (len(message), message),
    ]
    if parent:
        parts.append(b"from %s\n" % parent.encode())
    parts += [b"D %s\n" % quote(path) for path in gone]
    for path, data in changed.items():
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (quote(path), len(data), data))
    return b"".join((*parts, b"done\n"))


def _describe(added: set[bytes], changed: set[bytes], gone: list[bytes]) -> str:
    added = added - {_IGNORE.encode()}
    counts = {"add": len(added), "change": len(changed), "remove": len(gone)}
    words = ", ".join(f"{verb} {count}" for verb, count in counts.items() if count)
    return words.capitalize() or "Begin"
