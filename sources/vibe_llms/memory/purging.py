"""Find forgotten words in git, and purge them from its history.

Every object of the repository is searched, reachable or not, as `Memory.forget` searches files.
Purging rewrites the history without the files that contain the words, and makes git remove
unreachable objects. Copies elsewhere, such as a remote, are not touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from vibe_llms.base.exceptions import MemoryInvalid, VersioningFailed
from vibe_llms.memory.entries import GLOBAL, Scope
from vibe_llms.memory.files import ENTRIES
from vibe_llms.memory.git import ask
from vibe_llms.memory.objects import (
    FileChange,
    read_log,
    read_names,
    read_objects,
    unquote,
)
from vibe_llms.memory.places import identity_in
from vibe_llms.memory.repository import MARK, Repository, Run, collect
from vibe_llms.memory.text_search import examine, fold, holds

#: Timeout for a purge: rewriting the history of a large memory takes time.
PURGE_SECONDS = 600.0
#: Placeholder for a file whose name contains no words.
_NAMELESS = "facts/a__b.md"
_FORGOTTEN = b"(forgotten)\n"
#: Files in which git keeps names of earlier commits, and texts about them.
_LEFT_BEHIND = (
    *("ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"),
    *("COMMIT_EDITMSG", "MERGE_MSG", "SQUASH_MSG"),
    # Made by earlier versions of this library.
    f"{MARK}/seen",
)


class Held(Struct, frozen=True):
    """A commit that contains forgotten words; `commit` is empty for unreachable objects."""

    commit: str
    time: datetime | None = None


async def find_held(
    repository: Repository, words: str | None, *, scopes: Iterable[Scope] | None = None
) -> Sequence[Held]:
    """Return the commits that contain these words, newest first; none without a repository.

    Without words, return the commits that contain any file of the scopes.
    """
    chosen = None if scopes is None else {str(scope) for scope in scopes}
    return await ask(repository.git, lambda: _Search(repository, words, chosen).find())


async def purge(
    repository: Repository, words: str | None, *, scopes: Iterable[Scope] | None = None
) -> Sequence[Held]:
    """Remove these words from the history; without words, all files of the scopes.

    Commits get new names. Return the result of `find_held` before the purge. Raise
    `VersioningFailed` if any of it is left.
    """
    chosen = None if scopes is None else {str(scope) for scope in scopes}
    return await ask(repository.git, lambda: _Search(repository, words, chosen).purge())


def find_surrounding(folder: Path) -> Path | None:
    """Return the parent folder whose git repository contains the memory, and maybe copies of it."""
    return next((one for one in folder.resolve().parents if (one / ".git").exists()), None)


class _Search:
    def __init__(self, repository: Repository, words: str | None, scopes: set[str] | None) -> None:
        self._repository = repository
        self._words = "" if words is None else fold(words)
        self._all = words is None and scopes is not None
        self._scopes = scopes
        if not self._words and not self._all:
            raise MemoryInvalid("the text to forget is empty")

    def find(self) -> Sequence[Held]:
        if not self._repository.exists:
            return []
        with self._repository.working() as run:
            return self._find(run)[0]

    def purge(self) -> Sequence[Held]:
        if not self._repository.exists:
            return []
        with self._repository.working(PURGE_SECONDS) as run:
            # Commit first, so that the newest version is without the forgotten files.
            self._repository.commit_within(run)
            held, blobs = self._find(run)
            if held:
                self._rewrite(run, blobs)
            if held or self._all:
                self._collect(run)
                if left := self._find(run)[0]:
                    raise VersioningFailed(
                        f"git still contains the text in {describe_held(left)}; to delete all "
                        f"history, remove {self._repository.git.directory}",
                        path=str(self._repository.folder),
                    )
        return held

    def _find(self, run: Run) -> tuple[Sequence[Held], set[bytes]]:
        """Return the commits and the blobs that contain the words, in all of the repository."""
        blobs, trees, messages = self._scan(run)
        if not blobs and not trees and not messages and not self._all:
            return [], blobs
        held: dict[bytes, Held] = {}
        seen: set[bytes] = set()
        for one in read_log(run):
            seen |= {one.name, *(change.after for change in one.changes)}
            if one.name in messages or any(
                change.after in blobs
                or (self._is_named(os.path.basename(change.path)) and self._stays(change))
                for change in one.changes
                if self._is_meant(change.path)
            ):
                held.setdefault(one.name, Held(one.name.decode(), one.time))
        # Unreachable objects may belong to any scope.
        if (blobs | messages) - seen or (trees and self._scopes is None and not held):
            held[b""] = Held("")
        return [*held.values()], blobs

    def _scan(self, run: Run) -> tuple[set[bytes], set[bytes], set[bytes]]:
        """Return the blobs with the words, trees with such file names, and commits and tags."""
        blobs: set[bytes] = set()
        trees: set[bytes] = set()
        messages: set[bytes] = set()
        if self._all:
            # Only the places of files count.
            return blobs, trees, messages
        for kind, name, data in read_objects(run):
            match kind:
                case b"tree":
                    if any(map(self._is_named, read_names(data))):
                        trees.add(name)
                case b"blob":
                    if holds(self._words, examine(data, GLOBAL, _NAMELESS)[1]):
                        blobs.add(name)
                case _:
                    text = data.partition(b"\n\n")[2].decode("utf-8", "replace")
                    if holds(self._words, [text]):
                        messages.add(name)
        return blobs, trees, messages

    def _is_named(self, name: bytes) -> bool:
        if self._all:
            return True
        text = name.decode("utf-8", "replace")
        return not identity_in(text) and holds(self._words, [text])

    def _stays(self, change: FileChange) -> bool:
        """Return True if a change leaves a file, or at least its name, behind."""
        return not self._all or change.status != "D"

    def _is_meant(self, path: bytes) -> bool:
        """Return True if a file is an entry of one of the scopes."""
        folder, _, rest = path.decode("utf-8", "replace").partition("/")
        scope = rest.partition("/")[0]
        return folder == ENTRIES and (self._scopes is None or scope in self._scopes)

    def _rewrite(self, run: Run, blobs: set[bytes]) -> None:
        exported = run(
            "fast-export",
            "--all",
            "--no-data",
            "--reencode=no",
            "--signed-tags=strip",
            "--tag-of-filtered-object=drop",
        )
        stream = b"".join(self._filter(exported, blobs))
        if stream:
            run("fast-import", "--quiet", "--force", "--done", data=stream)

    def _filter(self, exported: bytes, blobs: set[bytes]) -> Iterator[bytes]:
        """Yield the stream of the history without the objects that contain the words."""
        position = 0
        yield b"feature done\n"
        while position < len(exported):
            end = exported.index(b"\n", position) + 1
            line = exported[position:end]
            position = end
            if line.startswith(b"data "):
                message = exported[end : end + int(line[5:])]
                position = end + len(message)
                if not self._all and holds(self._words, [message.decode("utf-8", "replace")]):
                    message = _FORGOTTEN
                yield b"data %d\n%s" % (len(message), message)
            elif line.startswith(b"M "):
                _, _, blob, path = line.rstrip(b"\n").split(b" ", 3)
                path = unquote(path)
                bad = blob in blobs or self._is_named(os.path.basename(path))
                if not bad or not self._is_meant(path):
                    yield line
            elif line.startswith(b"D "):
                # A file that was never there cannot be removed.
                path = unquote(line[2:].rstrip(b"\n"))
                bad = self._is_named(os.path.basename(path))
                if not bad or (self._all and not self._is_meant(path)):
                    yield line
            else:
                yield line
        yield b"done\n"

    def _collect(self, run: Run) -> None:
        for name in _LEFT_BEHIND:
            (self._repository.git.directory / name).unlink(missing_ok=True)
        run("read-tree", "--reset", "HEAD")
        run("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
        collect(run, "--prune=now")


def describe_held(held: Sequence[Held]) -> str:
    """Describe the commits that contain words, for a message."""
    named = [one for one in held if one.commit]
    if not named:
        return "unreachable objects"
    count = "1 commit" if len(named) == 1 else f"{len(named)} commits"
    shown = ", ".join(one.commit[:12] for one in named[:3])
    return f"{count} ({shown}{', …' if len(named) > 3 else ''})"
