"""Needles in random conversations: what must stay is in every request, and the rest can be reread.

    python .auxiliary/benchmarks/context_needles.py [--conversations 10000] [--seed 1] [--quick]

Each conversation has random turns, tools, and sizes, in a small window, so it is compacted several
times, with a summary of first sentences. In every request, other than those for summaries, are the
whole texts of the instructions, pinned messages, the first message and the last three of the user,
and every decision: a line in a message of the user that the summary lists once, and the library
from then on. Every call has its result. At the end, `reread` returns the whole text of every
message by its id, in parts, and finds some of them by a word that only it has. Every eighth
conversation often gets summaries that cannot be used: then its decisions need not be in requests.

Prints the number of needles of each kind and how many are missing; leaves with 1 if any is.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from context_replay import ReplayModel, Sent, Step, digests_of, reread, summarize

from vibe_llms import Conversation, Invoker, Session, open_session
from vibe_llms.base.exceptions import ContextOverflow
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    Canister,
    DigestCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
)
from vibe_llms.messages.contents import TextualContent

MANY, FEW = 10_000, 200
WINDOWS = (3_000, 6_000, 12_000)
LAST_MESSAGES = 3
#: Messages of each conversation that are sought by a word.
_SOUGHT = 5
_HEAD = re.compile(r"\[[^\n]*characters \d+ to (\d+) of (\d+)[^\n]*\]\n")


@dataclass
class Tally:
    """The number of needles by kind, and of those that are missing."""

    planted: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    digests: int = 0
    requests: int = 0
    #: Largest share of a window that a request has.
    longest: float = 0.0

    def check(self, kind: str, found: bool) -> None:
        self.planted[kind] += 1
        self.missing[kind] += not found


@dataclass
class Haystack:
    """One random conversation, and what its requests must have."""

    chance: random.Random
    tally: Tally
    window: int
    broken: bool
    pinned: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    conversation: Conversation | None = None
    _words: int = 0

    def write(self, tokens: int) -> str:
        """Return a text of about these tokens, with a word that no other text has."""
        self._words += 1
        word = f"needle{self._words}"
        filler = " ".join(f"{self.chance.randrange(16**6):x}" for _ in range(tokens * 3 // 7))
        return f"{word} {filler}" if self.chance.random() < 0.5 else f"{filler}\n{word}"

    def size(self, most: float = 0.2) -> int:
        """Return a number of tokens: mostly few, sometimes this share of the window."""
        share = self.chance.choice((0.005, 0.01, 0.02, 0.05, 0.05, 0.1, 0.2))
        return max(int(self.window * min(share, most) * self.chance.random()), 4)

    def watch(self, sent: Sent) -> None:
        """Check one request."""
        tally = self.tally
        tally.requests += 1
        tally.longest = max(tally.longest, sent.tokens / self.window)
        if sent.order:
            return
        texts = {one.identity: _text_of(one) for one in sent.messages}
        every = "\n".join(texts.values())
        assert self.conversation is not None
        stored = self.conversation.canisters
        for one in stored:
            if isinstance(one, SupervisorCanister):
                tally.check("instructions", texts.get(one.identity) == one.text)
            elif one.identity in self.pinned:
                tally.check("pinned", texts.get(one.identity) == _text_of(one))
        for text in {*self.said[:1], *self.said[-LAST_MESSAGES:]}:
            tally.check("first and last messages", text in every)
        if not self.broken:
            for text in self.decisions:
                tally.check("decisions", text in every)
        calls = {one.identity for one in sent.messages if isinstance(one, InvocationCanister)}
        answered = [one.invocation for one in sent.messages if isinstance(one, ResultCanister)]
        tally.check("calls with results", calls == {*answered} and len(calls) == len(answered))

    def summarize(self, messages: Sequence[Canister]) -> str:
        """Return a usable summary, or in broken conversations often none."""
        if self.broken and self.chance.random() < 0.7:
            return self.chance.choice((" ", "I cannot do that.", self.write(self.window)))
        return summarize(messages)

    async def play(self, session: Session) -> None:
        """Talk, and check every request and then every message."""
        chance = self.chance
        tools = [
            Invoker(name=name, description=name, arguments_schema={}, invoke=self._answer)
            for name in ("look", "read")[: chance.randrange(3)]
        ]
        model = ReplayModel(self.window, self.watch, summarize=self.summarize)
        rules = self.write(20) if chance.random() < 0.8 else None
        self.conversation = conversation = await session.begin(
            model, supervisor=rules, invokers=tools, save=False
        )
        for turn in range(chance.randrange(4, 18)):
            # What must stay fits into half of the window, or else it could not.
            text = self.write(self.size(0.08))
            if chance.random() < 0.2 and len(self.decisions) < 6:
                # Decisions are listed word for word, so the line must be one sentence.
                decision = f"We decided on plan{turn}x{chance.randrange(10**6)}"
                text += f"\n{decision}\n"
                self.decisions.append(decision)
            self.said.append(text)
            model.steps[:] = [*self._reply(tools)]
            try:
                await conversation.converse(text)
            except ContextOverflow:
                self.tally.check("turns that fit", found=False)
                break
            self.tally.check("turns that fit", found=True)
            if chance.random() < 0.1 and len(self.pinned) < 2:
                await self._pin()
        self.tally.digests += len(digests_of(conversation.canisters))
        await self._read_all()

    def _reply(self, tools: Sequence[Invoker]) -> Iterator[Step]:
        chance = self.chance
        for _ in range(chance.randrange(4) if tools else 0):
            names = [chance.choice(tools).name for _ in range(chance.randrange(1, 4))]
            spoken = self.write(10) if chance.random() < 0.3 else ""
            yield Step(spoken, [(name, f'{{"path": "{self.write(4)[:20]}"}}') for name in names])
        yield Step(self.write(self.size()))

    async def _answer(self, _arguments: str, _context: InvocationContext) -> InvocationOutput:
        failed = self.chance.random() < 0.1
        return InvocationOutput((TextualContent(self.write(self.size())),), failed=failed)

    async def _pin(self) -> None:
        assert self.conversation is not None
        small = [
            one.identity
            for one in self.conversation.canisters
            if not isinstance(one, DigestCanister | SupervisorCanister)
            and len(_text_of(one)) < self.window * 3 // 25
        ]
        if small:
            self.pinned.append(identity := self.chance.choice(small))
            await self.conversation.pin(identity)

    async def _read_all(self) -> None:
        assert self.conversation is not None
        messages = [
            one
            for one in self.conversation.canisters
            if not isinstance(one, DigestCanister | SupervisorCanister)
        ]
        for one in messages:
            same = await self._read(one.identity) == _text_of(one)
            self.tally.check("messages by id", same)
        for one in self.chance.sample(messages, min(_SOUGHT, len(messages))):
            if word := re.search(r"needle\d+", _text_of(one)):
                found = await reread(self.conversation, words=word[0])
                self.tally.check("messages by a word", word[0] in found and one.identity in found)

    async def _read(self, identity: str) -> str:
        """Return the whole text of a message, read in parts."""
        assert self.conversation is not None
        parts: list[str] = []
        offset = 0
        while True:
            answer = await reread(self.conversation, id=identity, offset=offset)
            head = _HEAD.match(answer)
            if head is None:
                return answer
            parts.append(answer[head.end() :])
            offset = int(head[1])
            if offset >= int(head[2]):
                return "".join(parts)


def _text_of(canister: Canister) -> str:
    if isinstance(canister, InvocationCanister):
        return f"{canister.name} {canister.arguments}"
    return "\n".join(one.text for one in canister.contents if isinstance(one, TextualContent))


async def measure(conversations: int, seed: int) -> Tally:
    """Return the tally of some random conversations, the same for the same seed."""
    tally = Tally()
    configuration = {"tools": {"max-rounds": 100}}
    with tempfile.TemporaryDirectory() as home:
        async with open_session(home=home, configuration=configuration) as session:
            for number in range(conversations):
                chance = random.Random(f"{seed}/{number}")
                window = chance.choice(WINDOWS)
                await Haystack(chance, tally, window, broken=number % 8 == 7).play(session)
    return tally


def main() -> int:
    """Measure, print the table, and return 1 if a needle is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=MANY)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"only {FEW} conversations")
    options = parser.parse_args()
    count = FEW if options.quick else options.conversations
    tally = asyncio.run(measure(count, options.seed))
    print(
        f"{count:,} conversations, {tally.requests:,} requests, {tally.digests:,} digests; "
        f"the longest request has {tally.longest:.2f} of its window"
    )
    for kind, planted in tally.planted.items():
        print(f"{kind:24} {planted:10,} {tally.missing[kind]:6,} missing")
    return 1 if tally.missing.total() or tally.longest > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
