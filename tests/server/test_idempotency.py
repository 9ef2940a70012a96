"""`Idempotency-Key`: a request that is repeated gets the turn that it began, in every dialect."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.server.test_bad_input import HELLO, SPEECHES, Speech, configure, stored
from tests.server.test_deployments import PATH
from tests.server.test_deployments import configure as configure_clerk

KEY = {"idempotency-key": "once-1"}


@pytest.fixture(params=SPEECHES)
def speech(request: pytest.FixtureRequest) -> Speech:
    """Each dialect."""
    return SPEECHES[request.param]


def comparable(text: str) -> Any:
    """A reply without what differs between two of the same turn."""
    bodies = [line[6:] for line in text.splitlines() if line.startswith("data: {")] or [text]
    shown = []
    for body in map(json.loads, bodies):
        shown.append(
            (body.get("delta"), body.get("content"), body.get("output"))
            if "choices" not in body
            else [one.get("delta") or one.get("message") for one in body["choices"]]
        )
    return shown


def join(text: str) -> str:
    """All text of the deltas of a stream."""
    joined = ""
    for line in text.splitlines():
        if line.startswith("data: {"):
            body = json.loads(line[6:])
            delta = body.get("delta")
            if isinstance(delta, dict):
                delta = delta.get("text")
            for choice in body.get("choices", ()):
                delta = choice["delta"].get("content")
            joined += delta or ""
    return joined


@pytest.mark.parametrize("stream", [True, False])
async def test_a_repeated_request_gets_the_same_turn(
    home: Path, speech: Speech, stream: bool
) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [("user", "Hi")], stream=stream)
        first = await client.post(speech.path, json=body, headers=KEY)
        again = await client.post(speech.path, json=body, headers=KEY)
        assert (first.status_code, again.status_code) == (200, 200), first.text
        if stream:
            assert join(first.text) == join(again.text) == "It is warm."
        else:
            assert comparable(first.text) == comparable(again.text)
        assert await stored(served) == [["user", "assistant"]]
        other = speech.write("scripted/call", [("user", "Hi!")], stream=stream)
        refused = await client.post(speech.path, json=other, headers=KEY)
        assert refused.status_code == 422
        assert "key" in speech.read_error(refused.json())
        async with served.http("eve") as eve:
            assert (await eve.post(speech.path, json=other, headers=KEY)).status_code == 200
        assert await stored(served) == [["user", "assistant"]]
        # Without the key it is another turn, which continues nothing.
        assert (await client.post(speech.path, json=body)).status_code == 200
        assert len(await stored(served)) == 2


async def test_a_conversation_goes_on_after_a_turn_with_a_key(home: Path) -> None:
    speech = SPEECHES["chat"]
    async with serving(home, **configure(home)) as served, served.http() as client:
        said: list[tuple[str, Any]] = []
        for number in range(3):
            said.append(("user", f"Hi {number}"))
            headers = {"idempotency-key": f"k{number}"}
            body = speech.write("scripted/call", said)
            await client.post(speech.path, json=body, headers=headers)
            reply = await client.post(speech.path, json=body, headers=headers)
            said.append(("assistant", speech.read_text(reply.json())))
        assert await stored(served) == [["user", "assistant"] * 3]


async def test_requests_at_the_same_time_have_one_turn(home: Path, speech: Speech) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO])
        posts = [client.post(speech.path, json=body, headers=KEY) for _ in range(8)]
        replies = await asyncio.gather(*posts)
        assert {one.status_code for one in replies} == {200}
        assert len({json.dumps(comparable(one.text)) for one in replies}) == 1
        assert await stored(served) == [["user", "assistant"]]


async def test_a_turn_with_a_key_goes_on_without_the_connection(home: Path, speech: Speech) -> None:
    tables = configure(home)
    (home / "call.toml").write_text(
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "Well, " }, { delay-seconds = 0.3 }, '
        '{ text = "done." }]\n'
    )
    async with serving(home, **tables) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO], stream=True)
        async with client.stream("POST", speech.path, json=body, headers=KEY) as response:
            async for line in response.aiter_lines():
                if "Well" in line:
                    break
        again = await client.post(speech.path, json=body, headers=KEY)
        assert join(again.text) == "Well, done."
        assert await stored(served) == [["user", "assistant"]]


async def test_a_failure_before_the_first_text_can_be_repeated(home: Path, speech: Speech) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/down", [HELLO])
        for _ in range(2):
            failed = await client.post(speech.path, json=body, headers=KEY)
            assert failed.status_code == 502
            assert speech.read_error(failed.json())
        assert await stored(served) == []


async def test_a_failure_takes_only_what_was_new_out_of_a_conversation(home: Path) -> None:
    speech = SPEECHES["chat"]
    async with serving(home, **configure(home)) as served, served.http() as client:
        said: list[tuple[str, Any]] = [("user", "Hi")]
        first = await client.post(speech.path, json=speech.write("scripted/call", said))
        said += [("assistant", speech.read_text(first.json())), ("user", "And?")]
        for _ in range(2):
            body = speech.write("scripted/down", said)
            failed = await client.post(speech.path, json=body, headers=KEY)
            assert failed.status_code == 502
            assert await stored(served) == [["user", "assistant"]]


async def test_a_key_that_is_none_and_a_turn_that_is_not_stored_are_refused(
    home: Path, speech: Speech
) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO])
        for key in ("x" * 256, "a b"):
            headers = {"idempotency-key": key}
            assert (await client.post(speech.path, json=body, headers=headers)).status_code == 400
        body["store"] = False
        assert (await client.post(speech.path, json=body, headers=KEY)).status_code == 400
        assert await stored(served) == []


async def repeat(client: httpx2.AsyncClient, *, stream: bool) -> list[str]:
    body = {"messages": [{"role": "user", "content": "What time is it?"}], "stream": stream}
    replies = [await client.post(PATH, json=body, headers=KEY) for _ in range(2)]
    assert [one.status_code for one in replies] == [200, 200], replies[0].text
    return [one.text for one in replies]


@pytest.mark.parametrize("stream", [True, False])
async def test_stages_and_denials_are_those_of_the_first_time(home: Path, stream: bool) -> None:
    async with serving(home, **configure_clerk(home)) as served, served.http() as client:
        for text in await repeat(client, stream=stream):
            for shown in ("clock/tell", "noon in CET", "made of steel", "no user can be asked"):
                assert shown in text
            assert "swordfish" not in text.partition('"state"')[0]
        await count_one(served)


async def test_a_run_is_started_once(home: Path) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = {"model": "scripted/call", "prompt": "Hi"}
        posts = [client.post("/api/runs", json=body, headers=KEY) for _ in range(4)]
        replies = await asyncio.gather(*posts)
        assert {one.status_code for one in replies} == {201}
        assert len({one.json()["id"] for one in replies}) == 1
        body["prompt"] = "Ho"
        assert (await client.post("/api/runs", json=body, headers=KEY)).status_code == 422
        assert len((await client.get("/api/runs")).json()["runs"]) == 1


async def count_one(served: Served) -> None:
    async with served.session() as session:
        assert len(await session.survey_conversations()) == 1
        assert len(await session.survey_runs()) == 1


async def test_a_turn_with_a_key_is_no_response(home: Path) -> None:
    speech = SPEECHES["chat"]
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO])
        assert (await client.post(speech.path, json=body, headers=KEY)).status_code == 200
        [run] = (await client.get("/api/runs")).json()["runs"]
        for path in ("", "/input_items", "?stream=true"):
            found = await client.get(f"/v1/responses/resp_{run['id']}{path}")
            assert found.status_code == 404
