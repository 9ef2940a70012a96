"""Acknowledged means stored: kills, power cuts and torn ends. S1 and S3 of the promises."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import archives, workers
from tests.faults.archives import (
    FAST_INLINE,
    begin,
    check_all_is_there,
    identities_of,
    lines_of,
    say,
)
from tests.faults.calls import SystemCalls
from tests.faults.power import WAYS, Disk, Recorder
from tests.faults.processes import kill_at_random
from tests.faults.workers import INLINE, SHARED, produce_text
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.storage import appending, conversations
from vibe_llms.storage.archive import DirectoryArchive

Rounds = Callable[[int, int], int]


def check_kills(folder: Path, work: Callable[..., None], count: int) -> None:
    begin(folder)
    acknowledged: list[str] = []
    for seed in range(count):
        acknowledged += kill_at_random(work, folder, seed=seed)
        archive = DirectoryArchive(folder, INLINE)
        held = identities_of(archive.restore_now(SHARED))
        assert set(acknowledged) <= set(held), "acknowledged and lost"
    check_all_is_there(folder, acknowledged)
    assert acknowledged


@pytest.mark.storm
def test_a_killed_process_loses_nothing_that_was_acknowledged(
    tmp_path: Path, rounds: Rounds
) -> None:
    check_kills(tmp_path / "inline", workers.append_messages, rounds(25, 250))
    check_kills(tmp_path / "contents", workers.append_contents, rounds(25, 250))


def test_that_check_sees_what_is_acknowledged_too_early(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        check_kills(tmp_path, workers.append_before_it_is_written, 25)


def record(folder: Path, archive: DirectoryArchive) -> Recorder:
    """The trace of a life of an archive: begun, appended to, with contents, forked, healed."""
    recorder = Recorder(folder)
    with SystemCalls(observer=recorder, syncing=False):

        def append(canisters: list[Canister]) -> None:
            archive.append_now(SHARED, canisters, None)
            for canister in canisters:
                recorder.acknowledge(canister.identity)

        first = say("first")
        archive.create_now(SHARED, archives.produce_details("a name"), first)
        recorder.acknowledge(first[0].identity)
        append(say("short", produce_text(1, 9_000)))
        picture = ImageContent(b"picture" * 3_000, "image/png")
        append([UserCanister((TextualContent(produce_text(2, 3_000)), picture))])
        archive.fork_now(SHARED, "child", archives.produce_details())
        archive.access_folder(SHARED).revise({"name": "another name"})
        with lines_of(archive).open("ab") as lines:
            lines.write(b'{"role": "user", "contents": [{"ki')
        # A writer that died left it there long ago.
        recorder.find_on_disk(lines_of(archive))
        append(say(produce_text(3, 300_000)))
        append(say("last"))
    return recorder


def check_power_cuts(folder: Path, archive: DirectoryArchive, count: int) -> None:
    (folder / "disk").mkdir()
    recorder = record(folder / "disk", archive)
    assert len(recorder.events) > 50
    for seed in range(count):
        chance = random.Random(seed)
        disk = Disk.after(recorder.events[: chance.randint(0, len(recorder.events))])
        after = folder / f"after-{seed}"
        disk.rebuild(after, chance)
        check_all_is_there(after / "archive", disk.acknowledged)


def produce_settings(**changes: Any) -> StorageSettings:
    return StorageSettings(inline_bytes=1_000_000, **changes)


@pytest.mark.storm
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, rounds: Rounds) -> None:
    assert len(WAYS) == 6
    archive = DirectoryArchive(tmp_path / "disk" / "archive", produce_settings())
    check_power_cuts(tmp_path, archive, rounds(300, 5_000))


def test_that_check_sees_an_acknowledgement_before_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "synchronise", lambda descriptor: None)
    archive = DirectoryArchive(tmp_path / "disk" / "archive", produce_settings())
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        check_power_cuts(tmp_path, archive, 150)


def test_that_check_sees_names_that_are_not_synchronised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vibe_llms.base.folders.synchronise_folder", lambda path: None)
    archive = DirectoryArchive(tmp_path / "disk" / "archive", produce_settings())
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        check_power_cuts(tmp_path, archive, 150)


class TornEnds:
    """An archive whose file of 200 messages is torn in one way after the other."""

    def __init__(self, folder: Path) -> None:
        self.archive = begin(folder, say(*(f"message {n}" for n in range(200))), FAST_INLINE)
        self.path = lines_of(self.archive)
        self.data = self.path.read_bytes()
        self.identities = identities_of(self.archive.restore_now(SHARED))

    def check(self, left: bytes) -> None:
        """It opens with its whole messages, sets the rest aside, and three more go behind them."""
        same = 0
        while self.data[same : same + 1] == left[same : same + 1] != b"":
            same += 1
        whole = self.data[:same].count(b"\n")
        complete = len(b"\n".join(self.data.split(b"\n")[:whole])) + 1
        torn = left[complete:]
        self.path.write_bytes(left)
        opened = self.archive.restore_now(SHARED)
        assert identities_of(opened) == self.identities[:whole]
        assert len(opened.notices) == bool(torn)
        added = say("one", "two", "three")
        writer = DirectoryArchive(self.archive.folder, FAST_INLINE)
        reported = [writer.append_now(SHARED, [canister], None)[1] for canister in added]
        assert [len(notices) for notices in reported] == [bool(torn), 0, 0]
        again = self.archive.restore_now(SHARED)
        assert identities_of(again) == [
            *self.identities[:whole],
            *(canister.identity for canister in added),
        ]
        assert not again.notices
        aside = list(self.path.parent.glob("messages.torn-*"))
        assert b"".join(path.read_bytes() for path in aside) == torn
        for path in aside:
            path.unlink()


def test_a_file_cut_at_any_byte_of_its_last_messages_heals(tmp_path: Path) -> None:
    ends = TornEnds(tmp_path)
    for size in range(ends.data.rfind(b"\n", 0, -300), len(ends.data) + 1):
        ends.check(ends.data[:size])


@pytest.mark.storm
def test_a_file_that_ends_in_nul_bytes_heals(tmp_path: Path, rounds: Rounds) -> None:
    ends = TornEnds(tmp_path)
    for count in {*range(1, 4097, rounds(137, 1)), 512, 4096}:
        ends.check(ends.data + bytes(count))
        ends.check(ends.data[:-40] + bytes(count))
        ends.check(ends.data[:-40] + bytes(count) + b"\n")


def test_a_long_last_line_with_an_empty_page_heals(tmp_path: Path) -> None:
    ends = TornEnds(tmp_path)
    (said,) = say("x" * 300_000)
    line = encode_canister(said) + b"\n"
    for start in range(0, len(line) - 1, 20_000):
        ends.check(ends.data + line[:start] + bytes(4096) + line[start + 4096 :])


def test_that_check_sees_lines_written_straight_after_a_fragment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heal_nothing(self: Any, descriptor: int, size: int) -> tuple[int, bytes]:
        return size, encode_canister(say("")[0])

    monkeypatch.setattr(appending.LinesWriter, "_heal", heal_nothing)
    ends = TornEnds(tmp_path)
    ends.check(ends.data)
    with pytest.raises(AssertionError):
        ends.check(ends.data[:-40])


def test_a_torn_end_is_reported_once_by_the_process_that_opened_it(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST_INLINE)
    with lines_of(archive).open("ab") as lines:
        lines.write(b'{"role"')
    (notice,) = archive.restore_now(SHARED).notices
    assert notice.subject == "repair"
    assert "7 bytes" in notice.text
    assert archive.append_now(SHARED, say("further"), None)[1] == ()
    assert not archive.restore_now(SHARED).notices


def check_repairs(folder: Path) -> None:
    """The old lines survive a power cut at any moment; after the repair, so do the new ones."""
    (folder / "disk").mkdir()
    archive = DirectoryArchive(folder / "disk" / "archive", INLINE)
    recorder = Recorder(folder / "disk")
    with SystemCalls(observer=recorder, syncing=False):
        archive.create_now(SHARED, archives.produce_details(), say("one", "two"))
        good = lines_of(archive).read_bytes()
        lines_of(archive).write_bytes(damaged := b"damaged\n" + good)
        recorder.find_on_disk(lines_of(archive))
        before = len(recorder.events)
        archive.access_folder(SHARED).repair()
    for seed in range(30):
        chance = random.Random(seed)
        end = len(recorder.events) if seed < 5 else chance.randint(before, len(recorder.events))
        Disk.after(recorder.events[:end]).rebuild(after := folder / f"after-{seed}", chance)
        lines = after / lines_of(archive).relative_to(folder / "disk")
        left = [path.read_bytes() for path in lines.parent.glob("messages*")]
        assert damaged in left, "the old lines are lost"
        assert seed >= 5 or lines.read_bytes() == good, "the new lines are lost"


def test_a_power_cut_loses_nothing_of_a_repair(tmp_path: Path) -> None:
    check_repairs(tmp_path)


@pytest.mark.parametrize("name", ["write_new", "replace_file"])
def test_that_check_sees_a_repair_that_does_not_synchronise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = getattr(conversations, name)
    monkeypatch.setattr(
        conversations, name, lambda path, data, *rest, **_: write(path, data, *rest, durable=False)
    )
    with pytest.raises(AssertionError, match="lines are lost"):
        check_repairs(tmp_path)
