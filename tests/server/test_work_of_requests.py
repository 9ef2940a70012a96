"""How much work a request makes: counted, because times depend on the machine."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.testing import fake_server

MODEL = "openai-chat/gpt-5.5"
SAID = [{"role": "user", "content": "Hi"}]
TALK, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
#: Requests by dialect and by what is kept.
REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": (TALK, {"messages": SAID, "store": False}),
    "chat, stored": (TALK, {"messages": SAID, "store": True}),
    "messages, stored": (MESSAGES, {"messages": SAID, "max_tokens": 99}),
    "responses": (RESPONSES, {"input": "Hi", "store": False}),
    "responses, stored": (RESPONSES, {"input": "Hi", "store": True}),
}
#: The most calls of functions on the event loop for a request, those of asyncio and of the client
#: here included; coroutines that go on count again.
MOST_CALLS = {"chat": 2800, "responses": 2950}
#: One for the request, and one for the turn.
MOST_TASKS = 2
#: One each for the idle connection, the idle user, the turn, and the reply of the provider.
MOST_TIMERS = 4


@pytest.fixture(autouse=True)
def described() -> None:
    """Leave out the check of each response, which would be counted."""


class Client:
    """A connection that sends a request and reads the whole reply; it makes no garbage."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return the body of the reply."""
        said = msgspec.json.encode({"model": MODEL, **body})
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(said)}\r\n\r\n"
        )
        self._writer.write(head.encode() + said)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in lines, lines
        if b"chunked" in lines:
            return await self._reader.readuntil(b"\r\n0\r\n\r\n")
        length = lines.partition(b"content-length:")[2].split(b"\r\n")[0]
        return await self._reader.readexactly(int(length))

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def rigged(home: Path) -> AsyncIterator[tuple[Served, Client]]:
    """A server without keys before a provider, and a client that has asked for everything once."""
    home.mkdir(exist_ok=True)
    with fake_server(["Hel", "lo"]) as provider:
        keys = home / "keys.toml"
        keys.touch(mode=0o600)
        keys.write_text("".join(f'{row} = "{key}"\n' for row, key in provider.keys.items()))
        tables: dict[str, Any] = {**provider.configuration, "storage": {"durability": "fast"}}
        async with serving(home, keys=False, **tables) as served:
            parts = urlsplit(served.url)
            client = Client(*await asyncio.open_connection(parts.hostname, parts.port))
            try:
                yield served, client
            finally:
                await client.close()


async def settle() -> None:
    """Wait until what a request has left behind has run."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_leaves_nothing_to_the_garbage_collector(
    home: Path, kind: str, *, stream: bool
) -> None:
    path, body = REQUESTS[kind]
    async with rigged(home) as (_, client):
        # The first ones make what is made once.
        for _ in range(2):
            await client.ask(path, {**body, "stream": stream})
        await settle()
        found = await collect(lambda: client.ask(path, {**body, "stream": stream}))
    assert found == Counter()


async def test_cycles_would_be_found() -> None:
    async def leave() -> None:
        one = asyncio.timeout(None)
        one.itself = one  # type: ignore[attr-defined]

    assert await collect(leave, "asyncio.") == {"asyncio.timeouts.Timeout": 1}


async def collect(work: Callable[[], Any], package: str = "vibe_llms.") -> Counter[str]:
    """Return what only the garbage collector would free after some work, by type."""
    gc.collect()
    gc.disable()
    try:
        await work()
        await settle()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = [type(one) for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return Counter(name for name in names if name.startswith(package))


@pytest.mark.parametrize("kind", MOST_CALLS)
async def test_a_request_that_is_not_stored_takes_few_calls_tasks_and_timers(
    home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a search for kernels, which makes no notebook of this process.
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    path, body = REQUESTS[kind]
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            calls[frame.f_code.co_qualname] += 1

    async with rigged(home) as (_, client):
        for _ in range(2):
            await client.ask(path, body)
        await settle()
        loop = asyncio.get_running_loop()
        # The server's own work, some times a second, is done by tasks that are there already.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        tasks = record(monkeypatch, loop, "create_task")
        timers = record(monkeypatch, loop, "call_at")
        measured, own = [], list[str]()
        # Their calls are counted too, and a loaded machine takes more rounds of the event loop.
        for _ in range(10):
            for recorded in (calls, tasks, timers):
                recorded.clear()
            sys.setprofile(count)
            try:
                await client.ask(path, body)
                await settle()
            finally:
                sys.setprofile(None)
            own = [call.__qualname__ for task, _, call, *_ in timers if task not in others]
            measured.append((calls.total(), len(tasks), len(own)))
        for least, most in zip(
            map(min, zip(*measured, strict=True)),
            (MOST_CALLS[kind], MOST_TASKS, MOST_TIMERS),
            strict=True,
        ):
            assert least <= most, (measured, own)


def record(
    monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop, name: str
) -> list[tuple[Any, ...]]:
    """Record the calls of a method of the loop: the task that made each, and its arguments."""
    method, recorded = getattr(loop, name), list[tuple[Any, ...]]()

    def call(*values: Any, **named: Any) -> Any:
        recorded.append((asyncio.current_task(loop), *values))
        return method(*values, **named)

    monkeypatch.setattr(loop, name, call)
    return recorded


async def test_a_whole_reply_is_written_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    async with rigged(home) as (served, client):
        await client.ask(*REQUESTS["chat"])
        (connection,) = served.running._server.server_state.connections
        write = connection.transport.write
        monkeypatch.setattr(
            connection, "transport", Recording(connection.transport, written, write)
        )
        reply = await client.ask(*REQUESTS["chat"])
    assert [one.partition(b"\r\n\r\n")[2] for one in written] == [reply]


class Recording(asyncio.Transport):
    """A transport that records what is written to another one."""

    def __init__(
        self, transport: asyncio.Transport, written: list[bytes], write: Callable[[bytes], None]
    ) -> None:
        super().__init__()
        self._transport = transport
        self._written = written
        self._write = write

    def write(self, data: Any) -> None:
        """Record the data, and write it."""
        self._written.append(bytes(data))
        self._write(data)

    def __getattribute__(self, name: str) -> Any:
        if name in ("write", "_transport", "_written", "_write"):
            return super().__getattribute__(name)
        return getattr(self._transport, name)
