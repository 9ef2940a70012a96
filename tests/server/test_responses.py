"""Responses as the official client sees them, from a real server; every body is validated."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import httpx2
import openai
import openresponses_types.types as specification
import pytest
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.server.conftest import Served, serving
from vibe_llms.messages.canisters import UserCanister, role_of
from vibe_llms.storage.archive import DirectoryArchive

TEXT = "one two three four five six seven eight"
SCRIPTS = {
    "talk": f'[[replies]]\nwhen = ".*"\n[[replies.parts]]\ntext = "{TEXT}"\n',
    "slow": '[[replies]]\n[[replies.parts]]\ntext = "first "\n[[replies.parts]]\nstall = true\n',
    "call": (
        '[[replies]]\n[[replies.parts]]\ntext = "Let me look."\n'
        '[[replies.parts]]\ninvocation = "look_up"\narguments = {city = "Rome"}\n'
        '[[replies]]\n[[replies.parts]]\ntext = "It is warm."\n'
    ),
    "stall": '[[replies]]\nwhen = ".*"\n[[replies.parts]]\nstall = true\n',
    "fail": '[[replies]]\n[[replies.parts]]\nerror = "overloaded"\n',
    "limited": '[[replies]]\n[[replies.parts]]\nerror = "rate-limited"\n',
}
TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
#: The events of the specification, by their types.
EVENTS: Mapping[str, type[BaseModel]] = {
    str(*cast("Any", kind.model_fields["type"].annotation)): kind
    for name, kind in vars(specification).items()
    if name.endswith("StreamingEvent") and issubclass(kind, BaseModel)
}

#: The items of the specification; OpenAI has more of them, and of events.
ITEMS = {"compaction", "function_call", "function_call_output", "message", "reasoning"}
OPENAI_ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
OPENAI_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
async def scripted(home: Path) -> AsyncIterator[Served]:
    """A server with scripts of its own as models."""
    home.mkdir()
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    rows = {"scripted": {"scripts": scripts}}
    async with serving(
        home, storage={"durability": "fast"}, stream={"retries": 0}, providers=rows
    ) as server:
        yield server


def validate(body: Any) -> None:
    """Hold a response to the specification, and what OpenAI alone defines to its package."""
    others = [item for item in body["output"] if item["type"] not in ITEMS]
    for item in others:
        if not item["type"].startswith("x:"):
            OPENAI_ITEMS.validate_python(item)
    output = [item for item in body["output"] if item not in others]
    tools = [tool for tool in body["tools"] if tool["type"] == "function"]
    specification.ResponseResource.model_validate({**body, "output": output, "tools": tools})


def validate_event(event: Any) -> None:
    """Hold an event that has no response to the specification, or to OpenAI's package."""
    kind, item = event["type"], event.get("item")
    if kind.startswith("x:") or (item is not None and item["type"].startswith("x:")):
        return
    if kind in EVENTS and (item is None or item["type"] in ITEMS):
        EVENTS[kind].model_validate(event)
    else:
        OPENAI_EVENTS.validate_python(event)


async def read_events(
    http: httpx2.AsyncClient, method: str, url: str, **options: Any
) -> list[dict[str, Any]]:
    """The events of a stream, each held to the specification."""
    events: list[dict[str, Any]] = []
    async with http.stream(method, url, **options) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
    for event in events:
        if "response" in event:
            validate(event["response"])
        else:
            validate_event(event)
    return events


async def ask(client: openai.AsyncOpenAI, script: str, text: str = "Go on.", **options: Any) -> Any:
    """A response of a script."""
    options = {"model": f"scripted/{script}", **options}
    return await client.responses.create(input=text, **options)


async def conversations(served: Served) -> list[list[str]]:
    """The texts of all stored conversations."""
    async with served.session() as session:
        found = await session.survey_conversations()
        stored = [(await session.archive.restore(one.identity)).canisters for one in found]
    return [[getattr(one, "text", role_of(one)) for one in canisters] for canisters in stored]


async def test_a_response_is_stored_and_found_again(scripted: Served) -> None:
    async with scripted.openai() as client, scripted.http() as http:
        response = await ask(client, "talk", metadata={"a": "b"})
        found = (await http.get(f"/v1/responses/{response.id}")).json()
    assert response.output_text == TEXT
    assert response.status == "completed"
    validate(found)
    assert found == json.loads(response.model_dump_json(exclude_unset=True))
    assert found["metadata"] == {"a": "b"}
    assert found["usage"]["output_tokens"] > 0
    assert await conversations(scripted) == [["Go on.", TEXT]]


async def test_responses_fit_the_types_of_the_official_package_to_the_letter(
    scripted: Served,
) -> None:
    async with scripted.openai() as client, scripted.http() as http:
        talked = await ask(client, "talk")
        limited = await ask(client, "limited", background=True)
        (*_, ended) = await read_events(http, "GET", f"/v1/responses/{limited.id}?stream=true")
        found = (await http.get(f"/v1/responses/{talked.id}")).json()
    Response.model_validate(found)
    failed = Response.model_validate(ended["response"])
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, failed.error.type) == ("rate_limit_exceeded", "RateLimited")


async def test_a_stream_can_be_resumed_after_each_of_its_events(scripted: Served) -> None:
    body = {"model": "scripted/talk", "input": "Go on.", "stream": True}
    async with scripted.http() as http:
        events = await read_events(http, "POST", "/v1/responses", json=body)
        identity = events[0]["response"]["id"]
        later = f"/v1/responses/{identity}?stream=true"
        again = await read_events(http, "GET", later)
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers))
        assert text_of(events) == text_of(again) == TEXT
        assert [one["type"] for one in events if "delta" not in one["type"]] == [
            *("response.created", "response.in_progress", "response.output_item.added"),
            *("response.content_part.added", "response.output_text.done"),
            *("response.content_part.done", "response.output_item.done", "response.completed"),
        ]
        assert events[-1] == again[-1]
        for place, event in enumerate(events):
            rest = await read_events(
                http, "GET", f"{later}&starting_after={event['sequence_number']}"
            )
            assert text_of(rest) == text_of(events[place + 1 :])
            assert kinds_of(rest) == kinds_of(events[place + 1 :])
        # Every character has a number, however the deltas were divided.
        last = [event for event in events if "output_text.delta" in event["type"]][-1]
        for left in range(1, len(TEXT)):
            after = last["sequence_number"] - 16 * left
            rest = await read_events(http, "GET", f"{later}&starting_after={after}")
            assert text_of(rest) == TEXT[-left:]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(one["delta"] for one in events if "output_text.delta" in one["type"])


def kinds_of(events: list[dict[str, Any]]) -> list[str]:
    """The types of events, with deltas that follow each other as one."""
    kinds = [one["type"] for one in events]
    return [
        kind for place, kind in enumerate(kinds) if "delta" not in kind or kinds[place - 1] != kind
    ]


async def test_a_response_continues_another_or_forks(scripted: Served) -> None:
    async with scripted.openai() as client:
        first = await ask(client, "talk", "One?", instructions="Count.")
        options = {"previous_response_id": first.id}
        second = await ask(client, "talk", "Two?", **options)
        other = await ask(client, "talk", "Other?", **options)
        third = await client.responses.create(input="Three?", previous_response_id=second.id)
    assert {first.status, second.status, other.status, third.status} == {"completed"}
    assert third.model == "scripted/talk"
    stored = await conversations(scripted)
    assert sorted(stored) == [
        ["One?", TEXT, "Other?", TEXT],
        ["One?", TEXT, "Two?", TEXT, "Three?", TEXT],
    ]


async def test_a_response_goes_on_with_an_agent_in_the_same_conversation(home: Path) -> None:
    home.mkdir()
    (home / "talk.toml").write_text(SCRIPTS["talk"])
    rows = {"scripted": {"scripts": {"talk": str(home / "talk.toml")}}}
    coder = {"model": "scripted/talk", "supervisor": "Write code.", "ensembles": ["memory"]}
    clash = {"type": "function", "name": "memory__search_memories", "parameters": {}}
    async with (
        serving(home, providers=rows, agents={"coder": coder}) as served,
        served.http() as http,
        served.openai() as client,
    ):
        first = await ask(client, "talk", model="scripted/demo")
        going = {"model": "coder", "previous_response_id": first.id, "input": "And?"}
        refused = await http.post("/v1/responses", json={"tools": [clash], **going})
        assert refused.status_code == 400
        # What was refused has left nothing.
        assert await conversations(served) == [["Go on.", first.output_text]]
        second = await client.responses.create(**going)
        (listed,) = (await http.get("/api/conversations")).json()["conversations"]
        stored = (await http.get(f"/api/conversations/{listed['id']}")).json()["messages"]
    assert second.output_text == TEXT
    roles = [one["role"] for one in stored]
    assert roles == ["user", "assistant", "supervisor", "user", "assistant"]


async def test_the_messages_of_a_response_go_with_it_unless_others_follow(
    scripted: Served,
) -> None:
    async with scripted.openai() as client:
        first = await ask(client, "talk", "one", instructions="Be brief.")
        second = await ask(client, "talk", "two", previous_response_id=first.id)
        forked = await ask(client, "talk", "three", previous_response_id=first.id)
        turns = [[text, TEXT] for text in ("one", "two", "three")]
        whole, fork = [*turns[0], *turns[1]], [*turns[0], *turns[2]]
        assert sorted(await conversations(scripted)) == sorted([whole, fork])
        # What was said before a fork is not its own.
        await client.responses.delete(forked.id)
        assert await conversations(scripted) == [whole]
        third = await ask(client, "talk", "three", previous_response_id=second.id)
        await client.responses.delete(second.id)
        assert await conversations(scripted) == [[*whole, *turns[2]]]
        await client.responses.delete(third.id)
        assert await conversations(scripted) == [whole]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(third.id)
        alone = await ask(client, "talk", "four")
        await client.responses.delete(alone.id)
        assert await conversations(scripted) == [whole]


async def test_the_messages_of_a_response_stay_while_another_goes_on_from_them(
    scripted: Served,
) -> None:
    async with scripted.openai() as client, scripted.http() as http:
        first = await ask(client, "talk", "one")
        second = await ask(client, "stall", "two", previous_response_id=first.id, background=True)
        await client.responses.delete(first.id)
        await client.responses.cancel(second.id)
        found = (await http.get(f"/v1/responses/{second.id}")).json()
        (texts,) = await conversations(scripted)
        assert found["status"] == "cancelled"
        assert texts[:2] == ["one", TEXT]


async def test_what_another_server_adds_before_a_removal_is_not_removed(
    scripted: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = DirectoryArchive.remove

    async def remove_late(archive: DirectoryArchive, *identities: str, **options: Any) -> None:
        for identity in identities:
            await archive.append(identity, [UserCanister.from_text("more")], after=None)
        await remove(archive, *identities, **options)

    monkeypatch.setattr(DirectoryArchive, "remove", remove_late)
    async with scripted.openai() as client:
        first = await ask(client, "talk", "one")
        await client.responses.delete(first.id)
        with pytest.raises(openai.InternalServerError):
            await ask(client, "fail", "two")
    assert sorted(await conversations(scripted)) == [["one", TEXT, "more"], ["two", "more"]]


async def test_a_call_of_the_client_is_answered_in_the_next_response(scripted: Served) -> None:
    async with scripted.openai() as client:
        first = await ask(client, "call", tools=[TOOL])
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, json.loads(call.arguments)) == ("look_up", {"city": "Rome"})
        answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "20 °C"}
        with pytest.raises(openai.BadRequestError, match="each open call"):
            await ask(client, "call", previous_response_id=first.id, tools=[TOOL])
        wrong: Any = [{**answer, "call_id": "call_x"}]
        with pytest.raises(openai.BadRequestError, match="no call"):
            await ask(client, "call", wrong, previous_response_id=first.id)
        second = await client.responses.create(
            model="scripted/call", input=[answer], previous_response_id=first.id, tools=[TOOL]
        )
    assert second.output_text == "It is warm."
    assert len(await conversations(scripted)) == 1


async def test_a_call_can_be_answered_twice_in_two_forks(scripted: Served) -> None:
    async with scripted.openai() as client:
        first = await ask(client, "call", tools=[TOOL])
        (call,) = [item for item in first.output if item.type == "function_call"]
        answer: Any = {"type": "function_call_output", "call_id": call.call_id}
        options: Any = {"previous_response_id": first.id, "tools": [TOOL], "model": "scripted/talk"}
        for output in ("20 °C", "30 °C"):
            said: Any = [{**answer, "output": output}]
            again = await client.responses.create(input=said, **options)
            assert again.output_text == TEXT
        found = await client.responses.retrieve(first.id)
    assert found.output == first.output
    stored = await conversations(scripted)
    assert sorted(one[3] for one in stored) == ["20 °C", "30 °C"]


async def test_a_response_in_the_background_goes_on_until_it_is_cancelled(
    scripted: Served,
) -> None:
    async with scripted.openai() as client, scripted.http() as http:
        begun = await ask(client, "slow", background=True)
        assert begun.status in ("queued", "in_progress")
        url = f"/v1/responses/{begun.id}"
        async with http.stream("GET", f"{url}?stream=true") as response:
            async for line in response.aiter_lines():
                if "output_text.delta" in line:
                    break
        # The follower is gone, and the response is not.
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        with pytest.raises(openai.ConflictError):
            await ask(client, "talk", previous_response_id=begun.id)
        with pytest.raises(openai.ConflictError):
            await client.responses.delete(begun.id)
        ended = await client.responses.cancel(begun.id)
        assert ended.status == "cancelled"
        assert ended.output_text == "first "
        events = await read_events(http, "GET", f"{url}?stream=true")
        assert events[-1]["response"]["status"] == "cancelled"
        await client.responses.delete(begun.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(begun.id)


async def test_a_response_that_is_not_stored_leaves_nothing(scripted: Served) -> None:
    async with scripted.openai() as client, scripted.http() as http:
        whole = await ask(client, "talk", store=False, instructions="Count.")
        assert whole.output_text == TEXT
        body = {"model": "scripted/talk", "input": "Go on.", "stream": True, "store": False}
        events = await read_events(http, "POST", "/v1/responses", json=body)
        assert text_of(events) == TEXT
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(whole.id)
    assert await conversations(scripted) == []


async def test_a_response_of_one_user_does_not_exist_for_another(scripted: Served) -> None:
    async with scripted.openai() as client, scripted.http("eve") as eve:
        response = await ask(client, "talk")
        path = f"/v1/responses/{response.id}"
        for method, url in (
            *(("GET", path), ("GET", f"{path}?stream=true"), ("GET", f"{path}/input_items")),
            *(("POST", f"{path}/cancel"), ("DELETE", path)),
        ):
            assert (await eve.request(method, url)).status_code == 404, (method, url)
        body = {"model": "scripted/talk", "input": "x", "previous_response_id": response.id}
        assert (await eve.post("/v1/responses", json=body)).status_code == 404
        assert (await client.responses.retrieve(response.id)).status == "completed"
        # A part of an identity does not stand for the whole.
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id[:-4])


async def test_the_input_of_a_response_is_listed(scripted: Served) -> None:
    async with scripted.openai() as client:
        said: Any = [{"role": "user", "content": text} for text in ("One?", "Two?", "Three?")]
        response = await client.responses.create(model="scripted/talk", input=said)
        page = await client.responses.input_items.list(response.id, limit=2, order="asc")
        items: list[Any] = [item async for item in page]
    assert [item.content[0].text for item in items] == ["One?", "Two?", "Three?"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": ""}, 400, None),
        ({}, 400, "input"),
        ({"input": 3}, 400, "input"),
        ({"input": "x", "model": "none/such"}, 404, None),
        ({"input": "x", "conversation": "conv_1"}, 400, "conversation"),
        ({"input": "x", "previous_response_id": "resp_x"}, 404, "previous_response_id"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "a"}}, 400, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 404, "input[0].id"),
        ({"input": "x", "background": True, "store": False}, 400, "store"),
        ({"input": "x", "model": "scripted/fail"}, 502, None),
    ],
)
async def test_a_wrong_request_is_answered_with_what_is_wrong(
    scripted: Served, body: Any, status: int, param: str | None
) -> None:
    async with scripted.http() as http:
        response = await http.post("/v1/responses", json={"model": "scripted/talk", **body})
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


async def test_responses_that_a_server_left_are_continued_by_the_next(home: Path) -> None:
    home.mkdir()
    script = home / "talk.toml"
    script.write_text(SCRIPTS["slow"])
    rows = {"scripted": {"scripts": {"talk": str(script)}}}
    tables: Any = {"providers": rows, "runs": {"lease-seconds": 1}}
    async with serving(home, **tables) as server, server.openai() as client:
        begun = await ask(client, "talk", background=True)
        async for event in await client.responses.retrieve(begun.id, stream=True):
            if event.type == "response.output_text.delta":
                break
    script.write_text(SCRIPTS["talk"])
    async with serving(home, **tables) as server:
        key = server.users.rotate("local")
        async with openai.AsyncOpenAI(api_key=key, base_url=f"{server.url}/v1") as client:
            events = [one async for one in await client.responses.retrieve(begun.id, stream=True)]
            ended = await client.responses.retrieve(begun.id)
    assert "x:response.continued" in [one.type for one in events]
    assert ended.output_text == TEXT


async def test_a_long_response_is_found_by_the_next_server(home: Path) -> None:
    text = "word " * 2000
    home.mkdir()
    (home / "talk.toml").write_text(SCRIPTS["talk"].replace(TEXT, text))
    tables: Any = {"providers": {"scripted": {"scripts": {"talk": str(home / "talk.toml")}}}}
    async with serving(home, **tables) as server, server.openai() as client:
        begun = await ask(client, "talk")
    async with serving(home, **tables) as server:
        key = server.users.rotate("local")
        async with openai.AsyncOpenAI(api_key=key, base_url=f"{server.url}/v1") as client:
            found = await client.responses.retrieve(begun.id)
            after = await client.responses.create(input="More.", previous_response_id=begun.id)
    assert found.output_text == begun.output_text == after.output_text == text


async def test_a_response_stays_whole_where_its_run_was_purged(home: Path) -> None:
    home.mkdir()
    (home / "talk.toml").write_text(SCRIPTS["talk"])
    rows = {"scripted": {"scripts": {"talk": str(home / "talk.toml")}}}
    tables: Any = {"providers": rows, "runs": {"events-days": 0}}
    image = f"data:image/png;base64,{base64.b64encode(bytes(3000)).decode()}"
    said = [
        {"role": "user", "content": "Before."},
        {"role": "assistant", "content": "Indeed."},
        {"role": "user", "content": [{"type": "input_image", "image_url": image}]},
    ]
    body = {"model": "scripted/talk", "input": said, "instructions": "Be brief.", "tools": [TOOL]}
    async with serving(home, **tables) as server, server.http() as http:
        begun = (await http.post("/v1/responses", json=body)).json()["id"]
        paths = f"/v1/responses/{begun}", f"/v1/responses/{begun}/input_items"
        whole = [(await http.get(path)).json() for path in paths]
    async with serving(home, **tables) as server:
        server.keys["local"] = server.users.rotate("local")
        async with server.http() as http:
            other = (await http.post("/v1/responses", json={**body, "input": "Hi."})).json()["id"]
            kept = "select prompt is null from bodies where run = ?"
            async with asyncio.timeout(30):
                with closing(sqlite3.connect(home / "server" / "runs.sqlite")) as database:
                    while not database.execute(kept, (begun.split("_")[1],)).fetchone()[0]:
                        await asyncio.sleep(0.02)
            assert [(await http.get(path)).json() for path in paths] == whole
            going = {"model": "scripted/talk", "input": "And?", "previous_response_id": begun}
            after = (await http.post("/v1/responses", json=going)).json()
            assert after["output"][0]["content"][0]["text"] == TEXT
            for one in (after["id"], begun, other):
                assert (await http.delete(f"/v1/responses/{one}")).status_code == 200
        assert await conversations(server) == []


async def survey(served: Served) -> list[list[str]]:
    """The roles of the messages of all stored conversations."""
    async with served.session() as session:
        found = await session.survey_conversations(superseded=True)
        return [
            [
                role_of(canister)
                for canister in (await session.archive.restore(one.identity)).canisters
            ]
            for one in found
        ]


async def test_input_tokens_are_counted_without_storing_anything(scripted: Served) -> None:
    async with scripted.openai() as client:
        count = client.responses.input_tokens.count
        model = "scripted/demo"
        short = await count(model=model, input="Hello")
        longer = [
            await count(model=model, input="Hello " * 50),
            await count(model=model, input="Hello", instructions="Be brief. " * 50),
        ]
        alone = await count(model=model, instructions="Be brief.")
        assert short.object == "response.input_tokens"
        assert all(one.input_tokens > short.input_tokens > 0 for one in longer)
        assert alone.input_tokens > 0
        assert await survey(scripted) == []

        # So long that the archive keeps it on its own.
        said = "Tell me more. " * 200
        first = await client.responses.create(model=model, input=said)
        kept = await survey(scripted)
        more = await count(input="Hello", previous_response_id=first.id)
        nothing = await count(previous_response_id=first.id)
        said_alone = await count(model=model, input=said)
        assert more.input_tokens > nothing.input_tokens > said_alone.input_tokens
        await client.responses.create(model=model, input="Bye", previous_response_id=first.id)
        later = await count(input="Hello", previous_response_id=first.id)
        assert later.input_tokens == more.input_tokens
        assert kept == [["user", "assistant"]]
        assert await survey(scripted) == [["user", "assistant"] * 2]
        with pytest.raises(openai.NotFoundError):
            await count(input="Hello", previous_response_id="resp_none")
        with pytest.raises(openai.NotFoundError):
            await count(model="none", input="Hello")


async def test_the_tokens_of_a_result_are_counted_with_its_call(scripted: Served) -> None:
    async with scripted.openai() as client:
        model = "scripted/call"
        asked = await client.responses.create(model=model, input="x", tools=[TOOL])
        (call,) = [item for item in asked.output if item.type == "function_call"]
        result: Any = {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": "20 degrees",
        }
        count = client.responses.input_tokens.count
        counted = await count(input=[result], previous_response_id=asked.id, tools=[TOOL])
        assert counted.input_tokens > 0
        with pytest.raises(openai.BadRequestError):
            await count(input="Well?", previous_response_id=asked.id, tools=[TOOL])
