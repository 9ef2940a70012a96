"""What the processes of memory's storms do; a worker is told of in `tests.faults.workers`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults import processes
from vibe_llms.memory.core import Memory
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.repository import Repository

Tell = Callable[[str], None]


class Worker(processes.Worker):
    """A process as those of the harness, that carries out a worker of this module."""

    def __init__(self, work: Callable[..., Any], folder: Path, seed: int, *rest: Any) -> None:
        self.told: list[str] = []
        self._reading, writing = processes._CONTEXT.Pipe(duplex=False)
        self._process = processes._CONTEXT.Process(
            target=_carry_out, args=(work.__name__, folder, writing, seed, *rest), daemon=True
        )
        self._process.start()
        writing.close()


def kill_at_random(work: Callable[..., Any], folder: Path, *, seed: int) -> Sequence[str]:
    """Let a worker begin, kill it at a random moment; gives what it had told."""
    chance = random.Random(seed)
    worker = Worker(work, folder, seed)
    worker.wait_until_told(chance.randint(1, 8))
    # Spinning instead of sleeping, for moments between two system calls.
    for _ in range(chance.randint(0, 20_000)):
        pass
    return worker.kill()


def _carry_out(name: str, folder: Path, writing: Connection, seed: int, *rest: Any) -> None:
    work: Callable[..., Awaitable[None]] = globals()[name]
    run(work(folder, lambda text: writing.send_bytes(text.encode()), seed, *rest))


def run(work: Awaitable[None]) -> None:
    """Run a worker to its end."""

    async def wait() -> None:
        await work

    asyncio.run(wait())


async def add_facts(folder: Path, tell: Tell, seed: int, count: int) -> None:
    """Add facts; tells their identities."""
    memory = Memory(folder, durable=False)
    for number in range(count):
        tell((await memory.add(f"fact {number} of worker {seed}")).identity)
    await memory.close()


async def add_the_same(folder: Path, tell: Tell, seed: int, count: int) -> None:
    """Add facts that others add as well; tells their identities."""
    memory = Memory(folder, durable=False)
    for number in range(count):
        tell((await memory.add(f"everybody knows fact {number}")).identity)


async def change_facts(folder: Path, tell: Tell, seed: int) -> None:
    """Add, revise, remove and store without end; tells each step once it is done."""
    memory = Memory(folder, durable=False)
    chance = random.Random(seed)
    mine: list[str] = []
    number = 0
    while True:
        number += 1
        kind = chance.choice(("add", "add", "revise", "remove", "close"))
        if kind == "add" or not mine:
            entry = await memory.add(f"worker {seed} knows fact {number} alpha")
            mine.append(entry.identity)
            tell(f"add {entry.identity} {entry.content}")
        elif kind == "revise":
            tell(f"begin {mine[0]}")
            entry = await memory.revise(
                mine[0], content=f"worker {seed} revised fact {number} beta"
            )
            tell(f"add {entry.identity} {entry.content}")
        elif kind == "remove":
            identity = mine.pop()
            tell(f"begin {identity}")
            await memory.remove(identity, replaced_by="other" if number % 2 else "")
            tell(f"remove {identity}")
        else:
            await memory.close()


async def change_facts_in_place(folder: Path, tell: Tell, seed: int) -> None:
    """Tell of a fact before it is written."""

    def write(self: MemoryFiles, entry: Any) -> str:
        tell(f"add {entry.identity} {entry.content}")
        return written(self, entry)

    written = MemoryFiles.write
    MemoryFiles.write = write  # type: ignore[method-assign]
    await change_facts(folder, tell, seed)


async def commit_facts(folder: Path, tell: Tell, seed: int, count: int = 0) -> None:
    """Add facts, and commit after each; tells of each before it is committed."""
    memory = Memory(folder, durable=False)
    repository = Repository(folder)
    number = 0
    while not count or number < count:
        number += 1
        entry = await memory.add(f"worker {seed} has version {number}")
        if number % 3 == 0:
            await memory.remove(entry.identity)
        tell(entry.identity)
        repository.commit()
