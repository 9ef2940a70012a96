"""The fake server as a program of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from vibe_llms.testing import fake_server
from vibe_llms.testing.__main__ import main

SCRIPT = '[[replies]]\nwhen = ".*"\nparts = [{ text = "From a script." }]\n'


def start(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """The program, and the variables that it has printed."""
    program = subprocess.Popen(
        [sys.executable, "-m", "vibe_llms.testing", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    variables: dict[str, str] = {}
    while "OLLAMA_HOST" not in variables:
        line = program.stdout.readline()
        found = re.fullmatch(r"export (\w+)=(\S+)\n", line)
        assert found, (line, program.stderr and program.stderr.read())
        variables[found[1]] = found[2]
    return program, variables


def stop(program: subprocess.Popen[str]) -> tuple[int, str]:
    os.kill(program.pid, signal.SIGINT)
    _, complaint = program.communicate(timeout=30)
    return program.returncode, complaint


@pytest.mark.parametrize(("script", "answer"), [(SCRIPT, "From a script."), ("", "I am")])
def test_it_serves_until_it_is_interrupted(script: str, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(script)
    program, variables = start(*([str(path)] if script else []), "--key", "sk-mine")
    assert variables["OPENAI_API_KEY"] == "sk-mine"
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Who are you?"}],
        "stream": False,
    }
    reply = httpx2.post(f"{variables['OLLAMA_HOST']}/api/chat", json=body).json()
    assert answer in reply["message"]["content"]
    assert stop(program) == (0, "")


def test_a_script_that_cannot_be_read_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.toml")]) == 66
    assert "none.toml" in capsys.readouterr().err


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(["Hi"]) as server:
        port = server.url.rpartition(":")[2]
        assert main(["--port", port]) == 69
    assert f"port {port}: " in capsys.readouterr().err
