"""What the processes of memory's storms do; `tests.faults.workers` describes a worker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes.askers import ScriptedAsker, decides, finds, names_repeats
from tests.faults import processes
from vibe_llms.base.exceptions import MemoryNotFound
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.extraction import Findings
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.ingestion import Ingestion, IngestionSettings
from vibe_llms.memory.reconciliation import Decisions
from vibe_llms.memory.repository import Repository
from vibe_llms.messages.canisters import AssistantCanister, Canister, UserCanister
from vibe_llms.messages.contents import TextualContent

Report = Callable[[str], None]


class Worker(processes.Worker):
    """A process as those of the harness, that carries out a worker of this module."""

    def __init__(self, work: Callable[..., Any], folder: Path, seed: int, *rest: Any) -> None:
        self.reported: list[str] = []
        self._reading, writing = processes._CONTEXT.Pipe(duplex=False)
        self._process = processes._CONTEXT.Process(
            target=_carry_out, args=(work.__name__, folder, writing, seed, *rest), daemon=True
        )
        self._process.start()
        writing.close()


def kill_at_random(work: Callable[..., Any], folder: Path, *, seed: int) -> Sequence[str]:
    """Let a worker begin, kill it at a random moment; returns what it had reported."""
    chance = random.Random(seed)
    worker = Worker(work, folder, seed)
    worker.wait_until_reported(chance.randint(1, 8))
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


async def add_facts(folder: Path, send: Report, seed: int, count: int) -> None:
    """Add facts; reports their identities."""
    memory = Memory(folder, durable=False)
    for number in range(count):
        send((await memory.add(f"fact {number} of worker {seed}")).identity)
    await memory.close()


async def hold_scope(folder: Path, send: Report, seed: int, scope: str) -> None:
    """Hold a scope until killed; reports when it does."""
    with MemoryFiles(folder).changing(Scope.parse(scope)):
        send("held")
        await asyncio.Event().wait()


async def add_to_scopes(folder: Path, send: Report, seed: int, names: str, count: int) -> None:
    """Add facts and turns to several scopes at once, and search them; reports their identities."""
    memory = Memory(folder, durable=False, lock_seconds=60)
    scopes = [Scope.parse(name) for name in names.split()]
    chance = random.Random(seed)

    async def work(scope: Scope) -> None:
        for number in range(count):
            role = chance.choice((Role.FACT, Role.USER))
            added = await memory.add(f"{scope} {number} of {seed}", scope=scope, role=role)
            send(added.identity)
            if number % 5 == 0:
                await memory.search(f"{number}", scopes=chance.sample(scopes, len(scopes)))

    await asyncio.gather(*map(work, scopes))
    await memory.close()


async def add_the_same(folder: Path, send: Report, seed: int, count: int) -> None:
    """Add facts that others add as well; reports their identities."""
    memory = Memory(folder, durable=False)
    for number in range(count):
        send((await memory.add(f"everybody knows fact {number}")).identity)


async def change_facts(folder: Path, send: Report, seed: int) -> None:
    """Add, revise, remove and store without end; reports each step once it is done."""
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
            send(f"add {entry.identity} {entry.content}")
        elif kind == "revise":
            send(f"begin {mine[0]}")
            entry = await memory.revise(
                mine[0], content=f"worker {seed} revised fact {number} beta"
            )
            send(f"add {entry.identity} {entry.content}")
        elif kind == "remove":
            identity = mine.pop()
            send(f"begin {identity}")
            await memory.remove(identity, replaced_by="other" if number % 2 else "")
            send(f"remove {identity}")
        else:
            await memory.close()


async def change_facts_in_place(folder: Path, send: Report, seed: int) -> None:
    """Report a fact before it is written."""

    def write(self: MemoryFiles, entry: Any) -> str:
        send(f"add {entry.identity} {entry.content}")
        return written(self, entry)

    written = MemoryFiles.write
    MemoryFiles.write = write  # type: ignore[method-assign]
    await change_facts(folder, send, seed)


ADA = Scope.of_user("ada")
TALK = "abcdefgh2345"
QUIET = IngestionSettings(summaries=False, max_entries=10_000)


async def add_facts_of_ada(folder: Path, send: Report, seed: int, count: int) -> None:
    """Add facts where a consolidation is going on; reports their identities."""
    memory = Memory(folder, durable=False)
    for number in range(count):
        entry = await memory.add(f"the user owns thing {number} of worker {seed}", scope=ADA)
        send(entry.identity)


def turn_of(number: int) -> list[Canister]:
    """A turn in which the user says something; always the same for a number."""
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
    contents = (TextualContent(f"I own the house number {number} by the river."),)
    answer = (TextualContent(f"So you own house {number}."),)
    return [
        UserCanister(contents=contents, identity=f"said-{number}", created=created),
        AssistantCanister(contents=answer, identity=f"answer-{number}", created=created),
    ]


def fact_of(number: int) -> str:
    """What is to be remembered of it."""
    return f"The user owns the house number {number}"


def producing_asker(send: Report = lambda _: None) -> ScriptedAsker:
    """Finds the fact of each turn; every second new one takes the place of the oldest shown."""

    def find(text: str) -> Findings:
        number = int(text.rpartition("number ")[2].split()[0])
        send(f"asked {number}")
        return finds(fact_of(number))

    def decide(text: str) -> Decisions:
        notes, _, facts = text.partition("New facts:")
        count = notes.count("\n") - 2
        number = int(facts.split()[-1])
        first = ("DELETE", "", count + 1) if number % 2 else ("NONE",)
        rest = ((note, "NONE") for note in range(2, count + 1))
        return decides((1, *first), *rest, (count + 1, "ADD"))

    return ScriptedAsker(findings=[find], decisions=[decide])


async def take_in_turns(folder: Path, send: Report, seed: int) -> None:
    """Take turns in without end; reports each when it begins, and when it is done."""
    memory = Memory(folder, durable=False)
    ingestion = Ingestion(memory, producing_asker(send), QUIET, scope=ADA)
    number = seed * 1000
    while True:
        number += 1
        send(f"begin {number}")
        report = await ingestion.take_in(turn_of(number), conversation=TALK)
        assert not report.failures, report.failures
        send(f"done {number}")


async def take_in_the_same(folder: Path, send: Report, seed: int, count: int) -> None:
    """Take in turns of which others take in the same, each in a conversation of its own."""
    memory = Memory(folder, durable=False)
    alone = msgspec.structs.replace(QUIET, neighbours=0)
    ingestion = Ingestion(memory, producing_asker(), alone, scope=ADA)
    for number in range(count):
        report = await ingestion.take_in(turn_of(number), conversation=f"conversation{seed}")
        assert not report.failures, report.failures
        send(f"done {number}")


async def take_in_turns_marked_early(folder: Path, send: Report, seed: int) -> None:
    """The same, with turns marked as done before their facts are stored."""

    async def keep(self: Ingestion, *arguments: Any, mark: str = "") -> Entry | None:
        return await kept(self, *arguments, mark="")

    async def hear(self: Ingestion, draft: Any, *arguments: Any) -> tuple[Entry | None, str]:
        turn, own = await heard(self, draft, *arguments)
        new = turn is not None and turn in draft.turns
        if turn is not None and new:
            # As if it still had its mark, for this time only.
            turn = msgspec.structs.replace(turn, further={"ingestion": "pending"})
        return turn, own

    heard = Ingestion._hear
    kept = Ingestion._keep
    Ingestion._keep = keep  # type: ignore[method-assign, assignment]
    Ingestion._hear = hear  # type: ignore[method-assign, assignment]
    await take_in_turns(folder, send, seed)


async def take_in_turns_reported_early(folder: Path, send: Report, seed: int) -> None:
    """The same, with each fact reported as stored before it is."""

    async def learn(self: Ingestion, draft: Any, turn: Entry, said: str, recalled: Any) -> bool:
        send(f"done {turn.turn.rpartition('-')[2]}")
        return await learned(self, draft, turn, said, recalled)

    learned = Ingestion._learn
    Ingestion._learn = learn  # type: ignore[method-assign]
    await take_in_turns(folder, send, seed)


async def commit_facts(folder: Path, send: Report, seed: int, count: int = 0) -> None:
    """Add facts, and commit after each; reports each before it is committed."""
    memory = Memory(folder, durable=False)
    repository = Repository(folder)
    number = 0
    while not count or number < count:
        number += 1
        entry = await memory.add(f"worker {seed} has version {number}")
        if number % 3 == 0:
            await memory.remove(entry.identity)
        send(entry.identity)
        repository.commit()


async def add_repeats(folder: Path, send: Report, seed: int, count: int) -> None:
    """Add facts in two wordings each, edit some and remove others; reports what shall be known."""
    memory = Memory(folder, durable=False)
    for number in range(count):
        name = f"box{seed}x{number}"
        short = await memory.add(f"{name} stands in the cellar.")
        send(f"say {short.identity} {short.content}")
        longer = await memory.add(f"{name} stands in the cellar behind the stairs.")
        send(f"say {longer.identity} {longer.content}")
        if number % 3 == 0:
            with suppress(MemoryNotFound):
                # While it is changed it may say either.
                send(f"unsay {short.identity}")
                changed = await memory.revise(short.identity, content=f"{name} went to the attic.")
                send(f"say {short.identity} {changed.content}")
                continue
            send(f"say {short.identity} {short.content}")
        elif number % 3 == 1:
            gone = await memory.add(f"{name} was painted by Ilse.")
            send(f"say {gone.identity} {gone.content}")
            send(f"unsay {gone.identity}")
            await memory.remove(gone.identity)


async def deduplicate(folder: Path, send: Report, seed: int) -> None:
    """Merge what says the same; reports each step on the disk before it is made."""

    def rewrite(self: MemoryFiles, entry: Any, place: str) -> None:
        send("rewrite")
        rewritten(self, entry, place)
        send("rewritten")

    def delete(self: MemoryFiles, entry: Any, place: str, *, replaced_by: str = "") -> None:
        send("delete")
        erased(self, entry, place, replaced_by=replaced_by)
        send("deleted")

    rewritten, erased = MemoryFiles.rewrite, MemoryFiles.delete
    MemoryFiles.rewrite = rewrite  # type: ignore[method-assign]
    MemoryFiles.delete = delete  # type: ignore[method-assign]
    asker = ScriptedAsker(repeats=[names_repeats])
    await Deduplication(Memory(folder, durable=False), asker=asker).run(GLOBAL)
