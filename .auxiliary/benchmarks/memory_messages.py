"""How much of what answers a question memory finds if the question is within a longer message.

    python .auxiliary/benchmarks/memory_messages.py DATA.json [--every 3]

DATA.json has dialogues, as `memory_retrieval.py` describes. Each question is asked alone, and
within messages of about 30, 100 and 250 words. The other words are turns that

    else   speak of something else: they are from `tests/memory/data/cases.toml`
    same   are the last ones of the dialogue that is remembered, without those that answer

`recall` is the mean share of answers among the first ten, and `no floor` is that without a minimum.
`false` is the share of messages for which a memory finds anything that has nothing to do with them:
the same messages (`else`), asked of the memory of another dialogue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from memory_retrieval import LIMIT, UNANSWERABLE, measure

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.memory.cases import read_cases

from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.retrieval import RetrievalSettings

LENGTHS = (0, 30, 100, 250)
SCOPE = Scope.of_user("benchmark")
AS_SHIPPED = RetrievalSettings(limit=LIMIT)
NO_FLOOR = msgspec.structs.replace(AS_SHIPPED, least_relevance=0.0, least_likeness=0.0)


async def fill(folder: Path, conversation: dict[str, Any]) -> Memory:
    """Make a memory of the turns of a dialogue."""
    memory = Memory(folder, durable=False)
    for item in conversation["items"]:
        await memory.add(
            item["text"],
            scope=SCOPE,
            role=Role.USER,
            created=datetime.fromisoformat(item["created_at"]),
            speaker=item["speaker"],
            conversation=conversation["conversation"],
            turn=item["id"],
        )
    return memory


def surround(question: str, turns: Sequence[str], words: int, chance: random.Random) -> str:
    """Return a message of about so many words that has a question somewhere."""
    message: list[str] = []
    for turn in turns:
        if sum(len(one.split()) for one in message) >= words:
            break
        message.append(turn)
    message.insert(chance.randint(0, len(message)), question)
    return " ".join(message)


async def search(memory: Memory, message: str, settings: RetrievalSettings) -> list[str]:
    """Return the turns that a message finds."""
    found = await memory.search(message, scopes=[SCOPE], settings=settings)
    return [one.entry.turn for one in found]


async def measure_all(conversations: Sequence[dict[str, Any]], every: int) -> None:
    """Ask all messages, and print a line for each length."""
    chance = random.Random(1)
    others = [item.text for one in read_cases().memories.values() for item in one.entries]
    with tempfile.TemporaryDirectory() as folder:
        memories = [
            await fill(Path(folder) / str(number), one) for number, one in enumerate(conversations)
        ]
        for words in LENGTHS:
            for kind in ("else", "same") if words else ("alone",):
                recalls: list[float] = []
                bounds: list[float] = []
                wrong: list[bool] = []
                for number, conversation in enumerate(conversations):
                    questions = conversation["questions"]
                    for one in [q for q in questions if q["category"] != UNANSWERABLE][::every]:
                        wanted = set(one["evidence"])
                        start = chance.randrange(len(others) - 40)
                        turns = others[start : start + 40]
                        if kind == "same":
                            items = conversation["items"][-40:]
                            turns = [item["text"] for item in items if item["id"] not in wanted]
                        message = surround(one["question"], turns, words, chance)
                        memory = memories[number]
                        for settings, rows in ((AS_SHIPPED, recalls), (NO_FLOOR, bounds)):
                            found = await search(memory, message, settings)
                            rows.append(measure(found, wanted)[1])
                        if kind != "same":
                            stranger = memories[(number + 1) % len(memories)]
                            wrong.append(bool(await search(stranger, message, AS_SHIPPED)))
                means = [100 * sum(rows) / (len(rows) or 1) for rows in (recalls, bounds, wrong)]
                print(
                    f"{words:4} words, {kind:5} {len(recalls):5} asked  recall@10 {means[0]:5.1f}  "
                    f"no floor {means[1]:5.1f}" + (f"  false {means[2]:5.1f}" if wrong else ""),
                    flush=True,
                )
        for memory in memories:
            await memory.close()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--every", type=int, default=3, help="ask each third question, and so on")
    options = parser.parse_args()
    conversations = json.loads(options.data.read_text("utf-8"))
    asyncio.run(measure_all(conversations, options.every))


if __name__ == "__main__":
    main()
