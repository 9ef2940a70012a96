"""Measures the time to keep requests within the window: to decide, and to make a digest.

    python .auxiliary/benchmarks/run.py context                 the rows of the performance page
    python .auxiliary/benchmarks/context_turns.py --against SOURCES

With `--against`, a turn at the end of a conversation, below the size at which it is compacted, is
measured with this version and with another one, whose folder `sources` is given, in processes that
take turns. Prints the ratio of CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from asyncio import events
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interfaces import CHAT
from measure import KEY, Row, cpu_seconds, loopback, ratio_row, settle
from turns import ROOMY, produce_history

LENGTH = 5_000
#: Seconds of CPU for deciding, and for one step of the event loop.
DECIDING, STEP = 1e-3, 50e-3
_TURNS = 40
SUMMARY = "## Goal\nA boat.\n## Decisions\n- Oak, because it lasts."


def measure_deciding(runs: int) -> list[Row]:
    """The CPU time of deciding before a request, at the end of a long conversation."""
    from vibe_llms.conversations.context_view import ContextView
    from vibe_llms.conversations.context_window import TokenMeter
    from vibe_llms.messages.canisters import Canister, DigestCanister, UserCanister
    from vibe_llms.messages.contents import TextualContent

    rows: list[Row] = []
    for name, digested in (("no digest", False), ("a digest", True)):
        history = produce_history(LENGTH)
        if digested:
            first, last = history[0].identity, history[LENGTH // 10].identity
            digest = DigestCanister((TextualContent("x"),), first=first, last=last)
            history.insert(LENGTH // 5, digest)
        view, meter = ContextView(), TokenMeter()
        meter.estimate(view.apply(history), ())
        said: Sequence[Canister] = [UserCanister.from_text("and now?")]
        taken: list[float] = []
        for _ in range(max(runs * 20, 100)):
            history.append(UserCanister.from_text("one more"))
            start = time.thread_time()
            tokens = meter.estimate(view.apply(history), said)
            taken.append(time.thread_time() - start)
            assert tokens
        what = f"deciding before a request, {LENGTH:,} messages and {name}"
        samples = {"ours": taken, "1 ms": [DECIDING] * len(taken)}
        rows.append(ratio_row(what, samples, "ms", scale=1e3, bars={"1 ms": 1.0}))
    return rows


def measure_compacting(runs: int) -> list[Row]:
    """The CPU time of one plan and of one whole compaction, and the longest step on the loop."""
    return asyncio.run(_measure_compacting(runs))


async def _measure_compacting(runs: int) -> list[Row]:
    from context_replay import ReplayModel

    from vibe_llms import open_session
    from vibe_llms.conversations.context_plans import ContextSize, plan
    from vibe_llms.conversations.context_window import measure_tokens

    history = produce_history(LENGTH)
    total = sum(map(measure_tokens, history))
    size = ContextSize(
        tokens=total,
        overhead=0,
        estimated=total,
        target=total * 2 // 5,
        summary=2_000,
        limit=total,
    )
    planned, whole, steps = list[float](), list[float](), list[float]()
    async with open_session() as session:
        for _ in range(runs):
            settle()
            start = time.thread_time()
            plan(history, size)
            planned.append(time.thread_time() - start)
            # The model's own work is not measured.
            model = ReplayModel(total * 5 // 4, summarize=lambda _: SUMMARY, count=lambda _: total)
            conversation = await session.begin(model, history=history, save=False)
            start = cpu_seconds()
            with _watch_steps() as longest:
                turn = await conversation.compact()
            whole.append(cpu_seconds() - start)
            assert turn.canisters, "no digest was made"
            steps.append(longest[0])
    figures = {"a plan": planned, "a compaction": whole}
    rows = [
        Row(f"{name}, {LENGTH:,} messages", {"ours": statistics.median(taken) * 1e3}, "ms")
        for name, taken in figures.items()
    ]
    samples = {"ours": steps, "50 ms": [STEP] * len(steps)}
    what = f"longest step of the event loop in a compaction, {LENGTH:,} messages"
    return [*rows, ratio_row(what, samples, "ms", scale=1e3, bars={"50 ms": 1.0})]


@contextmanager
def _watch_steps() -> Iterator[list[float]]:
    """Give a list whose only item is the most CPU time of one step of the event loop."""
    longest = [0.0]
    run = events.Handle._run

    def run_step(handle: events.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - begun)

    events.Handle._run = run_step  # type: ignore[method-assign, assignment]
    try:
        yield longest
    finally:
        events.Handle._run = run  # type: ignore[method-assign]


async def _time_turns() -> None:
    """Print the CPU time of each of some turns; this also runs with other versions."""
    from vibe_llms import open_session

    row, history = CHAT.row, produce_history(LENGTH)
    with loopback("short", "1", CHAT.name) as url:
        models = {CHAT.model: {"context-tokens": ROOMY}}
        configuration = {"providers": {row: {"base-url": url, "models": models}}}
        async with open_session(keys={row: KEY}, configuration=configuration) as session:
            conversation = await session.begin(f"{row}/{CHAT.model}", history=history, save=False)
            await conversation.converse("and now?")
            settle()
            for _ in range(_TURNS):
                start = cpu_seconds()
                await conversation.converse("and now?")
                print(cpu_seconds() - start)


def _compare(other: Path, runs: int) -> None:
    own = Path(__file__).parents[2] / "sources"
    samples: dict[str, list[float]] = {"ours": [], "the other": []}
    for _ in range(runs):
        for name, sources in (("ours", own), ("the other", other)):
            done = subprocess.run(
                [sys.executable, __file__, "--turns"],
                env={**os.environ, "PYTHONPATH": str(sources.resolve())},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            samples[name].append(statistics.median(map(float, done.stdout.split())))
    row = ratio_row("a turn", samples, "ms", scale=1e3)
    figures = ", ".join(f"{name} {value:.2f} ms" for name, value in row.figures.items())
    print(
        f"CPU of a turn after {LENGTH:,} messages: {figures}; ratio {row.ratios['the other']:.3f}"
    )


def main() -> None:
    """Compare two versions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="the folder `sources` of another version")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns:
        asyncio.run(_time_turns())
    elif options.against is not None:
        _compare(options.against, options.runs)
    else:
        parser.error("give --against, or use run.py")


if __name__ == "__main__":
    main()
