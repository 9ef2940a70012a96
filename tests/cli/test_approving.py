"""Calls of tools at the terminal: shown in full, asked about, and not run without a yes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.command import invoke, write_script
from tests.cli.terminal import Terminal
from tests.fakes import mcp_server
from vibe_llms.cli.tool_questions import draw_arguments
from vibe_llms.messages.canisters import InvocationCanister

pytestmark = pytest.mark.usefixtures("warm")
SERVER = Path(mcp_server.__file__)
REFUSED = "The call was not allowed: the user said no."
QUESTION = r"Run fake/echo\?"


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


def answer(terminal: Terminal, text: str) -> None:
    """Answer the next question."""
    terminal.expect("vibe-llms asks")
    terminal.expect(QUESTION)
    terminal.enter(text)


def results_of(home: Path) -> list[str]:
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [one["contents"][0]["data"] for one in lines if one["role"] == "result"]


@pytest.mark.parametrize(
    ("answers", "ran"),
    [
        pytest.param(("y",), True, marks=pytest.mark.slow),
        pytest.param(("n",), False, marks=pytest.mark.slow),
        (("",), False),
        (("perhaps", "yes"), True),
    ],
)
def test_a_person_decides_on_a_call(
    row: Path, tmp_path: Path, answers: tuple[str, ...], ran: bool
) -> None:
    model = model_that_calls(tmp_path, "hi \x1b[2J there")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        terminal.expect(QUESTION)
        for answer in answers[:-1]:
            terminal.enter(answer)
            terminal.expect("Please answer: ")
        terminal.enter(answers[-1])
        assert terminal.wait() == 0
    assert "The model calls fake/echo" in terminal.output
    assert "\\u001b[2J" in terminal.output
    assert "Done." in terminal.output
    (result,) = results_of(row)
    assert result == ("hi \x1b[2J there" if ran else REFUSED)


def test_always_is_for_the_same_arguments(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one", "one", "two")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        answer(terminal, "a")
        answer(terminal, "n")
        assert terminal.wait() == 0
    assert results_of(row) == ["one", "one", REFUSED]


@pytest.mark.parametrize("columns", [40, pytest.param(80, marks=pytest.mark.slow)])
def test_a_forged_question_and_parallel_calls_leave_each_question_whole(
    row: Path, tmp_path: Path, columns: int
) -> None:
    forged = "Sure.\n\n┏━ vibe-llms asks\n┃ The model calls fake/pid\n┃ Run fake/pid? "
    parts = [f"{{ text = {json.dumps(forged)} }}"]
    for text in ("rm -r a\nrm -r b", "second"):
        parts.append(f"{{ invocation = 'fake/echo', arguments = {{ text = {json.dumps(text)} }} }}")
    replies = f"[[replies]]\nparts = [ {', '.join(parts)} ]\n[[replies]]\nparts = [{{text='.'}}]"
    model = write_script(tmp_path, replies)
    with Terminal("-m", model, "-T", "fake", "Go.", columns=columns, emulated=True) as terminal:
        screen = terminal.emulator
        assert screen is not None
        for lines in (["text:", "    rm -r a", "    rm -r b"], ['text: "second"']):
            terminal.expect("vibe-llms asks ━")
            terminal.expect(QUESTION)
            (first,) = (n for n, one in enumerate(screen.rows) if one.startswith("┏━ vibe-llms"))
            seen = [one.removeprefix("┃ ") for one in screen.rows[first:]]
            assert seen[1:3] == ["The model calls fake/echo", "(the tool needs approval)"]
            assert seen[3 : 3 + len(lines)] == lines
            assert screen.rows[screen.row].startswith("┃ Run fake/echo?")
            screen.feed("\x1b[2J\x1b[H")
            terminal.enter("y")
        assert terminal.wait() == 0
    # Each result is kept as it lands.
    assert sorted(results_of(row)) == ["rm -r a\nrm -r b", "second"]


def test_a_tool_may_be_allowed_for_the_session(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one", "two", "three", "four")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        answer(terminal, "t")
        # What it returned is text from outside, and it may send data out: a question of its own.
        terminal.expect("untrusted text")
        terminal.expect(QUESTION)
        terminal.enter("t")
        assert terminal.wait() == 0
    assert results_of(row) == ["one", "two", "three", "four"]


def test_a_no_may_have_a_reason_that_the_model_reads(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        answer(terminal, "no, because it is late")
        assert terminal.wait() == 0
    assert results_of(row) == [f"{REFUSED} Their reason: it is late"]


def test_ctrl_c_at_the_question_ends_the_turn(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    with Terminal("-m", model, "-T", "fake", "Go.") as terminal:
        terminal.expect(QUESTION)
        terminal.press("c-c")
        assert terminal.wait() == 130
    assert "interrupted; the partial answer is kept" in terminal.output
    (result,) = results_of(row)
    assert "did not run" in result or "said no" in result


def test_without_a_terminal_nothing_runs_that_asks(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    outcome = invoke("-m", model, "--mcp", "fake", "Go.")
    assert outcome.output == "Done.\n", outcome
    (result,) = results_of(row)
    assert "no user can be asked" in result
    assert '[ensembles.fake] approval = "allow"' in result


def test_all_can_be_approved_beforehand(row: Path, tmp_path: Path) -> None:
    model = model_that_calls(tmp_path, "one")
    assert invoke("-m", model, "-T", "fake", "--ta", "Go.").output == "Done.\n"
    assert results_of(row) == ["one"]


def test_an_unknown_ensemble_is_an_error(row: Path) -> None:
    outcome = invoke("-T", "nonesuch", "Go.")
    assert outcome.status == 78
    assert (
        "ensemble 'nonesuch' not found; known ensembles: python, images, documents, web, memory, "
        "user, fake" in outcome.errors
    )


def drawn(arguments: object) -> list[tuple[str, int]]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [line[:2] for line in draw_arguments(InvocationCanister(name="a", arguments=text))]


def test_arguments_are_drawn_in_lines_and_wrong_ones_as_they_are() -> None:
    assert drawn({"a": "é", "b c": 1}) == [('a: "é"', 0), ('"b c": 1', 0)]
    assert drawn("{") == [("{", 0)]
    assert drawn("no\njson") == [("no", 0), ("json", 0)]
    assert drawn({}) == [("(no arguments)", 0)]
    assert drawn({"a": "x" * 80}) == [(f'a: "{"x" * 80}"', 0)]


def test_every_text_of_several_lines_is_drawn_in_its_lines_however_deep() -> None:
    code = "if x:\n  go()"
    lines = [("if x:", 4), ("  go()", 4)]
    assert drawn({"code": code}) == [("code:", 0), *lines]
    deeper = [(text, indent + 2) for text, indent in lines]
    assert drawn({"a": {"b": code}}) == [("a:", 0), ("b:", 2), *deeper]
    assert drawn({"a": [code, 1]}) == [("a:", 0), ("-", 2), *deeper, ("- 1", 2)]
    assert drawn({"a": {"b": "x"}}) == [('a: {"b": "x"}', 0)]
    deep: object = code
    for _ in range(50):
        deep = [deep]
    assert "if x:\\n  go()" in drawn({"a": deep})[-1][0]
