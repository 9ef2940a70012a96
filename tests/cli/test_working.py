"""The command `worker`: it works on the runs of all users, and gives them back at its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import tomli_w

from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from tests.fakes.postgres import temporary_database
from vibe_llms import open_session
from vibe_llms.runs import MessageStarted, Run, RunStatus

_SCRIPT = {
    "replies": [
        {"when": "stall", "parts": [{"text": ["first ", "word"]}, {"stall": True}]},
        {"when": ".", "parts": [{"text": "Done."}]},
    ]
}


@contextmanager
def working() -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own."""
    with subprocess.Popen(
        [*COMMAND, "worker"], stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "working on runs; Ctrl-C ends it\n"
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LONGEST_SECONDS)
    return process.returncode, errors


async def begun(run: Run[None]) -> None:
    async for _, event in run.events():
        if isinstance(event, MessageStarted):
            return


@pytest.mark.parametrize("backend", ["home", "postgres"])
def test_a_worker_ends_runs_of_others_and_gives_back_its_own(home: Path, backend: str) -> None:
    home.mkdir()
    (home / "one.toml").write_text(tomli_w.dumps(_SCRIPT))
    rows = '[providers.scripted.scripts]\none = "one.toml"\n[runs]\nlease-seconds = 600\n'
    with temporary_database() if backend == "postgres" else nullcontext() as place:
        (home / "config.toml").write_text(rows + ("" if place is None else place.table))
        asyncio.run(_use_workers())


async def _use_workers() -> None:
    async with open_session() as session, asyncio.timeout(LONGEST_SECONDS):
        session.access_runs().worker.pause()

        async def start(prompt: str) -> Run[None]:
            return await session.start(await session.begin("scripted/one"), prompt)

        with working() as first:
            turn = await (await start("Hello!")).result()
            assert turn.text == "Done."
            stalled = await start("Please stall.")
            await begun(stalled)
            assert await asyncio.to_thread(end, first) == (0, "")
        # Its lease would last for ten minutes.
        assert (await stalled.access()).status is RunStatus.QUEUED
        with working() as second:
            while (await stalled.access()).epoch < 2:
                await asyncio.sleep(0.05)
            await stalled.cancel()
            async for _ in stalled.events():
                pass
            assert (await stalled.access()).status is RunStatus.CANCELLED
            assert await asyncio.to_thread(end, second) == (0, "")
