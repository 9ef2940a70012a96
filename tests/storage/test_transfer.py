"""Conversations copied from one kind of archive to another, byte for byte, again and again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import TestDatabase
from tests.faults.archives import FAST, produce_details, say
from vibe_llms.base.exceptions import ContentMissing, ConversationMoved, FormatNewer, StorageError
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.conversations import ConversationFolder
from vibe_llms.storage.interfaces import Origin
from vibe_llms.storage.objects import BucketStore
from vibe_llms.storage.postgres import statements
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings
from vibe_llms.storage.transfer import (
    StoredConversation,
    TransferableArchive,
    copy_conversation,
    copy_file,
)

#: Members of a file's record before files had ids of their own.
EARLIER = ("id", "name", "mimetype", "size", "created")
_NEWER = b'{ "role": "oracle", "created": "2031-01-02T03:04:06Z", "identity": "n", "z": "\\u00e9"}'


@pytest.fixture
async def rows(place: TestDatabase) -> AsyncIterator[PostgresArchive]:
    database = Database(PostgresSettings(dsn=place.dsn))
    bucket = BucketStore(access_bucket_server().produce_bucket(least_bytes=3_000))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    yield PostgresArchive(database, contents, "ada")
    await database.close()


@pytest.fixture
def folder(tmp_path: Path) -> DirectoryArchive:
    return DirectoryArchive(tmp_path / "folder", FAST)


@pytest.fixture
def other(tmp_path: Path) -> DirectoryArchive:
    return DirectoryArchive(tmp_path / "other", FAST)


def produce_messages() -> list[Canister]:
    picture = ImageContent(bytes(range(256)) * 20, "image/png")
    return [
        SupervisorCanister.from_text("Be brief."),
        *say("first", "second"),
        UserCanister((TextualContent("look"), picture)),
        UserCanister.from_text("a long text " * 200),
    ]


async def fill(archive: TransferableArchive) -> None:
    """Conversations of all kinds."""
    said = produce_messages()
    await archive.create("one", produce_details(), said)
    await archive.append("one", say("further"), after=said[-1].identity)
    await archive.revise("one", name="Ünïcode", add_tags=["a", "b"])
    origin = Origin("one", said[2].identity)
    forked = replace(produce_details(), forked_from=origin)
    await archive.fork("one", "fork", forked, at=said[2].identity)
    await archive.revise("one", superseded_by="fork")
    await archive.create("empty", produce_details(), [])
    await archive.upload(b"an uploaded file", "notes.txt", "text/plain")
    expires = "2031-01-02T03:04:05+00:00"
    same = {"identity": "a" * 32, "purpose": "vision", "expires": expires}
    await archive.upload(b"an uploaded file", "sky.txt", "text/plain", **same)


async def copy(source: TransferableArchive, target: TransferableArchive) -> int:
    """Copy everything; returns how many were changed."""
    done = [
        *[await copy_conversation(source, target, one) for one in await source.survey_identities()],
        *[await copy_file(source, target, one) for one in await source.survey_files()],
    ]
    return sum(one.changed for one in done)


async def check_same(one: TransferableArchive, other: TransferableArchive) -> None:
    assert await one.survey_identities() == await other.survey_identities()
    for identity in await one.survey_identities():
        stored = await one.export_conversation(identity)
        assert stored == await other.export_conversation(identity)
        restored = await one.restore(identity, lenient=True)
        assert restored == await other.restore(identity, lenient=True)
    assert await one.survey(superseded=True) == await other.survey(superseded=True)
    assert await one.survey() == await other.survey()
    assert await one.survey_files() == await other.survey_files()
    for text in ("further", "long", "look"):
        found = {one.canister for one in await one.search(text, superseded=True)}
        again = {one.canister for one in await other.search(text, superseded=True)}
        assert found == again != set()


async def test_everything_goes_to_the_database_and_back_byte_for_byte(
    folder: DirectoryArchive, rows: PostgresArchive, other: DirectoryArchive
) -> None:
    await fill(folder)
    assert await copy(folder, rows) == 5
    await check_same(folder, rows)
    assert await copy(rows, other) == 5
    await check_same(folder, other)
    for identity in await folder.survey_identities():
        for name in ("messages.jsonl", "metadata.toml"):
            path = Path("conversations", identity, name)
            assert (other.folder / path).read_bytes() == (folder.folder / path).read_bytes()


async def test_what_the_database_wrote_itself_goes_to_a_folder(
    folder: DirectoryArchive, rows: PostgresArchive
) -> None:
    await fill(rows)
    assert await copy(rows, folder) == 5
    await check_same(rows, folder)
    assert await rows.contents.objects.survey("ada")  # type: ignore[union-attr]
    picture = produce_messages()[3].contents[1].data  # type: ignore[union-attr]
    assert await folder.load(Reference.from_bytes(picture)) == picture  # type: ignore[arg-type]


@pytest.fixture(params=["database", "folder"])
def pair(
    request: pytest.FixtureRequest, folder: DirectoryArchive, rows: PostgresArchive
) -> tuple[TransferableArchive, TransferableArchive]:
    """A source and a target."""
    return (folder, rows) if request.param == "database" else (rows, folder)


Pair = tuple[TransferableArchive, TransferableArchive]


async def test_more_messages_than_one_statement_takes_are_copied(
    folder: DirectoryArchive, rows: PostgresArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PART", 2)
    await fill(folder)
    assert await copy(folder, rows) == 5
    await folder.append("one", say(*map(str, range(5))), after=None)
    assert await copy(folder, rows) == 1
    await check_same(folder, rows)


async def test_a_second_copy_brings_only_what_is_new(pair: Pair) -> None:
    source, target = pair
    await fill(source)
    await copy(source, target)
    assert await copy(source, target) == 0
    await source.append("fork", say("further"), after=None)
    await source.revise("one", name="renamed")
    await source.create("two", produce_details(), say("two"))
    # The source has it under a newer name.
    await source.upload(b"an uploaded file", "renamed.txt", "text/plain")
    assert await copy(source, target) == 4
    await check_same(source, target)


async def test_a_file_with_an_id_of_its_own_is_replaced_and_removed_alone(pair: Pair) -> None:
    archive, _ = pair
    ours = await archive.upload(b"same", "a.txt")
    first = await archive.upload(b"same", "b.txt", identity="b" * 32, purpose="vision")
    second = await archive.upload(b"other", "c.txt", identity="b" * 32)
    assert (ours.id, first.id, first.hash) == (first.hash, "b" * 32, ours.id)
    assert (first.purpose, first.expires) == ("vision", None)
    assert await archive.access_file("b" * 32) == second != first
    assert await archive.survey_files() == [second, ours]
    assert await archive.remove_file(ours.id) == ours
    await archive.collect()
    assert await archive.load(Reference(second.hash, second.size)) == b"other"
    with pytest.raises(ContentMissing):
        await archive.load(Reference(ours.hash, ours.size))
    assert await archive.remove_file("b" * 32) == second
    assert second.hash in await archive.collect()


async def test_the_record_of_an_earlier_version_has_the_hash_as_its_id(
    folder: DirectoryArchive,
) -> None:
    file = await folder.upload(b"a", "a.txt")
    path = folder.uploads.folder / f"{file.id}.json"
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({name: record[name] for name in record if name in EARLIER}))
    assert await folder.access_file(file.id) == file


async def test_a_conversation_that_was_continued_in_the_target_is_refused(pair: Pair) -> None:
    source, target = pair
    await fill(source)
    await copy(source, target)
    await target.append("fork", say("here"), after=None)
    before = await target.export_conversation("fork")
    with pytest.raises(ConversationMoved, match="fork: the conversation was continued here"):
        await copy_conversation(source, target, "fork")
    await source.append("fork", say("there"), after=None)
    with pytest.raises(ConversationMoved):
        await copy_conversation(source, target, "fork")
    assert await target.export_conversation("fork") == before


async def test_lines_that_this_version_cannot_read_are_copied_as_they_are(
    folder: DirectoryArchive, rows: PostgresArchive, other: DirectoryArchive
) -> None:
    await folder.create("one", produce_details(), say("look", "further, after long"))
    lines = folder.conversations / "one" / "messages.jsonl"
    whole = lines.read_bytes() + _NEWER + b"\nno JSON\n\n" + b'{"role":"user"}\r\n'
    # The last line is torn.
    lines.write_bytes(whole + b'{"role":"us')
    metadata = folder.conversations / "one" / "metadata.toml"
    metadata.write_bytes(metadata.read_bytes() + b'mood = "good"\n# and a remark\n')
    before = lines.stat()
    await copy(folder, rows)
    await copy(rows, other)
    assert (other.conversations / "one" / "messages.jsonl").read_bytes() == whole
    assert (other.conversations / "one" / "metadata.toml").read_bytes() == metadata.read_bytes()
    assert (await other.restore("one", lenient=True)).gaps == (
        await folder.restore("one", lenient=True)
    ).gaps
    # The source is what it was.
    assert (lines.read_bytes(), lines.stat().st_mtime_ns) == (
        whole + b'{"role":"us',
        before.st_mtime_ns,
    )


async def test_a_conversation_of_a_newer_version_is_refused_by_the_database(
    folder: DirectoryArchive, rows: PostgresArchive
) -> None:
    await folder.create("one", produce_details(), say("one"))
    metadata = folder.conversations / "one" / "metadata.toml"
    metadata.write_bytes(metadata.read_bytes().replace(b"format = 1", b"format = 99"))
    with pytest.raises(FormatNewer):
        await copy(folder, rows)


async def test_a_content_that_the_source_lost_is_named(pair: Pair) -> None:
    source, target = pair
    await fill(source)
    reference = Reference.from_bytes(bytes(range(256)) * 20)
    if isinstance(source, DirectoryArchive):
        (source.contents.folder / reference.hash / "data").write_bytes(b"x" * reference.size)
    else:
        await source.contents.objects.write("ada", reference.hash, b"x")  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match=reference.hash[:12]):
        await copy_conversation(source, target, "one")
    assert "one" not in await target.survey_identities()


async def test_a_target_that_keeps_something_else_is_an_error(
    folder: DirectoryArchive, rows: PostgresArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(folder)
    genuine = rows.import_conversation

    async def import_conversation(identity: str, stored: StoredConversation) -> None:
        await genuine(identity, replace(stored, lines=stored.lines.replace(b"first", b"First")))

    monkeypatch.setattr(rows, "import_conversation", import_conversation)
    with pytest.raises((StorageError, ConversationMoved), match="one"):
        await copy_conversation(folder, rows, "one")


async def test_contents_of_a_copy_that_was_broken_off_may_be_collected_in_between(
    folder: DirectoryArchive, rows: PostgresArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(folder)
    find = rows.find_contents

    async def collect(digests: object) -> object:
        found = await find(digests)  # type: ignore[arg-type]
        monkeypatch.setattr(rows, "find_contents", find)
        await rows.contents.collect("ada", grace_seconds=-1)
        return found

    await rows.put(b"Be brief.")
    monkeypatch.setattr(rows, "find_contents", collect)
    await copy(folder, rows)
    await check_same(folder, rows)


async def test_the_source_may_be_continued_while_it_is_copied(
    folder: DirectoryArchive, rows: PostgresArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(folder)
    export = ConversationFolder.export

    def exported(self: ConversationFolder) -> object:
        stored = export(self)
        folder.append_now("fork", say("in between"), None)
        return stored

    monkeypatch.setattr(ConversationFolder, "export", exported)
    await copy_conversation(folder, rows, "fork")
    monkeypatch.undo()
    assert await copy(folder, rows) == 5
    await check_same(folder, rows)


async def test_the_times_of_conversations_are_copied(pair: Pair) -> None:
    source, target = pair
    await source.create("one", produce_details(), say("one"))
    updated = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
    stored = await source.export_conversation("one")
    await source.remove("one")
    await source.import_conversation("one", type(stored)(stored.metadata, stored.lines, updated))
    await copy_conversation(source, target, "one")
    assert (await target.export_conversation("one")).updated == updated
    assert [one.updated for one in await target.survey()] == [updated]
