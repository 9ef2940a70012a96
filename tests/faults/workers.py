"""What the processes of the storms do: work on an archive, and report each step once it is done.

A worker is a function `(folder, report, seed)`; `report` writes a line to a pipe, so what
was reported before a kill is known after it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from vibe_llms.base import folders as files
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.storage import appending, contents, conversations
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.conversations import produce_conversation_identity
from vibe_llms.storage.interfaces import Details, Origin

Report: TypeAlias = Callable[[str], None]

#: The conversation that all workers share.
SHARED = "shared"
SIZES = (100, 20_000, 300_000)
#: Texts stay in the lines, so that lines are as long as the sizes say.
INLINE = StorageSettings(inline_bytes=1 << 20)


def produce_text(seed: int, size: int) -> str:
    """A text of that size that shows whether it is whole."""
    return f"{seed}:{size}:" + "x" * size + ":end"


def append_messages(folder: Path, report: Report, seed: int, count: int = 1_000_000) -> None:
    """Append messages of very different sizes; reports their identities."""
    archive = DirectoryArchive(folder, INLINE)
    chance = random.Random(seed)
    for number in range(count):
        size = chance.choice((0, *SIZES)) if count == 1_000_000 else SIZES[(seed + number) % 3]
        said = UserCanister.from_text(f"{seed} {number} {produce_text(seed, size)}")
        archive.append_now(SHARED, [said], None)
        report(said.identity)


def append_in_two_writes(folder: Path, report: Report, seed: int, count: int = 1_000_000) -> None:
    """The bug of many peers: no lock, and the newline written after the line."""

    def write_in_two(descriptor: int, data: bytes) -> None:
        files.write_all(descriptor, data[:-1])
        os.sched_yield()
        files.write_all(descriptor, data[-1:])

    def find_end(
        self: object, descriptor: int, status: os.stat_result
    ) -> tuple[int, str, tuple[()]]:
        return status.st_size, "", ()

    appending.__dict__.update(write_all=write_in_two, acquire=lambda *_: None)
    appending.LinesWriter._find_end = find_end  # type: ignore[method-assign]
    append_messages(folder, report, seed, count)


def append_before_it_is_written(folder: Path, report: Report, seed: int) -> None:
    """Report a message before it is there."""
    archive = DirectoryArchive(folder, INLINE)
    while True:
        said = UserCanister.from_text(produce_text(seed, 300_000))
        report(said.identity)
        archive.append_now(SHARED, [said], None)


def append_contents(folder: Path, report: Report, seed: int) -> None:
    """Append messages whose contents go to the store; reports their identities."""
    archive = DirectoryArchive(folder)
    chance = random.Random(seed)
    while True:
        picture = ImageContent(chance.randbytes(chance.choice((1, 5_000, 200_000))), "image/png")
        said = UserCanister((TextualContent(produce_text(seed, 2_000)), picture))
        archive.append_now(SHARED, [said], None)
        report(said.identity)


def put_contents(folder: Path, report: Report, seed: int) -> None:
    """Put contents of all sizes; reports their hashes."""
    archive = DirectoryArchive(folder)
    chance = random.Random(seed)
    while True:
        data = chance.randbytes(chance.choice((0, 1, 5_000, 300_000)))
        archive.prepare()
        report(archive.contents.put(data, "image/png").hash)


def put_contents_in_place(folder: Path, report: Report, seed: int) -> None:
    """Put contents into their folders directly, where everybody sees them growing."""

    def write(self: contents.ContentStore, path: Path, data: bytes, mimetype: str) -> None:
        path.mkdir(mode=0o700)
        for block in range(0, max(len(data), 1), 1_000):
            with (path / "data").open("ab") as file:
                file.write(data[block : block + 1_000])
            # Most kills come while a large content grows.
            time.sleep(0.0002)
        (path / "metadata.toml").write_text(f"size = {len(data)}\n")

    contents.ContentStore._write = write  # type: ignore[method-assign]
    put_contents(folder, report, seed)


def put_one_content(folder: Path, report: Report, seed: int, count: int) -> None:
    """Put the same content again and again; reports its hash."""
    archive = DirectoryArchive(folder)
    archive.prepare()
    for _ in range(count):
        report(archive.contents.put(b"the same" * 10_000, "image/png").hash)


def fork_conversations(folder: Path, report: Report, seed: int) -> None:
    """Fork the shared conversation again and again; reports the identities of the forks."""
    archive = DirectoryArchive(folder)
    details = Details(created=datetime.now(UTC), forked_from=Origin(SHARED))
    while True:
        identity = produce_conversation_identity()
        archive.fork_now(SHARED, identity, details)
        report(identity)


def fork_conversations_in_place(folder: Path, report: Report, seed: int) -> None:
    """Fork into folders that have their names from the beginning."""

    class Careless(DirectoryArchive):
        def _appearing(self, path: Path) -> Any:
            path.mkdir(mode=0o700)
            return _Given(path)

    archive = Careless(folder)
    details = Details(created=datetime.now(UTC), forked_from=Origin(SHARED))
    while True:
        identity = produce_conversation_identity()
        archive.fork_now(SHARED, identity, details)
        report(identity)


def add_tags(folder: Path, report: Report, seed: int, count: int = 1_000_000) -> None:
    """Add tags to the shared conversation one by one; reports them."""
    archive = DirectoryArchive(folder)
    for number in range(count):
        tag = f"{seed}-{number}"
        change = {"tags": lambda tags, tag=tag: sorted({*(tags or ()), tag})}
        archive.access_folder(SHARED).revise(change)
        report(tag)


def add_tags_in_place(folder: Path, report: Report, seed: int, count: int = 1_000_000) -> None:
    """Overwrite the details where they lie, in several writes."""

    def replace(path: Path, data: bytes, limit: int, *, durable: bool = True) -> None:
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(data), 10):
                file.write(data[start : start + 10])

    conversations.__dict__.update(replace_file=replace)
    add_tags(folder, report, seed, count)


def add_tags_without_a_lock(folder: Path, report: Report, seed: int, count: int) -> None:
    """Read, change and write while others do the same."""
    conversations.__dict__.update(locked=_unlocked)
    add_tags(folder, report, seed, count)


def hold_a_lock(folder: Path, report: Report, seed: int) -> None:
    """Hold the lock of a folder until killed."""
    from vibe_llms.base.locks import locked

    with locked(folder, seconds=0):
        report("held")
        while True:
            time.sleep(60)


def list_conversations(folder: Path, report: Report, seed: int, count: int) -> None:
    """List and search again and again; reports how many conversations there were."""
    archive = DirectoryArchive(folder)
    for _ in range(count):
        report(f"{len(archive.survey_now())} {len(archive.search_now('lantern', 1000))}")


def list_without_patience(folder: Path, report: Report, seed: int, count: int) -> None:
    """List while others do, and stop at once where one of them is busy with the index."""
    archive = DirectoryArchive(folder, StorageSettings(lock_seconds=0))
    for _ in range(count):
        report(f"{len(archive.survey_now())} {len(archive.search_now('lantern', 1000))}")


class _Given:
    """A context that gives what it was made with."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(self, *_: object) -> None:
        return None


class _unlocked(_Given):  # noqa: N801  (it takes the place of a function)
    """Takes no lock; gives the descriptor of the folder."""

    def __init__(self, path: Path, *, seconds: float, shared: bool = False) -> None:
        super().__init__(os.open(path, os.O_RDONLY))

    def __exit__(self, *_: object) -> None:
        os.close(self._value)
