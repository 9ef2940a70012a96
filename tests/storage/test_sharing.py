"""Many writers and one history, small files replaced whole. S2 and S6 of the promises."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults import workers
from tests.faults.archives import FAST_INLINE, begin, lines_of, produce_details, say
from tests.faults.calls import SystemCalls
from tests.faults.processes import kill_at_random, work_together
from tests.faults.workers import INLINE, SHARED, SIZES, produce_text
from vibe_llms.base.exceptions import ArchiveDamaged, ConversationMoved
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister
from vibe_llms.storage import appending
from vibe_llms.storage.appending import LinesWriter
from vibe_llms.storage.archive import DirectoryArchive

Rounds = Callable[[int, int], int]
WRITERS = 8


def check_history(archive: DirectoryArchive, reported: Sequence[Sequence[str]], count: int) -> None:
    """Every message of every writer is there once, whole, and after the writer's one before."""
    lines = lines_of(archive).read_bytes().split(b"\n")
    assert lines.pop() == b""
    try:
        said = [decode_canister(line) for line in lines][1:]
    except LineUnreadable as error:
        raise AssertionError(f"a line is torn: {error}") from error
    assert len(said) == len(reported) * count
    assert max(Counter(canister.identity for canister in said).values()) == 1
    of_writer: dict[int, list[str]] = {seed: [] for seed in range(len(reported))}
    for canister in said:
        assert isinstance(canister, UserCanister)
        seed, number, text = canister.text.split(" ")
        assert text == produce_text(int(seed), SIZES[(int(seed) + int(number)) % 3])
        assert int(number) == len(of_writer[int(seed)])
        of_writer[int(seed)].append(canister.identity)
    assert [of_writer[seed] for seed in range(len(reported))] == [list(one) for one in reported]


def check_processes(folder: Path, work: Callable[..., None], count: int) -> None:
    archive = begin(folder)
    check_history(archive, work_together(work, folder, WRITERS, count), count)


@pytest.mark.storm
def test_eight_processes_append_to_one_conversation(tmp_path: Path, rounds: Rounds) -> None:
    check_processes(tmp_path, workers.append_messages, rounds(40, 500))


def test_that_check_sees_a_newline_in_a_second_write(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="torn"):
        check_processes(tmp_path, workers.append_in_two_writes, 40)


@pytest.mark.storm
def test_eight_threads_append_to_one_conversation(tmp_path: Path, rounds: Rounds) -> None:
    archive = begin(tmp_path)
    count = rounds(20, 500)
    reported: list[list[str]] = [[] for _ in range(WRITERS)]

    def append(seed: int) -> None:
        for number in range(count):
            size = SIZES[(seed + number) % 3]
            said = UserCanister.from_text(f"{seed} {number} {produce_text(seed, size)}")
            archive.append_now(SHARED, [said], None)
            reported[seed].append(said.identity)

    threads = [threading.Thread(target=append, args=(seed,)) for seed in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_history(archive, reported, count)


@pytest.mark.storm
async def test_eight_tasks_append_to_one_conversation(tmp_path: Path, rounds: Rounds) -> None:
    archive = begin(tmp_path)
    count = rounds(20, 500)
    reported: list[list[str]] = [[] for _ in range(WRITERS)]

    async def append(seed: int) -> None:
        for number in range(count):
            size = SIZES[(seed + number) % 3]
            said = UserCanister.from_text(f"{seed} {number} {produce_text(seed, size)}")
            await archive.append(SHARED, [said], after=None)
            reported[seed].append(said.identity)

    async with asyncio.TaskGroup() as group:
        for seed in range(WRITERS):
            group.create_task(append(seed))
    check_history(archive, reported, count)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_write_that_takes_a_part_only_is_gone_on_with(tmp_path: Path, size: int) -> None:
    archive = begin(tmp_path, settings=FAST_INLINE)
    said = say("x" * 5_000)
    with SystemCalls(short_writes=size) as calls:
        archive.append_now(SHARED, said, None)
    assert calls.count("write") > 5
    assert archive.restore_now(SHARED).canisters[1:] == tuple(said)


def check_line_of_two_writers(archive: DirectoryArchive) -> None:
    """Two who append after the line that they know: one of them gets the error that it is stale."""
    first = archive.restore_now(SHARED).canisters[-1].identity
    other = DirectoryArchive(archive.folder, archive.settings)
    for round_ in range(10):
        mine, theirs = say(f"mine {round_}", f"theirs {round_}")
        archive.append_now(SHARED, [mine], first)
        with pytest.raises(ConversationMoved):
            other.append_now(SHARED, [theirs], first)
        first = mine.identity
        other.append_now(SHARED, [theirs], first)
        with pytest.raises(ConversationMoved):
            archive.append_now(SHARED, [mine], first)
        first = theirs.identity
    assert len(archive.restore_now(SHARED).canisters) == 21


def test_a_stale_conversation_is_reported(tmp_path: Path) -> None:
    check_line_of_two_writers(begin(tmp_path, settings=FAST_INLINE))


def test_that_check_sees_a_writer_that_trusts_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_end = LinesWriter._find_end

    def trust(
        self: LinesWriter, descriptor: int, status: os.stat_result
    ) -> tuple[int, str, Sequence[object]]:
        left = self._left
        return (left[2], self._end, ()) if left else find_end(self, descriptor, status)

    monkeypatch.setattr(LinesWriter, "_find_end", trust)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_line_of_two_writers(begin(tmp_path, settings=FAST_INLINE))


def test_threads_of_one_process_know_whose_line_is_last(tmp_path: Path) -> None:
    """Each thread appends after what it saw; one that is stale looks again."""
    archive = begin(tmp_path, settings=FAST_INLINE)
    count = 40

    def append(seed: int) -> None:
        for number in range(count):
            said = say(f"{seed} {number}")
            while True:
                last = archive.restore_now(SHARED).canisters[-1].identity
                try:
                    archive.append_now(SHARED, said, last)
                except ConversationMoved:
                    continue
                order.append((last, said[0].identity))
                break

    order: list[tuple[str, str]] = []
    threads = [threading.Thread(target=append, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    identities = [canister.identity for canister in archive.restore_now(SHARED).canisters]
    assert sorted(order) == sorted(pairwise(identities))


def check_tags(folder: Path, work: Callable[..., None], count: int) -> None:
    archive = begin(folder)
    reported = work_together(work, folder, WRITERS, count)
    wanted = {tag for one in reported for tag in one}
    assert len(wanted) == WRITERS * count
    assert set(archive.restore_now(SHARED).details.tags) == wanted


@pytest.mark.storm
def test_eight_processes_add_tags_to_one_conversation(tmp_path: Path, rounds: Rounds) -> None:
    check_tags(tmp_path, workers.add_tags, rounds(10, 100))


def test_that_check_sees_changes_without_a_lock(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_tags(tmp_path, workers.add_tags_without_a_lock, 10)


def check_kills_while_rewriting(folder: Path, work: Callable[..., None], count: int) -> None:
    """After every kill the details are the old ones or the new ones, and nothing between."""
    archive = begin(folder)
    tags: list[str] = []
    for seed in range(count):
        tags += kill_at_random(work, folder, seed=seed)
        try:
            held = archive.restore_now(SHARED).details.tags
        except ArchiveDamaged as error:
            raise AssertionError(f"neither old nor new: {error}") from error
        assert set(tags) <= set(held)
        # The last change may have been made without being reported.
        assert len(set(held) - set(tags)) <= 1
        tags = list(held)
    assert tags


@pytest.mark.storm
def test_a_kill_while_details_are_rewritten_leaves_the_old_or_the_new(
    tmp_path: Path, rounds: Rounds
) -> None:
    check_kills_while_rewriting(tmp_path, workers.add_tags, rounds(25, 300))


def test_that_check_sees_details_overwritten_in_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"neither old nor new|assert"):
        check_kills_while_rewriting(tmp_path, workers.add_tags_in_place, 300)


@pytest.mark.parametrize(
    "damaged", [b"name = ", b"\xff\xfe", b"created = 1\n", b'name = "x"\n', b"[created]\n"]
)
def test_details_that_cannot_be_read_are_never_overwritten(tmp_path: Path, damaged: bytes) -> None:
    archive = begin(tmp_path)
    path = archive.conversations / SHARED / "metadata.toml"
    path.write_bytes(damaged)
    with pytest.raises(ArchiveDamaged, match=r"metadata\.toml.*fix it by hand"):
        archive.access_folder(SHARED).revise({"name": "new"})
    assert path.read_bytes() == damaged
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "messages.jsonl",
        "metadata.toml",
    ]


def test_what_a_newer_version_wrote_in_the_details_stays(tmp_path: Path) -> None:
    archive = begin(tmp_path)
    path = archive.conversations / SHARED / "metadata.toml"
    path.write_text(path.read_text() + 'colour = "green"\n\n[shelf]\nnumber = 7\n')
    archive.access_folder(SHARED).revise({"name": "new"})
    text = path.read_text()
    assert 'colour = "green"' in text
    assert "number = 7" in text
    assert 'name = "new"' in text


def test_the_temporary_file_of_a_rewriting_has_a_name_of_its_own(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=INLINE)

    class Names:
        def __init__(self) -> None:
            self.seen = set[str]()

        def before(self, name: str, arguments: Sequence[object], options: object) -> None:
            if name == "rename":
                self.seen.add(str(arguments[0]))

        def after(self, *_: object) -> None:
            return None

    names = Names()
    with SystemCalls(observer=names) as calls:
        for number in range(20):
            archive.access_folder(SHARED).revise({"name": str(number)})
    assert len(names.seen) == 20
    assert all(Path(name).parent == archive.conversations / SHARED for name in names.seen)
    assert calls.count("fdatasync") == calls.count("fsync") == 20


def test_names_are_kept_whatever_is_in_them(tmp_path: Path) -> None:
    archive = begin(tmp_path)
    folder = archive.access_folder(SHARED)
    for name in (
        "a\nb",
        'quote " and \\',
        "\x00\x01\x7f",
        "\u2028\u0085",
        "😀",
        "''' \"\"\"",
        "\r",
    ):
        assert folder.revise({"name": name}).name == name
        assert folder.read_details().name == name
    assert folder.revise({"name": "lone \ud800"}).name == "lone \ufffd"
    canisters: Sequence[Canister] = say("first")
    archive.create_now("other", produce_details("lone \udfff", ["\ud800"]), canisters)
    details = archive.restore_now("other").details
    assert (details.name, details.tags) == ("lone \ufffd", ("\ufffd",))


def test_an_empty_name_takes_it_away(tmp_path: Path) -> None:
    folder = begin(tmp_path).access_folder(SHARED)
    folder.revise({"name": "x", "tags": ["a"]})
    assert appending.MESSAGES == "messages.jsonl"
    folder.revise({"name": "", "tags": []})
    assert "name" not in (folder.path / "metadata.toml").read_text()
    assert folder.read_details().tags == ()
