"""The journal: what a process leaves undone, another continues, once, and only that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.faults.calls import SystemCalls
from vibe_llms.base.exceptions import StorageError
from vibe_llms.memory import journal as journals
from vibe_llms.memory.journal import Journal
from vibe_llms.memory.tickets import MOST_ATTEMPTS, Ticket, Worker


def ticket(name: str = "one", user: str = "me") -> Ticket:
    return Ticket(user, name, ("a", "b"))


def names(journal: Journal, user: str = "me") -> list[str]:
    return [one.conversation for _, one in journal.take_over(user)]


def test_nothing_is_on_the_disk_before_something_is_entered(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").close()
    assert not list(tmp_path.iterdir())


def test_what_was_settled_is_not_left_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    path = journal.enter(ticket())
    journal.remove(path)
    journal.remove(path)
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


def test_a_ticket_of_a_running_process_is_not_taken_over(tmp_path: Path) -> None:
    first, second = Journal(tmp_path), Journal(tmp_path)
    identity = first.enter(ticket())
    assert names(second) == []
    assert [one.identity for one in second.survey()] == [identity]


def test_a_lock_that_excludes_no_one_is_detected(
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


def test_what_is_entered_again_stays_in_its_place(tmp_path: Path) -> None:
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
    (left / "y.json").write_bytes(b'{"user": "\xff"}')
    (tmp_path / "a file").write_text("of others")
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
from vibe_llms.memory.journal import Journal
from vibe_llms.memory.tickets import MOST_ATTEMPTS, Ticket, Worker
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
    (tmp_path / "a file").write_text("of others")
    found = Journal(tmp_path).survey()
    assert sorted((one.ticket.conversation, one.held) for one in found) == [
        ("one", False),
        ("two", True),
    ]
    assert all([*tmp_path.glob(f"*/{one.identity}.json")] for one in found)
    assert names(Journal(tmp_path)) == ["one"]


def test_one_worker_at_a_time_says_which_it_is(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "journal"), Journal(tmp_path / "journal")
    assert first.find_worker() is None
    with first.working() as mine:
        assert mine
        worker = second.find_worker()
        assert worker is not None
        assert worker.process == os.getpid()
        with second.working() as also:
            assert not also
        # One that was refused ends nothing.
        assert second.find_worker() == worker
    assert second.find_worker() is None
    with second.working() as mine:
        assert mine


def test_only_tickets_must_survive_a_power_failure(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", durable=True)
    with SystemCalls() as calls, journal.working() as mine:
        assert mine
    assert not {"fsync", "fdatasync"} & set(calls.names)
    with SystemCalls() as calls:
        journal.enter(ticket())
    assert "fsync" in calls.names
    journal.close()


def test_a_worker_that_has_died_is_none(tmp_path: Path) -> None:
    (tmp_path / "worker.json").write_bytes(msgspec.json.encode(Worker(1, datetime.now(UTC))))
    journal = Journal(tmp_path)
    assert journal.find_worker() is None
    assert journal.survey() == []


def test_what_has_failed_is_taken_over_only_by_who_wants_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.enter(Ticket("me", "failed", ("a",), MOST_ATTEMPTS, failure="no network"))
    known = journal.enter(ticket("known"))
    journal.enter(ticket("new"))
    journal.close()
    journal = Journal(tmp_path)
    taken = journal.take_over("me", known=[known])
    assert [one.conversation for _, one in taken] == ["new"]
    taken = journal.take_over("me", failed=True)
    assert [one.conversation for _, one in taken] == ["failed", "known"]


def test_a_ticket_is_tried_three_times_and_kept_for_thirty_days(tmp_path: Path) -> None:
    for attempts, days, failed, taken in (
        (2, 29.9, False, ["old"]),
        (3, 29.9, False, []),
        (3, 29.9, True, ["old"]),
        (0, 30.1, True, []),
    ):
        folder = tmp_path / f"{attempts} {days} {failed}"
        journal = Journal(folder)
        entered = datetime.now(UTC) - timedelta(days=days)
        journal.enter(Ticket("me", "old", ("a",), attempts, entered=entered))
        journal.close()
        journal = Journal(folder)
        found = journal.take_over("me", failed=failed)
        assert [one.conversation for _, one in found] == taken
        assert len(journal.survey()) == (days < 30)
        journal.close()
        journal.close()
        assert len(list(folder.iterdir())) == (days < 30)


def test_a_durable_ticket_is_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda number: synchronised.append(name_of(number)))
    identity = Journal(tmp_path / "journal", durable=True).enter(ticket())
    (path,) = tmp_path.glob(f"journal/*/{identity}.json")
    assert [*dict.fromkeys(synchronised)][:2] == [str(tmp_path / "journal"), str(tmp_path)]
    assert str(path.parent) == synchronised[-1]
    assert any(path.name in one for one in synchronised)
    synchronised.clear()
    Journal(tmp_path / "fast").enter(ticket())
    assert not synchronised


def name_of(descriptor: int) -> str:
    """The path of an open file."""
    return os.readlink(f"/proc/self/fd/{descriptor}")
