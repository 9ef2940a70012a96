"""`memory forget`: what it shows first, what it removes, and the turns still to be remembered."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.command import invoke, remember
from tests.cli.terminal import Terminal
from vibe_llms.cli import questions
from vibe_llms.cli.memory import forgetting
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.journal import Journal
from vibe_llms.memory.tickets import Ticket

pytestmark = pytest.mark.usefixtures("warm")


def ask(*arguments: str, answer: str) -> tuple[int, str]:
    """The status, and what is shown, where an answer is given."""
    with Terminal("memory", "forget", *arguments) as terminal:
        terminal.expect(r"Remove it permanently\? \[y/N\]: ")
        terminal.enter(answer)
        return terminal.wait(), terminal.output


def test_how_much_would_go_is_shown_before_it_is_asked_for(home: Path) -> None:
    for number in range(6):
        remember(f"Ada keeps bees in hive {number}.")
    invoke("memory", "rm", remember("Ada keeps bees no more."))
    remember("Ben fears bees.", "--scope", "user-ben")
    (home / "memory" / "entries" / "user-me" / "facts" / "note.txt").write_text("bees")
    status, output = ask("bees", answer="n")
    assert status == 1
    lines = output.splitlines()
    words = "8 facts and 1 unreadable file (1 of them deleted)"
    assert lines[0] == f"'bees' is in {words}"
    assert lines[1] == "  facts/note.txt"
    assert lines[2].endswith("Ada keeps bees in hive 0.")
    assert lines[6] == "  and 4 more; to see all: --dry-run"
    assert lines[-1] == "nothing was forgotten"
    seen = invoke("memory", "forget", "--dry-run", "bees")
    assert len(seen.output.splitlines()) == 9
    assert seen.output.splitlines()[-1].startswith("user-ben: ")
    assert seen.errors == f"would forget {words}; nothing was changed\n"
    refused = invoke("memory", "forget", "bees")
    assert (refused.status, f"use --yes to forget {words}, or" in refused.error) == (2, True)
    assert ask("bees", answer="y")[0] == 0
    assert invoke("memory", "forget", "--dry-run", "bees").errors.startswith("would forget nothing")


def test_what_is_shown_is_cut_to_the_width_of_the_terminal(home: Path) -> None:
    remember("Ada keeps bees and tells everybody of them. " * 50)
    with Terminal("memory", "forget", "bees", columns=60) as terminal:
        terminal.expect("permanently")
        terminal.enter("n")
        terminal.wait()
        assert all(len(line) <= 62 for line in terminal.output.splitlines())


def test_where_nothing_would_be_removed_nothing_is_asked(home: Path) -> None:
    with Terminal("memory", "forget", "bees") as terminal:
        assert terminal.wait() == 0
        assert terminal.output.split("\r\n")[:2] == ["'bees' is in nothing", "forgot 0 entries"]


def test_turns_that_are_still_to_be_remembered_count(home: Path) -> None:
    leave(home, "pets", "My cat is called Tom.").close()
    reported = invoke("memory", "forget", "--dry-run", "Tom")
    assert reported.errors == ("would forget 1 turn still to be remembered; nothing was changed\n")
    assert invoke("memory", "forget", "-n", "--scope", "user-ben", "Tom").errors.startswith(
        "would forget nothing"
    )
    assert "canceled" not in invoke("memory", "forget", "-y", "--scope", "user-ben", "Tom").errors
    assert "canceled" in invoke("memory", "forget", "-y", "--scope", "user-me", "Tom").errors


def test_programs_get_what_was_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__VERSIONING", "true")
    identity = remember("Ada keeps bees.")
    seen = invoke("memory", "forget", "--json", "--dry-run", "bees")
    assert seen.errors == ""
    gone = invoke("memory", "forget", "--json", "--yes", "bees")
    assert gone.errors == ""
    for reported, dry in ((seen.json, True), (gone.json, False)):
        assert [one["id"] for one in reported["forgotten"]] == [identity]
        assert len(reported["held"]) == 1
        assert (reported["pending"], reported["dry_run"]) == (0, dry)
    assert len(invoke("memory", "forget", "--json", "-y", "--history", "bees").json["held"]) == 1
    assert invoke("memory", "forget", "--json", "-y", "--history", "bees").json["held"] == []
    assert invoke("memory", "forget", "--json", "goats").json["error"]["status"] == 2


def test_what_git_would_lose_is_shown_before_it_is_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__VERSIONING", "true")
    remember("Ada keeps bees.")
    invoke("memory", "forget", "--yes", "bees")
    status, output = ask("--history", "bees", answer="y")
    assert status == 0
    assert "git contains it in 1 commit" in output
    assert "removed from git, which contained it in" in output
    assert "git contains it in 1" not in invoke("memory", "forget", "-n", "bees").errors


def test_ctrl_c_ends_a_question_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember("Ada keeps bees.")
    handlers: list[object] = []

    def press(*_: object, **__: object) -> None:
        # What input() waits for is not known to the event loop, whose handler would only cancel.
        handlers.append(signal.getsignal(signal.SIGINT))
        raise click.Abort

    for module in (forgetting, questions):
        monkeypatch.setattr(module, "is_terminal", lambda _: True)
    monkeypatch.setattr(click, "confirm", press)
    assert invoke("memory", "forget", "bees").status == 130
    assert handlers == [signal.default_int_handler]
    assert "bees" in invoke("memory", "list").output


def test_more_than_a_few_are_counted_and_not_listed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__VERSIONING", "true")
    for number in range(7):
        remember(f"Ada keeps bees in hive {number}.")
    for answer, words in (
        (b"n\n", "nothing was forgotten"),
        (b"y\n", "removed from git, which contained it in"),
    ):
        reported = invoke(
            *("memory", "forget", "--history", "bees"), data=answer, terminals="stdin stderr"
        ).errors
        assert "'bees' is in 7 facts\n" in reported
        assert reported.count("Ada keeps bees") == 5
        assert "  and 2 more; to see all: --dry-run\n" in reported
        assert "git contains it in 7 commits" in reported
        assert words in " ".join(reported.split())
    reported = invoke("memory", "forget", "bees", terminals="stdin stderr").errors
    assert reported.endswith("'bees' is in nothing\nforgot 0 entries\n")


def test_the_words_to_forget_may_come_from_standard_input(home: Path) -> None:
    remember("Ada's code is 4711.")
    remember("Ada's code was 0815.")
    (home / "memory" / "entries" / "user-ben").mkdir()
    (home / "memory" / "entries" / "user-ben" / "4711.txt").touch()
    seen = invoke("memory", "forget", "-n", "-", data=b"4711\n")
    assert seen.errors.startswith("would forget 1 fact and 1 unreadable file; ")
    assert "user-ben: 4711.txt\n" in seen.output
    assert invoke("memory", "forget", "-y", "-", data=b"4711\n").errors == "forgot 2 entries\n"
    assert invoke("memory", "add", "-", data=b"\xff").status == 2
    assert invoke("memory", "add", "-", data=b"a" * 5_000_000).status == 2


def test_a_whole_scope_is_shown_asked_for_and_forgotten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__VERSIONING", "true")
    remember("Ada keeps bees.")
    for text in ("Ben fears bees.", "Ben has a cat."):
        remember(text, "--scope", "user-ben")
    invoke("memory", "rm", "--scope", "user-ben", remember("Ben left.", "--scope", "user-ben"))
    whole = ("memory", "forget", "--scope", "user-ben", "--all")
    seen = invoke(*whole, "--dry-run")
    assert len(seen.output.splitlines()) == 3
    assert "would forget 3 facts (1 of them deleted); nothing was changed" in seen.errors
    refused = invoke(*whole)
    assert (refused.status, "3 facts (1 of them deleted)" in refused.error) == (2, True)
    for answer, words in ((b"n\n", "nothing was forgotten"), (b"y\n", "forgot 3 entries")):
        reported = invoke(*whole, data=answer, terminals="stdin stderr").errors
        assert "user-ben has 3 facts (1 of them deleted)\n" in reported
        assert words in " ".join(reported.split())
    assert "    vibe-llms memory forget --yes --history --scope user-ben --all\n" in reported
    reported = invoke(*whole, "--yes", "--history").errors
    assert "forgot 0 entries\n" in reported
    assert "removed from git, which contained it in" in reported
    memory = home / "memory"
    assert not [path for path in memory.rglob("*") if "user-ben" in path.name]
    assert invoke("memory", "list").output.endswith("Ada keeps bees.\n")
    assert invoke(*whole, "-y", "--json").json == {
        "forgotten": [],
        "pending": 0,
        "held": [],
        "left": [],
        "dry_run": False,
    }


def test_turns_still_to_be_remembered_go_with_their_scope(home: Path) -> None:
    leave(home, "pets", "My cat is called Tom.").close()
    whole = ("memory", "forget", "--all", "--yes", "--scope")
    assert "canceled" not in invoke(*whole, "user-ben").errors
    assert "canceled" in invoke(*whole, "user-me").errors
    assert "canceled" not in invoke(*whole, "user-me").errors


@pytest.mark.parametrize(
    "arguments",
    [("--all",), ("--all", "--scope", "user-me", "bees"), (), ("--scope", "user-me")],
)
def test_all_is_of_a_scope_and_words_are_words(home: Path, arguments: tuple[str, ...]) -> None:
    remember("Ada keeps bees.")
    reported = invoke("memory", "forget", "--yes", *arguments)
    assert reported.status == 2
    assert "--scope" in reported.errors
    assert "bees" in invoke("memory", "list").output


def learn(home: Path, user: str, *facts: str) -> list[str]:
    """Keep a turn that holds a code, with facts that were taken from it; their short identities."""
    source: dict[str, Any] = {"conversation": f"c-{user}", "turn": "t1"}

    async def fill() -> list[str]:
        memory = Memory(home / "memory")
        talk = Scope.of_conversation(f"c-{user}")
        await memory.add("My code is 4711!", role=Role.USER, scope=talk, **source)
        kept = [await memory.add(fact, scope=Scope.of_user(user), **source) for fact in facts]
        await memory.close()
        return [one.identity[-12:] for one in kept]

    return asyncio.run(fill())


def test_facts_that_stay_of_turns_that_go_are_named_and_left(home: Path) -> None:
    (own,) = learn(home, "me", "Ada has a code.")
    line = "1 fact learned from it is kept, in other words; to see it: "
    command = f"vibe-llms memory show {own}"
    seen = invoke("memory", "forget", "--dry-run", "4711")
    assert seen.errors.splitlines()[1:] == [line + command]
    reported = invoke("memory", "forget", "--yes", "4711")
    assert reported.errors == f"forgot 1 entry\n{line}{command}\n"
    assert "Ada has a code." in invoke(*command.split()[1:]).output
    # What is asked again has nothing to say of it: the turn is no more.
    assert invoke("memory", "forget", "--yes", "4711").errors == "forgot 0 entries\n"


def test_several_facts_of_others_are_named_with_their_scope_also_for_programs(
    home: Path,
) -> None:
    names = learn(home, "ben", "Ben has a code.", "Ben told it.")
    seen = invoke("memory", "forget", "--json", "--dry-run", "4711").json
    assert [one["content"] for one in seen["left"]] == ["Ben has a code.", "Ben told it."]
    (_, line) = invoke("memory", "forget", "--yes", "4711").errors.splitlines()
    assert line.startswith("2 facts learned from it are kept, in other words: ")
    assert ", ".join(names) in line
    command = f"vibe-llms memory show --scope user-ben {names[0]}"
    assert line.endswith(f"to see one: {command}")
    assert "Ben has a code." in invoke(*command.split()[1:]).output
    learn(home, "eve", "Eve has a code.")
    gone = invoke("memory", "forget", "--json", "--yes", "4711").json
    assert [one["content"] for one in gone["left"]] == ["Eve has a code."]


def leave(home: Path, name: str, words: str) -> Journal:
    """Leave a turn of a conversation to be taken in."""
    invoke("chat", "-m", "scripted/demo", "--name", name, words)
    conversation = invoke("list", "--json").json[0]["id"]
    shown = invoke("show", name, "--json").json
    journal = Journal(home / "ingestion")
    identities = tuple(one["identity"] for one in shown["messages"])
    journal.enter(Ticket("me", conversation, identities))
    return journal


def test_a_pending_turn_with_forgotten_words_is_not_remembered_later(home: Path) -> None:
    leave(home, "pets", "My cat is called  TOM.").close()
    leave(home, "tea", "I like tea.").close()
    reported = invoke("memory", "forget", "--yes", "called Tom")
    assert "forgot 0 entries" in reported.errors
    assert "canceled 1 turn that was still to be remembered" in reported.errors
    (left,) = Journal(home / "ingestion").survey()
    assert not left.held
    invoke("rm", "-y", "tea")
    assert "still to be remembered" not in invoke("memory", "forget", "--yes", "tea").errors


def test_a_note_says_that_a_running_program_may_remember_it(home: Path) -> None:
    journal = leave(home, "pets", "My cat is called Tom.")
    assert "a running program may still" in invoke("memory", "forget", "--yes", "Tom").errors
    journal.close()
