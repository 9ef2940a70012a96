"""The index database against a slow one that spells the same formula out."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from vibe_llms.embedding.words import rarity_of
from vibe_llms.memory import database
from vibe_llms.memory.database import K1, LABEL, OTHERS, WINDOW, B, IndexDatabase
from vibe_llms.memory.entries import Role
from vibe_llms.memory.metadata import Metadata
from vibe_llms.memory.parts import NORM, Fit, WeightedPart
from vibe_llms.memory.places import FileStat
from vibe_llms.memory.records import IndexRecord

WORDS = [f"w{number}" for number in range(40)]
WHEN = datetime(2026, 5, 4, 10, 30, tzinfo=UTC)
STAT = FileStat(1, 2, 3, 4)
ROLES = frozenset(Role)


def part(rarities: dict[str, float], weight: float = 1.0) -> WeightedPart:
    return WeightedPart(rarities, weight)


def record(
    identity: str, *, minutes: float = 0, role: Role = Role.USER, place: str = "", digest: str = ""
) -> IndexRecord:
    return IndexRecord(
        place=place or identity,
        stat=STAT,
        number=0,
        identity=identity,
        role=role,
        created=WHEN + timedelta(minutes=minutes),
        importance=0.5,
        conversation="c1",
        digest=digest,
        asks=False,
        metadata=Metadata(1),
    )


class Reference:
    """Every entry spelled out: words, labels, conversation and time, in plain lists."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[list[str], set[str], str | None, float]] = {}

    def talks(self) -> list[list[str]]:
        """The turns that are in each other's windows, in order; other entries alone."""
        talks: list[list[str]] = []
        last: tuple[str | None, float] = (None, 0.0)
        for name in sorted(
            self.entries, key=lambda one: (self.entries[one][2] or "", self.entries[one][3], one)
        ):
            _, _, conversation, minutes = self.entries[name]
            if conversation is None or last[0] != conversation or minutes - last[1] > 60:
                talks.append([])
            talks[-1].append(name)
            last = conversation, minutes
        return talks

    def score(self, rarities: dict[str, float]) -> dict[str, float]:
        weights: dict[str, Counter[str]] = {}
        sizes: dict[str, float] = {}
        for talk in self.talks():
            for place, name in enumerate(talk):
                _, labels, _, _ = self.entries[name]
                weights[name] = Counter()
                sizes[name] = 0.0
                for distance, share in WINDOW.items():
                    if 0 <= place - distance < len(talk):
                        there = self.entries[talk[place - distance]][0]
                        for word in there:
                            weights[name][word] += share  # type: ignore[assignment]
                        sizes[name] += share * len(there) if distance >= 0 else 0.0
                for label in labels:
                    weights[name][label] += LABEL  # type: ignore[assignment]
        mean = sum(sizes.values()) / (len(sizes) or 1) or 1.0
        scores: dict[str, float] = {}
        for name, its in weights.items():
            flat = K1 * (1 - B + B * sizes[name] / mean)
            found = {word: its[word] for word in rarities if its[word]}
            if found:
                scores[name] = sum(
                    rarities[word] * weight / (weight + flat) for word, weight in found.items()
                )
        return scores

    def factor(self, name: str, others: Iterable[str], one: WeightedPart) -> float:
        """How much a part counts for an entry: less if it names the speaker of another one."""
        named = {label for other in others for label in self.entries[other][1]} & {*one.rarities}
        return OTHERS if named and self.entries[name][1].isdisjoint(named) else 1.0

    def fit(self, parts: list[WeightedPart]) -> dict[str, Fit]:
        fits: dict[str, Fit] = {}
        scores = [(self.score(dict(one.rarities)), one.weight) for one in parts]
        fits_of = {name for its, _ in scores for name in its}
        for name in fits_of:
            shares = [its.get(name, 0.0) / weight for its, weight in scores]
            values = [
                share * self.factor(name, [*fits_of], one)
                for share, one in zip(shares, parts, strict=True)
            ]
            fits[name] = Fit(max(shares), sum(value**NORM for value in values) ** (1 / NORM))
        return fits


def equal(some: dict[str, Fit], others: dict[str, Fit]) -> bool:
    return some.keys() == others.keys() and all(
        fit == pytest.approx(others[name], rel=1e-6) for name, fit in some.items()
    )


def build(chance: random.Random, count: int) -> tuple[IndexDatabase, Reference]:
    index, reference = IndexDatabase(), Reference()
    for number in range(count):
        name = f"e{chance.randrange(count)}" if chance.random() < 0.2 else f"e{number}"
        words = chance.choices(
            WORDS, [1 / (rank + 1) for rank in range(40)], k=chance.randint(0, 9)
        )
        labels = set(chance.sample(WORDS, chance.randint(0, 2)))
        conversation = chance.choice(("c1", "c2", None))
        minutes = float(chance.choice((number * 3, chance.randrange(3 * count))))
        if name in reference.entries and chance.random() < 0.5:
            # As when only its text changes.
            conversation, minutes = reference.entries[name][2:]
        index.put(record(name, minutes=minutes), words, labels, conversation)
        reference.entries[name] = words, labels, conversation, minutes
        if chance.random() < 0.2:
            gone = chance.choice(sorted(reference.entries))
            index.drop(gone)
            del reference.entries[gone]
        if chance.random() < 0.1:
            index.score([part({"w0": 1.0})], 5, ROLES)
    return index, reference


def differ(seed: int) -> bool:
    """Whether the index scores otherwise than the reference."""
    chance = random.Random(seed)
    index, reference = build(chance, chance.randint(2, 60))
    if chance.random() < 0.5:
        index = IndexDatabase(index.serialize())
    names = {one.number: one.identity for one in index}
    if sorted(names.values()) != sorted(reference.entries):
        return True
    for _ in range(5):
        rarities = {word: chance.random() + 0.1 for word in WORDS}
        asked = [
            part({word: rarities[word] for word in some}, chance.random() + 1)
            for some in (chance.sample(WORDS, chance.randint(1, 6)) for _ in range(3))
        ][chance.randrange(3) :]
        expected = reference.fit(asked)
        found = {names[one]: fit for one, fit in index.score(asked, 100, ROLES).items()}
        if not equal(found, expected):
            return True
        some = set(chance.sample(sorted(names), len(names) // 2))
        assessed = {names[one]: fit for one, fit in index.assess(asked, some).items() if fit.best}
        kept = {names[one] for one in some}
        if {name: fit.best for name, fit in assessed.items()} != pytest.approx(
            {name: fit.best for name, fit in expected.items() if name in kept}, rel=1e-6
        ):
            return True
    return False


@pytest.mark.slow
def test_scores_equal_those_of_a_slow_index() -> None:
    assert not any(differ(seed) for seed in range(120))


@pytest.mark.parametrize("bug", ["order", "gaps", "labels"])
def test_scores_that_differ_are_detected(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    if bug == "order":
        reversed_order = database._SPACE_OUT.replace("by created", "by -created")
        monkeypatch.setattr(database, "_SPACE_OUT", reversed_order)
    elif bug == "gaps":
        monkeypatch.setattr(database, "_APART", 1)
    else:
        monkeypatch.setattr(database, "LABEL", 1.0)
    assert any(differ(seed) for seed in range(120))


@pytest.mark.slow
def test_the_rare_words_of_a_question_choose_the_best() -> None:
    chance = random.Random(4)
    index = IndexDatabase()
    vocabulary = [f"v{number}" for number in range(2000)]
    shares = [1 / (rank + 5) for rank in range(2000)]
    with index.together():
        for number in range(2000):
            index.put(record(f"e{number}"), chance.choices(vocabulary, shares, k=12), (), None)
    missed = 0
    for _ in range(60):
        words = chance.sample(vocabulary[:300], 6)
        counts = index.count_entries(words)
        rarities = {word: rarity_of(counts.get(word, 0), len(index)) for word in words}
        asked = [part(rarities)]
        whole = index.assess(asked, range(1, 2001))
        best = sorted(whole, key=whole.__getitem__, reverse=True)[:5]
        quick = index.score(asked, 60, ROLES)
        assert len(quick) <= 60
        assert all(quick[one] == pytest.approx(whole[one]) for one in quick)
        missed += sum(one not in quick for one in best)
    # Of 300: words that are about as rare as each other are the hardest questions.
    assert missed <= 25


def test_entries_of_other_roles_do_not_take_the_places_of_those_that_are_asked_for() -> None:
    index = IndexDatabase()
    for number in range(50):
        index.put(record(f"t{number}", minutes=number), ["tea", "tea"], (), "c1")
    fact = index.put(record("fact", role=Role.FACT), ["tea", *["cup"] * 30], (), None)
    assert set(index.score([part({"tea": 1.0})], 5, {Role.FACT})) == {fact}
    assert len(index.score([part({"tea": 1.0})], 5, ROLES)) == 5


def test_frequencies_count_texts_and_labels_of_entries_that_are_there() -> None:
    index = IndexDatabase()
    for number in range(9):
        index.put(record(f"e{number}"), ["tea"], ["tea"], None)
    assert index.count_entries(["tea"])["tea"] == 9
    for number in range(4):
        index.drop(f"e{number}")
    assert index.count_entries(["tea"])["tea"] == len(index) == 5
    assert index.count_entries(["milk"]) == {}
    assert rarity_of(index.count_entries(["tea"])["tea"], len(index)) > 0


def test_the_words_of_what_is_gone_are_not_serialized() -> None:
    index = IndexDatabase()
    index.put(record("one", place="facts/secret.md"), ["secret", "tea"], ["hidden", "may"], None)
    left = index.put(record("two"), ["tea"], ["may"], None)
    for one in (index, IndexDatabase(index.serialize())):
        one.drop("facts/secret.md")
        data = one.serialize()
        assert b"secret" not in data
        assert b"hidden" not in data
        assert set(IndexDatabase(data).score([part({"tea": 1.0, "may": 1.0})], 9, ROLES)) == {left}


def test_words_of_an_index_that_keeps_what_was_deleted_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = sqlite3.connect

    class Careless(sqlite3.Connection):
        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:
            if "optimize" in statement or "secure_delete" in statement:
                statement = "select 1"
            return super().execute(statement, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(
        sqlite3, "connect", lambda place, **named: connect(place, factory=Careless, **named)
    )
    index = IndexDatabase()
    index.put(record("one"), ["secret"], (), None)
    index.drop("one")
    assert b"secret" in index.serialize()


def test_bytes_that_are_no_database_are_refused() -> None:
    index = IndexDatabase()
    index.put(record("one"), ["tea"], (), None)
    data = index.serialize()
    empty = sqlite3.connect(":memory:")
    empty.execute("create table other (one)")
    for wrong in (b"x", data[: len(data) // 2], empty.serialize()):
        with pytest.raises(ValueError, match="database"):
            IndexDatabase(wrong)
    empty.close()


def test_an_empty_index_finds_nothing() -> None:
    index = IndexDatabase()
    assert index.score([part({"tea": 1.0})], 5, ROLES) == {}
    assert index.count_entries(["tea"]) == {}
    assert index.drop("nowhere") is None
    assert (index.find("unknown"), index.record(1), index.at("nowhere")) == (None, None, None)


def test_records_are_found_by_place_number_identity_and_digest() -> None:
    index = IndexDatabase()
    number = index.put(record("one", role=Role.FACT, digest="d"), ["tea"], (), None)
    index.put(record("two", digest="d"), ["tea"], (), None)
    expected = msgspec.structs.replace(record("one", role=Role.FACT, digest="d"), number=number)
    assert index.at("one") == index.record(number) == index.find("one") == expected
    assert index.facts("d") == [expected]
    # Of copies with the same identity, the oldest.
    index.put(record("one", minutes=-5, place="copy"), ["tea"], (), None)
    found = index.find("one")
    assert found is not None
    assert found.place == "copy"
    assert [one.place for one in index] == ["copy", "one", "two"]


def test_odd_words_are_no_syntax() -> None:
    index = IndexDatabase()
    number = index.put(record("one"), ["\u010daj", "\u8336", "it's", "or"], ["x"], None)
    for word in ("\u010daj", "\u8336", "it's", "or"):
        assert set(index.score([part({word: 1.0})], 5, ROLES)) == {number}
    assert index.score([part({"near": 1.0, "and": 1.0, "@": 1.0})], 5, ROLES) == {}
