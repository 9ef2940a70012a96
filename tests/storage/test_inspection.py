"""The check of an archive, and what mends itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.archives import FAST, begin, lines_of, produce_details, say, snapshot
from tests.faults.workers import SHARED
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.storage import search
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.inspection import inspect_archive
from vibe_llms.storage.interfaces import Diagnosis


def inspect(archive: DirectoryArchive, *, repair: bool = False) -> list[Diagnosis]:
    return [*inspect_archive(archive, repair=repair)]


def test_a_sound_archive_has_no_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CHECK_SECONDS", 1e9)
    archive = begin(tmp_path / "archive", settings=FAST)
    archive.append_now(SHARED, [UserCanister((ImageContent(b"picture"),))], None)
    archive.survey_now()
    before = snapshot(tmp_path)
    assert inspect(archive) == []
    assert snapshot(tmp_path) == before
    assert inspect(archive, repair=True) == []
    assert not (archive.folder / INDEX).exists()
    assert len(archive.survey_now()) == 1


def test_an_archive_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert inspect(DirectoryArchive(tmp_path / "archive", FAST), repair=True) == []
    assert not (tmp_path / "archive").exists()


def test_half_an_archive_is_looked_at_as_far_as_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir(mode=0o700)
    assert inspect(DirectoryArchive(tmp_path / "archive", FAST), repair=True) == []


def test_damaged_lines_are_reported_and_repaired_and_the_old_file_is_kept(tmp_path: Path) -> None:
    archive = begin(tmp_path, say("one", "two", "three"), FAST)
    path = lines_of(archive)
    lines = path.read_bytes().split(b"\n")
    damaged = b"\n".join([lines[0], b"", b"damaged", lines[2], b"torn"])
    path.write_bytes(damaged)
    found = inspect(archive)
    assert [(one.subject, one.path, one.mended) for one in found] == [
        ("line", f"{path.parent}:2", False),
        ("line", f"{path.parent}:3", False),
        ("line", str(path.parent), False),
    ]
    assert "vibe-llms doctor --repair" in found[0].remedy
    assert path.read_bytes() == damaged
    assert [one.mended for one in inspect(archive, repair=True)] == [True, True, True]
    assert path.read_bytes() == b"\n".join([lines[0], lines[2], b""])
    (kept,) = path.parent.glob("messages.damaged-*.jsonl")
    assert kept.read_bytes() == damaged
    assert inspect(archive) == []


def test_a_torn_end_alone_is_set_aside(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    whole = lines_of(archive).read_bytes()
    lines_of(archive).write_bytes(whole + b"torn")
    (found,) = inspect(archive, repair=True)
    assert found.mended
    assert lines_of(archive).read_bytes() == whole
    (kept,) = lines_of(archive).parent.glob("messages.torn-*")
    assert kept.read_bytes() == b"torn"
    assert inspect(archive) == []


def test_a_repair_leaves_the_bytes_of_files_that_are_linked_to_it(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    whole = lines_of(archive).read_bytes()
    lines_of(archive).write_bytes(whole + b"torn")
    outside = tmp_path / "outside"
    outside.hardlink_to(lines_of(archive))
    (found,) = inspect(archive, repair=True)
    assert found.mended
    assert lines_of(archive).read_bytes() == whole
    assert outside.read_bytes() == whole + b"torn"
    archive.append_now(SHARED, say("more"), None)
    assert len(lines_of(archive).read_bytes()) > len(whole)
    assert outside.read_bytes() == whole + b"torn"


def test_a_folder_in_place_of_the_messages_is_named(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    lines_of(archive).unlink()
    lines_of(archive).mkdir(0o700)
    (found,) = inspect(archive)
    assert (found.subject, found.path) == ("conversation", str(lines_of(archive)))
    assert "directory" in found.text.lower()


def test_what_cannot_be_repaired_does_not_stop_the_rest(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    for name in ("aaaa", "bbbb", "cccc", "zzzz"):
        archive.create_now(name, produce_details(), say("text"))
    (archive.conversations / "aaaa" / "metadata.toml").write_text("damaged = ")
    (archive.conversations / "bbbb" / "metadata.toml").unlink()
    lines_of(archive, "cccc").unlink()
    lines_of(archive, "zzzz").write_bytes(b"damaged\n")
    for repair in (False, True):
        found = inspect(archive, repair=repair)
        assert [(one.subject, Path(one.path).parent.name, one.mended) for one in found] == [
            ("conversation", "aaaa", False),
            ("conversation", "bbbb", False),
            ("conversation", "cccc", False),
            ("line", "conversations", repair),
        ]
        assert "fix it by hand" in found[0].text
        assert found[2].remedy == "restore it from a backup"


def test_a_repair_that_fails_is_reported_and_the_rest_is_repaired(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    archive.create_now("aaaa", produce_details(), say("text"))
    whole = lines_of(archive, "aaaa").read_bytes()
    # Its last whole line cannot be read, and a torn one follows it.
    lines_of(archive, "aaaa").write_bytes(whole + b"torn")
    lines_of(archive).write_bytes(b"damaged\n")
    (archive.conversations / "aaaa" / "metadata.toml").write_text("format = 7\n")
    found = inspect(archive, repair=True)
    assert [(one.subject, one.mended) for one in found] == [("conversation", False), ("line", True)]
    assert lines_of(archive, "aaaa").read_bytes() == whole + b"torn"


def test_contents_that_are_missing_or_damaged_are_reported(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    for data in (b"one", b"two", b"three", b"four"):
        archive.append_now(SHARED, [UserCanister((ImageContent(data),))], None)
    store = archive.contents.folder
    of = {data: store / archive.contents.put(data).hash for data in (b"one", b"two", b"three")}
    (of[b"one"] / "data").write_bytes(b"oNe")
    (of[b"two"] / "data").unlink()
    (of[b"three"] / "data").unlink()
    (of[b"three"] / "data").symlink_to(tmp_path / "outside")
    found = inspect(archive)
    assert {(one.subject, one.path) for one in found} == {
        ("content", str(of[b"one"])),
        ("content", str(of[b"two"])),
        ("content", str(of[b"three"])),
    }
    texts = [f"{one.text} {one.remedy}" for one in found]
    assert any("no longer match this hash" in text and "from a backup" in text for text in texts)
    assert any(f"{SHARED} needs this content" in text for text in texts)


def test_a_link_in_place_of_a_content_is_reported_where_it_is_needed(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    archive.append_now(SHARED, [UserCanister((ImageContent(b"one"),))], None)
    path = archive.contents.folder / archive.contents.put(b"one").hash
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    found = inspect(archive)
    assert {one.path for one in found} == {str(path)}
    assert any(one.text.startswith(f"{SHARED} needs this content: ") for one in found)


def test_a_file_that_others_may_read_is_reported_and_fixed(tmp_path: Path) -> None:
    archive = begin(tmp_path / "home", settings=FAST)
    archive.survey_now()
    foreign = archive.folder / "notes.txt"
    foreign.write_text("not ours")
    foreign.chmod(0o644)
    archive.folder.chmod(0o755)
    assert inspect(archive) == []
    lines_of(archive).chmod(0o644)
    lines_of(archive).parent.chmod(0o750)
    (archive.folder / INDEX).chmod(0o660)
    archive.conversations.chmod(0o755)
    (archive.conversations / SHARED / "link").symlink_to(tmp_path)
    paths = {
        str(path)
        for path in (
            lines_of(archive),
            lines_of(archive).parent,
            archive.folder / INDEX,
            archive.conversations,
        )
    }
    found = inspect(archive)
    assert {one.path for one in found} == paths
    assert f"chmod 600 {lines_of(archive)}" in {one.remedy for one in found}
    assert all(one.mended for one in inspect(archive, repair=True))
    assert inspect(archive) == []
    assert foreign.stat().st_mode & 0o777 == 0o644
    assert archive.folder.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_others_may_write_to_is_fixed(tmp_path: Path) -> None:
    archive = begin(tmp_path / "home", settings=FAST)
    archive.folder.chmod(0o777)
    (found,) = inspect(archive, repair=True)
    assert (found.subject, found.mended) == ("rights", True)
    assert archive.folder.stat().st_mode & 0o777 == 0o755
    archive.append_now(SHARED, say("further"), None)


def test_what_was_interrupted_is_reported(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    path = archive.conversations / ".new-1234"
    path.mkdir(mode=0o700)
    (found,) = inspect(archive, repair=True)
    assert (found.subject, found.path, found.mended) == ("remains", str(path), False)
    assert "after an hour" in found.remedy
    os.utime(path, (0, 0))
    archive.collect_now()
    assert inspect(archive) == []


@pytest.mark.parametrize("repair", [False, True])
def test_a_conversation_that_is_removed_at_the_same_time_is_no_finding(
    tmp_path: Path, repair: bool
) -> None:
    archive = begin(tmp_path, settings=FAST)
    for name in ("aaaa", "bbbb"):
        archive.create_now(name, produce_details(), say("text"))
    (archive.conversations / "aaaa" / "metadata.toml").write_text("damaged = ")
    findings = inspect_archive(archive, repair=repair)
    next(findings)
    archive.remove_now("bbbb")
    assert [*findings] == []
