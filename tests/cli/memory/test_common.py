"""Secrets at the doors of memory: asked about at a terminal, refused elsewhere, --yes keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import invoke, write_script
from tests.cli.terminal import PROMPT, Terminal

pytestmark = pytest.mark.usefixtures("warm")

KEY = "sk-ant-api03-Xy7klPq29fZsLm41TgRb"
SECRETS = [
    (f"My API key is {KEY}", "My API key is [secret]", KEY),
    ("My password is hunter2", "My password is [secret]", "hunter2"),
    ("My card is 4111 1111 1111 1111", "My card is [secret]", "4111 1111 1111 1111"),
]


def doors(text: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Commands that store a text, by their names."""
    identity = invoke("memory", "add", "--json", "The user keeps bees").json["id"]
    file = folder / "memory.json"
    items = [{"data": {"content": "The user likes tea"}}, {"data": {"content": text}}]
    file.write_text(json.dumps({"memories": items}))
    return {
        "add": ("memory", "add", text),
        "edit": ("memory", "edit", identity, text),
        "import": ("memory", "import", str(file)),
        "topic": ("memory", "add", "A thing", "--topic", text),
    }


def stored(home: Path) -> str:
    """All text in the files of the memory."""
    return "".join(path.read_text() for path in (home / "memory" / "entries").rglob("*.md"))


@pytest.mark.parametrize("door", ["add", "edit", "import", "topic"])
@pytest.mark.parametrize(("text", "masked", "secret"), SECRETS)
def test_a_secret_is_refused_without_a_terminal(
    home: Path, tmp_path: Path, door: str, text: str, masked: str, secret: str
) -> None:
    command = doors(text, tmp_path)[door]
    refused = invoke(*command)
    assert refused.status == 2
    assert masked in refused.error
    assert "--yes" in refused.error
    assert secret not in refused.errors + refused.output + stored(home)
    described = invoke(*command, "--json")
    assert json.loads(described.output)["error"]["kind"] == "secret-refused"
    assert secret not in described.output
    assert invoke(*command, "--yes").status == 0
    assert secret in stored(home)


@pytest.mark.parametrize("door", ["add", "edit", "import"])
@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("", 1), ("y", 0)])
def test_at_a_terminal_it_is_named_and_asked_for(
    home: Path, tmp_path: Path, door: str, answer: str, status: int
) -> None:
    command = doors("My password is hunter2", tmp_path)[door]
    with Terminal(*command) as terminal:
        terminal.expect(r"My password is \[secret\]")
        terminal.expect(r"anyway\? \[y/N\]: ")
        terminal.enter(answer)
        assert terminal.wait() == status
        assert "hunter2" not in terminal.output
    assert ("hunter2" in stored(home)) == (answer == "y")


def test_an_import_without_the_secrets_takes_the_rest(home: Path, tmp_path: Path) -> None:
    command = doors("My password is hunter2", tmp_path)["import"]
    reported = invoke(*command, "--dry-run", "--json").json
    assert [one["reason"] for one in reported["secrets"]] == ["My password is [secret]"]
    assert invoke(*command, "--skip-bad").status == 0
    assert "The user likes tea" in stored(home)
    assert "hunter2" not in stored(home)


def test_in_a_conversation_it_is_asked_for_too(home: Path, tmp_path: Path) -> None:
    model = write_script(tmp_path, '[[replies]]\nwhen = "."\nparts = [{ text = "Well." }]\n')
    with Terminal("chat", "-m", model, "--memory") as terminal:
        terminal.expect(PROMPT)
        for answer in ("n", "y"):
            terminal.enter("/memory add My password is hunter2")
            terminal.expect(r"My password is \[secret\]")
            terminal.expect(r"anyway\? \[y/N\]: ")
            assert "hunter2" not in (stored(home) if (home / "memory").exists() else "")
            terminal.enter(answer)
            terminal.expect("nothing was stored" if answer == "n" else "remembered as")
            terminal.expect(PROMPT)
        terminal.press("c-d")
        terminal.wait()
    assert "hunter2" in stored(home)


def test_a_mark_where_a_secret_was_taken_out_is_no_secret(home: Path) -> None:
    assert invoke("memory", "add", "My password is [secret]").status == 0
