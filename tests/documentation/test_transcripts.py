"""The player of consoles notices what is not as the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.transcripts import Shell, newcomer, read_commands


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "work").mkdir()
    environment = newcomer(tmp_path / "you", "http://127.0.0.1:9")
    return Shell(environment, tmp_path / "work", tmp_path / "state")


def play(shell: Shell, text: str) -> None:
    shell.play(read_commands(text))


def test_a_transcript_that_fits_passes(shell: Shell) -> None:
    play(shell, "$ echo one; echo two\none\ntwo\n")


@pytest.mark.parametrize(
    "text",
    [
        "$ echo one\ntwo\n",
        "$ echo one\n",
        "$ echo one\none\ntwo\n",
        "$ echo one; echo two\none\n",
        "$ true\none\n",
        "$ echo one two\none…\n…\nthree\n",
        "$ echo one two\ntwo…\n",
    ],
)
def test_other_output_is_noticed(shell: Shell, text: str) -> None:
    with pytest.raises(AssertionError, match="it says here"):
        play(shell, text)


def test_a_command_that_fails_is_noticed(shell: Shell) -> None:
    with pytest.raises(AssertionError, match="status 3"):
        play(shell, "$ exit 3\n")


def test_a_status_that_is_asked_for_may_be_another_than_0(shell: Shell) -> None:
    play(shell, "$ (exit 3)\n$ echo $?\n3\n")
    with pytest.raises(AssertionError, match="it says here"):
        play(shell, "$ (exit 3)\n$ echo $?\n4\n")


def test_environment_and_folder_last(shell: Shell) -> None:
    play(shell, "$ export ONE=1; TWO=2\n$ mkdir inner; cd inner\n$ touch here\n")
    play(shell, "$ echo $ONE $TWO; ls\n1 2\nhere\n")


def test_elisions_match_any_lines_and_any_end(shell: Shell) -> None:
    play(shell, "$ seq 5\n1\n…\n4\n5\n")
    play(shell, "$ seq 2\n…\n1\n2\n…\n")
    play(shell, "$ echo one two three\none tw…\n")


def test_identities_and_times_may_be_others_but_the_same_ones_stay_the_same(shell: Shell) -> None:
    play(shell, "$ echo abcdefgh2345 2026-01-01 10:11\nzzzzzzzz2222 2027-02-02 03:04\n")
    play(shell, "$ echo zzzzzzzz2222 zzzz\nzzzzzzzz2222 abcd\n")
    with pytest.raises(AssertionError, match="it says here"):
        play(shell, "$ echo bbbbbbbb2345\nzzzzzzzz2222\n")
    with pytest.raises(AssertionError, match="it says here"):
        play(shell, "$ echo abcdefgh2345\nyyyyyyyy2222\n")


def test_the_home_of_the_page_is_that_of_its_reader(shell: Shell) -> None:
    play(shell, "$ echo ~\n/home/you\n")


def test_nothing_reaches_further_than_this_machine(shell: Shell) -> None:
    program = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    play(shell, f'$ python -c "{program}" 2>&1 | tail -n 1\nOSError: a page wanted to reach…\n')


def test_ctrl_c_is_pressed_at_a_terminal(shell: Shell) -> None:
    text = "$ vibe-llms chat -q -n -m scripted/demo\n> What can you do?\nI am…\n^C\n> /exit\n"
    play(shell, text)
    with pytest.raises(AssertionError, match="it says here"):
        play(shell, text.replace("^C\n", "^C\nAsk me about *models*, *keys*…\n"))


def test_a_dialogue_that_says_something_else_is_noticed(shell: Shell) -> None:
    play(shell, "$ vibe-llms chat -q -n -m scripted/demo\n> Hello!\nHello! I am…\n> /exit\n")
    with pytest.raises(AssertionError, match="it says here"):
        play(shell, "$ vibe-llms chat -q -n -m scripted/demo\n> Hello!\nBye.\n> /exit\n")
