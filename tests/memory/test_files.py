"""The files of a memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from vibe_llms.base.exceptions import MemoryDamaged, MemoryInvalid, StorageError
from vibe_llms.base.folders import TEMPORARY
from vibe_llms.memory import files
from vibe_llms.memory.entries import GLOBAL, LARGEST_BYTES, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.places import identity_in

WHEN = datetime(2026, 5, 4, 10, 30, tzinfo=UTC)
FACT = Entry(content="Ada likes tea", identity="abcd-1", created=WHEN)


@pytest.fixture
def store(tmp_path: Path) -> MemoryFiles:
    return MemoryFiles(tmp_path, durable=False)


@pytest.mark.parametrize(
    ("role", "category", "folder"),
    [
        (Role.FACT, "", "facts"),
        (Role.USER, "", "turns/user"),
        (Role.ASSISTANT, "", "turns/assistant"),
        (Role.SUMMARY, "L1", "summaries/L1"),
        (Role.SUMMARY, "else", "summaries/L3"),
    ],
)
def test_each_kind_has_its_place(
    store: MemoryFiles, role: Role, category: str, folder: str
) -> None:
    entry = msgspec.structs.replace(FACT, role=role, category=category)
    with store.changing(GLOBAL):
        place = store.write(entry)
    assert place == f"{folder}/20260504T103000Z__abcd-1.md"
    assert identity_in(place) == "abcd-1"
    assert store.read(GLOBAL, place).content == FACT.content
    assert set(store.scan(GLOBAL)) == {place}


def test_files_and_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = MemoryFiles(tmp_path / "memory")
        with store.changing(GLOBAL):
            place = store.write(FACT)
            store.delete(FACT, place, replaced_by="ef")
    finally:
        os.umask(old)
    for path in (tmp_path / "memory").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_what_is_replaced_lies_among_the_deleted_and_names_its_replacement(
    store: MemoryFiles,
) -> None:
    with store.changing(GLOBAL):
        place = store.write(FACT)
        store.delete(FACT, place, replaced_by="ef")
        # What has gone already is not brought back among the deleted ones.
        store.delete(msgspec.structs.replace(FACT, identity="gone"), "facts/gone.md")
    assert store.scan(GLOBAL) == {}
    assert set(store.scan(GLOBAL, deleted=True)) == {place}
    assert store.read(GLOBAL, f"deleted/{place}").replaced_by == "ef"


def stopped_half_way(store: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many files there are, live and deleted, after the process ended while it gave one up."""

    class Ended(BaseException):
        pass

    def end(*_: object, **__: object) -> None:
        raise Ended

    place = store.write(FACT)
    monkeypatch.setattr(files, "synchronise_folder", end)
    monkeypatch.setattr(files, "replace_file", end)
    monkeypatch.setattr(Path, "unlink", end)
    with pytest.raises(Ended), store.changing(GLOBAL):
        store.delete(FACT, place, replaced_by="ef")
    return len(store.scan(GLOBAL)), len(store.scan(GLOBAL, deleted=True))


def test_an_entry_is_never_live_and_deleted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stopped_half_way(MemoryFiles(tmp_path), monkeypatch) == (0, 1)


def test_a_copy_before_the_removal_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(self: MemoryFiles, entry: Entry, place: str, *, replaced_by: str = "") -> None:
        target = self.path_of(entry.scope, f"deleted/{place}")
        target.parent.mkdir(parents=True)
        target.write_bytes(self.path_of(entry.scope, place).read_bytes())
        self.path_of(entry.scope, place).unlink()

    monkeypatch.setattr(MemoryFiles, "delete", delete)
    assert stopped_half_way(MemoryFiles(tmp_path), monkeypatch) == (1, 1)


def test_what_is_no_plain_file_is_reported_and_never_opened(
    store: MemoryFiles, tmp_path: Path
) -> None:
    folder = store.path_of(GLOBAL, "facts")
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.md")
    (folder / "folder.md").mkdir()
    (tmp_path / "outside").write_text("outside")
    (folder / "link.md").symlink_to(tmp_path / "outside")
    with (folder / "huge.md").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    places = store.scan(GLOBAL)
    assert len(places) == 4
    for place in places:
        with pytest.raises(MemoryDamaged):
            store.read(GLOBAL, place)
    found = dict(store.read_all(GLOBAL))
    assert found == {"facts/pipe.md": b"", "facts/link.md": b"", "facts/huge.md": None}
    with pytest.raises(FileNotFoundError):
        store.read(GLOBAL, "facts/none.md")


@pytest.mark.parametrize("linked", ["facts", "turns", "deleted", "deleted/facts"])
def test_nothing_is_written_where_a_link_leads_out(
    store: MemoryFiles, tmp_path: Path, linked: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "user").mkdir(parents=True)
    place = store.write(FACT)
    said = msgspec.structs.replace(FACT, role=Role.USER)
    link = store.path_of(GLOBAL, linked)
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        link.rename(tmp_path / "before")
    link.symlink_to(outside)
    change: dict[str, Callable[[], object]] = {
        "facts": lambda: store.rewrite(FACT, place),
        "turns": lambda: store.write(said),
    }
    with pytest.raises(StorageError, match="symbolic link"):
        change.get(linked, lambda: store.delete(FACT, place))()
    assert [one for one in outside.rglob("*") if one.is_file()] == []


def test_a_file_without_rights_is_reported(
    store: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.write(FACT)

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "read_within", refuse)
    with pytest.raises(MemoryDamaged, match="cannot be read: Permission denied"):
        store.read(GLOBAL, place)
    with pytest.raises(StorageError, match="permission denied"):
        dict(store.read_all(GLOBAL))


def test_what_crashes_left_is_cleared_and_nothing_else(store: MemoryFiles) -> None:
    place = store.write(FACT)
    left = store.path_of(GLOBAL, f"facts/{TEMPORARY}x.md-12")
    left.write_text("half")
    store.path_of(GLOBAL, "facts/notes.txt").write_text("mine")
    with store.changing(GLOBAL):
        store.clear(GLOBAL)
    assert sorted(store.survey_files(GLOBAL)) == sorted([place, "facts/notes.txt"])


def test_only_folders_that_are_scopes_are_scopes(store: MemoryFiles, tmp_path: Path) -> None:
    assert store.survey_scopes() == []
    for name in ("user-ada", "global", "User-B", "user-", ".git", "conversation-c1"):
        (tmp_path / "entries" / name).mkdir(parents=True)
    assert list(map(str, store.survey_scopes())) == ["conversation-c1", "global", "user-ada"]


def test_an_identity_that_leads_elsewhere_is_refused(store: MemoryFiles) -> None:
    for identity in ("", "../x", "a/b", "A", "a\n", "x" * 65, "a__b"):
        with pytest.raises(MemoryInvalid):
            store.write(msgspec.structs.replace(FACT, identity=identity))
    assert not (store.folder / "entries").exists()
    assert identity_in("facts/notes.md") == ""


def test_a_scope_that_cannot_be_read_is_an_error(store: MemoryFiles, tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    store.path_of(Scope.of_user("ada")).write_text("a file")
    with pytest.raises(StorageError):
        store.scan(Scope.of_user("ada"))
