"""Git's output about its objects and history, as values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct

from vibe_llms.memory.repository import Run

_BATCH = 500
_FOLDER = b"40000"
_STATUS = re.compile(rb":\d+ \d+ ([0-9a-f]+) ([0-9a-f]+) ([A-Z])")


class FileChange(Struct, frozen=True):
    """Effect of a commit on a file: A(dd), M(odify), or D(elete); its blobs before and after."""

    status: str
    path: bytes
    before: bytes
    after: bytes


class Commit(Struct, frozen=True):
    """A commit and its changes; a merge is listed once for each of its parents."""

    name: bytes
    time: datetime
    changes: list[FileChange]


def read_log(run: Run) -> Iterator[Commit]:
    """Yield all commits, newest first."""
    printed = run(
        "log",
        "--all",
        "--raw",
        "--root",
        "-m",
        "--no-renames",
        "--no-abbrev",
        "-z",
        "--no-ext-diff",
        "--no-textconv",
        "--format=commit %H %ct",
    )
    commit: Commit | None = None
    parts = iter(printed.split(b"\0"))
    for part in parts:
        line = part.strip(b"\n")
        if line.startswith(b"commit "):
            if commit is not None:
                yield commit
            _, name, second = line.split()
            commit = Commit(name, datetime.fromtimestamp(int(second), UTC), [])
        elif commit is not None and (found := _STATUS.fullmatch(line)):
            change = FileChange(found[3].decode(), next(parts), found[1], found[2])
            commit.changes.append(change)
    if commit is not None:
        yield commit


def read_objects(run: Run) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the kind, name, and bytes of every object in a repository, reachable or not."""
    listed = run(
        "cat-file",
        "--batch-all-objects",
        "--unordered",
        "--buffer",
        "--batch-check=%(objectname) %(objecttype)",
    )
    names = [line.split()[0] for line in listed.splitlines()]
    for start in range(0, len(names), _BATCH):
        wanted = b"\n".join(names[start : start + _BATCH]) + b"\n"
        yield from read_batch(run("cat-file", "--batch", "--buffer", data=wanted))


def read_batch(printed: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the kind, name, and bytes of each object printed by `git cat-file --batch`."""
    position = 0
    while position < len(printed):
        end = printed.index(b"\n", position)
        parts = printed[position:end].split()
        position = end + 1
        if len(parts) == 3:
            name, kind, size = parts
            yield kind, name, printed[position : position + int(size)]
            position += int(size) + 1


def read_names(tree: bytes) -> Iterator[bytes]:
    """Yield the names of the files in a tree, without folders."""
    position = 0
    while position < len(tree):
        end = tree.index(b"\0", position)
        mode, _, name = tree[position:end].partition(b" ")
        if mode != _FOLDER:
            yield name
        position = end + 21


def unquote(path: bytes) -> bytes:
    """Return a path printed by git without its C quotes."""
    if not path.startswith(b'"'):
        return path
    return path[1:-1].decode("unicode_escape").encode("latin-1")
