"""The endpoint `/mcp`: its headers, its sessions, and its refusals."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.mcp_server import clients
from tests.mcp_server.clients import attach, call, furnish
from tests.server.conftest import Served, serving
from vibe_llms.mcp_server.eras import CAPABILITIES_KEY, VERSION_KEY
from vibe_llms.server import mcp, mcp_calls

VERSION = "2026-07-28"
META = {VERSION_KEY: VERSION, CAPABILITIES_KEY: {}}
ASKS = {VERSION_KEY: VERSION, CAPABILITIES_KEY: {"elicitation": {}}}
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with scripted models and agents."""
    furnish(home)
    async with serving(home, server={"user-streams": 2}) as server:
        yield server


async def post(
    http: httpx2.AsyncClient,
    method: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> httpx2.Response:
    """Send a request."""
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return await http.post("/mcp", json=body, headers=headers)


def tool(name: str, meta: Mapping[str, Any] = META, **arguments: Any) -> dict[str, Any]:
    """The parameters of a call."""
    return {"name": name, "arguments": arguments, "_meta": meta}


def agree(method: str, name: str = "") -> dict[str, str]:
    """The headers of a request without a handshake."""
    headers = {"mcp-protocol-version": VERSION, "mcp-method": method}
    return {**headers, "mcp-name": name} if name else headers


def error_of(response: httpx2.Response) -> tuple[int, Any, int, str]:
    """The status, and the id, the code and the words of an error."""
    body = response.json()
    assert body["jsonrpc"] == "2.0"
    return response.status_code, body["id"], body["error"]["code"], body["error"]["message"]


def encode(text: str) -> str:
    """A header with a text that is not plain."""
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    ("name", "headers", "words"),
    [
        ("wait", {}, "the header mcp-protocol-version is missing"),
        ("wait", agree("tools/call"), "the header mcp-name is missing"),
        ("wait", agree("tools/list", "wait"), "mcp-method is 'tools/list'"),
        ("wait", agree("Tools/Call", "wait"), "mcp-method is 'Tools/Call'"),
        ("wait", agree("tools/call", "chat"), "mcp-name is 'chat'"),
        ("wait", agree("tools/call", encode("chat")), "mcp-name is 'chat'"),
        ("wait", agree("tools/call", "=?base64?!?="), "mcp-name is '=?base64?!?='"),
        ("wait", agree("tools/call", "=?base64?/w==?="), "mcp-name is None"),
        ("wait", {**agree("tools/call", "wait"), "mcp-protocol-version": "1"}, "version is '1'"),
    ],
)
async def test_headers_agree_with_the_body(
    served: Served, name: str, headers: dict[str, str], words: str
) -> None:
    async with served.http() as http:
        status, identity, code, said = error_of(await post(http, "tools/call", tool(name), headers))
    assert (status, identity, code) == (400, 7, -32020)
    assert words in said


@pytest.mark.parametrize("name", ["wait", encode("wait")])
async def test_a_header_may_be_encoded(served: Served, name: str) -> None:
    async with served.http() as http:
        response = await post(http, "tools/call", tool("wait"), agree("tools/call", name))
    assert response.json()["result"]["isError"] is True


async def test_errors_of_the_new_era_have_a_status_and_those_of_the_old_have_none(
    served: Served,
) -> None:
    async with served.http() as http:
        for method, code, status in (("nothing", -32601, 404), ("tools/call", -32602, 400)):
            answer = await post(http, method, {"_meta": META}, agree(method))
            assert error_of(answer)[::2] == (status, code)
            answer = await post(http, method, {})
            assert error_of(answer)[::2] == (200, code)
        unknown = {"_meta": {**META, VERSION_KEY: "2031-01-01"}}
        headers = {**agree("tools/list"), "mcp-protocol-version": "2031-01-01"}
        answer = await post(http, "tools/list", unknown, headers)
        assert error_of(answer)[::2] == (400, -32022)
        answer = await post(http, "tools/list", {}, {"mcp-protocol-version": "2031-01-01"})
        assert error_of(answer)[::2] == (400, -32022)
        for body in (b"{", b"[]", b"3"):
            answer = await http.post("/mcp", content=body)
            assert error_of(answer)[:2] == (400, None)


async def test_what_is_refused_before_the_message_is_read_is_json_rpc_too(served: Served) -> None:
    body = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    async with httpx2.AsyncClient(base_url=served.url) as nobody, served.http() as http:
        refusals = {
            401: await nobody.post("/mcp", json=body),
            403: await http.post("/mcp", json=body, headers={"origin": "http://evil.test"}),
            404: await http.post("/mcp", json=body, headers={"mcp-session-id": "x"}),
            405: await http.get("/mcp"),
            406: await http.post("/mcp", json=body, headers={"accept": "text/html"}),
            415: await http.post("/mcp", data={"a": "b"}),
        }
        named = await http.post("/mcp", json=body, headers={"host": "evil.test"})
    for status, response in {**refusals, 403: named}.items():
        assert error_of(response)[:3] == (status, None, -32000)
    assert refusals[405].headers["allow"] == "POST"


async def test_a_session_belongs_to_its_user_and_to_no_server(served: Served, home: Path) -> None:
    async with served.http("ada") as http, served.http("eve") as eve:
        begun = await post(http, "initialize", INITIALIZE)
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        assert begun.json()["result"]["protocolVersion"] == "2025-11-25"
        assert (await post(http, "ping", {}, session)).json()["result"] == {}
        assert error_of(await post(eve, "ping", {}, session))[0] == 404
        changed = {"mcp-session-id": session["mcp-session-id"][:-4] + "AAAA"}
        assert error_of(await post(http, "ping", {}, changed))[0] == 404
    # A server that is started later knows what the client can do.
    key = served.key("ada")
    async with serving(home) as other, httpx2.AsyncClient(base_url=other.url, timeout=30) as http:
        http.headers["authorization"] = f"Bearer {key}"
        response = await post(
            http,
            "tools/call",
            tool("chat", {}, message="x", agent="keeper", wait_seconds=2),
            session,
        )
    assert '"method":"elicitation/create"' in response.text


async def test_messages_without_a_response_are_accepted(served: Served) -> None:
    async with served.http() as http:
        accepted: list[Any] = [
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}},
            {"jsonrpc": "2.0", "id": "nothing", "result": {}},
        ]
        for body in accepted:
            response = await http.post("/mcp", json=body)
            assert (response.status_code, response.content) == (202, b"")
        refused: list[tuple[Any, dict[str, str]]] = [
            ({"jsonrpc": "2.0", "method": "x"}, {"mcp-protocol-version": "1"}),
            ({"jsonrpc": "2.0", "id": 1, "result": 1}, {}),
        ]
        for body, headers in refused:
            assert (await http.post("/mcp", json=body, headers=headers)).status_code == 400


async def test_a_cancelled_call_ends_without_a_response(served: Served) -> None:
    async with served.http() as http:
        begun = await post(http, "initialize", INITIALIZE)
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        arguments = tool("chat", {}, message="x", model="scripted/slow", wait_seconds=30)
        task = asyncio.create_task(post(http, "tools/call", arguments, session))
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        async with asyncio.timeout(20):
            while not (runs := (await http.get("/api/runs?status=running")).json()["runs"]):
                await asyncio.sleep(0.05)
            # Another session does not end it.
            await http.post("/mcp", json=note)
            await asyncio.sleep(0.2)
            assert not task.done()
            await http.post("/mcp", json=note, headers=session)
            response = await task
        assert (response.status_code, response.content) == (202, b"")
        # The run goes on.
        run = runs[0]["id"]
        assert (await http.get(f"/api/runs/{run}")).json()["status"] == "running"
        await http.post(f"/api/runs/{run}/cancel")


async def begin_question(http: httpx2.AsyncClient) -> dict[str, Any]:
    """The result that asks for an approval."""
    arguments = tool("chat", ASKS, message="x", agent="keeper")
    response = await post(http, "tools/call", arguments, agree("tools/call", "chat"))
    result: dict[str, Any] = response.json()["result"]
    assert result["resultType"] == "input_required"
    return result


async def test_the_state_of_a_question_is_for_its_call_and_its_user(served: Served) -> None:
    async with served.http("ada") as http, served.http("eve") as eve:
        asked = await begin_question(http)
        ((key, question),) = asked["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"allow": True}}
        retry = {
            **tool("chat", ASKS, message="x", agent="keeper"),
            "inputResponses": {key: answer, "other": 1},
            "requestState": asked["requestState"],
        }
        headers = agree("tools/call", "chat")
        other = {**retry, "arguments": {"message": "y", "agent": "keeper"}}
        changed = {**retry, "requestState": f"{asked['requestState']}x"}
        for user, params in ((eve, retry), (http, other), (http, changed)):
            refusal = error_of(await post(user, "tools/call", params, headers))
            assert refusal[::2] == (400, -32602)
            assert "requestState is not valid" in refusal[3]
        assert (await eve.get("/api/runs")).json()["runs"] == []
        (run,) = (await http.get("/api/runs")).json()["runs"]
        assert run["status"] == "waiting"
        result = (await post(http, "tools/call", retry, headers)).json()["result"]
        assert result["structuredContent"]["status"] == "completed"
        # The answer was given once; the same request again is the same run.
        result = (await post(http, "tools/call", retry, headers)).json()["result"]
        assert result["structuredContent"]["run"] == run["id"]
        assert len((await http.get("/api/runs")).json()["runs"]) == 1


@pytest.mark.parametrize("answer", [{}, {"action": "accept"}, {"action": "accept", "content": []}])
async def test_an_answer_that_decides_nothing_leaves_the_run_waiting(
    served: Served, answer: Any
) -> None:
    async with served.http() as http:
        asked = await begin_question(http)
        (key,) = asked["inputRequests"]
        retry = {
            **tool("chat", ASKS, message="x", agent="keeper"),
            "inputResponses": {key: answer},
            "requestState": asked["requestState"],
        }
        response = await post(http, "tools/call", retry, agree("tools/call", "chat"))
        assert response.json()["result"]["structuredContent"]["status"] == "waiting"


async def test_an_answer_that_is_missing_is_asked_for_again(served: Served) -> None:
    async with served.http() as http:
        asked = await begin_question(http)
        answers: list[Any] = [{}, {"other": {"action": "accept"}}, [], {"x": 1}]
        for given in answers:
            retry = {
                **tool("chat", ASKS, message="x", agent="keeper"),
                "inputResponses": given,
                "requestState": asked["requestState"],
            }
            response = await post(http, "tools/call", retry, agree("tools/call", "chat"))
            assert response.json()["result"]["inputRequests"] == asked["inputRequests"]
        assert len((await http.get("/api/runs")).json()["runs"]) == 1


async def test_a_decision_made_elsewhere_counts(served: Served) -> None:
    async with served.http() as http:
        asked = await begin_question(http)
        (key,) = asked["inputRequests"]
        (run,) = (await http.get("/api/runs")).json()["runs"]
        denial = {"invocation": key, "allowed": False}
        await http.post(f"/api/runs/{run['id']}/decide", json=denial)
        retry = {
            **tool("chat", ASKS, message="x", agent="keeper"),
            "inputResponses": {key: {"action": "accept", "content": {"allow": True}}},
            "requestState": asked["requestState"],
        }
        response = await post(http, "tools/call", retry, agree("tools/call", "chat"))
        assert response.json()["result"]["structuredContent"]["status"] == "completed"
        (made,) = (await http.get(f"/api/runs/{run['id']}")).json()["approvals"]
        assert made["allowed"] is False


async def test_a_client_without_event_streams_gets_json(served: Served) -> None:
    async with served.http() as http:
        begun = await post(http, "initialize", INITIALIZE)
        headers = {"mcp-session-id": begun.headers["mcp-session-id"], "accept": "application/json"}
        arguments = tool("chat", {}, message="x", agent="keeper")
        response = await post(http, "tools/call", arguments, headers)
    assert response.headers["content-type"] == "application/json"
    assert "needs an event stream" in response.text


async def test_a_client_that_accepts_only_streams_gets_one(served: Served) -> None:
    async with served.http() as http:
        response = await post(http, "tools/list", {}, {"accept": "text/event-stream"})
    assert response.headers["content-type"].startswith("text/event-stream")
    (data,) = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert json.loads(data.removeprefix("data: "))["result"]["tools"]


async def test_a_silent_call_becomes_a_stream(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "_SILENT_SECONDS", 0.1)
    async with served.http() as http:
        arguments = tool("chat", {}, message="x", model="scripted/slow", wait_seconds=0.5)
        response = await post(http, "tools/call", arguments)
        assert response.headers["content-type"].startswith("text/event-stream")
        (data,) = [line for line in response.text.splitlines() if line.startswith("data: ")]
        report = json.loads(data.removeprefix("data: "))["result"]["structuredContent"]
        assert report["status"] == "running"
        await http.post(f"/api/runs/{report['run']}/cancel")


async def test_calls_that_wait_count_as_streams_of_the_user(served: Served) -> None:
    async with attach(served) as client:
        arguments = {"message": "x", "model": "scripted/slow", "wait_seconds": 30}
        tasks = [asyncio.create_task(client.call_tool("chat", arguments)) for _ in "12"]
        async with served.http() as http, asyncio.timeout(20):
            while len((await http.get("/api/runs?status=running")).json()["runs"]) < 2:
                await asyncio.sleep(0.05)
            said = await clients.refused(client, "wait", run="x")
            runs = (await http.get("/api/runs?status=running")).json()["runs"]
            for run in runs:
                await http.post(f"/api/runs/{run['id']}/cancel")
        await asyncio.gather(*tasks)
    assert said == "too many event streams at once (2); wait until one ends"


async def test_the_address_chooses_the_tools(served: Served) -> None:
    async def survey(query: str) -> list[str]:
        async with attach(served, query=query) as client:
            return [one.name for one in (await client.list_tools()).tools]

    assert await survey("?tools=wait,chat") == ["chat", "wait"]
    assert "chat" not in await survey("?read_only=true")
    async with served.http() as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for query in ("tools=nothing", "tools=chat&read_only=true", "read_only=perhaps"):
            assert error_of(await http.post(f"/mcp?{query}", json=body))[0] == 400


async def test_a_level_is_kept_for_a_session(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_calls, "_MOST_LEVELS", 1)
    core = served.running._core
    async with served.http() as http:
        for level in ("error", "debug"):
            begun = await post(http, "initialize", {**INITIALIZE, "protocolVersion": "2025-06-18"})
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            assert (
                await post(http, "logging/setLevel", {"level": level}, session)
            ).status_code == 200
            assert core.mcp.find_level(session["mcp-session-id"]) == level


async def test_a_failed_run_says_why_in_words_for_clients(served: Served, home: Path) -> None:
    (home / "long.toml").write_text(
        '[[replies]]\nwhen = ".*"\nparts = [{ error = "unreachable" }]\n'
    )
    async with attach(served) as client:
        result = await client.call_tool("chat", {"message": "x", "model": "scripted/long"})
    assert result.is_error
    report: Any = result.structured_content
    assert report["status"] == "failed"
    assert report["error"] == "the provider of the model cannot be reached now; try again later"


async def test_a_message_that_is_too_long_is_refused(home: Path) -> None:
    furnish(home)
    async with serving(home, server={"request-characters": 10}) as served, attach(served) as client:
        said = await clients.refused(client, "chat", message="x" * 11)
        assert "characters of text" in said
        assert (await call(client, "list_conversations"))["conversations"] == []
