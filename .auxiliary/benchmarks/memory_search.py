"""How long a search of memory takes, from the question to the entries, compared with SQLite's FTS5.

    python .auxiliary/benchmarks/memory_search.py [--sizes 10000 100000] [--adding]
        [--stores files postgres]

Entries are made of invented words, as often as words are (Zipf); a question is four words of an
entry and a name. They lie in a store, and the index has been made. It is measured with
words alone, and with vectors too; those are invented as well, and the question's own is not
measured. `--adding` compares adding facts with making their vectors alone, by all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sqlite3
import statistics
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from memory_stores import STORES, OpenStore, stores

from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Entry, Role
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.messages.identities import produce_identity

SIZES = (10_000, 100_000)
QUESTIONS = 200
ROUNDS = 4
FOUND = 60
#: Entries that are written as one change.
BATCH = 500
VOCABULARY = 30_000
DIMENSIONS = 384
#: Each vector is a part of so many random numbers.
_NUMBERS = 4_000_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class InventedEmbedder:
    """Vectors that mean nothing, quickly made: as many of each text, and as long, as real ones."""

    model = "invented"

    def __init__(self) -> None:
        #: How long it took in all.
        self.seconds = 0.0
        self._numbers: Any = None

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text, the same for the same one."""
        import numpy as np

        begun = time.perf_counter()
        if self._numbers is None:
            self._numbers = np.random.default_rng(1).normal(size=_NUMBERS).astype("float32")
        found = []
        for text in texts:
            place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
            place %= _NUMBERS - DIMENSIONS
            vector = self._numbers[place : place + DIMENSIONS]
            found.append(array("f", (vector / np.sqrt(vector @ vector)).tobytes()))
        self.seconds += time.perf_counter() - begun
        return found

    async def close(self) -> None:
        """Nothing is held."""


def produce_texts(count: int, chance: random.Random) -> Sequence[str]:
    """Entries of 8 to 30 words, two sentences each."""
    words = [
        "".join(chance.choices("abcdefghiklmnoprstuv", k=chance.randrange(4, 9)))
        for _ in range(VOCABULARY)
    ]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    lengths = [chance.randrange(4, 15) for _ in range(2 * count)]
    drawn = iter(chance.choices(words, weights, k=sum(lengths)))
    sentences = [" ".join(next(drawn) for _ in range(length)) for length in lengths]
    return [f"{one}. {other}." for one, other in zip(sentences[::2], sentences[1::2], strict=True)]


def produce_questions(texts: Sequence[str], chance: random.Random) -> Sequence[str]:
    """Questions of four words of an entry and a name."""
    return [
        " ".join(
            (
                *chance.sample(chance.choice(texts).replace(".", "").split(), 4),
                chance.choice(("Ada", "Ben")),
            )
        )
        for _ in range(QUESTIONS)
    ]


def fill(store: MemoryStore, texts: Sequence[str]) -> None:
    """Write the entries as turns of one conversation."""
    entries = (
        Entry(
            content=text,
            identity=produce_identity(),
            role=Role.USER,
            created=BEGIN + timedelta(minutes=number),
            speaker=("Ada", "Ben")[number % 2],
            conversation="benchmark",
        )
        for number, text in enumerate(texts)
    )
    while batch := [*islice(entries, BATCH)]:
        with store.changing(GLOBAL):
            for entry in batch:
                store.write(entry)


async def measure(
    search: Callable[[str], Awaitable[object]], questions: Sequence[str]
) -> tuple[float, float]:
    """The median and the tenth worst of a hundred, in milliseconds."""
    times = []
    for question in questions:
        start = time.perf_counter()
        await search(question)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), statistics.quantiles(times, n=10)[-1]


def produce_plain(texts: Sequence[str]) -> Callable[[str], Awaitable[object]]:
    """FTS5 over the same: the text, that of the two before it, and who said it."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "create virtual table words using fts5(text, before, speaker, content='', "
        "tokenize='porter unicode61 remove_diacritics 2')"
    )
    for number, text in enumerate(texts):
        before = " ".join(texts[max(number - 2, 0) : number])
        row = (number + 1, text, before, ("Ada", "Ben")[number % 2])
        database.execute("insert into words (rowid, text, before, speaker) values (?,?,?,?)", row)

    async def search(question: str) -> object:
        wanted = " OR ".join(f'"{word}"' for word in question.split())
        return database.execute(
            "select rowid from words where words match ? order by bm25(words, 1, 0.5, 2) limit ?",
            (wanted, FOUND),
        ).fetchall()

    return search


async def compare(size: int, names: Sequence[str], chance: random.Random) -> None:
    """Measure a size, and print a line for each way and store."""
    texts = produce_texts(size, chance)
    questions = produce_questions(texts, chance)
    plain, _ = await measure(produce_plain(texts), questions)
    for name in names:
        with stores(name) as open_store:
            fill(open_store("benchmark"), texts)
            for way, embedder in (("words", None), ("words and vectors", InventedEmbedder())):
                made, p50, p90 = await measure_store(open_store, embedder, questions)
                loaded, _, _ = await measure_store(open_store, embedder, questions[:1])
                print(
                    f"{size:>7} entries in {name}, {way}: p50 {p50:.1f} ms, p90 {p90:.1f} ms; "
                    f"FTS5 p50 {plain:.1f} ms, {p50 / plain:.2f} of it; index made in {made:.2f} s "
                    f"and loaded in {loaded:.2f} s",
                    flush=True,
                )


async def measure_store(
    open_store: OpenStore, embedder: Embedder | None, questions: Sequence[str]
) -> tuple[float, float, float]:
    """The seconds until the first answer, and the figures of all questions."""
    memory = Memory(open_store("benchmark"), embedder=embedder)

    async def search(question: str) -> object:
        return await memory.search(question, scopes=[GLOBAL])

    start = time.perf_counter()
    await search("anything")
    made = time.perf_counter() - start
    p50, p90 = await measure(search, [*questions, *questions[:1]])
    await memory.close()
    return made, p50, p90


async def compare_adding(embedder: Embedder, count: int, chance: random.Random) -> None:
    """Measure what adding facts costs compared with making their vectors alone."""
    from memory_retrieval import check_embedder

    await check_embedder(embedder)
    await embedder.embed(produce_texts(8, chance))
    alone = ours = 0.0
    for _ in range(ROUNDS):
        texts = produce_texts(2 * count, chance)
        start = time.perf_counter()
        for at in range(0, count, 64):
            batch = texts[at : at + 64]
            await embedder.embed([part for text in batch for part in text.split(". ")])
        alone += time.perf_counter() - start
        with tempfile.TemporaryDirectory() as name:
            memory = Memory(Path(name), embedder=embedder)
            start = time.perf_counter()
            for text in texts[count:]:
                await memory.add(text)
            await memory.embed()
            ours += time.perf_counter() - start
    print(
        f"adding {ROUNDS} times {count} facts: {ours:.2f} s, their vectors alone {alone:.2f} s, "
        f"{ours / alone:.2f} of it"
    )


def main() -> None:
    """Measure, and print a line for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--stores", choices=STORES, nargs="+", default=["files"])
    parser.add_argument("--adding", action="store_true", help="measure adding instead")
    options = parser.parse_args()
    chance = random.Random(1)
    if options.adding:
        from memory_retrieval import produce_minilm

        asyncio.run(compare_adding(produce_minilm(), 200, chance))
        return
    for size in options.sizes:
        asyncio.run(compare(size, options.stores, chance))


if __name__ == "__main__":
    main()
