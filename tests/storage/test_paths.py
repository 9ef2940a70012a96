"""Names never become paths unchecked, links are not followed, files are private. S10 and K2."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.archives import FAST, begin, hand_over, lines_of, produce_details, say, snapshot
from tests.faults.calls import SystemCalls
from tests.faults.hostile import produce_hostile_identities
from tests.faults.workers import SHARED
from vibe_llms.base import folders as files
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ContentMissing,
    ConversationNotFound,
    RequestError,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.storage import archive as archives
from vibe_llms.storage import contents
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.inspection import inspect_archive

Rounds = Callable[[int, int], int]
PICTURE = ImageContent(b"picture" * 100, "image/png")


async def check_hostile_identities(folder: Path, count: int) -> None:
    """Refused in every place where an identity may occur, and nothing on the disk has changed."""
    archive = begin(folder / "archive", settings=FAST)
    (folder / "outside").mkdir()
    (folder / "outside" / "messages.jsonl").write_bytes(lines_of(archive).read_bytes())
    (folder / "outside" / "metadata.toml").write_text("format = 1\ncreated = 2026-01-01 00:00:00Z")
    await archive.survey()
    before = snapshot(folder)
    details = produce_details()
    refused = 0
    hostile = list(produce_hostile_identities(count))
    for identity in hostile:
        works: list[Callable[[], Any]] = [
            partial(archive.create, identity, details, say("a")),
            partial(archive.append, identity, say("a"), after=None),
            partial(archive.restore, identity),
            partial(archive.fork, identity, "fork", details),
            partial(archive.fork, SHARED, identity, details),
            partial(archive.revise, identity, name="a"),
            partial(archive.remove, identity),
            partial(archive.resolve, identity),
        ]
        for work in works:
            with pytest.raises(ConversationNotFound):
                await work()
        refused += 1
        hash_ = Reference(identity, 1)
        for reading in (archive.contents.load, archive.contents.holds):
            with pytest.raises(ContentMissing):
                reading(hash_)
        with pytest.raises(ContentMissing):
            archive.contents.remove(identity)
    assert refused == len(hostile) == count
    after = snapshot(folder)
    # Names are looked up in the index, which may take note of nothing.
    assert after.keys() == before.keys()
    assert [key for key in after if after[key] != before[key] and "index" not in key] == []


@pytest.mark.storm
async def test_hostile_identities_are_refused(tmp_path: Path, rounds: Rounds) -> None:
    await check_hostile_identities(tmp_path, rounds(300, 2_000))


async def test_that_check_sees_identities_that_are_made_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = DirectoryArchive.access_folder

    def slugify(self: DirectoryArchive, identity: str) -> Any:
        return access(self, re.sub(r"[^a-z0-9]", "", identity.lower()) or "none")

    monkeypatch.setattr(DirectoryArchive, "access_folder", slugify)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await check_hostile_identities(tmp_path, 100)


async def test_that_check_sees_identities_that_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "is_conversation_identity", lambda text: "\0" not in text)
    with pytest.raises((AssertionError, pytest.fail.Exception, StorageError, ValueError)):
        await check_hostile_identities(tmp_path, 100)


def plant(archive: DirectoryArchive, target: Path, place: str) -> None:
    """Put a link to something outside in the place of a part of the archive."""
    path = archive.folder / place
    if path.is_dir() and not path.is_symlink():
        path.rename(target / f"was-{path.name}")
        path.symlink_to(target / f"was-{path.name}")
    elif path.exists():
        path.rename(target / path.name)
        path.symlink_to(target / path.name)
    else:
        path.symlink_to(target / "nowhere")


def try_everything(archive: DirectoryArchive) -> list[str]:
    """Do all that can be done; only errors of ours may come of it."""
    picture = Reference.from_bytes(PICTURE.data)  # type: ignore[arg-type]
    works: dict[str, Callable[[], Any]] = {
        "append": lambda: archive.append_now(SHARED, [UserCanister((PICTURE,))], None),
        "restore": lambda: archive.restore_now(SHARED),
        "lenient": lambda: archive.restore_now(SHARED, lenient=True),
        "fork": lambda: archive.fork_now(SHARED, "fork", produce_details()),
        "revise": lambda: archive.access_folder(SHARED).revise({"name": "new"}),
        "create": lambda: archive.create_now("new", produce_details(), [UserCanister((PICTURE,))]),
        "load": lambda: archive.contents.load(picture),
        "holds": lambda: archive.contents.holds(picture),
        "put": lambda: archive.contents.put(b"other", ""),
        "survey": archive.survey_now,
        "search": lambda: archive.search_now("secret"),
        "resolve": lambda: archive.resolve_now("a name"),
        "inspect": lambda: [*inspect_archive(archive)],
        "repair": lambda: [*inspect_archive(archive, repair=True)],
        "collect": lambda: archive.collect_now(grace_seconds=-1),
        "remove": lambda: archive.remove_now(SHARED),
    }
    failed: list[str] = []
    for name, work in works.items():
        try:
            work()
        except VibeLlmsError:
            failed.append(name)
    return failed


PLACES = (
    "conversations",
    "content",
    f"conversations/{SHARED}",
    f"conversations/{SHARED}/messages.jsonl",
    f"conversations/{SHARED}/metadata.toml",
    "conversations/dangling",
    "conversations/.new-dangling",
    f"content/{Reference.from_bytes(PICTURE.data).hash}",  # type: ignore[arg-type]
    f"content/{Reference.from_bytes(PICTURE.data).hash}/data",  # type: ignore[arg-type]
    "index.sqlite3",
)


def check_link(folder: Path, place: str) -> None:
    """Whatever is done, what the link leads to stays as it is, and is not read."""
    archive = begin(folder / "archive", settings=FAST)
    archive.append_now(SHARED, [UserCanister((TextualContent("secret"), PICTURE))], None)
    archive.survey_now()
    outside = folder / "outside"
    outside.mkdir(mode=0o755)
    plant(archive, outside, place)
    before = snapshot(outside)
    failed = try_everything(DirectoryArchive(archive.folder, FAST))
    assert snapshot(outside) == before, "something outside has changed"
    expected = {
        "conversations": {"append", "restore", "fork", "create", "survey", "search", "inspect"},
        "content": {"append", "create", "load", "put"},
        f"conversations/{SHARED}": {"append", "restore", "lenient", "fork", "revise", "remove"},
        f"conversations/{SHARED}/messages.jsonl": {"append", "restore", "lenient", "fork"},
        f"conversations/{SHARED}/metadata.toml": {"restore", "revise"},
        PLACES[7]: {"load", "holds", "append"},
        PLACES[8]: {"load", "append"},
    }.get(place, set())
    assert expected <= {*failed}, "the link was followed"


@pytest.mark.parametrize("place", PLACES)
def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path: Path, place: str) -> None:
    check_link(tmp_path, place)


def test_that_check_sees_links_that_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FOLDER", "READ", "_CREATE"):
        monkeypatch.setattr(files, name, getattr(files, name) & ~os.O_NOFOLLOW)
    with pytest.raises(AssertionError):
        check_link(tmp_path, f"conversations/{SHARED}")


def test_an_archive_may_lie_behind_a_link_of_its_owner(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    archive = begin(tmp_path / "home" / "archive", settings=StorageSettings())
    archive.append_now(SHARED, say("further"), None)
    assert len(DirectoryArchive(tmp_path / "disk" / "archive").restore_now(SHARED).canisters) == 2


# Private files: K2.


class Watcher:
    """Looks at the modes of everything after every single call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wider: list[str] = []
        self.kinds: set[str] = set()
        self._lstat, self._scandir = os.lstat, os.scandir

    def before(self, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        return None

    def after(self, *_: object) -> None:
        self.look(str(self.root))

    def entries_of(self, folder: str) -> Sequence[os.DirEntry[str]]:
        try:
            with self._scandir(folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return ()

    def look(self, folder: str) -> None:
        for entry in self.entries_of(folder):
            with suppress(FileNotFoundError):
                mode = self._lstat(entry.path).st_mode
                kind = re.sub(r"[0-9a-f]{64}|-[0-9a-fTZ-]{6,}", "*", entry.name)
                self.kinds.add(kind)
                wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
                if stat.S_IMODE(mode) != wanted:
                    self.wider.append(f"{entry.path} {stat.S_IMODE(mode):o}")
                if stat.S_ISDIR(mode):
                    self.look(entry.path)


def live(archive: DirectoryArchive) -> None:
    """Everything that makes a file."""
    archive.create_now(SHARED, produce_details(), say("first"))
    archive.append_now(SHARED, [UserCanister((PICTURE,))], None)
    archive.access_folder(SHARED).revise({"name": "a name"})
    archive.fork_now(SHARED, "fork", produce_details())
    with lines_of(archive).open("ab") as lines:
        lines.write(b"torn")
    archive.append_now(SHARED, say("further"), None)
    path = lines_of(archive, "fork")
    path.write_bytes(b"damaged\n" + path.read_bytes())
    archive.access_folder("fork").repair()
    archive.survey_now()


def check_modes(folder: Path, mask: int) -> None:
    """Folders are 0700 and files 0600 from their first moment, whatever the umask is."""
    archive = DirectoryArchive(folder / "home" / "archive")
    folder.mkdir(exist_ok=True)
    watcher = Watcher(folder)
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            watcher.look(str(folder))

    # What SQLite makes comes past no function of `os`, so a thread watches all the time as well.
    thread = threading.Thread(target=watch)
    before = os.umask(mask)
    thread.start()
    try:
        with SystemCalls(observer=watcher):
            live(archive)
            # The journal of the index is there for moments only; the thread sees one of them.
            for number in range(1000):
                archive.append_now(SHARED, say("further"), None)
                archive.survey_now()
                if number >= 20 and "index.sqlite3-journal" in watcher.kinds:
                    break
    finally:
        os.umask(before)
        done.set()
        thread.join()
    assert watcher.wider == []
    assert watcher.kinds >= {
        "archive",
        "conversations",
        "content",
        "index.sqlite3",
        "index.sqlite3-journal",
        "messages.jsonl",
        "metadata.toml",
        "data",
        "messages.torn*",
        "messages.damaged*.jsonl",
    }


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_everything_is_private_from_its_first_moment(tmp_path: Path, mask: int) -> None:
    check_modes(tmp_path / "root", mask)


def test_that_check_sees_a_mode_that_is_fixed_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_new(path: Path, data: bytes, *, durable: bool) -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        files.write_all(descriptor, data)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)

    monkeypatch.setattr(contents, "write_new", write_new)
    with pytest.raises(AssertionError):
        check_modes(tmp_path / "root", 0o000)


def test_an_archive_that_others_can_change_is_refused(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path / "archive", FAST)
    archive.prepare()
    (tmp_path / "archive").chmod(0o777)
    archive = DirectoryArchive(tmp_path / "archive", FAST)
    for work in (
        lambda: archive.append_now("abcd", say("a"), None),
        lambda: archive.restore_now("abcd"),
        lambda: archive.create_now("abcd", produce_details(), say("a")),
        archive.survey_now,
        archive.collect_now,
    ):
        with pytest.raises(StorageError, match=f"chmod go-w {tmp_path / 'archive'}"):
            work()
    (tmp_path / "archive").chmod(0o755)
    archive.create_now("abcd", produce_details(), say("a"))


def test_an_archive_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, settings=FAST)
    hand_over(tmp_path, monkeypatch)
    with pytest.raises(StorageError, match=r"it belongs to .*, not to you"):
        DirectoryArchive(tmp_path, FAST).append_now(SHARED, say("a"), None)


def test_errors_of_requests_and_of_storage_are_distinguished() -> None:
    assert issubclass(ConversationNotFound, RequestError)
    assert issubclass(ContentMissing, StorageError)
    assert ContentStore.__doc__
