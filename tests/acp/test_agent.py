"""Sessions that are stored: listed, loaded, resumed, closed, deleted, and used by two clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editor import Editor, Failure, editing
from tests.acp.scripts import call, options_for, replies, said_by_user, server, stored
from tests.cli.command import script_of
from vibe_llms.opening import open_session

ANSWER = script_of("{ text = 'Yes.' }")
PICTURE = (Path(__file__).parents[2] / "documentation/examples/sky.png").read_bytes()


async def load(editor: Editor, session: str, folder: Path, **params: Any) -> Any:
    return await editor.call(
        "session/load", sessionId=session, cwd=str(folder), **{"mcpServers": [], **params}
    )


async def test_a_loaded_session_is_replayed_before_the_answer(tmp_path: Path) -> None:
    script = replies(
        f"{{ reasoning = 'Hm.' }}, {{ text = 'Now: ' }}, {call('fake/echo', text='hello')}",
        "{ text = 'Done.' }",
    )
    options = options_for(tmp_path, script)
    async with editing(options) as editor:
        editor.replies["session/request_permission"] = lambda _: {
            "outcome": {"outcome": "selected", "optionId": "allow"}
        }
        session = await editor.open(tmp_path, mcpServers=[server()])
        await editor.say(session, "Echo, please")
        live = merge(editor)
    async with editing(options) as editor:
        answered = editor.begin("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        await answered
        # Everything came before the answer.
        last = [one for one in editor.messages if "result" in one][-1]
        assert editor.messages.index(last) == len(editor.messages) - 1
        replayed = merge(editor)
    assert replayed.pop("user") == "Echo, please"
    assert replayed == live


def merge(editor: Editor) -> dict[str, Any]:
    """What a client shows after updates: texts by their ids, and calls with their last members."""
    shown: dict[str, Any] = {}
    for _, update in editor.updates:
        match update["sessionUpdate"]:
            case "user_message_chunk":
                shown["user"] = shown.get("user", "") + update["content"]["text"]
            case "agent_message_chunk" | "agent_thought_chunk":
                name = update["messageId"]
                shown[name] = shown.get(name, "") + update["content"]["text"]
            case "tool_call" | "tool_call_update":
                shown.setdefault(update["toolCallId"], {}).update(update, sessionUpdate="")
    return shown


async def test_a_resumed_session_is_not_replayed_and_goes_on(tmp_path: Path, home: Path) -> None:
    options = options_for(tmp_path, ANSWER)
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "One")
    async with editing(options) as editor:
        await editor.call("session/resume", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        assert editor.updates == []
        assert await editor.say(session, "Two") == "end_turn"
    assert said_by_user(home) == ["One", "Two"]


async def test_sessions_are_listed_by_folder_with_titles_and_pages(tmp_path: Path) -> None:
    options = options_for(tmp_path, ANSWER)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with editing(options) as editor:
        assert await editor.call("session/list") == {"sessions": []}
        for number in range(52):
            await editor.say(await editor.open(here), f"Question {number}\nand more")
        other = await editor.open(there)
        await editor.say(other, "Elsewhere")
        empty = await editor.open(there)
        listed = await editor.call("session/list", cwd=f"{there}/")
        assert [one["sessionId"] for one in listed["sessions"]] == [other]
        assert (listed["sessions"][0]["title"], listed["sessions"][0]["cwd"]) == (
            "Elsewhere",
            str(there),
        )
        first = await editor.call("session/list", cwd=str(here))
        second = await editor.call("session/list", cwd=str(here), cursor=first["nextCursor"])
        assert "nextCursor" not in second
        titles = [one["title"] for one in (*first["sessions"], *second["sessions"])]
        assert titles == [f"Question {number}" for number in reversed(range(52))]
        whole = await editor.call("session/list")
        assert whole["sessions"][0]["sessionId"] == other != empty
        with pytest.raises(Failure, match="cursor 'x' is not valid") as failure:
            await editor.call("session/list", cursor="x")
        assert failure.value.code == -32602


async def test_a_conversation_of_another_program_is_a_session_too(
    tmp_path: Path, home: Path
) -> None:
    options = options_for(tmp_path, ANSWER)
    async with open_session() as other:
        await (await other.begin(options.model)).converse("Hello")
    async with editing(options) as editor:
        (listed,) = (await editor.call("session/list"))["sessions"]
        assert (listed["title"], listed["cwd"]) == ("Hello", str(Path.home()))
        await load(editor, listed["sessionId"], tmp_path)
        assert editor.text("user_message_chunk") == "Hello"
        assert await editor.say(listed["sessionId"], "More") == "end_turn"
        # From now on it belongs to the folder.
        found = await editor.call("session/list", cwd=str(tmp_path))
        assert [one["sessionId"] for one in found["sessions"]] == [listed["sessionId"]]
    assert said_by_user(home) == ["Hello", "More"]


async def test_a_deleted_session_is_gone_and_deleting_it_again_is_no_error(
    tmp_path: Path, home: Path
) -> None:
    script = script_of("{ text = 'Well ' }", "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        turn = editor.prompt(session, "Wait")
        await editor.wait_for("agent_message_chunk")
        for name in (session, session, "nothing", "", session[:4], "../../etc"):
            assert await editor.call("session/delete", sessionId=name) == {}
        assert (await turn)["stopReason"] == "cancelled"
        assert (await editor.call("session/list"))["sessions"] == []
        with pytest.raises(Failure, match="not open"):
            await editor.say(session, "Hi")
    assert [*home.glob("conversations/*/messages.jsonl")] == []


async def test_only_the_whole_id_deletes_or_opens_a_session(tmp_path: Path, home: Path) -> None:
    """A command finds a conversation by 4 characters, its name, or -1; a program does not guess."""
    async with editing(options_for(tmp_path, ANSWER)) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "Precious")
        await editor.call("session/close", sessionId=session)
        for name in (session[:4], "Precious", "-1", session.upper()):
            await editor.call("session/delete", sessionId=name)
            with pytest.raises(Failure, match="not found") as failure:
                await load(editor, name, tmp_path)
            assert failure.value.code == -32002
        await load(editor, session, tmp_path)


async def test_a_closed_session_ends_its_turn_and_its_servers(tmp_path: Path, home: Path) -> None:
    script = replies(call("fake/pid"), "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        editor.replies["session/request_permission"] = lambda _: {
            "outcome": {"outcome": "selected", "optionId": "allow"}
        }
        session = await editor.open(tmp_path, mcpServers=[server()])
        turn = editor.prompt(session, "Wait")
        done = await editor.wait_until(
            lambda: [one for one in editor.of("tool_call_update") if "rawOutput" in one]
        )
        pid = int(done[0]["rawOutput"]["text"])
        assert Path(f"/proc/{pid}").exists()
        assert await editor.call("session/close", sessionId=session) == {}
        assert (await turn)["stopReason"] == "cancelled"
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(Failure, match="not open") as failure:
            await editor.call("session/close", sessionId=session)
        assert failure.value.code == -32002
    assert [one["role"] for one in stored(home)] == ["user", "invocation", "result"]


async def test_what_another_program_adds_is_shown_before_the_next_turn(
    tmp_path: Path, home: Path
) -> None:
    options = options_for(tmp_path, ANSWER)
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "One")
        async with open_session() as other:
            await (await other.resume(session)).converse("From elsewhere")
        editor.forget()
        assert await editor.say(session, "Two") == "end_turn"
        assert editor.text("user_message_chunk") == "From elsewhere"
        assert editor.text() == "Yes.Yes."
    assert said_by_user(home) == ["One", "From elsewhere", "Two"]


async def test_two_clients_in_one_conversation_lose_nothing(tmp_path: Path, home: Path) -> None:
    slow = options_for(tmp_path, script_of("{ text = 'A' }", "{ delay-seconds = 0.5 }"))
    async with editing(slow) as one, editing(slow) as two:
        session = await one.open(tmp_path)
        await one.say(session, "Begin")
        await load(two, session, tmp_path)
        for editor in (one, two):
            editor.forget()
        turns = [one.prompt(session, "From one"), two.prompt(session, "From two")]
        assert [(await turn)["stopReason"] for turn in turns] == ["end_turn"] * 2
        notes = one.text("agent_thought_chunk") + two.text("agent_thought_chunk")
        assert "this one continues as" in notes
        assert [editor.text() for editor in (one, two)] == ["A", "A"]
    paths = [*home.glob("conversations/*/messages.jsonl")]
    assert len(paths) == 2
    lines = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    for text in ("From one", "From two"):
        assert text in json.dumps(lines)
    # Both forks have the first reply, and each has one of the others.
    assert len({one["identity"] for one in lines if one["role"] == "assistant"}) == 3


async def test_a_conversation_that_was_deleted_elsewhere_is_an_error(
    tmp_path: Path, home: Path
) -> None:
    async with editing(options_for(tmp_path, ANSWER)) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "One")
        async with open_session() as other:
            await other.remove(session)
        with pytest.raises(Failure) as failure:
            await editor.say(session, "Two")
        assert failure.value.code == -32002
    assert [*home.glob("conversations/*/messages.jsonl")] == []


async def test_a_session_in_use_is_not_loaded_again(tmp_path: Path) -> None:
    async with editing(options_for(tmp_path, script_of("{ stall = true }"))) as editor:
        session = await editor.open(tmp_path)
        turn = editor.prompt(session, "Wait")
        with pytest.raises(Failure, match=r"a turn of the session .* is running"):
            await load(editor, session, tmp_path)
        editor.notify("session/cancel", sessionId=session)
        assert (await turn)["stopReason"] == "cancelled"
        await load(editor, session, tmp_path)
        assert editor.text("user_message_chunk") == "Wait"


async def test_a_new_session_without_messages_can_be_loaded_and_used(tmp_path: Path) -> None:
    async with editing(options_for(tmp_path, ANSWER)) as editor:
        session = await editor.open(tmp_path)
        await load(editor, session, tmp_path)
        assert await editor.say(session, "Hi") == "end_turn"


async def test_pictures_and_files_of_a_prompt_come_back(tmp_path: Path, home: Path) -> None:
    blocks: list[Mapping[str, Any]] = [
        {"type": "text", "text": "Look at "},
        {"type": "resource", "resource": {"uri": "file:///main.py", "text": "x = 1\n" * 500}},
        {"type": "text", "text": " and "},
        {"type": "resource_link", "uri": "file:///b.md", "name": "b.md"},
        {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PICTURE).decode()},
    ]
    options = options_for(tmp_path, ANSWER)
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        await editor.call("session/prompt", sessionId=session, prompt=blocks)
        title = editor.of("session_info_update")[-1]["title"]
        assert title == "Look at [main.py](file:///main.py) and [b.md](file:///b.md)"
    async with editing(options) as editor:
        await load(editor, session, tmp_path)
        shown = [update["content"] for update in editor.of("user_message_chunk")]
    document, picture, text = shown
    assert document["resource"] == {"uri": "file:///main.py", "text": "x = 1\n" * 500}
    assert text == {"type": "text", "text": title}
    assert base64.b64decode(picture["data"]) == PICTURE
    assert [one["role"] for one in stored(home)] == ["document", "user", "assistant"]
    assert "trusted" not in json.dumps(stored(home)[0])


async def test_other_files_of_a_prompt_are_attached(tmp_path: Path, home: Path) -> None:
    def encode(data: bytes) -> str:
        return base64.b64encode(data).decode()

    blocks: list[Mapping[str, Any]] = [
        {"type": "resource", "resource": {"uri": "file:///sky.png", "blob": encode(PICTURE)}},
        {"type": "resource", "resource": {"uri": "file:///a.csv", "blob": encode(b"a,b\n1,2\n")}},
    ]
    async with editing(options_for(tmp_path, ANSWER)) as editor:
        session = await editor.open(tmp_path)
        await editor.call("session/prompt", sessionId=session, prompt=blocks)
    (message, _) = stored(home)
    kinds = [(one["kind"], one.get("mimetype")) for one in message["contents"]]
    assert kinds[0] == ("image", "image/png")
    assert kinds[1][1] == "text/csv"


async def test_a_prompt_with_a_file_waits_for_the_turn(tmp_path: Path, home: Path) -> None:
    script = replies("{ text = 'First. ' }, { delay-seconds = 0.3 }", "{ text = 'Second.' }")
    blocks = [
        {"type": "resource", "resource": {"uri": "file:///a.py", "text": "x = 1"}},
        {"type": "text", "text": "Read it"},
    ]
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        first = editor.prompt(session, "One")
        await editor.wait_for("agent_message_chunk")
        second = editor.begin("session/prompt", sessionId=session, prompt=blocks)
        assert [(await turn)["stopReason"] for turn in (first, second)] == ["end_turn"] * 2
    roles = [one["role"] for one in stored(home)]
    assert roles == ["user", "assistant", "document", "user", "assistant"]


async def test_a_message_that_a_cancelled_turn_did_not_send_is_stored(
    tmp_path: Path, home: Path
) -> None:
    script = script_of("{ text = 'One ' }", "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        turns = [editor.prompt(session, "One")]
        await editor.wait_for("agent_message_chunk")
        turns.append(editor.prompt(session, "Two"))
        await editor.call("session/list")
        await editor.call("session/close", sessionId=session)
        assert [(await turn)["stopReason"] for turn in turns] == ["cancelled"] * 2
    assert said_by_user(home) == ["One", "Two"]
    # It begins the next turn, because no turn has sent it.
    assert "steered" not in stored(home)[-1]


async def test_a_content_that_is_lost_does_not_hide_the_rest(tmp_path: Path, home: Path) -> None:
    options = options_for(tmp_path, ANSWER)
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        for text in ("a" * 5000, "b" * 5000):
            await editor.say(session, text)
    lost = min(home.glob("content/*/data"), key=lambda path: path.read_bytes())
    assert lost.read_bytes().startswith(b"a")
    lost.unlink()
    async with editing(options) as editor:
        await load(editor, session, tmp_path)
        assert editor.text("user_message_chunk") == "b" * 5000
        assert editor.text() == "Yes.Yes."
