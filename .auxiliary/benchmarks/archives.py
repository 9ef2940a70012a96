"""What keeping costs: append, open, fork, list and search, against bare JSON lines with msgspec."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from measure import Row, best_of, ratio_row, settle

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
from vibe_llms.storage.interfaces import Details, Origin

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
            bars={"bare write and sync": 1.3},
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
        with (target / "messages.jsonl").open("wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fdatasync(file.fileno())
        shutil.rmtree(target)

    def fork() -> None:
        twin = produce_conversation_identity()
        archive.fork_now(
            identity, twin, Details(created=datetime.now(UTC), forked_from=Origin(identity))
        )

    settle()
    opened: dict[str, list[float]] = {"ours": [], "decoding the lines": []}
    forked: dict[str, list[float]] = {"ours": [], "copying the lines": []}
    for samples, ours, bare in (
        (opened, lambda: archive.restore_now(identity), decode),
        (forked, fork, copy),
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
        ratio_row(f"fork a conversation of {count:,} messages", forked, "ms", scale=1e3),
    ]
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


def _measure_many(folder: Path, runs: int) -> list[Row]:
    archive = DirectoryArchive(folder)
    archive.prepare()
    for _ in range(10_000):
        identity = produce_conversation_identity()
        target = archive.conversations / identity
        target.mkdir()
        archive.access_folder(identity).write_first(target, _details(), produce_canisters(10))
    start = time.perf_counter()
    archive.survey_now(1)
    built = time.perf_counter() - start

    def look() -> None:
        root = f"{archive.conversations}/"
        for name in os.listdir(archive.conversations):
            os.stat(f"{root}{name}/messages.jsonl")
            os.stat(f"{root}{name}/metadata.toml")

    samples: dict[str, list[float]] = {"list": [], "search": [], "looking at every file": []}
    for number in range(runs + 1):
        for name, work in (
            ("list", lambda: archive.survey_now(50)),
            ("search", lambda: archive.search_now("lantern 4")),
            ("looking at every file", look),
        ):
            start = time.perf_counter()
            work()
            if number:
                samples[name].append(time.perf_counter() - start)
    rows = [
        ratio_row(
            "list the newest 50 of 10,000 conversations",
            {name: samples[name] for name in ("list", "looking at every file")},
            "ms",
            scale=1e3,
            bars={"looking at every file": 70 / 42},
        ),
        ratio_row(
            "search 100,000 messages in 10,000 conversations",
            {name: samples[name] for name in ("search", "looking at every file")},
            "ms",
            scale=1e3,
            bars={"looking at every file": 80 / 42},
        ),
        Row("make the index anew (100,000 messages)", {"ours": built}, "s"),
    ]
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
