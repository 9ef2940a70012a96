"""Requests that no program should send, and clients that are slow, over plain sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.server.test_api_runs import read_events
from tests.server.test_bad_input import SPEECHES
from vibe_llms.server import api_runs, bodies, exchanges, running

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {
    "model": "scripted/demo",
    "messages": [{"role": "user", "content": "Hello"}],
}
DEEP = b"[" * 100_000


async def connect(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that reads little ahead."""
    host, _, port = served.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port), limit=64 * 1024)


async def say(served: Served, request: bytes) -> bytes:
    """The beginning of what the server answers to some bytes; empty if it hangs up."""
    reader, writer = await connect(served)
    try:
        async with asyncio.timeout(60):
            writer.write(request.replace(b"KEY", served.key().encode()))
            return await reader.read(1000)
    finally:
        writer.close()


def request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    """A request with the key of the user."""
    given = (b"host: localhost", b"authorization: Bearer KEY", *headers)
    return b"\r\n".join((line + b" HTTP/1.1", *given, b"", body))


MALFORMED = (
    (b"nonsense\r\n\r\n", 400),
    (request(b"GET /api/runs", b"host: localhost"), 400),
    (request(b"GET /api/runs", b"x-api-key: a", b"x-api-key: b"), 400),
    (request(b"GET /api/runs", b"no colon"), 400),
    (b"GET /health HTTP/1.1\r\nhost: [\r\n\r\n", 403),
    (b"GET /health HTTP/1.1\r\n\r\n", 403),
    (b"GET /health HTTP/1.1\r\nhost: localhost\r\norigin: http://[\r\n\r\n", 403),
    (b"HEAD /health HTTP/1.1\r\nhost: localhost\r\n\r\n", 200),
    (request(b"HEAD /api/runs"), 405),
    (request(b"OPTIONS /api/runs"), 405),
    (request(b"TRACE /api/runs"), 405),
    (request(b"PUT /api/runs"), 405),
    (request(b"BREW /api/runs"), 400),
    (request(b"GET /api/runs/..%2f..%2fetc"), 404),
    (request(b"GET /api/conversations/%ff%00"), 404),
    (request(b"GET /api/memory/..%00........"), 404),
    (request(b"GET /v1/models/../../etc/passwd"), 404),
    (request(b"GET /api/runs?limit=" + b"9" * 5000), 400),
    (request(b"GET /api/runs/x/events?after=99999999999999999999"), 404),
    (request(b"POST /api/runs", b"content-length: 1", b"content-length: 2"), 400),
    (request(b"POST /api/runs", b"content-length: -1"), 400),
    (request(b"POST /api/runs", b"transfer-encoding: chunked", body=b"zz\r\n"), 400),
)


async def test_a_malformed_request_gets_a_status(served: Served) -> None:
    for sent, status in MALFORMED:
        assert (await say(served, sent)).startswith(b"HTTP/1.1 %d " % status), sent
    async with served.http() as client:
        assert (await client.get("/health")).status_code == 200


BODIES = (
    (b'{"prompt": "\xff"}', 400),
    (b'{"prompt": ' + DEEP, 400),
    (b'{"prompt": "x", "files": ' + DEEP, 400),
    (b'{"prompt": ' + b"9" * 10_000 + b"}", 400),
    (b'{"prompt": "x", "prompt": 1}', 400),
    (b'{"prompt": "x", "model": "\\ud800"}', 400),
    (b'{"prompt": "x\\u0000", "model": "scripted/demo"}', 201),
    (b'{"prompt": "\\ud83d\\ude00", "model": "scripted/demo"}', 201),
    (b"\xef\xbb\xbf{}", 400),
    (b"NaN", 400),
    (b"", 400),
)


async def test_a_body_of_any_kind_gets_a_status(served: Served) -> None:
    async with served.http() as client:
        for body, status in BODIES:
            response = await client.post("/api/runs", content=body)
            assert response.status_code == status, (body, response.text)
            if status == 201:
                events = await read_events(served, response.json()["id"])
                assert events[-1][1]["status"] == "completed"


BEYOND_MEASURE = (
    b'{"model": "scripted/demo", "seed": 1e400, "temperature": -1e999}',
    b'{"model": "scripted/demo", "max_tokens": 99999999999999999999999999}',
    b'{"model": "scripted/demo", "messages": ' + DEEP,
    b'{"model": "scripted/demo", "input": ' + DEEP,
    b'{"model": "\xc3\x28"}',
)


async def test_numbers_and_depths_beyond_measure_are_refused(served: Served) -> None:
    async with served.http() as client:
        for path in (CHAT, "/v1/messages", "/v1/responses", "/v1/embeddings", "/api/memory"):
            for body in BEYOND_MEASURE:
                assert (await client.post(path, content=body)).status_code == 400, (path, body)


@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
)
async def test_a_body_that_is_not_json_is_refused(served: Served, kind: str) -> None:
    headers = {"content-type": kind}
    async with served.http() as client:
        for path in (CHAT, "/v1/messages", "/v1/responses", "/api/runs", "/api/memory"):
            response = await client.post(path, content=json.dumps(HELLO), headers=headers)
            assert response.status_code == 415, path
        headers["content-type"] = "application/json; charset=utf-8"
        response = await client.post(CHAT, content=json.dumps(HELLO), headers=headers)
        assert response.status_code == 200


async def test_another_method_is_named(served: Served) -> None:
    async with served.http() as client:
        refused = await client.delete("/api/memory")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")


async def test_a_body_that_does_not_arrive_is_given_up(home: Path) -> None:
    async with serving(home, server={"receive-seconds": 0.2}) as served:
        answer = await say(served, request(b"POST /api/runs", b"content-length: 9", body=b"{"))
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /health HTTP/1.1\r\nhost: local"])
async def test_headers_that_do_not_arrive_end_the_connection(
    home: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(running, "_KEEP_ALIVE_SECONDS", 0.2)
    async with serving(home) as served:
        assert await say(served, sent) == b""


@pytest.mark.parametrize("begun", [b"GET /", b"GET / HTTP/1.1\r\nhost: localhost\r\nx: "])
async def test_headers_without_end_are_not_kept(served: Served, begun: bytes) -> None:
    reader, writer = await connect(served)
    sent = 0
    async with asyncio.timeout(60):
        writer.write(begun)
        # The connection is reset while more is sent.
        try:
            while not reader.at_eof() and sent < 64 * 1024 * 1024:
                writer.write(b"x" * 64 * 1024)
                sent += 64 * 1024
                await writer.drain()
        except ConnectionError:
            pass
    writer.close()
    assert sent < 16 * 1024 * 1024


async def test_a_slow_reader_is_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    # The system holds some 10 MiB on a loopback connection.
    parts, size, taken = 400, 64 * 1024, 0

    async def write(*_: Any) -> AsyncGenerator[bytes, None]:
        nonlocal taken
        for _part in range(parts):
            taken += 1
            yield b":" * (size - 2) + b"\n\n"

    monkeypatch.setattr(api_runs, "_write_events", write)
    async with served.http() as client:
        run = (await client.post("/api/runs", json={"prompt": "x"})).json()["id"]
    reader, writer = await connect(served)
    writer.write(
        request(b"GET /api/runs/%b/events" % run.encode()).replace(b"KEY", served.key().encode())
    )
    before = -1
    while taken != before or not taken:
        before = taken
        await asyncio.sleep(0.5)
    assert taken < parts // 2
    received = 0
    async with asyncio.timeout(120):
        while received < parts * size:
            received += len(await reader.read(1024 * 1024))
    writer.close()
    assert taken == parts


async def test_the_events_of_a_silent_run_say_that_it_waits(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "_SILENT_SECONDS", 0.05)
    home.mkdir()
    (home / "slow.toml").write_text("[[replies]]\nparts = [{ stall = true }]\n")
    scripts = {"slow": str(home / "slow.toml")}
    async with (
        serving(home, providers={"scripted": {"scripts": scripts}}) as served,
        served.http() as client,
    ):
        order = {"model": "scripted/slow", "prompt": "x"}
        run = (await client.post("/api/runs", json=order)).json()["id"]
        async with client.stream("GET", f"/api/runs/{run}/events") as response:
            lines = response.aiter_lines()
            assert [line async for line in take(lines, ": waiting", 3)] == [": waiting"] * 3
            await client.post(f"/api/runs/{run}/cancel")
            assert '"ended"' in [line async for line in lines if line.startswith("data:")][-1]


def slow(home: Path, parts: str) -> dict[str, Any]:
    """A model whose replies have these parts."""
    home.mkdir()
    (home / "slow.toml").write_text(f"[[replies]]\nparts = [{parts}]\n")
    return {"providers": {"scripted": {"scripts": {"slow": "slow.toml"}, "retries": 0}}}


WAITING = ": waiting\n\n"
SLOW = "{ delay-seconds = 0.5, text = 'Late' }, { delay-seconds = 0.5, text = ' words.' }"
BROKEN = "{ delay-seconds = 0.5, error = 'overloaded' }"


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("name", SPEECHES)
async def test_the_silent_streams_of_each_dialect_say_that_they_wait(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, store: bool
) -> None:
    monkeypatch.setattr(exchanges, "_SILENT_SECONDS", 0.1)
    speech = SPEECHES[name]
    body = speech.write("scripted/slow", [("user", "Hi")], stream=True, store=store)
    async with serving(home, **slow(home, SLOW)) as served, served.http() as client:
        whole = (await client.post(speech.path, json=body)).text
    assert whole.count(WAITING) >= 4
    assert "Late" in whole.replace(WAITING, "").rpartition(" words.")[0]


async def test_the_official_clients_skip_what_a_silent_stream_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "_SILENT_SECONDS", 0.1)
    said: Any = [{"role": "user", "content": "Hi"}]
    async with serving(home, **slow(home, SLOW)) as served:
        async with served.openai() as client:
            chunks = await client.chat.completions.create(
                model="scripted/slow", messages=said, stream=True
            )
            texts = [one.choices[0].delta.content or "" async for one in chunks]
            async with client.responses.stream(model="scripted/slow", input="Hi") as events:
                response = await events.get_final_response()
        async with (
            served.anthropic() as other,
            other.messages.stream(model="scripted/slow", messages=said, max_tokens=9) as stream,
        ):
            text = await stream.get_final_text()
    assert ["".join(texts), response.output_text, text] == ["Late words."] * 3


@pytest.mark.parametrize("seconds", [0.1, 15.0])
@pytest.mark.parametrize("name", SPEECHES)
async def test_an_error_has_its_status_unless_the_stream_was_silent_for_long(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, seconds: float
) -> None:
    monkeypatch.setattr(exchanges, "_SILENT_SECONDS", seconds)
    speech = SPEECHES[name]
    body = speech.write("scripted/slow", [("user", "Hi")], stream=True, store=False)
    async with serving(home, **slow(home, BROKEN)) as served, served.http() as client:
        reply = await client.post(speech.path, json=body)
    assert reply.status_code == (200 if seconds < 1 else 502)
    assert (WAITING in reply.text) == (seconds < 1)
    assert "as the script says" in reply.text


async def test_the_bodies_of_requests_in_progress_have_limits(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_USER_BYTES", 1000)
    monkeypatch.setattr(bodies, "_ALL_BYTES", 1500)
    body = json.dumps({"content": "Tea " + " " * 575}).encode()
    assert len(body) > 500
    async with serving(home, server={"body-bytes": 800}) as served:
        application: Any = served.running._server.config.app
        room = application._room

        async def post(user: str, *, end: asyncio.Event | None = None) -> httpx2.Response:
            async def write() -> AsyncGenerator[bytes, None]:
                yield body[:-1]
                if end is not None:
                    await end.wait()
                yield body[-1:]

            async with served.http(user) as client:
                return await client.post("/api/memory", content=write())

        async def hold(user: str, bytes_held: int) -> asyncio.Task[httpx2.Response]:
            posting = asyncio.create_task(post(user, end=end))
            async with asyncio.timeout(10):
                while room._used_by_all < bytes_held:
                    await asyncio.sleep(0.01)
            return posting

        end = asyncio.Event()
        first = await hold("ada", len(body) - 1)
        own = await post("ada")
        second = await hold("bob", 2 * (len(body) - 1))
        other = await post("eve")
        end.set()
        held = [(await one).status_code for one in (first, second)]
        later = [(await post(user)).status_code for user in ("ada", "eve")]
        left = (room._used_by_all, dict(room._used))
    assert [own.status_code, other.status_code, *held, *later] == [429, 503, *[201] * 4]
    assert [one.headers["retry-after"] for one in (own, other)] == ["1", "1"]
    assert left == (0, {})


async def take(lines: Any, wanted: str, count: int) -> AsyncGenerator[str, None]:
    """The first lines that are as wanted."""
    async for line in lines:
        if line == wanted:
            yield line
            count -= 1
            if not count:
                return


async def test_a_user_follows_so_many_streams_at_a_time(home: Path) -> None:
    home.mkdir()
    (home / "slow.toml").write_text("[[replies]]\nparts = [{ stall = true }]\n")
    tables: dict[str, Any] = {
        "server": {"user-streams": 1},
        "providers": {"scripted": {"scripts": {"slow": str(home / "slow.toml")}}},
    }
    async with serving(home, **tables) as served, served.http() as client:
        order = {"model": "scripted/slow", "prompt": "x"}
        run = (await client.post("/api/runs", json=order)).json()["id"]
        url = f"/api/runs/{run}/events"
        async with client.stream("GET", url) as first:
            lines = first.aiter_lines()
            await anext(lines)
            refused = await client.get(url)
        async with asyncio.timeout(30):
            while (await open_stream(client, url)) == 429:
                pass
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


async def open_stream(client: httpx2.AsyncClient, url: str) -> int:
    """The status of a stream, which is left at once."""
    async with client.stream("GET", url) as response:
        return response.status_code


async def test_pages_of_allowed_origins_may_use_all_methods(home: Path) -> None:
    origin = "https://pages.example"
    async with (
        serving(home, server={"allowed-origins": [origin]}) as served,
        httpx2.AsyncClient(base_url=served.url) as client,
    ):
        wanted = {"origin": origin, "access-control-request-headers": "last-event-id"}
        asked = await client.options("/api/runs", headers=wanted)
    assert "DELETE" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "last-event-id"
