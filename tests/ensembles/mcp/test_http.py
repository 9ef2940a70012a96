"""M1, M3, M5 and M6 over HTTP: whatever a server sends, a call ends in time, and the next works."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from tests.ensembles.mcp.servers import PATIENT, opened, produce_ensemble
from tests.fakes.mcp_http import EVENTS, JSON, FakeMcp, encode
from tests.faults.heartbeat import steady
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.conversations.hosts import EnsembleConfiguration, EnsembleHost
from vibe_llms.ensembles.mcp import http
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.testing.listening import HttpAnswer

ECHO = '{"text": "hi"}'
#: No wait of these tests is longer, on a machine that does much else.
PATIENCE_SECONDS = 30
SHORT = {"open-seconds": 1.0, "list-seconds": 1.0, "call-seconds": 1.0}
#: What a session says before it is opened, and when it calls.
OPENING, LISTING, CALLING = "initialize", "tools/list", "tools/call"


@pytest.fixture
async def server() -> AsyncIterator[FakeMcp]:
    async with FakeMcp() as fake:
        yield fake


def row(server: FakeMcp, **keys: Any) -> dict[str, Any]:
    return {"url": f"{server.url}/mcp", **keys}


async def echo(ensemble: McpEnsemble) -> str:
    return (await ensemble.invoke("echo", ECHO)).text


def event(value: Any) -> bytes:
    return b"data: %b\n\n" % encode(value)[0]


def text_of(server: FakeMcp, message: Any, text: str) -> HttpAnswer:
    return server.reply(message, {"content": [{"type": "text", "text": text}]})


def misbehave(server: FakeMcp, behaviour: str, message: Any) -> HttpAnswer:
    """The answer to a call of a server that behaves in one of these ways."""
    whole = text_of(server, message, "hi")
    (data,) = whole.chunks
    notice = {"method": "notifications/message", "params": {"level": "info", "data": "so"}}
    match behaviour:
        case "hangs":
            return HttpAnswer(stall=-1)
        case "closes" | "resets":
            return HttpAnswer(drop="close" if behaviour == "closes" else "reset")
        case "answers-twice":
            return HttpAnswer(headers=EVENTS, chunks=[data, data])
        case "wrong-id":
            return text_of(server, {"id": 999_999}, "hi")
        case "wrong-json":
            return HttpAnswer(headers=EVENTS, chunks=[b'data: {"jsonrpc": \n\n'])
        case "invalid-utf-8":
            return HttpAnswer(headers=EVENTS, chunks=[data.replace(b"hi", b"\xff\xfe")])
        case "lone-surrogate":
            return HttpAnswer(headers=EVENTS, chunks=[data.replace(b"hi", b"hi\\ud800")])
        case "half-an-event":
            return HttpAnswer(headers=EVENTS, chunks=[data[:20]], stall=20)
        case "long-event":
            many = itertools.repeat(b"x" * 65536, 800)
            return HttpAnswer(
                headers=EVENTS, chunks=cast("Any", itertools.chain([b"data: "], many))
            )
        case "endless-event":
            return HttpAnswer(headers=EVENTS, chunks=cast("Any", itertools.repeat(b"x" * 65536)))
        case "long-body" | "endless-body":
            count = 800 if behaviour == "long-body" else 10_000_000
            return HttpAnswer(
                headers=JSON, chunks=cast("Any", itertools.repeat(b"x" * 65536, count))
            )
        case "notifications":
            block = event({"jsonrpc": "2.0", **notice}) * 100
            return HttpAnswer(headers=EVENTS, chunks=[*[block] * 10, data])
        case "html":
            page = b"<html><body>Please log in</body></html>"
            return HttpAnswer(headers={"content-type": "text/html"}, chunks=[page])
        case "accepted":
            return HttpAnswer(202)
        case "401" | "403" | "500" | "503":
            return HttpAnswer(
                int(behaviour), headers={"content-type": "text/html"}, chunks=[b"<p>no"]
            )
        case _:
            raise AssertionError(behaviour)


#: What it does, and words of the failure of the call; empty where the call succeeds.
BEHAVIOURS = {
    "hangs": "did not answer within 1 s",
    "closes": "calling echo: ",
    "resets": "calling echo: ",
    "answers-twice": "",
    # Over HTTP an answer belongs to the request whose response it is.
    "wrong-id": "",
    "wrong-json": "calling echo: ",
    "invalid-utf-8": "",
    "lone-surrogate": "calling echo: ",
    "half-an-event": "did not answer within 1 s",
    "long-event": "calling echo: ",
    "endless-event": "calling echo: ",
    "long-body": "more than 16,777,216 bytes",
    "endless-body": "more than 16,777,216 bytes",
    "notifications": "",
    "html": "Unexpected content type: text/html",
    "accepted": "202 Accepted",
    "401": "it requires signing in",
    "403": "HTTP 403",
    "500": "HTTP 500",
    "503": "HTTP 503",
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_a_bad_answer_costs_one_call_and_a_good_server_answers_all_the_while(
    server: FakeMcp, behaviour: str
) -> None:
    words = BEHAVIOURS[behaviour]
    bad = True

    def override(method: str, message: Any) -> HttpAnswer | None:
        return misbehave(server, behaviour, message) if bad and method == CALLING else None

    slow = ("long", "endless", "notifications")
    seconds = 10.0 if any(one in behaviour for one in slow) else 1.0
    async with (
        FakeMcp() as good_server,
        opened(**row(good_server)) as good,
        opened(**row(server, **{"call-seconds": seconds})) as ensemble,
    ):
        server.override = override
        calling = asyncio.create_task(echo(ensemble))
        answers = 0
        async with asyncio.timeout(PATIENCE_SECONDS), steady():
            while not calling.done():
                assert await echo(good) == "hi"
                answers += 1
                await asyncio.sleep(0.01)
        assert answers
        if words:
            with pytest.raises(EnsembleFailed, match=words):
                await calling
        else:
            assert (await calling) in ("hi", "\ufffd\ufffd")
        bad = False
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await echo(ensemble) == "hi"


@pytest.mark.parametrize("phase", [OPENING, LISTING])
@pytest.mark.parametrize(
    "behaviour", ["hangs", "closes", "wrong-json", "html", "500", "endless-body", "endless-event"]
)
async def test_a_server_that_is_bad_from_the_beginning_is_not_opened(
    server: FakeMcp, phase: str, behaviour: str
) -> None:
    server.override = lambda method, message: (
        misbehave(server, behaviour, message) if method == phase else None
    )
    long = {"open-seconds": 10, "list-seconds": 10} if behaviour.startswith("endless") else SHORT
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(EnsembleFailed, match=r"^fake: (opening|listing): "):
            async with opened(**row(server, **long)):
                pass


async def test_a_server_that_has_lost_the_session_is_greeted_anew_once(server: FakeMcp) -> None:
    async with opened(**row(server)) as ensemble:
        server.sessions.clear()
        assert await echo(ensemble) == "hi"
        assert server.called == ["hi"]
        # One that loses every session is not asked for ever.
        server.override = lambda method, _: (
            HttpAnswer(404, headers={"content-type": "text/plain"}) if method == CALLING else None
        )
        with pytest.raises(EnsembleFailed, match="calling echo: Session terminated"):
            await echo(ensemble)


def fault(status: int, code: int, message: str) -> HttpAnswer:
    body = {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": None}
    return HttpAnswer(status, headers=dict(JSON), chunks=encode(body))


#: How servers say that they do not know a session. Reports: modelcontextprotocol/python-sdk#3556,
#: punkpeye/mcp-remote#106, diegosouzapw/OmniRoute#5957; the refusals with status 400 are those of
#: programs made from the examples of the TypeScript SDK.
LOST = {
    "python": (404, -32600, "Session not found"),
    "typescript": (404, -32001, "Session not found"),
    "example": (400, -32000, "Bad Request: No valid session ID provided"),
    "restarted": (400, -32000, "Bad Request: Server not initialized"),
    "omniroute": (404, -32000, "Not Found: Unknown Mcp-Session-Id header"),
    "other": (404, 0, ""),
}


@pytest.mark.parametrize("kind", LOST)
async def test_a_session_that_a_server_has_forgotten_is_begun_anew_whatever_it_says(
    server: FakeMcp, kind: str
) -> None:
    async with opened(**row(server)) as ensemble:
        forgotten = {*server.sessions}
        server.refuse = lambda session: fault(*LOST[kind]) if session in forgotten else None
        calls = [ensemble.invoke("echo", f'{{"text": "{n}"}}') for n in range(3)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [one.text for one in await asyncio.gather(*calls)] == ["0", "1", "2"]
        assert sorted(server.called) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, -32601, "Method not found"),
        (400, -32602, "Invalid params: the session notes are too long"),
        (500, -32603, "Session not found"),
        (400, -32000, "tool booking: your session with Dr. X was not found"),
        (400, -32602, "Session not found"),
    ],
)
async def test_a_call_that_may_have_run_is_not_sent_again(
    server: FakeMcp, status: int, code: int, message: str
) -> None:
    calls = 0

    def refuse(method: str, _: Any) -> HttpAnswer | None:
        nonlocal calls
        calls += method == CALLING
        return fault(status, code, message) if method == CALLING else None

    async with opened(**row(server)) as ensemble:
        server.override = refuse
        with pytest.raises(EnsembleFailed, match=message):
            await echo(ensemble)
    assert calls == 1


def test_a_refusal_that_is_nested_too_deeply_is_not_understood() -> None:
    body = b'{"error": {"data": %s}}' % (b"[" * 100_000 + b"]" * 100_000)
    assert http._has_lost_session(404, body)
    assert not http._has_lost_session(400, body)


def parts_of(server: FakeMcp, message: Any) -> list[bytes]:
    """An answer in several events: a notification, progress, the result."""
    (data,) = text_of(server, message, "hi").chunks
    notice = {"level": "info", "data": "so"}
    reported = {"jsonrpc": "2.0", "method": "notifications/message", "params": notice}
    return [b": hello\n\n", event(reported), b"event: message\n" + data]


async def cut(server: FakeMcp, ensemble: McpEnsemble, place: int, end: Any) -> str:
    """One call whose answer is cut after so many bytes; what comes of it."""
    server.override = lambda method, message: (
        HttpAnswer(headers=dict(EVENTS), chunks=parts_of(server, message), cut=place, end=end)
        if method == CALLING
        else None
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await echo(ensemble)
    except EnsembleFailed as error:
        return str(error)


async def check_cuts(server: FakeMcp, count: int) -> None:
    """M5: a cut answer is a failed call, a whole one is the answer, and the next call works."""
    message = {"jsonrpc": "2.0", "id": 12, "method": CALLING}
    parts = parts_of(server, message)
    whole = b"".join(parts)
    boundaries = list(itertools.accumulate(map(len, parts)))
    chance = random.Random(5)
    places = [0, *boundaries, *(chance.randrange(len(whole)) for _ in range(count))]
    async with opened(**row(server)) as ensemble:
        for place in places:
            for end in ("close", "reset", "clean"):
                outcome = await cut(server, ensemble, place, end)
                assert outcome == "hi" or outcome.startswith("fake: "), outcome
                if place < len(whole) - 4 and end == "close":
                    assert outcome.startswith("fake: "), (place, outcome)
                server.override = lambda *_: None
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await echo(ensemble) == "hi"


@pytest.mark.storm
async def test_an_answer_may_be_cut_anywhere(
    server: FakeMcp, rounds: Callable[[int, int], int]
) -> None:
    await check_cuts(server, rounds(8, 200))


async def test_a_cut_that_is_waited_out_would_be_seen(
    server: FakeMcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp.client.streamable_http import StreamableHTTPTransport

    async def forget(*_: Any, **__: Any) -> None:
        """Leave a request alone that is not answered any more."""

    monkeypatch.setattr(StreamableHTTPTransport, "_resolve_abandoned_request", forget)
    monkeypatch.setattr("tests.ensembles.mcp.test_http.PATIENCE_SECONDS", 1)
    with pytest.raises(TimeoutError):
        await check_cuts(server, 0)


async def test_a_body_without_a_bound_would_be_seen(
    server: FakeMcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_bound", lambda stream, *_: stream)
    server.events = False
    async with opened(**row(server)) as ensemble:
        server.override = lambda method, message: (
            text_of(server, message, "x" * 17_000_000) if method == CALLING else None
        )
        assert len(await echo(ensemble)) == 17_000_000


@pytest.mark.parametrize("events", [True, False])
async def test_a_long_answer_is_dropped_without_being_held(server: FakeMcp, events: bool) -> None:
    behaviour = "long-event" if events else "long-body"
    async with opened(**row(server)) as ensemble:
        server.override = lambda method, message: (
            misbehave(server, behaviour, message) if method == CALLING else None
        )
        tracemalloc.start()
        try:
            with pytest.raises(EnsembleFailed):
                await echo(ensemble)
            assert tracemalloc.get_traced_memory()[1] < 100_000_000
        finally:
            tracemalloc.stop()


async def check_cancelling(server: FakeMcp, count: int) -> None:
    """M6: each cancelled call is reported to the server once, and others go on."""
    async with opened(**row(server)) as ensemble:
        waiting = True
        server.override = lambda method, message: (
            HttpAnswer(stall=-1)
            if waiting and method == CALLING and message["params"]["arguments"]["text"] == "hi"
            else None
        )
        before = len(server.requests)
        calls = [asyncio.create_task(echo(ensemble)) for _ in range(count)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(server.requests) < before + count:
                await asyncio.sleep(0.01)
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert (await ensemble.invoke("echo", '{"text": "still"}')).text == "still"
            while len(server.cancelled) < count:
                await asyncio.sleep(0.01)
        assert len(set(server.cancelled)) == len(server.cancelled) == count
        waiting = False
        assert await echo(ensemble) == "hi"


@pytest.mark.storm
async def test_a_cancelled_call_is_reported_once(
    server: FakeMcp, rounds: Callable[[int, int], int]
) -> None:
    await check_cancelling(server, rounds(10, 50))


async def test_a_call_that_times_out_is_reported_once_and_a_late_answer_is_ignored(
    server: FakeMcp,
) -> None:
    async with opened(**row(server, **{"call-seconds": 0.3})) as ensemble:
        server.override = lambda method, message: (
            HttpAnswer(headers=EVENTS, chunks=text_of(server, message, "late").chunks, delay=0.8)
            if method == CALLING and message["params"]["arguments"]["text"] == "slow"
            else None
        )
        with pytest.raises(EnsembleFailed, match=r"did not answer within 0\.3 s"):
            await ensemble.invoke("echo", '{"text": "slow"}')
        await asyncio.sleep(0.8)
        assert await echo(ensemble) == "hi"
        assert len(server.cancelled) == 1


async def test_a_schema_that_leads_elsewhere_is_not_followed(server: FakeMcp) -> None:
    async with FakeMcp() as canary:
        away = {"$ref": f"{canary.url}/schema.json"}
        tool = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": away}}}
        result = {"content": [], "structuredContent": {"text": "hi"}}

        def override(method: str, message: Any) -> HttpAnswer | None:
            if method == LISTING:
                return server.reply(
                    message, {"tools": [{**tool, "outputSchema": {"type": "object", **away}}]}
                )
            return server.reply(message, result) if method == CALLING else None

        server.override = override
        async with opened(**row(server)) as ensemble:
            with pytest.raises(EnsembleFailed, match="Invalid schema for tool echo"):
                await echo(ensemble)
            assert ensemble.invokers[0].arguments_schema["properties"]["text"] == away
        assert canary.connections == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"n": 1}, ""),
        ({"n": "one"}, "its answer is not valid: Invalid structured content"),
        (None, "its answer is not valid"),
    ],
)
async def test_structured_content_is_checked_against_its_schema(
    server: FakeMcp, content: Any, words: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "echo", "inputSchema": {"type": "object"}, "outputSchema": schema}
    given = {} if content is None else {"structuredContent": content}

    def override(method: str, message: Any) -> HttpAnswer | None:
        if method == LISTING:
            return server.reply(message, {"tools": [tool]})
        return server.reply(message, {"content": [], **given}) if method == CALLING else None

    server.override = override
    async with opened(**row(server)) as ensemble:
        if words:
            with pytest.raises(EnsembleFailed, match=words):
                await echo(ensemble)
        else:
            assert await echo(ensemble) == '{"n":1}'


async def test_a_server_that_fails_again_and_again_is_left_alone(
    server: FakeMcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vibe_llms.ensembles.mcp import ensemble as ensembles

    monkeypatch.setattr(ensembles, "_RESTART_SECONDS", 0.01)
    async with opened(**row(server)) as ensemble:
        server.override = lambda method, _: HttpAnswer(drop="close") if method == CALLING else None
        for _ in range(4):
            with pytest.raises(EnsembleFailed, match="calling echo: "):
                await echo(ensemble)
        greeted = len(server.sessions)
        assert greeted == 4
        with pytest.raises(EnsembleFailed, match="it was restarted 3 times and answered"):
            await echo(ensemble)
        assert len(server.sessions) == greeted
        server.override = lambda *_: None
        await ensemble.open()
        assert await echo(ensemble) == "hi"


async def test_eight_servers_open_in_the_time_of_the_slowest() -> None:
    """Each answers its greeting when all have been greeted: one by one, none would open."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        servers = [FakeMcp() for _ in range(8)]
        for one in servers:
            await one.__aenter__()
        try:

            def hold(method: str, message: Any) -> HttpAnswer | None:
                if method == OPENING:
                    greeted.append(message)
                    while len(greeted) < 8:
                        time.sleep(0.005)
                return None

            greeted: list[Any] = []
            for one in servers:
                one.override = hold
            ensembles = [produce_ensemble(**row(one)) for one in servers]
            await asyncio.gather(*(one.open() for one in ensembles))
            assert len(greeted) == 8
            assert all(one.invokers for one in ensembles)
            await asyncio.gather(*(one.close() for one in ensembles))
        finally:
            for one in servers:
                await one.__aexit__(None, None, None)


async def test_offline_the_name_of_this_machine_must_lead_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("10.0.0.1", 1))]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    row = {**PATIENT, "url": "http://localhost:1/mcp"}
    configuration = load_configuration(overrides={"offline": True})
    ensemble = McpEnsemble("fake", EnsembleConfiguration(configuration, row, EnsembleHost()))
    with pytest.raises(EnsembleFailed, match="it is a private address"):
        await ensemble.open()
    await ensemble.close()


async def test_why_no_connection_can_be_made_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("no key ring")

    ensemble = produce_ensemble(url="http://127.0.0.1:1/mcp")
    monkeypatch.setattr(ensemble, "_produce_sign_in", fail)
    with pytest.raises(EnsembleFailed, match="no key ring"):
        await ensemble.open()
    await ensemble.close()
