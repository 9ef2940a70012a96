"""What a turn costs to take into memory: of a short conversation, and of a long one.

    python .auxiliary/benchmarks/memory_ingestion.py [--turns 1000] [--max-entries 500]

A conversation of so many turns is taken in, one by one, with a script in place of a model. Each row
is the median of ten turns, of which the last is named: milliseconds, and files that are read.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.askers import ScriptedAsker, finds, sums_up

from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.ingestion import Ingestion, IngestionSettings
from vibe_llms.messages.canisters import AssistantCanister, UserCanister

TALK = "abcdefgh2345"
AT_ONCE = 10


class CountedFiles(MemoryFiles):
    """Files that count how often one is read."""

    reads = 0

    def read(self, scope: Scope, place: str) -> Entry:
        """The same as of any other files."""
        CountedFiles.reads += 1
        return super().read(scope, place)


async def measure(turns: int, most: int) -> None:
    """Take turns in, and print a row for the tenth, the hundredth, and so on."""
    asker = ScriptedAsker(findings=[finds()], summary=[sums_up("They spoke of boats and sails.")])
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(Path(folder), durable=False)
        memory._store.files.__class__ = CountedFiles
        settings = IngestionSettings(max_entries=most)
        ingestion = Ingestion(memory, asker, settings, scope=Scope.of_user("ada"))
        rows: list[tuple[float, int]] = []
        print("| turn | ms | files read |\n| --- | --- | --- |")
        for number in range(1, turns + 1):
            said = UserCanister.from_text(f"I own a boat that has {number} sails and an anchor.")
            answered = AssistantCanister.from_text(f"That is a fine boat, with {number} sails.")
            before, begun = CountedFiles.reads, time.perf_counter()
            await ingestion.take_in([said, answered], conversation=TALK)
            rows.append(((time.perf_counter() - begun) * 1000, CountedFiles.reads - before))
            if number in (AT_ONCE, turns) or number % max(turns // 4, AT_ONCE) == 0:
                spans, reads = zip(*rows[-AT_ONCE:], strict=True)
                print(
                    f"| {number} | {statistics.median(spans):.1f} | {statistics.median(reads):g} |"
                )
        await memory.close()


def main() -> None:
    """Measure as the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=1000, help="how long the conversation becomes")
    parser.add_argument("--max-entries", type=int, default=500, help="of [memory.ingestion]")
    options = parser.parse_args()
    asyncio.run(measure(options.turns, options.max_entries))


if __name__ == "__main__":
    main()
