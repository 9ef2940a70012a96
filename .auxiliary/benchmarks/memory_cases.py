"""Which of the cases of tests/memory/data/cases.toml memory gets right, by kind.

    python .auxiliary/benchmarks/memory_cases.py [--half tuning] [--failures]

The rows are settings: as shipped, and with recency, diversity and both.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.memory.cases import KINDS, LIMIT, Half, Outcome, ask_all, count

from vibe_llms.memory.retrieval import RetrievalSettings

ROWS = {
    "as shipped": RetrievalSettings(limit=LIMIT),
    "recency-weight = 0.2": RetrievalSettings(limit=LIMIT, recency_weight=0.2),
    "mmr-lambda = 0.7": RetrievalSettings(limit=LIMIT, mmr_lambda=0.7),
    "both": RetrievalSettings(limit=LIMIT, recency_weight=0.2, mmr_lambda=0.7),
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
    options = parser.parse_args()
    half: Half | None = options.half
    print(f"| settings | {' | '.join(KINDS)} | all |")
    print(f"| --- |{' --- |' * (len(KINDS) + 1)}")
    for name, settings in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            outcomes = asyncio.run(ask_all(Path(folder), settings, half=half))
        passed = count(outcomes)
        parts = [f"{good}/{every}" for good, every in passed.values()]
        total = f"{sum(one.passed for one in outcomes)}/{len(outcomes)}"
        print(f"| {name} | {' | '.join(parts)} | {total} |")
        if options.failures:
            print(*(describe(one) for one in outcomes if not one.passed), sep="\n")


if __name__ == "__main__":
    main()
