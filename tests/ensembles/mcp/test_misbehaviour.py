"""M1 to M4: a bad server costs bounded time, bounded memory, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ensembles.mcp.servers import ASKING, ERAS, opened
from tests.fakes import mcp_server
from tests.faults.family import Family
from tests.faults.heartbeat import steady
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.conversations.hosts import EnsembleConfiguration
from vibe_llms.ensembles.mcp import connection as connections
from vibe_llms.ensembles.mcp import stdio
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.messages.canisters import InvocationCanister

pytestmark = pytest.mark.usefixtures("warm_process")

SERVER = str(Path(mcp_server.__file__))
#: The servers of these tests, and what they start.
FAMILY = Family()
#: Beyond the limits of a server, its end takes at most three times the grace, on a loaded machine.
SLACK_SECONDS = 30
LIMITS = {"open-seconds": 20, "list-seconds": 20, "call-seconds": 20}


def produce_ensemble(behaviour: str = "", **settings: Any) -> McpEnsemble:
    environment = {**FAMILY.environment, **settings.pop("environment", {})}
    row = {"command": [sys.executable, SERVER, behaviour], **LIMITS, **settings}
    row["environment"] = environment
    return McpEnsemble("fake", EnsembleConfiguration(load_configuration(), row))


async def call(ensemble: McpEnsemble, tool: str = "echo", arguments: str = '{"text": "hi"}') -> str:
    (invoker,) = (one for one in ensemble.invokers if one.name == f"fake/{tool}")
    invocation = InvocationCanister(name=invoker.name, arguments=arguments)
    context = InvocationContext("", invocation, lambda *_, **__: None)
    return (await invoker.invoke(arguments, context)).text


@pytest.fixture(autouse=True)
def quick_grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stdio, "GRACE_SECONDS", 0.3)
    yield
    assert not FAMILY.members()


async def misbehave(behaviour: str, **settings: Any) -> str:
    """Open, call and close; gives the phase in which it failed, or nothing."""
    limits = {"open": "open-seconds", "call": "call-seconds"}
    phase = mcp_server.BEHAVIOURS[behaviour]
    if behaviour.startswith("hangs") or behaviour in ("half-a-line", "wrong-id", "wrong-json"):
        name = "list-seconds" if behaviour == "hangs-at-list" else limits[phase]
        settings[name] = 0.5 if phase == "call" else 3
    if behaviour.startswith("closes"):
        settings["call-seconds"] = 3
    ensemble = produce_ensemble(behaviour, **settings)
    try:
        async with asyncio.timeout(600):
            await ensemble.open()
            try:
                assert await call(ensemble) in ("hi", "hi\ufffd")
            except EnsembleFailed:
                return "call"
    except EnsembleFailed:
        return "open"
    finally:
        async with asyncio.timeout(SLACK_SECONDS):
            await ensemble.close()
            await ensemble.close()
    return ""


#: How much of it a bad server sends in a night; in a day it is a thousandth.
NIGHTLY = {"NOTIFICATIONS": "1000000", "FLOOD_BYTES": "100000000"}
#: What these send is one message, which has to be read as one: the loop is busy until then.
LARGE = ("big-schema", "many-tools", "notifications")


@pytest.mark.storm
@pytest.mark.parametrize("behaviour", mcp_server.BEHAVIOURS)
async def test_a_bad_server_fails_in_time_and_a_good_one_answers_all_the_while(
    behaviour: str, rounds: Callable[[int, int], int]
) -> None:
    nights = rounds(0, 3)
    good = produce_ensemble()
    await good.open()
    settings: dict[str, Any] = {}
    if nights:
        settings = {"environment": NIGHTLY, "call-seconds": 300}
    try:
        for _ in range(nights or 1):
            async with steady(3.0 if behaviour in LARGE else 0.5):
                bad = asyncio.create_task(misbehave(behaviour, **settings))
                answers = 0
                while not bad.done():
                    assert await call(good) == "hi"
                    answers += 1
                    await asyncio.sleep(0.02)
            assert await bad == mcp_server.BEHAVIOURS[behaviour]
            assert answers > 0
    finally:
        await good.close()


@pytest.mark.slow
async def test_a_loop_that_is_busy_for_long_would_be_seen() -> None:
    async def be_busy() -> None:
        async with steady(0.2):
            end = time.thread_time() + 0.4
            while time.thread_time() < end:
                pass

    with pytest.raises(AssertionError, match="busy for"):
        await be_busy()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/nonesuch/server"], "the command '/nonesuch/server' cannot be started: No such file"),
        ([SERVER], "cannot be started: Permission denied"),
        ([sys.executable, SERVER, "exits-1"], "status 1; it said: I do not want to"),
        ([sys.executable, SERVER, "unknown-version"], "from the server: 1999-12-31"),
        ([sys.executable, "-c", "print('hello')"], "its process ended with status 0"),
    ],
)
async def test_the_reason_why_a_server_does_not_open_is_reported(
    command: list[str], words: str
) -> None:
    ensemble = produce_ensemble(command=command)
    with pytest.raises(EnsembleFailed) as caught:
        await ensemble.open()
    assert words in str(caught.value)
    assert str(caught.value).startswith("fake: ")
    assert ensemble.invokers == ()
    await ensemble.close()


async def test_a_server_that_died_is_started_again_for_the_next_call() -> None:
    ensemble = produce_ensemble()
    await ensemble.open()
    first = int(await call(ensemble, "pid"))
    os.kill(first, 9)
    for _ in range(1000):
        if not ensemble._connection.alive:
            break
        await asyncio.sleep(0.01)
    second = int(await call(ensemble, "pid"))
    assert second != first
    await ensemble.close()


@pytest.mark.parametrize("way", ["killed", "closed"])
async def test_requests_on_a_connection_that_has_ended_fail_at_once(way: str) -> None:
    ensemble = produce_ensemble()
    await ensemble.open()
    connection, asked = ensemble._connection, asyncio.Event()

    async def ask(_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(SLACK_SECONDS):
        with pytest.raises(EnsembleFailed, match=r"asking: it did not answer within 0.01 s$"):
            await connection.request(0.01, "asking", ask)
        asked.clear()
        waiting = asyncio.create_task(connection.request(3600, "asking", ask))
        await asked.wait()
        if way == "killed":
            os.kill(int(await call(ensemble, "pid")), 9)
            while connection.alive:
                await asyncio.sleep(0.01)
            with pytest.raises(EnsembleFailed, match=r"connection has ended.*status -9"):
                await connection.request(3600, "asking", ask)
        await connection.close()
        with pytest.raises(EnsembleFailed, match=r"asking: .*connection has ended"):
            await waiting
        asked.clear()
        with pytest.raises(EnsembleFailed, match="asking: the connection has ended") as caught:
            await connection.request(3600, "asking", ask)
    assert caught.value.phase == "asking"
    assert not asked.is_set()
    assert connection.details == {}
    await ensemble.close()


async def test_after_a_call_that_hung_the_next_one_works() -> None:
    ensemble = produce_ensemble("invalid-utf-8")
    await ensemble.open()
    for _ in range(3):
        assert await call(ensemble) == "hi"
    await ensemble.close()


async def check_fuzz(count: int) -> None:
    """M4: whatever a line holds, each call ends in time, and the next one works."""
    ensemble = produce_ensemble("fuzz", **{"call-seconds": 2})
    try:
        await ensemble.open()
        for _ in range(count):
            async with asyncio.timeout(SLACK_SECONDS):
                try:
                    await call(ensemble, arguments='{"text": "fuzz"}')
                except EnsembleFailed as error:
                    assert "restarted" not in str(error)  # noqa: PT017
                assert await call(ensemble) == "hi"
    finally:
        await ensemble.close()


@pytest.mark.storm
async def test_a_wrong_line_is_one_error(rounds: Callable[[int, int], int]) -> None:
    await check_fuzz(rounds(50, 1000))


async def test_a_wrong_line_that_ends_all_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = stdio.StdioLineSplitter.feed
    wrong: list[bytes] = []

    def feed_until_wrong(self: stdio.StdioLineSplitter, chunk: bytes) -> list[bytes]:
        lines = feed(self, chunk)
        for line in lines:
            try:
                json.loads(line)
            except (ValueError, RecursionError):
                wrong.append(line)
        return [] if wrong else lines

    monkeypatch.setattr(stdio.StdioLineSplitter, "feed", feed_until_wrong)
    with pytest.raises(EnsembleFailed, match="did not answer within 2 s"):
        await check_fuzz(50)


async def check_cancelling(count: int, era: str) -> None:
    """M6: each cancelled call is stopped at the server, and the next one works."""
    async with opened(command=ASKING, protocol=era) as ensemble:
        calls = [asyncio.create_task(ensemble.invoke("linger")) for _ in range(count)]
        async with asyncio.timeout(SLACK_SECONDS):
            while (await ensemble.invoke("count")).text != f"{count} 0":
                await asyncio.sleep(0.05)
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            while (await ensemble.invoke("count")).text != f"{count} {count}":
                await asyncio.sleep(0.05)


@pytest.mark.storm
@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_is_stopped_at_the_server(
    rounds: Callable[[int, int], int], era: str
) -> None:
    await check_cancelling(rounds(10, 50), era)


@pytest.mark.slow
async def test_a_cancelled_call_of_which_no_word_is_said_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

    async def say_nothing(*_: Any, **__: Any) -> None:
        """Send the server nothing."""

    monkeypatch.setattr(JSONRPCDispatcher, "_cancel_outbound", say_nothing)
    monkeypatch.setattr("tests.ensembles.mcp.test_misbehaviour.SLACK_SECONDS", 3)
    with pytest.raises(TimeoutError):
        await check_cancelling(2, "handshake")


async def check_long_line() -> None:
    ensemble = produce_ensemble("long-line")
    await ensemble.open()
    tracemalloc.start()
    try:
        with pytest.raises(EnsembleFailed, match="more than 16,777,216 bytes"):
            await call(ensemble)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
        await ensemble.close()


async def test_a_line_that_is_too_long_ends_the_connection_without_being_held() -> None:
    await check_long_line()


@pytest.mark.slow
async def test_a_line_without_a_bound_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = stdio.StdioLineSplitter.feed

    def feed_all(self: stdio.StdioLineSplitter, chunk: bytes) -> list[bytes]:
        self._limit = sys.maxsize
        return feed(self, chunk)

    monkeypatch.setattr(stdio.StdioLineSplitter, "feed", feed_all)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await check_long_line()


async def check_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        monkeypatch.setenv(f"SECRET_{number}", f"canary-{number}")
    program = (
        "import os, sys; sys.stderr.write(' '.join(f'{k}={v}' for k, v in os.environ.items()))"
    )
    ensemble = produce_ensemble(
        command=[sys.executable, "-c", program], environment={"GIVEN": "yes"}
    )
    with pytest.raises(EnsembleFailed) as caught:
        await ensemble.open()
    await ensemble.close()
    assert "GIVEN=yes" in str(caught.value)
    assert "canary" not in str(caught.value)


async def test_a_server_sees_only_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    await check_secrets(monkeypatch)


async def test_a_server_that_sees_all_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "produce_environment", lambda given: {**os.environ, **given})
    with pytest.raises(AssertionError):
        await check_secrets(monkeypatch)


async def check_orders(rounds: int) -> None:
    """M9: eight servers, opened, called and closed from tasks of any order."""
    import random

    chance = random.Random(9)
    for _ in range(rounds):
        ensembles = [produce_ensemble() for _ in range(8)]

        async def live(ensemble: McpEnsemble) -> None:
            await asyncio.create_task(ensemble.open())
            await asyncio.sleep(chance.random() * 0.05)
            if chance.random() < 0.7:
                assert await asyncio.create_task(call(ensemble)) == "hi"

        await asyncio.gather(*map(live, ensembles))
        chance.shuffle(ensembles)
        twice = [one for one in ensembles if chance.random() < 0.3]
        await asyncio.gather(*(asyncio.create_task(one.close()) for one in [*ensembles, *twice]))
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")]


@pytest.mark.storm
async def test_servers_are_opened_and_closed_in_any_order(
    rounds: Callable[[int, int], int],
) -> None:
    await check_orders(rounds(1, 200))


async def test_a_cancelled_opening_leaves_nothing() -> None:
    ensemble = produce_ensemble("hangs-at-initialize")
    opening = asyncio.create_task(ensemble.open())
    await asyncio.sleep(0.3)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await ensemble.close()


async def test_a_closed_ensemble_stays_closed() -> None:
    ensemble = produce_ensemble()
    await ensemble.open()
    await ensemble.close()
    with pytest.raises(EnsembleFailed, match="it has been closed"):
        await call(ensemble)


async def test_without_the_package_the_error_has_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vibe_llms.base.exceptions import PackageMissing

    with pytest.raises(PackageMissing, match=r"'nonesuch'.*vibe-llms\[some\]"):
        await produce_ensemble(needs=["nonesuch"], extra="some").open()
    monkeypatch.setattr(connections, "find_spec", lambda _: None)
    with pytest.raises(PackageMissing, match=r"'mcp'.*vibe-llms\[mcp\]"):
        await produce_ensemble().open()


async def test_closing_what_is_being_opened_fails_the_opening() -> None:
    ensemble = produce_ensemble("hangs-at-initialize")
    opening = asyncio.create_task(ensemble.open())
    while ensemble._connection._server is None:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(SLACK_SECONDS):
        await ensemble.close()
        with pytest.raises(EnsembleFailed, match="it has been closed"):
            await opening


async def test_why_a_command_cannot_be_started_is_the_cause() -> None:
    ensemble = produce_ensemble(command=["/nonesuch/server"])
    with pytest.raises(EnsembleFailed) as caught:
        await ensemble.open()
    assert isinstance(caught.value.__cause__, FileNotFoundError)


async def test_a_key_that_a_server_was_given_is_in_no_words_about_it() -> None:
    program = "import os, sys; sys.exit('with ' + os.environ['API_TOKEN'])"
    ensemble = produce_ensemble(
        command=[sys.executable, "-c", program], environment={"API_TOKEN": "canary-0123456789"}
    )
    with pytest.raises(EnsembleFailed, match="it said: with ") as caught:
        await ensemble.open()
    assert "canary" not in str(caught.value)
