"""Many conversations at once, and the first chunk of one, with the archive on and off.

Wall-clock time, because an archive waits for the disk. The *socket* floor sends the same bytes over
open connections and reads until the reply is complete; with an archive it also writes two lines
into a file for each conversation, each synchronised in a thread.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from archives import real_disk
from floors import read_stream
from interfaces import INTERFACES
from measure import KEY, Row, loopback, ratio_row, settle

from vibe_llms import Session, open_session
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.events import Event, MessageProgressEvent

CROWDS = (50, 200, 1_000)
CHUNKS = 20
_REQUEST = b"POST /v1/messages HTTP/1.1\r\nhost: h\r\ncontent-length: 400\r\n\r\n" + b"x" * 400
_LINE = b"x" * 500 + b"\n"
_ANTHROPIC = INTERFACES[0]
_MODEL = f"{_ANTHROPIC.row}/{_ANTHROPIC.model}"
Samples = dict[str, list[float]]


def measure_crowds(runs: int) -> list[Row]:
    return [
        row
        for saved in (False, True)
        for row in asyncio.run(_measure_crowds(saved=saved, runs=runs))
    ]


def measure_first_chunk(runs: int) -> list[Row]:
    return asyncio.run(_measure_first_chunk(runs * 20))


async def _measure_crowds(*, saved: bool, runs: int) -> list[Row]:
    rows = []
    kind = "on" if saved else "off"
    for size in CROWDS:
        turns: Samples = {"ours": [], "socket": []}
        firsts: Samples = {"ours": [], "httpx2": []}
        with (
            loopback("stream", str(CHUNKS), _ANTHROPIC.name) as url,
            tempfile.TemporaryDirectory(dir=real_disk()) as home,
        ):
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
            async with (
                open_session(home=home, keys={_ANTHROPIC.row: KEY}, configuration=_rows(url)) as s,
                httpx2.AsyncClient(limits=limits, timeout=60) as bare,
            ):
                floor = await _Floor.open(url, Path(home), size, saved=saved)
                crowd = [await s.begin(_MODEL, save=saved) for _ in range(size)]
                settle()
                for number in range(runs + 1):
                    ours, first = await _hold_all(crowd)
                    floors = await floor.hold_all()
                    bare_firsts = await _time_firsts(bare, url, size)
                    # The first opens the connections and makes the conversations.
                    if number:
                        turns["ours"].append(ours / size)
                        turns["socket"].append(floors / size)
                        firsts["ours"].append(first)
                        firsts["httpx2"].append(bare_firsts)
                floor.close()
        what = f"{size:,} conversations at once, archive {kind}"
        rows.append(ratio_row(f"{what}: a turn", turns, "ms", scale=1e3))
        rows.append(ratio_row(f"{what}: first text", firsts, "ms", scale=1e3))
    return rows


async def _hold_all(crowd: Sequence[Conversation]) -> tuple[float, float]:
    """The seconds of a turn of each at once, and the median seconds to the first text."""
    firsts: list[float] = []
    begin = time.perf_counter()

    async def hold(conversation: Conversation) -> None:
        first = 0.0

        def handle(event: Event) -> None:
            nonlocal first
            if not first and isinstance(event, MessageProgressEvent):
                first = time.perf_counter() - begin
                firsts.append(first)

        await conversation.converse("hi", event_handler=handle)

    await asyncio.gather(*map(hold, crowd))
    return time.perf_counter() - begin, statistics.median(firsts)


async def _time_firsts(client: httpx2.AsyncClient, url: str, size: int) -> float:
    begin = time.perf_counter()

    async def read() -> float:
        async with client.stream("POST", f"{url}/v1/messages", content=b"x" * 400) as response:
            first = 0.0
            async for chunk in response.aiter_raw():
                if not first and b"text_delta" in chunk:
                    first = time.perf_counter() - begin
        return first

    return statistics.median(await asyncio.gather(*(read() for _ in range(size))))


class _Floor:
    """Open connections, and with an archive a file for each."""

    def __init__(self, connections: Sequence[_Raw], files: Sequence[int]) -> None:
        self._connections = connections
        self._files = files
        self._threads = ThreadPoolExecutor(32)

    @classmethod
    async def open(cls, url: str, folder: Path, size: int, *, saved: bool) -> _Floor:
        loop, port = asyncio.get_running_loop(), urlsplit(url).port or 0
        connections = [
            (await loop.create_connection(_Raw, "127.0.0.1", port))[1] for _ in range(size)
        ]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [os.open(folder / f"bare-{i}", flags, 0o600) for i in range(size if saved else 0)]
        return cls(connections, files)

    async def hold_all(self) -> float:
        loop = asyncio.get_running_loop()

        def write(file: int) -> None:
            os.write(file, _LINE)
            os.fdatasync(file)

        async def hold(number: int) -> None:
            if self._files:
                await loop.run_in_executor(self._threads, write, self._files[number])
            await self._connections[number].ask()
            if self._files:
                await loop.run_in_executor(self._threads, write, self._files[number])

        begin = time.perf_counter()
        await asyncio.gather(*map(hold, range(len(self._connections))))
        return time.perf_counter() - begin

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self._connections:
            connection.transport.close()
        for file in self._files:
            os.close(file)


class _Raw(asyncio.Protocol):
    """A connection that reads until the last chunk of a reply."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self) -> Awaitable[None]:
        self._done = asyncio.get_running_loop().create_future()
        self._end = b""
        self.transport.write(_REQUEST)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._end = (self._end + data)[-7:]
        if self._end.endswith(b"0\r\n\r\n"):
            self._done.set_result(None)


async def _measure_first_chunk(runs: int) -> list[Row]:
    samples: Samples = {"ours": [], "ours, archive off": [], "httpx2": [], "anthropic": []}
    with (
        loopback("stream", str(CHUNKS), _ANTHROPIC.name) as url,
        tempfile.TemporaryDirectory(dir=real_disk()) as home,
    ):
        async with (
            open_session(home=home, keys={_ANTHROPIC.row: KEY}, configuration=_rows(url)) as s,
            httpx2.AsyncClient() as bare,
            _ANTHROPIC.produce_package(url) as package,
        ):
            kept, loose = await _begin(s, save=True), await _begin(s, save=False)

            async def official() -> float:
                begin, first = time.perf_counter(), 0.0
                async for event in _ANTHROPIC.stream(package, {}):
                    if not first and event.type == "content_block_delta":
                        first = time.perf_counter() - begin
                return first

            async def time_ours(conversation: Conversation) -> float:
                return (await _hold_all([conversation]))[1]

            work: dict[str, Callable[[], Awaitable[float]]] = {
                "ours": lambda: time_ours(kept),
                "ours, archive off": lambda: time_ours(loose),
                "httpx2": lambda: _time_firsts(bare, url, 1),
                "anthropic": official,
            }
            await read_stream(bare, url)
            settle()
            for number in range(runs + 3):
                for name, function in work.items():
                    taken = await function()
                    if number > 2:
                        samples[name].append(taken)
    return [ratio_row("first chunk, connection and archive warm", samples, "ms", scale=1e3)]


async def _begin(session: Session, *, save: bool) -> Conversation:
    conversation = await session.begin(_MODEL, save=save)
    await conversation.converse("hi")
    return conversation


def _rows(url: str) -> dict[str, dict[str, dict[str, str]]]:
    return {"providers": {_ANTHROPIC.row: {"base-url": url}}}
