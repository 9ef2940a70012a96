"""The command as a process: what it writes where, how it ends, and how soon it answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acp.scripts import stored
from tests.cli.command import run, script_of, write_script
from tests.cli.terminal import COMMAND
from vibe_llms.acp.running import METHODS

INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}


def encode(*messages: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


class Process:
    """The command with pipes, asked one request at a time."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "acp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.number = 0

    def send(self, method: str, **params: Any) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.number += 1
        self.process.stdin.write(encode(message))

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def open(self, folder: Path) -> str:
        """Begin a session; its id."""
        self.send("initialize", protocolVersion=1)
        self.send("session/new", cwd=str(folder), mcpServers=[])
        self.read()
        session: str = self.read()["result"]["sessionId"]
        return session

    def begin_turn(self, folder: Path) -> str:
        """Send a message, and wait for the first piece of the reply; the id of the session."""
        session = self.open(folder)
        block = {"type": "text", "text": "Count"}
        self.send("session/prompt", sessionId=session, prompt=[block])
        while self.read()["params"]["update"]["sessionUpdate"] != "agent_message_chunk":
            pass
        return session


@contextmanager
def running(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        for stream in (process.process.stdin, process.process.stdout, process.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model that begins to answer and never ends."""
    return write_script(tmp_path, script_of("{ text = ['One ', 'two '] }", "{ stall = true }"))


def test_a_client_that_ends_in_mid_call_ends_the_agent_and_loses_nothing(
    tmp_path: Path, home: Path, model: str
) -> None:
    with running("-m", model) as agent:
        agent.begin_turn(tmp_path)
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        assert agent.process.wait(20) == 0
    assert [one["role"] for one in stored(home)] == ["user", "assistant"]
    assert "One two" in json.dumps(stored(home)[1])


def test_a_client_that_reads_no_more_ends_the_agent(tmp_path: Path, home: Path, model: str) -> None:
    with running("-m", model) as agent:
        agent.begin_turn(tmp_path)
        assert agent.process.stdout is not None
        agent.process.stdout.close()
        agent.send("session/list")
        assert agent.process.wait(20) == 0
    assert [one["role"] for one in stored(home)] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_agent_and_loses_nothing(
    tmp_path: Path, home: Path, model: str, number: signal.Signals, status: int
) -> None:
    with running("-m", model) as agent:
        agent.begin_turn(tmp_path)
        agent.process.send_signal(number)
        assert agent.process.wait(20) == status
        assert agent.process.stderr is not None
        assert b"Traceback" not in agent.process.stderr.read()
    assert "One two" in json.dumps(stored(home)[1])


def test_stdout_has_only_messages_whatever_a_tool_prints(tmp_path: Path, home: Path) -> None:
    """A function of the user's runs in this process: it prints, and reads standard input."""
    (tmp_path / "loud.py").write_text(
        "import os, sys\n"
        "from vibe_llms.ensembles.functions import FunctionEnsemble\n"
        "from vibe_llms.conversations.hosts import register_ensemble\n"
        "tools = FunctionEnsemble('loud')\n"
        "@tools.register()\n"
        "def shout() -> str:\n"
        "    '''Shout.'''\n"
        "    print('LOUD')\n"
        "    os.write(1, b'LOUDER\\n')\n"
        "    os.system('echo LOUDEST')\n"
        "    return repr(sys.stdin.read())\n"
        "register_ensemble('loud', lambda *_: tools)\n"
    )
    home.mkdir()
    (home / "config.toml").write_text('[ensembles.loud]\nmodule = "loud"\n')
    parts = "{ invocation = 'loud/shout' }"
    script = f"[[replies]]\nparts = [ {parts} ]\n[[replies]]\nparts = [ {{ text = 'Done.' }} ]\n"
    arguments = ["-m", write_script(tmp_path, script), "-T", "loud"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        with running(*arguments) as agent:
            session = agent.open(tmp_path)
            block = {"type": "text", "text": "Shout"}
            agent.send("session/prompt", sessionId=session, prompt=[block])
            while "stopReason" not in (message := agent.read()).get("result", {}):
                assert message["jsonrpc"] == "2.0"
            assert agent.process.stdin is not None
            agent.process.stdin.close()
            assert agent.process.wait(20) == 0
            assert agent.process.stdout is not None
            assert agent.process.stderr is not None
            assert agent.process.stdout.read() == b""
            assert agent.process.stderr.read().count(b"LOUD") == 3
    (result,) = [one for one in stored(home) if one["role"] == "result"]
    assert result["contents"][0]["data"] == "''"


def test_lines_from_a_file_are_answered_too(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    listing = {"jsonrpc": "2.0", "id": "a", "method": "session/list", "params": {}}
    path.write_bytes(encode(INITIALIZE, listing).removesuffix(b"\n"))
    with path.open("rb") as lines:
        done = subprocess.run(
            [*COMMAND, "acp"], stdin=lines, capture_output=True, timeout=60, check=True
        )
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["result"]["protocolVersion"] == 1
    assert second == {"jsonrpc": "2.0", "id": "a", "result": {"sessions": []}}


def test_initialize_is_answered_before_the_rest_is_loaded() -> None:
    """A client waits for this answer, so it needs neither sessions nor providers."""
    program = (
        "import sys\nimport vibe_llms.cli.commands, vibe_llms.cli.acp\n"
        "print(*[one for one in sys.modules if one.startswith('vibe_llms.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    rooms = {one.split(".")[1] for one in done.stdout.split()}
    assert rooms <= {"acp", "base", "cli", "messages"}


def test_a_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """The rest of it is skipped, and the next line is read."""
    with running() as agent:
        assert agent.process.stdin is not None
        chunk = b"x" * (1024 * 1024)
        for _ in range(129):
            agent.process.stdin.write(chunk)
        assert "more than 134,217,728 bytes" in agent.read()["error"]["message"]
        agent.process.stdin.write(b"x\n" + encode(INITIALIZE))
        assert agent.read()["result"]["protocolVersion"] == 1


def test_every_method_of_the_agent_is_announced() -> None:
    from vibe_llms.acp.agent import AcpAgent
    from vibe_llms.acp.options import LaunchOptions
    from vibe_llms.acp.requests import ClientAbilities

    agent = AcpAgent(None, ClientAbilities(), LaunchOptions(), print)  # type: ignore[arg-type]
    assert agent.methods.keys() == METHODS


def test_a_terminal_is_told_that_an_editor_is_missing() -> None:
    done = run("acp", "--help")
    assert done.status == 0
    assert "Agent Client Protocol" in done.output
