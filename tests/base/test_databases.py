"""SQLite files that several processes open at the same time."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.base.databases import open_database


class Busy(sqlite3.Connection):
    """Another process changes the mode of the journal: SQLite refuses, and does not wait."""

    refusals = 0

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if "journal_mode" in sql and Busy.refusals:
            Busy.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(sql, *rest)


@pytest.mark.parametrize(("refusals", "seconds", "opens"), [(3, 10, True), (1000, 0.05, False)])
def test_a_file_that_others_are_opening_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, seconds: float, opens: bool
) -> None:
    monkeypatch.setattr(Busy, "refusals", refusals)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Busy))
    open_it = partial(
        open_database,
        tmp_path / "a.sqlite",
        version=1,
        tables="create table a (b)",
        seconds=seconds,
        pragmas=("journal_mode = wal",),
    )
    if opens:
        open_it().close()
    else:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            open_it()
