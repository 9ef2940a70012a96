"""M2: however a program ends, no server lives on, nor what it has started, nor a zombie."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.ensembles.mcp.servers import FAKE, opened
from tests.faults.family import Family
from tests.faults.leaks import nothing_left
from tests.faults.mcp_host import WAYS
from vibe_llms.ensembles.mcp import guardian, stdio

HOST = (sys.executable, "-m", "tests.faults.mcp_host")


def end(way: str, *options: str) -> Family:
    """Run a program that ends in this way, to its end."""
    family = Family()
    ended = subprocess.run(
        [*HOST, way, family.name, *options], capture_output=True, timeout=120, check=False
    )
    codes = {"return": 0, "SIGTERM": -15, "SIGKILL": -9}
    assert ended.returncode == codes.get(way, 3), ended.stderr.decode()
    return family


@pytest.mark.storm
@pytest.mark.parametrize("way", WAYS)
def test_nothing_lives_on_however_a_program_ends(
    way: str, rounds: Callable[[int, int], int]
) -> None:
    for _ in range(rounds(1, 40)):
        family = end(way)
        family.wait_until_gone(5)
        assert not family.members()


def test_what_lives_on_without_a_guardian_would_be_seen() -> None:
    family = end("SIGKILL", "unguarded")
    try:
        with pytest.raises(AssertionError, match="these live on"):
            family.wait_until_gone(0.5)
    finally:
        for process in family.members():
            subprocess.run(["kill", "-9", str(process)], check=False)


@pytest.mark.storm
async def test_nothing_is_left_of_many_connections(
    monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr(stdio, "GRACE_SECONDS", 0.3)
    family = Family()
    async with opened(command=FAKE):
        # Whatever is opened only once in a process.
        pass
    async with nothing_left():
        for _ in range(rounds(3, 24)):
            command = [*FAKE, "grandchild"]
            async with opened(command=command, environment=family.environment) as ensemble:
                assert (await ensemble.invoke("echo", '{"text": "hi"}')).text == "hi"
                assert len(family.members()) == 2
            assert not family.members(zombies=True)


async def test_a_guardian_leaves_a_group_alone_that_has_ended_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import asyncio

    monkeypatch.setattr(stdio, "_WATCH_SECONDS", 0.01)
    async with opened(command=[*FAKE, "dies-at-call"]) as ensemble:
        server = ensemble._connection._server
        assert server is not None
        assert server._guardian._process is not None
        with pytest.raises(Exception, match="Connection closed"):
            await ensemble.invoke("echo", '{"text": "hi"}')
        async with asyncio.timeout(20):
            while server._guardian._process is not None:
                await asyncio.sleep(0.01)


async def test_without_a_shell_a_server_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guardian, "_SHELL", "/nonesuch/sh")
    async with opened(command=FAKE) as ensemble:
        assert (await ensemble.invoke("echo", '{"text": "hi"}')).text == "hi"
    assert "nobody watches over the process group" in caplog.text


async def test_a_guardian_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "_PROGRAM", "while :; do sleep 1; done")
    monkeypatch.setattr(guardian, "_RELEASE_SECONDS", 0.1)
    async with nothing_left(), opened(command=FAKE) as ensemble:
        assert (await ensemble.invoke("echo", '{"text": "hi"}')).text == "hi"
