"""Turns over the protocol: streamed text, tool calls, cancelling, and messages during a turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acp.editor import Failure, editing
from tests.acp.scripts import call, options_for, replies, said_by_user, server, stored
from tests.cli.command import script_of
from vibe_llms.acp import running


async def test_text_arrives_in_pieces_of_one_message_and_is_stored(
    tmp_path: Path, home: Path
) -> None:
    options = options_for(tmp_path, script_of("{ reasoning = 'Hm.' }", "{ text = ['Hel', 'lo.'] }"))
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        assert await editor.say(session, "Hi") == "end_turn"
        assert {name for name, _ in editor.updates} == {session}
        chunks = editor.of("agent_message_chunk")
        assert [one["content"]["text"] for one in chunks] == ["Hel", "lo."]
        (reply,) = {one["messageId"] for one in chunks}
        (thought,) = {one["messageId"] for one in editor.of("agent_thought_chunk")}
    said = stored(home)
    assert [one["role"] for one in said] == ["user", "assistant"]
    assert (said[1]["identity"], thought) == (reply, f"{reply}-thought")
    assert [one.name for one in home.glob("conversations/*")] == [session]


async def test_a_cancelled_turn_keeps_what_has_arrived(tmp_path: Path, home: Path) -> None:
    script = script_of("{ text = ['One ', 'two '] }", "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        turn = editor.prompt(session, "Count")
        await editor.wait_until(lambda: "two" in editor.text())
        editor.notify("session/cancel", sessionId=session)
        assert (await turn)["stopReason"] == "cancelled"
    assert [one["role"] for one in stored(home)] == ["user", "assistant"]
    assert "One two" in json.dumps(stored(home)[1])


async def test_a_cancel_right_after_a_prompt_is_not_missed(tmp_path: Path, home: Path) -> None:
    async with editing(options_for(tmp_path, script_of("{ stall = true }"))) as editor:
        session = await editor.open(tmp_path)
        turns = [editor.prompt(session, text) for text in ("One", "Two", "Three")]
        editor.notify("session/cancel", sessionId=session)
        assert [(await turn)["stopReason"] for turn in turns] == ["cancelled"] * 3
    assert said_by_user(home) == ["One", "Two", "Three"]


async def test_a_message_during_a_turn_is_added_to_it(tmp_path: Path, home: Path) -> None:
    script = replies("{ text = ['First. '] }, { delay-seconds = 0.5 }", "{ text = 'Second.' }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        first = editor.prompt(session, "One")
        await editor.wait_for("agent_message_chunk")
        second = editor.prompt(session, "Two")
        assert [(await turn)["stopReason"] for turn in (first, second)] == ["end_turn"] * 2
        assert editor.text() == "First. Second."
    assert [one["role"] for one in stored(home)] == ["user", "assistant", "user", "assistant"]
    assert stored(home)[2]["steered"] is True


async def test_an_error_of_the_provider_is_an_answer(tmp_path: Path) -> None:
    script = script_of(
        "{ error = 'rate-limited', message = 'slow down', retry-after-seconds = 90 }"
    )
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        with pytest.raises(Failure, match="slow") as failure:
            await editor.say(session, "Hi")
        assert failure.value.code == -32603
        assert failure.value.data == {"kind": "rate-limited", "retryAfter": 90}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("length", "max_tokens"), ("refused", "refusal"), ("finished", "end_turn")],
)
async def test_the_reason_why_a_turn_ended_is_said(
    tmp_path: Path, reason: str, expected: str
) -> None:
    script = script_of("{ text = 'Well.' }", stop_reason=f"'{reason}'").replace("stop_", "stop-")
    async with editing(options_for(tmp_path, script)) as editor:
        assert await editor.say(await editor.open(tmp_path), "Hi") == expected


async def test_a_client_that_ends_does_not_wait_for_the_model(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is ended first; other calls have some seconds to be answered."""
    monkeypatch.setattr(running, "_FINISH_SECONDS", 1000.0)
    script = script_of("{ text = 'One ' }", "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        turn = editor.prompt(await editor.open(tmp_path), "Count")
        await editor.wait_for("agent_message_chunk")
    assert (await turn)["stopReason"] == "cancelled"
    assert [one["role"] for one in stored(home)] == ["user", "assistant"]


async def test_files_and_terminals_of_the_client_are_never_used(tmp_path: Path) -> None:
    """Version 2 has neither, and an editor drops an update that names an unknown terminal:
    https://github.com/zed-industries/zed/issues/64538
    """
    script = replies(call("fake/echo", text="x"), "{ text = 'Done.' }")
    files = {"readTextFile": True, "writeTextFile": True}
    async with editing(options_for(tmp_path, script), fs=files, terminal=True) as editor:
        chosen = {"outcome": {"outcome": "selected", "optionId": "allow"}}
        editor.replies["session/request_permission"] = lambda _: chosen
        session = await editor.open(tmp_path, mcpServers=[server()])
        assert await editor.say(session, "Echo") == "end_turn"
        assert {one["method"] for one in editor.asked} == {"session/request_permission"}
        assert "terminal" not in str(editor.updates)
