"""Time of the first index of a large memory, with the vectors of all entries.

    python .auxiliary/benchmarks/run.py memory

The vectors are invented and cheap, so that what is measured is the rest: reading the files,
splitting the words, keeping the vectors, sorting them into lists, and storing the index.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time

from measure import Row
from memory_search import InventedEmbedder, fill, produce_texts
from memory_stores import stores

from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL
from vibe_llms.memory.interfaces import MemoryStore

ENTRIES = 100_000
#: Indexes that are built anew, each from its files and without kept vectors.
_MOST_RUNS = 3
BAR_SECONDS = 20.0


def measure_building(runs: int) -> list[Row]:
    """The seconds until the first answer, and those of the embedder."""
    texts = produce_texts(ENTRIES, random.Random(1))
    ours: list[float] = []
    embedding: list[float] = []
    with stores("files") as open_store:
        fill(open_store("benchmark"), texts)
        for _ in range(min(runs, _MOST_RUNS)):
            store = open_store("benchmark")
            store.access_snapshots(GLOBAL).discard()
            store.vectors.discard(InventedEmbedder.model)
            took, embedder = asyncio.run(_build(store))
            ours.append(took)
            embedding.append(embedder)
    took = statistics.median(ours)
    return [
        Row(
            f"build the index of {ENTRIES:,} entries of memory, with vectors",
            {"ours": took, "of which the embedder": statistics.median(embedding)},
            "s",
            {f"{BAR_SECONDS:g} s": took / BAR_SECONDS},
            {f"{BAR_SECONDS:g} s": 1.0},
        )
    ]


async def _build(store: MemoryStore) -> tuple[float, float]:
    embedder = InventedEmbedder()
    memory = Memory(store, embedder=embedder)
    start = time.perf_counter()
    await memory.search("anything", scopes=[GLOBAL])
    took = time.perf_counter() - start
    await memory.close()
    return took, embedder.seconds
