"""The derived index: it follows the files, and no list fails for it."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults import workers
from tests.faults.archives import FAST, lines_of, produce_details, say
from tests.faults.calls import SystemCalls
from tests.faults.processes import Worker, work_together
from tests.faults.waits import at_most
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ArchiveLocked, StorageError
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    ImageContent,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.storage import search
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.interfaces import Details, Origin
from vibe_llms.storage.search import Index

Rounds = Callable[[int, int], int]


def produce_archive(folder: Path, **texts: str) -> DirectoryArchive:
    """An archive of conversations with one message each."""
    archive = DirectoryArchive(folder, FAST)
    archive.prepare()
    for identity, text in texts.items():
        archive.create_now(identity, produce_details(), say(text))
    return archive


def listed(archive: DirectoryArchive) -> set[str]:
    return {summary.identity for summary in archive.survey_now()}


def found(archive: DirectoryArchive, text: str) -> set[str]:
    return {finding.conversation for finding in archive.search_now(text, 1_000)}


def test_a_summary_has_what_is_known_of_a_conversation(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    created = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    origin = Origin("efgh", "canister")
    details = Details(
        created=created, name="a name", model="m", tags=("a", "b"), forked_from=origin
    )
    archive.create_now("abcd", details, say("one", "two"))
    os.utime(lines_of(archive, "abcd"), ns=(0, 1_700_000_000_123_456_789))
    (summary,) = archive.survey_now()
    assert summary.identity == "abcd"
    assert (summary.name, summary.model, summary.tags) == ("a name", "m", ("a", "b"))
    assert (summary.created, summary.forked_from, summary.messages) == (created, origin, 2)
    assert summary.updated - datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC) < timedelta(seconds=1)


def test_the_most_recent_come_first_and_no_more_than_were_asked_for(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="", bbbb="", cccc="")
    for age, identity in enumerate(("bbbb", "cccc", "aaaa")):
        os.utime(lines_of(archive, identity), (0, 1_000_000 - age))
    assert [one.identity for one in archive.survey_now()] == ["bbbb", "cccc", "aaaa"]
    assert [one.identity for one in archive.survey_now(2)] == ["bbbb", "cccc"]
    archive.append_now("aaaa", say("further"), None)
    assert [one.identity for one in archive.survey_now(1)] == ["aaaa"]


def test_a_conversation_without_a_name_is_called_by_its_first_words(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="\n  \n Why is the sky blue?  \nAnd the sea?")
    archive.create_now(
        "bbbb", produce_details(), [AssistantCanister.from_text("no"), *say("x" * 100)]
    )
    archive.create_now("cccc", produce_details(), [AssistantCanister.from_text("no question")])
    names = {summary.identity: summary.title for summary in archive.survey_now()}
    assert names == {"aaaa": "Why is the sky blue?", "bbbb": "x" * 59 + "…", "cccc": ""}
    archive.append_now("cccc", say("now with one"), None)
    archive.access_folder("aaaa").revise({"name": "sky"})
    names = {summary.identity: summary.title for summary in archive.survey_now()}
    assert (names["aaaa"], names["cccc"]) == ("sky", "now with one")


async def test_tags_and_names_select(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="one", bbbb="two")
    await archive.revise("aaaa", add_tags=["x", 'quote "', "ünï"])
    await archive.revise("bbbb", add_tags=["xy"], name="two")
    for tag, identities in (("x", ["aaaa"]), ('quote "', ["aaaa"]), ("ünï", ["aaaa"])):
        assert [one.identity for one in await archive.survey(tag=tag)] == identities
    for tag in ("X", "y", "\ud800", "%"):
        assert await archive.survey(tag=tag) == []
    assert await archive.resolve("two") == "bbbb"
    await archive.revise("aaaa", remove_tags=["x"])
    assert await archive.survey(tag="x") == []


def test_the_index_follows_the_files(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern", bbbb="a river")
    assert found(archive, "lantern") == {"aaaa"}
    archive.append_now("bbbb", say("and a lantern"), None)
    assert found(archive, "lantern") == {"aaaa", "bbbb"}
    archive.remove_now("aaaa")
    assert found(archive, "lantern") == {"bbbb"} == listed(archive)
    archive.create_now("aaaa", produce_details(), say("another text"))
    assert found(archive, "lantern") == {"bbbb"}
    assert found(archive, "another") == {"aaaa"}
    archive.fork_now("bbbb", "cccc", produce_details())
    assert found(archive, "lantern") == {"bbbb", "cccc"}


def test_only_what_came_since_is_read(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, **{f"abcd{n}": f"text {n}" for n in range(20)})
    archive.survey_now()
    with SystemCalls() as calls:
        archive.survey_now()
    assert calls.count("read") == 0
    long = "x" * 3_000
    archive.append_now("abcd7", say(long, "short"), None)
    with SystemCalls() as calls:
        archive.survey_now()
    # The new lines and the one text that lies in the store, to their ends; nothing else.
    assert calls.count("read") == 4
    assert found(archive, long) == {"abcd7"}


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (lambda data: data.replace(b"lantern", b"torches"), "lantern"),
        (lambda data: data.replace(b"lantern", b"lamp"), "lantern"),
        (lambda data: data.replace(b"lantern", b"searchlight"), "lantern"),
        (lambda data: data[: data.index(b"\n") + 1], "meadow"),
        (lambda data: data[data.index(b"\n") + 1 :], "lantern"),
        (lambda data: b"", "meadow"),
    ],
)
def test_a_file_that_was_rewritten_is_indexed_anew(
    tmp_path: Path, change: Callable[[bytes], bytes], gone: str
) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    archive.create_now("abcd", produce_details(), say("a lantern", "a river", "a meadow"))
    assert found(archive, gone) == {"abcd"}
    path = lines_of(archive, "abcd")
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert found(archive, gone) == set()
    (summary,) = archive.survey_now()
    assert summary.messages == path.read_bytes().count(b"\n")


def test_details_that_change_within_one_tick_of_the_clock_are_seen(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, abcd="text")
    path = archive.conversations / "abcd" / "metadata.toml"
    for name in ("aaa", "bbb", "ccc"):
        archive.access_folder("abcd").revise({"name": name})
        os.utime(path, (0, 0))
        assert archive.survey_now()[0].name == name


def test_every_role_is_found_by_what_it_says(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    canisters: list[Canister] = [
        UserCanister((TextualContent("zebra"), ImageContent(b"i", "image/png"))),
        AssistantCanister((ReasoningContent("secret"), TextualContent("yak"))),
        InvocationCanister(name="walrus", arguments='{"where": "vole"}'),
        ResultCanister((TextualContent("urchin " * 1_000),), invocation="x"),
        DocumentCanister((TextualContent("toad"),), title="Snails", source="rook.pdf"),
    ]
    archive.create_now("abcd", produce_details(), canisters)
    for word, number, role in (
        ("zebra", 0, "user"),
        ("yak", 1, "assistant"),
        ("walrus", 2, "invocation"),
        ("vole", 2, "invocation"),
        ("urchin", 3, "result"),
        ("toad", 4, "document"),
        ("snails", 4, "document"),
        ("rook", 4, "document"),
    ):
        (finding,) = archive.search_now(word)
        assert (finding.canister, finding.role) == (canisters[number].identity, role)
        assert finding.created == canisters[number].created
        assert f"[{word}]" in finding.excerpt.lower()
    assert archive.search_now("secret") == []


def test_all_words_must_be_there_in_any_order(tmp_path: Path) -> None:
    archive = produce_archive(
        tmp_path, aaaa="the river and the stone", bbbb="the river", cccc="a stone-river"
    )
    assert found(archive, "stone river") == {"aaaa", "cccc"}
    assert found(archive, "STONE-RIVER") == {"cccc"}
    assert found(archive, "river, ") == {"aaaa", "bbbb", "cccc"}
    assert len(archive.search_now("river", 2)) == 2


@pytest.mark.parametrize(
    "query",
    [
        '"',
        '"river',
        'river"',
        '""',
        "river AND",
        "NOT river",
        "NEAR(river stone)",
        "river*",
        "^river",
        "text:river",
        "-river",
        "(river",
        "river + stone",
        "{river}",
        "river\0stone",
        "\0",
        "\ud800",
        "river\ud800",
        "';drop table words;--",
        "%",
        "?",
        ":limit",
        "²½",
        "\U0001fbf0",
        "a" * 100_000,
        "river " * 5_000,
        "\u0301",
        "\u0e31",
    ],
)
def test_no_query_breaks_the_search(tmp_path: Path, query: str) -> None:
    archive = produce_archive(tmp_path, aaaa="the river and the stone")
    for finding in archive.search_now(query):
        assert finding.conversation == "aaaa"
    assert found(archive, "river") == {"aaaa"}


@pytest.mark.parametrize("query", ["", " ", "!!!", "— …", "\n\t"])
def test_a_query_without_words_finds_nothing(tmp_path: Path, query: str) -> None:
    archive = produce_archive(tmp_path, aaaa="text")
    assert archive.search_now(query) == []


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("今天天气很好。", "天气", "[天气]"),
        ("東京タワーに行きました", "タワー", "[タワー]"),
        ("학교에서 만나요", "학교", "[학교]"),
        ("ภาษาไทยสวยงาม", "ไทย", "[ไทย]"),
        ("नमस्ते दुनिया", "दुनिया", None),
        ("Добрый вечер", "вечер", "[вечер]"),
        ("ΚΑΛΗΜΕΡΑ κόσμε", "καλημερα", "[ΚΑΛΗΜΕΡΑ]"),
        ("שלום עולם", "עולם", "[עולם]"),
        ("مرحبا بالعالم", "مرحبا", "[مرحبا]"),
        ("Grüße aus Köln", "koln", None),
        ("das GPT模型 hier", "GPT模型", "[GPT模型]"),
        ("emoji 😀 here", "emoji", "[emoji]"),
        ("co\u2028mes apart", "mes apart", "[mes] [apart]"),
    ],
)
def test_every_script_is_searched(
    tmp_path: Path, text: str, query: str, marked: str | None
) -> None:
    archive = produce_archive(tmp_path, aaaa=text, bbbb="something else")
    (finding,) = archive.search_now(query)
    assert finding.conversation == "aaaa"
    if marked is not None:
        assert marked in finding.excerpt


def test_characters_in_another_order_are_other_words(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="天很好气")
    assert found(archive, "天气") == set()
    assert found(archive, "很好") == {"aaaa"}


def test_an_excerpt_shows_the_words_in_their_place(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="x " * 200 + "the Lantern\n\n shines " + "y " * 200)
    (finding,) = archive.search_now("lantern shines")
    assert "the [Lantern] [shines] y" in finding.excerpt
    assert finding.excerpt.startswith("…")
    assert finding.excerpt.endswith("…")
    assert len(finding.excerpt) < 150


def test_a_conversation_that_cannot_be_read_breaks_no_list(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="lantern", bbbb="lantern", cccc="lantern", dddd="")
    path = lines_of(archive, "aaaa")
    path.write_bytes(b"damaged\n" + path.read_bytes() + b"torn lantern")
    (archive.conversations / "bbbb" / "metadata.toml").write_text("damaged = ")
    (archive.conversations / "cccc" / "metadata.toml").unlink()
    lines_of(archive, "dddd").unlink()
    lines_of(archive, "dddd").mkdir()
    (archive.conversations / "eeee").mkdir()
    (archive.conversations / "not an identity").mkdir()
    (archive.conversations / "not an identity" / "messages.jsonl").write_bytes(path.read_bytes())
    for _ in range(2):
        summaries = {summary.identity: summary for summary in archive.survey_now()}
        assert {*summaries} == {"aaaa", "bbbb", "cccc", "dddd", "eeee"}
        problems = {name: summary.problem for name, summary in summaries.items()}
        assert not problems["aaaa"]
        assert problems["bbbb"].startswith("this is not valid TOML")
        assert problems["cccc"].startswith("this file is missing from the folder")
        assert problems["dddd"] == "Is a directory"
        assert problems["eeee"] == "the folder has no messages.jsonl"
        assert summaries["aaaa"].messages == 2
        assert summaries["bbbb"].created.year == 1970
        assert found(archive, "lantern") == {"aaaa", "bbbb", "cccc"}
    # It comes back by itself when it is mended.
    lines_of(archive, "dddd").rmdir()
    lines_of(archive, "dddd").write_bytes(lines_of(archive, "bbbb").read_bytes())
    summaries = {summary.identity: summary for summary in archive.survey_now()}
    assert (summaries["dddd"].problem, summaries["dddd"].messages) == ("", 1)


def test_a_text_that_has_gone_from_the_store_breaks_no_list(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="lantern " * 500, bbbb="lantern")
    assert found(archive, "lantern") == {"aaaa", "bbbb"}
    for digest in [*archive.contents.survey()]:
        archive.contents.remove(digest)
    assert found(archive, "lantern") == {"aaaa", "bbbb"}
    (archive.folder / INDEX).unlink()
    assert found(archive, "lantern") == {"bbbb"}
    assert listed(archive) == {"aaaa", "bbbb"}


def test_a_message_that_has_gone_since_is_left_out(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="lantern", bbbb="lantern")
    update = Index._update

    def update_then_damage(
        self: Index, further: Collection[str] = (), *, every: bool = False
    ) -> None:
        update(self, further, every=every)
        lines_of(archive, "aaaa").write_bytes(b"damaged\n")

    Index._update = update_then_damage  # type: ignore[method-assign]
    try:
        assert found(archive, "lantern") == {"bbbb"}
    finally:
        Index._update = update  # type: ignore[method-assign]


def check_after_damage(archive: DirectoryArchive) -> None:
    with at_most(30):
        assert listed(archive) == {"aaaa", "bbbb"}
        assert found(archive, "lantern") == {"aaaa"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"this is no database at all" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:4096]),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(20_000)),
        lambda path: _execute(path, "pragma user_version = 99"),
        lambda path: _execute(path, "drop table messages"),
        lambda path: _execute(path, "drop table words"),
        lambda path: _execute(path, "drop table state"),
        lambda path: _execute(path, "delete from state"),
        lambda path: _execute(path, "update state set value = x'ff'"),
        lambda path: _execute(path, "update conversations set tags = 'no JSON'"),
        lambda path: _execute(path, "update conversations set created = 'no time'"),
        lambda path: _execute(path, "update conversations set origin = '[]'"),
        lambda path: _execute(path, "update conversations set updated = 'soon'"),
    ],
)
def test_an_index_that_is_missing_damaged_or_newer_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern", bbbb="a river")
    archive.survey_now()
    damage(archive.folder / INDEX)
    check_after_damage(archive)
    assert (archive.folder / INDEX).stat().st_mode & 0o777 == 0o600
    check_after_damage(archive)


def _execute(path: Path, statement: str) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(statement)
    database.close()


@pytest.mark.storm
def test_an_index_with_flipped_bits_never_raises(tmp_path: Path, rounds: Rounds) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern", bbbb="a river")
    archive.survey_now()
    path = archive.folder / INDEX
    whole = path.read_bytes()
    chance = random.Random(1)
    for _ in range(rounds(80, 5_000)):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 5, 50))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with at_most(30):
            archive.survey_now()
            archive.search_now("lantern")
        archive.append_now("bbbb", say("on"), None)
        with at_most(30):
            archive.survey_now()
    path.unlink()
    check_after_damage(archive)


def test_where_no_index_can_be_kept_one_is_made_in_memory(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern", bbbb="a river")
    (archive.folder / INDEX).mkdir()
    (archive.folder / INDEX / "file").write_text("")
    check_after_damage(archive)
    assert archive.resolve_now("bbbb") == "bbbb"


def test_on_a_disk_that_takes_nothing_lists_still_work(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern", bbbb="a river")

    class Refusal:
        def before(self, name: str, arguments: Sequence[object], options: object) -> None:
            if name in ("open", "unlink") and str(arguments[0]).endswith(INDEX):
                raise OSError(errno.EROFS, "read-only")

        def after(self, *_: object) -> None:
            return None

    with SystemCalls(observer=Refusal()) as calls:
        check_after_damage(archive)
    assert calls.count("unlink") > 0
    assert not (archive.folder / INDEX).exists()


def test_an_index_that_cannot_be_made_at_all_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern")
    monkeypatch.setattr(search, "_TABLES", "create virtual table words using nowhere (text)")
    with pytest.raises(StorageError, match="the index cannot be used: no such module"):
        archive.survey_now()


def test_conversations_that_cannot_be_looked_at_are_reported(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern")
    archive.survey_now()
    with SystemCalls() as calls:
        archive.survey_now()
    with (
        SystemCalls(fail_at=calls.names.index("scandir")),
        pytest.raises(StorageError, match="the disk reported an error"),
    ):
        archive.survey_now()


def test_a_lock_that_is_held_too_long_is_reported_and_the_index_stays(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, StorageSettings(lock_seconds=0.05, durability="fast"))
    archive.create_now("aaaa", produce_details(), say("a lantern"))
    archive.survey_now()
    archive.append_now("aaaa", say("a river"), None)
    path = archive.folder / INDEX
    inode = path.stat().st_ino
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("begin exclusive")
    with pytest.raises(ArchiveLocked, match=r"by other processes for 0\.05 s; try again"):
        archive.survey_now()
    database.execute("rollback")
    database.close()
    assert found(archive, "river") == {"aaaa"}
    assert path.stat().st_ino == inode


def test_an_index_does_not_grow_for_ever(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="a lantern", bbbb="a river")
    path = archive.folder / INDEX
    sizes: set[int] = set()
    for number in range(6):
        archive.create_now("cccc", produce_details(), say(*(f"secret {number}" for _ in range(8))))
        assert found(archive, f"{number}") == {"cccc"}
        archive.remove_now("cccc")
        sizes.add(path.stat().st_size)
        check_after_damage(archive)
    assert len(sizes) == 1


def check_concurrency(folder: Path, work: Callable[..., None], readers: int, count: int) -> None:
    """Readers right after appends: none fails, and all see what was there before they began."""
    archive = produce_archive(folder, **{f"abcd{n}": f"lantern {n}" for n in range(60)})
    archive.survey_now()
    for number in range(60):
        archive.append_now(f"abcd{number}", say("another lantern"), None)
    for reported in work_together(work, folder, readers, count):
        assert [*reported] == ["60 120"] * count
    # And while another process appends.
    archive.create_now(workers.SHARED, produce_details(), say("first"))
    writer = Worker(workers.append_messages, folder, 1, 20)
    for reported in work_together(work, folder, readers, count):
        assert {*reported} == {"61 120"}
    writer.kill()


@pytest.mark.storm
def test_twenty_processes_list_right_after_appends(tmp_path: Path, rounds: Rounds) -> None:
    for number in range(rounds(1, 20)):
        check_concurrency(tmp_path / str(number), workers.list_conversations, 20, rounds(2, 10))


def test_that_check_sees_readers_that_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_concurrency(tmp_path, workers.list_without_patience, 20, 4)


def test_what_another_process_added_at_the_same_time_is_kept(tmp_path: Path) -> None:
    """One has looked, another takes in a conversation that came since, then the first goes on."""
    archive = produce_archive(tmp_path, aaaa="a lantern")
    index = Index(archive.folder / INDEX, archive.conversations, archive.contents)
    index._database = index._open(str(archive.folder / INDEX))
    plan = index._plan((), every=False)
    archive.create_now("bbbb", produce_details(), say("a lantern"))
    archive.append_now("aaaa", say("another lantern"), None)
    assert len(archive.survey_now()) == 2
    index._carry_out(plan)
    assert len(index._survey({"every": False, "tag": "", "limit": -1, "after": ""})) == 2
    index._database.close()
    archive.remove_now("bbbb")
    assert listed(archive) == {"aaaa"}


def test_threads_list_and_append_at_once(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path, aaaa="lantern", bbbb="lantern")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                archive.append_now(("aaaa", "bbbb")[number % 2], say("lantern"), None)
                assert listed(archive) == {"aaaa", "bbbb"}
                assert found(archive, "lantern") == {"aaaa", "bbbb"}
        except BaseException as error:  # noqa: BLE001  (raised by the main thread)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert sum(summary.messages for summary in archive.survey_now()) == 42
