"""What a turn of a long conversation costs: no more files are read than for one of a short one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.fakes.askers import ScriptedAsker, finds, sums_up
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.ingestion import Ingestion, IngestionSettings
from vibe_llms.memory.recall import RecallQuery, RecallSettings, recall
from vibe_llms.memory.records import IndexRecord
from vibe_llms.memory.retrieval import RetrievalSettings
from vibe_llms.messages.canisters import AssistantCanister, UserCanister

ADA = Scope.of_user("ada")
TALK = "abcdefgh2345"
PLACE = Scope.of_conversation(TALK)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The places that are read during the block."""
    read: list[str] = []
    reading = MemoryFiles.read

    def note(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        read.append(place)
        return reading(self, scope, place)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFiles, "read", note)
        yield read


def converse(folder: Path, turns: int) -> None:
    """A conversation of so many turns, as its files."""
    files = MemoryFiles(folder, durable=False)
    for number in range(turns * 2):
        role = Role.ASSISTANT if number % 2 else Role.USER
        files.write(
            Entry(
                content=f"This is what was said as number {number}.",
                identity=f"turn-{number}",
                role=role,
                scope=PLACE,
                created=BEGIN + timedelta(seconds=number),
                conversation=TALK,
            )
        )


async def take(memory: Memory, asker: ScriptedAsker, number: int, most: int) -> None:
    settings = IngestionSettings(max_entries=most)
    said = UserCanister.from_text(f"I own a boat that has {number} sails.")
    answered = AssistantCanister.from_text(f"I see, {number} of them.")
    ingestion = Ingestion(memory, asker, settings, scope=ADA)
    report = await ingestion.take_in([said, answered], conversation=TALK)
    assert not report.failures
    assert len(report.turns) == 2


async def reads_of_turns(
    folder: Path, length: int, monkeypatch: pytest.MonkeyPatch, *, most: int = 100_000
) -> Sequence[int]:
    """How many files each of some turns reads, at the end of a conversation so long."""
    converse(folder, length)
    asker = ScriptedAsker(findings=[finds()], summary=[sums_up("They spoke of boats.")])
    memory = Memory(folder, durable=False)
    counts: list[int] = []
    # The first ones find what no index knows yet, and work off a backlog.
    for number in range(length, length + 12):
        with counted_reads(monkeypatch) as read:
            await take(memory, asker, number, most)
        counts.append(len(read))
    await memory.close()
    return counts[6:]


async def test_a_turn_reads_no_more_files_in_a_long_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = await reads_of_turns(tmp_path / "short", 10, monkeypatch)
    long = await reads_of_turns(tmp_path / "long", 1000, monkeypatch)
    # What is new, a summary and what it is of: here of up to a part, of about 70 turns.
    assert max(short) <= 25
    assert max(long) <= max(short) + 5, (short, long)


async def test_turns_that_are_dropped_for_their_age_cost_their_own_reading_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = await reads_of_turns(tmp_path, 300, monkeypatch, most=500)
    assert max(counts) <= 30, counts


async def test_a_process_that_begins_reads_what_changed_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reads_of_turns(tmp_path, 300, monkeypatch)
    asker = ScriptedAsker(findings=[finds()], summary=[sums_up("They spoke of boats.")])
    memory = Memory(tmp_path, durable=False)
    with counted_reads(monkeypatch) as read:
        await take(memory, asker, 9999, 100_000)
    assert len(read) <= 10, read


async def test_of_many_summaries_recall_reads_the_one_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles(tmp_path, durable=False)
    for number in range(200):
        level = "L3" if number == 57 else "L1"
        files.write(
            Entry(
                content=f"They spoke of boats, part {number}.",
                identity=f"sum-{number}",
                role=Role.SUMMARY,
                scope=PLACE,
                created=BEGIN + timedelta(hours=number),
                category=level,
                conversation=TALK,
            )
        )
    memory = Memory(tmp_path, durable=False)
    await memory.refresh(PLACE)

    async def load(_: object) -> dict[str, bytes]:
        return {}

    asked = RecallQuery([UserCanister.from_text("What of the zebra?")], TALK, (), load)
    with counted_reads(monkeypatch) as read:
        found = await recall(
            memory, asked, user=ADA, retrieval=RetrievalSettings(), settings=RecallSettings()
        )
    assert [one.identity for one in found] == ["sum-57"]
    assert [place.partition("__")[2] for place in read] == ["sum-57.md"]
    # If one is removed in between, the next best is left.
    reading = MemoryFiles.read

    def lose(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        if place.endswith("sum-57.md"):
            raise FileNotFoundError(place)
        return reading(self, scope, place)

    monkeypatch.setattr(MemoryFiles, "read", lose)
    (entry,) = await recall(
        memory, asked, user=ADA, retrieval=RetrievalSettings(), settings=RecallSettings()
    )
    assert entry.identity == "sum-199"


async def test_a_summary_is_of_the_turns_that_are_left_when_some_are_removed_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse(tmp_path, 30)
    asker = ScriptedAsker(findings=[finds()], summary=[sums_up("They spoke of boats.")])
    memory = Memory(tmp_path, durable=False)
    await memory.refresh(PLACE)
    reading = MemoryFiles.read

    def lose(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        if place.endswith("__turn-7.md"):
            raise FileNotFoundError(place)
        return reading(self, scope, place)

    monkeypatch.setattr(MemoryFiles, "read", lose)
    await take(memory, asker, 1, 100)
    (question,) = asker.questions("summary")
    assert "as number 6." in question
    assert "as number 7." not in question
    assert "as number 8." in question


@pytest.mark.slow
async def test_a_turn_that_reads_the_whole_conversation_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outline(self: Memory, scope: Scope) -> Sequence[IndexRecord]:
        await self.survey(scope)
        return await asked(self, scope)

    asked = Memory.outline
    monkeypatch.setattr(Memory, "outline", outline)
    assert min(await reads_of_turns(tmp_path, 200, monkeypatch)) > 200
