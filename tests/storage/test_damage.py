"""Damage elsewhere than at the end is loud, and what goes in comes out. S4 and S5."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.fakes.canisters import produce_canisters
from tests.faults.archives import FAST, FAST_INLINE, begin, identities_of, lines_of, say
from tests.faults.mutations import MUTATIONS, mutate
from tests.faults.waits import at_most
from vibe_llms.base.exceptions import ArchiveDamaged
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister, encode_canister
from vibe_llms.storage import conversations
from vibe_llms.storage import lines as storage_lines
from vibe_llms.storage.appending import complete_size
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.inspection import inspect_archive
from vibe_llms.storage.lines import Line, decode_each

Rounds = Callable[[int, int], int]
HANG_SECONDS = 2.0


class Damaged:
    """An archive whose file is damaged in one way after the other."""

    def __init__(self, folder: Path) -> None:
        self.archive = begin(folder, say(*(f"message {n}" for n in range(10))), FAST_INLINE)
        every = [*produce_canisters(3, 20), *say("the last")]
        self.archive.access_folder("shared").append(every, after=None)
        self.path = lines_of(self.archive)
        self.data = self.path.read_bytes()
        self.good = set(self.data.split(b"\n")) - {b""}
        self.outcomes: dict[str, int] = {"opened": 0, "torn": 0, "refused": 0}

    def check(self, damaged: bytes) -> None:
        with at_most(HANG_SECONDS):
            self.path.write_bytes(damaged)
            self.check_opening(damaged)
            self.check_repair(damaged)

    def check_opening(self, damaged: bytes) -> None:
        lines = damaged.split(b"\n")[:-1]
        archive = DirectoryArchive(self.archive.folder, FAST_INLINE)
        (folder, name) = (archive.access_folder("shared"), "shared")
        lenient = archive.restore_now(name, lenient=True)
        whole = len(lenient.canisters) + len(lenient.gaps)
        assert whole in (len(lines), len(lines) - 1)
        torn = len(b"".join(line + b"\n" for line in lines[:whole])) < len(damaged)
        assert len(lenient.notices) == torn, "a shorter history is reported"
        for gap in lenient.gaps:
            assert lines[gap.line - 1] not in self.good
            assert damaged[: gap.offset].count(b"\n") == gap.line - 1
            assert damaged[gap.offset :].startswith(lines[gap.line - 1])
            assert gap.size == len(lines[gap.line - 1])
        bad = {gap.line for gap in lenient.gaps}
        readable = [line for number, line in enumerate(lines[:whole], 1) if number not in bad]
        assert len(readable) == len(lenient.canisters)
        for line, canister in zip(readable, lenient.canisters, strict=True):
            # Without an identity or a time of its own a message gets a new one at every reading.
            own = b'"identity"' in line and b'"created"' in line
            assert decode_canister(line) == canister or not own
        assert self.good & set(lines[:whole]) <= set(readable), "a good message has vanished"
        if lenient.gaps:
            first = lenient.gaps[0]
            with pytest.raises(ArchiveDamaged) as refused:
                folder.read()
            self.outcomes["refused"] += 1
            assert (refused.value.line, refused.value.offset) == (first.line, first.offset)
            assert f"{self.path}:{first.line}: " in str(refused.value)
        else:
            opened = folder.read()
            self.outcomes["torn" if torn else "opened"] += 1
            assert len(opened[0]) == len(lenient.canisters)

    def check_repair(self, damaged: bytes) -> None:
        wanted = self.archive.restore_now("shared", lenient=True)
        found = [one for one in inspect_archive(self.archive, repair=True) if one.subject == "line"]
        assert len(found) == len(wanted.gaps) + len(wanted.notices)
        assert all(one.mended for one in found)
        mended = self.archive.restore_now("shared")
        assert len(mended.canisters) == len(wanted.canisters)
        assert set(lines_of(self.archive).read_bytes().split(b"\n")) >= self.good & set(
            damaged[: complete_size(damaged)].split(b"\n")
        )
        assert not mended.notices
        kept = sorted(self.path.parent.glob("messages.[dt]*"))
        if wanted.gaps:
            assert [path.read_bytes() for path in kept] == [damaged]
        elif wanted.notices:
            assert [damaged.endswith(path.read_bytes()) for path in kept] == [True]
        else:
            assert not kept
        for path in kept:
            path.unlink()


def check_mutations(folder: Path, count: int) -> None:
    damaged = Damaged(folder)
    damaged.check(damaged.data)
    for data in mutate(damaged.data, count):
        damaged.check(data)
    assert min(damaged.outcomes.values()) > count / 30, damaged.outcomes


@pytest.mark.storm
def test_every_damage_is_reported_and_costs_no_good_message(tmp_path: Path, rounds: Rounds) -> None:
    check_mutations(tmp_path, rounds(20 * len(MUTATIONS), 10_000))


def test_that_check_sees_a_reader_that_knows_decoding_errors_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode_carelessly(line: bytes) -> Canister:
        try:
            json.loads(line)
        except json.JSONDecodeError as error:
            raise LineUnreadable(str(error)) from error
        return decode_canister(line)

    monkeypatch.setattr(storage_lines, "decode_canister", decode_carelessly)
    with pytest.raises((RecursionError, ValueError)):
        check_mutations(tmp_path, 280)


def test_that_check_sees_a_reader_that_skips_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_on(lines: Iterable[Line]) -> tuple[list[Canister], list[object]]:
        found: list[Canister] = []
        for line in lines:
            try:
                found.append(line.decode())
            except LineUnreadable:
                continue
        return found, []

    monkeypatch.setattr(conversations, "decode_each", read_on)
    with pytest.raises(AssertionError):
        check_mutations(tmp_path, 280)


def test_damage_in_the_middle_says_where_it_is_and_what_to_do(tmp_path: Path) -> None:
    archive = begin(tmp_path, say("one", "two", "three"), FAST)
    path = lines_of(archive)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b'{"role":', lines[2], b""]))
    with pytest.raises(ArchiveDamaged) as raised:
        archive.restore_now("shared")
    error = raised.value
    assert (error.path, error.line, error.offset) == (str(path), 2, len(lines[0]) + 1)
    assert "vibe-llms show shared --lenient" in str(error)
    assert "vibe-llms doctor --repair" in str(error)
    restored = archive.restore_now("shared", lenient=True)
    assert [gap.line for gap in restored.gaps] == [2]
    assert identities_of(restored) == [
        decode_canister(lines[0]).identity,
        decode_canister(lines[2]).identity,
    ]


def test_a_last_line_that_cannot_be_read_is_not_appended_to(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    path = lines_of(archive)
    damaged = path.read_bytes() + b"damaged\n"
    path.write_bytes(damaged)
    with pytest.raises(ArchiveDamaged, match="the last line cannot be read"):
        archive.append_now("shared", say("further"), None)
    assert path.read_bytes() == damaged


def test_the_size_of_what_is_complete_leaves_out_fragments_and_nul_bytes() -> None:
    assert complete_size(b"") == 0
    assert complete_size(b"a") == 0
    assert complete_size(b"a\nb\n") == 4
    assert complete_size(b"a\nb") == 2
    assert complete_size(b"a\nb\0\n") == 2
    assert complete_size(b"a\n\0\0") == 2
    assert complete_size(b"\0\n") == 0
    assert complete_size(b"a\0\nb\n") == 5


def check_all_comes_out(folder: Path, canisters: list[Canister]) -> None:
    archive = begin(folder, say("first"), FAST_INLINE)
    conversation = archive.access_folder("shared")
    for start in range(0, len(canisters), 97):
        conversation.append(canisters[start : start + 97], after=None)
    read = DirectoryArchive(folder, FAST_INLINE).access_folder("shared").read()[0][1:]
    assert read == canisters
    assert [*map(encode_canister, read)] == [*map(encode_canister, canisters)]


@pytest.mark.storm
def test_stored_canisters_are_read_back_unchanged(tmp_path: Path, rounds: Rounds) -> None:
    million = UserCanister.from_text("\u2028\x85" * 300_000)
    check_all_comes_out(tmp_path, [*produce_canisters(5, rounds(1_000, 10_000)), million])


def test_that_check_sees_lines_split_elsewhere_than_at_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split_lines(lines: Iterable[Line]) -> object:
        text = b"".join((line.data or b"") + b"\n" for line in lines).decode()
        split = [line.encode() for line in text.splitlines()]
        wrong = [Line(number, 0, len(line), line) for number, line in enumerate(split, 1)]
        return decode_each(wrong)

    monkeypatch.setattr(conversations, "decode_each", split_lines)
    monkeypatch.setattr(conversations, "decode_parts", lambda parts, longest: None)
    with pytest.raises((AssertionError, ArchiveDamaged)):
        check_all_comes_out(tmp_path, [*produce_canisters(5, 200)])
