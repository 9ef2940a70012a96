"""`memory serve-embedder`: a model that stays loaded between commands."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.command import invoke, run
from tests.cli.terminal import LONGEST_SECONDS, Terminal
from tests.fakes.loading import loads
from vibe_llms.base.configuration import find_places
from vibe_llms.embedding.serving import Served, find_server

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Where the model of the row `loading` waits for its gate."""
    # The path of a socket may not be long.
    home = tmp_path_factory.mktemp("h")
    monkeypatch.setenv("VIBE_LLMS_HOME", str(home))
    (home / "config.toml").write_text(
        f'[memory]\nembedder = "loading"\n'
        f'[embedders.loading]\nmodule = "tests.fakes.loading"\nfolder = "{tmp_path}"\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield tmp_path
    if (served := find()) is not None:
        with suppress(ProcessLookupError):
            os.kill(served.process, signal.SIGKILL)


def find() -> Served | None:
    return asyncio.run(find_server(find_places(), "slow"))


def wait_for_the_end() -> None:
    end = time.monotonic() + LONGEST_SECONDS
    while find() is not None:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_model_stays_loaded_between_commands_if_that_is_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__KEEP_LOADED_MINUTES", "5")
    (folder / "gate").touch()
    assert run("memory", "add", "Ada keeps bees.").status == 0
    for _ in range(2):
        found = run("memory", "search", "Who keeps bees?")
        assert "Ada keeps bees." in found.output, found.errors
    served = find()
    assert served is not None
    # Once, and by the process that goes on.
    assert loads(folder) == [served.process]
    assert os.getsid(served.process) == served.process
    reported = invoke("memory", "status").output
    assert f"embedder: slow, kept loaded by process {served.process} since 20" in reported
    assert "until it is idle for 5 minutes" in reported
    assert invoke("memory", "status", "--json").json["embedder"]["process"] == served.process
    again = run("memory", "serve-embedder")
    assert (again.status, again.errors) == (
        0,
        f"slow is already served by process {served.process}\n",
    )
    os.kill(served.process, signal.SIGTERM)
    wait_for_the_end()
    assert not list(find_places().state.glob("*.sock"))
    assert invoke("memory", "status", "--json").json["embedder"] is None


def test_without_it_each_command_loads_it(folder: Path) -> None:
    (folder / "gate").touch()
    assert run("memory", "add", "Ada keeps bees.").status == 0
    assert "Ada keeps bees." in run("memory", "search", "Who keeps bees?").output
    assert len(loads(folder)) == 1
    assert find() is None


def test_at_a_terminal_it_serves_until_it_is_ended(folder: Path) -> None:
    with Terminal("memory", "serve-embedder") as terminal:
        terminal.expect("loading slow")
        (folder / "gate").touch()
        terminal.expect("serving slow; Ctrl-C ends it")
        assert run("memory", "add", "Ada keeps bees.").status == 0
        assert "Ada keeps bees." in run("memory", "search", "Who keeps bees?").output
        assert loads(folder) == [terminal.process.pid]
        terminal.press("c-c")
        assert terminal.wait() == 0
    assert find() is None


def test_an_idle_one_ends_by_itself(folder: Path) -> None:
    (folder / "gate").touch()
    ended = run("memory", "serve-embedder", "--idle-minutes", "0.001")
    assert (ended.status, ended.errors) == (
        0,
        "serving slow; Ctrl-C ends it\nended: idle\n",
    )


@pytest.mark.parametrize(
    ("embedder", "words", "status"),
    [
        ("", "no embedder is set; for a local one: embedder = 'onnx'", 78),
        ("ollama/all-minilm", "ollama/all-minilm does not load a model", 78),
        ("nothing", "'nothing' not found", 78),
        ("loading", "there are no weights", 66),
    ],
)
def test_an_embedder_that_cannot_be_served_is_a_one_line_error(
    folder: Path, embedder: str, words: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__EMBEDDER", embedder)
    (folder / "gate").write_text("there are no weights")
    ended = invoke("memory", "serve-embedder")
    assert ended.status == status
    assert words in ended.error


def test_without_a_server_keywords_are_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__KEEP_LOADED_MINUTES", "5")
    (folder / "gate").write_text("there are no weights")
    assert run("memory", "add", "Ada keeps bees.").status == 0
    found = run("memory", "search", "Who keeps bees?")
    assert "Ada keeps bees." in found.output
    assert "memory is searched by words only: loading: there are no weights" in found.errors
