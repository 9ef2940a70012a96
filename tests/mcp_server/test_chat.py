"""Turns of an MCP client: they are runs, over both transports and in both eras."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types
import pytest

from tests.mcp_server.clients import ERAS, WAYS, call, connect, refused
from vibe_llms.mcp_server import run_reports
from vibe_llms.mcp_server.bounds import MOST_BYTES

pytestmark = pytest.mark.usefixtures("warm_process")

each_way = pytest.mark.parametrize(("way", "mode"), WAYS)


def answering(*answers: dict[str, Any] | str) -> tuple[list[Any], Any]:
    """The questions that a client got, and what answers them in order; a text is an action."""
    asked: list[Any] = []
    left = [*answers]

    async def elicit(_: Any, params: Any) -> mcp_types.ElicitResult:
        asked.append(params)
        answer = left.pop(0)
        if isinstance(answer, str):
            action: Any = answer
            return mcp_types.ElicitResult(action=action)
        return mcp_types.ElicitResult(action="accept", content=answer)

    return asked, elicit


@each_way
async def test_a_call_returns_in_time_and_its_run_goes_on(home: Path, way: str, mode: str) -> None:
    async with connect(way, mode, home) as client:
        begun = await call(client, "chat", message="Go", model="scripted/slow", wait_seconds=0.5)
        assert (begun["status"], begun["text"]) == ("running", "It begins.")
        assert "call wait" in begun["note"]
        waited = await call(client, "wait", run=begun["run"], seconds=0.2)
        assert (waited["status"], waited["text"]) == ("running", "It begins.")
        again = await refused(client, "chat", message="Again", conversation=begun["conversation"])
        assert f"the run {begun['run']} of this conversation is running" in again
        cancelled = await call(client, "cancel", run=begun["run"])
        assert (cancelled["status"], cancelled["note"]) == ("cancelled", "")


@each_way
async def test_a_person_allows_a_call_through_the_client(home: Path, way: str, mode: str) -> None:
    asked, elicit = answering({"allow": True})
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="Forget tea", agent="keeper")
        (question,) = asked
        assert (report["status"], report["text"]) == ("completed", "That is settled.")
        assert "memory/delete_memories of memory" in question.message
        assert '"query": "tea"' in question.message
        page = await call(client, "read_conversation", conversation=report["conversation"])
    roles = [one["role"] for one in page["messages"]]
    assert roles == ["user", "invocation", "result", "assistant"]
    assert "not allowed" not in page["messages"][2]["text"]


@each_way
@pytest.mark.parametrize("answer", ["decline", {"allow": False, "reason": "Tea is needed."}])
async def test_a_person_denies_a_call(home: Path, way: str, mode: str, answer: Any) -> None:
    _, elicit = answering(answer)
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="Forget tea", agent="keeper")
        page = await call(client, "read_conversation", conversation=report["conversation"])
    assert report["status"] == "completed"
    said = page["messages"][2]["text"]
    assert said.startswith("The call was not allowed")
    assert isinstance(answer, str) or answer["reason"] in said


@each_way
async def test_a_closed_dialog_decides_nothing(home: Path, way: str, mode: str) -> None:
    asked, elicit = answering("cancel", {"allow": True})
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="Forget tea", agent="keeper")
        assert (report["status"], len(asked)) == ("waiting", 1)
        (waits,) = report["waits_for"]
        assert (waits["kind"], waits["tool"]) == ("approval", "memory/delete_memories")
        # The next call asks again.
        waited = await call(client, "wait", run=report["run"])
    assert (waited["status"], len(asked)) == ("completed", 2)


@each_way
async def test_a_client_that_cannot_ask_gets_no_way_to_decide(
    home: Path, way: str, mode: str
) -> None:
    async with connect(way, mode, home) as client:
        report = await call(client, "chat", message="Forget tea", agent="keeper")
        assert report["status"] == "waiting"
        assert '"query"' in report["waits_for"][0]["text"]
        assert "tell them to decide" in report["note"]
        assert "runs approve" not in str(report)
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert names.isdisjoint({"decide", "approve", "answer"})


@each_way
async def test_a_question_of_the_model_is_answered_by_the_person(
    home: Path, way: str, mode: str
) -> None:
    asked, elicit = answering({"answer": "Green"})
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="Tea?", agent="asker")
        page = await call(client, "read_conversation", conversation=report["conversation"])
    assert (report["status"], report["text"]) == ("completed", "Then this one.")
    assert "Which tea?" in asked[0].message
    assert page["messages"][2]["text"] == "Green"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_long_run_reports_progress(
    home: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reports, "PROGRESS_SECONDS", 0.2)
    told: list[tuple[float, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with connect("http", mode, home) as client:
        arguments = {"message": "Go", "model": "scripted/slow", "wait_seconds": 1.1}
        result = await client.call_tool("chat", arguments, progress_callback=progress)
        report: Any = result.structured_content
        await call(client, "cancel", run=report["run"])
    assert len(told) >= 3
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    # The client learns the run even if it ends the call.
    assert {text for _, text in told} == {f"run {report['run']}: 10 characters so far"}


@each_way
async def test_a_client_that_ends_its_call_leaves_a_run(home: Path, way: str, mode: str) -> None:
    async with connect(way, mode, home) as client:
        arguments = {"message": "Go", "model": "scripted/slow", "wait_seconds": 30}
        task = asyncio.create_task(client.call_tool("chat", arguments))
        async with asyncio.timeout(30):
            while not (await call(client, "list_conversations"))["conversations"]:
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (listed,) = (await call(client, "list_conversations"))["conversations"]
        busy = await refused(client, "chat", message="Again", conversation=listed["id"])
        run = busy.split("the run ")[1].split()[0]
        assert (await call(client, "wait", run=run, seconds=0))["status"] == "running"
        assert (await call(client, "cancel", run=run))["status"] == "cancelled"


@each_way
async def test_of_two_clients_on_one_conversation_one_is_told_of_the_others_run(
    home: Path, way: str, mode: str
) -> None:
    async with connect(way, mode, home) as client:
        first = await call(client, "chat", message="Hello", model="scripted/demo")
        conversation = first["conversation"]
        arguments = {"conversation": conversation, "model": "scripted/slow", "wait_seconds": 0.3}
        results = await asyncio.gather(
            *(client.call_tool("chat", {"message": one, **arguments}) for one in "ab")
        )
        won = [one for one in results if not one.is_error]
        lost = [one for one in results if one.is_error]
        assert (len(won), len(lost)) == (1, 1)
        run = (won[0].structured_content or {})["run"]
        assert run in str(lost[0].content)
        await call(client, "cancel", run=run)
        page = await call(client, "read_conversation", conversation=conversation)
    # Nothing of the refused message is stored.
    said = [one["text"] for one in page["messages"] if one["role"] == "user"]
    assert len(said) == 2


@each_way
async def test_a_long_reply_is_cut_and_read_in_pages(home: Path, way: str, mode: str) -> None:
    async with connect(way, mode, home) as client:
        report = await call(client, "chat", message="Go", model="scripted/long")
        assert report["cut"] is True
        assert len(report["text"].encode()) <= MOST_BYTES
        text, cursor, pages = "", "", 0
        while pages == 0 or cursor:
            page = await call(
                client, "read_conversation", conversation=report["conversation"], after=cursor
            )
            assert len(str(page).encode()) < MOST_BYTES * 1.1
            text += "".join(one["text"] for one in page["messages"] if one["role"] == "assistant")
            cursor, pages = page["cursor"], pages + 1
    assert (text, pages) == ("ä" * 50_000, 4)


@each_way
async def test_a_question_of_a_running_tool_is_answered(home: Path, way: str, mode: str) -> None:
    asked, elicit = answering({"name": "Ada", "seats": 3, "meal": "fish"})
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="book", agent="booker")
        page = await call(client, "read_conversation", conversation=report["conversation"])
    assert (report["status"], report["text"]) == ("completed", "Booked.")
    assert asked[0].message == "asking asks: Book a table?"
    form = asked[0].requested_schema["properties"]
    assert (form["name"]["minLength"], form["seats"]["maximum"]) == (2, 9)
    assert page["messages"][2]["text"] == "Ada 3 False fish"


@each_way
async def test_a_page_is_opened_for_a_running_tool(home: Path, way: str, mode: str) -> None:
    asked, elicit = answering({})
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="pay", agent="booker")
        page = await call(client, "read_conversation", conversation=report["conversation"])
    assert (asked[0].mode, asked[0].url) == ("url", "https://a.test")
    assert page["messages"][2]["text"] == "accept"


@each_way
async def test_an_answer_that_does_not_fit_is_asked_for_once_a_call(
    home: Path, way: str, mode: str
) -> None:
    asked, elicit = answering({"name": "A"}, {"name": "Ada"})
    async with connect(way, mode, home, elicitation_callback=elicit) as client:
        report = await call(client, "chat", message="book", agent="booker")
        # The tool is still running, and asks.
        assert (report["status"], len(asked)) == ("running", 1)
        assert report["waits_for"][0]["text"] == "Book a table?"
        report = await call(client, "wait", run=report["run"])
    assert (report["status"], len(asked)) == ("completed", 2)


@each_way
async def test_a_held_question_that_nobody_can_be_asked_leaves_the_run_running(
    home: Path, way: str, mode: str
) -> None:
    async with connect(way, mode, home) as client:
        report = await call(client, "chat", message="book", agent="booker", wait_seconds=2)
        assert report["status"] == "running"
        assert [one["kind"] for one in report["waits_for"]] == ["question"]
        assert (await call(client, "cancel", run=report["run"]))["status"] == "cancelled"
