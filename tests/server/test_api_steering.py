"""Messages that clients add to a run over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.pictures import make_png
from tests.server.conftest import Served, serving
from tests.server.test_api_runs import SCRIPT, begin, read_events, wait_for
from vibe_llms.runs.rules import MOST_QUEUED


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with an agent whose tool asks before it deletes."""
    home.mkdir()
    (home / "keeper.toml").write_text(SCRIPT)
    scripts = {"keeper": str(home / "keeper.toml")}
    async with serving(
        home,
        providers={"scripted": {"scripts": scripts}},
        agents={"keeper": {"model": "scripted/keeper", "tools": ["delete_memory"]}},
    ) as server:
        yield server


async def test_a_message_is_queued_shown_taken_back_and_sent(served: Served) -> None:
    run, call = await begin(served)
    url = f"/api/runs/{run}/steer"
    async with served.http() as http:
        kept = await http.post(url, json={"prompt": "Only the green one."})
        assert kept.status_code == 201
        mistake = (await http.post(url, json={"prompt": "Only the gren one."})).json()
        shown = (await http.get(f"/api/runs/{run}")).json()
        assert shown["queued"] == [kept.json(), mistake]
        assert [one["text"] for one in shown["queued"]] == [
            "Only the green one.",
            "Only the gren one.",
        ]
        for status in (200, 409):
            removed = await http.delete(f"{url}/{mistake['id']}")
            assert removed.status_code == status, removed.text
        assert removed.json()["error"]["code"] == "steering_refused"
        decision = {"invocation": call, "allowed": True}
        await http.post(f"/api/runs/{run}/decide", json=decision)
        events = await read_events(served, run)
        added = [one["message"] for _, one in events if one["event"] == "message-added"]
        assert added == [kept.json()["id"]]
        shown = (await http.get(f"/api/runs/{run}")).json()
        assert (shown["status"], shown["queued"]) == ("completed", [])
        path = f"/api/conversations/{shown['conversation']}"
        stored = (await http.get(path)).json()["messages"]
        assert [one["role"] for one in stored] == [
            "user", "invocation", "result", "user", "assistant"
        ]  # fmt: skip
        late = await http.post(url, json={"prompt": "Wait."})
        assert late.status_code == 409
        assert "has ended" in late.json()["error"]["message"]
        gone = await http.delete(f"{url}/{kept.json()['id']}")
        assert gone.status_code == 409


async def test_a_file_is_sent_with_the_message(served: Served) -> None:
    run, call = await begin(served)
    async with served.http() as http:
        file = (await http.post("/api/files?name=a.png", content=make_png())).json()["id"]
        url = f"/api/runs/{run}/steer"
        sent = await http.post(url, json={"prompt": "See this.", "files": [file]})
        assert sent.status_code == 201, sent.text
        unknown = await http.post(url, json={"prompt": "See this.", "files": ["0" * 64]})
        assert unknown.status_code in (400, 404)
        await http.post(f"/api/runs/{run}/decide", json={"invocation": call, "allowed": True})
        await wait_for(http, run, "completed")
        conversation = (await http.get(f"/api/runs/{run}")).json()["conversation"]
        stored = (await http.get(f"/api/conversations/{conversation}")).json()["messages"]
    assert "image" in str(stored[3])


@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"prompt": " "}, {"prompt": 1}, {"prompt": "x", "more": 1}]
)
async def test_a_wrong_message_is_refused(served: Served, body: dict[str, object]) -> None:
    run, _ = await begin(served)
    async with served.http() as http:
        refused = await http.post(f"/api/runs/{run}/steer", json=body)
        assert refused.status_code in (400, 422), refused.text
        assert (await http.get(f"/api/runs/{run}")).json()["queued"] == []


async def test_a_run_in_which_too_many_messages_wait_takes_no_more(served: Served) -> None:
    run, _ = await begin(served)
    url = f"/api/runs/{run}/steer"
    async with served.http() as http:
        prompts = [f"Message {number}." for number in range(MOST_QUEUED)]
        added = [await http.post(url, json={"prompt": one}) for one in prompts]
        assert {one.status_code for one in added} == {201}
        full = await http.post(url, json={"prompt": "One more."})
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert full.json()["error"]["code"] == "too_many_messages"
        await http.delete(f"{url}/{added[-1].json()['id']}")
        assert (await http.post(url, json={"prompt": "One more."})).status_code == 201


async def test_a_repeated_request_adds_one_message(served: Served) -> None:
    run, call = await begin(served)
    url, headers = f"/api/runs/{run}/steer", {"Idempotency-Key": "k1"}
    async with served.http() as http:
        body = {"prompt": "Only the green one."}
        posts = [http.post(url, json=body, headers=headers) for _ in range(5)]
        answers = await asyncio.gather(*posts)
        assert [one.status_code for one in answers] == [201] * 5
        assert len({one.text for one in answers}) == 1
        other = await http.post(url, json={"prompt": "Another."}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
        bad = await http.post(url, json=body, headers={"Idempotency-Key": "x" * 256})
        assert bad.status_code == 400
        assert (await http.get(f"/api/runs/{run}")).json()["queued"] == [answers[0].json()]
        await http.post(f"/api/runs/{run}/decide", json={"invocation": call, "allowed": True})
        await wait_for(http, run, "completed")
        late = await http.post(url, json=body, headers=headers)
        assert (late.status_code, late.json()) == (201, answers[0].json())


async def test_an_unknown_run_is_not_found(served: Served) -> None:
    run, _ = await begin(served)
    async with served.http() as http:
        for unknown in ("abcdefghijkl", run[:6]):
            for answer in (
                await http.post(f"/api/runs/{unknown}/steer", json={"prompt": "x"}),
                await http.delete(f"/api/runs/{unknown}/steer/x"),
            ):
                assert answer.status_code == 404
                assert answer.json()["error"]["code"] == "run_not_found"
        other = await http.get(f"/api/runs/{run}/steer")
        assert other.status_code == 405


async def test_messages_of_several_clients_are_all_sent_once(served: Served) -> None:
    run, call = await begin(served)
    async with served.http() as http:
        url = f"/api/runs/{run}/steer"
        posts = [http.post(url, json={"prompt": f"Message {n}."}) for n in range(12)]
        decides = http.post(f"/api/runs/{run}/decide", json={"invocation": call, "allowed": True})
        *answers, _ = await asyncio.gather(*posts, decides)
        sent = [one.json()["id"] for one in answers if one.status_code == 201]
        assert {one.status_code for one in answers} <= {201, 409}
        async with asyncio.timeout(30):
            while (shown := (await http.get(f"/api/runs/{run}")).json())["status"] not in (
                "completed",
                "failed",
            ):
                await asyncio.sleep(0.02)
        conversation = shown["conversation"]
        stored = (await http.get(f"/api/conversations/{conversation}")).json()["messages"]
        texts = [one for one in stored if one["role"] == "user"][1:]
        assert len(texts) + len(shown["queued"]) == len(sent)
