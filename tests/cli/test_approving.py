"""Calls of tools at the terminal: shown in full, asked about, and not run where nobody says yes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.command import invoke, write_script
from tests.cli.terminal import Terminal
from tests.fakes import mcp_server
from vibe_llms.cli.approving import draw_arguments
from vibe_llms.invocation.approval import ApprovalRequest
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import InvocationCanister

SERVER = Path(mcp_server.__file__)
REFUSED = "The call was not allowed: the person said no."
QUESTION = "lways with these arguments:"


@pytest.fixture
def row(home: Path) -> Path:
    """A configuration with a server whose tools ask."""
    home.mkdir(parents=True, exist_ok=True)
    command = json.dumps([sys.executable, str(SERVER)])
    (home / "config.toml").write_text(
        f'[ensembles.fake]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = {command}\n'
        "open-seconds = 60\nlist-seconds = 60\n"
    )
    return home


def model_that_calls(tmp_path: Path, *texts: str) -> str:
    """A script that calls `echo` with each of these texts, one reply after the other."""
    parts = [
        f"{{ invocation = 'fake/echo', arguments = {{ text = {json.dumps(text)} }} }}"
        for text in texts
    ]
    replies = [f"[[replies]]\nparts = [ {part} ]\n" for part in (*parts, "{ text = 'Done.' }")]
    return write_script(tmp_path, "\n".join(replies))


def results_of(home: Path) -> list[str]:
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [one["contents"][0]["data"] for one in lines if one["role"] == "result"]


@pytest.mark.parametrize(
    ("answers", "ran"),
    [(("y",), True), (("n",), False), (("",), False), (("perhaps", "yes"), True)],
)
def test_a_person_decides_on_a_call(
    row: Path, tmp_path: Path, answers: tuple[str, ...], ran: bool
) -> None:
    model = model_that_calls(tmp_path, "hi \x1b[2J there")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        for answer in answers:
            terminal.expect(QUESTION)
            terminal.enter(answer)
        assert terminal.wait() == 0
    assert "fake/echo with" in terminal.output
    assert "\\u001b[2J" in terminal.output
    assert "Done." in terminal.output
    (result,) = results_of(row)
    assert result == ("hi \x1b[2J there" if ran else REFUSED)


def test_always_is_for_the_same_arguments(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one", "one", "two")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        terminal.expect(QUESTION)
        terminal.enter("a")
        terminal.expect(QUESTION)
        terminal.enter("n")
        assert terminal.wait() == 0
    assert results_of(row) == ["one", "one", REFUSED]


def test_ctrl_c_at_the_question_ends_the_turn(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        terminal.expect(QUESTION)
        terminal.press("c-c")
        assert terminal.wait() == 130
    assert "interrupted; what arrived is kept" in terminal.output
    (result,) = results_of(row)
    assert "interrupted" in result or "said no" in result


def test_without_a_terminal_nothing_runs_that_asks(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    outcome = invoke("-m", model, "--mcp", "fake", "Go.")
    assert outcome.output == "Done.\n", outcome
    (result,) = results_of(row)
    assert "there is nobody to ask" in result
    assert '[ensembles.fake] approval = "allow"' in result


def test_all_can_be_approved_beforehand(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    assert invoke("-m", model, "-T", "fake", "--ta", "Go.").output == "Done.\n"
    assert results_of(row) == ["one"]


def test_an_ensemble_that_there_is_not_is_told(row: Path) -> None:
    outcome = invoke("-T", "nonesuch", "Go.")
    assert outcome.status == 78
    assert "there is no 'nonesuch'; there are python, images, memory, fake" in outcome.errors


def test_long_arguments_are_drawn_in_several_lines_and_wrong_ones_as_they_are() -> None:
    def draw(arguments: str) -> str:
        invocation = InvocationCanister(name="a", arguments=arguments)
        invoker = Invoker.from_function(lambda: None, name="a")
        return draw_arguments(ApprovalRequest(invocation=invocation, invoker=invoker, reason=""))

    assert draw('{"a":"é"}') == '{"a": "é"}'
    assert draw("{") == "{"
    assert draw(json.dumps({"a": "x" * 80})) == '{\n  "a": "' + "x" * 80 + '"\n}'
