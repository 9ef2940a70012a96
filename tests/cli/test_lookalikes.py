"""Prompts that look like commands: asked about at a terminal, refused elsewhere, or forced."""

from __future__ import annotations

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import Terminal
from vibe_llms.cli.commands import COMMANDS
from vibe_llms.cli.lookalikes import find_command

#: Words that people begin a prompt with that they do not put in quotes.
_BEGINNINGS = """
a about add adapt all an analyse analyze and answer are as ask at be best brief briefly build
but by calculate can categorize chart check clean clear code combine comment compare complete
compute convert correct could count create criticize debug define describe design detect did
difference do document does draft draw each edit elaborate english estimate evaluate every
expand expert explain explore extract find fill first fix for format french from generate german
get give given go good group guess had has have hello her hey hi his how i identify if improve
in infer instead is it join just keep last let like long look make many may me merge mind model
more my name need next no not now of on one only or order organize our outline paraphrase parse
pick plan plant please point polish predict prepare pretend produce proofread propose prove
python put question quick rank rate read reduce refactor reformat rephrase reply respond rewrite
say see send shall she short shorten should simplify so solve some sort spell split sql step
story suggest sum summarise summarize sure table take tell test thanks that the then there these
they think this to today translate true turn two type use verify very was we were what when
where which who whose why will with word work would write yes you your
"""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lst", "list"),
        ("list", "list"),
        ("lsit", "list"),
        ("memroy add x", "memory"),
        ("model", "models"),
        ("modrls default", "models"),
        ("key set anthropic", "keys"),
        ("serach tea", "search"),
        ("serve", ""),
        ("serve 127.0.0.1:8000", ""),
        ("ls", "list"),
        ("delete 3vdk", "rm"),
        ("version", "--version"),
        # Prompts.
        ("hello", None),
        ("remove the duplicate lines", None),
        ("Export regulations in Norway", None),
        ("list?", None),
        ("", None),
    ],
)
def test_a_first_word_may_look_like_a_command(typed: str, meant: str | None) -> None:
    assert find_command(typed.split(), COMMANDS) == meant


def test_a_prompt_in_quotes_never_looks_like_one() -> None:
    for prompt in ("list the planets", "lst of planets", "memroy", "show me"):
        looked_at = find_command([prompt], COMMANDS)
        assert (looked_at is None) == (" " in prompt), prompt


def test_the_words_that_prompts_begin_with_do_not_look_like_commands() -> None:
    questioned = {word for word in _BEGINNINGS.split() if find_command([word, "a", "b"], COMMANDS)}
    # For these the question is worth it: they are commands but for one letter.
    assert questioned <= {"model"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lst"], "'lst' is not a command; did you mean: vibe-llms list?"),
        (["memroy", "add", "it's"], """vibe-llms -- memroy add 'it'"'"'s'."""),
        (["serve"], "'serve' is not a command."),
        (["-q", "list"], "'list' is a command; its options come after it: vibe-llms list"),
    ],
)
@pytest.mark.parametrize("terminals", ["", "stdin"])
def test_where_nobody_can_be_asked_nothing_is_sent(
    arguments: list[str], words: str, terminals: str
) -> None:
    outcome = invoke(*arguments, terminals=terminals)
    assert outcome.status == 2
    assert words in outcome.error
    assert "To send it as a prompt: vibe-llms -- " in outcome.error
    assert outcome.output == ""
    assert invoke("list", "--json").json == []


@pytest.mark.parametrize(
    "arguments", [["--", "lst"], ["-q", "--", "list"], ["chat", "lst"], ["lst please do"]]
)
def test_a_prompt_can_be_forced(arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 0
    assert outcome.output.startswith("I follow a script")


@pytest.mark.parametrize("arguments", [["exit"], ["quit"], ["chat", "exit"], ["-q", "quit"]])
def test_the_words_that_leave_are_not_sent(arguments: list[str]) -> None:
    assert invoke(*arguments) == (0, "", "")
    assert invoke("--", "exit").output.startswith("I follow a script")
    assert invoke("exit", "strategies").output.startswith("I follow a script")
    assert len(invoke("list", "--json").json) == 2


def test_at_a_terminal_a_person_decides() -> None:
    with Terminal("lst") as terminal:
        terminal.expect(r"'lst' is not a command; did you mean: vibe-llms list\?")
        terminal.expect(r"Send it to the model as a prompt\? \[y/N\]")
        terminal.press("enter")
        assert terminal.wait() == 2
    assert invoke("list", "--json").json == []
    with Terminal("lst") as terminal:
        terminal.expect(r"\[y/N\]")
        terminal.enter("y")
        terminal.expect("I follow a script")
        assert terminal.wait() == 0
    with Terminal("lst") as terminal:
        terminal.expect(r"\[y/N\]")
        assert terminal.press_until_the_end("c-c") == 130
    assert len(invoke("list", "--json").json) == 1
