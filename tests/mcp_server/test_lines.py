"""Lines that the command reads and writes, also those that no good client sends."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from vibe_llms.mcp_server.eras import CAPABILITIES_KEY, VERSION_KEY

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}},
}
META = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}


def request(method: str, identity: Any = 1, **params: Any) -> dict[str, Any]:
    """A request."""
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def exchange(*lines: Any, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The lines that the command writes for some lines, until it ends by itself."""
    data = b"".join(
        (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
    )
    done = subprocess.run(
        [*COMMAND, "mcp", "serve", *options],
        input=data,
        capture_output=True,
        timeout=LONGEST_SECONDS,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def refuse(*lines: Any) -> tuple[Any, int, str]:
    """The id, the code and the words of the only error for some lines."""
    (answer,) = [one for one in exchange(*lines) if "error" in one]
    return answer["id"], answer["error"]["code"], answer["error"]["message"]


@pytest.fixture(scope="module")
def asked_in_turn(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Any], dict[str, Any]]]:
    """One process for many lines: sends a line that gets one answer, and returns the answer."""
    home = tmp_path_factory.mktemp("asked")
    environment = {**os.environ, "HOME": str(home), "VIBE_LLMS_HOME": str(home / "home")}
    command = [*COMMAND, "mcp", "serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        to, answers = server.stdin, server.stdout

        def ask(line: Any) -> dict[str, Any]:
            to.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
            to.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield ask
        to.close()
        assert answers.read() == b""
        assert server.wait(LONGEST_SECONDS) == 0


@pytest.mark.parametrize(
    ("version", "spoken"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        # The client decides if it goes on.
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ],
)
def test_a_handshake_agrees_on_a_version(home: Path, version: str, spoken: str) -> None:
    (answer,) = exchange(request("initialize", protocolVersion=version, capabilities={}))
    assert answer["result"]["protocolVersion"] == spoken
    assert answer["result"]["serverInfo"]["name"] == "vibe-llms"


@pytest.mark.parametrize(
    ("line", "identity", "code", "words"),
    [
        (b"{", None, -32700, "not valid JSON"),
        (b"[" * 100_000, None, -32700, "not valid JSON"),
        (b"\xff", None, -32700, "not valid JSON"),
        (b"3", None, -32600, "a message is an object"),
        ([INITIALIZE], None, -32600, "batches are not supported"),
        ({"id": 1, "method": "ping"}, 1, -32600, '"jsonrpc": "2.0"'),
        ({"jsonrpc": "2.0", "id": [], "method": "ping"}, None, -32600, "the id of a message"),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None, -32600, "the id of a message"),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, 1, -32600, "params is"),
        ({"jsonrpc": "2.0", "id": 1, "method": 1}, 1, -32600, "method is a string"),
        ({"jsonrpc": "2.0", "id": 1}, 1, -32600, "a response has either"),
        ({"jsonrpc": "2.0"}, None, -32600, "a message has a method"),
        (request("nothing", _meta=META), 1, -32601, "method 'nothing' not found"),
        (request("initialize", _meta=META), 1, -32601, "method 'initialize' not found"),
        (request("ping", _meta=META), 1, -32601, "method 'ping' not found"),
        (request("tools/list"), 1, -32602, VERSION_KEY),
        (request("tools/list", _meta={VERSION_KEY: "2026-07-28"}), 1, -32602, CAPABILITIES_KEY),
        (request("tools/list", _meta={**META, VERSION_KEY: 1}), 1, -32602, "is a string"),
        (request("tools/list", _meta={**META, VERSION_KEY: "1"}), 1, -32022, "'1' is not supp"),
        (request("tools/list", _meta=META, cursor="x"), 1, -32602, "the list has one page"),
        (request("tools/call", _meta=META), 1, -32602, "tools/call needs name"),
        (request("tools/call", _meta=META, name="wait", arguments=[1]), 1, -32602, "is an object"),
        (request("resources/read", _meta=META, uri="x:["), 1, -32602, "'x:[' not found"),
        (request("completion/complete", _meta=META), 1, -32602, "needs ref and argument"),
        (request("initialize"), 1, -32602, "needs protocolVersion"),
        (
            request("tools/call", _meta=META, name="wait", requestState="x"),
            1,
            -32602,
            "requestState is not valid",
        ),
    ],
)
def test_a_message_that_is_wrong_is_refused(
    asked_in_turn: Callable[[Any], dict[str, Any]], line: Any, identity: Any, code: int, words: str
) -> None:
    answer = asked_in_turn(line)
    assert (answer["id"], answer["error"]["code"]) == (identity, code)
    assert words in answer["error"]["message"]


def test_a_level_that_does_not_exist_is_refused(home: Path) -> None:
    assert refuse(INITIALIZE, request("logging/setLevel", level="loud"))[1] == -32602


def test_nothing_is_answered_to_notifications_and_unknown_responses(home: Path) -> None:
    lines = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "method": "nothing"},
        {"jsonrpc": "2.0", "id": "x", "result": {}},
        {"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "x"}},
        b"",
    ]
    answers = exchange(INITIALIZE, *lines, request("ping", "last"))
    assert [one["id"] for one in answers] == [0, "last"]
    assert answers[-1]["result"] == {}


def test_only_the_chosen_tools_are_offered(home: Path) -> None:
    def survey(*options: str) -> list[str]:
        _, listed = exchange(INITIALIZE, request("tools/list"), options=options)
        return [one["name"] for one in listed["result"]["tools"]]

    assert survey("--tools", "wait, chat") == ["chat", "wait"]
    assert "chat" not in survey("--read-only")
    assert survey("--read-only", "--tools", "search_memory") == ["search_memory"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tools", "nothing"), "tool 'nothing' not found; the tools are chat, wait"),
        (("--tools", "chat", "--read-only"), "the tool 'chat' does not only read"),
    ],
)
def test_tools_that_do_not_exist_are_refused(
    home: Path, options: tuple[str, ...], words: str
) -> None:
    done = subprocess.run(
        [*COMMAND, "mcp", "serve", *options], input=b"", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
