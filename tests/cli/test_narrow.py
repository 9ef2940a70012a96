"""Narrow terminals: what is printed wraps between words, and nothing is cut that a pipe gets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cli.command import invoke, streams
from tests.cli.terminal import Terminal
from vibe_llms.cli.display import Display
from vibe_llms.cli.text import Flow, width
from vibe_llms.messages.events import MessageProgressEvent, ReasoningChunk

pytestmark = pytest.mark.usefixtures("warm")

_LONG = "Answers with the help of documents, web pages, Python and a very long description of it."


@pytest.fixture(params=[30, 40, 80])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path) -> int:
    """The width of the terminal, for a user with an agent and a server."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        '[agents.poet]\nmodel = "scripted/demo"\n'
        f'description = "{_LONG}"\n'
        '[ensembles.clock]\nmodule = "vibe_llms.ensembles.mcp"\n'
        'command = ["python", "clock_server.py", "--with", "several", "words"]\n'
    )
    for module in ("terminal", "display", "conversations"):
        monkeypatch.setattr(f"vibe_llms.cli.{module}.columns", lambda _: request.param)
    found: int = request.param
    return found


@pytest.mark.parametrize(
    "command",
    [
        ["providers"],
        ["agents", "list"],
        ["agents", "show", "poet"],
        ["mcp", "list"],
        ["models"],
        ["plugins", "list"],
        ["memory", "status"],
    ],
    ids=" ".join,
)
def test_rows_wrap_between_words(cells: int, command: list[str]) -> None:
    shown, piped = invoke(*command, terminals="stdout").output, invoke(*command).output
    assert "".join(shown.split()) == "".join(piped.split())
    # Only what is too long for a line is broken within.
    assert {one for one in piped.split() if width(one) <= cells // 3} <= {*shown.split()}
    for line in shown.splitlines():
        assert width(line) <= cells or " " not in line.strip()


def test_the_identity_of_a_message_is_whole(cells: int) -> None:
    assert invoke("chat", "-m", "scripted/demo", "hello").status == 0
    (one, _) = invoke("show", "-1", "--json").json["messages"]
    lines = invoke("show", "-1", terminals="stdout").output.replace("\x1b", "").splitlines()
    assert any(one["identity"] in line for line in lines)
    assert ("user" in lines[0] and one["identity"] in lines[0]) == (cells > 40)


@pytest.mark.parametrize("columns", [40, 80])
def test_an_entry_of_memory_is_one_line(columns: int) -> None:
    assert invoke("memory", "add", "My sister Ada lives in Lisbon, near the river.").status == 0
    with Terminal("memory", "list", columns=columns, emulated=True) as terminal:
        assert terminal.wait() == 0
        assert terminal.emulator is not None
        rows = [row for row in terminal.emulator.rows if row]
    assert len(rows) == 1, rows
    assert "My sister Ada" in rows[0]


def test_reasoning_wraps_between_words_as_it_comes(cells: int) -> None:
    words = "The user wants to see reasoning, and a script has none, so that this text is fixed."
    with streams(terminals="stdout stderr") as (_, errors):
        display = Display(render=False)
        for letter in words:
            display(MessageProgressEvent(ReasoningChunk(letter)))
        display.pause()
        plain = errors.text.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert plain.split() == words.split()
    assert all(width(line) <= cells for line in plain.splitlines())


def test_text_that_flows_is_the_text_with_other_blanks() -> None:
    chance = random.Random(25)
    for _ in range(500):
        cells = chance.randint(8, 40)
        pieces = ["".join(chance.choices("abc \n字-", k=chance.randint(0, 12))) for _ in range(30)]
        flow = Flow()
        shown = "".join([*(flow.feed(piece, cells) for piece in pieces), flow.close(cells)])
        assert "".join(shown.split()) == "".join("".join(pieces).split())
        for line in shown.split("\n"):
            # Blanks, and what a terminal has to break, may go beyond.
            longest = max(map(width, line.split()), default=0)
            assert width(line.rstrip()) <= cells or longest > cells // 3 or "字" in line
