"""Sources of tools over HTTP: what agents use, with states, without starting anything unasked."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes import mcp_lasting, mcp_server
from tests.server.conftest import Served, serving

COMMAND = [sys.executable, str(Path(mcp_server.__file__))]
ROWS = f"""
[ensembles.echo]
module = "vibe_llms.ensembles.mcp"
command = {COMMAND}
approvals = {{ pid = "deny" }}

[ensembles.broken]
module = "vibe_llms.ensembles.mcp"
command = ["{sys.executable}", "-c", "raise SystemExit(3)", "--key=sekret"]

[ensembles.lasting]
module = "vibe_llms.ensembles.mcp"
command = ["{sys.executable}", "{mcp_lasting.__file__}", "FOLDER"]

[ensembles.private]
module = "vibe_llms.ensembles.mcp"
command = {[*COMMAND, "pages"]}

[agents.helper]
model = "scripted/demo"
ensembles = ["documents", "broken"]
tools = ["echo/echo"]

[agents.starred]
model = "scripted/demo"
optional-ensembles = ["*"]
"""


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with MCP servers, of which two are used by an agent."""
    home.mkdir()
    (home / "config.toml").write_text(ROWS.replace("FOLDER", str(home)))
    (home / "list.json").write_text(json.dumps({"description": "Look.", "holds": 60_000}))
    async with serving(home) as server:
        yield server


async def survey(client: httpx2.AsyncClient, *, check: bool = False) -> dict[str, Any]:
    """The sources by name."""
    listed = await client.get("/api/tools", params={"check": check})
    assert listed.status_code == 200, listed.text
    return {one["name"]: one for one in listed.json()["sources"]}


async def test_nothing_is_started_unless_asked(served: Served, home: Path) -> None:
    starts = home / "starts"
    async with served.http() as client:
        before = await survey(client)
        assert not starts.exists()
        checked = await survey(client, check=True)
        after = await survey(client)
    async with serving(home) as again:
        again.keys |= served.keys
        async with again.http() as client:
            remembered = await survey(client)
    assert starts.read_text() == "started\n"
    names = ("echo", "broken", "private", "lasting")
    assert [before[name]["state"] for name in names] == ["unopened"] * 4
    assert [checked[name]["state"] for name in names] == ["ready", "failed", "ready", "ready"]
    assert "its process ended with status 3" in checked["broken"]["problem"]
    echo, pid = checked["echo"]["tools"]
    assert (echo["name"], echo["approval"], echo["blocked"]) == ("echo/echo", "ask", "")
    assert echo["arguments_schema"]["type"] == "object"
    assert (pid["name"], pid["approval"]) == ("echo/pid", "deny")
    assert checked["echo"]["outside"] is True
    assert "lasting" in checked["lasting"]["details"].values()
    assert after["echo"] == checked["echo"]
    assert after["broken"]["state"] == "unopened"
    # Its list holds for some time, so that the first call may start it.
    assert remembered["lasting"] == {**checked["lasting"], "details": {}}


async def test_users_see_what_their_agents_use_and_no_commands(served: Served) -> None:
    async with served.http("ada") as ada, served.http() as local:
        before = await survey(ada)
        response = await ada.get("/api/tools?check=true")
        mine = {one["name"]: one for one in response.json()["sources"]}
        all_rows = await survey(local)
    assert {"broken", "documents", "echo"} <= {*mine}
    assert "private" not in mine
    assert {"broken", "documents", "echo", "private"} <= {*all_rows}
    assert (before["echo"]["state"], mine["echo"]["agents"]) == ("unopened", ["helper"])
    assert [one["name"] for one in mine["echo"]["tools"]] == ["echo/echo"]
    assert "documents/search_document" in [one["name"] for one in mine["documents"]["tools"]]
    assert mine["broken"]["problem"] == "a tool server failed; the log of the server says why"
    assert "sekret" not in response.text
    assert sys.executable not in response.text
    assert any("broken" in line for line in served.log)
    assert all_rows["private"]["agents"] == []


async def test_a_check_counts_as_a_turn(home: Path) -> None:
    async with serving(home, server={"user-turns": 1}) as served, served.http() as client:
        with served.running._core.spaces.enter("local") as space, space.turn():
            checked = await client.get("/api/tools?check=true")
            listed = await client.get("/api/tools")
        wrong = await client.get("/api/tools?check=maybe")
    assert [one.status_code for one in (checked, listed, wrong)] == [429, 200, 400]
