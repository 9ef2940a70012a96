"""The file of an index: shared, and replaced or left alone if it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vibe_llms.base.exceptions import StorageError
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents.database import FILE, DocumentDatabase
from vibe_llms.documents.index import DocumentIndex

INSERT = "insert into files values ('c', ?, 0, 0, '', '')"
COUNT = "select count(*) from files"
LONG = DocumentText("long", "Ada planted quinces. " + "Nothing else happened. " * 600)


def open_in(folder: Path | None, notify: Callable[[str], None] = print) -> DocumentDatabase:
    """The database of a folder that waits for nothing."""
    return DocumentDatabase(folder, lock_seconds=0, notify=notify)


def count(database: DocumentDatabase) -> int:
    """The number of files in a database."""
    return int(database.read(lambda opened: opened.execute(COUNT).fetchone()[0]))


def test_a_change_that_fails_leaves_nothing() -> None:
    database = open_in(None)

    def fail(opened: sqlite3.Connection) -> None:
        opened.execute(INSERT, ["a"])
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        database.write(fail)
    assert count(database) == 0


def test_an_invalid_change_in_memory_is_a_clear_error() -> None:
    with pytest.raises(StorageError, match="no such table"):
        open_in(None).write(lambda opened: opened.execute("delete from missing"))


def test_a_file_that_another_process_holds_is_left_alone(tmp_path: Path) -> None:
    notices: list[str] = []
    database = open_in(tmp_path, notices.append)
    database.write(lambda opened: opened.execute(INSERT, ["a"]))
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("begin immediate")
    # What was there is still there, and what is added too.
    database.write(lambda opened: opened.execute(INSERT, ["b"]))
    assert count(database) == 2
    assert len(notices) == 1
    assert "database is locked" in notices[0]
    other.execute("rollback")
    other.close()
    assert count(open_in(tmp_path)) == 1


def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    notices: list[str] = []
    database = open_in(tmp_path, notices.append)
    database.write(lambda opened: opened.execute(INSERT, ["a"]))
    database.read(lambda opened: opened.execute("pragma max_page_count = 1").fetchone())
    rows = [(f"{number:0100}",) for number in range(1_000)]
    database.write(lambda opened: opened.executemany(INSERT, rows))
    assert count(database) == 1_001
    assert len(notices) == 1
    assert "full" in notices[0]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_that_is_none_is_reported(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    if kind == "file":
        folder.write_bytes(b"")
    else:
        folder.mkdir()
        (folder / FILE).symlink_to(tmp_path / "other")
    notices: list[str] = []
    database = open_in(folder, notices.append)
    database.write(lambda opened: opened.execute(INSERT, ["a"]))
    assert count(database) == 1
    assert len(notices) == 1
    assert not (tmp_path / "other").exists()


def test_damage_in_the_midst_of_a_file_is_mended(tmp_path: Path) -> None:
    index = DocumentIndex(tmp_path)
    index.add("long", LONG)
    index.close()
    path = tmp_path / FILE
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    notices: list[str] = []
    again = DocumentIndex(tmp_path, notify=notices.append)
    again.add("long", LONG)
    assert again.access("long") == LONG
    assert again.search("quinces", ["long"])[0].start == 0
    again.close()
    assert DocumentIndex(tmp_path).access("long") == LONG
    assert notices == []


def test_a_file_of_another_version_is_rebuilt(tmp_path: Path) -> None:
    index = DocumentIndex(tmp_path)
    index.add("long", LONG)
    index.close()
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("pragma user_version = 999")
    other.close()
    again = DocumentIndex(tmp_path)
    assert again.access("long") is None
    again.add("long", LONG)
    assert again.access("long") == LONG


def test_a_file_that_another_process_replaced_is_opened_again(tmp_path: Path) -> None:
    first, second = open_in(tmp_path), open_in(tmp_path)
    first.write(lambda opened: opened.execute(INSERT, ["a"]))
    assert count(second) == 1
    for path in tmp_path.iterdir():
        path.unlink()
    second.write(lambda opened: opened.execute(INSERT, ["b"]))
    assert count(first) == 1
    first.write(lambda opened: opened.execute(INSERT, ["c"]))
    assert count(second) == 2


ADD = """
import sys
from pathlib import Path
from vibe_llms.documents.index import DocumentIndex
from vibe_llms.conversations.document_texts import DocumentText
index = DocumentIndex(Path(sys.argv[1]), lock_seconds=60, notify=sys.exit)
for number in range(20):
    text = f"number{number} " * 400
    index.add(f"shared{number}", DocumentText("shared", text))
    index.add(f"{sys.argv[2]}-{number}", DocumentText("own", f"process{sys.argv[2]} {text}"))
    assert index.search(f"number{number}", [f"shared{number}"], characters=1_000)
"""


def test_several_processes_add_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, tmp_path, str(number)], stderr=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    ends = [(process.communicate(timeout=240)[1], process.returncode) for process in processes]
    assert ends == [("", 0)] * 3
    index = DocumentIndex(tmp_path)
    hashes = [f"{number}-{place}" for number in range(3) for place in range(20)]
    assert all(index.has(one) for one in (*hashes, *(f"shared{place}" for place in range(20))))
    found = index.search("process1", hashes, characters=5_000)
    assert {one.hash.partition("-")[0] for one in found} == {"1"}
