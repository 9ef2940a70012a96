"""What is removed leaves no word in any byte of the archive, however the removal went."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.archives import FAST, produce_details, say
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ArchiveLocked
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.indexing import Indexer
from vibe_llms.storage.search import Index

RARE = "xyzzyq"
LONG = f"{RARE} " * 1_000


def produce_archive(folder: Path, count: int = 30) -> DirectoryArchive:
    """An archive with an index, in which one conversation of several says something rare."""
    archive = DirectoryArchive(folder, FAST)
    archive.prepare()
    for number in range(count):
        archive.create_now(f"other{number}", produce_details(), say(f"lantern {number}", "a river"))
    archive.create_now("rare", produce_details(RARE), say(f"the {RARE}, and {RARE}ton"))
    archive.append_now("rare", say(f"once more {RARE}"), None)
    archive.survey_now()
    return archive


def find_bytes(folder: Path, words: str = RARE) -> list[str]:
    """The files that contain words, or that have them in their names."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if words in path.name or (path.is_file() and words.encode() in path.read_bytes().lower())
    )


def test_what_was_removed_leaves_no_word(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path)
    assert INDEX in find_bytes(tmp_path)
    archive.remove_now("rare")
    assert find_bytes(tmp_path) == []
    assert len(archive.search_now("lantern", 100)) == 30
    assert find_bytes(tmp_path) == []


@pytest.mark.parametrize("part", ["delete", "clean"])
def test_a_removal_that_leaves_words_in_the_index_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    archive = produce_archive(tmp_path)
    if part == "clean":
        monkeypatch.setattr(Index, "_clean", lambda self, patient: None)
    else:
        monkeypatch.setattr(Indexer, "forget", lambda self, identity: None)
    archive.remove_now("rare")
    assert find_bytes(tmp_path) == [INDEX]


def test_many_removals_leave_no_copy_where_rows_have_moved(tmp_path: Path) -> None:
    chance = random.Random(7)
    archive = DirectoryArchive(tmp_path, FAST)
    archive.prepare()
    names = [f"conv{number:03}" for number in range(120)]
    for name in names:
        texts = [f"{chance.randbytes(200).hex(' ')} zq{name}" for _ in range(8)]
        archive.create_now(name, produce_details(f"zq{name}"), say(*texts))
        if chance.random() < 0.2:
            archive.survey_now()
    chance.shuffle(names)
    while names:
        gone = [names.pop() for _ in range(15)]
        archive.remove_now(*gone)
        assert [name for name in gone if find_bytes(tmp_path, name)] == []
        assert {one.identity for one in archive.survey_now()} == {*names}
    assert archive.search_now("zqconv001") == []


def test_what_was_removed_by_hand_or_rewritten_goes_with_the_next_list(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path)
    lines = archive.conversations / "rare" / "messages.jsonl"
    lines.write_bytes(lines.read_bytes().replace(RARE.encode(), b"plainly"))
    archive.survey_now()
    archive.access_folder("rare").revise({"name": ""})
    archive.survey_now()
    assert find_bytes(tmp_path) == []
    archive.create_now("again", produce_details(RARE), say(RARE))
    archive.survey_now()
    for path in (archive.conversations / "again").iterdir():
        path.unlink()
    (archive.conversations / "again").rmdir()
    assert find_bytes(tmp_path) == [INDEX]
    archive.survey_now()
    assert find_bytes(tmp_path) == []


def test_a_missing_index_is_not_made_to_be_deleted(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    archive.create_now("rare", produce_details(), say(RARE))
    archive.remove_now("rare")
    assert not (tmp_path / INDEX).exists()


def test_another_process_that_has_the_index_open_keeps_no_word(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path)
    code = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1]); "
        "count = lambda: database.execute('select count(*) from messages').fetchone()[0]; "
        "print(count(), flush=True); sys.stdin.readline(); print(count())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / INDEX)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "62\n"
        archive.remove_now("rare")
        assert find_bytes(tmp_path) == []
        assert other.communicate("\n", timeout=60)[0] == "60\n"
    assert other.returncode == 0


def test_where_another_process_is_busy_that_is_reported_and_the_next_list_cleans(
    tmp_path: Path,
) -> None:
    produce_archive(tmp_path)
    archive = DirectoryArchive(tmp_path, StorageSettings(durability="fast", lock_seconds=0.1))
    with closing(sqlite3.connect(tmp_path / INDEX, isolation_level=None)) as other:
        other.execute("begin")
        other.execute("select * from state").fetchall()
        with pytest.raises(ArchiveLocked, match="stay in it until the next `vibe-llms list`"):
            archive.remove_now("rare")
        assert not (archive.conversations / "rare").exists()
    assert INDEX in find_bytes(tmp_path)
    assert len(archive.survey_now()) == 30
    assert find_bytes(tmp_path) == []


def test_a_list_does_not_wait_for_the_cleaning(tmp_path: Path) -> None:
    archive = produce_archive(tmp_path)
    with closing(archive._index()._open(str(tmp_path / INDEX))) as database:
        database.execute("insert into state values ('unclean', x'00')")
    archive = DirectoryArchive(tmp_path, StorageSettings(durability="fast", lock_seconds=0.1))
    with closing(sqlite3.connect(tmp_path / INDEX, isolation_level=None)) as other:
        other.execute("begin")
        other.execute("select * from state").fetchall()
        assert len(archive.survey_now()) == 31
    archive.survey_now()
    with closing(sqlite3.connect(tmp_path / INDEX)) as other:
        assert other.execute("select name from state").fetchall() == [("seen",)]


_CRASH = """
import os, sys
from pathlib import Path
from vibe_llms.storage import archive
from vibe_llms.storage.search import Index

folder, place, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
clean = Index._clean

def leave(*_, **__):
    os._exit(9)

def clean_in_part(self, *, patient):
    left = iter(range(steps))
    self._access().execute("pragma cache_size = 2")
    self._access().set_progress_handler(lambda: next(left, None) is None and leave(), 20)
    clean(self, patient=patient)

if place == "renamed":
    archive.remove_folder = leave
elif place == "removed":
    Index.clean = leave
else:
    Index._clean = clean_in_part
archive.DirectoryArchive(folder).remove_now("rare")
"""


@pytest.mark.parametrize(
    ("place", "steps"),
    [("renamed", 0), ("removed", 0), *(("cleaning", steps) for steps in (0, 1, 5, 20, 80))],
)
def test_after_a_crash_the_next_list_cleans(tmp_path: Path, place: str, steps: int) -> None:
    produce_archive(tmp_path)
    arguments = [sys.executable, "-c", _CRASH, str(tmp_path), place, str(steps)]
    assert subprocess.run(arguments, check=False, timeout=60).returncode == 9
    # What is cleaned in part may have no words any more; then a mark shows it.
    assert find_bytes(tmp_path) != [] or b"unclean" in (tmp_path / INDEX).read_bytes()
    archive = DirectoryArchive(tmp_path, FAST)
    assert len(archive.survey_now()) == 30
    assert find_bytes(tmp_path) == []
    assert [*archive.survey_remains()] == []


def test_contents_of_what_was_removed_go_at_once_unless_they_are_needed(
    tmp_path: Path,
) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    picture = f"{RARE} picture".encode()
    said = UserCanister((TextualContent(LONG), ImageContent(picture, "image/png")))
    archive.create_now("rare", produce_details(), [said])
    archive.fork_now("rare", "fork", produce_details())
    archive.survey_now()
    archive.remove_now("rare")
    assert archive.collect_now() == []
    (kept,) = archive.restore_now("fork").canisters
    assert archive.contents.load(kept.contents[1].data) == picture  # type: ignore[union-attr, arg-type]
    archive.remove_now("fork")
    assert len(archive.collect_now()) == 2
    assert find_bytes(tmp_path) == []


async def test_contents_that_are_put_again_are_kept_for_an_hour(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    archive.create_now("rare", produce_details(), [UserCanister((TextualContent(LONG),))])
    lines = archive.conversations / "rare" / "messages.jsonl"
    os.utime(lines, (time.time() - 60, time.time() - 60))
    await archive.put(LONG.encode())
    await archive.remove("rare")
    assert await archive.collect() == []
