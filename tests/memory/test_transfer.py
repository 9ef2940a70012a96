"""Export and import: what goes out comes in again, what others wrote too, and nothing half."""

from __future__ import annotations

import asyncio
import json
import tempfile
from array import array
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.exceptions import MemoryInvalid
from vibe_llms.embedding.cache import EMBEDDINGS, EmbeddingCache
from vibe_llms.memory import transfer
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope, check_entry
from vibe_llms.memory.transfer import (
    IMPORTED,
    export_memory,
    import_memory,
    produce_export,
    read_export,
)

ADA, BEN = Scope.of_user("ada"), Scope.of_user("ben")

#: As the design that the form comes from shows it.
FOREIGN = {
    "memories": [
        {
            "data": {
                "id": 1735689600,
                "content": "User lives in Paris, France",
                "importance": 0.9,
                "category": "personal_info",
                "topics": ["location", "geography"],
            },
            "embedding": [0.023, -0.145, 0.089],
        }
    ],
    "updated_at": "2025-12-31T12:00:00Z",
    "last_deduplicated_at": None,
}


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "memory", durable=False)


def file_of(*items: Any, **members: Any) -> bytes:
    return json.dumps({"memories": list(items), **members}).encode()


def faults_of(data: bytes) -> list[tuple[int, str]]:
    return [(one.index, one.reason) for one in read_export(data, ADA).faults]


async def test_the_file_of_others_is_taken_in(memory: Memory) -> None:
    (entry,) = read_export(json.dumps(FOREIGN).encode(), ADA).entries
    assert entry.content == "User lives in Paris, France"
    assert entry.created == datetime(2025, 1, 1, tzinfo=UTC)
    assert (entry.importance, entry.category) == (0.9, "personal_info")
    assert (entry.topics, entry.scope) == (("location", "geography"), ADA)
    assert entry.further == {IMPORTED: 1735689600}
    taken = await import_memory(memory, [entry])
    assert (taken.new, taken.known) == ({"user-ada": 1}, 0)
    (there,) = await memory.survey()
    assert there.identity == entry.identity
    assert there.further == {IMPORTED: 1735689600}
    # Another time it is known, although this reading gave it another identity.
    (again,) = read_export(json.dumps(FOREIGN).encode(), ADA).entries
    assert again.identity != entry.identity
    assert (await import_memory(memory, [again])).known == 1
    assert len(await memory.survey()) == 1


@pytest.mark.parametrize(
    ("identity", "updated", "created"),
    [
        (1735689600, None, "2025-01-01T00:00:00+00:00"),
        (1735689600.5, None, "2025-01-01T00:00:00.500000+00:00"),
        (1735689600000, None, "2025-01-01T00:00:00+00:00"),
        ("2025-01-01T00:00:00", None, None),
        (7, "2025-12-31T12:00:00Z", "2025-12-31T12:00:00+00:00"),
        (7, "2025-12-31T12:00:00", "2025-12-31T12:00:00+00:00"),
        (7, 1735689600, "2025-01-01T00:00:00+00:00"),
        (99999999999999, "2025-12-31T12:00:00Z", "2025-12-31T12:00:00+00:00"),
        (-5, "yesterday", None),
        (None, "9999-12-31T12:00:00Z", None),
        (1e300, [], None),
        ("abc", None, None),
    ],
)
def test_a_time_that_may_be_is_read_from_the_number(
    identity: Any, updated: Any, created: str | None
) -> None:
    data = file_of({"data": {"content": "x", "id": identity}}, updated_at=updated)
    parcel = read_export(data, ADA)
    assert parcel.faults == []
    (entry,) = parcel.entries
    if identity == "2025-01-01T00:00:00":
        created = "2025-01-01T00:00:00+00:00"
    if created is None:
        assert datetime.now(UTC) - entry.created < timedelta(minutes=5)
    else:
        assert entry.created.isoformat() == created


async def test_what_is_exported_is_what_others_read(memory: Memory) -> None:
    when = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for name in ("bees", "goats"):
        await memory.add(f"Ada keeps {name}.", created=when, topics=("home",), scope=ADA)
    entries = await memory.survey()
    vectors = {entries[0].identity: (0.5, 0.25)}
    data = produce_export(entries, vectors=lambda entry: vectors.get(entry.identity))
    whole = json.loads(data)
    assert list(whole) == ["memories", "updated_at", "last_deduplicated_at"]
    first, second = whole["memories"]
    assert first["data"] == {
        "id": 1767268800,
        "content": "Ada keeps bees.",
        "importance": 0.5,
        "category": "",
        "topics": ["home"],
    }
    # Of one second, and yet apart.
    assert second["data"]["id"] == 1767268801
    assert (first["embedding"], second["embedding"]) == ([0.5, 0.25], None)
    assert datetime.fromisoformat(whole["updated_at"]).tzinfo is not None


async def test_vectors_and_the_last_deduplication_go_out_and_come_in_again(tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    memory = Memory(tmp_path / "one", embedder=embedder, durable=False)
    for text in ("Ada keeps bees.", "Ben keeps goats.", "Ada sings. She dances, too."):
        await memory.add(text, scope=ADA)
    data, count = await export_memory(memory, ADA)
    whole = json.loads(data)
    assert (count, whole["last_deduplicated_at"]) == (3, None)
    assert all(one["embedding"] is None for one in whole["memories"])

    await memory.embed([ADA])
    await Deduplication(memory).run(ADA, now=datetime(2026, 1, 1, 12, tzinfo=UTC))
    data, _ = await export_memory(memory, ADA)
    whole = json.loads(data)
    assert whole["last_deduplicated_at"] == "2026-01-01T12:00:00Z"
    for one in whole["memories"]:
        assert array("f", one["embedding"]) == pytest.approx(
            embedder.embed_one(one["data"]["content"]), abs=0.2
        )
    assert array("f", whole["memories"][0]["embedding"]) == embedder.embed_one("Ada keeps bees.")
    assert json.loads((await export_memory(memory))[0])["last_deduplicated_at"] is not None
    await memory.add("Ben sleeps.", scope=BEN)
    # Of several scopes none counts before all of them were deduplicated.
    assert json.loads((await export_memory(memory))[0])["last_deduplicated_at"] is None

    other = WordsEmbedder()
    again = Memory(tmp_path / "two", embedder=other, durable=False)
    parcel = read_export(data, BEN)
    await import_memory(
        again, parcel.entries, vectors=parcel.vectors, last_deduplicated=parcel.last_deduplicated
    )
    await again.embed([ADA])
    # A text of two sentences has two vectors, and the file their mean.
    assert other.texts == ["Ada sings.", "She dances, too."]
    back = json.loads((await export_memory(again, ADA))[0])
    for name in ("memories", "last_deduplicated_at"):
        assert back[name] == whole[name]
    await memory.close()
    await again.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item["entry"].update(embedder="another"),
        lambda item: item.update(embedding=[0.5] * 63),
        lambda item: item.update(embedding=[3.0] * 64),
        lambda item: item.update(embedding=["x"]),
        lambda item: item.update(embedding=[1e308, 1e308]),
        lambda item: item.pop("embedding"),
    ],
)
async def test_a_vector_that_cannot_be_compared_is_made_again(
    tmp_path: Path, change: Callable[[Any], object]
) -> None:
    embedder = WordsEmbedder()
    memory = Memory(tmp_path, embedder=embedder, durable=False)
    entry = await memory.add("Ada keeps bees.", scope=ADA)
    await memory.add("Ben keeps goats.", scope=ADA)
    await memory.embed([ADA])
    whole = json.loads((await export_memory(memory, ADA))[0])
    await memory.forget("bees")
    change(whole["memories"][0])
    parcel = read_export(json.dumps(whole).encode(), ADA)
    assert not parcel.faults
    await import_memory(memory, parcel.entries, vectors=parcel.vectors)
    embedder.batches.clear()
    found = await memory.search("Who keeps bees?", scopes=[ADA])
    assert found[0].entry.identity == entry.identity
    assert embedder.texts[0] == "Ada keeps bees."
    await memory.close()


async def test_vectors_of_different_lengths_are_not_kept(tmp_path: Path) -> None:
    memory = Memory(tmp_path, embedder=WordsEmbedder(), durable=False)
    entries = [await memory.add(f"Ada keeps {kind}.", scope=ADA) for kind in ("bees", "goats")]
    one, other = array("f", [1.0]), array("f", [0.6, 0.8])
    await memory.keep_vectors([(entries[0], one), (entries[1], other)])
    cache = EmbeddingCache(tmp_path / EMBEDDINGS)
    assert cache.read_size("words") is None
    await memory.keep_vectors([(entries[1], other)])
    assert cache.read_size("words") == 2
    await memory.close()


async def test_a_time_ahead_of_the_clock_stops_no_deduplication(
    memory: Memory, tmp_path: Path
) -> None:
    data = {**FOREIGN, "last_deduplicated_at": "2999-01-01T00:00:00Z"}
    assert read_export(json.dumps(data).encode(), ADA).last_deduplicated is None
    await memory.add("Ada keeps bees.", scope=ADA)
    parcel = read_export(
        json.dumps({**FOREIGN, "last_deduplicated_at": "2026-01-01T00:00:00Z"}).encode(), ADA
    )
    await import_memory(memory, parcel.entries, last_deduplicated=parcel.last_deduplicated)
    # What was there before has not been compared with what came.
    assert json.loads((await export_memory(memory, ADA))[0])["last_deduplicated_at"] is None


words = st.text(min_size=1).filter(lambda text: bool(text.strip()))
names = st.sampled_from(["ada", "ben", "c-1"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
entries_of_all_kinds = st.builds(
    Entry,
    content=words,
    identity=st.uuids().map(str),
    role=st.sampled_from(Role),
    scope=st.one_of(st.just(GLOBAL), st.builds(Scope.of_user, names)),
    created=st.integers(0, 4_000_000_000_000_000).map(
        lambda micros: datetime.fromtimestamp(micros / 1e6, timezone(timedelta(hours=2)))
    ),
    importance=st.floats(0, 1),
    category=st.text(),
    topics=st.lists(st.text(), max_size=3).map(tuple),
    speaker=st.text(),
    conversation=st.text(),
    turn=st.text(),
    further=st.dictionaries(words.filter(lambda name: name.isidentifier()), values, max_size=3),
)


def accept(entry: Entry) -> Entry | None:
    try:
        return check_entry(entry)
    except MemoryInvalid:
        return None


@settings(max_examples=40, deadline=None)
@given(st.lists(entries_of_all_kinds.map(accept), max_size=4))
def test_what_was_exported_comes_in_again_without_loss(given_entries: list[Entry | None]) -> None:
    entries = [entry for entry in given_entries if entry is not None]

    async def there_and_back() -> None:
        with tempfile.TemporaryDirectory() as folder:
            first = Memory(Path(folder, "first"), durable=False)
            for entry in entries:
                await first.restore(entry)
            there = await first.survey()
            data = produce_export(there)
            parcel = read_export(data, BEN)
            assert parcel.faults == []
            second = Memory(Path(folder, "second"), durable=False)
            taken = await import_memory(second, parcel.entries)
            back = await second.survey()
            assert back == there
            assert sum(taken.new.values()) == len(there)
            # And once more nothing is new, here and there.
            for memory in (first, second):
                assert (await import_memory(memory, parcel.entries)).known == len(there)
                assert await memory.survey() == there

    asyncio.run(there_and_back())


def test_any_number_of_entries_of_one_second_get_numbers_of_their_own() -> None:
    times = [*[10] * 30_000, 9, 12, *[9] * 3]
    entries = [
        Entry(content="x", identity=str(place), scope=ADA, created=datetime.fromtimestamp(at, UTC))
        for place, at in enumerate(times)
    ]
    items = json.loads(produce_export(entries))["memories"]
    numbers = [item["data"]["id"] for item in items]
    assert numbers[:30_000] == [*range(10, 30_010)]
    assert numbers[30_000:] == [9, *range(30_010, 30_014)]


async def test_into_another_scope_it_is_another_entry(memory: Memory) -> None:
    entry = await memory.add("Ada keeps bees.", scope=ADA)
    said = await memory.add("I keep bees", scope=ADA, role=Role.USER, conversation="c1")
    data = produce_export(await memory.survey())
    for known in (0, 2):
        parcel = read_export(data, BEN, everything=True)
        taken = await import_memory(memory, parcel.entries)
        assert taken.known == known
    there = await memory.survey(BEN)
    assert [one.content for one in there] == [entry.content, said.content]
    assert len({one.identity for one in await memory.survey()}) == 4
    assert await memory.access(entry.identity) == entry


async def test_what_was_changed_in_between_stays_changed(memory: Memory) -> None:
    entry = await memory.add("Ada lives in Lisbon.", scope=ADA)
    data = produce_export(await memory.survey())
    await memory.revise(entry.identity, content="Ada lives in Porto.")
    assert (await import_memory(memory, read_export(data, ADA).entries)).known == 1
    assert [one.content for one in await memory.survey()] == ["Ada lives in Porto."]


async def test_a_dry_run_writes_nothing_and_reports_the_same(memory: Memory) -> None:
    items = [{"data": {"content": content}} for content in ("a bee", "a goat", "a bee", "A bee!")]
    entries = read_export(file_of(*items), ADA).entries
    reported = [0]
    dry = await import_memory(memory, entries, dry_run=True, progress=reported.append)
    assert not memory.folder.exists()
    assert reported == [0, 4]
    wet = await import_memory(memory, entries)
    # Only the store distinguishes equal words.
    assert (wet.new, wet.known) == ({"user-ada": 2}, 2)
    assert dry.known == 1
    assert len(await memory.survey()) == 2


GOOD = {"data": {"content": "Ada keeps bees."}}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"data": {"content": " "}}, "empty text"),
        ({"data": {"content": 5}}, "Expected `str`"),
        ({"data": {}}, "missing required field `content`"),
        ({}, "missing required field `data`"),
        ("x", "Expected `object`"),
        (None, "Expected `object`"),
        ({"data": {"content": "x", "importance": 2}}, "`float` <= 1.0"),
        ({"data": {"content": "x", "importance": "high"}}, "Expected `float | null`"),
        ({"data": {"content": "x", "topics": "home"}}, "Expected `array | null`"),
        ({"data": {"content": "x" * (4 << 20)}}, "longer than 4 MiB"),
        ({"data": {"content": "x", "id": [1]}}, "Expected `int | float | str | null`"),
        ({"data": {"content": "x"}, "entry": {"id": "a"}}, "missing required field `created_at`"),
        ("SCOPE ../../etc", "is not a scope"),
        ("SCOPE user-../ben", "is not a valid name of a user"),
        ("ID ../../x", "cannot be the identity"),
        ("ID ", "cannot be the identity"),
        ("FURTHER role", "role: reserved"),
        ("FURTHER id", "id: reserved"),
        ("DEEP", "too deep"),
    ],
)
def test_an_item_that_cannot_be_remembered_is_reported_by_its_index(item: Any, words: str) -> None:
    own: dict[str, Any] = {"id": "a1b2", "created_at": "2026-01-01T00:00:00Z"}
    match str(item).split(" "):
        case ["SCOPE", name]:
            item = {**GOOD, "entry": {**own, "scope": name}}
        case ["ID", name]:
            item = {**GOOD, "entry": {**own, "id": name}}
        case ["FURTHER", name]:
            item = {**GOOD, "entry": {**own, "further": {name: "summary"}}}
        case ["DEEP"]:
            deep: Any = 1
            for _ in range(60):
                deep = [deep]
            item = {**GOOD, "entry": {**own, "further": {"mood": deep}}}
    (fault,) = faults_of(file_of(GOOD, item, GOOD))
    assert fault[0] == 1
    assert words in fault[1] or (words == "too deep" and "deep" in fault[1])


def test_a_duplicate_identity_is_reported() -> None:
    own = {"id": "a1b2", "created_at": "2026-01-01T00:00:00Z"}
    items = ({"data": {"content": f"number {n}"}, "entry": own} for n in range(2))
    assert faults_of(file_of(*items)) == [(1, "an earlier item has the id 'a1b2'")]
    # Others number by the clock, so that two of a second have one number.
    twice = ({"data": {"content": f"number {n}", "id": 1735689600}} for n in range(2))
    assert faults_of(file_of(*twice)) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read"),
        (b"remember this", "malformed"),
        (b"[]", r"not an object \{\"memories\""),
        (b"{}", "missing required field `memories`"),
        (b'{"memories": 5}', "Expected `array`"),
        (b'{"memories": [{"data": {"content": NaN}}]}', "malformed"),
        (b'{"memories": [{"data": {"content": "x", "importance": Infinity}}]}', "malformed"),
        (
            b'{"memories": [{"data": {"content": "a\\ud800b"}}]}',
            r"line 1, column 38: .ud800 is half",
        ),
        (b'{"memories": [{"data": {"content": "\\udc00b"}}]}', r".udc00 is half of a surrogate"),
        (b'{"memories": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "too deep"),
        (b'\xff\xfe{\x00"\x00', "cannot be read"),
        (b"\x80\x04\x95pickled", "line 1, column 1"),
        (b'{"memories": [\n  {"data": {}},\n  \xc3\xa9]}', "line 3, column 3: JSON is malformed"),
        (b'{"memories": [\n "\xc3\xa9\xc3\xa9" x]}', "line 2, column 7: JSON is malformed"),
        (b'\xef\xbb\xbf{"memories": [\n{"data"', "line 2, column 8: unexpected end of the file"),
        (b'{"memories": [\n"ab\xff"', "line 2, column 4: not UTF-8 text"),
        (b'{"memories": [\nx"ab\xff"', "line 2, column 1: JSON is malformed"),
    ],
)
def test_an_invalid_file_is_refused_as_a_whole(data: bytes, words: str) -> None:
    with pytest.raises(MemoryInvalid, match=words):
        read_export(data, ADA)


@pytest.mark.parametrize(
    "item",
    [
        b'{"data": {"content": "\xff"}}',
        b'{"data": {"content": "x", "id": ' + b"9" * 5000 + b"}}",
        b'{"data": {"content": "x", "importance": 1e999}}',
    ],
)
def test_what_is_wrong_in_one_item_hurts_no_other(item: bytes) -> None:
    good = json.dumps(GOOD).encode()
    parcel = read_export(b'{"memories": [%s, %s]}' % (item, good), ADA)
    assert [one.index for one in parcel.faults] == [0]
    assert [one.content for one in parcel.entries] == ["Ada keeps bees."]


def test_each_item_that_is_bad_is_reported_with_its_line() -> None:
    data = b'{"memories": [\n {},\n {"data": {"content": "x"}},\n {"data":\n {}}, {},\n\n {}]}'
    parcel = read_export(data, ADA)
    assert [(one.index, one.line) for one in parcel.faults] == [(0, 2), (2, 4), (3, 5), (4, 7)]


def test_a_file_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(MemoryInvalid, match="longer than 1 MiB"):
        read_export(b" " * (1 << 20) + b"{}", ADA)


def test_a_mark_at_the_beginning_and_unknown_members_are_no_matter() -> None:
    item = {"data": {"content": "x", "mood": "fine"}, "embedding": None, "more": {}}
    assert faults_of(b"\xef\xbb\xbf" + file_of(item, version=7)) == []
    whole = '{"memories": [{"data": {"content": "\\ud83d\\ude00 \\\\ud800"}}]}'
    assert read_export(whole.encode(), ADA).entries[0].content == "\U0001f600 \\ud800"


def test_what_json_has_no_form_for_becomes_text() -> None:
    values: dict[Any, Any] = {
        "day": datetime(2026, 1, 2, tzinfo=UTC).date(),
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "share": float("nan"),
        "half": 0.5,
        "set": {1},
        "bytes": b"raw",
        5: True,
    }
    created = datetime(2026, 1, 1, tzinfo=UTC)
    entry = Entry(content="x", identity="a1b2", created=created, further=values)
    further = json.loads(produce_export([entry]))["memories"][0]["entry"]["further"]
    assert further["day"] == "2026-01-02"
    assert further["when"] == "2026-01-02T00:00:00+00:00"
    assert (further["share"], further["half"], further["set"]) == ("nan", 0.5, [1])
    assert (further["bytes"], further["5"]) == ("b'raw'", True)


async def test_turns_that_say_the_same_at_the_same_time_are_both_taken_in(tmp_path: Path) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    first = Memory(tmp_path / "first", durable=False)
    for _ in range(2):
        await first.add("Yes.", scope=ADA, role=Role.USER, created=when)
    there = await first.survey()
    for some in (there, there[::-1]):
        second = Memory(tmp_path / f"second-{some[0].identity}", durable=False)
        await second.restore(there[0])
        assert (await import_memory(second, some)).new == {str(ADA): 1}
        assert await second.survey() == there
        assert (await import_memory(second, some)).known == 2
        # In another scope they are others, and known there as well the next time.
        moved = [msgspec.structs.replace(one, scope=BEN) for one in some]
        assert (await import_memory(second, moved)).new == {str(BEN): 2}
        assert (await import_memory(second, moved)).known == 2
        assert len(await second.survey()) == 4
