"""Permissions and forms: the client asks, with everything the user needs to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editor import editing
from tests.acp.recorder import Recorder, produce
from tests.acp.scripts import ASKING, call, options_for, replies, server, stored
from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.questions import produce_elicitor
from vibe_llms.acp.requests import ClientAbilities, ElicitationAbilities
from vibe_llms.invocation.questions import (
    ElicitationField,
    ElicitationRequest,
    decline,
    read_fields,
)

pytestmark = pytest.mark.usefixtures("warm_process")

PERMISSION = "session/request_permission"
#: A script that calls `echo` twice, with a text of several lines and with another one.
TWICE = replies(
    call("fake/echo", text="a\nb"), call("fake/echo", text="other"), "{ text = 'Done.' }"
)


def choose(option: str) -> Any:
    """An answer to each request for permission."""
    return lambda _: {"outcome": {"outcome": "selected", "optionId": option}}


def results(home: Path) -> list[str]:
    return [one["contents"][0]["data"] for one in stored(home) if one["role"] == "result"]


async def test_a_request_for_permission_has_all_arguments(tmp_path: Path, home: Path) -> None:
    async with editing(options_for(tmp_path, TWICE)) as editor:
        session = await editor.open(tmp_path, mcpServers=[server()])
        turn = editor.prompt(session, "Echo")
        asked = await editor.wait_for_request(PERMISSION)
        seen = asked["params"]["toolCall"]
        assert seen["rawInput"] == {"text": "a\nb"}
        assert (seen["title"], seen["status"]) == ("fake/echo", "pending")
        assert "the tool needs approval" in seen["content"][0]["content"]["text"]
        # The client knows the call already.
        (begun,) = editor.of("tool_call")
        assert (begun["toolCallId"], begun["status"]) == (seen["toolCallId"], "pending")
        editor.replies[PERMISSION] = choose("reject")
        editor.answer(asked["id"], choose("reject")({}))
        assert (await turn)["stopReason"] == "end_turn"
    assert results(home) == ["The call was not allowed: the user said no."] * 2


@pytest.mark.parametrize(
    ("option", "texts", "asked"),
    [
        ("allow", ["a", "a", "b"], 3),
        ("always", ["a", "a", "b"], 2),
        # As in the command, it asks once more because of the untrusted text of the first result.
        ("always-tool", ["a", "b", "c"], 2),
    ],
)
async def test_an_approval_lasts_as_long_as_the_choice_says(
    tmp_path: Path, home: Path, option: str, texts: list[str], asked: int
) -> None:
    script = replies(*(call("fake/echo", text=one) for one in texts), "{ text = 'Done.' }")
    async with editing(options_for(tmp_path, script)) as editor:
        editor.replies[PERMISSION] = choose(option)
        session = await editor.open(tmp_path, mcpServers=[server()])
        assert await editor.say(session, "Echo") == "end_turn"
        assert len(editor.asked) == asked
    assert results(home) == texts


async def test_an_approval_of_one_session_is_not_one_of_another(tmp_path: Path) -> None:
    script = replies(call("fake/echo", text="x"), "{ text = 'Done.' }")
    async with editing(options_for(tmp_path, script)) as editor:
        editor.replies[PERMISSION] = choose("always-tool")
        for number in (1, 2):
            session = await editor.open(tmp_path, mcpServers=[server()])
            assert await editor.say(session, "Echo") == "end_turn"
            assert len(editor.asked) == number


@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": {"outcome": "cancelled"}},
        {"outcome": {"outcome": "selected", "optionId": "always-everything"}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": "allow"},
        {},
        None,
    ],
)
async def test_an_answer_that_allows_nothing_runs_nothing(
    tmp_path: Path, home: Path, answer: Any
) -> None:
    async with editing(options_for(tmp_path, TWICE)) as editor:
        editor.replies[PERMISSION] = lambda _: answer
        session = await editor.open(tmp_path, mcpServers=[server()])
        assert await editor.say(session, "Echo") == "end_turn"
    assert [one.startswith("The call was not allowed") for one in results(home)] == [True] * 2


async def test_a_client_that_cannot_ask_allows_nothing(tmp_path: Path, home: Path) -> None:
    async with editing(options_for(tmp_path, TWICE)) as editor:
        session = await editor.open(tmp_path, mcpServers=[server()])
        turn = editor.prompt(session, "Echo")
        error = {"code": -32601, "message": "unknown method"}
        await editor.wait_until(lambda: len(editor.asked) == 1)
        editor.send({"id": editor.asked[0]["id"], "error": error})
        await editor.wait_until(lambda: len(editor.asked) == 2)
        editor.send({"id": editor.asked[1]["id"], "error": error})
        assert (await turn)["stopReason"] == "end_turn"
        assert "unknown method" in editor.text("agent_thought_chunk")
    assert "could not ask the user" in results(home)[0]


async def test_cancelling_while_the_user_is_asked_withdraws_the_question(
    tmp_path: Path, home: Path
) -> None:
    async with editing(options_for(tmp_path, TWICE)) as editor:
        session = await editor.open(tmp_path, mcpServers=[server()])
        turn = editor.prompt(session, "Echo")
        asked = await editor.wait_for_request(PERMISSION)
        editor.notify("session/cancel", sessionId=session)
        assert (await turn)["stopReason"] == "cancelled"
        withdrawn = [one for one in editor.messages if one.get("method") == "$/cancel_request"]
        assert [one["params"]["requestId"] for one in withdrawn] == [asked["id"]]
        assert editor.of("tool_call_update")[-1]["status"] == "failed"
        # An answer that comes too late changes nothing.
        editor.answer(asked["id"], choose("allow")({}))
        editor.replies[PERMISSION] = choose("allow")
        assert await editor.say(session, "Go on") == "end_turn"
    assert [one["role"] for one in stored(home)][:3] == ["user", "invocation", "result"]
    assert "did not run" in results(home)[0]


FORM: dict[str, Any] = {"form": {}}


async def test_a_form_of_a_server_goes_to_the_client(tmp_path: Path, home: Path) -> None:
    script = replies(call("asking/book"), "{ text = 'Done.' }")
    values = {"name": "Ada", "seats": 3, "smoking": False, "meal": "fish"}
    async with editing(options_for(tmp_path, script), elicitation=FORM) as editor:
        editor.replies["elicitation/create"] = lambda _: {"action": "accept", "content": values}
        session = await editor.open(tmp_path, mcpServers=[server(ASKING, "asking")])
        assert await editor.say(session, "Book!") == "end_turn"
        (asked,) = editor.asked
        assert asked["params"]["sessionId"] == session
        assert asked["params"]["message"] == "asking asks: Book a table?"
        meal = asked["params"]["requestedSchema"]["properties"]["meal"]
        assert [one["const"] for one in meal["oneOf"]] == ["fish", "beans"]
    assert results(home) == ["Ada 3 False fish"]


async def test_without_forms_the_question_of_a_server_is_declined(
    tmp_path: Path, home: Path
) -> None:
    script = replies(call("asking/book"), "{ text = 'Done.' }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path, mcpServers=[server(ASKING, "asking")])
        assert await editor.say(session, "Book!") == "end_turn"
    assert results(home) == ["decline"]


async def test_a_form_is_described_so_that_reading_it_gives_the_same_fields() -> None:
    fields = (
        ElicitationField(name="a", title="A", description="One", required=True, least=2, most=9),
        ElicitationField(name="b", kind="integer", least=1, most=3, default=2),
        ElicitationField(name="c", kind="number", least=0.5),
        ElicitationField(name="d", kind="boolean", default=False),
        ElicitationField(name="e", kind="choice", choices=(("x", "X"), ("y", "y"))),
        ElicitationField(name="f", kind="choices", choices=(("x", "X"),), least=1),
        ElicitationField(name="g", format="email"),
    )
    recorder, client = produce({"action": "accept", "content": {"a": "text"}}, form={})
    elicit = produce_elicitor(client)
    request = ElicitationRequest(ensemble="fake", message="Fill in", fields=fields)
    answer = await elicit(request)  # type: ignore[misc]
    assert (answer.action, answer.values) == ("accept", {"a": "text"})
    (sent,) = recorder.lines
    assert read_fields(sent["params"]["requestedSchema"]) == fields


@pytest.mark.parametrize(
    ("result", "action"),
    [
        ({"action": "decline"}, "decline"),
        ({"action": "cancel", "content": {"a": 1}}, "cancel"),
        ({"action": "whatever"}, "cancel"),
        ({"action": "accept", "content": []}, "cancel"),
        ([], "cancel"),
        ({"action": "accept", "content": None}, "accept"),
    ],
)
async def test_an_answer_to_a_form_is_read_with_care(result: Any, action: str) -> None:
    _, client = produce(result, form={})
    elicit = produce_elicitor(client)
    answer = await elicit(ElicitationRequest(ensemble="fake", message="?"))  # type: ignore[misc]
    assert (answer.action, answer.values) == (action, {})


async def test_a_question_that_the_client_cannot_ask_is_declined_and_reported() -> None:
    recorder, client = produce({"action": "accept"}, form={})
    elicit = produce_elicitor(client)
    request = ElicitationRequest(ensemble="fake", message="Sign in", url="https://a.test/")
    assert (await elicit(request)).action == "decline"  # type: ignore[misc]
    (update,) = recorder.lines
    assert "fake asks you to open https://a.test/" in json.dumps(update)
    recorder, client = produce({"action": "accept"}, url={})
    elicit = produce_elicitor(client)
    assert (await elicit(request)).action == "accept"  # type: ignore[misc]
    assert recorder.lines[0]["params"]["url"] == "https://a.test/"


def test_without_the_ability_nobody_is_asked() -> None:
    for abilities in (ClientAbilities(), ClientAbilities(elicitation=ElicitationAbilities())):
        client = SessionClient(Recorder(None).peer, abilities, lambda _: None)
        assert produce_elicitor(client) is decline
