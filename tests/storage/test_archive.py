"""The archive in a folder: what its methods give, and what they refuse."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.archives import FAST, begin, identities_of, lines_of, produce_details, say
from tests.faults.calls import SystemCalls
from tests.faults.workers import SHARED
from vibe_llms.base.exceptions import (
    ConversationAmbiguous,
    ConversationNotFound,
    StorageError,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Details, Origin
from vibe_llms.storage.search import DOOMED


def produce_archive(folder: Path, **conversations: str) -> DirectoryArchive:
    """An archive of conversations, with their names."""
    archive = DirectoryArchive(folder, FAST)
    for identity, name in conversations.items():
        archive.create_now(identity, produce_details(name), say(f"in {identity}"))
    return archive


async def test_a_conversation_is_kept_and_comes_back(tmp_path: Path) -> None:
    archive: Archive = DirectoryArchive(tmp_path)
    details = Details(created=datetime.now(UTC), name="a name", model="m", tags=("t",))
    said = say("first", "x" * 2_000)
    kept = await archive.create("abcd", details, said)
    assert kept == tuple(said)
    further = say("further")
    kept, notices = await archive.append("abcd", further, after=said[-1].identity)
    assert (kept, notices) == (tuple(further), ())
    restored = await archive.restore("abcd")
    assert restored.details == details
    assert restored.canisters == (*said, *further)
    assert (restored.gaps, restored.notices) == ((), ())
    await archive.close()
    await archive.close()


async def test_what_is_kept_in_memory_can_be_read_without_the_archive(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    (kept,) = await archive.create("abcd", produce_details(), say("x" * 2_000))
    assert isinstance(kept, UserCanister)
    assert kept.text == "x" * 2_000
    (restored,) = (await archive.restore("abcd")).canisters
    assert isinstance(restored, UserCanister)
    (content,) = restored.contents
    assert isinstance(content, TextualContent)
    assert isinstance(content.data, Reference)
    assert await archive.load(content.data) == b"x" * 2_000


async def test_details_are_changed_one_by_one(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    assert (await archive.revise(SHARED, name="new")).name == "new"
    assert (await archive.revise(SHARED, model="scripted/demo")).model == "scripted/demo"
    assert (await archive.revise(SHARED, add_tags=["b", "a"])).tags == ("a", "b")
    details = await archive.revise(SHARED, add_tags=["c"], remove_tags=["a", "z"])
    assert details.tags == ("b", "c")
    assert details == (await archive.restore(SHARED)).details
    assert (details.name, details.model) == ("new", "scripted/demo")
    assert (await archive.revise(SHARED)) == details


async def test_a_removed_conversation_is_gone(tmp_path: Path) -> None:
    archive = begin(tmp_path)
    with SystemCalls() as calls:
        await archive.remove(SHARED)
    assert calls.count("fsync") == 1
    assert [*archive.conversations.iterdir()] == []
    with pytest.raises(ConversationNotFound):
        await archive.restore(SHARED)
    with pytest.raises(ConversationNotFound):
        await archive.remove(SHARED)
    # Its identity may be used again, and nothing of the old one is remembered.
    await archive.create(SHARED, produce_details(), say("another"))
    await archive.append(SHARED, say("further"), after=None)
    assert len((await archive.restore(SHARED)).canisters) == 2


async def test_a_conversation_is_found_by_identity_prefix_and_name(tmp_path: Path) -> None:
    archive = produce_archive(
        tmp_path, abcd2345wxyz="river", abcd7777wxyz="", efgh="lantern", abcd="short"
    )
    for text, identity in (
        ("abcd2345wxyz", "abcd2345wxyz"),
        ("abcd2", "abcd2345wxyz"),
        ("ABCD23", "abcd2345wxyz"),
        ("abcd", "abcd"),
        ("river", "abcd2345wxyz"),
        ("efgh", "efgh"),
        ("lantern", "efgh"),
    ):
        assert await archive.resolve(text) == identity
    for text in ("efg", "nothing", "", " ", "\0", "\ud800", "in efgh"):
        with pytest.raises(ConversationNotFound, match="see: vibe-llms list"):
            await archive.resolve(text)


async def test_a_conversation_is_found_by_what_a_person_remembers_of_its_name(
    tmp_path: Path,
) -> None:
    archive = produce_archive(tmp_path, aaaa2222="Trip to Rome", bbbb2222="The Rome papers")
    await archive.create("cccc2222", produce_details(), say("What is the sky?"))
    for place, identity in enumerate(("aaaa2222", "bbbb2222", "cccc2222")):
        os.utime(archive.conversations / identity / "messages.jsonl", (place, place))
    for text, identity in (
        ("trip", "aaaa2222"),
        ("the rome", "bbbb2222"),
        ("PAPERS", "bbbb2222"),
        ("what is", "cccc2222"),
        ("sky?", "cccc2222"),
        ("-1", "cccc2222"),
        ("-3", "aaaa2222"),
    ):
        assert await archive.resolve(text) == identity
    with pytest.raises(ConversationAmbiguous, match="bbbb2222 'The Rome papers', aaaa2222"):
        await archive.resolve("rome")
    with pytest.raises(ConversationNotFound, match="conversation -4 not found; the list has 3"):
        await archive.resolve("-4")
    with pytest.raises(ConversationNotFound, match="no conversation named 'Paris'; see: vibe-llms"):
        await archive.resolve("Paris")


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, " and 1 more"), (21, " and 13 more")])
async def test_of_many_only_some_are_named_and_found(tmp_path: Path, count: int, more: str) -> None:
    names = {f"abcd{chr(97 + number)}": "To Rome" for number in range(count)}
    archive = produce_archive(tmp_path, **names)
    with pytest.raises(
        ConversationAmbiguous, match=rf"matches {count} .*{more}; give more"
    ) as caught:
        await archive.resolve("rome")
    assert str(caught.value).count("To Rome") == 8
    assert set(caught.value.candidates) == set(names)
    assert len(await archive.search("in")) == len(archive.search_now("in")) == min(count, 20)


async def test_leftovers_of_a_crashed_removal_are_cleared_at_the_next_look(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa2222="Trip", bbbb2222="Rome")
    looks = (
        archive.survey,
        lambda: archive.search("Rome"),
        lambda: archive.resolve("bbbb2222"),
        archive.collect,
    )
    for look in looks:
        doomed = archive.conversations / f"{DOOMED}x"
        shutil.copytree(archive.conversations / "aaaa2222", doomed)
        await look()
        assert not doomed.exists()


async def test_what_another_superseded_is_listed_only_where_all_are_wanted(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa2222="Trip", bbbb2222="Trip")
    await archive.revise("aaaa2222", superseded_by="bbbb2222")
    assert [one.identity for one in await archive.survey()] == ["bbbb2222"]
    every = await archive.survey(superseded=True)
    assert {one.identity: one.superseded_by for one in every} == {
        "aaaa2222": "bbbb2222",
        "bbbb2222": "",
    }
    assert {one.conversation for one in await archive.search("first")} <= {"bbbb2222"}
    # It is known by its identity still, and no more by its name.
    assert await archive.resolve("trip") == "bbbb2222"
    assert await archive.resolve("aaaa2") == "aaaa2222"
    assert (await archive.restore("aaaa2222")).details.superseded_by == "bbbb2222"
    # Where the other one is gone, it is all that is left.
    await archive.remove("bbbb2222")
    assert [one.identity for one in await archive.survey()] == ["aaaa2222"]


async def test_a_text_that_fits_several_names_them(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa1="river", aaaa2="river", bbbb1="aaaa1x")
    with pytest.raises(ConversationAmbiguous) as raised:
        await archive.resolve("aaaa")
    assert sorted(raised.value.candidates) == ["aaaa1", "aaaa2"]
    assert str(raised.value) in {
        f"'aaaa' matches 2 conversations: {named}; give more of the name, or the id"
        for named in ("aaaa1 'river', aaaa2 'river'", "aaaa2 'river', aaaa1 'river'")
    }
    with pytest.raises(ConversationAmbiguous) as raised:
        await archive.resolve("river")
    assert sorted(raised.value.candidates) == ["aaaa1", "aaaa2"]
    await archive.revise("bbbb1", name="aaaa2x")
    assert await archive.resolve("aaaa2x") == "bbbb1"


async def test_a_name_and_a_prefix_of_two_conversations_are_ambiguous(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, abcd2345wxyz="", efgh2345wxyz="abcd2")
    with pytest.raises(ConversationAmbiguous):
        await archive.resolve("abcd2")


async def test_an_archive_is_made_where_there_is_none(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path / "not" / "yet", FAST)
    assert await archive.survey() == []
    assert await archive.search("anything") == []
    assert await archive.collect() == []
    with pytest.raises(ConversationNotFound):
        await archive.resolve("abcd")
    with pytest.raises(ConversationNotFound):
        await archive.restore("abcd")


async def test_an_archive_that_is_removed_in_between_is_begun_anew(tmp_path: Path) -> None:
    archive = begin(tmp_path / "archive", settings=FAST)
    shutil.rmtree(tmp_path / "archive")
    with pytest.raises(ConversationNotFound):
        await archive.append(SHARED, say("further"), after=None)
    await archive.create("other", produce_details(), say("first"))
    assert [summary.identity for summary in await archive.survey()] == ["other"]


async def test_a_file_in_place_of_the_archive_is_reported(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file")
    archive = DirectoryArchive(tmp_path / "archive", FAST)
    with pytest.raises(StorageError) as raised:
        await archive.create("abcd", produce_details(), say("first"))
    assert raised.value.path == str(tmp_path / "archive")


async def test_a_fork_keeps_what_it_should(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    said = say("one", "two", "three")
    await archive.create("abcd", produce_details(), said)
    details = Details(created=datetime.now(UTC), forked_from=Origin("abcd", said[1].identity))
    await archive.fork("abcd", "efgh", details, at=said[1].identity)
    await archive.fork("abcd", "ijkl", details)
    assert identities_of(await archive.restore("efgh")) == [one.identity for one in said[:2]]
    assert identities_of(await archive.restore("ijkl")) == [one.identity for one in said]
    assert (await archive.restore("efgh")).details == details


async def test_what_was_interrupted_is_cleared_away_when_it_is_old(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    reference = await archive.put(b"data")
    content = archive.contents.folder / reference.hash
    remains = [
        archive.conversations / ".new-1",
        archive.contents.folder / ".new-2",
        archive.conversations / SHARED / ".new-metadata.toml-3",
        content / ".new-data-4",
        archive.conversations / ".new-link",
    ]
    for path in remains[:2]:
        path.mkdir()
        (path / "data").write_text("half")
    for path in remains[2:4]:
        path.write_text("half")
    remains[4].symlink_to(tmp_path)
    assert {*archive.survey_remains()} == {*remains}
    assert await archive.collect() == []
    assert {*archive.survey_remains()} == {*remains}
    os.utime(content, (0, 0))
    for path in remains:
        os.utime(path, (0, 0), follow_symlinks=False)
    assert await archive.collect() == [reference.hash]
    assert [*archive.survey_remains()] == []
    assert tmp_path.is_dir()
    assert (await archive.restore(SHARED)).canisters


async def test_the_event_loop_stays_free_while_the_disk_is_slow(tmp_path: Path) -> None:
    """The slow call waits for the loop to move: it would wait for ever on the loop itself."""
    archive = begin(tmp_path)
    loop = asyncio.get_running_loop()
    moved = asyncio.Event()

    class Slow:
        def before(self, name: str, arguments: object, options: object) -> None:
            if name == "fdatasync":
                asyncio.run_coroutine_threadsafe(self.move(), loop).result(60)

        async def move(self) -> None:
            moved.set()

        def after(self, *_: object) -> None:
            return None

    with SystemCalls(observer=Slow()):
        await archive.append(SHARED, say("further"), after=None)
    assert moved.is_set()


async def test_unreadable_contents_stop_a_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a conversation needs cannot be known without reading it."""
    archive = begin(tmp_path, settings=FAST)
    reference = await archive.put(b"data")
    os.utime(archive.contents.folder / reference.hash, (0, 0))
    lines = lines_of(archive)
    lines.rename(tmp_path / "lines")
    lines.mkdir()
    (archive.conversations / SHARED / "metadata.toml").unlink()
    (archive.conversations / SHARED / "metadata.toml").symlink_to(tmp_path / "lines")
    with pytest.raises(StorageError, match="Is a directory"):
        await archive.collect()
    assert archive.contents.holds(reference)
    lines.rmdir()
    (tmp_path / "lines").rename(lines)
    await archive.put(b"data")
    os.utime(archive.contents.folder / reference.hash, (0, 0))
    with SystemCalls() as calls:
        await archive.collect()
    at = calls.names.index("read")
    await archive.put(b"data")
    os.utime(archive.contents.folder / reference.hash, (0, 0))
    with SystemCalls(fail_at=at), pytest.raises(StorageError):
        await archive.collect()
    assert await archive.load(reference) == b"data"
