"""The client's MCP servers: opened under our rules, under names of their own, and closed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editor import Failure, editing
from tests.acp.scripts import ASKING, ECHO, call, options_for, replies, server, stored
from tests.cli.command import script_of
from vibe_llms.acp.home import _find_name, _produce_row
from vibe_llms.acp.options import LaunchOptions
from vibe_llms.acp.requests import NamedValue, ServerParams
from vibe_llms.base.configuration import fill_variables

pytestmark = pytest.mark.usefixtures("warm_process")

PERMISSION = "session/request_permission"


def choose(option: str) -> Any:
    return lambda _: {"outcome": {"outcome": "selected", "optionId": option}}


class Choices:
    """Answers to requests for permission, one after the other."""

    def __init__(self, *options: str) -> None:
        self._left = list(options)

    def __call__(self, params: Any) -> Any:
        return choose(self._left.pop(0))(params)


def configure(home: Path, approval: str) -> None:
    """A row of the user's own with the name of a client's server."""
    home.mkdir()
    command = json.dumps([sys.executable, str(ECHO)])
    (home / "config.toml").write_text(
        f'[ensembles.fake]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = {command}\n'
        f'approval = "{approval}"\n'
    )


async def test_the_rules_of_a_row_are_not_those_of_a_clients_server_of_that_name(
    tmp_path: Path, home: Path
) -> None:
    configure(home, "always")
    script = replies(
        call("fake/echo", text="mine"), call("fake-2/echo", text="theirs"), "{ text = 'Done.' }"
    )
    async with editing(options_for(tmp_path, script, ensembles=("fake",))) as editor:
        editor.replies[PERMISSION] = choose("reject")
        session = await editor.open(tmp_path, mcpServers=[server()])
        await editor.say(session, "Echo")
        (asked,) = editor.asked
        assert asked["params"]["toolCall"]["title"] == "fake-2/echo"
    results = [one["contents"][0]["data"] for one in stored(home) if one["role"] == "result"]
    assert results == ["mine", "The call was not allowed: the user said no."]


async def test_a_server_works_in_the_folder_of_the_session(tmp_path: Path, home: Path) -> None:
    script = replies(call("My-server/where"), "{ text = 'Done.' }")
    folder = tmp_path / "project ${HOME}"
    folder.mkdir()
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(folder, mcpServers=[server(ASKING, "My server!")])
        await editor.say(session, "Where?")
        (result,) = [one for one in editor.of("tool_call_update") if "rawOutput" in one]
        assert folder.as_uri() in result["rawOutput"]["text"]


async def test_a_server_that_does_not_start_is_reported_and_left_out(tmp_path: Path) -> None:
    broken = {**server(), "name": "broken", "command": "/nowhere/server"}
    script = replies(call("fake/echo", text="hello"), "{ text = 'Done.' }")
    async with editing(options_for(tmp_path, script)) as editor:
        editor.replies[PERMISSION] = choose("allow")
        session = await editor.open(tmp_path, mcpServers=[broken, server()])
        note = await editor.wait_for("agent_thought_chunk")
        assert "broken" in note["content"]["text"]
        assert "its tools are left out" in note["content"]["text"]
        # An editor drops what it gets about a session before it knows the session.
        opened = next(one for one in editor.messages if "sessionId" in one.get("result", {}))
        updates = [one for one in editor.messages if one.get("method") == "session/update"]
        assert editor.messages.index(opened) < editor.messages.index(updates[0])
        assert {name for name, _ in editor.updates} == {session}
        assert await editor.say(session, "Echo") == "end_turn"
        assert len(editor.asked) == 1


async def test_a_variable_that_loads_other_code_leaves_the_servers_out(tmp_path: Path) -> None:
    loading = {**server(), "env": [{"name": "LD_PRELOAD", "value": "/evil.so"}]}
    async with editing(options_for(tmp_path, script_of("{ text = 'Hi.' }"))) as editor:
        session = await editor.open(tmp_path, mcpServers=[loading])
        note = await editor.wait_for("agent_thought_chunk")
        assert "LD_PRELOAD" in note["content"]["text"]
        assert await editor.say(session, "Hi") == "end_turn"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "a"}, "the MCP server 'a' has no command"),
        ({"name": "a", "type": "http", "headers": []}, "the MCP server 'a' has no url"),
        ({"name": "a", "type": "smoke"}, "has the type 'smoke'; use stdio, http or sse"),
        ({"command": "a"}, "missing required field `name`"),
        ({"name": "a", "command": "b", "args": "c"}, "Expected `array`"),
        ("a", "Expected `object`"),
    ],
)
async def test_a_wrong_server_is_an_error_and_opens_nothing(
    tmp_path: Path, given: Any, problem: str
) -> None:
    async with editing(options_for(tmp_path, script_of("{ text = 'Hi.' }"))) as editor:
        with pytest.raises(Failure, match=problem) as failure:
            await editor.open(tmp_path, mcpServers=[given])
        assert failure.value.code == -32602


async def test_a_wrong_configuration_is_an_error_that_names_the_file(
    tmp_path: Path, home: Path
) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[agents.a]\nmodel = 3\n")
    async with editing(LaunchOptions(agent="a")) as editor:
        with pytest.raises(Failure, match=r"config\.toml") as failure:
            await editor.open(tmp_path)
        assert failure.value.data["kind"] == "configuration-error"
        # Once it is mended, the same process goes on.
        (home / "config.toml").write_text("[agents.a]\n")
        assert await editor.say(await editor.open(tmp_path), "Hi") == "end_turn"


async def test_a_changed_tool_is_blocked_until_the_user_has_seen_the_change(
    tmp_path: Path, home: Path
) -> None:
    script = replies(call("fake/echo", text="hello"), "{ text = 'Done.' }")
    options = options_for(tmp_path, script)
    async with editing(options) as editor:
        editor.replies[PERMISSION] = choose("allow")
        session = await editor.open(tmp_path, mcpServers=[server()])
        await editor.say(session, "Echo")
    (path,) = home.rglob("pins/*.json")
    approved = path.read_text("utf-8")
    path.write_text(approved.replace('"description": ""', '"description": "Harmless"'), "utf-8")
    assert path.read_text("utf-8") != approved
    async with editing(options) as editor:
        editor.replies[PERMISSION] = choose("keep")
        session = await editor.open(tmp_path, mcpServers=[server()])
        await editor.say(session, "Echo")
        (asked,) = editor.asked
        assert asked["params"]["toolCall"]["title"] == "Approve changed tools of fake"
        assert "Harmless" in asked["params"]["toolCall"]["content"][0]["content"]["text"]
        assert "is blocked" in str(editor.of("tool_call_update")[-1])
    async with editing(options) as editor:
        editor.replies[PERMISSION] = Choices("approve", "allow")
        session = await editor.open(tmp_path, mcpServers=[server()])
        await editor.say(session, "Echo")
        assert editor.of("tool_call_update")[-1]["status"] == "completed"
    assert path.read_text("utf-8") == approved


def test_a_server_gets_a_row_with_a_name_that_tools_can_have() -> None:
    names = [_find_name(name, {"files"}) for name in ("files", "My files!", "9", "", "x" * 99, "ü")]
    assert names == ["files-2", "My-files", "server-9", "server", "x" * 40, "server"]


def test_servers_over_http_become_rows() -> None:
    header = NamedValue("Authorization", "Bearer ${TOKEN}")
    given = ServerParams("a", "sse", url="https://a.test/${X}", headers=(header,))
    row = _produce_row(given, "/project")
    assert (row["transport"], row["roots"]) == ("sse", ["/project"])
    for text, meant in ((row["url"], given.url), (row["headers"][header.name], header.value)):
        assert fill_variables(text, {"X": "no", "TOKEN": "no"}) == meant
