"""`--tool-mode`: tools of a model that has no calls of its own, at the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.command import invoke, write_script
from tests.fakes import mcp_server

CALL = '{"type":"tool_call","name":"fake/echo","arguments":{"text":"wind"}}'
FINAL = '{"type":"final","content":"It says: \\"wind\\"."}'


@pytest.fixture
def row(home: Path) -> Path:
    """A configuration with a server of tools."""
    home.mkdir(parents=True, exist_ok=True)
    command = json.dumps([sys.executable, mcp_server.__file__])
    (home / "config.toml").write_text(
        f'[ensembles.fake]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = {command}\n'
        "open-seconds = 60\nlist-seconds = 60\n"
    )
    return home


def model_that_says(folder: Path, *texts: str) -> str:
    """A script that says these texts, one reply after the other."""
    replies = (f"[[replies]]\nparts = [ {{ text = {json.dumps(text)} }} ]" for text in texts)
    return write_script(folder, "\n".join(replies))


def results_of(home: Path) -> list[str]:
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [one["contents"][0]["data"] for one in lines if one["role"] == "result"]


def test_a_tool_is_called_by_the_contract(row: Path, tmp_path: Path) -> None:
    model = model_that_says(tmp_path, CALL, FINAL, CALL, CALL[:-2], FINAL)
    done = invoke("-m", model, "-T", "fake", "--ta", "--tool-mode", "contract", "Echo")
    assert (done.status, done.output) == (0, 'It says: "wind".\n'), done.errors
    assert "tool_call" not in done.errors
    assert results_of(row) == ["wind"]
    done = invoke("-c", "-T", "fake", "--ta", "--tool-mode", "contract", "Again")
    assert (done.status, done.output) == (0, 'It says: "wind".\n')
    assert results_of(row) == ["wind", "wind"]


def test_without_the_contract_a_call_in_words_is_nothing_but_words(
    row: Path, tmp_path: Path
) -> None:
    for mode in ("auto", "native", "off"):
        model = model_that_says(tmp_path, CALL)
        done = invoke("-m", model, "-n", "-T", "fake", "--ta", "--tool-mode", mode, "Echo")
        assert (done.status, done.output) == (0, f"{CALL}\n")


def test_the_mode_is_part_of_what_a_dry_run_shows(row: Path, tmp_path: Path) -> None:
    model = model_that_says(tmp_path, FINAL)
    options = ("-m", model, "-n", "-T", "fake", "--dry-run", "--tool-mode")
    assert "tools, one per line" in invoke(*options, "contract", "Echo").output
    assert "fake/echo" not in invoke(*options, "off", "Echo").output


def test_a_mode_that_there_is_not_is_refused() -> None:
    done = invoke("--tool-mode", "perhaps", "Echo")
    assert done.status == 2
    assert "perhaps" in done.errors
