"""What decisions of a model can do: little, softly, and only to what it was shown."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.embedding.words import digest_of
from vibe_llms.memory import reconciliation
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.gate import covers
from vibe_llms.memory.reconciliation import (
    Applied,
    FactDecision,
    ReconciliationPlan,
    Step,
    add_all,
    apply,
    plan,
    write_question,
)
from vibe_llms.memory.records import IndexRecord
from vibe_llms.messages.identities import produce_identity

ADA = Scope.of_user("ada")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECTS = ("tea", "coffee", "Lisbon", "Porto", "dogs", "Rex", "chess", "snow")
VERBS = ("likes", "hates", "knows", "left")


def entry(content: str, day: int = 0) -> Entry:
    return Entry(
        content=content,
        identity=produce_identity(),
        scope=ADA,
        created=BEGIN + timedelta(days=day),
    )


NOTES = (
    entry("The user lives in Lisbon"),
    entry("The user has a dog"),
    entry("The user likes tea"),
)
FACTS = (entry("The user moved to Porto", 9), entry("The user's dog is named Rex", 9))
GOOD = (
    FactDecision(1, "DELETE", by=4),
    FactDecision(2, "UPDATE", "The user has a dog named Rex", 5),
    FactDecision(3, "NONE"),
    FactDecision(4, "ADD"),
    FactDecision(5, "NONE"),
)


def instead(number: int, **changes: Any) -> tuple[FactDecision, ...]:
    """The good answer with one decision changed."""
    return tuple(
        msgspec.structs.replace(one, **changes) if one.number == number else one for one in GOOD
    )


def test_a_question_has_numbers_and_no_identities() -> None:
    question = write_question((*NOTES[:1], entry("a\nb  c")), FACTS[:1])
    assert question.split("\n") == [
        "Notes:",
        "1. (2026-01-01) The user lives in Lisbon",
        "2. (2026-01-01) a b c",
        "",
        "New facts:",
        "3. (2026-01-10) The user moved to Porto",
    ]


def test_a_good_answer_is_carried_out_as_it_says() -> None:
    wanted, why = plan(GOOD, NOTES, FACTS)
    assert why == ""
    merge, move = wanted.steps
    assert (merge.entry.content, merge.instead_of) == ("The user has a dog named Rex", NOTES[1:2])
    assert merge.merged
    assert move == Step(FACTS[0], NOTES[:1])
    assert wanted.known == ()


@pytest.mark.parametrize(
    ("decisions", "reported"),
    [
        ((), "no decision about 1"),
        (GOOD[:-1], "no decision about 5"),
        ((*GOOD, FactDecision(6, "ADD")), "6, which was not shown"),
        ((*GOOD, FactDecision(0, "NONE")), "0, which was not shown"),
        ((*GOOD, FactDecision(-1, "DELETE", by=4)), "-1, which was not shown"),
        ((*GOOD, GOOD[0]), "two decisions"),
        (instead(1, event="ADD"), "1 cannot be ADD"),
        (instead(4, event="DELETE"), "4 cannot be DELETE"),
        (instead(4, event="UPDATE"), "4 cannot be UPDATE"),
        (instead(4, event="NONE"), "is not added"),
        (instead(1, by=5), "is not added"),
        (instead(1, by=0), "does not name a new fact"),
        (instead(1, by=2), "does not name a new fact"),
        (instead(2, by=9), "does not name a new fact"),
        (instead(2, text=" \n"), "has no text"),
        (instead(2, text="The user has a cat called Tom"), "neither the note nor the fact"),
        (instead(2, text="The user has a dog named Rex, 7 years old"), "neither the note nor"),
        (instead(2, text="The user has a dog"), "omits part of the fact"),
        (instead(2, text="The user has a dog named Rex. " * 20), "too long or contains a secret"),
        (instead(2, text="The user's dog Rex: password: x7"), "too long or contains a secret"),
    ],
)
def test_an_answer_that_is_not_whole_adds_the_facts_and_no_more(
    decisions: Sequence[FactDecision], reported: str
) -> None:
    wanted, why = plan(decisions, NOTES, FACTS)
    assert reported in why
    assert wanted == add_all(FACTS)


def test_with_one_new_fact_it_is_the_reason() -> None:
    decisions = (FactDecision(1, "DELETE"), FactDecision(2, "ADD"))
    assert plan(decisions, NOTES[:1], FACTS[:1]) == (
        ReconciliationPlan((Step(FACTS[0], NOTES[:1]),)),
        "",
    )


def test_a_fact_is_known_only_where_something_that_stays_says_it() -> None:
    fact = entry("The user is fond of green tea", 9)
    known = entry("The user drinks green tea", 0)
    decisions = (FactDecision(1, "NONE"), FactDecision(2, "NONE"))
    assert plan(decisions, [known], [fact])[0] == ReconciliationPlan(known=(fact,))
    assert plan(decisions, [NOTES[0]], [fact])[0] == add_all([fact])
    # Named as known because of a note that goes at the same time: it is stored.
    other = entry("The user hates tea", 9)
    leaving = (FactDecision(1, "DELETE", by=3), FactDecision(2, "NONE"), FactDecision(3, "ADD"))
    assert plan(leaving, [known], [fact, other])[0] == ReconciliationPlan(
        (Step(fact), Step(other, (known,)))
    )


def test_a_fact_that_is_added_and_merged_is_there_once() -> None:
    wanted, _ = plan(instead(5, event="ADD"), NOTES, FACTS)
    assert [step.entry.content for step in wanted.steps] == [
        "The user has a dog named Rex",
        "The user moved to Porto",
    ]


def test_an_earlier_fact_replaces_no_later_one() -> None:
    notes = [msgspec.structs.replace(note, created=BEGIN + timedelta(days=99)) for note in NOTES]
    wanted, why = plan(GOOD, notes, FACTS)
    assert why == ""
    assert wanted == add_all(FACTS)


events = st.sampled_from(["ADD", "UPDATE", "DELETE", "NONE"])
texts = st.sampled_from(
    [*(one.content for one in (*NOTES, *FACTS)), "", "The user has a dog named Rex", "nonsense"]
)
answers = st.lists(
    st.builds(FactDecision, st.integers(-1, 7), events, texts, st.integers(-1, 7)), max_size=8
)


@given(answers, st.permutations(range(1, 6)), st.booleans())
def test_no_decision_loses_a_fact_or_touches_an_unseen_one(
    decisions: list[FactDecision], order: list[int], whole: bool
) -> None:
    if whole:
        # As a model would that counts well: each number once.
        decisions = [
            msgspec.structs.replace(one, number=number)
            for number, one in zip(order, (*decisions, *GOOD), strict=False)
        ]
    wanted, why = plan(decisions, NOTES, FACTS)
    replaced = [seen for step in wanted.steps for seen in step.instead_of]
    assert all(seen in NOTES for seen in replaced)
    assert len(replaced) == len({seen.identity for seen in replaced})
    left = [note.content for note in NOTES if note not in replaced]
    left += [step.entry.content for step in wanted.steps]
    for fact in FACTS:
        assert any(covers(text, fact.content) for text in left)
    if why:
        assert wanted == add_all(FACTS)


def statement(chance: random.Random) -> str:
    return f"The user {chance.choice(VERBS)} {chance.choice(SUBJECTS)}"


def fuzz(
    chance: random.Random, notes: Sequence[Entry], facts: Sequence[Entry]
) -> list[FactDecision]:
    """A list of decisions: a good one, or one that is spoiled in one or several places."""
    first, last = len(notes) + 1, len(notes) + len(facts)
    decisions: list[FactDecision] = []
    for number, note in enumerate(notes, 1):
        by = chance.randint(first, last)
        reported = facts[by - first].content
        text = chance.choice(
            [reported, f"{note.content} and {reported}", chance.choice(notes).content]
        )
        match chance.choice(("UPDATE", "DELETE", "NONE")):
            case "UPDATE":
                decisions.append(FactDecision(number, "UPDATE", text, by))
            case "DELETE":
                decisions.append(FactDecision(number, "DELETE", "", by))
            case _:
                decisions.append(FactDecision(number, "NONE"))
    for number in range(first, last + 1):
        decisions.append(FactDecision(number, "ADD" if chance.random() < 0.7 else "NONE"))
    while chance.random() < 0.4:
        place = chance.randrange(len(decisions) or 1)
        spoiled = FactDecision(
            chance.randint(-1, last + 2),
            chance.choice(("ADD", "UPDATE", "DELETE", "NONE")),
            chance.choice([statement(chance), produce_identity(), ""]),
            chance.randint(-1, last + 2),
        )
        decisions[place : place + chance.randint(0, 1)] = [spoiled] * chance.randint(0, 2)
    chance.shuffle(decisions)
    return decisions


def all_files(memory: Memory) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in (memory.folder / "entries").rglob("*.md")}


async def storm(folder: Path, count: int, *, seed: int) -> int:
    """Carry out fuzzed decisions on real files, and look at all of them after each; how many did
    anything to what was there.
    """
    chance = random.Random(seed)
    effective = 0
    memory = Memory(folder / "0", durable=False)
    for number in range(count):
        if number % 25 == 0:
            memory = Memory(folder / str(number), durable=False)
            for _ in range(6):
                await memory.add(statement(chance), scope=ADA, created=BEGIN)
        there = list(await memory.survey(ADA))
        shown = chance.sample(there, k=min(len(there), chance.randint(1, 4)))
        facts = [entry(statement(chance), number + 1) for _ in range(chance.randint(1, 3))]
        wanted, _ = plan(fuzz(chance, shown, facts), shown, facts)
        before = all_files(memory)

        def carry_out(held: HeldScope, wanted: ReconciliationPlan = wanted) -> Applied:
            return apply(held, wanted)

        applied = await memory.change(ADA, carry_out)
        effective += bool(applied.updated or applied.removed)
        after = all_files(memory)
        assert set(before) <= set(after), "an entry was deleted for good"
        touchable = {one.identity for one in shown}
        live = await memory.survey(ADA)
        ids = {one.identity for one in live}
        assert {one.identity for one in there} - ids <= touchable, "an unseen entry was deleted"
        for name, data in before.items():
            if not any(one in name for one in touchable):
                assert after[name] == data, "an unseen entry was changed"
        digests = [digest_of(one.content) for one in live]
        assert len(digests) == len(set(digests)), "a fact is there twice"
        for fact in facts:
            assert any(covers(one.content, fact.content) for one in live), "a fact was lost"
        for update in (*applied.updated, *applied.removed):
            assert update.new.identity in ids, "what replaced a fact is not there"
    return effective


@pytest.mark.storm
@pytest.mark.parametrize("seed", range(5))
async def test_fuzzed_decisions_destroy_nothing(
    tmp_path: Path, seed: int, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(60, 1000)
    # The storm would show nothing if nearly every answer were refused.
    assert await storm(tmp_path, count, seed=seed) > count // 5


def _delete_for_good(
    self: HeldScope, entry: Entry, known: IndexRecord, *, replaced_by: str = ""
) -> None:
    self._files.erase(entry.scope, [known.place])


def _delete_another(self: HeldScope, entry: Entry, *, replaced_by: str = "") -> bool:
    self.delete_record(entry, self.entries[0], replaced_by=replaced_by)
    return True


def _never_repeats(self: HeldScope, entry: Entry) -> None:
    return None


def _covers_anyway(text: str, fact: str) -> bool:
    return True


def _apply_deleting_first(held: HeldScope, wanted: ReconciliationPlan) -> Applied:
    """As `apply`, without care for what says the same as something new."""
    for step in wanted.steps:
        repeat = held.find_repeat(step.entry) or held.add(step.entry)
        for seen in step.instead_of:
            held.delete(seen, replaced_by=repeat.identity)
    return Applied()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "bug", "reported"),
    [
        (HeldScope, "delete_record", _delete_for_good, "for good"),
        (HeldScope, "delete", _delete_another, "unseen entry|changed|not there|was lost"),
        (HeldScope, "find_repeat", _never_repeats, "there twice"),
        (reconciliation, "covers", _covers_anyway, "was lost"),
        (None, "apply", _apply_deleting_first, "was lost"),
    ],
)
async def test_a_bug_in_applying_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, bug: Any, reported: str
) -> None:
    if owner is None:
        monkeypatch.setitem(globals(), name, bug)
    else:
        monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match=reported):
        await storm(tmp_path, 1000, seed=3)


async def test_of_the_same_fact_again_one_copy_is_there_never_none(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    old = await memory.add("The user lives in Lisbon", scope=ADA, created=BEGIN)
    again = entry("the user lives in Lisbon!", 1)
    # As a model might answer that is asked all the same: the old one goes because of the new one.
    for step in (Step(again, (old,)), Step(again, (old,), merged=True)):
        plan = ReconciliationPlan((step,))
        applied = await memory.change(ADA, partial(apply, wanted=plan))
        assert await memory.survey(ADA, role=Role.FACT) == [old]
        assert applied == Applied(known=(old,))


async def test_nothing_is_deleted_before_all_that_is_new_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    notes = [await memory.add(note.content, scope=ADA, created=BEGIN) for note in NOTES]
    done: list[str] = []
    write, delete = MemoryFiles.write, MemoryFiles.delete

    def report_write(self: MemoryFiles, entry: Entry) -> str:
        done.append("write")
        return write(self, entry)

    def report_delete(
        self: MemoryFiles, entry: Entry, place: str, *, replaced_by: str = ""
    ) -> None:
        done.append("delete")
        delete(self, entry, place, replaced_by=replaced_by)

    monkeypatch.setattr(MemoryFiles, "write", report_write)
    monkeypatch.setattr(MemoryFiles, "delete", report_delete)
    wanted, _ = plan(GOOD, notes, FACTS)
    await memory.change(ADA, lambda held: apply(held, wanted))
    assert done == ["write", "write", "delete", "delete"]
