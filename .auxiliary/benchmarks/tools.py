"""What a call costs in addition to its tool: check, events, canister, and what is kept."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Row, cpu_seconds, ratio_row, settle

from vibe_llms import Conversation, Event, InvocationCanister, Invoker, open_session
from vibe_llms.testing import Part, ScriptedReply, scripted_model

CALLS = 50
#: More than this a call, in milliseconds, is too much; the bar of the issue on tools.
MOST_MILLISECONDS = 2.0


def add(city: str, days: int = 1, tags: Sequence[str] = ()) -> str:
    """Tell the weather.

    Args:
        city: Where.
        days: How many days from now.
        tags: What else is wanted.
    """
    return f"{city} {days} {len(tags)}"


async def add_later(city: str, days: int = 1, tags: Sequence[str] = ()) -> str:
    """Tell the weather."""
    return add(city, days, tags)


ARGUMENTS = {"city": "Oslo", "days": 3, "tags": ["wind", "rain"]}


def measure_tools(runs: int) -> list[Row]:
    rows = [asyncio.run(_measure(kind, runs)) for kind in ("async", "blocking")]
    return [*rows, measure_schemata(runs)]


async def _measure(kind: str, runs: int) -> Row:
    """A turn of many calls, kept without a sync, against a bare loop that does what it has to.

    The bare loop decodes the arguments, calls the function and appends two lines to a file.
    """
    tool = Invoker.from_function(add_later if kind == "async" else add, name="weather")
    names = [{**ARGUMENTS, "days": number} for number in range(CALLS)]
    parts = tuple(Part(invocation="weather", arguments=arguments) for arguments in names)
    reported: list[Event] = []
    samples: dict[str, list[float]] = {"ours": [], "bare": [], "bar": []}
    tools = {"max-calls": CALLS, "parallel": 16}
    with tempfile.TemporaryDirectory() as home:
        settings = {"storage": {"durability": "fast"}, "tools": tools}
        async with open_session(home=home, configuration=settings) as session:
            settle()
            for _ in range(runs):
                reported.clear()
                replies = iter([ScriptedReply(parts=parts), ScriptedReply.from_chunks("Done.")])
                model = scripted_model(lambda *_, replies=replies: next(replies))
                conversation = await session.begin(model, invokers=[tool])
                empty = await _time_turn(conversation, reported)
                samples["ours"].append(empty / CALLS)
                samples["bare"].append(_time_bare(Path(home) / "bare", names) / CALLS)
                samples["bar"].append(MOST_MILLISECONDS / 1e3)
    return ratio_row(
        f"a call of a tool that is {kind}, checked, reported and kept",
        samples,
        "ms",
        scale=1e3,
        bars={"bar": 1.0},
    )


async def _time_turn(conversation: Conversation, reported: list[Event]) -> float:
    start = cpu_seconds()
    await conversation.converse("Go.", event_handler=reported.append)
    seconds = cpu_seconds() - start
    assert sum(isinstance(one, InvocationCanister) for one in conversation.canisters) == CALLS
    return seconds


def _time_bare(path: Path, names: Sequence[dict[str, object]]) -> float:
    texts = [json.dumps(arguments) for arguments in names]
    start = cpu_seconds()
    for text in texts:
        values = json.loads(text)
        result = add(**values)
        for line in ({"call": text}, {"result": result}):
            with path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
    return cpu_seconds() - start


def measure_schemata(runs: int) -> Row:
    """An invoker made again from a function that was seen before, against its first time."""
    samples: dict[str, list[float]] = {"ours": [], "first": []}
    for _ in range(runs):

        def fresh(city: str, days: int = 1) -> str:
            """Tell the weather."""
            return f"{city} {days}"

        for name in ("first", "ours"):
            start = time.perf_counter()
            Invoker.from_function(fresh)
            samples[name].append(time.perf_counter() - start)
    return ratio_row(
        "a function offered as a tool once more", samples, "ms", scale=1e3, bars={"first": 0.2}
    )
