"""Ingestion among others and across crashes: nothing of theirs is undone, nothing said is lost."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.askers import ScriptedAsker, decides, finds
from tests.memory import workers
from tests.memory.workers import (
    ADA,
    QUIET,
    TALK,
    Worker,
    fact_of,
    kill_at_random,
    producing_asker,
    turn_of,
)
from vibe_llms.base.exceptions import MemoryNotFound
from vibe_llms.memory import ingestion as ingestion_module
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.ingestion import Ingestion
from vibe_llms.memory.reconciliation import Applied, Decisions, ReconciliationPlan, apply
from vibe_llms.messages.canisters import UserCanister

PLACE = Scope.of_conversation(TALK)


def moved() -> list[UserCanister]:
    return [UserCanister.from_text("I moved to Porto.")]


def delete_all_notes(text: str) -> Decisions:
    """The answer that every note is untrue because of the one new fact."""
    count = text.partition("New facts:")[0].count("\n") - 2
    notes = ((number, "DELETE", "", count + 1) for number in range(1, count + 1))
    return decides(*notes, (count + 1, "ADD"))


async def consolidate_while_others_add(folder: Path, count: int) -> int:
    """How many of the facts are there that 4 processes added while a model was asked."""
    memory = Memory(folder, durable=False)
    for number in range(5):
        await memory.add(f"The user lived in house {number}", scope=ADA)

    async def decide(text: str) -> Decisions:
        together = [Worker(workers.add_facts_of_ada, folder, seed, count) for seed in range(4)]
        reported = [await asyncio.to_thread(worker.finish) for worker in together]
        added.extend(identity for one in reported for identity in one)
        return delete_all_notes(text)

    added: list[str] = []
    asker = ScriptedAsker(findings=[finds("The user moved to Porto")], decisions=[decide])
    report = await Ingestion(memory, asker, QUIET, scope=ADA).take_in(moved(), conversation=TALK)
    assert len(report.removed) == 5
    assert len(added) == 4 * count
    assert report.failures == ()
    live = {entry.identity: entry.content for entry in await Memory(folder).survey(ADA)}
    assert "The user moved to Porto" in live.values()
    return sum(identity in live for identity in added)


@pytest.mark.storm
async def test_four_processes_add_during_a_consolidation_and_lose_nothing(tmp_path: Path) -> None:
    assert await consolidate_while_others_add(tmp_path, 100) == 400


async def report_the_same(folder: Path, count: int) -> int:
    """How many facts there are when 4 processes remember the same at once."""
    together = [Worker(workers.take_in_the_same, folder, seed, count) for seed in range(4)]
    for worker in together:
        reported = await asyncio.to_thread(worker.finish)
        assert reported == [f"done {number}" for number in range(count)]
    return len(await Memory(folder).survey(ADA, role=Role.FACT))


async def test_what_four_processes_remember_is_stored_once(tmp_path: Path) -> None:
    assert await report_the_same(tmp_path, 20) == 20
    assert len(await Memory(tmp_path).survey(role=Role.USER)) == 80


def _store_the_snapshot(held: HeldScope, wanted: ReconciliationPlan) -> Applied:
    """As a consolidation does that writes back the list which it began with, changed."""
    applied = apply(held, wanted)
    seen = {one.identity for step in wanted.steps for one in step.instead_of}
    new = {entry.identity for entry in applied.added}
    for known in held.entries:
        entry = held.read(known)
        if known.identity not in seen | new and entry is not None:
            held.delete(entry)
    return applied


async def test_a_snapshot_that_is_written_back_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion_module, "apply", _store_the_snapshot)
    assert await consolidate_while_others_add(tmp_path, 3) < 12


async def meddle_while_asked(folder: Path, seed: int) -> None:
    """Others change what they like while a model is asked; all of it has to be kept."""
    chance = random.Random(seed)
    memory, other = Memory(folder, durable=False), Memory(folder, durable=False)
    mine = [
        (await memory.add(f"The user lived in house {number}", scope=ADA)).identity
        for number in range(6)
    ]
    expected: dict[str, str | None] = {}

    async def decide(text: str) -> Decisions:
        for number in range(chance.randint(1, 8)):
            left = [one for one in mine if one not in expected]
            kind = chance.choice(("add", "revise", "remove", "forget"))
            if kind == "add" or not left:
                entry = await other.add(f"The user built a boat {number}", scope=ADA)
                expected[entry.identity] = entry.content
                continue
            identity = chance.choice(left)
            expected[identity] = None
            if kind == "revise":
                entry = await other.revise(identity, content=f"The user rented a flat {number}")
                expected[identity] = entry.content
            elif kind == "remove":
                await other.remove(identity)
            else:
                await other.forget((await other.access(identity)).content)
        return delete_all_notes(text)

    asker = ScriptedAsker(findings=[finds("The user moved to Porto")], decisions=[decide])
    report = await Ingestion(memory, asker, QUIET, scope=ADA).take_in(moved(), conversation=TALK)
    assert report.failures == ()
    for identity, content in expected.items():
        if content is None:
            with pytest.raises(MemoryNotFound):
                await other.access(identity)
        else:
            assert (await other.access(identity)).content == content, "a change was undone"
    contents = [entry.content for entry in await other.survey(ADA)]
    assert contents.count("The user moved to Porto") == 1


@pytest.mark.storm
async def test_what_others_do_while_a_model_is_asked_is_kept(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    for seed in range(rounds(15, 300)):
        await meddle_while_asked(tmp_path / str(seed), seed)


def _apply_blindly(held: HeldScope, wanted: ReconciliationPlan) -> Applied:
    """Carries out what was decided about a snapshot, whatever has become of it."""
    for step in wanted.steps:
        held.add(step.entry)
        for seen in step.instead_of:
            held.delete(seen)
    return Applied()


async def test_changes_that_are_undone_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion_module, "apply", _apply_blindly)

    async def meddle() -> None:
        for seed in range(20):
            await meddle_while_asked(tmp_path / str(seed), seed)

    with pytest.raises((AssertionError, MemoryNotFound)):
        await meddle()


async def go_on_after_a_kill(folder: Path, reported: Sequence[str]) -> str:
    """What is wrong after a kill, or once the turns have been taken in again; empty if nothing."""
    memory = Memory(folder, durable=False)
    numbers = {kind: {int(one.split()[1]) for one in reported if one.startswith(kind)} for kind in (
        "begin", "done"
    )}  # fmt: skip
    if problem := await _look(memory, numbers["done"]):
        return f"after the kill: {problem}"
    ingestion = Ingestion(memory, producing_asker(), QUIET, scope=ADA)
    for number in sorted(numbers["begin"]):
        report = await ingestion.take_in(turn_of(number), conversation=TALK)
        if report.failures:
            return f"taking in again: {report.failures}"
    if problem := await _look(memory, numbers["begin"]):
        return f"after going on: {problem}"
    left = await ingestion.resume(conversation=TALK)
    return "something was left to go on with" if left.changed or left.failures else ""


async def _look(memory: Memory, numbers: set[int]) -> str:
    """What is wrong with turns that were taken in."""
    if any(one.damaged for one in await memory.status()):
        return "a file is damaged"
    texts = Counter(
        re.split(r"---\n\n", path.read_text(), maxsplit=1)[1].strip()
        for path in memory.folder.rglob("facts/*.md")
    )
    turns = {entry.turn: entry for entry in await memory.survey(PLACE, role=Role.USER)}
    for number in numbers:
        if texts[fact_of(number)] != 1:
            return f"fact {number} is there {texts[fact_of(number)]} times"
        turn = turns.get(f"said-{number}")
        if turn is None or turn.further:
            return f"turn {number} is {'lost' if turn is None else 'not finished'}"
    return ""


def kill_and_go_on(work: Callable[..., Any], folder: Path, seed: int) -> str:
    reported = kill_at_random(work, folder, seed=seed)
    return asyncio.run(go_on_after_a_kill(folder, reported))


@pytest.mark.storm
def test_ingested_turns_survive_a_kill_and_the_rest_continues(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    for seed in range(rounds(12, 300)):
        assert kill_and_go_on(workers.take_in_turns, tmp_path / str(seed % 3), seed) == "", seed


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [workers.take_in_turns_marked_early, workers.take_in_turns_reported_early]
)
def test_a_turn_that_counts_too_early_would_be_detected(
    tmp_path: Path, bug: Callable[..., Any]
) -> None:
    assert any(kill_and_go_on(bug, tmp_path / str(seed), seed) for seed in range(60))
