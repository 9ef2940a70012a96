"""What clients of Responses send of earlier responses: their items, references, or an identity."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Served, serving
from tests.server.test_responses import conversations, read_events, validate

URL = "/v1/responses"
PATCH = "*** Begin Patch\n*** End Patch"
SCRIPTS = {
    "think": (
        '[[replies]]\nwhen = "^One"\n'
        'parts = [{ reasoning = "Let me see, slowly." }, { text = "Two." }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "Four." }]\n'
    ),
    "fail": (
        '[[replies]]\nwhen = "^One"\nparts = [{ text = "Two." }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ error = "unreachable" }]\n'
    ),
    "work": (
        '[[replies]]\nwhen = "^Go"\nparts = [{ reasoning = "Hm." }, { text = "I work." }, '
        '{ invocation = "patch", arguments = { input = "*** Begin Patch\\n*** End Patch" } }, '
        '{ invocation = "files/look", arguments = { path = "a" } }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "Done." }]\n'
    ),
}
TOOLS: list[dict[str, Any]] = [
    {"type": "custom", "name": "patch"},
    {
        "type": "namespace",
        "name": "files",
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    },
    {"type": "web_search"},
]
FIRST: dict[str, Any] = {"role": "user", "content": "One?"}
SECOND: dict[str, Any] = {"role": "user", "content": "And?"}


@pytest.fixture
async def scripted(home: Path) -> AsyncIterator[Served]:
    """A server with those scripts as models."""
    home.mkdir()
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    rows = {"scripted": {"scripts": scripts, "retries": 0}}
    async with serving(home, storage={"durability": "fast"}, providers=rows) as server:
        yield server


def answer_calls(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outputs of all calls in a response."""
    return [
        {"type": f"{one['type']}_output", "call_id": one["call_id"], "output": "ok"}
        for one in output
        if "call_id" in one
    ]


@pytest.mark.parametrize("store", [True, False])
async def test_the_output_of_a_response_can_be_sent_back(scripted: Served, store: bool) -> None:
    common = {"model": "scripted/think", "store": store}
    async with scripted.http() as http:
        first = (await http.post(URL, json={**common, "input": [FIRST]})).json()
        items = [FIRST, *first["output"], SECOND]
        second = (await http.post(URL, json={**common, "input": items})).json()
    assert [one["type"] for one in first["output"]] == ["reasoning", "message"]
    assert second["output"][0]["content"][0]["text"] == "Four."
    stored = [["One?", "Two."], ["One?", "Two.", "And?", "Four."]] if store else []
    assert sorted(await conversations(scripted)) == stored


async def test_what_was_said_to_a_model_that_fails_is_withdrawn_and_the_rest_stays(
    scripted: Served,
) -> None:
    async with scripted.http() as http:
        first = (await http.post(URL, json={"model": "scripted/fail", "input": [FIRST]})).json()
        more = {"previous_response_id": first["id"], "input": [SECOND]}
        failed = await http.post(URL, json={"model": "scripted/fail", **more})
        assert failed.status_code == 502
        assert await conversations(scripted) == [["One?", "Two."]]
        again = await http.post(URL, json={"model": "scripted/think", **more})
    assert again.status_code == 200, again.text
    assert await conversations(scripted) == [["One?", "Two.", "And?", "Four."]]


async def test_references_stand_for_items_of_stored_responses(scripted: Served) -> None:
    common: dict[str, Any] = {"model": "scripted/work", "tools": TOOLS}
    async with scripted.http() as http, scripted.http("eve") as eve:
        start = {"role": "user", "content": "Go."}
        first = (await http.post(URL, json={**common, "input": [start]})).json()
        listed = (await http.get(f"{URL}/{first['id']}/input_items")).json()["data"]
        references = [
            {"type": "item_reference", "id": one["id"]} for one in [*listed, *first["output"]]
        ]
        items = [*references, *answer_calls(first["output"])]
        second = (await http.post(URL, json={**common, "input": items})).json()
        again = (await http.get(f"{URL}/{second['id']}/input_items?order=asc")).json()["data"]
        stranger = await eve.post(URL, json={**common, "input": items})
        await http.delete(f"{URL}/{second['id']}")
        deleted = [{"type": "item_reference", "id": second["output"][0]["id"]}, SECOND]
        gone = await http.post(URL, json={**common, "input": deleted})
    assert [one["type"] for one in first["output"]] == [
        *("reasoning", "message", "custom_tool_call", "function_call")
    ]
    assert second["output"][0]["content"][0]["text"] == "Done."
    # The request is kept with the items themselves.
    assert [one["type"] for one in again[:5]] == [
        *("message", "reasoning", "message", "custom_tool_call", "function_call")
    ]
    for refused in (stranger, gone):
        assert refused.status_code == 404
        assert "not found" in refused.json()["error"]["message"]


async def test_items_of_a_response_that_is_not_stored_cannot_be_referred_to(
    scripted: Served,
) -> None:
    async with scripted.http() as http:
        body = {"model": "scripted/think", "store": False, "input": [FIRST]}
        first = (await http.post(URL, json=body)).json()
        items = [FIRST, {"id": first["output"][1]["id"]}, SECOND]
        refused = await http.post(URL, json={**body, "input": items})
    assert refused.status_code == 404
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")
    assert "store" in error["message"]


async def test_a_response_that_is_not_stored_continues_one_that_is(scripted: Served) -> None:
    tools: dict[str, Any] = {"model": "scripted/work", "tools": TOOLS}
    async with scripted.http() as http:
        first = (await http.post(URL, json={**tools, "input": "Go."})).json()
        follow = {**tools, "store": False, "previous_response_id": first["id"]}
        counted = await http.post(
            f"{URL}/input_tokens", json={**follow, "input": answer_calls(first["output"])}
        )
        second = await http.post(URL, json={**follow, "input": answer_calls(first["output"])})
        stream = {**follow, "input": answer_calls(first["output"]), "stream": True}
        *_, last = await read_events(http, "POST", URL, json=stream)
        unanswered = await http.post(URL, json={**follow, "input": "And?"})
    assert second.status_code == 200, second.text
    assert second.json()["output"][0]["content"][0]["text"] == "Done."
    assert counted.json()["input_tokens"] > 0
    assert last["response"]["output"][0]["content"][0]["text"] == "Done."
    assert unanswered.status_code == 400
    # The first response is as it was.
    assert [one[0] for one in await conversations(scripted)] == ["Go."]


async def test_calls_of_all_kinds_of_tools_are_streamed_and_answered(scripted: Served) -> None:
    body: dict[str, Any] = {"model": "scripted/work", "tools": TOOLS, "stream": True}
    async with scripted.http() as http:
        for options in ({"store": True}, {"store": False}):
            asked = {**body, **options, "input": "Go."}
            events = await read_events(http, "POST", URL, json=asked)
            response = events[-1]["response"]
            validate(response)
            kinds = [one["type"] for one in events if "custom_tool_call_input" in one["type"]]
            assert kinds == [f"response.custom_tool_call_input.{one}" for one in ("delta", "done")]
            custom, function = response["output"][2:]
            assert (custom["name"], custom["input"]) == ("patch", PATCH)
            assert (function["namespace"], function["name"]) == ("files", "look")
            done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
            assert done == response["output"]
            go = {"role": "user", "content": "Go."}
            items = [go, *response["output"], *answer_calls(response["output"])]
            *_, last = await read_events(http, "POST", URL, json={**asked, "input": items})
            assert last["response"]["output"][0]["content"][0]["text"] == "Done."


async def test_a_stream_of_reasoning_can_be_resumed_after_each_character(
    scripted: Served,
) -> None:
    body = {"model": "scripted/think", "input": "One?", "stream": True}
    async with scripted.http() as http:
        events = await read_events(http, "POST", URL, json=body)
        later = f"{URL}/{events[0]['response']['id']}?stream=true"
        text = "Let me see, slowly."
        assert read_summary(events) == text
        for event in events:
            after = event["sequence_number"]
            rest = await read_events(http, "GET", f"{later}&starting_after={after}")
            missed = [one for one in events if one["sequence_number"] > after]
            assert read_summary(rest) == read_summary(missed)
        delta = [one for one in events if one["type"].endswith("summary_text.delta")][-1]
        for left in range(1, len(text), 5):
            after = delta["sequence_number"] - 16 * left
            rest = await read_events(http, "GET", f"{later}&starting_after={after}")
            assert read_summary(rest) == text[-left:]
    whole = [one for one in events if one["type"] == "response.reasoning_text.done"]
    assert [one["text"] for one in whole] == [text]


def read_summary(events: list[dict[str, Any]]) -> str:
    """Return the pieces of reasoning as clients show them."""
    kind = "response.reasoning_summary_text.delta"
    return "".join(one["delta"] for one in events if one["type"] == kind)


async def test_what_is_left_out_is_named_in_the_header_and_the_log(scripted: Served) -> None:
    async with scripted.http() as http:
        for options in ({"store": True}, {"store": False, "stream": True}):
            body = {"model": "scripted/work", "tools": TOOLS, "input": "Hello.", **options}
            response = await http.post(URL, json={**body, "text": {"verbosity": "low"}})
            assert response.headers["x-left-out"] == "member text.verbosity, tool web_search"
        plain = await http.post(URL, json={"model": "scripted/work", "input": "Hello."})
    assert "x-left-out" not in plain.headers
    named = [line for line in scripted.log if "; left out: member text.verbosity, tool" in line]
    assert len(named) == 2


async def test_items_that_are_referred_to_are_no_larger_together_than_a_body(home: Path) -> None:
    home.mkdir()
    (home / "think.toml").write_text(SCRIPTS["think"])
    rows = {"scripted": {"scripts": {"think": str(home / "think.toml")}}}
    body = {"model": "scripted/think", "input": [{"role": "user", "content": "x" * 4_000}]}
    async with (
        serving(home, providers=rows, server={"body-bytes": 10_000}) as served,
        served.http() as http,
    ):
        first = (await http.post(URL, json=body)).json()
        (item,) = (await http.get(f"{URL}/{first['id']}/input_items")).json()["data"]
        reference = {"type": "item_reference", "id": item["id"]}
        taken = await http.post(URL, json={**body, "input": [reference] * 2})
        refused = await http.post(URL, json={**body, "input": [reference] * 3})
    assert taken.status_code == 200
    assert refused.status_code == 413
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("input[2].id", "request_too_large")


@pytest.mark.parametrize("store", [True, False])
async def test_a_client_may_send_again_what_the_response_has(scripted: Served, store: bool) -> None:
    tools: dict[str, Any] = {"model": "scripted/work", "tools": TOOLS}
    async with scripted.http() as http:
        first = (await http.post(URL, json={**tools, "input": "Go."})).json()
        follow = {**tools, "previous_response_id": first["id"], "store": store}
        # What the user says stands before the results.
        items = [*first["output"], SECOND, *answer_calls(first["output"])]
        second = await http.post(URL, json={**follow, "input": items})
    assert second.status_code == 200, second.text
    (said,) = await conversations(scripted)
    more = ["ok", "ok", "And?", "Done."] if store else []
    assert said == ["Go.", "I work.", "invocation", "invocation", *more]


@pytest.mark.parametrize("store", [True, False])
async def test_calls_of_the_client_itself_follow_a_response(scripted: Served, store: bool) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "blue"}
    async with scripted.http() as http:
        body = {"model": "scripted/think", "input": [FIRST]}
        first = (await http.post(URL, json=body)).json()
        follow = {**body, "previous_response_id": first["id"], "store": store}
        taken = await http.post(URL, json={**follow, "input": [call, result, SECOND]})
        refused = await http.post(URL, json={**follow, "input": [call, SECOND]})
    assert taken.status_code == 200, taken.text
    assert refused.status_code == 400


@pytest.mark.parametrize("store", [True, False])
async def test_an_input_may_be_a_message_of_the_assistant_alone(
    scripted: Served, store: bool
) -> None:
    said = {"role": "assistant", "content": "Well,"}
    async with scripted.http() as http:
        body = {"model": "scripted/think", "input": [said], "store": store}
        reply = await http.post(URL, json=body)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_whose_messages_are_gone_is_not_found(
    scripted: Served, store: bool
) -> None:
    async with scripted.http() as http:
        body = {"model": "scripted/think", "input": [FIRST]}
        first = (await http.post(URL, json=body)).json()
        async with scripted.session() as session:
            (summary,) = await session.survey_conversations()
            user, reply = (await session.archive.restore(summary.identity)).canisters
            await session.archive.retract(
                summary.identity, after=user.identity, last=reply.identity
            )
        follow = {**body, "previous_response_id": first["id"], "store": store}
        gone = await http.post(URL, json=follow)
    assert gone.status_code == 404
