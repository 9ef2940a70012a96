"""A disconnect or a cancellation ends the request upstream, whatever the dialect and the moment."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import httpx2
import pytest
from msgspec import Struct

from tests.fakes.interfaces import SERVERS, HttpInterface
from tests.server.conftest import Served, serving
from vibe_llms.conversations.hosts import EnsembleConfiguration, register_ensemble
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.server.exchanges import HttpExchange

Moment: TypeAlias = Literal["before the first token", "in mid-stream", "in a tool", "not streaming"]
MOMENTS: Sequence[Moment] = get_args(Moment)
SAID = [{"role": "user", "content": "Hi"}]
TALK = "/v1/chat/completions"
RESPONSES = "/v1/responses"
#: Paths and bodies by dialect; those that are stored do not end with the connection.
DISCONNECTED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": (TALK, {"messages": SAID}),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": 100}),
    "responses": (RESPONSES, {"input": "Hi", "store": False}),
}
CANCELLED = {"stored": "/v1/responses/resp_{}/cancel", "run": "/api/runs/{}/cancel"}
DIALECTS = (*DISCONNECTED, *CANCELLED)


class Patient:
    """A tool that waits until it is cancelled, which it notices."""

    def __init__(self) -> None:
        self.running = 0
        self.cancelled = 0

    async def wait(self) -> str:
        """Wait for long."""
        self.running += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return "done"


PATIENT = Patient()


def produce_patience(name: str, _: EnsembleConfiguration) -> FunctionEnsemble:
    """The tool, for servers in this process."""
    tools = FunctionEnsemble(name)
    tools.register()(PATIENT.wait)
    return tools


register_ensemble("patience", produce_patience)


class Rig(Struct):
    """A server, the upstream that it asks, and a client of it."""

    interface: HttpInterface
    upstream: Any
    served: Served
    http: httpx2.AsyncClient
    #: How many replies were left before their end.
    left: int = 0


@asynccontextmanager
async def rigged(home: Path, interface: HttpInterface) -> AsyncIterator[Rig]:
    home.mkdir(exist_ok=True)
    with interface.serve() as upstream:
        keys = home / "keys.toml"
        keys.touch(mode=0o600)
        keys.write_text(
            "".join(f'{row} = "{key}"\n' for row, key in interface.keys(upstream).items())
        )
        tables: dict[str, Any] = {
            **interface.configure(upstream),
            "server": {"shutdown-seconds": 1},
            "storage": {"durability": "fast"},
            "ensembles": {"patience": {"module": __name__}},
            "agents": {"agent": {"model": interface.address, "ensembles": ["patience"]}},
        }
        async with serving(home, **tables) as served, served.http() as http:
            yield Rig(interface, upstream, served, http)


async def stop(rig: Rig, dialect: str, moment: Moment) -> float:
    """Begin a turn, end it at a moment, and return how long the upstream went on, in seconds."""
    interface, upstream, http = rig.interface, rig.upstream, rig.http
    part = {"before the first token": -1.0, "not streaming": -1.0}.get(moment, 0.6)
    reply = interface.texts(*"abcdefgh")
    answer = interface.stall(reply, part)
    if moment == "in a tool":
        answer = interface.tools(("patience__wait", "{}"))
    upstream.replies = [answer]
    asked, cancelled = len(interface.sent(upstream)), PATIENT.cancelled
    path, body = DISCONNECTED.get(dialect, (RESPONSES, {"input": "Hi"}))
    streams = moment != "not streaming"
    begun = asyncio.Event()

    async def ask() -> None:
        request = {**body, "model": "agent", "stream": streams}
        async with http.stream("POST", path, json=request) as found:
            assert found.status_code == 200, await found.aread()
            async for line in found.aiter_lines():
                if "abc" in line or '"a' in line:
                    begun.set()

    client = asyncio.create_task(ask())
    try:
        while len(interface.sent(upstream)) == asked:
            await asyncio.sleep(0.001)
            assert not client.done(), client.exception() or "it was not asked"
        while moment == "in a tool" and not PATIENT.running:
            await asyncio.sleep(0.001)
            assert not client.done(), client.exception() or "the tool did not run"
        if moment == "in mid-stream":
            await begun.wait()
        stopped = time.monotonic()
        if dialect in CANCELLED:
            (run,) = (await http.get("/api/runs?status=running")).json()["runs"]
            ended = await http.post(CANCELLED[dialect].format(run["id"]))
            assert ended.status_code == 200
        else:
            client.cancel()
        if moment == "in a tool":
            while PATIENT.running:
                await asyncio.sleep(0.001)
            assert PATIENT.cancelled == cancelled + 1
        else:
            rig.left += 1
            while interface.count_left(upstream) < rig.left:
                await asyncio.sleep(0.001)
        seconds = time.monotonic() - stopped
    finally:
        client.cancel() if dialect in DISCONNECTED else None
        with suppress(asyncio.CancelledError):
            await client
    while "running_turns 0.0" not in (await http.get("/metrics")).text:
        await asyncio.sleep(0.01)
    while (await http.get("/api/runs?status=running")).json()["runs"]:
        await asyncio.sleep(0.01)
    # Nothing asks again.
    assert len(interface.sent(upstream)) == asked + 1
    return seconds


@pytest.mark.storm
@pytest.mark.parametrize("row", SERVERS)
async def test_what_is_stopped_ends_upstream(
    home: Path,
    row: str,
    rounds: Callable[[int, int], int],
) -> None:
    chance = random.Random(row)
    cases: Sequence[tuple[str, Moment]] = 2 * [*itertools.product(DIALECTS, MOMENTS)]
    if (number := rounds(5, len(cases))) < len(cases):
        # Each dialect and each moment at least once.
        moments: list[Moment] = [*MOMENTS, chance.choice(MOMENTS)]
        chance.shuffle(moments)
        cases = [*zip(DIALECTS, moments, strict=True)]
    slowest = 0.0
    async with rigged(home, SERVERS[row]) as rig, asyncio.timeout(10 * number):
        for dialect, moment in cases:
            slowest = max(slowest, await stop(rig, dialect, moment))
    sys.stdout.write(f"{row}: {len(cases)} cases, closed within {slowest:.3f} s")
    # On a machine with nothing else to do, it is a few milliseconds.
    assert slowest < rounds(10, 1)


@pytest.mark.slow
async def test_a_server_that_ignores_the_end_of_a_connection_would_be_detected(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def never(_: HttpExchange) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(HttpExchange, "until_disconnect", never)
    async with rigged(home, SERVERS["anthropic"]) as rig:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await stop(rig, "messages", "before the first token")
