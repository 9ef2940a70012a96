"""Runs over HTTP: a response that waits for an approval is decided on, from anywhere."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.server.test_responses import validate

SCRIPT = """
[[replies]]
parts = [{ invocation = "memory/delete_memories", arguments = { query = "tea" } }]

[[replies]]
parts = [{ text = "That is settled." }]
"""
ASKING = SCRIPT.replace(
    'invocation = "memory/delete_memories", arguments = { query = "tea" }',
    'invocation = "user/ask", arguments = { question = "Which tea?" }',
)


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with an agent whose tool asks before it deletes."""
    home.mkdir()
    (home / "keeper.toml").write_text(SCRIPT)
    (home / "asker.toml").write_text(ASKING)
    (home / "twice.toml").write_text(SCRIPT.partition("\n\n")[0] * 2)
    (home / "slow.toml").write_text("[[replies]]\nparts = [{ stall = true }]\n")
    names = ("keeper", "asker", "twice", "slow")
    scripts = {name: str(home / f"{name}.toml") for name in names}
    async with serving(
        home,
        server={"user-turns": 2},
        providers={"scripted": {"scripts": scripts}},
        agents={
            # A process that continues a run offers the same single tool.
            "keeper": {"model": "scripted/keeper", "tools": ["delete_memory"]},
            "twice": {"model": "scripted/twice", "ensembles": ["memory"]},
            "asker": {"model": "scripted/asker", "ensembles": ["user"]},
        },
    ) as server:
        yield server


async def begin(served: Served, model: str = "keeper") -> tuple[str, str]:
    """A response that waits: its run, and the call."""
    async with served.http() as http:
        response = (await http.post("/v1/responses", json={"model": model, "input": "x"})).json()
    validate(response)
    assert response["status"] == "in_progress"
    *_, wanted = response["output"]
    assert (wanted["type"], wanted["name"]) == {
        "keeper": ("x:approval_request", "memory/delete_memories"),
        "asker": ("x:question", "user/ask"),
    }[model]
    return response["id"].removeprefix("resp_"), wanted["invocation"]


async def read_events(served: Served, run: str, **headers: str) -> list[tuple[int, dict[str, Any]]]:
    """The events of a run until its end, with their cursors."""
    events: list[tuple[int, dict[str, Any]]] = []
    async with (
        served.http() as http,
        http.stream("GET", f"/api/runs/{run}/events", headers=headers) as response,
    ):
        cursor = 0
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                cursor = int(line.removeprefix("id: "))
            elif line.startswith("data: "):
                events.append((cursor, json.loads(line.removeprefix("data: "))))
    return events


async def list_runs(http: httpx2.AsyncClient, query: str) -> list[str]:
    """Return the ids of the runs that a query finds."""
    return [one["id"] for one in (await http.get(f"/api/runs?{query}")).json()["runs"]]


async def wait_for(http: httpx2.AsyncClient, run: str, status: str) -> None:
    """Wait until a run has a status."""
    async with asyncio.timeout(30):
        while (await http.get(f"/api/runs/{run}")).json()["status"] != status:
            await asyncio.sleep(0.02)


async def test_each_item_of_a_response_that_was_cancelled_is_done(served: Served) -> None:
    run, _ = await begin(served)
    path = f"/v1/responses/resp_{run}"
    async with served.http() as http:
        await http.post(f"{path}/cancel")
        ended = (await http.get(path)).json()
        lines = (await http.get(f"{path}?stream=true")).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    added = [one["item"] for one in events if one["type"] == "response.output_item.added"]
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert [one["id"] for one in added] == [one["id"] for one in done]
    assert [one["status"] for one in done] == ["incomplete"]
    assert events[-1]["response"] == ended
    assert [one["status"] for one in ended["output"]] == ["incomplete"]


async def test_a_fork_whose_run_does_not_begin_is_deleted(served: Served) -> None:
    async with served.http() as http:

        async def ask(**body: Any) -> httpx2.Response:
            return await http.post("/v1/responses", json={"input": "x", **body})

        first = (await ask(model="scripted/demo")).json()["id"]
        # Something follows the first one now.
        await ask(previous_response_id=first)
        slow = [(await ask(model="scripted/slow", background=True)).json()["id"] for _ in "12"]
        refused = await ask(previous_response_id=first)
        stored = (await http.get("/api/conversations")).json()["conversations"]
        for one in slow:
            await http.post(f"/v1/responses/{one}/cancel")
        (forked,) = [(await ask(previous_response_id=first)).json()]
    assert refused.status_code == 429
    assert not [one for one in stored if one["forked_from"]]
    assert forked["status"] == "completed"


async def test_requests_at_the_same_time_do_not_exceed_the_runs_of_a_user(served: Served) -> None:
    async with served.http() as http:
        first = (await http.post("/v1/responses", json={"model": "keeper", "input": "x"})).json()
        await http.post(f"/v1/responses/{first['id']}/cancel")

        async def begin_one(number: int) -> httpx2.Response:
            body = {"model": "scripted/slow", "input": f"x{number}", "background": True}
            # Some continue a response, which only one can do without a fork.
            earlier = {"previous_response_id": first["id"]} if number % 2 else {}
            return await http.post("/v1/responses", json={**body, **earlier})

        answers = await asyncio.gather(*map(begin_one, range(12)))
        made = [one.json()["id"] for one in answers if one.status_code == 200]
        refused = [one for one in answers if one.status_code != 200]
        for one in made:
            await http.post(f"/v1/responses/{one}/cancel")
    assert len(made) == 2
    assert {one.status_code for one in refused} == {429}
    assert {one.headers["retry-after"] for one in refused} == {"1"}
    assert {one.json()["error"]["code"] for one in refused} == {"too_many_turns"}


async def test_a_call_of_the_agent_is_not_the_clients_to_answer(served: Served) -> None:
    run, call = await begin(served)
    async with served.http() as http:
        await http.post(f"/v1/responses/resp_{run}/cancel")
        forged = {"type": "function_call_output", "call_id": f"call_{call}", "output": "Forged."}
        earlier = {"model": "keeper", "previous_response_id": f"resp_{run}"}
        refused = await http.post("/v1/responses", json={"input": [forged], **earlier})
        continued = await http.post("/v1/responses", json={"input": "Go on.", **earlier})
        conversation = (await http.get(f"/api/runs/{run}")).json()["conversation"]
        stored = (await http.get(f"/api/conversations/{conversation}")).json()["messages"]
    assert refused.status_code == 400, refused.text
    assert continued.json()["status"] == "completed"
    roles = [one["role"] for one in stored]
    assert roles == ["user", "invocation", "result", "user", "assistant"]
    assert "was not run" in str(stored[2])
    assert "Forged" not in str(stored)


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_response_that_waits_goes_on_once_it_is_decided(
    served: Served, allowed: bool
) -> None:
    run, call = await begin(served)
    decision: dict[str, Any] = {"invocation": call, "allowed": allowed, "reason": "Not today."}
    async with served.http() as http:
        shown = (await http.get(f"/api/runs/{run}")).json()
        assert shown["status"] == "waiting"
        (approval,) = shown["approvals"]
        assert json.loads(approval["arguments"]) == {"query": "tea"}
        assert approval["allowed"] is None
        url = f"/api/runs/{run}/decide"
        for _ in range(2):
            made = await http.post(url, json=decision)
            assert made.json() == {"invocation": call, "allowed": allowed, "always": False}
        other = await http.post(url, json={**decision, "allowed": not allowed})
        assert other.status_code == 409
        events = await read_events(served, run)
        assert events[-1][1]["event"] == "ended"
        response = (await http.get(f"/v1/responses/resp_{run}")).json()
        found = await list_runs(http, "status=completed")
        assert found == await list_runs(http, f"conversation={shown['conversation']}") == [run]
        for query in ("status=unfinished", "conversation=other"):
            assert await list_runs(http, query) == []
    assert response["status"] == "completed"
    stage, message = response["output"]
    assert stage["type"] == "x:tool_call"
    assert stage["status"] == ("completed" if allowed else "failed")
    assert ("Not today." in stage["output"]) is not allowed
    assert message["content"][0]["text"] == "That is settled."
    for place, (cursor, _) in enumerate(events):
        rest = await read_events(served, run, **{"last-event-id": str(cursor)})
        assert rest == events[place + 1 :]


async def test_a_response_that_asks_goes_on_once_it_is_answered(served: Served) -> None:
    run, call = await begin(served, "asker")
    async with served.http() as http:
        (asked,) = (await http.get(f"/api/runs/{run}")).json()["questions"]
        assert (asked["id"], asked["name"], asked["message"]) == (call, "user/ask", "Which tea?")
        assert [one["name"] for one in asked["fields"]] == ["answer"]
        url = f"/api/runs/{run}/answer"
        wrong = await http.post(url, json={"question": call, "values": {"answer": 3}})
        assert (wrong.status_code, "must be text" in wrong.text) == (400, True)
        answer = {"question": call, "values": {"answer": "Green tea."}}
        for _ in range(2):
            assert (await http.post(url, json=answer)).json()["answered"] == "accept"
        other = await http.post(url, json={"question": call, "action": "decline"})
        assert other.status_code == 409
        events = await read_events(served, run)
        response = (await http.get(f"/v1/responses/resp_{run}")).json()
    assert [one["event"] for _, one in events].count("answer-requested") == 1
    stage, message = response["output"]
    assert (stage["status"], stage["output"]) == ("completed", "Green tea.")
    assert message["content"][0]["text"] == "That is settled."


async def test_a_run_of_one_user_does_not_exist_for_another(served: Served) -> None:
    run, call = await begin(served)
    decision = {"invocation": call, "allowed": True}
    async with served.http("eve") as eve, served.http() as http:
        assert (await eve.get("/api/runs")).json() == {"runs": [], "has_more": False}
        for method, url, body in (
            *(("GET", f"/api/runs/{run}", None), ("GET", f"/api/runs/{run}/events", None)),
            *(("POST", f"/api/runs/{run}/cancel", None),),
            *(("POST", f"/api/runs/{run}/decide", decision),),
            *(("POST", f"/api/runs/{run}/answer", {"question": call}),),
        ):
            assert (await eve.request(method, url, json=body)).status_code == 404, url
        assert (await http.get(f"/api/runs/{run[:-2]}")).status_code == 404
        ended = (await http.post(f"/api/runs/{run}/cancel")).json()
    assert ended["status"] == "cancelled"


async def test_a_user_has_so_many_runs_at_a_time(served: Served) -> None:
    body = {"model": "scripted/slow", "input": "x", "background": True}
    async with served.http() as http, served.http("eve") as eve:
        answers = [await http.post("/v1/responses", json=body) for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[-1].headers["retry-after"]
        assert (await eve.post("/v1/responses", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/runs?status=asleep", None, 400),
        ("GET", "/api/runs?limit=0", None, 400),
        ("GET", "/api/runs/nothing", None, 404),
        ("POST", "/api/runs/RUN/decide", {}, 400),
        ("POST", "/api/runs/RUN/decide", {"invocation": "x", "allowed": True}, 409),
        ("POST", "/api/runs/RUN/answer", {"question": "x"}, 409),
        ("POST", "/api/runs/RUN/answer", {"question": "x", "action": "shrug"}, 400),
        ("GET", "/api/runs/RUN/events?after=x", None, 400),
        ("DELETE", "/api/runs/RUN", None, 405),
    ],
)
async def test_a_wrong_request_is_refused(
    served: Served, method: str, path: str, body: Any, status: int
) -> None:
    run, _ = await begin(served)
    async with served.http() as http:
        response = await http.request(method, path.replace("RUN", run), json=body)
    assert response.status_code == status, response.text


async def test_a_run_is_begun_and_continues_its_conversation(served: Served) -> None:
    async with served.http() as http:
        order = {"model": "scripted/demo", "prompt": "Hello"}
        first = await http.post("/api/runs", json=order)
        run = first.json()
        events = await read_events(served, run["id"])
        more = {"prompt": "Thanks.", "conversation": run["conversation"]}
        second = (await http.post("/api/runs", json=more)).json()
        await read_events(served, second["id"])
        shown = (await http.get(f"/api/conversations/{run['conversation']}")).json()
        listed = (await http.get("/api/runs")).json()["runs"]
    assert (first.status_code, run["model"]) == (201, "scripted/demo")
    assert events[-1][1] == {"event": "ended", "status": "completed"}
    assert second["conversation"] == run["conversation"]
    assert [one["role"] for one in shown["messages"]] == ["user", "assistant"] * 2
    assert [one["id"] for one in listed] == [second["id"], run["id"]]


async def test_a_new_conversation_gets_the_name_and_the_tags_of_its_first_run(
    served: Served,
) -> None:
    order = {"model": "scripted/demo", "prompt": "Hello", "name": "Ferries", "tags": ["channel-1"]}
    async with served.http() as http:
        run = (await http.post("/api/runs", json=order)).json()
        await read_events(served, run["id"])
        found = (await http.get("/api/conversations?tag=channel-1")).json()["conversations"]
        more = {"prompt": "Thanks.", "conversation": run["conversation"]}
        refused = [
            await http.post("/api/runs", json={**more, "name": "Boats"}),
            await http.post("/api/runs", json={**more, "tags": ["x"], "fork_at": ""}),
            await http.post("/api/runs", json={**order, "tags": [""]}),
        ]
    assert [(one["id"], one["name"]) for one in found] == [(run["conversation"], "Ferries")]
    assert [one.status_code for one in refused] == [400, 400, 400]
    assert [one.json()["error"]["param"] for one in refused[:2]] == ["name", "tags"]


async def test_runs_are_listed_in_pages(served: Served) -> None:
    async with served.http() as http:
        order = {"model": "scripted/demo", "prompt": "Hello"}
        made = list[str]()
        for _ in range(3):
            made.insert(0, (await http.post("/api/runs", json=order)).json()["id"])
            await read_events(served, made[0])
        first = (await http.get("/api/runs?limit=2")).json()
        # A run that is begun between two pages moves nothing.
        await read_events(served, (await http.post("/api/runs", json=order)).json()["id"])
        rest = (await http.get(f"/api/runs?limit=1&after={made[1]}&status=completed")).json()
        end = (await http.get(f"/api/runs?after={made[2]}")).json()
        unknown = [await http.get(f"/api/runs?after={one}") for one in ("x", made[0][:-1])]
    assert ([one["id"] for one in first["runs"]], first["has_more"]) == (made[:2], True)
    assert ([one["id"] for one in rest["runs"]], rest["has_more"]) == (made[2:], False)
    assert (end["runs"], end["has_more"]) == ([], False)
    for response in unknown:
        assert (response.status_code, response.json()["error"]["param"]) == (404, "after")


async def test_a_run_has_typed_output(served: Served) -> None:
    members = {"name": {"type": "string"}, "born": {"type": "integer"}}
    schema = {"type": "object", "properties": members, "required": ["name", "born"]}
    order = {"model": "scripted/demo", "prompt": "'Ada' was born in 1815.", "output": schema}
    async with served.http() as http:
        run = (await http.post("/api/runs", json=order)).json()
        await read_events(served, run["id"])
        shown = (await http.get(f"/api/runs/{run['id']}")).json()
        plain = (await http.post("/api/runs", json={"prompt": "Hello!"})).json()
        await read_events(served, plain["id"])
        without = (await http.get(f"/api/runs/{plain['id']}")).json()
    assert (shown["status"], shown["output"]) == ("completed", {"name": "Ada", "born": 1815})
    assert without["output"] is None


async def test_a_conversation_goes_on_with_its_agent(served: Served) -> None:
    async with served.http() as http:
        run = (await http.post("/api/runs", json={"model": "twice", "prompt": "x"})).json()
        await wait_for(http, run["id"], "waiting")
        await http.post(f"/api/runs/{run['id']}/cancel")
        await read_events(served, run["id"])
        more = {"prompt": "y", "conversation": run["conversation"]}
        second = (await http.post("/api/runs", json=more)).json()
        await wait_for(http, second["id"], "waiting")
        busy = await http.post("/api/runs", json=more)
    assert busy.status_code == 409


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": " "}, 400),
        ({"prompt": "x", "model": "unknown"}, 404),
        ({"prompt": "x", "conversation": "unknown"}, 404),
        ({"prompt": "x", "files": ["unknown"]}, 404),
        ({"prompt": "x", "output": {"type": "nonsense"}}, 400),
        ({"prompt": "x", "output": {"type": "string", "pattern": "^(a+)+$"}}, 400),
        ({"prompt": "x", "effects": 1}, 400),
    ],
)
async def test_a_wrong_order_begins_nothing(
    served: Served, order: dict[str, Any], status: int
) -> None:
    async with served.http() as http:
        assert (await http.post("/api/runs", json=order)).status_code == status
        assert (await http.get("/api/runs")).json() == {"runs": [], "has_more": False}
        assert (await http.get("/api/conversations")).json()["conversations"] == []


async def test_events_that_were_deleted_are_answered_with_the_final_state(
    served: Served, home: Path
) -> None:
    run, _ = await begin(served)
    async with served.http() as http:
        await http.post(f"/api/runs/{run}/cancel")
    (first, _), *_, (last, _) = await read_events(served, run)
    with closing(sqlite3.connect(home / "server" / "runs.sqlite")) as database, database:
        database.execute("delete from events")
    ((cursor, event),) = await read_events(served, run, **{"Last-Event-ID": str(first)})
    assert cursor > last
    assert event == {"event": "expired", "status": "cancelled"}
    assert await read_events(served, run, **{"Last-Event-ID": str(cursor)}) == []
    async with served.http() as http:
        ended = await http.get(f"/v1/responses/resp_{run}?stream=true&starting_after={first * 16}")
    names = [line for line in ended.text.splitlines() if line.startswith("event: ")]
    assert names == ["event: response.incomplete"]


async def test_budgets_are_those_of_the_user(home: Path) -> None:
    budgets = {"users": {"ada": {"tokens": 500, "period": "day"}}}
    async with (
        serving(home, budgets=budgets) as served,
        served.http("ada") as ada,
        served.http("eve") as eve,
    ):
        (budget,) = (await ada.get("/api/budgets")).json()["budgets"]
        assert (await eve.get("/api/budgets")).json() == {"budgets": []}
    wanted = {"user": "ada", "unit": "tokens", "limit": 500, "spent": 0, "left": 500}
    assert wanted.items() <= budget.items()
