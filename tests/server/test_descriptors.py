"""Connections and descriptors: nobody keeps the others out, and files still open."""

from __future__ import annotations

import asyncio
import errno
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.server import connections
from vibe_llms.server.descriptors import ConnectionLimits, raise_descriptor_limit
from vibe_llms.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
BODY = {
    "model": "scripted/stalled",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
}
HALF = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"


def scripted(home: Path) -> dict[str, Any]:
    home.mkdir(exist_ok=True)
    script = '[[replies]]\nwhen = "."\nparts = [{ text = ["Yes ", "no "] }, { stall = true }]\n'
    (home / "stalled.toml").write_text(script)
    return {"providers": {"scripted": {"scripts": {"stalled": str(home / "stalled.toml")}}}}


async def connect(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = httpx2.URL(served.url)
    return await asyncio.open_connection(address.host, address.port)


@asynccontextmanager
async def following(served: Served, user: str, count: int) -> AsyncIterator[None]:
    """Follow so many streams as a user, each with a connection."""
    limits = httpx2.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {served.key(user)}"}
    async with AsyncExitStack() as stack:
        client = httpx2.AsyncClient(base_url=served.url, headers=headers, limits=limits, timeout=30)
        await stack.enter_async_context(client)
        open_lines = []
        for _ in range(count):
            found = await stack.enter_async_context(client.stream("POST", CHAT, json=BODY))
            assert found.status_code == 200
            open_lines.append(found.aiter_lines())
            assert await anext(open_lines[-1])
        yield


async def test_half_sent_requests_keep_nobody_out_and_are_logged_once(home: Path) -> None:
    async with serving(home, server={"connections": 20}) as served, AsyncExitStack() as stack:
        writers = []
        for _ in range(60):
            _, writer = await connect(served)
            stack.callback(writer.close)
            writer.write(HALF)
            await writer.drain()
            writers.append(writer)
        async with served.http() as client:
            for path in ("/health", "/v1/models"):
                assert (await client.get(path)).status_code == 200
        told = [line for line in served.log if "connections are in use" in line]
        assert len(told) == 1, told
        assert "connections in [server]" in told[0]
        state = served.running._server.server_state
        assert len(state.connections) <= 20


async def test_one_users_followers_leave_connections_for_others(home: Path) -> None:
    tables = {**scripted(home), "server": {"connections": 20, "user-connections": 2000}}
    async with serving(home, **tables) as served, following(served, "ada", 10):
        async with served.http("ada") as client:
            refused = await client.post(CHAT, json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "user-connections" in refused.json()["error"]["message"]
        async with served.http("ben") as client:
            assert (await client.get("/v1/models")).status_code == 200


async def test_where_all_connections_work_a_new_one_is_told_to_wait(home: Path) -> None:
    tables = {**scripted(home), "server": {"connections": 4}}
    async with serving(home, **tables) as served, AsyncExitStack() as stack:
        for user in ("ada", "ben"):
            await stack.enter_async_context(following(served, user, 2))
        async with served.http("cleo") as client:
            refused = await client.get("/health")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "overloaded"


async def test_headers_that_do_not_end_have_less_time_than_an_idle_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_HEADER_SECONDS", 0.1)
    half, idle = await connect(served), await connect(served)
    half[1].write(HALF)
    assert await asyncio.wait_for(half[0].read(), 20) == b""
    idle[1].write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await idle[0].readline()).startswith(b"HTTP/1.1 200")
    for _, writer in (half, idle):
        writer.close()


async def test_that_no_descriptor_is_left_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(ServerSettings(), 1024)
    loop = asyncio.get_running_loop()
    others: list[str] = []
    loop.set_exception_handler(lambda _, context: others.append(context["message"]))
    with limits.watch_loop():
        for number in (errno.EMFILE, errno.ENFILE) * 500:
            loop.call_exception_handler({"message": "full", "exception": OSError(number, "full")})
        loop.call_exception_handler({"message": "another", "exception": OSError(errno.EIO, "no")})
    assert others == ["another"]
    assert [one.getMessage() for one in caplog.records] == ["no connection can be accepted: full"]
    loop.set_exception_handler(None)


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 1_000_000])
def test_connections_leave_a_reserve_of_descriptors(limit: int) -> None:
    limits = ConnectionLimits(ServerSettings(), limit)
    assert limits.all <= max(limit - 64, 1)
    assert limits.all <= 10_000
    assert limits.user <= max(limits.all // 2, 1)


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (40, int(sys.argv[1])))
from vibe_llms.server.descriptors import raise_descriptor_limit
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "700"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["700", "700", "700"]
    assert raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
