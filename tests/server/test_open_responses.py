"""Every body and every event of Responses follows the specification, whatever happens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Served, serving
from tests.server.test_responses import TOOL, read_events, validate

RESPONSES = "/v1/responses"
SCRIPTS = {
    "think": (
        '[[replies]]\nwhen = ".*"\nparts = [{ reasoning = "Let me see." }, { text = "It is. " }, '
        '{ reasoning = "Really?" }, { text = "Yes." }]\n'
    ),
    "stages": (
        '[[replies]]\nwhen = "^Go"\nparts = [{ text = "Well." }, { invocation = "clock/tell" }, '
        '{ invocation = "clock/wind", arguments = { turns = 2 } }, '
        '{ invocation = "clock/smash" }, '
        '{ invocation = "clock/whisper", arguments = { secret = "swordfish" } }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "Done." }]\n'
    ),
    "mixed": (
        '[[replies]]\nwhen = "^Go"\nparts = [{ invocation = "clock/tell" }, '
        '{ invocation = "look_up", arguments = { city = "Rome" } }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "Done." }]\n'
    ),
    "ask": (
        '[[replies]]\nwhen = "^Go"\n'
        'parts = [{ invocation = "clock/sell", arguments = { price = 1 } }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "Sold." }]\n'
    ),
    "form": '[[replies]]\nwhen = ".*"\nparts = [{ text = \'{"a": 1}\' }]\n',
    "long": (
        '[[replies]]\nwhen = ".*"\nstop-reason = "length"\nparts = [{ text = "And so on" }]\n'
    ),
    "refuse": ('[[replies]]\nwhen = ".*"\nstop-reason = "refused"\nparts = [{ text = "No." }]\n'),
    "break": ('[[replies]]\nwhen = ".*"\nparts = [{ text = "Well" }, { error = "unreachable" }]\n'),
    "fail": '[[replies]]\nwhen = ".*"\nparts = [{ error = "overloaded" }]\n',
    "stall": '[[replies]]\nwhen = ".*"\nparts = [{ text = "first " }, { stall = true }]\n',
}
AGENTS = ("stages", "mixed", "ask")
FORM = {"type": "json_schema", "name": "form", "schema": {"type": "object"}}
#: What each script comes to, and what else is asked for.
ENDS: list[tuple[str, str, dict[str, Any]]] = [
    ("think", "completed", {"reasoning": {"effort": "low"}, "instructions": "Be brief."}),
    ("stages", "completed", {"metadata": {"a": "b"}, "temperature": 0.5}),
    ("mixed", "completed", {"tools": [TOOL], "parallel_tool_calls": True}),
    ("form", "completed", {"text": {"format": FORM}, "max_output_tokens": 100}),
    ("long", "incomplete", {"tool_choice": "auto"}),
    ("refuse", "incomplete", {}),
    ("break", "failed", {}),
]


@pytest.fixture
async def scripted(home: Path) -> AsyncIterator[Served]:
    """A server with those scripts, some of them as agents with tools."""
    home.mkdir()
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    agents = {name: {"model": f"scripted/{name}", "ensembles": ["clock"]} for name in AGENTS}
    tables: Any = {
        "providers": {"scripted": {"scripts": scripts}},
        "agents": agents,
        "ensembles": {"clock": {"module": "tests.server.clock"}},
        "stream": {"retries": 0},
    }
    async with serving(home, **tables) as served:
        yield served


def write(script: str, **options: Any) -> dict[str, Any]:
    model = script if script in AGENTS else f"scripted/{script}"
    return {"model": model, "input": "Go on.", **options}


@pytest.mark.parametrize(("script", "status", "options"), ENDS, ids=[one[0] for one in ENDS])
async def test_replies_of_all_kinds_are_valid(
    scripted: Served, script: str, status: str, options: dict[str, Any]
) -> None:
    async with scripted.http() as http:
        for store in (True, False):
            body = write(script, store=store, **options)
            events = await read_events(http, "POST", RESPONSES, json={**body, "stream": True})
            last = events[-1]["response"]
            assert (last["status"], events[-1]["type"]) == (status, f"response.{status}")
            assert [one["sequence_number"] for one in events] == sorted(
                {one["sequence_number"] for one in events}
            )
            # Items are opened, closed and shown in the end in the same order.
            opened = [one["item"]["id"] for one in events if one["type"].endswith("item.added")]
            closed = [one["item"]["id"] for one in events if one["type"].endswith("item.done")]
            if status != "failed" or store:
                assert opened == [one["id"] for one in last["output"]]
            assert sorted(closed) == sorted(opened)
            if store:
                found = (await http.get(f"{RESPONSES}/{last['id']}")).json()
                validate(found)
                assert found == last
            if status != "failed":
                whole = (await http.post(RESPONSES, json=body)).json()
                validate(whole)
                assert (whole["status"], len(whole["output"])) == (status, len(last["output"]))


async def test_stages_are_items_with_progress_and_hide_what_is_hidden(scripted: Served) -> None:
    async with scripted.http() as http:
        events = await read_events(http, "POST", RESPONSES, json=write("stages", stream=True))
    output = {one["name"]: one for one in events[-1]["response"]["output"] if "name" in one}
    assert output["clock/tell"]["output"] == "noon in UTC"
    assert output["clock/smash"]["status"] == "failed"
    assert (output["clock/whisper"]["arguments"], output["clock/whisper"]["output"]) == (None, None)
    assert "swordfish" not in json.dumps(events)
    progress = [one for one in events if one["type"] == "x:response.tool_call.progress"]
    assert [(one["text"], one["done"]) for one in progress] == [("turn 1", 1.0), ("turn 2", 2.0)]
    assert {one["item_id"] for one in progress} == {output["clock/wind"]["id"]}


@pytest.mark.parametrize("background", [True, False])
async def test_a_response_that_is_cancelled_is_valid(scripted: Served, background: bool) -> None:
    async with scripted.http() as http:
        body, identity = write("stall", stream=True, background=background), ""
        async with http.stream("POST", RESPONSES, json=body) as response:
            async for line in response.aiter_lines():
                if "response.created" in line and line.startswith("data"):
                    identity = json.loads(line[6:])["response"]["id"]
                if "output_text.delta" in line:
                    break
        url = f"{RESPONSES}/{identity}"
        running = (await http.get(url)).json()
        validate(running)
        assert running["status"] == "in_progress"
        cancelled = (await http.post(f"{url}/cancel")).json()
        validate(cancelled)
        assert cancelled["status"] == "cancelled"
        events = await read_events(http, "GET", f"{url}?stream=true")
        assert events[-1]["response"] == cancelled
        assert "output_item.done" in events[-2]["type"]
        assert events[-2]["item"]["status"] == "incomplete"


async def test_a_response_that_waits_and_goes_on_is_valid(scripted: Served) -> None:
    async with scripted.http() as http:
        waiting = (await http.post(RESPONSES, json=write("ask"))).json()
        validate(waiting)
        assert waiting["status"] == "in_progress"
        (item,) = (one for one in waiting["output"] if one["type"] == "x:approval_request")
        decision = {"invocation": item["invocation"], "allowed": True}
        run = waiting["id"].removeprefix("resp_")
        assert (await http.post(f"/api/runs/{run}/decide", json=decision)).status_code == 200
        events = await read_events(http, "GET", f"{RESPONSES}/{waiting['id']}?stream=true")
        assert events[-1]["response"]["status"] == "completed"
        assert "sold for 1" in json.dumps(events[-1])


async def test_a_failure_in_the_background_is_valid(scripted: Served) -> None:
    async with scripted.http() as http:
        begun = (await http.post(RESPONSES, json=write("fail", background=True))).json()
        validate(begun)
        events = await read_events(http, "GET", f"{RESPONSES}/{begun['id']}?stream=true")
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["message"]
        found = (await http.get(f"{RESPONSES}/{begun['id']}")).json()
        validate(found)
        assert found["status"] == "failed"
