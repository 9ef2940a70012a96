"""M2: however a program ends, no server lives on, nor what it has started, nor a zombie."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ensembles.mcp.servers import FAKE, opened
from tests.faults.family import Family
from tests.faults.leaks import nothing_left
from tests.faults.mcp_host import WAYS
from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.ensembles.mcp import stdio
from vibe_llms.ensembles.mcp.guardian import list_descendants

HOST = (sys.executable, "-m", "tests.faults.mcp_host")


def end(way: str, behaviour: str, *options: str) -> Family:
    """Run a program that ends in this way, to its end."""
    family = Family()
    ended = subprocess.run(
        [*HOST, way, family.name, behaviour, *options],
        capture_output=True,
        timeout=120,
        check=False,
    )
    codes = {"return": 0, "SIGTERM": -15, "SIGKILL": -9}
    assert ended.returncode == codes.get(way, 3), ended.stderr.decode()
    return family


@pytest.mark.storm
@pytest.mark.parametrize(
    "behaviour", ["daemon", pytest.param("grandchild", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("way", WAYS)
def test_no_process_survives_any_end_of_the_program(
    way: str, behaviour: str, rounds: Callable[[int, int], int]
) -> None:
    for _ in range(rounds(1, 40)):
        family = end(way, behaviour)
        family.wait_until_gone(10)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["return", "SIGKILL"])
def test_what_lives_on_without_a_guardian_would_be_seen(way: str) -> None:
    family = end(way, "daemon", "unguarded")
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
                # The guardian's two processes, the server, and what it has started.
                assert len(family.members()) == 4
            assert not family.members(zombies=True)


async def test_a_server_that_ends_by_itself_leaves_nothing_either() -> None:
    family = Family()
    command = [*FAKE, "daemon"]
    async with opened(command=command, environment=family.environment) as ensemble:
        with pytest.raises(EnsembleFailed, match="its process ended with status 3"):
            await ensemble.invoke("echo", '{"text": "die"}')
        await asyncio.to_thread(family.wait_until_gone)


@pytest.mark.parametrize("killed", [0, 1], ids=["outer", "inner"])
async def test_nothing_lives_on_when_a_guardian_is_killed(killed: int) -> None:
    family = Family()
    command = [*FAKE, "daemon"]
    async with opened(command=command, environment=family.environment) as ensemble:
        server = ensemble._connection._server
        assert server is not None
        outer = server._process.pid
        # A process comes before its children.
        inner, _ = list_descendants(outer)[0]
        os.kill((outer, inner)[killed], signal.SIGKILL)
        await asyncio.to_thread(family.wait_until_gone)


@pytest.mark.parametrize("stopped", [[0], [1], [0, 1]], ids=["outer", "inner", "both"])
async def test_nothing_lives_on_when_a_guardian_is_stopped(stopped: list[int]) -> None:
    family = Family()
    command = [*FAKE, "daemon"]
    async with opened(command=command, environment=family.environment) as ensemble:
        server = ensemble._connection._server
        assert server is not None
        outer = server._process.pid
        inner, _ = list_descendants(outer)[0]
        for one in stopped:
            os.kill((outer, inner)[one], signal.SIGSTOP)
    try:
        await asyncio.to_thread(family.wait_until_gone, 5)
    finally:
        for process in family.members():
            os.kill(process, signal.SIGKILL)


async def test_a_server_that_sees_its_end_may_take_its_time(tmp_path: Path) -> None:
    written = tmp_path / "written"
    code = (
        "import runpy, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[2], 'w'), sys.exit()))\n"
        "sys.argv[1:2] = ['ignores-eof']\n"
        f"runpy.run_path({FAKE[1]!r}, run_name='__main__')"
    )
    async with opened(command=[FAKE[0], "-c", code, "", str(written)]) as ensemble:
        assert (await ensemble.invoke("echo", '{"text": "hi"}')).text == "hi"
    assert written.exists()


async def test_a_server_gets_the_environment_of_its_row_and_usual_signals() -> None:
    # Python in the server would add a locale of its own, so it is asked by another program.
    shell = "env >&2; grep SigIgn /proc/self/status >&2; ls /proc/self/fd >&2; exit 7"
    with pytest.raises(EnsembleFailed) as failed:
        async with opened(command=["/bin/sh", "-c", shell], environment={"ROW": "1"}):
            pytest.fail("it opened")
    said = str(failed.value)
    assert "ended with status 7" in said
    assert "ROW=1" in said
    assert "LC_CTYPE" not in said
    ignored, *descriptors = said.partition("SigIgn:")[2].split()
    assert not int(ignored, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    # The last is the folder that is being listed.
    assert descriptors == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"command": ["/nonesuch/server"]}, "'/nonesuch/server' cannot be started: No such file"),
        ({"command": ["/etc/passwd"]}, "'/etc/passwd' cannot be started: Permission denied"),
        ({"command": [*FAKE], "folder": "/nonesuch"}, "cannot be started: No such file"),
    ],
)
async def test_a_command_that_cannot_be_started_is_reported(
    row: dict[str, Any], words: str
) -> None:
    async with nothing_left():
        with pytest.raises(EnsembleFailed, match=words):
            async with opened(**row):
                pytest.fail("it opened")
