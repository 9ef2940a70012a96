"""Deduplication merges repeats when it is due, and loses no concurrent change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.askers import ScriptedAsker, names_repeats, says_all
from tests.fakes.embedders import WordsEmbedder
from tests.memory import workers
from tests.memory.test_similarity import read_pairs
from tests.memory.workers import Worker, kill_at_random
from vibe_llms.base.exceptions import ArchiveLocked, MemoryInvalid, ProviderError
from vibe_llms.base.locks import locked
from vibe_llms.memory import deduplication as deduplication_module
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import (
    Deduplication,
    DeduplicationReport,
    DeduplicationSettings,
    Repeats,
)
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles

NOW = datetime(2026, 5, 4, tzinfo=UTC)
CELLAR, LONGER = "The box stands in the cellar.", "The box stands in the cellar behind the stairs."


def deduplication(
    memory: Memory, settings: DeduplicationSettings = DeduplicationSettings(), **rest: Any
) -> Deduplication:
    """One with a model to which a note says all that it begins with."""
    asker = ScriptedAsker(repeats=[names_repeats])
    return Deduplication(memory, settings, asker=asker, **rest)


async def contents(memory: Memory, scope: Scope = GLOBAL) -> list[str]:
    return sorted(entry.content for entry in await memory.survey(scope))


def path_of(memory: Memory, entry: Entry) -> Path:
    (path,) = memory.folder.rglob(f"*__{entry.identity}.md")
    return path


async def test_repeats_become_one_and_the_rest_stays(memory: Memory) -> None:
    short = await memory.add(CELLAR, topics=("home",), created=NOW)
    longer = await memory.add(LONGER, topics=("boxes",), created=NOW - timedelta(days=1))
    other = await memory.add("Ada likes tea.")
    said = await memory.add(CELLAR, role=Role.USER)
    runs = deduplication(memory)
    survey = await runs.survey(GLOBAL)
    assert await memory.survey() == sorted(
        [short, longer, other, said], key=lambda one: (one.created, one.identity)
    )
    report = await runs.run(GLOBAL)
    assert report == survey
    (group,) = report.groups
    assert group.kept == short
    assert group.deleted == [longer]
    assert group.merged.content == LONGER
    assert group.merged.topics == ("home", "boxes")
    assert await memory.access(short.identity) == group.merged
    assert group.merged.merged_from == (longer.identity,)
    assert await contents(memory) == sorted([LONGER, other.content, said.content])
    assert f"replaced_by: {short.identity}" in path_of(memory, longer).read_text()
    assert "/deleted/" in str(path_of(memory, longer))
    assert [one.entry.identity for one in await memory.search("stairs")] == [short.identity]
    assert await runs.run(GLOBAL) == DeduplicationReport()


async def test_the_more_important_stays_and_keeps_what_others_wrote(memory: Memory) -> None:
    short = await memory.add(CELLAR, importance=0.9, created=NOW - timedelta(days=9))
    path = path_of(memory, short)
    theirs = "# mine\nmood: fine\n"
    path.write_text(path.read_text().replace("\n---\n", f"\n{theirs}---\n", 1))
    await memory.add(LONGER, created=NOW)
    (group,) = (await deduplication(memory).run(GLOBAL)).groups
    assert group.kept.identity == short.identity
    assert theirs in path.read_text()
    (entry,) = await memory.survey()
    assert (entry.content, entry.importance) == (LONGER, 0.9)


async def test_pairs_that_say_different_things_are_not_merged(memory: Memory) -> None:
    for pair in read_pairs():
        if not pair.same:
            await memory.add(pair.one)
            await memory.add(pair.other)
    for embedder in (None, WordsEmbedder()):
        other = Memory(memory.folder, durable=False, embedder=embedder)
        report = await Deduplication(other).survey(GLOBAL)
        assert [(group.kept.content, group.deleted) for group in report.groups] == []


async def test_without_a_model_only_facts_with_the_same_words_are_merged(memory: Memory) -> None:
    await memory.add(LONGER)
    entry = await memory.add(CELLAR)
    path = path_of(memory, entry)
    again = path.with_name(path.name.replace(entry.identity, "again"))
    again.write_text(
        path.read_text().replace("cellar.", "CELLAR!").replace(entry.identity, "again")
    )
    (group,) = (await Deduplication(memory).run(GLOBAL)).groups
    assert [one.identity for one in (group.kept, *group.deleted)] == [entry.identity, "again"]
    assert len(await contents(memory)) == 2


@pytest.mark.parametrize(
    "groups",
    [
        ((1, 2), (2, 1)),
        ((1, 3),),
        ((0, 1),),
        ((1, 1),),
        ((-1, 2),),
        (),
        ((),),
        ((1,),),
        ((1, 2),),
    ],
)
async def test_an_answer_that_cannot_be_right_merges_nothing(
    memory: Memory, groups: tuple[tuple[int, ...], ...]
) -> None:
    await memory.add("The box has 4 shelves.", created=NOW)
    await memory.add("The box has 4 shelves and 3 doors.", created=NOW - timedelta(days=1))
    asker = ScriptedAsker(repeats=[Repeats(groups)])
    settings = DeduplicationSettings(word_likeness=0.1)
    merged = (await Deduplication(memory, settings, asker=asker).survey(GLOBAL)).groups
    assert merged == ()
    assert len(asker.asked) == 1


async def test_a_model_that_merges_everything_loses_no_number_and_no_name(memory: Memory) -> None:
    def merge(text: str) -> Repeats:
        return Repeats((tuple(range(1, len(text.splitlines()) + 1)),))

    texts = ["Ada has 2 cats.", "Ada has 3 cats.", "There Ben has 2 cats.", "Ada has cats."]
    for day, text in enumerate(texts):
        await memory.add(text, created=NOW - timedelta(days=day))
    settings = DeduplicationSettings(word_likeness=0.1)
    asker = ScriptedAsker(repeats=[merge])
    (group,) = (await Deduplication(memory, settings, asker=asker).survey(GLOBAL)).groups
    assert [group.kept.content, *(one.content for one in group.deleted)] == [texts[0], texts[3]]


async def test_a_model_that_does_not_answer_is_reported_and_repeats_are_merged(
    memory: Memory,
) -> None:
    await memory.add(CELLAR)
    await memory.add(LONGER)
    reported: list[str] = []
    report = await Deduplication(memory, notify=reported.append, asker=ScriptedAsker()).run(GLOBAL)
    assert report == DeduplicationReport()
    assert reported == ["similar facts were not compared: the model gave no valid answer (1 try)"]


async def test_what_has_not_changed_since_the_last_run_is_not_asked_about_again(
    memory: Memory,
) -> None:
    asker = ScriptedAsker(repeats=[Repeats(())])
    runs = Deduplication(memory, asker=asker)
    await memory.add(CELLAR)
    await memory.add(LONGER)
    for number in range(10):
        await memory.add(f"box{number} is red")
    assert await runs.run_if_due(GLOBAL) == DeduplicationReport()
    tomorrow = datetime.now(UTC) + timedelta(days=2)
    assert await runs.run_if_due(GLOBAL, now=tomorrow) == DeduplicationReport()
    assert len(asker.asked) == 1
    assert await runs.run(GLOBAL) == DeduplicationReport()
    assert len(asker.asked) == 2


async def test_with_an_embedder_facts_are_compared_by_meaning(memory: Memory) -> None:
    await memory.add("Ada keeps many bees near the forest", created=NOW)
    await memory.add("beside the wood Ada owns many bees", created=NOW)
    asker = ScriptedAsker(repeats=[Repeats(((1, 2),))])
    assert (await Deduplication(memory, asker=asker).survey(GLOBAL)).groups == ()
    assert asker.asked == []
    embedder = WordsEmbedder()
    settings = DeduplicationSettings(likeness=0.3)
    other = Memory(memory.folder, durable=False, embedder=embedder)
    report = await Deduplication(other, settings, asker=asker).survey(GLOBAL)
    assert len(report.groups) == 1
    assert sorted(embedder.texts) == sorted(await contents(memory))


async def test_where_the_embedder_fails_words_are_compared_and_it_is_reported(
    memory: Memory,
) -> None:
    await memory.add(CELLAR)
    await memory.add(LONGER)
    embedder = WordsEmbedder()
    embedder.failure = ProviderError("no network", provider="words")
    reported: list[str] = []
    other = Memory(memory.folder, durable=False, embedder=embedder)
    report = await deduplication(other, notify=reported.append).survey(GLOBAL)
    assert len(report.groups) == 1
    assert reported == ["facts are compared by words only: words: no network"]
    assert len((await deduplication(other).survey(GLOBAL)).groups) == 1


async def test_long_texts_copies_and_what_cannot_be_written_are_left(memory: Memory) -> None:
    long = "The box stands in the cellar. " + "Words without end. " * 60
    await memory.add(long)
    await memory.add(long + "More.")
    assert (await deduplication(memory).survey(GLOBAL)).groups == ()
    # A copy made by hand has the same identity, and is deleted in favour of the original.
    entry = await memory.add(CELLAR)
    path = path_of(memory, entry)
    (path.parent / "copy.md").write_bytes(path.read_bytes())
    before = path.read_bytes()
    (group,) = (await deduplication(memory).run(GLOBAL)).groups
    assert group.merged == group.kept == group.deleted[0]
    assert len([one for one in await memory.survey() if one.content == CELLAR]) == 1
    assert before in [one.read_bytes() for one in path.parent.iterdir()]


async def test_a_group_that_does_not_fit_into_a_file_is_left(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.add(CELLAR)
    await memory.add(LONGER)

    def refuse(self: HeldScope, entry: Entry, known: object) -> None:
        raise MemoryInvalid("the front matter would be longer than 64 KiB")

    monkeypatch.setattr(HeldScope, "write_over", refuse)
    report = await deduplication(memory).run(GLOBAL)
    assert (len(report.groups), len(report.skipped)) == (0, 1)
    assert await contents(memory) == [LONGER, CELLAR]


async def test_a_scope_without_facts_is_left_without_a_folder(memory: Memory) -> None:
    runs = deduplication(memory)
    ada = Scope.of_user("ada")
    assert await runs.survey(ada) == await runs.run(ada) == DeduplicationReport()
    assert await runs.run_if_due(ada) is None
    assert not list(memory.folder.iterdir())


async def fill(memory: Memory, count: int) -> None:
    for number in range(count):
        await memory.add(f"box{number} stands in the cellar")


async def test_it_is_due_with_enough_facts_once_a_day(memory: Memory) -> None:
    runs = deduplication(memory)
    await fill(memory, 9)
    await memory.add("box1 stands in the cellar now")
    assert await runs.run_if_due(GLOBAL, now=NOW) is None
    await memory.add("box2 stands in the cellar now")
    report = await runs.run_if_due(GLOBAL, now=NOW)
    assert report is not None
    assert len(report.groups) == 2
    # What was merged away and is stated again is a fact again, until the next run.
    await fill(memory, 12)
    await memory.add("box3 stands in the cellar now")
    later = NOW + timedelta(hours=23.9)
    assert await deduplication(Memory(memory.folder)).run_if_due(GLOBAL, now=later) is None
    after = NOW + timedelta(hours=24.1)
    report = await deduplication(Memory(memory.folder)).run_if_due(GLOBAL, now=after)
    assert report is not None
    assert len(report.groups) == 3
    # A clock that was ahead once does not stop it.
    assert await runs.run_if_due(GLOBAL, now=NOW) is not None


@pytest.mark.parametrize(
    "state", [b"", b"{", b'{"last": 5}', b'{"last": "2020-01-01T00:00:00"}', b"\xff"]
)
async def test_a_damaged_or_old_note_of_the_last_run_is_none(memory: Memory, state: bytes) -> None:
    await fill(memory, 12)
    runs = deduplication(memory)
    assert await runs.run_if_due(GLOBAL, now=NOW) is not None
    assert await runs.run_if_due(GLOBAL, now=NOW) is None
    (path,) = (memory.folder / "upkeep" / "global").iterdir()
    path.write_bytes(state)
    assert await runs.run_if_due(GLOBAL, now=NOW) is not None


async def test_it_can_be_turned_off(memory: Memory) -> None:
    await fill(memory, 12)
    settings = DeduplicationSettings(automatic=False)
    assert await deduplication(memory, settings).run_if_due(GLOBAL) is None
    assert await deduplication(memory, settings).run(GLOBAL) == DeduplicationReport()


async def test_two_runs_do_not_meet(memory: Memory) -> None:
    await fill(memory, 12)
    runs = deduplication(memory)
    await runs.run(GLOBAL, now=NOW - timedelta(days=2))
    with locked(memory.folder / "upkeep" / "global", seconds=0):
        assert await runs.run_if_due(GLOBAL, now=NOW) is None
        with pytest.raises(ArchiveLocked):
            await runs.run(GLOBAL, seconds=0.01)
    assert await runs.run_if_due(GLOBAL, now=NOW) is not None


async def change_between(memory: Memory, change: str) -> tuple[DeduplicationReport, list[str]]:
    """A run in whose midst something happens; what it did, and all that is known then."""
    one, two = await memory.add(CELLAR, created=NOW), await memory.add(LONGER, created=NOW)
    await memory.add("Tea is green.", created=NOW)
    await memory.add("Tea is green and hot.", created=NOW)
    runs = deduplication(memory)
    found = await runs._find(GLOBAL)
    assert len(found) == 2
    other = Memory(memory.folder, durable=False)
    match change:
        case "revise":
            await other.revise(one.identity, content="The box went to the attic.")
        case "revise the longer":
            await other.revise(two.identity, content="The box went to the attic.")
        case "remove":
            await other.remove(two.identity)
        case "forget":
            await other.forget("stairs")
        case "add":
            await other.add("The box is red.")
        case "edit":
            path_of(memory, one).write_text(
                path_of(memory, one).read_text().replace("cellar", "garret")
            )
    report = await runs._merge(GLOBAL, found)
    return report, await contents(memory)


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ("revise", ["The box went to the attic.", LONGER]),
        ("revise the longer", ["The box went to the attic.", CELLAR]),
        ("remove", [CELLAR]),
        ("forget", [CELLAR]),
        ("add", ["The box is red.", LONGER]),
        ("edit", [CELLAR.replace("cellar", "garret"), LONGER]),
    ],
)
async def test_what_changes_in_between_is_kept_as_it_is_by_then(
    memory: Memory, change: str, known: Sequence[str]
) -> None:
    report, left = await change_between(memory, change)
    assert left == sorted([*known, "Tea is green and hot."])
    assert len(report.skipped) == (change != "add")


async def test_changes_that_are_not_looked_for_would_be_detected(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldScope, "is_unchanged", lambda self, known: True)
    _, left = await change_between(memory, "revise")
    assert "The box went to the attic." not in left


class Crash(BaseException):
    """The power goes."""


async def crash_at(
    folder: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, list[str], list[str]]:
    """Whether a run got as far as a step on the disk; what is known then, and after another run."""
    memory = Memory(folder, durable=False)
    for text in (LONGER, CELLAR, f"{CELLAR[:-1]} now.", "Tea is green.", "Tea is green!  Tea."):
        await memory.add(text)
    steps = 0
    with monkeypatch.context() as patch:
        for name in ("rewrite", "delete"):
            method = getattr(MemoryFiles, name)

            def stop(
                *arguments: object, _method: Callable[..., None] = method, **rest: object
            ) -> None:
                nonlocal steps
                steps += 1
                if steps == step:
                    raise Crash
                _method(*arguments, **rest)

            patch.setattr(MemoryFiles, name, stop)
        try:
            await deduplication(memory).run(GLOBAL)
        except Crash:
            crashed = True
        else:
            crashed = False
    fresh = Memory(folder, durable=False)
    after_crash = await contents(fresh)
    await deduplication(fresh).run(GLOBAL)
    return crashed, after_crash, await contents(fresh)


async def find_losses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """At which steps a crash loses something."""
    losses = []
    for step in range(1, 20):
        crashed, between, after = await crash_at(folder / str(step), step, monkeypatch)
        said = [CELLAR, LONGER, "The box stands in the cellar now.", "Tea is green."]
        for known in (between, after):
            if not all(any(says_all(one, text) for one in known) for text in said):
                losses.append(step)
        assert len(after) <= 3, after
        if not crashed:
            assert step > 4
            return losses
    raise AssertionError("it never ends")


async def test_a_crash_at_any_step_loses_nothing_and_the_next_run_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await find_losses(tmp_path, monkeypatch) == []


async def test_deleting_before_writing_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(held: HeldScope, found: deduplication_module._Found) -> bool:
        for entry, known in zip(found.group.deleted, found.known[1:], strict=True):
            held.delete_record(entry, known, replaced_by=found.group.kept.identity)
        held.write_over(found.group.merged, found.known[0])
        return True

    monkeypatch.setattr(deduplication_module, "_carry_out_one", carry_out)
    assert await find_losses(tmp_path, monkeypatch) != []


def check_boxes(folder: Path) -> list[str]:
    """What is lost of thirty boxes, each added twice, after a run that was killed and another."""
    memory = Memory(folder, durable=False)
    asyncio.run(deduplication(memory).run(GLOBAL))
    known = asyncio.run(contents(memory))
    assert len(known) == 30
    reported = [f"box{number} stands in the cellar behind the stairs." for number in range(30)]
    return [text for text in reported if text not in known]


@pytest.mark.storm
def test_a_run_that_is_killed_loses_nothing(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    for seed in range(rounds(6, 200)):
        folder = tmp_path / str(seed)
        memory = Memory(folder, durable=False)
        for number in range(30):
            asyncio.run(memory.add(f"box{number} stands in the cellar."))
            asyncio.run(memory.add(f"box{number} stands in the cellar behind the stairs."))
        asyncio.run(memory.close())
        reported = kill_at_random(workers.deduplicate, folder, seed=seed)
        assert reported, "it was killed before it began"
        left = asyncio.run(contents(Memory(folder, durable=False)))
        for number in range(30):
            said = f"box{number} stands in the cellar behind the stairs."
            assert any(says_all(one, said) for one in left), f"seed {seed}"
        assert check_boxes(folder) == [], f"seed {seed}"


@pytest.mark.storm
def test_nothing_is_lost_while_processes_add_edit_and_remove(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(8, 100)
    together = [Worker(workers.add_repeats, tmp_path, seed, count) for seed in range(4)]
    merged = 0

    async def work() -> None:
        nonlocal merged
        runs = deduplication(Memory(tmp_path, durable=False))
        while any(worker._process.is_alive() for worker in together):
            merged += len((await runs.run(GLOBAL)).groups)
        merged += len((await runs.run(GLOBAL)).groups)

    asyncio.run(work())
    expected: dict[str, str] = {}
    for worker in together:
        for line in worker.finish():
            kind, identity, *rest = line.split(" ", 2)
            if kind == "say":
                (expected[identity],) = rest
            else:
                expected.pop(identity, None)
        assert worker.code == 0
    known = asyncio.run(contents(Memory(tmp_path, durable=False)))
    lost = [text for text in expected.values() if not any(says_all(one, text) for one in known)]
    assert lost == []
    assert len(expected) >= 8 * count
    assert merged >= count
    assert len(known) < len(expected)
