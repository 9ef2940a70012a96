"""The turns of conversations in their order: each stands in the windows of those beside it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from datetime import datetime, timedelta

from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.lexical import NONE, LexicalIndex

#: Turns that are further apart stand in no window of each other.
_APART = timedelta(hours=1)


def is_turn(role: Role) -> bool:
    """Whether something was said, by whomever."""
    return role in (Role.USER, Role.ASSISTANT)


class TurnSequence:
    """The turns of a scope, whose neighbours are told to its `lexical` index.

    Those that are `known` are its neighbours already; entries that are no turns are passed over.
    """

    def __init__(self, scope: Scope, lexical: LexicalIndex, known: Iterable[Known] = ()) -> None:
        self._lexical = lexical
        self._whole = scope.kind == "conversation"
        self._turns: list[tuple[str, datetime, str, int]] = sorted(
            (*one.order, one.number) for one in known if is_turn(one.role)
        )

    def add(self, known: Known) -> None:
        """Take in a turn, between those that were said before and after it."""
        if is_turn(known.role):
            turn = (*known.order, known.number)
            insort(self._turns, turn)
            position = bisect_left(self._turns, turn)
            if position:
                self._link(position - 1, position)
            if position + 1 < len(self._turns):
                self._link(position, position + 1)

    def remove(self, known: Known) -> None:
        """Give up a turn that the lexical index has given up; those beside it become neighbours."""
        if is_turn(known.role):
            position = bisect_left(self._turns, (*known.order, known.number))
            del self._turns[position]
            if 0 < position < len(self._turns):
                self._link(position - 1, position)

    def _link(self, first: int, second: int) -> None:
        before, behind = self._turns[first], self._turns[second]
        # Turns of no known conversation are nobody's neighbours.
        together = before[0] == behind[0] and (before[0] or self._whole)
        if together and behind[1] - before[1] <= _APART:
            self._lexical.link(before[3], behind[3])
        else:
            self._lexical.link(before[3], NONE)
            self._lexical.link(NONE, behind[3])
