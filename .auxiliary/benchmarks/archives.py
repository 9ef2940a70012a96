"""What keeping costs: append, open, fork, list and search, against bare JSON lines with msgspec."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from measure import Row, best_of, ratio_row, settle

from vibe_llms import open_session
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Ending,
    Provenance,
    Usage,
    UserCanister,
)
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.conversations import produce_conversation_identity
from vibe_llms.storage.interfaces import Details

DECODER: msgspec.json.Decoder[Canister] = msgspec.json.Decoder(Canister)
PROVENANCE = Provenance("vibe_llms.providers.anthropic", "anthropic", "claude-sonnet-5-5", "msg_1")
WORDS = ("river", "stone", "lantern", "orbit", "meadow", "copper", "violin", "harbour", "saffron")


def produce_canisters(count: int) -> list[Canister]:
    canisters: list[Canister] = []
    for number in range(0, count, 2):
        word = WORDS[number % len(WORDS)]
        canisters.append(UserCanister.from_text(f"Tell me about {word} number {number}."))
        canisters.append(
            AssistantCanister(
                AssistantCanister.from_text(
                    f"The {word} is well known: {'so it is ' * 10}"
                ).contents,
                reply=f"reply-{number}",
                provenance=PROVENANCE,
                ending=Ending("finished", usage=Usage(10, 0, 0, 20, 0)),
            )
        )
    return canisters[:count]


def measure_archives(runs: int) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=real_disk()) as folder:
        rows = _measure_append(Path(folder) / "append", runs)
        for count in (1_000, 10_000, 100_000):
            rows += _measure_long(Path(folder) / f"long-{count}", count, runs)
        rows += _measure_many(Path(folder) / "many", runs)
    return rows


def real_disk() -> str:
    """A folder on a real disk: on a temporary file system a sync costs nothing."""
    place = Path(__file__).resolve().parent.parent / "artifacts"
    place.mkdir(exist_ok=True)
    return str(place)


def _details() -> Details:
    return Details(created=datetime.now(UTC))


def _measure_append(folder: Path, runs: int) -> list[Row]:
    archive = DirectoryArchive(folder)
    identity = produce_conversation_identity()
    archive.create_now(identity, _details(), produce_canisters(2))
    reply = produce_canisters(2)[1:]
    line = encode_canister(reply[0]) + b"\n"
    bare = os.open(folder / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    loop = asyncio.new_event_loop()

    def append_bare() -> None:
        os.write(bare, msgspec.json.encode(reply[0]) + b"\n")
        os.fdatasync(bare)

    def append_bare_unsynced() -> None:
        os.write(bare, msgspec.json.encode(reply[0]) + b"\n")

    async def append_in_thread() -> None:
        await loop.run_in_executor(None, append_bare)

    async def append_ours() -> None:
        await archive.append(identity, reply, after=reply[0].identity)

    archive.append_now(identity, reply, None)
    work: dict[str, Callable[[], object]] = {
        "ours": lambda: archive.append_now(identity, reply, reply[0].identity),
        "bare write and sync": append_bare,
        "bare write": append_bare_unsynced,
        "ours, awaited": lambda: loop.run_until_complete(append_ours()),
        "bare, in a thread": lambda: loop.run_until_complete(append_in_thread()),
    }
    samples: dict[str, list[float]] = {name: [] for name in work}
    names = list(work)
    for _ in range(runs * 60):
        # In an order of its own each time: a sync also pays for what was written before it.
        random.shuffle(names)
        for name in names:
            function = work[name]
            start = time.perf_counter()
            function()
            samples[name].append(time.perf_counter() - start)
    os.close(bare)
    loop.close()
    blobs = best_of(lambda: archive.contents.put(secrets.token_bytes(2_000_000), "image/png"), runs)
    direct = {name: samples[name] for name in ("ours", "bare write and sync")}
    awaited = {name: samples[name] for name in ("ours, awaited", "bare, in a thread")}
    return [
        ratio_row(
            f"append a reply ({len(line)} bytes)",
            direct,
            "µs",
            scale=1e6,
            bars={"bare write and sync": 1.4},
        ),
        ratio_row("append a reply, awaited", awaited, "µs", scale=1e6),
        Row(
            "bare write, not synchronised",
            {"bare": statistics.median(samples["bare write"]) * 1e6},
            "µs",
        ),
        Row("put a picture of 2 MB", {"ours": statistics.median(blobs) * 1e3}, "ms"),
    ]


def _measure_long(folder: Path, count: int, runs: int) -> list[Row]:
    archive = DirectoryArchive(folder)
    identity = produce_conversation_identity()
    archive.create_now(identity, _details(), produce_canisters(count))
    path = archive.conversations / identity / "messages.jsonl"
    data = path.read_bytes()
    lines = data.split(b"\n")[:-1]
    assert len(lines) == count

    def decode() -> None:
        decode_line = DECODER.decode
        for line in lines:
            decode_line(line)

    def copy() -> None:
        target = folder / f"copy-{secrets.token_hex(4)}"
        target.mkdir()
        with path.open("rb") as source, (target / "messages.jsonl").open("wb") as file:
            done = 0
            while done < len(data):
                done += os.copy_file_range(source.fileno(), file.fileno(), len(data) - done)
            os.fdatasync(file.fileno())
        shutil.rmtree(target)

    loop = asyncio.new_event_loop()
    opened_session = open_session(home=folder)
    session = loop.run_until_complete(opened_session.__aenter__())
    conversation = loop.run_until_complete(session.resume(identity, model="scripted/demo"))
    early = conversation.canisters[-3].identity

    def fork(at: str | None) -> None:
        twin = loop.run_until_complete(conversation.fork(at))
        shutil.rmtree(archive.conversations / twin.identity)

    settle()
    opened: dict[str, list[float]] = {"ours": [], "decoding the lines": []}
    forked: dict[str, list[float]] = {"ours": [], "copying in the system": []}
    before: dict[str, list[float]] = {"ours": [], "copying in the system": []}
    for samples, ours, bare in (
        (opened, lambda: archive.restore_now(identity), decode),
        (forked, lambda: fork(None), copy),
        (before, lambda: fork(early), copy),
    ):
        for number in range(runs + 1):
            for name, work in zip(samples, (ours, bare), strict=True):
                start = time.perf_counter()
                work()
                if number:
                    samples[name].append(time.perf_counter() - start)
    rows = [
        ratio_row(
            f"open a conversation of {count:,} messages",
            opened,
            "ms",
            scale=1e3,
            bars={"decoding the lines": 2.5} if count == 100_000 else {},
        ),
        ratio_row(
            f"fork a conversation of {count:,} messages",
            forked,
            "ms",
            scale=1e3,
            bars={"copying in the system": 2.5} if count == 100_000 else {},
        ),
        ratio_row(f"fork it before its last turn ({count:,})", before, "ms", scale=1e3),
    ]
    loop.run_until_complete(opened_session.__aexit__(None, None, None))
    loop.close()
    if count == 1_000:
        rows.append(_measure_fork_with_pictures(archive))
    return rows


def _measure_fork_with_pictures(archive: DirectoryArchive) -> Row:
    identity = produce_conversation_identity()
    pictures = [
        UserCanister((ImageContent(secrets.token_bytes(2_000_000), "image/png"),))
        for _ in range(10)
    ]
    archive.create_now(identity, _details(), pictures)

    def size() -> int:
        return sum(file.stat().st_size for file in archive.folder.rglob("*") if file.is_file())

    before = size()
    archive.fork_now(identity, produce_conversation_identity(), _details())
    return Row("bytes that a fork with 20 MB of pictures adds", {"ours": size() - before}, "bytes")


def _index_bare(conversations: Path) -> None:
    """The floor of an index: read, decode and index the words in memory, and nothing else."""
    database = sqlite3.connect(":memory:")
    database.execute("create virtual table words using fts5 (text, content='')")
    texts: list[tuple[str]] = []
    for name in os.listdir(conversations):
        (conversations / name / "metadata.toml").read_bytes()
        for line in (conversations / name / "messages.jsonl").read_bytes().split(b"\n")[:-1]:
            contents = DECODER.decode(line).contents
            texts.append((" ".join(str(getattr(one, "data", "")) for one in contents),))
    database.executemany("insert into words (text) values (?)", texts)
    database.close()


def _measure_many(folder: Path, runs: int) -> list[Row]:
    archive = DirectoryArchive(folder)
    archive.prepare()
    for number in range(10_000):
        identity = produce_conversation_identity()
        target = archive.conversations / identity
        target.mkdir()
        canisters = produce_canisters(10)
        if number % 500 == 0:
            canisters[0] = UserCanister.from_text(f"A rare heron, number {number}")
        archive.access_folder(identity).write_first(target, _details(), canisters)
    # Otherwise the folder counts as just changed, for two seconds.
    os.utime(archive.conversations, (1e9, 1e9))
    built: dict[str, list[float]] = {"ours": [], "reading, decoding and FTS5": []}
    for _ in range(max(1, runs // 5)):
        archive.discard_index()
        building: Sequence[tuple[str, Callable[[], object]]] = (
            ("ours", lambda: archive.survey_now(1)),
            ("reading, decoding and FTS5", lambda: _index_bare(archive.conversations)),
        )
        for name, work in building:
            start = time.perf_counter()
            work()
            built[name].append(time.perf_counter() - start)

    def look() -> None:
        root = f"{archive.conversations}/"
        for name in os.listdir(archive.conversations):
            os.stat(f"{root}{name}/messages.jsonl")
            os.stat(f"{root}{name}/metadata.toml")

    loop = asyncio.new_event_loop()
    assert len(archive.search_now("rare heron")) == 20
    samples: dict[str, list[float]] = {
        "list": [],
        "search": [],
        "list all": [],
        "looking at every file": [],
    }
    for number in range(runs + 1):
        asked: Sequence[tuple[str, Callable[[], object]]] = (
            ("list", lambda: loop.run_until_complete(archive.survey(limit=50))),
            ("search", lambda: loop.run_until_complete(archive.search("rare heron"))),
            ("list all", lambda: loop.run_until_complete(archive.survey())),
            ("looking at every file", look),
        )
        for name, work in asked:
            # No look at everything in the background runs into the next measurement.
            loop.run_until_complete(archive.close())
            start = time.perf_counter()
            work()
            if number:
                samples[name].append(time.perf_counter() - start)
    loop.run_until_complete(archive.close())
    loop.close()
    bar = {"looking at every file": 15 / 28}
    rows = [
        ratio_row(
            what,
            {kind: samples[kind] for kind in (name, "looking at every file")},
            "ms",
            scale=1e3,
            bars=bars,
        )
        for what, name, bars in (
            ("list the newest 50 of 10,000 conversations", "list", bar),
            ("search 100,000 messages in 10,000 conversations", "search", bar),
            ("list all of 10,000 conversations", "list all", {}),
        )
    ]
    rows.append(
        ratio_row(
            "make the index anew (100,000 messages)",
            built,
            "s",
            bars={"reading, decoding and FTS5": 3.0},
        )
    )
    identities = sorted(os.listdir(archive.conversations))[:500]
    for identity in identities:
        archive.append_now(identity, produce_canisters(10), None)
    start = time.perf_counter()
    archive.survey_now(50)
    taken_in = time.perf_counter() - start - statistics.median(samples["list"])
    rate = 5_000 / taken_in
    rows.append(
        Row(
            "take in 5,000 messages appended to 500 conversations",
            {"messages a second": rate},
            "/s",
            {"20,000 a second": 20_000 / rate},
            {"20,000 a second": 1.0},
        )
    )
    assert (archive.folder / INDEX).exists()
    return rows
