"""What git prints and takes of its objects, its trees and its history, as values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from msgspec import Struct

#: Runs one command of git within the limit of the whole work, and gives what it prints.
Run = Callable[..., bytes]

_BATCH = 500
_FOLDER = b"40000"
_STATUS = re.compile(rb":\d+ \d+ ([0-9a-f]+) ([0-9a-f]+) ([A-Z])")


class FileChange(Struct, frozen=True):
    """What a commit did to a file: A(dded), M(odified), D(eleted), and its blobs on both sides."""

    status: str
    path: bytes
    before: bytes
    after: bytes


class Commit(Struct, frozen=True):
    """A commit and what it changed; one that joins histories is there for each of them."""

    name: bytes
    time: datetime
    changes: list[FileChange]


def read_log(run: Run) -> Iterator[Commit]:
    """All commits, the newest first."""
    printed = run(
        *("log", "--all", "--raw", "--root", "-m", "--no-renames", "--no-abbrev", "-z"),
        *("--no-ext-diff", "--no-textconv", "--format=commit %H %ct"),
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


def read_tree(listed: bytes) -> dict[bytes, str]:
    """The blob of each path that `git ls-tree -r -z` prints."""
    found: dict[bytes, str] = {}
    for line in filter(None, listed.split(b"\0")):
        head, _, path = line.partition(b"\t")
        found[path] = head.split()[2].decode()
    return found


def read_objects(run: Run) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The kind, the name and the bytes of everything that a repository has."""
    listed = run(
        *("cat-file", "--batch-all-objects", "--unordered", "--buffer"),
        "--batch-check=%(objectname) %(objecttype)",
    )
    names = [line.split()[0] for line in listed.splitlines()]
    for start in range(0, len(names), _BATCH):
        wanted = b"\n".join(names[start : start + _BATCH]) + b"\n"
        yield from read_batch(run("cat-file", "--batch", "--buffer", data=wanted))


def read_batch(printed: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The kind, the name and the bytes of each object that `git cat-file --batch` prints."""
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
    """The names of files in the bytes of a tree; not those of folders."""
    position = 0
    while position < len(tree):
        end = tree.index(b"\0", position)
        mode, _, name = tree[position:end].partition(b" ")
        if mode != _FOLDER:
            yield name
        position = end + 21


def quote(path: bytes) -> bytes:
    """A path as the streams of git have it."""
    if path.startswith(b'"') or b"\n" in path:
        return b'"%s"' % path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return path


def unquote(path: bytes) -> bytes:
    """A path of a stream, which git has perhaps put between quotes."""
    if not path.startswith(b'"'):
        return path
    codes = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f"}

    def plain(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code.isdigit():
            return bytes([int(code, 8)])
        return codes.get(code, b"\v" if code == b"v" else code)

    return re.sub(rb"\\([0-7]{3}|.)", plain, path[1:-1])
