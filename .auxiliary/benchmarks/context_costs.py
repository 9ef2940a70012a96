"""Measures the cost of a long conversation with a prompt cache: compacted, trimmed, or unchanged.

    python .auxiliary/benchmarks/context_costs.py TRAJECTORIES.json [--windows 32768,131072]
        [--scale 1.0]

TRAJECTORIES.json is `historical_trajectories/gpt-4o-airline.json` of github.com/sierra-research/
tau-bench (MIT), or another file in its format: a list of `{"traj": [messages of the Chat API]}`.
Trajectories are joined until a conversation has three windows of tokens. Each is replayed request
by request through the library, with a model that gives the replies of the file and a summary of
first sentences. Tokens are counted as the library estimates them, times `--scale`.

Policies: `off` sends everything, even beyond the window. `trim` drops the oldest messages in each
request, down to 80 % of the window. `ours` is the library as configured by default.

The cache: a request reads the longest beginning that an earlier one wrote, in messages; all come
within its time to live. Beginnings of less than 1,024 tokens are not cached. Anthropic's is written
at the library's four marks (tools, system, the last two messages of the user) and found up to 20
blocks before a mark. Prices per token, with those of input that is not cached as 1: Anthropic
writes 1.25, reads 0.1; OpenAI writes 1, reads 0.1; output, only of summaries because replies are
the same under all policies, 5 and 8.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from context_replay import ReplayModel, Sent, Step, digests_of, infer_schema

from vibe_llms import Invoker, open_session
from vibe_llms.conversations.context_use import measure_tools
from vibe_llms.conversations.context_window import CHARACTERS_PER_TOKEN, measure_tokens
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent

WINDOWS = (32_768, 131_072)
#: Windows of tokens that each conversation has at least.
FILLED = 3
#: A window that is never full.
ENDLESS = 1 << 40
TRIMMED = 0.8
#: Tokens of the shortest cached beginning, and messages that a mark is searched back for.
LEAST, BACK = 1_024, 20


@dataclass(frozen=True)
class Prices:
    """Prices per token as multiples of that of input without a cache; `marked` as Anthropic."""

    name: str
    write: float
    read: float
    output: float
    marked: bool


PRICES = (Prices("Anthropic", 1.25, 0.1, 5, True), Prices("OpenAI", 1.0, 0.1, 8, False))


class PromptCache:
    """The beginnings of requests that a provider has, by a running hash."""

    def __init__(self, *, marked: bool) -> None:
        self._marked = marked
        self._known: set[int] = set()

    def read(self, sent: Sent, sizes: Sequence[int]) -> int:
        """Return the tokens of a request that are read from the cache, and write the others."""
        beginnings: list[int] = []
        tools = tuple(one.name for one in sent.tools)
        before = 0
        for part in (tools, *map(_key, sent.messages)):
            beginnings.append(before := hash((before, part)))
        totals = [*accumulate(sizes)]
        marks = [*self._find_marks(sent.messages)] if self._marked else range(len(beginnings))
        back = BACK if self._marked else 0
        found = max(
            (
                place
                for mark in marks
                for place in range(max(mark - back, 0), mark + 1)
                if beginnings[place] in self._known
            ),
            default=None,
        )
        self._known.update(beginnings[mark] for mark in marks if totals[mark] >= LEAST)
        return 0 if found is None else totals[found]

    def _find_marks(self, messages: Sequence[Canister]) -> Iterator[int]:
        """Yield the places of marks, where 0 are the tools and 1 is the first message."""
        yield 0
        yield sum(isinstance(one, SupervisorCanister) for one in messages)
        ends = [
            place
            for place, one in enumerate(messages, 1)
            if _is_said(one) and (place == len(messages) or not _is_said(messages[place]))
        ]
        yield from ends[-2:]


def _is_said(canister: Canister) -> bool:
    return isinstance(canister, UserCanister | ResultCanister | DocumentCanister)


def _key(canister: Canister) -> tuple[object, ...]:
    """Return the parts of a message that a provider gets."""
    if isinstance(canister, InvocationCanister):
        return (canister.name, canister.arguments)
    texts = (one.data for one in canister.contents if isinstance(one, TextualContent))
    return (type(canister).__name__, *texts)


@dataclass
class Bill:
    """The tokens of all requests of some conversations under one policy, at some prices."""

    prices: Prices
    read: int = 0
    written: int = 0
    summaries: int = 0
    orders: int = 0
    longest: int = 0
    digests: int = 0
    refused: int = 0
    _cache: PromptCache = field(init=False)

    def begin(self) -> None:
        self._cache = PromptCache(marked=self.prices.marked)

    def add(self, sent: Sent, scale: float) -> None:
        sizes = [measure_tools(sent.tools), *map(measure_tokens, sent.messages)]
        read = round(scale * self._cache.read(sent, sizes))
        self.read += read
        self.written += sent.tokens - read
        self.longest = max(self.longest, sent.tokens)
        if sent.order:
            self.orders += 1
            self.summaries += sent.output

    @property
    def cost(self) -> float:
        prices = self.prices
        written, read = self.written * prices.write, self.read * prices.read
        return written + read + self.summaries * prices.output


def trim(limit: float, scale: float) -> Callable[[Sequence[Canister]], Sequence[Canister]]:
    """Return a function that drops the oldest messages of a request that is longer."""

    def prepare(messages: Sequence[Canister]) -> Sequence[Canister]:
        system = [one for one in messages if isinstance(one, SupervisorCanister)]
        others = [one for one in messages if not isinstance(one, SupervisorCanister)]
        sizes = [scale * measure_tokens(one) for one in others]
        left = limit - scale * sum(map(measure_tokens, system)) - sum(sizes)
        start = 0
        # A result without its call is refused.
        while start < len(others) and (left < 0 or isinstance(others[start], ResultCanister)):
            left += sizes[start]
            start += 1
        return [*system, *others[start:]]

    return prepare


@dataclass
class Dialogue:
    """A conversation to replay: instructions, and per message of the user, replies and results."""

    system: str
    turns: list[tuple[str, list[Step], list[str]]] = field(default_factory=list)
    tokens: int = 0

    def join(self, trajectory: Sequence[Mapping[str, Any]]) -> None:
        for message in trajectory:
            text = message.get("content") or ""
            self.tokens += len(text) // CHARACTERS_PER_TOKEN
            match message["role"]:
                case "user":
                    self.turns.append((text, [], []))
                case "assistant":
                    calls = [
                        (one["function"]["name"], one["function"]["arguments"])
                        for one in message.get("tool_calls") or ()
                    ]
                    self.turns[-1][1].append(Step(text, calls))
                    self.tokens += sum(len(one[1]) for one in calls) // CHARACTERS_PER_TOKEN
                case "tool":
                    self.turns[-1][2].append(text)
                case other:
                    assert other == "system", other

    def close(self) -> None:
        """End every turn with a reply without calls, as the library does."""
        for _, steps, _ in self.turns:
            if not steps or steps[-1].calls:
                steps.append(Step("Done."))


def read_dialogues(path: Path, least: int) -> Sequence[Dialogue]:
    """Join the trajectories of a file to conversations of at least these tokens."""
    made: list[Dialogue] = []
    current: Dialogue | None = None
    for one in json.loads(path.read_text("utf-8")):
        system, *trajectory = one["traj"]
        if current is None:
            current = Dialogue(system["content"])
        current.join(trajectory)
        if current.tokens >= least:
            current.close()
            made.append(current)
            current = None
    if not made:
        sys.exit(f"{path} has fewer than {least:,} tokens; choose a smaller window")
    return made


def produce_tools(dialogue: Dialogue, results: list[str]) -> Sequence[Invoker]:
    """Return the tools of a conversation, which return the results in order."""
    calls: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for _, steps, _ in dialogue.turns:
        for step in steps:
            for name, arguments in step.calls:
                calls[name].append(json.loads(arguments))

    async def answer(_arguments: str, _context: InvocationContext) -> InvocationOutput:
        return InvocationOutput((TextualContent(results.pop(0)),))

    return [
        Invoker(
            name=name,
            description=f"The tool {name} of the airline.",
            arguments_schema=infer_schema(known),
            invoke=answer,
        )
        for name, known in sorted(calls.items())
    ]


async def replay(
    dialogue: Dialogue, policy: str, window: int, bills: Sequence[Bill], scale: float
) -> None:
    """Replay one conversation under a policy, and add its requests to the bills."""

    def watch(sent: Sent) -> None:
        for bill in bills:
            bill.add(sent, scale)

    for bill in bills:
        bill.begin()
    model = ReplayModel(window if policy == "ours" else ENDLESS, watch, scale)
    if policy == "trim":
        model.prepare = trim(TRIMMED * window, scale)
    results: list[str] = []
    tools = produce_tools(dialogue, results)
    with tempfile.TemporaryDirectory() as home:
        configuration = {"tools": {"max-rounds": 1_000}}
        async with open_session(home=home, configuration=configuration) as session:
            conversation = await session.begin(
                model, supervisor=dialogue.system, save=False, invokers=tools
            )
            for text, steps, answers in dialogue.turns:
                model.steps[:], results[:] = steps, answers
                await conversation.converse(text)
                assert not model.steps, "a reply was not asked for"
            for bill in bills:
                bill.digests += len(digests_of(conversation.canisters))
                bill.refused += model.refused


async def measure(
    dialogues: Sequence[Dialogue], window: int, scale: float
) -> Mapping[str, Sequence[Bill]]:
    """Return the bills by policy."""
    made: dict[str, Sequence[Bill]] = {}
    for policy in ("off", "trim", "ours"):
        made[policy] = bills = [Bill(prices) for prices in PRICES]
        for dialogue in dialogues:
            await replay(dialogue, policy, window, bills, scale)
    return made


def draw(window: int, bills: Mapping[str, Sequence[Bill]]) -> Iterator[str]:
    """Yield the rows of the table for one window."""
    for place, prices in enumerate(PRICES):
        off, trimmed = (bills[policy][place] for policy in ("off", "trim"))
        # Sending everything writes each token once, apart from what is too short to be cached.
        new = off.written
        for policy, given in bills.items():
            bill = given[place]
            yield (
                f"| {window:,} | {prices.name} | {policy} | {bill.cost / off.cost:.2f} | "
                f"{bill.cost / trimmed.cost:.2f} | {bill.longest / window:.2f} | "
                f"{bill.written / new:.2f} | {bill.digests} | {bill.summaries:,} |"
            )


def main() -> int:
    """Measure, print the table, and return 1 if a request was too long or ours cost most."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)))
    parser.add_argument("--scale", type=float, default=1.0, help="tokens per estimated token")
    options = parser.parse_args()
    print(
        "| window | prices | policy | cost of off | cost of trim | longest request | "
        "rewrite factor | digests | tokens of summaries |"
    )
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    held = True
    for window in map(int, options.windows.split(",")):
        dialogues = read_dialogues(options.data, FILLED * window)
        bills = asyncio.run(measure(dialogues, window, options.scale))
        print(*draw(window, bills), sep="\n", flush=True)
        for ours, *others in zip(bills["ours"], bills["off"], bills["trim"], strict=True):
            held &= ours.longest <= window and not ours.refused
            held &= all(ours.cost < one.cost for one in others)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
