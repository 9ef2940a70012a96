"""Chooses the messages that a digest leaves out, without asking a model.

First, identical and old results become a line each. If that is not enough, the oldest messages are
summarized, except those that must stay word for word: instructions, the first request, the last
messages of the user, and pinned messages. A call is never separated from its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate

from msgspec import Struct

from vibe_llms.conversations.context_view import SHORTENED
from vibe_llms.conversations.context_window import CHARACTERS_PER_TOKEN, measure_tokens
from vibe_llms.conversations.corrections import find_last_message, is_correction
from vibe_llms.conversations.history import (
    find_exchange,
    find_exchanges,
    may_end,
    start_of_turn,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent

#: Name of these rules in stored digests.
POLICY = "results-then-summary/1"
#: Number of the user's last messages that stay word for word.
_LAST_MESSAGES = 3
#: Tokens up to which a result is not replaced by a line.
_SHORT_RESULT = 100
#: Tokens of the shortest excerpt of a long message.
_LEAST_EXCERPT = 200
#: Share of the limit that a plan may have before messages of the user are cut.
_STRETCH = 0.85
#: Tokens of the line in place of a message.
_LINE = 50


class ContextSize(Struct, frozen=True):
    """Sizes in tokens.

    A request has `tokens` now, of which `overhead` are not the history but tools and new messages.
    By their characters, the messages of the history have `estimated` tokens. A plan aims at
    `target`, with a `summary` of this length; requests with more than `limit` tokens are refused.
    """

    tokens: int
    overhead: int
    estimated: int
    target: int
    summary: int
    limit: int

    @property
    def scale(self) -> float:
        """Tokens for each estimated token of the history."""
        # Characters differ from tokens by language and tokenizer, but not by an order of magnitude.
        scale = (self.tokens - self.overhead) / max(self.estimated, 1)
        return min(max(scale, 0.25), 4.0)

    @property
    def now(self) -> int:
        """Tokens of the request, measured as those of a plan are."""
        return self.overhead + round(self.estimated * self.scale)


class ContextPlan(Struct, frozen=True):
    """The messages that a digest leaves out.

    The first `end` messages are summarized, except those that are `kept`. Of messages in
    `shortened`, by identity, only this number of characters is sent; with 0, a line. `after` is the
    estimated number of tokens of a request.
    """

    end: int
    kept: tuple[str, ...]
    shortened: Mapping[str, int]
    after: int


class _Rules(Struct, frozen=True):
    """The number of recent results that stay, and the tokens that are sent of other messages.

    The first and last messages of the user are only cut if `said`. Without `excerpts`, longer
    messages become a line.
    """

    results: int
    most: int | None = None
    said: bool = False
    excerpts: bool = True


_SHORTEST = _Rules(0, _LINE, said=True, excerpts=False)


def plan(
    messages: Sequence[Canister],
    size: ContextSize,
    *,
    covered: int = 0,
    shortened: Mapping[str, str] = {},
    pinned: AbstractSet[str] = frozenset(),
    summarizes: bool = True,
) -> ContextPlan:
    """Return the plan that reaches the target, or else the one with the fewest tokens.

    `messages` has no digests. The last digest summarizes the first `covered` of them, and sends
    these texts in place of those in `shortened`. A plan that does not summarize covers no more, and
    does not cut messages that must stay.
    """
    measured = _measure(messages, size, shortened)
    much, little = (max(size.target // part, _LEAST_EXCERPT) for part in (8, 32))
    plans: list[ContextPlan] = []
    # Messages that must stay are worth more than the target: they are cut if nothing else fits.
    for limit, ways in (
        (size.limit * _STRETCH, (_Rules(3), _Rules(1), _Rules(0, much), _Rules(0, little))),
        (size.target, (_Rules(0, much, said=True), _Rules(0, little, said=True), _SHORTEST)),
    ):
        for rules in ways:
            if not rules.excerpts and plans[-1].after < size.limit:
                break
            planning = _Planning(messages, measured, size, covered, pinned, rules)
            made = planning.plan(summarizes=summarizes)
            if made.after <= size.target:
                return made
            plans.append(made)
        best = min(plans, key=lambda one: one.after)
        if best.after <= limit or not summarizes:
            break
    return best


def _measure(
    messages: Sequence[Canister], size: ContextSize, shortened: Mapping[str, str]
) -> Sequence[int]:
    """Return the tokens of each message, in proportion to those of the whole request."""
    counted = (
        measure_tokens(one) if text is None else len(text) // CHARACTERS_PER_TOKEN
        for one in messages
        for text in (shortened.get(one.identity),)
    )
    return [round(one * size.scale) for one in counted]


class _Planning:
    """The work on one plan."""

    def __init__(
        self,
        messages: Sequence[Canister],
        measured: Sequence[int],
        size: ContextSize,
        covered: int,
        pinned: AbstractSet[str],
        rules: _Rules,
    ) -> None:
        self._messages = messages
        self._sizes = list(measured)
        self._size = size
        self._covered = covered
        self._rules = rules
        self._shortened: dict[str, int] = {}
        self._pinned = pinned
        self._turn = start_of_turn(messages) or 0
        self._last = _find_last_exchange(messages)
        self._kept = _find_kept(messages, pinned)

    def plan(self, *, summarizes: bool) -> ContextPlan:
        for place in self._find_results():
            self._shorten(place, 0)
        if (most := self._rules.most) is not None:
            length = most * CHARACTERS_PER_TOKEN if self._rules.excerpts else 0
            for place in self._find_long(most):
                self._shorten(place, length)
        before = [size if place in self._kept else 0 for place, size in enumerate(self._sizes)]
        kept = [0, *accumulate(before)]
        left = [*accumulate(reversed(self._sizes), initial=0)][::-1]

        def measure(end: int) -> int:
            summary = self._size.summary if end else 0
            return self._size.overhead + summary + kept[end] + left[end]

        end = self._choose_end(measure) if summarizes else self._covered
        shown = {self._messages[place].identity for place in self._kept if place < end}
        shown |= {one.identity for one in self._messages[end:]}
        return ContextPlan(
            end,
            tuple(self._messages[place].identity for place in sorted(self._kept) if place < end),
            {name: length for name, length in self._shortened.items() if name in shown},
            measure(end),
        )

    def _choose_end(self, measure: Callable[[int], int]) -> int:
        """Return the number of messages to summarize: as few as reach the target."""
        end = self._covered
        if measure(end) <= self._size.target:
            return end
        for place in range(self._covered + 1, self._last + 1):
            if may_end(self._messages, place - 1):
                end = place
                if measure(end) <= self._size.target:
                    break
        return end

    def _find_results(self) -> Iterator[int]:
        """Yield the places of results that are repeated later, or old."""
        seen: set[tuple[object, ...]] = set()
        recent = 0
        for place in range(len(self._messages) - 1, self._covered - 1, -1):
            canister = self._messages[place]
            if not isinstance(canister, ResultCanister) or self._sizes[place] <= _SHORT_RESULT:
                continue
            if canister.identity in self._pinned:
                continue
            same = tuple(getattr(one, "data", one) for one in canister.contents)
            if same in seen:
                yield place
                continue
            seen.add(same)
            recent += 1
            failed_now = canister.failed and place >= self._turn and self._rules.most is None
            if recent > self._rules.results and place < self._last and not failed_now:
                yield place

    def _find_long(self, most: int) -> Iterator[int]:
        """Yield the places of messages, other than the model's, with more than these tokens."""
        message = find_last_message(self._messages)
        for place, canister in enumerate(self._messages):
            if place != message and self._sizes[place] > most and self._is_bulky(place, canister):
                yield place

    def _is_bulky(self, place: int, canister: Canister) -> bool:
        """Return True if a message may be shortened."""
        return (
            isinstance(canister, SHORTENED)
            and (
                self._rules.said
                or place not in self._kept
                or not isinstance(canister, UserCanister)
            )
            and canister.identity not in self._pinned
            and any(isinstance(one, TextualContent) for one in canister.contents)
        )

    def _shorten(self, place: int, characters: int) -> None:
        self._shortened[self._messages[place].identity] = characters
        excerpt = round((characters // CHARACTERS_PER_TOKEN + _LINE) * self._size.scale)
        self._sizes[place] = min(self._sizes[place], excerpt)


def _find_kept(messages: Sequence[Canister], pinned: AbstractSet[str]) -> AbstractSet[int]:
    """Return the places of the messages that stay word for word."""
    said = [
        place
        for place, one in enumerate(messages)
        if isinstance(one, UserCanister) and not is_correction(messages, place)
    ]
    always = {place for place, one in enumerate(messages) if isinstance(one, SupervisorCanister)}
    return always | {*said[:1], *said[-_LAST_MESSAGES:]} | find_exchanges(messages, pinned)


def _find_last_exchange(messages: Sequence[Canister]) -> int:
    """Return the place of the last reply with what follows it, which is never summarized."""
    place = len(messages) - 1
    while place > 0 and not isinstance(messages[place], AssistantCanister | InvocationCanister):
        place -= 1
    return find_exchange(messages, place).start if messages else 0
