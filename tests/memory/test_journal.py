"""The journal: what a process leaves undone, another takes up, once, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vibe_llms.exceptions import StorageError
from vibe_llms.memory import journal as journals
from vibe_llms.memory.journal import Journal, Ticket


def ticket(name: str = "one", user: str = "me") -> Ticket:
    return Ticket(user, name, ("a", "b"))


def names(journal: Journal, user: str = "me") -> list[str]:
    return [one.conversation for _, one in journal.take_over(user)]


def test_nothing_is_on_the_disk_before_something_is_entered(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").close()
    assert not list(tmp_path.iterdir())


def test_what_was_settled_is_left_to_nobody(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    path = journal.enter(ticket())
    journal.settle(path)
    journal.settle(path)
    journal.close()
    journal.close()
    assert not list((tmp_path / "journal").iterdir())


def test_what_was_not_settled_is_taken_up_once(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.enter(ticket("one"))
    first.enter(ticket("two"))
    first.close()
    second, third = Journal(tmp_path), Journal(tmp_path)
    assert names(second) == ["one", "two"]
    assert names(third) == []
    second.close()
    assert names(third) == ["one", "two"]
    for path, _ in Journal(tmp_path).take_over("me"):
        raise AssertionError(f"{path} belongs to one that lives")


def test_what_belongs_to_one_that_lives_stays_with_it(tmp_path: Path) -> None:
    first, second = Journal(tmp_path), Journal(tmp_path)
    path = first.enter(ticket())
    assert names(second) == []
    assert path.exists()


def test_a_lock_that_holds_nobody_off_would_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "acquire", lambda *_: None)
    first, second = Journal(tmp_path), Journal(tmp_path)
    first.enter(ticket())
    assert names(second) == ["one"]


def test_another_users_turns_wait_for_that_user(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.enter(ticket("mine"))
    first.enter(ticket("theirs", "them"))
    first.close()
    second, third = Journal(tmp_path), Journal(tmp_path)
    assert names(second) == ["mine"]
    assert names(third, "them") == ["theirs"]


def test_what_is_entered_again_stands_in_its_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    path = journal.enter(ticket())
    assert journal.enter(Ticket("me", "one", ("a",), 1), path) == path
    journal.close()
    ((_, found),) = Journal(tmp_path).take_over("me")
    assert (found.attempts, found.canisters) == (1, ("a",))


def test_what_is_no_ticket_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    (left / "x.json").write_text("{")
    (tmp_path / "a file").write_text("of somebody else")
    journal = Journal(tmp_path)
    assert names(journal) == []
    assert not left.exists()
    assert (tmp_path / "a file").exists()


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file")
    with pytest.raises(StorageError):
        Journal(tmp_path / "journal").enter(ticket())


_DIES = """
import os, signal, sys
from pathlib import Path
from vibe_llms.memory.journal import Journal, Ticket
journal = Journal(Path(sys.argv[1]))
for number in range(3):
    journal.enter(Ticket("me", str(number), ()))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_process_leaves_that_was_killed_is_taken_up(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _DIES, str(tmp_path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert names(Journal(tmp_path)) == ["0", "1", "2"]


def test_all_tickets_are_surveyed_and_stay_whose_they_are(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").survey() == []
    gone, living = Journal(tmp_path), Journal(tmp_path)
    gone.enter(ticket("one"))
    gone.close()
    living.enter(ticket("two", "ben"))
    (tmp_path / "a file").write_text("of somebody else")
    found = Journal(tmp_path).survey()
    assert sorted((one.ticket.conversation, one.held) for one in found) == [
        ("one", False),
        ("two", True),
    ]
    assert all(one.path.exists() for one in found)
    assert names(Journal(tmp_path)) == ["one"]
