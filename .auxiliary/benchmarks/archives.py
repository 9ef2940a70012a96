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
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from measure import Row, best_of, ratio_row, settle

from vibe_llms import open_session
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.conversations.history import History
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
FAST = StorageSettings(durability="fast")
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
        rows += _measure_written(Path(folder) / "written", runs)
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
    archive, fast = DirectoryArchive(folder / "safe"), DirectoryArchive(folder / "fast", FAST)
    reply = produce_canisters(2)[1]
    longer = UserCanister.from_text("so it is " * 95)
    size, long_size = (len(encode_canister(one)) + 1 for one in (reply, longer))
    folder.mkdir()
    bare = os.open(folder / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def begin(held: DirectoryArchive, canister: Canister) -> str:
        identity = produce_conversation_identity()
        held.create_now(identity, _details(), [canister])
        held.append_now(identity, [canister], None)
        return identity

    def append_bare(canister: Canister) -> None:
        os.write(bare, msgspec.json.encode(canister) + b"\n")
        os.fdatasync(bare)

    def append_bare_unsynced() -> None:
        os.write(bare, msgspec.json.encode(reply) + b"\n")

    async def append_in_thread() -> None:
        await asyncio.to_thread(append_bare, longer)

    async def append_awaited(held: DirectoryArchive, identity: str) -> None:
        await held.append(identity, [longer], after=longer.identity)

    async def append_said(history: History) -> None:
        await history.append([longer], lambda _: None)

    direct, safe, unsynced = begin(archive, reply), begin(archive, longer), begin(fast, longer)
    said: dict[DirectoryArchive, History] = {}
    with asyncio.Runner() as runner:
        for held in (archive, fast):
            said[held], _ = runner.run(History.restore(held, begin(held, longer)))
            runner.run(append_said(said[held]))
        work: dict[str, Callable[[], object]] = {
            "ours": lambda: archive.append_now(direct, [reply], reply.identity),
            "bare write and sync": lambda: append_bare(reply),
            "bare write": append_bare_unsynced,
        }
        awaited: dict[str, Callable[[], Awaitable[object]]] = {
            "ours, awaited": lambda: append_awaited(archive, safe),
            "of a conversation": lambda: append_said(said[archive]),
            "bare, in a thread": append_in_thread,
            "fast": lambda: append_awaited(fast, unsynced),
            "fast, of a conversation": lambda: append_said(said[fast]),
        }
        samples: dict[str, list[float]] = {name: [] for name in (*work, *awaited)}
        for _ in range(runs * 60):
            # Shuffle the order each time: a sync also pays for what was written before it.
            for name in random.sample([*work], len(work)):
                start = time.perf_counter()
                work[name]()
                samples[name].append(time.perf_counter() - start)

        async def measure() -> None:
            for _ in range(runs * 60):
                for name in random.sample([*awaited], len(awaited)):
                    start = time.perf_counter()
                    await awaited[name]()
                    samples[name].append(time.perf_counter() - start)

        runner.run(measure())
        for held in (archive, fast):
            runner.run(held.close())
    os.close(bare)
    blobs = best_of(lambda: archive.contents.put(secrets.token_bytes(2_000_000), "image/png"), runs)

    def compare(what: str, ours: str, floor: str, bar: float) -> Row:
        chosen = {name: samples[name] for name in (ours, floor)}
        return ratio_row(what, chosen, "µs", scale=1e6, bars={floor: bar})

    def limit(what: str, name: str) -> Row:
        median = statistics.median(samples[name]) * 1e6
        return Row(what, {"ours": median}, "µs", {"120 µs": median / 120}, {"120 µs": 1.0})

    in_thread = "bare, in a thread"
    return [
        compare(f"append a reply ({size} bytes)", "ours", "bare write and sync", 1.4),
        compare(f"append a message ({long_size} bytes), awaited", "ours, awaited", in_thread, 1.25),
        compare("the same in a conversation", "of a conversation", in_thread, 1.25),
        limit(f"append a message ({long_size} bytes) without a sync, awaited", "fast"),
        limit("the same in a conversation, without a sync", "fast, of a conversation"),
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


def _measure_written(folder: Path, runs: int) -> list[Row]:
    """Lists among conversations of which all were just written, some by another archive."""
    archive, other = DirectoryArchive(folder, FAST), DirectoryArchive(folder, FAST)
    identities = [produce_conversation_identity() for _ in range(1_000)]
    for identity in identities:
        archive.create_now(identity, _details(), produce_canisters(2))
    bare = sqlite3.connect(":memory:")
    bare.execute("create table listed (identity text primary key, title text, updated integer)")
    bare.execute("create index listed_updated on listed (updated)")
    bare.executemany(
        "insert into listed values (?, ?, ?)",
        [(one, "a title", number) for number, one in enumerate(identities)],
    )

    def list_bare() -> None:
        bare.execute("select * from listed order by updated desc limit 50").fetchall()

    written: dict[str, Callable[[str], object]] = {
        "after nothing": lambda _: None,
        "after a message": lambda one: archive.append_now(one, produce_canisters(2), None),
        "after another archive's": lambda one: other.append_now(one, produce_canisters(2), None),
        "SQLite alone": lambda _: None,
    }
    samples: dict[str, list[float]] = {name: [] for name in written}

    async def measure() -> None:
        await archive.survey(limit=50)
        for number in range(runs * 10):
            for name, write in written.items():
                write(identities[number % len(identities)])
                start = time.perf_counter()
                if name == "SQLite alone":
                    list_bare()
                else:
                    await archive.survey(limit=50)
                samples[name].append(time.perf_counter() - start)
        await archive.close()

    asyncio.run(measure())
    bare.close()
    what = "list 50 of 1,000 conversations that were just written"
    rows: list[Row] = []
    for name in [*written][:3]:
        figures = {one: statistics.median(samples[one]) * 1e3 for one in (name, "SQLite alone")}
        ratios = {"2 ms": figures[name] / 2}
        rows.append(Row(what, figures, "ms", ratios, {"2 ms": 1.0}))
        what = "the same"
    return rows


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
