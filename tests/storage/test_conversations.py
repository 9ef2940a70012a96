"""One conversation's folder: its lines and details. The cost of an append, S9 and S11, L2."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults import workers
from tests.faults.archives import (
    FAST,
    FAST_INLINE,
    begin,
    identities_of,
    lines_of,
    open_all,
    produce_details,
    say,
    snapshot,
)
from tests.faults.calls import SystemCalls
from tests.faults.processes import kill_at_random
from tests.faults.waits import at_most
from tests.faults.workers import SHARED
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ArchiveDamaged,
    ConversationMoved,
    ConversationNotFound,
    FormatNewer,
    StorageError,
)
from vibe_llms.messages.canisters import UnknownCanister, UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import ImageContent, UnknownContent
from vibe_llms.storage import appending, conversations
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.conversations import (
    is_conversation_identity,
    produce_conversation_identity,
    survey_folders,
)
from vibe_llms.storage.inspection import inspect_archive
from vibe_llms.storage.interfaces import Details, Origin
from vibe_llms.storage.lines import decode_parts

Rounds = Callable[[int, int], int]


def test_an_identity_is_twelve_characters_of_base32() -> None:
    made = {produce_conversation_identity() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(len(one) == 12 and is_conversation_identity(one) for one in made)
    assert not {character for one in made for character in one} - set(
        "abcdefghijklmnopqrstuvwxyz234567"
    )


def test_an_append_costs_one_write_and_one_synchronisation(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=StorageSettings())
    for canisters in (say("one"), say("one", "two", "three"), say("x" * 1_000)):
        with SystemCalls() as calls:
            archive.append_now(SHARED, canisters, None)
        assert (calls.count("write"), calls.count("fdatasync"), calls.count("fsync")) == (1, 1, 0)
    with SystemCalls() as calls:
        archive.append_now(SHARED, say("on"), canisters[-1].identity)
    # A writer that appends again knows where the file ends and does not read it.
    assert calls.count("read") == calls.count("pread") == 0
    assert len(calls.names) < 20


def test_fast_durability_synchronises_nothing(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    with SystemCalls() as calls:
        archive.append_now(SHARED, say("x" * 5_000), None)
        archive.fork_now(SHARED, "fork", produce_details())
        archive.access_folder(SHARED).revise({"name": "a name"})
        archive.remove_now("fork")
    assert calls.count("fdatasync") == calls.count("fsync") == 0
    assert calls.count("write") > 4
    assert calls.count("copy_file_range") == 1


def test_a_line_longer_than_it_may_be_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    archive = DirectoryArchive(tmp_path, StorageSettings(line_bytes=500, inline_bytes=10_000))
    archive.create_now(SHARED, produce_details(), say("first"))
    before = snapshot(tmp_path)
    with pytest.raises(StorageError, match=r"exceeds line-bytes \(500\)"):
        archive.append_now(SHARED, say("short", "x" * 600), None)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_of_this_version_are_read_without_a_look_at_each(size: int) -> None:
    said = say("one", "two" * 50)
    data = b"".join(encode_canister(one) + b"\n" for one in said)
    longest = max(map(len, data.splitlines(keepends=True))) if size == 1 else len(data)
    torn = data + b'{"ro'
    parts = [torn[start : start + size] for start in range(0, len(torn), size)]
    assert decode_parts(parts, longest) == (said, 4)


def test_a_long_last_line_is_found_whole(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST_INLINE)
    for size in (65_000, 65_400, 65_536, 70_000, 300_000, 1_000_000):
        (said,) = say("x" * size)
        archive.append_now(SHARED, [said], None)
        # A writer that has not written it must find whose line it is.
        (further,) = say("further")
        other = DirectoryArchive(tmp_path, FAST_INLINE)
        other.append_now(SHARED, [further], said.identity)
        with pytest.raises(ConversationMoved) as caught:
            DirectoryArchive(tmp_path, FAST_INLINE).append_now(SHARED, say(""), said.identity)
        assert caught.value.path == str(lines_of(archive).parent)


def test_a_conversation_may_be_empty(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    archive.create_now("empty", produce_details(), ())
    assert archive.restore_now("empty").canisters == ()
    with pytest.raises(ConversationMoved):
        archive.append_now("empty", say("after another"), "another")
    (said,) = say("first")
    archive.append_now("empty", [said], None)
    archive.append_now("empty", say("second"), said.identity)
    assert len(archive.restore_now("empty").canisters) == 2


def test_a_file_that_has_gone_is_not_begun_anew(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    lines_of(archive).unlink()
    for work in (
        lambda: archive.append_now(SHARED, say("further"), None),
        lambda: archive.restore_now(SHARED),
        lambda: archive.fork_now(SHARED, "fork", produce_details()),
    ):
        with pytest.raises(
            ArchiveDamaged, match="this file is missing from the folder; restore it from a backup"
        ):
            work()
    assert not lines_of(archive).exists()


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    for work in (
        lambda: archive.append_now("other", say("further"), None),
        lambda: archive.restore_now("other"),
        lambda: archive.fork_now("other", "fork", produce_details()),
        lambda: archive.access_folder("other").revise({"name": "a name"}),
        lambda: archive.remove_now("other"),
    ):
        with pytest.raises(ConversationNotFound, match="conversation other not found"):
            work()
    with pytest.raises(ConversationNotFound, match="has no message nowhere"):
        archive.fork_now(SHARED, "fork", produce_details(), "nowhere")
    with pytest.raises(ConversationNotFound):
        archive.fork_now(SHARED, "fork", produce_details(), "\ud800")


def test_another_conversation_is_never_written_over(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    before = snapshot(tmp_path)
    with pytest.raises(StorageError, match="already exists"):
        archive.create_now(SHARED, produce_details(), say("other"))
    with pytest.raises(StorageError, match="already exists"):
        archive.fork_now(SHARED, SHARED, produce_details())
    assert snapshot(tmp_path) == before


def test_only_identities_are_surveyed(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    for name in (".new-1234", "UPPER", "with space", "ünïcode"):
        (archive.conversations / name).mkdir()
    assert [*survey_folders(archive.conversations)] == [SHARED]
    assert [*survey_folders(tmp_path / "nowhere")] == []
    with pytest.raises(StorageError):
        list(survey_folders(lines_of(archive)))


# Forks: S9.


def check_forks(folder: Path, archive: DirectoryArchive, count: int) -> None:
    """Every child is its parent's start, byte for byte, and both go their own way."""
    for seed in range(count):
        check_tree(archive, random.Random(seed))
    open_all(archive)


def check_tree(archive: DirectoryArchive, chance: random.Random) -> None:
    root = produce_conversation_identity()
    said = say(*(f"message {n} " + "x" * chance.randrange(2_000) for n in range(5)))
    archive.create_now(root, produce_details(), said)
    members = {root: lines_of(archive, root).read_bytes()}
    for _ in range(chance.randint(1, 6)):
        parent = chance.choice([*members])
        lines = members[parent].splitlines(keepends=True)
        kept = chance.randint(1, len(lines))
        at = msgspec.json.decode(lines[kept - 1])["identity"]
        child = produce_conversation_identity()
        details = Details(created=datetime.now(UTC), forked_from=Origin(parent, at))
        archive.fork_now(parent, child, details, None if kept == len(lines) else at)
        members[child] = b"".join(lines[:kept])
        assert lines_of(archive, child).read_bytes() == members[child]
        assert archive.restore_now(child).details == details
        grown = chance.choice([*members])
        archive.append_now(grown, say(f"on {chance.random()}"), None)
        before, members[grown] = members[grown], lines_of(archive, grown).read_bytes()
        assert members[grown].startswith(before)
        for identity, lines_of_it in members.items():
            assert lines_of(archive, identity).read_bytes() == lines_of_it
    gone = chance.choice([*members])
    archive.remove_now(gone)
    del members[gone]
    for identity, lines_of_it in members.items():
        assert lines_of(archive, identity).read_bytes() == lines_of_it
        assert archive.restore_now(identity).canisters


@pytest.mark.storm
def test_a_fork_is_exact_and_independent(tmp_path: Path, rounds: Rounds) -> None:
    check_forks(tmp_path, DirectoryArchive(tmp_path, FAST), rounds(40, 1_000))


class Sharing(DirectoryArchive):
    """The bug: parent and child share the file of their messages."""

    def fork_now(self, identity: str, target: str, details: Details, at: str | None = None) -> None:
        super().fork_now(identity, target, details, at)
        if at is None:
            lines_of(self, target).unlink()
            os.link(lines_of(self, identity), lines_of(self, target))


def test_forks_that_share_a_file_by_a_hard_link_are_separated(tmp_path: Path) -> None:
    check_forks(tmp_path, Sharing(tmp_path, FAST), 40)


def test_a_fork_writes_its_lines_and_not_a_byte_of_content(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    for number in range(10):
        picture = ImageContent(bytes([number]) * 100_000, "image/png")
        archive.append_now(SHARED, [UserCanister((picture,))], None)
    before = snapshot(archive.contents.folder)
    with SystemCalls() as calls:
        archive.fork_now(SHARED, "fork", produce_details())
    assert (calls.count("copy_file_range"), calls.count("write")) == (1, 1)
    assert snapshot(archive.contents.folder) == before
    assert lines_of(archive, "fork").read_bytes() == lines_of(archive).read_bytes()
    # It needs the parent no longer, nor does it lose its pictures with it.
    archive.remove_now(SHARED)
    archive.collect_now(grace_seconds=-1)
    assert len(open_all(archive)["fork"].canisters) == 11


def test_a_fork_does_not_take_a_torn_end_along(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    whole = lines_of(archive).read_bytes()
    lines_of(archive).write_bytes(whole + b'{"role"')
    archive.fork_now(SHARED, "fork", produce_details())
    assert lines_of(archive, "fork").read_bytes() == whole


def test_a_fork_at_a_damaged_line_says_which(tmp_path: Path) -> None:
    archive = begin(tmp_path, say("one", "two"), FAST)
    lines = lines_of(archive).read_bytes().split(b"\n")
    identity = msgspec.json.decode(lines[1])["identity"]
    lines_of(archive).write_bytes(b"\n".join([lines[0], lines[1][:-1], b""]))
    with pytest.raises(ArchiveDamaged) as raised:
        archive.fork_now(SHARED, "fork", produce_details(), identity)
    assert (raised.value.line, raised.value.offset) == (2, len(lines[0]) + 1)
    assert [*survey_folders(archive.conversations)] == [SHARED]


def test_an_identity_that_others_mention_is_found_in_its_place(tmp_path: Path) -> None:
    said = say("one", "two")
    mention = say(f"I mean {said[1].identity}", 'quotes "')
    archive = begin(tmp_path, [said[0], *mention, said[1], *say("last")], FAST)
    archive.fork_now(SHARED, "fork", produce_details(), said[1].identity)
    assert len(archive.restore_now("fork").canisters) == 4
    strange = UserCanister.from_text("strange")
    strange = msgspec.structs.replace(strange, identity='a"\\\n\u2028b')
    archive.append_now(SHARED, [strange, *say("on")], None)
    archive.fork_now(SHARED, "other", produce_details(), strange.identity)
    assert archive.restore_now("other").canisters[-1] == strange


def test_a_fork_point_is_found_among_lines_of_any_length(tmp_path: Path) -> None:
    """The file is read from its end, in parts that begin within a line."""
    sizes = (10, 300_000, 1_048_400, 10, 1_048_576, 3_000_000, 700_000, 0, 5_000_000, 10)
    said = say(*("x" * size for size in sizes))
    settings = StorageSettings(durability="fast", inline_bytes=8_000_000)
    archive = begin(tmp_path, said, settings)
    lines = lines_of(archive).read_bytes().splitlines(keepends=True)
    assert max(map(len, lines)) > 5_000_000
    lines_of(archive).write_bytes(b"".join(lines) + b'{"torn')
    for number, canister in enumerate(said, 1):
        with at_most(10):
            archive.fork_now(SHARED, f"fork{number}", produce_details(), canister.identity)
        assert lines_of(archive, f"fork{number}").read_bytes() == b"".join(lines[:number])
    archive.fork_now(SHARED, "whole", produce_details())
    assert lines_of(archive, "whole").read_bytes() == b"".join(lines)


def test_a_fork_near_the_end_reads_only_the_end(tmp_path: Path) -> None:
    said = say(*("x" * 100_000 for _ in range(50)))
    archive = begin(tmp_path, said, FAST_INLINE)
    for at in (None, said[-1].identity, said[-3].identity):
        with SystemCalls() as calls:
            archive.fork_now(SHARED, produce_conversation_identity(), produce_details(), at)
        assert calls.count("pread") <= 3
        # The details of the parent, twice because the end of a file shows by reading nothing.
        assert calls.count("read") == 2


def test_a_fork_at_an_earlier_message_ignores_damage_after_it(tmp_path: Path) -> None:
    said = say("one", "two")
    archive = begin(tmp_path, said, FAST)
    whole = lines_of(archive).read_bytes()
    lines_of(archive).write_bytes(whole + said[0].identity.encode() + b" is damaged\n")
    archive.fork_now(SHARED, "fork", produce_details(), said[0].identity)
    assert lines_of(archive, "fork").read_bytes() == whole[: whole.index(b"\n") + 1]


def test_a_fork_does_not_take_a_last_line_with_zeros_along(tmp_path: Path) -> None:
    archive = begin(tmp_path, say("one", "two"), FAST)
    whole = lines_of(archive).read_bytes()
    lines_of(archive).write_bytes(whole + b'{"role":' + bytes(100_000) + b"\n")
    archive.fork_now(SHARED, "fork", produce_details())
    assert lines_of(archive, "fork").read_bytes() == whole


def check_kills_while_forking(folder: Path, work: Callable[..., None], count: int) -> None:
    """Every conversation that is seen opens, and every fork that was reported is there."""
    archive = begin(folder, say(*("x" * 1_000 for _ in range(500))), FAST)
    whole = lines_of(archive).read_bytes()
    reported: list[str] = []
    for seed in range(count):
        reported += kill_at_random(work, folder, seed=seed)
        identities = {*survey_folders(archive.conversations)}
        assert identities >= {*reported}
        for identity in identities - {SHARED}:
            path = lines_of(archive, identity)
            assert path.exists(), "half of a fork is seen"
            assert path.read_bytes() == whole, "half of a fork is seen"
            try:
                archive.restore_now(identity)
            except StorageError as error:
                raise AssertionError(f"half of a fork is seen: {error}") from error
            archive.remove_now(identity)
        reported.clear()


@pytest.mark.storm
def test_a_kill_while_forking_leaves_no_half_of_a_conversation(
    tmp_path: Path, rounds: Rounds
) -> None:
    check_kills_while_forking(tmp_path, workers.fork_conversations, rounds(25, 300))


def test_that_check_sees_forks_made_in_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="half of a fork"):
        check_kills_while_forking(tmp_path, workers.fork_conversations_in_place, 300)


# Old data opens, newer data is refused: S11.

SAMPLES = Path(__file__).parent.parent / "data" / "archives"


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_every_archive_that_was_ever_released_opens(tmp_path: Path, sample: str) -> None:
    for source in sorted((SAMPLES / sample).rglob("*")):
        target = tmp_path / source.relative_to(SAMPLES / sample)
        if source.is_dir():
            target.mkdir(mode=0o700)
        else:
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)
    archive = DirectoryArchive(tmp_path, FAST)
    opened = open_all(archive)
    assert [*inspect_archive(archive)] == []
    parent, child = opened["aaaabbbbcccc"], opened["ddddeeeeffff"]
    assert parent.details.name == "A walk by the river"
    assert parent.details.tags == ("nature", "sample")
    assert child.details.forked_from == Origin("aaaabbbbcccc", parent.canisters[1].identity)
    assert child.canisters[:2] == parent.canisters[:2]
    assert [type(canister).__name__ for canister in parent.canisters] == [
        "SupervisorCanister",
        "UserCanister",
        "DocumentCanister",
        "AssistantCanister",
        "InvocationCanister",
        "ResultCanister",
        "AssistantCanister",
        "UnknownCanister",
    ]
    before = lines_of(archive, "aaaabbbbcccc").read_bytes()
    assert b"".join(encode_canister(one) + b"\n" for one in parent.canisters) == before
    (further,) = say("further")
    archive.append_now("aaaabbbbcccc", [further], parent.canisters[-1].identity)
    assert lines_of(archive, "aaaabbbbcccc").read_bytes().startswith(before)
    assert {finding.conversation for finding in archive.search_now("lantern")} == {
        "aaaabbbbcccc",
        "ddddeeeeffff",
    }


def check_unknown_members(folder: Path, count: int) -> None:
    """Lines of a newer version are read, forked and appended to, and not a byte of them changes."""
    chance = random.Random(1)
    lines: list[bytes] = []
    for number in range(count):
        members: dict[str, Any] = {
            "role": chance.choice(["user", "assistant", "oracle", "result"]),
            "identity": f"i{number}",
            "created": "2030-01-01T00:00:00Z",
            chance.choice(["mood", "x", "inner"]): {"deep": [number, {"er": None}], "n": 1e300},
            "contents": [
                {"kind": "text", "data": f"text {number}", "tone": "warm"},
                {"kind": "hologram", "data": {"by": "beam"}},
            ],
        }
        if members["role"] == "result":
            members["invocation"] = "i0"
        order = [*members]
        chance.shuffle(order)
        lines.append(msgspec.json.encode({name: members[name] for name in order}))
    data = b"".join(line + b"\n" for line in lines)
    archive = begin(folder, settings=FAST)
    lines_of(archive).write_bytes(data)
    restored = archive.restore_now(SHARED)
    assert len(restored.canisters) == count
    archive.create_now("again", produce_details(), restored.canisters)
    assert lines_of(archive, "again").read_bytes() == data
    archive.fork_now(SHARED, "fork", produce_details(), f"i{count - 1}")
    assert lines_of(archive, "fork").read_bytes() == data
    oracle = next(one for one in restored.canisters if isinstance(one, UnknownCanister))
    assert oracle.label == "oracle"
    known = next(one for one in restored.canisters if isinstance(one, UserCanister))
    assert known.text.startswith("text ")
    assert isinstance(known.contents[1], UnknownContent)


def test_what_a_newer_version_wrote_in_lines_is_kept(tmp_path: Path) -> None:
    check_unknown_members(tmp_path, 500)


def test_that_check_sees_members_that_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(canister: Any) -> bytes:
        return encode_canister(msgspec.structs.replace(canister, source_line=None))

    monkeypatch.setattr("vibe_llms.storage.lines.encode_canister", forget)
    with pytest.raises(AssertionError):
        check_unknown_members(tmp_path, 50)


def check_newer(folder: Path, archive: DirectoryArchive) -> None:
    """A conversation of a newer format is refused with one clear line and stays as it is."""
    archive.create_now("other", produce_details(), say("other"))
    newer = archive.conversations / "newer"
    newer.mkdir(mode=0o700)
    (newer / "messages.jsonl").write_bytes(b"not even JSON\n")
    (newer / "metadata.toml").write_text('format = 2\nshape = "new"\n')
    for path in newer.iterdir():
        path.chmod(0o600)
    before = snapshot(newer)
    folder_of_it = archive.access_folder("newer")
    works: list[Callable[[], object]] = [
        lambda: archive.restore_now("newer"),
        lambda: archive.restore_now("newer", lenient=True),
        lambda: archive.append_now("newer", say("further"), None),
        lambda: archive.fork_now("newer", "fork", produce_details()),
        lambda: folder_of_it.revise({"name": "new"}),
        folder_of_it.repair,
    ]
    for work in works:
        with pytest.raises(FormatNewer) as refused:
            work()
        assert str(refused.value) == (
            f"{newer / 'metadata.toml'}: written by a newer version of vibe-llms (format 2, "
            "supported is 1); install that version to open it"
        )
    (found,) = inspect_archive(archive, repair=True)
    assert (found.subject, found.mended) == ("conversation", False)
    assert snapshot(newer) == before
    assert "other" in {summary.identity for summary in archive.survey_now()}


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    check_newer(tmp_path, DirectoryArchive(tmp_path, FAST))


def test_that_check_sees_a_reader_that_does_not_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "refuse_newer", lambda folder: None)
    monkeypatch.setattr(appending, "refuse_newer", lambda folder: None)
    with pytest.raises((AssertionError, ArchiveDamaged, pytest.fail.Exception)):
        check_newer(tmp_path, DirectoryArchive(tmp_path, FAST))


@pytest.mark.parametrize("version", ["0.5", '"1"', "[]", "true"])
def test_a_format_that_is_no_number_is_damage(tmp_path: Path, version: str) -> None:
    archive = begin(tmp_path, settings=FAST)
    path = archive.conversations / SHARED / "metadata.toml"
    path.write_text(path.read_text().replace("format = 1", f"format = {version}"))
    with pytest.raises(ArchiveDamaged, match="fix it by hand"):
        archive.restore_now(SHARED)


# Doctor and another process: a remembered file that is replaced.


def test_a_remembered_file_that_was_repaired_is_read_again(tmp_path: Path) -> None:
    archive = begin(tmp_path, say("one"), FAST)
    archive.append_now(SHARED, say("two"), None)
    (three,) = say("three")
    archive.append_now(SHARED, [three], None)
    lines = lines_of(archive).read_bytes().split(b"\n")
    with lines_of(archive).open("r+b") as file:
        file.seek(len(lines[0]) + 1)
        file.write(b"\xff" * len(lines[1]))
    assert len(DirectoryArchive(tmp_path, FAST).access_folder(SHARED).repair()) == 1
    (four,) = say("four")
    archive.append_now(SHARED, [four], three.identity)
    assert identities_of(archive.restore_now(SHARED))[1:] == [three.identity, four.identity]
    assert archive.access_folder(SHARED).repair() == []


def test_a_remembered_line_that_was_removed_is_reported(tmp_path: Path) -> None:
    archive = begin(tmp_path, say("one"), FAST)
    (two,) = say("two")
    archive.append_now(SHARED, [two], None)
    data = lines_of(archive).read_bytes()
    # Of the same size, in place, and with another last message.
    other = data.replace(two.identity.encode(), two.identity[::-1].encode())
    with lines_of(archive).open("r+b") as file:
        file.write(other)
    os.utime(lines_of(archive))
    with pytest.raises(ConversationMoved):
        archive.append_now(SHARED, say("three"), two.identity)


_OPENING = """
import re, sys
from pathlib import Path
from vibe_llms.storage import appending, conversations
from vibe_llms.storage.archive import DirectoryArchive
restored = DirectoryArchive(Path(sys.argv[1])).restore_now("shared")
# Not `ru_maxrss`, which counts what the process was before it became this program.
most = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(len(restored.canisters), most)
"""


@pytest.mark.storm
def test_a_long_conversation_opens_in_bounded_memory(tmp_path: Path, rounds: Rounds) -> None:
    count = rounds(10_000, 100_000)
    archive = begin(tmp_path, settings=FAST)
    texts = (f"message {n}: {'so it is ' * 20}" for n in range(count))
    archive.append_now(SHARED, say(*texts), None)
    done = subprocess.run(
        [sys.executable, "-c", _OPENING, str(tmp_path)], capture_output=True, text=True, check=True
    )
    opened, kilobytes = map(int, done.stdout.split())
    assert opened == count + 1
    assert kilobytes < 400 * 1024
