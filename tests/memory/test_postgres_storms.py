"""Processes that change one scope in a database and are killed: what was acknowledged holds."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.fakes.postgres import temporary_database
from vibe_llms.embedding.words import digest_of
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings

ADA = Scope.of_user("ada")
_WORKERS = 3
WORK = """
import asyncio, json, random, sys
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings

dsn, name, seed = sys.argv[1:]
ADA = Scope.of_user("ada")
chance = random.Random(seed)

def tell(*words):
    print(json.dumps(words), flush=True)

async def work():
    memory = Memory(PostgresMemory(BlockingDatabase(PostgresSettings(dsn=dsn)), "ada",
        lock_seconds=60))
    own = []
    for number in range(10**6):
        choice = chance.random()
        if choice < 0.5 or not own:
            text = f"{name} {seed} says {number}"
            tell("will", text)
            own.append((await memory.add(text, scope=ADA)).identity)
            tell("added", own[-1], text)
        elif choice < 0.6:
            await memory.add(f"Everyone says {chance.randrange(5)}", scope=ADA)
        elif choice < 0.75:
            text = f"{name} {seed} corrects {number}"
            tell("changing", own[-1], text)
            await memory.revise(own[-1], scopes=[ADA], content=text)
            tell("changed", own[-1], text)
        elif choice < 0.85:
            identity = own.pop(0)
            tell("removing", identity)
            await memory.remove(identity, scopes=[ADA])
            tell("removed", identity)
        else:
            await memory.search(f"{name} says", scopes=[ADA])

asyncio.run(work())
"""


class Told:
    """What the workers said: acknowledged texts by identity, and what a kill left open."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.removed: set[str] = set()
        self.open: dict[str, set[str | None]] = {}

    def take(self, lines: list[str]) -> None:
        """Take in the lines of one worker, until it was killed."""
        for line in lines:
            kind, *words = json.loads(line)
            match kind:
                case "added" | "changed":
                    self.texts[words[0]] = words[1]
                    self.open.pop(words[0], None)
                case "changing":
                    self.open[words[0]] = {self.texts[words[0]], words[1]}
                case "removing":
                    self.open[words[0]] = {self.texts[words[0]], None}
                case "removed":
                    self.open.pop(words[0])
                    del self.texts[words[0]]
                    self.removed.add(words[0])

    def check(self, there: dict[str, str]) -> None:
        """Compare what was acknowledged with what is there."""
        for identity, text in self.texts.items():
            assert there.get(identity) in self.open.get(identity, {text}), identity
        assert not self.removed & there.keys()


def start(dsn: str, name: str, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORK, dsn, name, str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill(worker: subprocess.Popen[str], least: int, chance: random.Random) -> list[str]:
    """Kill a worker after it said some lines; all that it said."""
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(least + chance.randrange(10))]
    worker.kill()
    lines += worker.stdout.read().splitlines()
    worker.stdout.close()
    worker.wait()
    # The last line may be cut.
    return [line for line in lines if line.rstrip().endswith("]")]


@pytest.mark.storm
async def test_what_was_acknowledged_holds_whoever_is_killed(
    rounds: Callable[[int, int], int],
) -> None:
    chance, told = random.Random(15), Told()
    with temporary_database() as place, ExitStack() as stack:
        database = BlockingDatabase(PostgresSettings(dsn=place.dsn))
        stack.callback(database.close)
        reader: Any = Memory(PostgresMemory(database, "ada", lock_seconds=60))
        workers = [start(place.dsn, f"W{number}", 0) for number in range(_WORKERS)]
        for number in range(rounds(3, 100)):
            which = chance.randrange(_WORKERS)
            told.take(await asyncio.to_thread(kill, workers[which], 5, chance))
            workers[which] = start(place.dsn, f"W{which}", number + 1)
            await reader.search("says", scopes=[ADA])
        for worker in workers:
            told.take(await asyncio.to_thread(kill, worker, 1, chance))
        # Nothing is locked any more.
        await asyncio.wait_for(reader.add("The end.", scope=ADA), 60)
        fresh = Memory(PostgresMemory(database, "ada", lock_seconds=60))
        for memory in (reader, fresh):
            entries = await memory.survey(ADA)
            told.check({entry.identity: entry.content for entry in entries})
            listed = {one.identity for one in await memory.outline(ADA)}
            assert listed == {entry.identity for entry in entries}
            facts = [digest_of(entry.content) for entry in entries]
            assert len(set(facts)) == len(facts)
        assert told.texts
        assert told.removed


@pytest.mark.storm
def test_a_large_index_that_was_stored_is_read_again(rounds: Callable[[int, int], int]) -> None:
    megabytes = rounds(1, 600)
    with temporary_database() as place, ExitStack() as stack:
        database = BlockingDatabase(PostgresSettings(dsn=place.dsn, statement_seconds=250))
        stack.callback(database.close)
        memory = PostgresMemory(database, "ada", lock_seconds=60)
        with memory.changing(ADA):
            memory.access_snapshots(ADA).write("model", {"vectors": bytes(megabytes * 10**6)})
        ((embedder, parts),) = memory.access_snapshots(ADA).read(["vectors"])
        assert (embedder, len(parts["vectors"])) == ("model", megabytes * 10**6)
