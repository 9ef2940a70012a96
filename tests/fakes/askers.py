"""What asks no model: answers for memory by a script, or by a function of the question."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from vibe_llms.base.exceptions import OutputInvalid
from vibe_llms.memory.deduplication import Repeats
from vibe_llms.memory.extraction import ExtractedFact, Findings
from vibe_llms.memory.reconciliation import Decisions, FactDecision
from vibe_llms.memory.summaries import WrittenSummary
from vibe_llms.messages.canisters import Usage

T = TypeVar("T")
Answer = Any | Exception | Callable[[str], Any | Awaitable[Any]]


class ScriptedAsker:
    """Answers questions for each type in their order; the last answer counts from then on.

    An answer is a value, an error to raise, or a function of the question's text. `asked` are the
    questions, by the names of their types.
    """

    def __init__(self, **answers: Sequence[Answer]) -> None:
        self.usage = Usage()
        self.asked: list[tuple[str, str, str]] = []
        self._answers = {name: list(given) for name, given in answers.items()}

    def questions(self, name: str) -> list[str]:
        """The texts of the questions for a type."""
        return [text for one, _, text in self.asked if one == name]

    async def ask(self, supervisor: str, text: str, output: type[T]) -> T:
        """The next answer for this type."""
        name = output.__name__.lower().removeprefix("written")
        self.asked.append((name, supervisor, text))
        self.usage += Usage(uncached_input_tokens=len(text), output_tokens=7)
        queue = self._answers.get(name, [])
        if not queue:
            raise OutputInvalid(f"nothing is scripted for {name}", provider="script")
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer) and not isinstance(answer, type):
            answer = answer(text)
            if inspect.isawaitable(answer):
                answer = await answer
        assert isinstance(answer, output)
        return answer


def finds(*statements: str | ExtractedFact) -> Findings:
    """The answer that these are facts."""
    return Findings(
        tuple(one if isinstance(one, ExtractedFact) else ExtractedFact(one) for one in statements)
    )


def decides(*decisions: tuple[Any, ...]) -> Decisions:
    """The answer of these decisions: number, event, and what else `Decision` has."""
    return Decisions(tuple(FactDecision(*one) for one in decisions))


def sums_up(text: str = "They spoke.") -> WrittenSummary:
    """The answer that this is the summary."""
    return WrittenSummary(text)


def names_repeats(text: str) -> Repeats:
    """The answer about numbered notes that those which others begin with repeat these."""
    notes = [line.partition(". ") for line in text.splitlines()]
    groups: dict[int, list[int]] = {}
    for number, _, note in notes:
        longer = [(len(one), other) for other, _, one in notes if says_all(one, note)]
        _, whole = max(longer, default=(0, number))
        if whole != number:
            groups.setdefault(int(whole), [int(whole)]).append(int(number))
    return Repeats(tuple(map(tuple, groups.values())))


def says_all(whole: str, part: str) -> bool:
    """Whether a text begins with all of another one, but for its last mark."""
    return whole.startswith(part.rstrip(".!"))
