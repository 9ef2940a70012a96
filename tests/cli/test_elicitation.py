"""What servers ask at the terminal: shown as theirs, answered field by field, checked, or left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.command import invoke, write_script
from tests.cli.terminal import Terminal
from tests.fakes import mcp_asking
from tests.fakes.mcp_http import FakeMcp
from tests.fakes.warm import warm_command

pytestmark = pytest.mark.usefixtures("warm")


def write_row(home: Path, **keys: object) -> None:
    home.mkdir(parents=True, exist_ok=True)
    row = {
        "module": "vibe_llms.ensembles.mcp",
        "command": warm_command(mcp_asking.__file__),
        "open-seconds": 60,
        "list-seconds": 60,
        **keys,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in row.items()]
    (home / "config.toml").write_text("[ensembles.fake]\n" + "\n".join(lines) + "\n")


def model_that_calls(tmp_path: Path, tool: str, arguments: str = "{}") -> str:
    part = f"{{ invocation = 'fake/{tool}', arguments = {arguments} }}"
    replies = [f"[[replies]]\nparts = [ {one} ]\n" for one in (part, "{ text = 'Done.' }")]
    return write_script(tmp_path, "\n".join(replies))


def result_of(home: Path) -> str:
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (result,) = (one["contents"][0]["data"] for one in lines if one["role"] == "result")
    return str(result)


@pytest.mark.parametrize("era", ["handshake", pytest.param("stateless", marks=pytest.mark.slow)])
def test_a_form_is_filled_in_field_by_field(home: Path, tmp_path: Path, era: str) -> None:
    write_row(home, protocol=era)
    model = model_that_calls(tmp_path, "book")
    with Terminal("-m", model, "-T", "fake", "Book.") as terminal:
        terminal.expect("fake asks: Book a table")
        terminal.expect("Your name:")
        terminal.enter("A")
        terminal.expect("name: at least 2 characters")
        terminal.expect("Your name:")
        terminal.enter("Ada")
        terminal.expect(r"Seats \[2\]:")
        terminal.enter("many")
        terminal.expect("seats: must be a number")
        terminal.expect(r"Seats \[2\]:")
        terminal.enter("3")
        terminal.expect(r"Smoking \[no\]:")
        terminal.enter("yes")
        terminal.expect("1. fish")
        terminal.expect(r"Meal \[beans\]:")
        terminal.enter("1")
        assert terminal.wait() == 0
    assert result_of(home) == "Ada 3 True fish"


@pytest.mark.parametrize(("key", "action"), [("c-d", "decline"), ("c-c", "cancel")])
def test_a_question_is_left_and_the_conversation_goes_on(
    home: Path, tmp_path: Path, key: str, action: str
) -> None:
    write_row(home)
    model = model_that_calls(tmp_path, "book")
    with Terminal("-m", model, "-T", "fake", "Book.") as terminal:
        terminal.expect("Your name:")
        terminal.press(key)
        assert terminal.wait() == 0
    assert "Done." in terminal.output
    assert result_of(home) == action


@pytest.mark.parametrize(
    ("answer", "action"), [pytest.param("n", "decline", marks=pytest.mark.slow), ("y", "accept")]
)
def test_an_address_is_opened_if_the_person_says_so(
    home: Path, tmp_path: Path, answer: str, action: str
) -> None:
    write_row(home, protocol="handshake")
    arguments = "{ address = 'https://pay.example/\\u001b[2J' }".replace("'", '"')
    model = model_that_calls(tmp_path, "visit", arguments)
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o700)
    environment = {"BROWSER": str(browser)}
    with Terminal("-m", model, "-T", "fake", "Go.", environment=environment) as terminal:
        terminal.expect("fake asks: Please pay.")
        terminal.expect("It wants you to open https://pay.example/")
        terminal.expect("Open it in a browser")
        terminal.enter("perhaps")
        terminal.expect("Open it in a browser")
        terminal.enter(answer)
        assert terminal.wait() == 0
    assert "\x1b[2J" not in terminal.output.partition("Done.")[0].partition("It wants")[2][:60]
    assert "␛[2J" in terminal.output
    assert result_of(home) == action
    assert opened.exists() == (answer == "y")


def test_without_a_terminal_all_is_declined(home: Path, tmp_path: Path) -> None:
    write_row(home)
    outcome = invoke("-m", model_that_calls(tmp_path, "book"), "-T", "fake", "Book.")
    assert outcome.output == "Done.\n"
    assert "fake asks you to fill in a form (Book a table?)" in outcome.errors
    assert result_of(home) == "decline"


def test_a_person_signs_in_at_the_terminal(home: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    program = "import sys, urllib.request as u; u.urlopen(sys.argv[1]).close()"
    browser.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}' \"$1\"\n")
    browser.chmod(0o700)
    home.mkdir(parents=True)
    with FakeMcp() as server:
        server.tokens = set()
        (home / "config.toml").write_text(
            '[ensembles.fake]\nmodule = "vibe_llms.ensembles.mcp"\n'
            f'url = "{server.url}/mcp"\nopen-seconds = 60\n'
        )
        refused = invoke("mcp", "test", "fake")
        assert "it requires signing in" in refused.output + refused.errors or (
            "no user signed in" in refused.output + refused.errors
        )
        environment = {"BROWSER": str(browser)}
        with Terminal("mcp", "test", "fake", environment=environment) as terminal:
            terminal.expect("fake asks: Sign in at 127.0.0.1")
            terminal.expect("Open it in a browser")
            terminal.enter("y")
            assert terminal.wait() == 0
        assert "canary" not in terminal.output
        assert invoke("mcp", "test", "fake").status == 0
    assert len(server.asked) == 1
