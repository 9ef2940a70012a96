"""`memory forget`, where a turn that holds the words was still to be remembered."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import invoke
from vibe_llms.memory.journal import Journal, Ticket


def leave(home: Path, name: str, words: str) -> Journal:
    """Leave a turn of a conversation to be taken in."""
    invoke("chat", "-m", "scripted/demo", "--name", name, words)
    conversation = invoke("list", "--json").json[0]["id"]
    shown = invoke("show", name, "--json").json
    journal = Journal(home / "ingestion")
    identities = tuple(one["identity"] for one in shown["messages"])
    journal.enter(Ticket("me", conversation, identities))
    return journal


def test_a_turn_that_holds_what_is_forgotten_is_not_taken_in_later(home: Path) -> None:
    leave(home, "pets", "My cat is called  TOM.").close()
    leave(home, "tea", "I like tea.").close()
    told = invoke("memory", "forget", "--yes", "called Tom")
    assert "forgot 0 entries" in told.errors
    assert "gave up a turn that holds it and was still to be remembered" in told.errors
    (left,) = Journal(home / "ingestion").survey()
    assert not left.held
    invoke("rm", "-y", "tea")
    assert "still to be remembered" not in invoke("memory", "forget", "--yes", "tea").errors


def test_of_a_program_that_runs_it_is_said_that_it_may_remember_it(home: Path) -> None:
    journal = leave(home, "pets", "My cat is called Tom.")
    assert "a running program may still" in invoke("memory", "forget", "--yes", "Tom").errors
    journal.close()
