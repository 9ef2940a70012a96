"""Malformed lines, wrong requests and wrong orders: each gets a clear error, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editor import Failure, connecting, editing
from tests.acp.scripts import options_for, stored
from tests.cli.command import script_of
from vibe_llms.acp.failures import explain
from vibe_llms.acp.peer import Empty, Peer
from vibe_llms.base.exceptions import RequestError

LINES: list[tuple[bytes, int, str]] = [
    (b"hello", -32700, "not valid JSON"),
    (b"{", -32700, "not valid JSON"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"} {}', -32700, "trailing"),
    (b'{"jsonrpc": "2.0", "method": "\xff"}', -32700, "utf-8"),
    (b'{"jsonrpc": "2.0", "method": "\\ud800"}', -32700, "not valid JSON"),
    (b"\xef\xbb\xbf{}", -32700, "not valid JSON"),
    (
        b'{"jsonrpc": "2.0", "params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        -32700,
        "recursion",
    ),
    (b"[]", -32600, "Expected `object`"),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "initialize"}]', -32600, "Expected `object`"),
    (b"1", -32600, "Expected `object`"),
    (b"{}", -32600, '"jsonrpc" must be "2.0"'),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "initialize"}', -32600, '"jsonrpc" must be'),
    (b'{"jsonrpc": "2.0"}', -32600, 'no "method" and no "id"'),
    (b'{"jsonrpc": "2.0", "id": 7}', -32600, 'no "method", "result" or "error"'),
    (b'{"jsonrpc": "2.0", "id": {}, "method": "initialize"}', -32600, "$.id"),
    (b'{"jsonrpc": "2.0", "id": 1.5, "method": "initialize"}', -32600, "$.id"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 2}', -32600, "$.method"),
]


@pytest.mark.parametrize(("line", "code", "problem"), LINES, ids=lambda one: str(one)[:40])
async def test_a_malformed_line_gets_an_error_and_the_next_one_its_answer(
    line: bytes, code: int, problem: str
) -> None:
    async with connecting() as editor:
        editor.send_line(line)
        answer = await editor.wait_until(lambda: editor.messages and editor.messages[0])
        assert (answer["id"], answer["error"]["code"]) == (None, code)
        assert problem in answer["error"]["message"]
        await editor.initialize()


async def test_blank_lines_and_late_answers_are_ignored() -> None:
    async with connecting() as editor:
        for line in (b"", b"  \r", b'{"jsonrpc": "2.0", "id": 99, "result": {}}'):
            editor.send_line(line)
        await editor.initialize()
        assert len(editor.messages) == 1


@pytest.mark.parametrize("version", [0, 1, 2, 65535, 10**30])
async def test_another_version_is_answered_with_ours(version: int) -> None:
    """The protocol wants the latest version that the agent knows; the client may then leave."""
    async with connecting() as editor:
        answer = await editor.call("initialize", protocolVersion=version)
        assert answer["protocolVersion"] == 1
        assert answer["agentCapabilities"]["loadSession"] is True


@pytest.mark.parametrize("version", ["1", None, 1.5, -1, True, []])
async def test_a_version_that_is_no_number_is_an_error(version: Any) -> None:
    async with connecting() as editor:
        with pytest.raises(Failure, match="protocolVersion") as failure:
            await editor.call("initialize", protocolVersion=version)
        assert failure.value.code == -32602
        with pytest.raises(Failure, match="before initialize"):
            await editor.open()


WRONG: list[tuple[str, Any, int, str]] = [
    ("session/fly", {}, -32601, "method 'session/fly' not found"),
    ("authenticate", {"methodId": "x"}, -32601, "not found"),
    ("fs/read_text_file", {}, -32601, "not found"),
    ("x" * 10_000, {}, -32601, "…"),
    ("initialize", {}, -32602, "protocolVersion"),
    ("session/new", {}, -32602, "cwd"),
    ("session/new", {"cwd": None}, -32602, "cwd"),
    ("session/new", {"cwd": "relative", "mcpServers": []}, -32602, "an absolute path, not"),
    ("session/new", {"cwd": "", "mcpServers": []}, -32602, "an absolute path, not ''"),
    ("session/new", {"cwd": "/nowhere/x", "mcpServers": []}, -32602, "does not exist"),
    ("session/new", {"cwd": "/a\0b", "mcpServers": []}, -32602, "an absolute path"),
    ("session/new", [1], -32602, "Expected `object`"),
    ("session/new", None, -32602, "Expected `object`"),
    ("session/load", {"sessionId": "x"}, -32602, "cwd"),
    ("session/load", {"sessionId": "x", "cwd": "/", "mcpServers": []}, -32002, "'x' not found"),
    ("session/resume", {"sessionId": "", "cwd": "/", "mcpServers": []}, -32002, "''"),
    ("session/resume", {"sessionId": "../x", "cwd": "/"}, -32002, "not found"),
    ("session/list", {"cwd": "relative"}, -32602, "an absolute path"),
    ("session/list", {"cursor": 3}, -32602, "cursor"),
    ("session/close", {"sessionId": "x"}, -32002, "not open"),
    ("session/prompt", {"sessionId": "x", "prompt": []}, -32002, "not open"),
    ("session/prompt", {"sessionId": "x"}, -32602, "prompt"),
    ("session/set_config_option", {"sessionId": "x", "configId": "model"}, -32602, "value"),
    ("session/delete", {}, -32602, "sessionId"),
]


@pytest.mark.parametrize(
    ("method", "params", "code", "problem"), WRONG, ids=[f"{n}" for n in range(len(WRONG))]
)
async def test_a_wrong_request_is_an_error_that_says_what_is_wrong(
    home: Path, method: str, params: Any, code: int, problem: str
) -> None:
    async with editing() as editor:
        editor.send({"id": "mine", "method": method, "params": params})
        answer = await editor.wait_until(lambda: editor.messages[1:] and editor.messages[-1])
        assert (answer["id"], answer["error"]["code"]) == ("mine", code)
        assert problem in answer["error"]["message"]
        assert await editor.call("session/list") == {"sessions": []}
    assert [*home.glob("conversations/*")] == []


PROMPTS: list[tuple[Any, str]] = [
    ([], "the message is empty"),
    ([{"type": "text", "text": " \n"}], "the message is empty"),
    ([{"type": "text"}], "the block 1 of the prompt has no text"),
    ([{"type": "video", "data": "x"}], "the block 1 of the prompt has the unknown type 'video'"),
    ([{"type": "text", "text": "a"}, {"type": "image", "data": "!", "mimeType": "image/png"}], "2"),
    ([{"type": "image", "data": "", "mimeType": "image/png"}], "has empty data"),
    ([{"type": "image", "data": "aGk="}], "has no mimeType"),
    ([{"type": "resource"}], "has no resource"),
    ([{"type": "resource", "resource": {"uri": "file:///a"}}], "has no blob"),
    ([{"type": "resource_link", "name": "a"}], "has no uri"),
]


@pytest.mark.parametrize(("blocks", "problem"), PROMPTS, ids=[f"{n}" for n in range(len(PROMPTS))])
async def test_a_wrong_prompt_is_an_error_and_stores_nothing(
    tmp_path: Path, home: Path, blocks: Any, problem: str
) -> None:
    async with editing(options_for(tmp_path, script_of("{ text = 'Hi.' }"))) as editor:
        session = await editor.open(tmp_path)
        with pytest.raises(Failure) as failure:
            await editor.call("session/prompt", sessionId=session, prompt=blocks)
        assert failure.value.code == -32602
        assert problem in failure.value.message
        assert [*home.glob("conversations/*")] == []
        assert await editor.say(session, "Hello") == "end_turn"


async def test_notifications_get_no_answer_even_if_they_are_wrong() -> None:
    async with editing() as editor:
        editor.notify("session/cancel", sessionId="x")
        editor.notify("session/fly")
        editor.notify("$/cancel_request", requestId=[])
        editor.notify("$/cancel_request", requestId="unknown")
        await editor.call("session/list")
        assert len(editor.messages) == 2
        assert len(editor.notes) == 3


async def test_a_cancelled_request_is_answered_as_such(tmp_path: Path, home: Path) -> None:
    script = script_of("{ text = 'One ' }", "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        block = {"type": "text", "text": "Count"}
        params = {"sessionId": session, "prompt": [block]}
        editor.send({"id": "turn", "method": "session/prompt", "params": params})
        await editor.wait_for("agent_message_chunk")
        editor.notify("$/cancel_request", requestId="turn")
        answer = await editor.wait_until(
            lambda: next((one for one in editor.messages if one.get("id") == "turn"), None)
        )
        assert answer["error"]["code"] == -32800
    assert [one["role"] for one in stored(home)] == ["user", "assistant"]


@pytest.mark.storm
async def test_the_agent_survives_lines_of_every_kind(
    tmp_path: Path, home: Path, rounds: Any
) -> None:
    """A fuzz: no line ends the agent, and it writes nothing that does not follow the protocol."""
    chance = random.Random(7)
    async with editing(options_for(tmp_path, script_of("{ text = 'Hi.' }"))) as editor:
        session = await editor.open(tmp_path)
        for _ in range(rounds(400, 20_000)):
            editor.send_line(spoil(chance, session))
        await editor.call("session/list")
        session = await editor.open(tmp_path)
        assert await editor.say(session, "Hello") == "end_turn"
    assert [one for one in editor.notes if "Traceback" in one] == []


METHODS = (
    *("initialize", "session/new", "session/load", "session/resume", "session/list"),
    *("session/close", "session/delete", "session/prompt", "session/cancel", "$/cancel_request"),
    *("session/set_config_option", "session/update", "", "x"),
)


def spoil(chance: random.Random, session: str) -> bytes:
    """A line: a request with strange members, or one whose bytes are spoiled."""
    params = {
        "sessionId": chance.choice([session, session, "x", 3, None]),
        "cwd": chance.choice(["/", "/", "x", "", None, 3]),
        "mcpServers": chance.choice([[], [], None, [{}], [{"name": "a"}], "x"]),
        "prompt": chance.choice([[{"type": "text", "text": "Hi"}], [], [{}], "Hi", None]),
        "configId": chance.choice(["model", "agent", "x", None]),
        "value": chance.choice(["scripted/demo", "-", True, None]),
        "protocolVersion": chance.choice([1, 2, "1"]),
        "requestId": chance.choice([1, "a", None, []]),
        "cursor": chance.choice(["x", None, None]),
    }
    for name in chance.sample([*params], chance.randrange(3)):
        del params[name]
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": f"fuzz {chance.randrange(10**9)}",
        "method": chance.choice(METHODS),
        "params": params,
    }
    for name in chance.sample([*message], chance.choice([0, 0, 0, 1, 2])):
        del message[name]
    line = json.dumps(message).encode()
    match chance.randrange(8):
        case 0:
            return line[: chance.randrange(len(line))]
        case 1:
            spoiled = bytearray(line)
            for _ in range(chance.randrange(1, 6)):
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            return bytes(spoiled).replace(b"\n", b"")
        case 2:
            return chance.randbytes(chance.randrange(200)).replace(b"\n", b"")
        case _:
            return line


async def test_many_requests_at_once_are_all_answered() -> None:
    async with editing() as editor:
        answers = [editor.begin("session/list") for _ in range(300)]
        assert await asyncio.gather(*answers) == [{"sessions": []}] * 300


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(28, "No space left on device"), -32603, "No space left on device"),
        (ZeroDivisionError("by zero"), -32603, "ZeroDivisionError: by zero (a bug)"),
        (RequestError("wrong"), -32602, "wrong"),
    ],
)
def test_an_error_is_explained(error: Exception, code: int, text: str) -> None:
    explained = explain(error)
    assert (explained.code, explained.message) == (code, text)


class Silence:
    """An output that nobody reads."""

    def write(self, line: bytes) -> None:
        return

    async def drain(self) -> None:
        return


async def test_our_requests_end_with_the_client() -> None:
    """Also if its last answer is an error that is none."""
    peer = Peer(Silence(), lambda _: None, explain, print)
    asked = [asyncio.ensure_future(peer.request("a", Empty())) for _ in range(2)]
    await asyncio.sleep(0)
    peer.receive(b'{"jsonrpc": "2.0", "id": 0, "error": 3}')
    await peer.finish(1)
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(one) for one in errors] == [
        "an error that is not one of JSON-RPC 2.0",
        "the client has ended",
    ]
