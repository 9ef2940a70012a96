"""Git repository of a memory: in the memory's own folder, with a commit for each change.

A commit uses an index of its own, so that the user's index, staged files, and lock do not matter.
Our attributes override all others, so that no filter reads a file. One process commits at a time;
git inherits the lock, which lasts as long as any of our git processes runs.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias

from vibe_llms.base.exceptions import VersioningFailed
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.base.folders import (
    TEMPORARY,
    make_folder,
    new_folder,
    refuse_link,
    replace_file,
    storage_errors,
    write_new,
)
from vibe_llms.base.locks import locked
from vibe_llms.memory.entries import LARGEST_BYTES
from vibe_llms.memory.files import ENTRIES
from vibe_llms.memory.git import LIMIT_SECONDS, Git, is_held

#: Runs one git command within the time limit of the whole work, and returns its output.
Run: TypeAlias = Callable[..., bytes]

#: Folder that marks a repository as ours.
MARK = "vibe-llms"
_IGNORE = ".gitignore"
_HALF = TEMPORARY.encode()
#: Only the entries are versioned; everything else is derived from them.
_IGNORED = f"/*\n!/{_IGNORE}\n!/{ENTRIES}/\n{TEMPORARY}*\n"
#: Git stores the bytes of files unchanged and runs no filter on them, despite other attributes.
_ATTRIBUTES = b"* -filter -text -ident -working-tree-encoding\n"
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = false
\tbare = false
\tlogallrefupdates = true
"""
#: Git's name of an empty tree.
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
#: Age after which a git lock that no running process holds is removed.
_OLD_SECONDS = 600.0
_VERBS = {"A": "add", "M": "change", "T": "change", "D": "remove"}


class Repository:
    """Repository in a folder, which is also its work tree."""

    def __init__(self, folder: Path, *, seconds: float = LIMIT_SECONDS) -> None:
        self.folder = folder
        self.git = Git(folder)
        self._seconds = seconds

    @property
    def exists(self) -> bool:
        """True if a repository with our mark exists."""
        return self._is_folder(self.git.directory) and self._is_folder(self.git.directory / MARK)

    def check(self) -> None:
        """Raise `VersioningFailed` if nothing can be committed."""
        if Git.find() is None:
            raise VersioningFailed("git is not installed or not in PATH")
        directory = self.git.directory
        if not os.path.lexists(directory) or self.exists:
            return
        if not self._is_folder(directory):
            raise VersioningFailed(
                "not a folder with a git repository; move it away",
                path=str(directory),
            )
        raise VersioningFailed(
            "this repository was not created by vibe-llms; move it away, or allow its use: "
            f"mkdir {directory / MARK}",
            path=str(directory),
        )

    @contextmanager
    def working(self, seconds: float | None = None) -> Iterator[Run]:
        """Hold the existing repository for commands within one time limit."""
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
                # After a crash the note remains, and so do git's locks; see `_clear_locks`.
                note.unlink(missing_ok=True)

    def commit(self, *, seconds: float | None = None) -> int:
        """Commit changed entries within a time limit; return the number of files."""
        with storage_errors(self.folder):
            if not os.path.isdir(self.folder / ENTRIES):
                return 0
            self.check()
            if os.path.islink(self.folder / ENTRIES):
                raise VersioningFailed(
                    "it is a link, and git does not follow links",
                    path=str(self.folder / ENTRIES),
                )
            self._make()
        with self.working(seconds) as run:
            return self.commit_within(run)

    def commit_within(self, run: Run) -> int:
        """Commit changed entries while the repository is held; return the number of files."""
        head = run("for-each-ref", "--format=%(objectname)", self._find_branch()).decode().strip()
        index = self.git.directory / MARK / "index"
        self._write_attributes()
        self._read_head(run, head, index)
        self._stage(run, index)
        tree = run("write-tree", index=index).decode().strip()
        changed = run("diff-tree", "-r", "--name-status", "-z", head or _EMPTY_TREE, tree)
        # A letter, and then a path.
        parts = changed.decode("utf-8", "replace").split("\0")[:-1]
        if not parts:
            return 0
        words = _describe(parts[::2], parts[1::2])
        parents = ("-p", head) if head else ()
        commit = run("commit-tree", tree, *parents, "-m", words).decode().strip()
        run("update-ref", "-m", words, "HEAD", commit, head or "0" * len(commit))
        with suppress(VersioningFailed):
            # Shows these files as committed to users who run git; not needed here.
            self._stage(run, self.git.directory / "index")
            collect(run, "--auto")
        return len(parts) // 2

    def _make(self) -> None:
        """Create the repository if missing, atomically and with our mark."""
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
            # Another process was faster, and may have removed this one; see `_clear_locks`.
            if not self.exists:
                raise

    def _find_branch(self) -> str:
        head = read_file(self.git.directory / "HEAD", LARGEST_SETTINGS).decode()
        kind, _, branch = head.strip().partition(" ")
        if kind != "ref:":
            raise VersioningFailed(
                "no branch is checked out; run: git switch main",
                path=str(self.folder),
            )
        return branch

    def _write_attributes(self) -> None:
        path = self.git.directory / "info" / "attributes"
        make_folder(path.parent)
        refuse_link(path.parent)
        replace_file(path, _ATTRIBUTES, LARGEST_SETTINGS, durable=False)

    def _read_head(self, run: Run, head: str, index: Path) -> None:
        """Read the last commit into the index; unchanged files keep their recorded status."""
        wanted = ("-m", head) if head else ("--empty",)
        try:
            run("read-tree", *wanted, index=index)
        except VersioningFailed as error:
            if error.slow:
                raise
            index.unlink(missing_ok=True)
            run("read-tree", *wanted, index=index)

    def _stage(self, run: Run, index: Path) -> None:
        """Update the entries in an index from their files; other files stay unchanged."""
        listed = run(
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            _IGNORE,
            ENTRIES,
            index=index,
        )
        inside = cache(self._is_inside)
        kept: list[bytes] = []
        gone: list[bytes] = []
        for path in filter(None, listed.split(b"\0")):
            (kept if self._is_kept(path) and inside(os.path.dirname(path)) else gone).append(path)
        for option, paths in (("--add", kept), ("--force-remove", gone)):
            if paths:
                data = b"\0".join(paths) + b"\0"
                run("update-index", "--remove", option, "-z", "--stdin", data=data, index=index)

    def _is_kept(self, path: bytes) -> bool:
        """Return True if a path may be an entry's file: not a link, and not partly written."""
        with suppress(OSError):
            status = os.lstat(os.path.join(os.fsencode(self.folder), path))
            half = os.path.basename(path).startswith(_HALF)
            return stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_BYTES and not half
        return False

    def _is_inside(self, folder: bytes) -> bool:
        """Return True if the path to a folder contains no link."""
        base = os.path.realpath(os.fsencode(self.folder))
        return os.path.realpath(os.path.join(base, folder)) == os.path.join(base, folder).rstrip(
            b"/"
        )

    def _clear_locks(self) -> None:
        """Remove the locks that a killed git has left; called while we hold ours."""
        directory = self.git.directory
        # All of our git processes hold the lock that we have now, so locks made by ours are stale.
        interrupted = (directory / MARK / "running").exists()
        (directory / MARK / "index.lock").unlink(missing_ok=True)
        locks = [*directory.glob("*.lock"), *(directory / "refs").rglob("*.lock")]
        if interrupted:
            # Unfinished objects take up space, which may have run out.
            locks += (directory / "objects").glob("*/tmp_*")
        for lock in (*locks, directory / "gc.pid"):
            with suppress(FileNotFoundError):
                old = time.time() - os.lstat(lock).st_mtime > _OLD_SECONDS
                if (interrupted or old) and not is_held(lock, self.folder):
                    lock.unlink()
        for report in directory.glob("fast_import_crash_*"):
            report.unlink(missing_ok=True)
        # Repositories that were never finished.
        for folder in self.folder.glob(f"{TEMPORARY}*/"):
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _is_folder(path: Path) -> bool:
        return path.is_dir() and not path.is_symlink()


def collect(run: Run, *options: str) -> None:
    """Let git collect garbage, unless the repository's settings name a program for that."""
    hook = "gc.recentObjectsHook"
    try:
        run("config", "--get-all", hook)
    except VersioningFailed as error:
        if error.slow:
            raise
        # No such setting.
        run("gc", "--quiet", *options)
        return
    raise VersioningFailed(
        f"{hook} names a program, which is never run; remove it: git config --unset {hook}"
    )


def _describe(letters: Sequence[str], paths: Sequence[str]) -> str:
    """Describe a commit in its message."""
    verbs = Counter(
        _VERBS[letter] for letter, path in zip(letters, paths, strict=True) if path != _IGNORE
    )
    words = ", ".join(
        f"{verb} {verbs[verb]}" for verb in ("add", "change", "remove") if verbs[verb]
    )
    return words.capitalize() or "Begin"
