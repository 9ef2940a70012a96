"""Entries copied from one store of memory to another."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fakes.postgres import temporary_database
from vibe_llms.base.exceptions import StorageError
from vibe_llms.memory.copying import copy_memory
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings

ME = Scope.of_user("me")


@pytest.fixture
def rows() -> Iterator[PostgresMemory]:
    with temporary_database() as place:
        database = BlockingDatabase(PostgresSettings(dsn=place.dsn))
        yield PostgresMemory(database, "ada", lock_seconds=5)
        database.close()


@pytest.fixture
def folder(tmp_path: Path) -> MemoryFiles:
    return MemoryFiles(tmp_path / "memory", durable=False)


@pytest.fixture(params=["database", "folder"])
def pair(
    request: pytest.FixtureRequest, folder: MemoryFiles, rows: PostgresMemory
) -> tuple[MemoryStore, MemoryStore]:
    """A source and a target."""
    return (folder, rows) if request.param == "database" else (rows, folder)


Pair = tuple[MemoryStore, MemoryStore]


def produce_entry(identity: str, content: str = "A fact.", scope: Scope = ME) -> Entry:
    created = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return Entry(content=content, identity=identity, scope=scope, created=created)


def fill(store: MemoryStore) -> None:
    entries = [
        replace(produce_entry("one"), topics=("a", "b"), further={"mood": "good", "n": [1, 2]}),
        replace(produce_entry("said"), role=Role.USER, speaker="ada"),
        replace(produce_entry("summary"), role=Role.SUMMARY, category="L2"),
        produce_entry("all", "For all.", GLOBAL),
    ]
    for entry in entries:
        with store.changing(entry.scope):
            store.write(entry)
    with store.changing(ME):
        store.write_last(ME, datetime(2026, 2, 3, tzinfo=UTC))


def read_all(store: MemoryStore) -> dict[str, dict[str, bytes | None]]:
    return {str(scope): dict(store.read_all(scope)) for scope in store.survey_scopes()}


def test_entries_of_all_scopes_are_copied_byte_for_byte(pair: Pair) -> None:
    source, target = pair
    fill(source)
    done = copy_memory(source, target)
    assert (done.entries, done.copied, done.damaged) == (4, 4, [])
    assert read_all(target) == read_all(source)
    assert target.read_last(ME) == source.read_last(ME)
    assert copy_memory(source, target).copied == 0


def test_a_second_copy_brings_what_changed_and_deletes_what_was_deleted(pair: Pair) -> None:
    source, target = pair
    fill(source)
    copy_memory(source, target)
    with source.changing(ME):
        source.write(produce_entry("one", "Another text."))
        said = next(place for place in source.scan(ME) if place.startswith("turns/"))
        source.delete(source.read(ME, said), said)
    with target.changing(ME):
        target.write(produce_entry("own", "Of the target."))
    assert copy_memory(source, target).copied == 1
    assert {entry.content for _, entry in target.read_many(ME, target.scan(ME))} == {  # type: ignore[union-attr]
        *("Another text.", "A fact.", "Of the target.")
    }
    assert [*target.scan(ME, deleted=True)] == [said]


def test_entries_that_cannot_be_read_are_named_and_left_out(
    folder: MemoryFiles, rows: PostgresMemory
) -> None:
    fill(folder)
    place = next(place for place in folder.scan(ME) if place.startswith("facts/"))
    folder.path_of(ME, place).write_bytes(b"no entry")
    done = copy_memory(folder, rows)
    assert (done.entries, done.copied, len(done.damaged)) == (3, 3, 1)
    assert place in done.damaged[0]


def test_a_target_that_keeps_something_else_is_an_error(
    folder: MemoryFiles, rows: PostgresMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder)

    def rewrite(self: PostgresMemory, entry: Entry, place: str) -> None:
        genuine(self, replace(entry, content="x"), place)

    genuine = PostgresMemory.rewrite
    monkeypatch.setattr(PostgresMemory, "rewrite", rewrite)
    with pytest.raises(StorageError, match="differs from the source"):
        copy_memory(folder, rows)
