"""Processes that work on an archive, and the parent that kills them at random moments."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults import workers

#: A server process that has imported everything forks the workers, so that each costs little.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.faults.workers"])
_PATIENCE_SECONDS = 120


class Worker:
    """One process that carries out a worker function; `reported` is what it has reported so far."""

    def __init__(self, work: Callable[..., None], folder: Path, seed: int, *rest: Any) -> None:
        self.reported: list[str] = []
        self._reading, writing = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_carry_out, args=(work.__name__, folder, writing, seed, *rest), daemon=True
        )
        self._process.start()
        # From here on only the worker holds the other end, so its death is seen.
        writing.close()

    def wait_until_reported(self, count: int) -> None:
        """Wait until so many lines have come."""
        while len(self.reported) < count:
            assert self._reading.poll(_PATIENCE_SECONDS), "the worker reports nothing more"
            self.reported.append(self._reading.recv_bytes().decode())

    def kill(self) -> Sequence[str]:
        """SIGKILL; returns all that it had reported."""
        self._process.kill()
        return self.finish()

    def finish(self) -> Sequence[str]:
        """Wait for its end; returns all that it had reported."""
        try:
            while True:
                assert self._reading.poll(_PATIENCE_SECONDS), "the worker does not end"
                self.reported.append(self._reading.recv_bytes().decode())
        except EOFError:
            pass
        self._process.join(_PATIENCE_SECONDS)
        self.code = self._process.exitcode
        self._process.close()
        self._reading.close()
        return self.reported


def kill_at_random(
    work: Callable[..., None], folder: Path, *, seed: int, steps: int = 4, seconds: float = 0.004
) -> Sequence[str]:
    """Let a worker begin, kill it at a random moment; returns what it had reported."""
    chance = random.Random(seed)
    worker = Worker(work, folder, seed)
    worker.wait_until_reported(chance.randint(0, steps))
    time.sleep(chance.random() * seconds)
    return worker.kill()


def work_together(
    work: Callable[..., None], folder: Path, count: int, *rest: Any
) -> Sequence[Sequence[str]]:
    """So many processes at once, to their end; returns what each has reported."""
    together = [Worker(work, folder, seed, *rest) for seed in range(count)]
    reported = [worker.finish() for worker in together]
    assert {worker.code for worker in together} == {0}
    return reported


def _carry_out(name: str, folder: Path, writing: Connection, seed: int, *rest: Any) -> None:
    getattr(workers, name)(folder, lambda text: writing.send_bytes(text.encode()), seed, *rest)
