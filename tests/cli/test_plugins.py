"""The command `plugins`, and the question before a row is used whose packages are not there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import invoke, run
from tests.cli.terminal import LONGEST_SECONDS, Terminal
from tests.fakes.index import FakeIndex
from tests.plugins.conftest import EXAMPLE, clean_imports, index, wheel
from tests.plugins.rows import offer, read_row, write_row
from vibe_llms.plugins.records import verify

__all__ = ["clean_imports", "index", "wheel"]
pytestmark = pytest.mark.usefixtures("clean_imports")
SIMPLE = {"plug.py": "VALUE = 1\n"}


def test_what_is_pinned_is_listed_installed_and_removed(home: Path, index: FakeIndex) -> None:
    plugin = offer(home, index, SIMPLE)
    missing = "mine             plug==1.0: not installed; run: vibe-llms plugins install mine\n"
    assert invoke("plugins", "list") == (0, missing, "")
    outcome = invoke("plugins", "install", "mine", "--yes")
    assert outcome.status == 0
    assert "pip install" in outcome.errors
    assert plugin.pinned in outcome.errors.replace("    ", "")
    assert outcome.errors.endswith("installed plug==1.0\n")
    assert invoke("plugins", "list").output == "mine             plug==1.0: installed\n"
    again = invoke("plugins", "install", "mine", "--yes")
    assert again == (0, "", "plug==1.0 is already installed\n")
    (plugin.packages / "plug.py").write_text("")
    assert "changed since it was installed; run: " in invoke("plugins", "list").output
    assert invoke("plugins", "install", "mine", "-y").status == 0
    verify(plugin)
    assert invoke("plugins", "rm", "mine") == (0, "", "removed plug==1.0\n")
    assert invoke("plugins", "list").output == missing
    outcome = invoke("plugins", "rm", "mine")
    assert (outcome.status, outcome.error[:32]) == (2, "nothing is installed for 'mine';")


def test_what_no_row_pins_any_more_is_listed_and_removed(home: Path, index: FakeIndex) -> None:
    old = offer(home, index, SIMPLE)
    assert invoke("plugins", "install", "mine", "--yes").status == 0
    (home / "config.toml").unlink()
    new = offer(home, index, SIMPLE, version="2.0")
    assert invoke("plugins", "list").output.splitlines() == [
        "mine             plug==2.0: not installed; run: vibe-llms plugins install mine",
        "mine             plug==1.0: no longer pinned; run: vibe-llms plugins rm mine",
    ]
    assert old.folder != new.folder
    assert invoke("plugins", "rm", "mine").status == 0
    assert not old.folder.exists()


def test_without_a_terminal_nothing_is_installed_unless_it_is_said(
    home: Path, index: FakeIndex
) -> None:
    offer(home, index, SIMPLE)
    outcome = invoke("plugins", "install", "mine")
    assert outcome.status == 2
    assert outcome.error == ("not a terminal; to install it: vibe-llms plugins install mine --yes")
    for arguments in (["-m", "mine/x", "Hello!"], ["--json", "-m", "mine/x", "Hello!"]):
        outcome = invoke(*arguments)
        assert outcome.status == 78
        assert outcome.error == (
            "[providers.mine] needs the package 'plug==1.0', which is not installed. "
            "Run: vibe-llms plugins install mine"
        )
    assert index.requests == []
    assert not (home / "plugins").exists()


def test_a_row_that_pins_nothing_has_nothing_to_install(home: Path) -> None:
    outcome = invoke("plugins", "install", "scripted", "--yes")
    assert outcome.status == 2
    assert outcome.error.startswith("no table [providers.scripted.install]; ")
    assert invoke("plugins", "list") == (0, "", "")


@pytest.mark.parametrize(("answer", "status"), [("n", 130), ("", 130), ("c-c", 130), ("y", 0)])
def test_at_a_terminal_it_is_asked_for(
    home: Path, index: FakeIndex, answer: str, status: int
) -> None:
    plugin = offer(home, index, SIMPLE)
    with Terminal("plugins", "install", "mine", columns=250) as terminal:
        terminal.expect(r"Install it\? \[y/N\]: ")
        assert index.requests == []
        assert reply(terminal, answer) == status
    assert plugin.folder.exists() == (status == 0)


def reply(terminal: Terminal, answer: str) -> int:
    """Answer the question; gives the exit status."""
    if answer == "c-c":
        return terminal.press_until_the_end(answer)
    terminal.send(f"{answer}\r")
    return terminal.wait()


@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 130), (b"", 130)])
def test_only_a_yes_is_a_yes(home: Path, index: FakeIndex, answer: bytes, status: int) -> None:
    offer(home, index, SIMPLE)
    outcome = invoke("plugins", "install", "mine", data=answer, terminals="stdin stderr")
    assert outcome.status == status
    assert (home / "plugins").exists() == (status == 0)


@pytest.mark.parametrize("options", [["--json"], ["--jsonl"], ["-q"]])
def test_where_a_program_reads_nothing_is_asked(
    home: Path, index: FakeIndex, options: list[str]
) -> None:
    offer(home, index, SIMPLE)
    arguments = ["-m", "mine/x", "Hello!", *options]
    outcome = invoke(*arguments, data=b"y\n", terminals="stdin stdout stderr")
    assert outcome.status == 78
    assert index.requests == []


def test_after_consent_a_problem_of_the_plugin_is_reported(home: Path, index: FakeIndex) -> None:
    offer(home, index, SIMPLE)
    arguments = ["-m", "mine/x", "Hello!"]
    refused = invoke(*arguments, data=b"n\n", terminals="stdin stderr")
    assert (refused.status, index.requests) == (78, [])
    agreed = invoke(*arguments, data=b"y\n", terminals="stdin stderr")
    assert agreed.status == 78
    assert "installed plug==1.0" in agreed.errors
    # Long paths are wrapped, so a line may end within these words.
    assert "registersnothing" in "".join(agreed.errors.split())


@pytest.fixture
def shouter() -> Iterator[str]:
    """The example's own server; gives its address."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE / "server.py")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def shout(home: Path, wheel: Path, shouter: str) -> None:
    """A row of the example, whose wheel lies in a folder and is not installed."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    write_row(
        home,
        {"vibe-llms-shout==1.2.0": [f"sha256:{digest}"]},
        index=str(wheel.parent),
        name="shout",
        module="vibe_llms_shout",
        **{"base-url": shouter, "default-model": "loud", "ending": "!!"},
    )


@pytest.mark.usefixtures("shout")
def test_a_plugin_holds_stores_and_forks_a_conversation_through_the_command(home: Path) -> None:
    assert run("plugins", "install", "shout", "--yes").status == 0
    assert run("-m", "shout", "not so loud").output == "NOT SO LOUD !!\n"
    assert run("-c", "once more").output == "ONCE MORE !!\n"
    (row,) = run("list", "--json").json
    assert (row["model"], row["messages"]) == ("shout/loud", 4)
    fork = run("fork", row["id"], "--name", "aside").output.split()[0]
    assert run("--cid", fork, "-o", "output-tokens", "1", "and here").output == "AND !!\n"
    refused = run("--cid", fork, "-o", "output-tokens", "1000", "and here")
    assert "must be at most 100" in refused.error
    shown = run("show", "aside", "--json").json["messages"]
    assert [said["role"] for said in shown] == ["user", "assistant"] * 3
    assert shown[-1]["provenance"]["module"] == "vibe_llms_shout"
    assert len(run("show", row["id"], "--json").json["messages"]) == 4
    assert run("models", "shout").output.split() == ["shout/loud", "shout/louder"]
    (module,) = (home / "plugins").glob("*/packages/vibe_llms_shout/__init__.py")
    module.write_text(module.read_text() + "\n")
    outcome = run("-c", "and now?")
    assert outcome.status == 78
    assert "changed after the installation" in outcome.error
    assert run("-m", "scripted/demo", "Hello!").status == 0


@pytest.mark.usefixtures("shout")
def test_a_plugin_keeps_the_contract_of_providers(shouter: str, wheel: Path) -> None:
    assert run("plugins", "install", "shout", "--yes").status == 0
    program = (
        "import asyncio\n"
        "from vibe_llms.base.configuration import load_configuration\n"
        "from vibe_llms.plugins.loading import open_plugin\n"
        "from vibe_llms.providers.provider_pool import survey_plugins\n"
        "from vibe_llms.testing import check_provider\n"
        "open_plugin(survey_plugins(load_configuration())[0])\n"
        "from vibe_llms_shout import ShoutProvider, __file__\n"
        "assert '/plugins/' in __file__\n"
        f"settings = {{'base-url': {shouter!r}}}\n"
        "asyncio.run(check_provider(ShoutProvider, 'loud', settings=settings))\n"
    )
    outcome = run(command=[sys.executable, "-W", "error", "-c", program])
    assert (outcome.status, outcome.errors) == (0, "")


@pytest.mark.usefixtures("shout")
def test_a_conversation_goes_on_once_the_person_has_agreed() -> None:
    with Terminal("-m", "shout", "hear me", columns=250) as terminal:
        terminal.expect(r"vibe-llms-shout==1\.2\.0 --hash=sha256:")
        terminal.expect(r"Install it\? \[y/N\]: ")
        terminal.send("y\r")
        terminal.expect("HEAR ME !!")
        assert terminal.wait() == 0
    verify(read_row("shout"))


@pytest.mark.usefixtures("shout")
@pytest.mark.parametrize(("answer", "status"), [("n", 78), ("c-c", 130)])
def test_a_person_who_does_not_agree_gets_the_error(home: Path, answer: str, status: int) -> None:
    with Terminal("-m", "shout", "hear me", columns=250) as terminal:
        terminal.expect(r"Install it\? \[y/N\]: ")
        assert reply(terminal, answer) == status
    assert not (home / "plugins").exists()


def test_an_installer_that_hangs_is_ended_by_ctrl_c(
    home: Path, index: FakeIndex, tmp_path: Path
) -> None:
    offer(home, index, SIMPLE)
    slow = tmp_path / "bin" / "uv"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep {LONGEST_SECONDS * 2}\n")
    slow.chmod(0o755)
    with Terminal(
        "-m", "mine/x", "Hello!", environment={"PATH": f"{slow.parent}:/usr/bin:/bin"}
    ) as terminal:
        terminal.expect(r"Install it\? \[y/N\]: ")
        terminal.send("y\r")
        terminal.expect("installing")
        while not (tmp_path / "begun").exists():
            assert terminal.process.poll() is None
        terminal.send("\x03")
        assert terminal.wait() == 130
    assert list((home / "plugins").iterdir()) == []
