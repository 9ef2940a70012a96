"""Tickets in PostgreSQL: each is worked on once, in order, by one server at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes.postgres import TestDatabase, access_cluster
from vibe_llms.memory.postgres_journal import PostgresJournal
from vibe_llms.memory.tickets import MOST_ATTEMPTS, Ticket
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings


@pytest.fixture
def open_journal(place: TestDatabase) -> Iterator[Callable[[str], PostgresJournal]]:
    database = BlockingDatabase(PostgresSettings(dsn=place.dsn))
    yield lambda user: PostgresJournal(database, user)
    database.close()


def ticket(turn: str, **members: object) -> Ticket:
    return Ticket("me", "talk", (turn,), **members)  # type: ignore[arg-type]


def names(journal: PostgresJournal, **options: object) -> list[str]:
    return [identity for identity, _ in journal.take_over("me", **options)]  # type: ignore[arg-type]


def test_one_server_works_and_takes_what_comes_to_others(
    open_journal: Callable[[str], PostgresJournal],
) -> None:
    one, other, bob = open_journal("ada"), open_journal("ada"), open_journal("bob")
    first = one.enter(ticket("b"))
    assert one.begin()
    second = other.enter(ticket("a"))
    assert not other.begin()
    assert names(other) == []
    assert [left.held for left in other.survey()] == [True, True]
    # Another user waits for no one.
    assert bob.begin()
    assert bob.survey() == []
    assert names(one) == [first, second]
    one.remove(first)
    assert not one.end()
    assert one.end(known=[second])
    assert other.begin()
    assert names(other) == [second]
    other.remove(second)
    assert other.end()
    assert one.survey() == []


def test_a_turn_that_is_entered_twice_is_one_ticket(
    open_journal: Callable[[str], PostgresJournal],
) -> None:
    one, other = open_journal("ada"), open_journal("ada")
    entered = ticket("a", failure="it broke", attempts=1)
    identity = one.enter(entered)
    assert other.enter(ticket("a")) == identity
    assert [left.ticket for left in other.survey()] == [entered]
    again = ticket("a", failure="it broke again", attempts=2)
    assert other.enter(again, identity) == identity
    assert [left.ticket for left in one.survey()] == [again]
    one.remove(identity)
    # What was cancelled in between does not come back.
    other.enter(again, identity)
    assert one.survey() == []


def test_what_a_server_leaves_that_died_is_taken_over_after_its_lease(
    open_journal: Callable[[str], PostgresJournal], place: TestDatabase
) -> None:
    dead, living = open_journal("ada"), open_journal("ada")
    dead.enter(ticket("a"))
    assert dead.begin()
    assert names(living) == []
    access_cluster().execute("update vibe.memory_workers set until = now()", place.name)
    assert names(living) == ["a"]
    # It was only slow, and does not take back what another has.
    assert not dead.begin()
    assert dead.end()
    dead.close()
    assert living.begin()
    living.close()
    living.close()
    assert dead.begin()


@pytest.mark.parametrize("failure", ["", "it broke"])
def test_each_turn_that_is_worked_on_renews_the_lease(
    open_journal: Callable[[str], PostgresJournal], place: TestDatabase, failure: str
) -> None:
    busy, other = open_journal("ada"), open_journal("ada")
    for turn in "ab":
        busy.enter(ticket(turn))
    assert busy.begin()
    access_cluster().execute("update vibe.memory_workers set until = now()", place.name)
    if failure:
        busy.enter(ticket("a", failure=failure, attempts=1), "a")
    else:
        busy.remove("a")
    assert not other.begin()


def test_failed_and_old_tickets_are_left_out(
    open_journal: Callable[[str], PostgresJournal],
) -> None:
    journal = open_journal("ada")
    journal.enter(ticket("failed", attempts=MOST_ATTEMPTS))
    journal.enter(ticket("old", entered=datetime.now(UTC) - timedelta(days=31)))
    journal.enter(ticket("new"))
    assert names(journal) == ["new"]
    assert names(journal, failed=True, known=["new"]) == ["failed"]
    assert [left.identity for left in journal.survey()] == ["failed", "new"]
    assert journal.end(known=["new"])


def test_of_many_servers_each_ticket_is_worked_on_once(
    open_journal: Callable[[str], PostgresJournal],
) -> None:
    done: list[str] = []

    def serve(server: int) -> None:
        journal = open_journal("ada")
        for number in range(8):
            journal.enter(ticket(f"{server}-{number}"))
            if journal.begin():
                while not journal.end():
                    for identity, _ in journal.take_over("me"):
                        done.append(identity)
                        journal.remove(identity)
        journal.close()

    with ThreadPoolExecutor(3) as servers:
        for served in [servers.submit(serve, server) for server in range(3)]:
            served.result()
    assert sorted(done) == sorted(f"{one}-{number}" for one in range(3) for number in range(8))
    assert open_journal("ada").survey() == []
