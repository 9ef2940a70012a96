"""Power cuts: what an archive wrote and synchronised is recorded, and rebuilt as after a cut.

The model is the one that POSIX promises and no more. The bytes of a file are safe once the file was
synchronised, its name once its folder was. What came after that may be there, or not, or in part.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = 4096


@dataclass
class Event:
    """One step: a name in a folder, bytes of a file, a synchronisation, or an acknowledgement."""

    kind: str
    node: int = 0
    name: str = ""
    other: int = 0
    offset: int = 0
    data: bytes = b""
    text: str = ""


@dataclass
class Recorder:
    """Records what is done below a folder, which counts as durable; see `SystemCalls.observer`."""

    root: Path
    events: list[Event] = field(default_factory=list)
    _nodes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stat, self._fstat, self._lseek = os.stat, os.fstat, os.lseek
        self._pread = os.pread
        self._nodes[self._stat(self.root).st_ino] = 0

    def acknowledge(self, text: str) -> None:
        """From here on, what is named is durable: so it was said to the caller."""
        self.events.append(Event("acknowledged", text=text))

    def find_on_disk(self, path: Path) -> None:
        """What a file holds was put there by others long ago, and is safe."""
        node = self._nodes[self._stat(path).st_ino]
        self.events.append(Event("found", node, data=path.read_bytes()))

    def before(self, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        match name:
            case "write":
                status = self._fstat(arguments[0])
                flags = os.O_APPEND & _flags_of(arguments[0])
                return status.st_size if flags else self._lseek(arguments[0], 0, os.SEEK_CUR)
            case "open":
                return self._exists(arguments[0], options.get("dir_fd"))
            case "rename":
                return self._node_at(arguments[0], None), self._place(arguments[0], None)
            case "unlink" | "rmdir":
                return self._place(arguments[0], options.get("dir_fd"))
            case _:
                return None

    def after(
        self, name: str, arguments: Sequence[Any], options: dict[str, Any], result: Any, seen: Any
    ) -> None:
        match name:
            case "open" if not seen:
                folder, base = self._place(arguments[0], options.get("dir_fd"))
                self._add(Event("file", self._new(self._fstat(result).st_ino), base, folder))
            case "mkdir":
                folder, base = self._place(arguments[0], None)
                inode = self._stat(arguments[0]).st_ino
                self._add(Event("folder", self._new(inode), base, folder))
            case "write":
                data = bytes(arguments[1][:result])
                node = self._nodes[self._fstat(arguments[0]).st_ino]
                self._add(Event("write", node, offset=seen, data=data))
            case "copy_file_range":
                source, target, _ = arguments
                data = self._pread(source, result, options["offset_src"])
                node = self._nodes[self._fstat(target).st_ino]
                self._add(Event("write", node, offset=options["offset_src"], data=data))
            case "ftruncate":
                node = self._nodes[self._fstat(arguments[0]).st_ino]
                self._add(Event("truncate", node, offset=arguments[1]))
            case "fsync" | "fdatasync":
                node = self._nodes.get(self._fstat(arguments[0]).st_ino, -1)
                self._add(Event("sync", node))
            case "rename":
                (node, (folder, base)), (other, target) = seen, self._place(arguments[1], None)
                assert folder == other, "the model knows renames within one folder only"
                self._add(Event("rename", node, base, folder, text=target))
            case "unlink" | "rmdir":
                folder, base = seen
                self._add(Event("remove", name=base, other=folder))

    def _add(self, event: Event) -> None:
        self.events.append(event)

    def _new(self, inode: int) -> int:
        # The system may use the number of what was removed once more.
        node = 1 + sum(event.kind in ("file", "folder") for event in self.events)
        self._nodes[inode] = node
        return node

    def _exists(self, path: Any, folder: int | None) -> bool:
        try:
            self._stat(path, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _node_at(self, path: Any, folder: int | None) -> int:
        return self._nodes[self._stat(path, dir_fd=folder, follow_symlinks=False).st_ino]

    def _place(self, path: Any, folder: int | None) -> tuple[int, str]:
        parent, base = os.path.split(os.fspath(path))
        if folder is not None:
            return self._nodes[self._fstat(folder).st_ino], base
        return self._nodes.get(self._stat(parent or ".").st_ino, -1), base


@dataclass
class _File:
    safe: bytes = b""
    pending: list[Event] = field(default_factory=list)


@dataclass
class _Folder:
    safe: dict[str, int] = field(default_factory=dict)
    pending: list[Event] = field(default_factory=list)


@dataclass
class Disk:
    """What a disk holds after the first so many events, as far as anything is certain."""

    files: dict[int, _File] = field(default_factory=dict)
    folders: dict[int, _Folder] = field(default_factory=lambda: {0: _Folder()})
    acknowledged: list[str] = field(default_factory=list)

    @classmethod
    def after(cls, events: Sequence[Event]) -> Disk:
        disk = cls()
        for event in events:
            disk.take(event)
        return disk

    def take(self, event: Event) -> None:
        match event.kind:
            case "acknowledged":
                self.acknowledged.append(event.text)
            case "file" | "folder":
                made: dict[int, Any] = self.files if event.kind == "file" else self.folders
                made[event.node] = _File() if event.kind == "file" else _Folder()
                self._change(event)
            case "rename" | "remove":
                self._change(event)
            case "write" | "truncate":
                self.files[event.node].pending.append(event)
            case "found":
                self.files[event.node].safe = event.data
            case "sync" if event.node in self.files:
                file = self.files[event.node]
                file.safe = _written(file.safe, file.pending)
                file.pending.clear()
            case "sync" if event.node in self.folders:
                folder = self.folders[event.node]
                folder.safe = _named(folder.safe, folder.pending)
                folder.pending.clear()

    def _change(self, event: Event) -> None:
        if event.other in self.folders:
            self.folders[event.other].pending.append(event)

    def rebuild(self, target: Path, chance: random.Random) -> None:
        """Write one of the states in which a power cut may have left the disk."""
        way = chance.choice(WAYS)
        self._rebuild_folder(0, target, way, chance)

    def _rebuild_folder(self, node: int, target: Path, way: str, chance: random.Random) -> None:
        target.mkdir(mode=0o700, exist_ok=True)
        folder = self.folders[node]
        kept = 0 if way == "names dropped" else len(folder.pending)
        if way == "names in part":
            kept = chance.randint(0, len(folder.pending))
        for name, inner in _named(folder.safe, folder.pending[:kept]).items():
            if inner in self.folders:
                self._rebuild_folder(inner, target / name, way, chance)
            else:
                descriptor = os.open(target / name, os.O_CREAT | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_surviving(self.files[inner], way, chance))


#: How much of what was not synchronised survives a cut.
WAYS = ("names dropped", "names in part", "dropped", "zero-filled", "holes", "cut")


def _surviving(file: _File, way: str, chance: random.Random) -> bytes:
    whole = _written(file.safe, file.pending)
    if not file.pending or way == "dropped":
        return file.safe
    start = min(event.offset for event in file.pending)
    match way:
        case "zero-filled":
            point = chance.randint(min(start, len(whole)), len(whole))
            return whole[:point] + bytes(len(whole) - point)
        case "holes" if sum(event.data.count(b"\n") for event in file.pending) <= 1:
            # Pages of a line reach the disk in any order; a page that did not is zero.
            return b"".join(
                page
                if offset + PAGE <= start or chance.random() < 0.5
                else _emptied(page, start - offset)
                for offset, page in _pages(whole)
            )
        case "cut" | "holes":
            return whole[: chance.randint(min(start, len(whole)), len(whole))]
        case _:
            return whole


def _emptied(page: bytes, start: int) -> bytes:
    kept = max(0, min(start, len(page)))
    return page[:kept] + bytes(len(page) - kept)


def _pages(data: bytes) -> Iterator[tuple[int, bytes]]:
    for offset in range(0, len(data), PAGE):
        yield offset, data[offset : offset + PAGE]


def _written(data: bytes, events: Sequence[Event]) -> bytes:
    for event in events:
        if event.kind == "truncate":
            data = data[: event.offset].ljust(event.offset, b"\0")
        else:
            end = event.offset + len(event.data)
            data = data[: event.offset].ljust(event.offset, b"\0") + event.data + data[end:]
    return data


def _named(names: dict[str, int], events: Sequence[Event]) -> dict[str, int]:
    names = dict(names)
    for event in events:
        if event.kind == "remove":
            names.pop(event.name, None)
        elif event.kind == "rename":
            names.pop(event.name, None)
            names[event.text] = event.node
        else:
            names[event.name] = event.node
    return names


def _flags_of(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_GETFL)
