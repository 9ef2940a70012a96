"""How much of what answers a question is left after digests, or found by `reread`.

    python .auxiliary/benchmarks/context_locomo.py DATA.json [--windows 32768,8192]

DATA.json has the format of `memory_retrieval.py`. Each dialogue is replayed as a conversation of a
user and a model, which is compacted as it grows, with a summary of first sentences. Each question
is asked after the last turn. `request` is the share of the passages that answer it whose whole text
is in the next request: in the digest, in messages that it keeps, or in later ones. `reread` is the
share in what the tool returns for the words of the question, at most 6,000 characters, and `both`
the share in one of the two. The full history has all of them. Questions of category 5, which
nothing answers, are not asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from context_replay import ReplayModel, Step, digests_of, reread

from vibe_llms import Conversation, open_session
from vibe_llms.conversations.context_view import ContextView

WINDOWS = (32_768, 8_192)
UNANSWERABLE = 5
MEASURES = ("request", "reread", "both")


async def replay(
    dialogue: Mapping[str, Any], conversation: Conversation, model: ReplayModel
) -> None:
    """Say the messages of the first speaker, to which the model answers those of the other."""
    items = dialogue["items"]
    user = items[0]["speaker"]
    spoken = [
        (speaker == user, "\n".join(f"{speaker}: {one['text']}" for one in said))
        for speaker, said in groupby(items, key=lambda one: one["speaker"])
    ]
    for place in range(0, len(spoken), 2):
        answer = spoken[place + 1][1] if place + 1 < len(spoken) else "Goodbye."
        model.steps[:] = [Step(answer)]
        await conversation.converse(spoken[place][1])


def read_request(conversation: Conversation) -> str:
    """Return the text of all messages of the next request."""
    shown = ContextView().apply(conversation.canisters)
    return "\n".join(one.text for one in shown if hasattr(one, "text"))


async def measure(
    dialogues: Sequence[Mapping[str, Any]], window: int
) -> tuple[int, Sequence[tuple[int, tuple[float, ...]]]]:
    """Return the number of digests, and the shares of each question with its category."""
    digests, rows = 0, list[tuple[int, tuple[float, ...]]]()
    with tempfile.TemporaryDirectory() as home:
        async with open_session(home=home) as session:
            for dialogue in dialogues:
                model = ReplayModel(window)
                conversation = await session.begin(model, save=False)
                await replay(dialogue, conversation, model)
                digests += len(digests_of(conversation.canisters))
                texts = {one["id"]: one["text"] for one in dialogue["items"]}
                request = read_request(conversation)
                for question in dialogue["questions"]:
                    if question["category"] == UNANSWERABLE:
                        continue
                    found = await reread(conversation, words=question["question"])
                    wanted = [texts[one] for one in set(question["evidence"])]
                    shares = tuple(
                        sum(any(one in text for text in read) for one in wanted) / len(wanted)
                        for read in ((request,), (found,), (request, found))
                    )
                    rows.append((question["category"], shares))
    return digests, rows


def draw(rows: Sequence[tuple[int, tuple[float, ...]]]) -> Iterator[str]:
    """Yield the lines of the table, by category and for all questions."""
    by_category: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for category, shares in sorted(rows):
        by_category[str(category)].append(shares)
    by_category["all"] = [shares for _, shares in rows]
    for name, asked in by_category.items():
        means = (100 * sum(column) / len(asked) for column in zip(*asked, strict=True))
        yield f"{name:9} {len(asked):5} " + " ".join(f"{mean:8.1f}" for mean in means)


def main() -> None:
    """Measure, and print a table for each window."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)))
    options = parser.parse_args()
    dialogues = json.loads(options.data.read_text("utf-8"))
    for window in map(int, options.windows.split(",")):
        digests, rows = asyncio.run(measure(dialogues, window))
        print(f"window {window:,}: {len(dialogues)} dialogues, {digests} digests")
        print(f"{'category':9} {'asked':>5} " + " ".join(f"{name:>8}" for name in MEASURES))
        print(*draw(rows), sep="\n", flush=True)


if __name__ == "__main__":
    main()
