"""Serving processes that are killed and stopped, and clients that go on with the next one."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import tomli_w

from tests.fakes.ports import find_port

ROOT = Path(__file__).parents[2]
#: The lease of all servers, in seconds.
LEASE = 1.0
SCRIPT: Mapping[str, Any] = {
    "replies": [
        {
            "parts": [
                {"text": "I shall transfer the sums one after the other, with care."},
                {"invocation": "bank/transfer", "arguments": {"sum": 1}},
                {"invocation": "bank/transfer", "arguments": {"sum": 2}},
            ]
        },
        {
            "parts": [
                {"reasoning": "Now the money has to be in cash."},
                {"text": "This needs your permission."},
                {"invocation": "bank/withdraw", "arguments": {"sum": 3}},
            ]
        },
        {"parts": [{"text": "All of the sums have been moved, as far as I know."}]},
    ]
}
#: With replies that take nearly as long as a lease.
SLOW_SCRIPT = {
    "replies": [
        {"parts": [{**first, "delay-seconds": 0.7 * LEASE}, *parts]}
        for first, *parts in (reply["parts"] for reply in SCRIPT["replies"])
    ]
}
TALK = {"replies": [{"when": ".*", "parts": [{"text": "That is good to know."}]}]}

_LAST = ("response.completed", "response.failed")


def prepare(home: Path, script: Mapping[str, Any] = SCRIPT, **tables: Any) -> None:
    """Write the configuration that all servers of a home share."""
    home.mkdir(exist_ok=True)
    (home / "bank.toml").write_text(tomli_w.dumps(script))
    (home / "talk.toml").write_text(tomli_w.dumps(TALK))
    scripts = {name: f"{name}.toml" for name in ("bank", "talk")}
    configuration = {
        "runs": {"lease-seconds": LEASE},
        "providers": {
            "scripted": {"scripts": scripts, "pace-seconds": 0.01},
            "teller": {
                "module": "tests.server.bank",
                "scripts": scripts,
                "pace-seconds": 0.01,
            },
        },
        "ensembles": {"bank": {"module": "tests.server.bank", "effects": str(home / "effects")}},
        "agents": {"teller": {"model": "teller/bank", "ensembles": ["bank"]}},
        **tables,
    }
    (home / "config.toml").write_text(tomli_w.dumps(configuration))


class ServerProcess:
    """`vibe-llms serve` as a process of its own, always at the same port."""

    def __init__(self, home: Path, name: str, *, bug: str = "") -> None:
        self.port = find_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / f"{name}.log"
        self._home = home
        self._bug = bug
        self._process: asyncio.subprocess.Process | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        module = ["tests.server.planted", self._bug] if self._bug else ["vibe_llms"]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *module, *self.arguments),
                cwd=ROOT,
                env={**os.environ, "VIBE_LLMS_HOME": str(self._home), "PYTHONPATH": str(ROOT)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(120), httpx2.AsyncClient() as http:
            while not await self.answers(http):
                assert self.alive, self.log.read_text()
                await asyncio.sleep(0.02)

    @property
    def arguments(self) -> Sequence[str]:
        """What the command is given."""
        return ("serve", "--port", str(self.port), "--quiet")

    async def answers(self, http: httpx2.AsyncClient) -> bool:
        """Whether it has started."""
        with suppress(httpx2.TransportError):
            await http.get(f"{self.url}/health")
            return True
        return False

    async def kill(self) -> None:
        """SIGKILL."""
        await self.send(signal.SIGKILL)
        await self.wait()

    async def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.alive and self._process is not None:
            self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            await self._process.wait()


class WorkerProcess(ServerProcess):
    """`vibe-llms worker` as a process of its own."""

    @property
    def arguments(self) -> Sequence[str]:
        """What the command is given."""
        return ("worker",)

    async def answers(self, http: httpx2.AsyncClient) -> bool:
        """Whether it has started at least once."""
        return "working on runs" in self.log.read_text()


class Balancer:
    """Gives each connection to a server that runs, as a load balancer does."""

    alive = True

    def __init__(self, servers: Sequence[ServerProcess], chance: random.Random) -> None:
        self.port = find_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._servers = servers
        self._chance = chance

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Balancer]:
        """Balance within the block."""
        async with await asyncio.start_server(self._connect, "127.0.0.1", self.port) as listening:
            yield self
            listening.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        alive = [one for one in self._servers if one.alive]
        with suppress(OSError, IndexError):
            port = self._chance.choice(alive).port
            there, back = await asyncio.open_connection("127.0.0.1", port)
            ways = [asyncio.create_task(_pass(reader, back))]
            ways.append(asyncio.create_task(_pass(there, writer)))
            # Where one side ends, both do.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            back.transport.abort()
        writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def serving_processes(
    home: Path, number: int, *, workers: int = 0, bug: str = ""
) -> AsyncIterator[Sequence[ServerProcess]]:
    """So many servers of one home, and then so many workers."""
    servers = [ServerProcess(home, f"server-{place}", bug=bug) for place in range(number)]
    servers += [WorkerProcess(home, f"worker-{place}", bug=bug) for place in range(workers)]
    try:
        await asyncio.gather(*(one.start() for one in servers))
        yield servers
    finally:
        await asyncio.gather(*(one.kill() for one in servers))


class Client:
    """A client of one user, which goes to another server, or waits, where one does not answer.

    It also waits where the server says that what it keeps is away.
    """

    def __init__(
        self, servers: Sequence[ServerProcess | Balancer], key: str, chance: random.Random
    ) -> None:
        self.chance = chance
        self.reconnects = self.refusals = 0
        self._servers = servers
        self._http = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {key}"}, timeout=httpx2.Timeout(30)
        )

    async def close(self) -> None:
        await self._http.aclose()

    def choose(self) -> str:
        """The address of a server, which runs if any does."""
        alive = [one for one in self._servers if one.alive]
        return self.chance.choice(alive or self._servers).url

    async def send(
        self, method: str, path: str, body: Any = None, *, data: bytes | None = None
    ) -> httpx2.Response:
        """The first answer; a request whose answer was lost is sent again."""
        given: dict[str, Any] = {"json": body} if data is None else {"content": data}
        while True:
            try:
                found = await self._http.request(method, self.choose() + path, **given)
            except httpx2.TransportError:
                self.reconnects += 1
                await asyncio.sleep(0.05)
                continue
            if found.status_code == 503:
                self.refusals += 1
                await asyncio.sleep(min(float(found.headers["retry-after"]), 0.2))
                continue
            assert found.status_code < 500, found.text
            return found

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The body of the answer, which is no error."""
        found = await self.send(method, path, body)
        assert found.status_code == 200, f"{path}: {found.text}"
        return found.json()

    async def start(self, text: str) -> str:
        """The identity of a response that was acknowledged."""
        body = {"model": "teller", "input": text, "background": True}
        identity: str = (await self.ask("POST", "/v1/responses", body))["id"]
        return identity.removeprefix("resp_")

    async def read(self, path: str, **headers: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of a stream, with their identities, until the connection ends."""
        with suppress(httpx2.TransportError):
            async with self._http.stream("GET", self.choose() + path, headers=headers) as found:
                if found.status_code == 503:
                    self.refusals += 1
                    return
                assert found.status_code == 200, await found.aread()
                name, data = "", ""
                async for line in found.aiter_lines():
                    if line.startswith("id: "):
                        name = line.removeprefix("id: ")
                    elif line.startswith("data: {"):
                        data = line.removeprefix("data: ")
                    elif not line and data:
                        yield name, json.loads(data)
                        name, data = "", ""


class RunFollower:
    """Follows a run at `/api`, and comes back after random numbers of events."""

    def __init__(self, client: Client, run: str) -> None:
        self.client, self.run = client, run
        self.seen: list[tuple[int, dict[str, Any]]] = []
        #: When each event came, and over which connection.
        self.times: list[float] = []
        self.visits: list[int] = []

    async def follow(self) -> None:
        visit = 0
        while not (self.seen and self.seen[-1][1]["event"] == "ended"):
            after = self.seen[-1][0] if self.seen else 0
            left = self.client.chance.randrange(1, 30)
            events = self.client.read(
                f"/api/runs/{self.run}/events", **{"last-event-id": str(after)}
            )
            async for name, event in events:
                self.seen.append((int(name), event))
                self.times.append(time.monotonic())
                self.visits.append(visit)
                left -= 1
                if not left:
                    break
            await events.aclose()  # type: ignore[attr-defined]
            visit += 1
            self.client.reconnects += 1
            await asyncio.sleep(0.02)


class ResponseFollower:
    """Follows a response in the dialect of Responses, in the same way."""

    def __init__(self, client: Client, run: str) -> None:
        self.client, self.run = client, run
        self.seen: list[dict[str, Any]] = []

    async def follow(self) -> None:
        while not (self.seen and self.seen[-1]["type"] in _LAST):
            after = self.seen[-1]["sequence_number"] if self.seen else -1
            left = self.client.chance.randrange(1, 30)
            events = self.client.read(
                f"/v1/responses/resp_{self.run}?stream=true&starting_after={after}"
            )
            async for _, event in events:
                self.seen.append(event)
                left -= 1
                if not left:
                    break
            await events.aclose()  # type: ignore[attr-defined]
            self.client.reconnects += 1
            await asyncio.sleep(0.02)


@asynccontextmanager
async def clients(
    servers: Sequence[ServerProcess | Balancer], keys: Mapping[str, str], chance: random.Random
) -> AsyncIterator[Mapping[str, Client]]:
    """A client of each user."""
    async with AsyncExitStack() as stack:
        made = {user: Client(servers, key, chance) for user, key in keys.items()}
        for one in made.values():
            stack.push_async_callback(one.close)
        yield made
