"""A command that is forked behaves at its terminal like one that is started."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.terminal import PROMPT, Terminal
from tests.fakes.warm import WarmProcess


@pytest.fixture(params=["warm", "cold"], autouse=True)
def forks(request: pytest.FixtureRequest) -> bool:
    """Whether the command is forked."""
    request.getfixturevalue(request.param)
    return bool(request.param == "warm")


def test_the_command_is_forked_only_where_that_is_asked(forks: bool) -> None:
    with Terminal("--version") as terminal:
        assert isinstance(terminal.process, WarmProcess) is forks
        assert terminal.wait() == 0
    assert "vibe-llms" in terminal.output


def test_an_error_is_shown_and_has_its_status() -> None:
    with Terminal("show", "nothing-like-it") as terminal:
        status = terminal.wait()
    assert status not in (0, 1)
    assert "nothing-like-it" in terminal.output


def test_it_reads_keys_and_ends_with_its_input(home: Path) -> None:
    with Terminal("chat", "-m", "scripted/demo") as terminal:
        terminal.expect(PROMPT)
        terminal.send("/exit\r")
        assert terminal.wait() == 0


def test_it_leads_its_terminal_and_takes_signals(home: Path) -> None:
    with Terminal("chat", "-m", "scripted/demo") as terminal:
        terminal.expect(PROMPT)
        stat = Path(f"/proc/{terminal.process.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[3]) == terminal.process.pid
        assert int(stat[4]) != 0
        terminal.process.send_signal(signal.SIGKILL)
        assert terminal.wait() == -signal.SIGKILL
