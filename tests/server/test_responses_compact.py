"""Compaction in Responses, with OpenAI's official client."""

from __future__ import annotations

import asyncio
import base64
import threading
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import openai
import openresponses_types.types as specification
import pytest
from openai.types.responses import CompactedResponse

from tests.server.conftest import Served, serving
from tests.server.test_api_context import (
    TALK,
    count_summaries,
    read_messages,
    survey,
    write_script,
)
from tests.server.test_messages_context import COMPACT
from tests.server.test_responses import read_events, validate
from vibe_llms.messages.canisters import Canister
from vibe_llms.server.compactions import CompactionSigner

WHISPER = """
context-tokens = 100_000
[[replies]]
when = "^whisper"
parts = [{ invocation = "clock/whisper", arguments = { secret = "/safe/swordfish.txt" } }]
"""
MANAGED: Any = [{"type": "compaction", "compact_threshold": 1_200}]


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with models that summarize."""
    home.mkdir()
    scripts = {}
    for name, script in (
        ("sailor", write_script()),
        ("small", write_script(1_400)),
        ("broken", write_script(summary='error = "overloaded"')),
        ("clerk", WHISPER + write_script().partition("\n")[2]),
    ):
        (home / f"{name}.toml").write_text(script)
        scripts[name] = str(home / f"{name}.toml")
    async with serving(
        home,
        providers={"scripted": {"scripts": scripts, "retries": 0}},
        stream={"retries": 0},
        agents={
            "pilot": {"model": "scripted/sailor", "supervisor": "You are the pilot."},
            "clerk": {
                "model": "scripted/clerk",
                "supervisor": "You are the clerk.",
                "ensembles": ["clock"],
            },
        },
        ensembles={"clock": {"module": "tests.server.clock"}},
    ) as server:
        yield server


def make_input(turns: int) -> list[Any]:
    return [
        one
        for number in range(turns)
        for one in (
            {"role": "user", "content": f"Message {number}."},
            {"role": "assistant", "content": TALK},
        )
    ]


LONG = [*make_input(16), {"role": "user", "content": "Go on."}]


async def compact(client: openai.AsyncOpenAI, **given: Any) -> CompactedResponse:
    return await client.responses.compact(**{"model": "scripted/sailor", **given})


async def test_input_items_are_compacted_to_an_item_that_replaces_them(served: Served) -> None:
    async with served.openai() as client, served.http() as http:
        items = [*make_input(16), {"role": "user", "content": "Remember the number 4711."}]
        body = {"model": "scripted/sailor", "input": items, "instructions": "Be brief."}
        compacted = (await http.post("/v1/responses/compact", json=body)).json()
        specification.CompactResource.model_validate(compacted)
        found = CompactedResponse.model_validate(compacted)
        [item] = found.output
        assert (item.type, found.object) == ("compaction", "response.compaction")
        assert found.usage.output_tokens > 0
        assert await survey(http) == []

        again = [*compacted["output"], {"role": "user", "content": "And now?"}]
        response = await client.responses.create(
            model="scripted/sailor", input=again, instructions="Be brief."
        )
        assert response.usage is not None
        assert response.usage.input_tokens < 1_000
        [listed] = await survey(http)
        stored = await read_messages(http, listed["id"])
        said = [one["contents"][0]["data"] for one in stored if one["role"] == "user"]
        assert "Remember the number 4711." in said
        assert said[-1] == "And now?"
        assert "Be brief." not in str(stored)
        [digest] = [one for one in stored if one["role"] == "digest"]
        assert "reread" not in str(digest)

        # Later turns keep the summary, and extend it.
        later = await compact(client, previous_response_id=response.id)
        assert later.output[0].type == "compaction"
        more = await client.responses.create(
            model="scripted/sailor",
            input=[later.output[0].to_dict(), {"role": "user", "content": "On!"}],  # type: ignore[list-item]
            store=False,
        )
        assert more.usage is not None
        assert more.usage.input_tokens < 1_000


async def test_nothing_is_lost_if_there_is_nothing_to_summarize(served: Served) -> None:
    pixel = base64.b64encode(bytes(10)).decode()
    file = {"type": "input_file", "filename": "a.bin", "file_data": f"data:a/b;base64,{pixel}"}
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "See."}, file]},
        {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "blue"},
        {"role": "assistant", "content": "It is blue."},
    ]
    async with served.openai() as client, served.http() as http:
        compacted = await compact(client, input=items)
        await http.post(
            "/v1/responses",
            json={
                "model": "scripted/sailor",
                "input": [compacted.output[0].to_dict(), {"role": "user", "content": "Sure?"}],
            },
        )
        [listed] = await survey(http)
        stored = await read_messages(http, listed["id"])
    assert [one["role"] for one in stored[:5]] == [
        *("user", "invocation", "result", "assistant", "user")
    ]
    assert stored[1]["arguments"] == '{"a": 1}'
    assert stored[2]["invocation"] == stored[1]["identity"]
    assert stored[0]["contents"][1]["name"] == "a.bin"
    # Replies of a client stay claims.
    assert "provenance" not in stored[3]


async def test_a_stored_response_is_compacted_without_the_prompt_of_its_agent(
    served: Served,
) -> None:
    async with served.openai() as client:
        response = None
        for number in range(16):
            response = await client.responses.create(
                model="pilot",
                input=f"Message {number}.",
                previous_response_id=None if response is None else response.id,
            )
        assert response is not None
        unstored = await client.responses.create(
            model="pilot", input="And now?", previous_response_id=response.id, store=False
        )
        assert unstored.output_text == TALK
        compacted = await compact(client, model="pilot", previous_response_id=response.id)
        item = compacted.output[0].to_dict()
        packed = str(item["encrypted_content"]).partition(".")[2]
        lines = _unpack(packed)
        assert "Never use tar" in lines
        assert "You are the pilot" not in lines
        assert "scripted" not in lines


@pytest.mark.parametrize("model", ["clerk", "pilot", "scripted/sailor"])
@pytest.mark.parametrize("turns", [1, 12])
async def test_work_of_an_agent_is_hidden_from_whoever_else_compacts_it(
    served: Served, model: str, turns: int
) -> None:
    async with served.openai() as client:
        asked = "whisper"
        response = None
        for _ in range(turns):
            response = await client.responses.create(
                model="clerk",
                input=asked,
                previous_response_id=None if response is None else response.id,
            )
            asked = "Go on."
        assert response is not None
        for later in (response.id, await _continue(client, response.id, model)):
            compacted = await compact(client, model=model, previous_response_id=later)
            lines = _unpack_item(compacted)
            assert ("Never use tar" in lines) == (turns > 1)
            if turns == 1 and later == response.id:
                assert "clock/whisper" in lines
            assert "You are the clerk" not in lines
            assert "You are the pilot" not in lines
            assert "swordfish" not in lines


async def test_work_of_an_agent_stays_hidden_after_its_settings_change(home: Path) -> None:
    home.mkdir()
    (home / "clerk.toml").write_text(WHISPER + write_script().partition("\n")[2])
    clerk = {"model": "scripted/clerk", "supervisor": "You are the clerk."}
    tables: dict[str, Any] = {
        "providers": {"scripted": {"scripts": {"clerk": str(home / "clerk.toml")}}},
        "ensembles": {"clock": {"module": "tests.server.clock"}},
    }
    async with (
        serving(home, **tables, agents={"clerk": {**clerk, "ensembles": ["clock"]}}) as served,
        served.openai() as client,
    ):
        response = await client.responses.create(model="clerk", input="whisper")
    async with serving(home, **tables, agents={"clerk": clerk}) as again:
        again.keys = served.keys
        async with again.openai() as client:
            for _ in range(2):
                lines = _unpack_item(
                    await compact(client, model="clerk", previous_response_id=response.id)
                )
                assert "clock/whisper" in lines or "Build a boat" in lines
                assert "swordfish" not in lines
                response = await client.responses.create(
                    model="clerk", input="On!", previous_response_id=response.id
                )


async def _continue(client: openai.AsyncOpenAI, response: str, model: str) -> str:
    """Continue a stored response with another agent or model."""
    later = await client.responses.create(model=model, input="On!", previous_response_id=response)
    return later.id


def _unpack_item(compacted: CompactedResponse) -> str:
    item = compacted.output[0].to_dict()
    return _unpack(str(item["encrypted_content"]).partition(".")[2])


def _unpack(packed: str) -> str:
    return zlib.decompress(base64.urlsafe_b64decode(packed)[32:]).decode()


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("responses/compact", {"input": LONG}),
        ("responses", {"input": LONG, "store": False, "context_management": MANAGED}),
        ("messages", {"messages": LONG, "max_tokens": 100, "context_management": COMPACT}),
    ],
)
async def test_a_compaction_is_signed_in_a_thread(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, given: dict[str, Any]
) -> None:
    threads: list[threading.Thread] = []
    write = CompactionSigner.write

    def note(signer: CompactionSigner, messages: Sequence[Canister]) -> str:
        threads.append(threading.current_thread())
        return write(signer, messages)

    monkeypatch.setattr(CompactionSigner, "write", note)
    body: dict[str, Any] = {"model": "scripted/sailor", **given}
    async with served.http() as http:
        first = await http.post(f"/v1/{path}", json=body)
        if path == "messages":
            for _ in range(2):
                again = await http.post(
                    f"/v1/{path}", json=body, headers={"idempotency-key": "once"}
                )
                assert again.status_code == 200
    assert "vibe1." in first.text
    assert threads
    assert threading.current_thread() not in threads


async def test_a_wrong_item_is_refused_and_never_left_out(served: Served) -> None:
    async with served.openai() as client, served.openai("eve") as eve:
        item = (await compact(client, input=make_input(16))).output[0].to_dict()
        ask: Any = {"model": "scripted/sailor", "store": False}
        with pytest.raises(openai.BadRequestError) as refused:
            await eve.responses.create(input=[item], **ask)  # type: ignore[list-item]
        assert refused.value.param == "input[0].encrypted_content"
        assert refused.value.code == "invalid_encrypted_content"
        content = str(item["encrypted_content"])
        other = "A" if content[60] != "A" else "B"
        for wrong in (content[:-4], f"{content[:60]}{other}{content[61:]}", content[:6]):
            changed: Any = [{"role": "user", "content": "x"}, {**item, "encrypted_content": wrong}]
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(input=changed, **ask)
            assert refused.value.param == "input[1].encrypted_content"
        with pytest.raises(openai.BadRequestError) as refused:
            await compact(client)
        assert refused.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            await compact(client, previous_response_id="resp_unknown")
        with pytest.raises(openai.APIStatusError) as failed:
            await compact(client, model="scripted/broken", input=make_input(16))
        assert failed.value.status_code == 502


async def test_an_unstored_response_begins_with_its_compaction(served: Served) -> None:
    async with served.openai() as client, served.http() as http:
        items = [*make_input(16), {"role": "user", "content": "Go on."}]
        body = {
            "model": "scripted/sailor",
            "input": items,
            "store": False,
            "context_management": MANAGED,
        }
        whole = (await http.post("/v1/responses", json=body)).json()
        validate(whole)
        events = await read_events(http, "POST", "/v1/responses", json={**body, "stream": True})
        streamed = events[-1]["response"]
        for response in (whole, streamed):
            assert [one["type"] for one in response["output"]] == ["compaction", "message"]
        numbers = [one["sequence_number"] for one in events]
        assert numbers == sorted({*numbers})
        done = [one for one in events if one["type"] == "response.output_item.done"]
        assert [one["output_index"] for one in done] == [0, 1]
        assert done[0]["item"] == streamed["output"][0]

        # The items before it need not be sent, but may be.
        items += [*whole["output"], {"role": "user", "content": "And now?"}]
        for history in (items, items[-3:]):
            later = await client.responses.create(
                model="scripted/sailor",
                input=history,
                store=False,
                extra_body={"context_management": MANAGED},
            )
            assert [one.type for one in later.output] == ["message"]
            assert later.usage is not None
            assert later.usage.input_tokens < 1_000
        assert await survey(http) == []


async def test_a_stored_response_is_compacted_in_its_conversation(served: Served) -> None:
    async with served.openai() as client, served.http() as http:
        response = None
        used = []
        for number in range(20):
            response = await client.responses.create(
                model="scripted/sailor",
                input=f"Message {number}.",
                previous_response_id=None if response is None else response.id,
                extra_body={"context_management": MANAGED},
            )
            assert response.usage is not None
            used.append(response.usage.input_tokens)
            assert [one.type for one in response.output] == ["message"]
        assert max(used) < 1_500
        assert len(await survey(http)) == 1
        assert 1 <= await count_summaries(http) <= 6


async def test_automatic_truncation_compacts_what_would_be_too_long(served: Served) -> None:
    items = [*make_input(20), {"role": "user", "content": "Go on."}]
    async with served.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="scripted/small", input=items, store=False)
        assert refused.value.code == "context_length_exceeded"
        response = await client.responses.create(
            model="scripted/small", input=items, store=False, truncation="auto"
        )
    assert response.truncation == "auto"
    assert response.output_text == TALK.strip() or response.output_text == TALK


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"truncation": "always"}, "truncation"),
        ({"context_management": [{"compact_threshold": 3}]}, "context_management[0].type"),
        (
            {"context_management": [{"type": "compaction", "compact_threshold": "many"}]},
            "context_management[0].compact_threshold",
        ),
        ({"context_management": "yes"}, "context_management"),
    ],
)
async def test_a_wrong_member_is_named(served: Served, given: Any, param: str) -> None:
    async with served.http() as http:
        body = {"model": "scripted/sailor", "input": "Hi", **given}
        refused = await http.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


async def test_a_trigger_is_answered_with_exactly_one_compaction(served: Served) -> None:
    items = [*make_input(16), {"type": "compaction_trigger"}]
    body = {"model": "scripted/sailor", "input": items, "store": False}
    async with served.http() as http:
        whole = (await http.post("/v1/responses", json=body)).json()
        validate(whole)
        events = await read_events(http, "POST", "/v1/responses", json={**body, "stream": True})
        assert events[-1]["type"] == "response.completed"
        for response in (whole, events[-1]["response"]):
            assert [one["type"] for one in response["output"]] == ["compaction"]
            assert response["usage"]["output_tokens"] > 0
        done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        again = [*whole["output"], {"role": "user", "content": "And now?"}]
        later = (await http.post("/v1/responses", json={**body, "input": again})).json()
        assert later["usage"]["input_tokens"] < 1_000

        refused = await http.post("/v1/responses", json={**body, "store": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
        misplaced = {**body, "input": [{"type": "compaction_trigger"}, *items]}
        refused = await http.post("/v1/responses", json=misplaced)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0]")


async def test_a_compaction_counts_against_the_budget_of_its_user(home: Path) -> None:
    home.mkdir()
    (home / "sailor.toml").write_text(write_script())
    scripts = {"sailor": str(home / "sailor.toml")}
    async with (
        serving(
            home,
            providers={"scripted": {"scripts": scripts}},
            budgets={"tokens": 14_000, "period": "day"},
        ) as served,
        served.openai() as client,
        served.http() as http,
    ):
        used = (await compact(client, input=make_input(16))).usage.total_tokens
        [budget] = (await http.get("/api/budgets")).json()["budgets"]
        assert budget["spent"] == used > 1_000
        with pytest.raises(openai.RateLimitError) as refused:
            await compact(client, input=make_input(16))
        assert refused.value.code == "insufficient_quota"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": make_input(16), "context_management": MANAGED}),
        (
            "/v1/messages",
            {
                "messages": [*make_input(16), {"role": "user", "content": "Go on."}],
                "max_tokens": 10,
                "context_management": {
                    "edits": [
                        {
                            "type": "compact_20260112",
                            "trigger": {"type": "input_tokens", "value": 1_200},
                        }
                    ]
                },
            },
        ),
    ],
)
async def test_a_compaction_before_a_run_is_a_turn_of_its_user(
    home: Path, path: str, body: dict[str, Any]
) -> None:
    home.mkdir()
    (home / "slow.toml").write_text(write_script(summary="stall = true"))
    body = {"model": "scripted/slow", **body}
    async with (
        serving(
            home,
            providers={"scripted": {"scripts": {"slow": str(home / "slow.toml")}}},
            server={"user-turns": 1, "turn-seconds": 2.0},
        ) as served,
        served.http() as http,
    ):
        keys = iter(range(9))

        async def send(seconds: float = 30) -> httpx2.Response:
            key = {"idempotency-key": f"key-{next(keys)}"}
            return await http.post(path, json=body, headers=key, timeout=seconds)

        async def await_running(count: int) -> None:
            async with asyncio.timeout(10):
                metrics = ""
                while f"vibe_llms_running_turns {count}.0" not in metrics:
                    await asyncio.sleep(0.02)
                    metrics = (await http.get("/metrics")).text

        late = asyncio.create_task(send())
        await await_running(1)
        refused = await send()
        assert (refused.status_code, "too many turns" in refused.text) == (429, True)
        assert (await late).status_code == 504
        with pytest.raises(httpx2.ReadTimeout):
            await send(1)
        await await_running(0)
        assert await survey(http) == []


async def test_an_unknown_manager_of_the_context_is_left_out(served: Served) -> None:
    body = {
        "model": "scripted/sailor",
        "input": LONG,
        "store": False,
        "context_management": [{"type": "forgetting"}],
    }
    async with served.http() as http:
        reply = await http.post("/v1/responses", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-left-out"] == "context_management forgetting"
        assert [one["type"] for one in reply.json()["output"]] == ["message"]
        body["context_management"] = [*MANAGED, {"type": "forgetting"}]
        both = await http.post("/v1/responses", json=body)
    assert [one["type"] for one in both.json()["output"]] == ["compaction", "message"]


async def test_a_compaction_that_fails_leaves_no_fork(served: Served) -> None:
    async with served.openai() as client, served.http() as http:
        first = await client.responses.create(model="scripted/sailor", input=LONG)
        await client.responses.create(
            model="scripted/sailor", input="On!", previous_response_id=first.id
        )
        [kept] = await survey(http)
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(
                model="scripted/broken",
                input="And now?",
                previous_response_id=first.id,
                extra_body={"context_management": MANAGED},
            )
        assert await survey(http) == [kept]
