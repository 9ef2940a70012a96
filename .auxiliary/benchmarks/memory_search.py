"""How long memory takes to find something, beside SQLite's FTS5 over the same entries.

    python .auxiliary/benchmarks/memory_search.py

Entries are made of invented words, as often as words are (Zipf); a question is four words of an
entry and a name. The index alone is measured, as it is once a process has read it, and the
processor's time.
"""

from __future__ import annotations

import heapq
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from vibe_llms.memory.lexical import LexicalIndex, rarity_of
from vibe_llms.memory.words import label, split_query, split_words

SIZES = (10_000, 100_000)
QUESTIONS = 200
FOUND = 60
VOCABULARY = 30_000


def produce_texts(count: int, chance: random.Random) -> Sequence[str]:
    """Entries of 8 to 30 words."""
    words = [
        "".join(chance.choices("abcdefghiklmnoprstuv", k=chance.randrange(4, 9)))
        for _ in range(VOCABULARY)
    ]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    lengths = [chance.randrange(8, 30) for _ in range(count)]
    drawn = iter(chance.choices(words, weights, k=sum(lengths)))
    return [" ".join(next(drawn) for _ in range(length)) for length in lengths]


def measure(search: Callable[[str], object], questions: Sequence[str]) -> tuple[float, float]:
    """The median and the tenth worst of a hundred, in milliseconds."""
    times = []
    for question in questions:
        start = time.process_time()
        search(question)
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times), statistics.quantiles(times, n=10)[-1]


def produce_ours(texts: Sequence[str]) -> Callable[[str], object]:
    """Our index over some entries, each the next turn after the one before."""
    index = LexicalIndex()
    for number, text in enumerate(texts):
        created = datetime(2026, 1 + number % 12, 1 + number % 28, tzinfo=UTC)
        index.add(split_words(text), label(("Ada", "Ben")[number % 2], created))
        if number:
            index.link(number - 1, number)

    def search(question: str) -> object:
        rarities = {
            word: rarity_of(index.frequency(word), index.count) for word in split_query(question)
        }
        scores = index.score(rarities)
        return heapq.nlargest(FOUND, scores, key=scores.__getitem__)

    return search


def produce_plain(texts: Sequence[str]) -> Callable[[str], object]:
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

    def search(question: str) -> object:
        wanted = " OR ".join(f'"{word}"' for word in question.split())
        return database.execute(
            "select rowid from words where words match ? order by bm25(words, 1, 0.5, 2) limit ?",
            (wanted, FOUND),
        ).fetchall()

    return search


def main() -> None:
    """Measure, and print a line for each size."""
    chance = random.Random(1)
    for size in SIZES:
        texts = produce_texts(size, chance)
        questions = [
            " ".join(
                (*chance.sample(chance.choice(texts).split(), 4), chance.choice(("Ada", "Ben")))
            )
            for _ in range(QUESTIONS)
        ]
        ours, ours_late = measure(produce_ours(texts), questions)
        plain, _ = measure(produce_plain(texts), questions)
        print(
            f"{size:>7} entries: p50 {ours:.1f} ms, p90 {ours_late:.1f} ms; "
            f"FTS5 p50 {plain:.1f} ms, {ours / plain:.2f} of it"
        )


if __name__ == "__main__":
    main()
