"""Turns are neighbours of those that were said just before and after them, and of no others."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.entries import GLOBAL, Role, Scope
from vibe_llms.memory.files import Look
from vibe_llms.memory.lexical import LexicalIndex
from vibe_llms.memory.outlines import Outline
from vibe_llms.memory.sequences import TurnSequence, is_turn

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)


class Links:
    """A lexical index of which only the links count."""

    def __init__(self, scope: Scope = GLOBAL) -> None:
        self.lexical = LexicalIndex()
        self.sequence = TurnSequence(scope, self.lexical)

    def add(self, minute: int, conversation: str = "c1", role: Role = Role.USER) -> Known:
        number = self.lexical.add([], ())
        known = Known(
            f"{number}",
            Look(1, 1, 1, 1),
            number,
            f"turn-{minute}",
            role,
            BEGIN + timedelta(minutes=minute),
            0.5,
            conversation,
            "",
            False,
            Outline(1),
        )
        self.sequence.add(known)
        return known

    def remove(self, known: Known) -> None:
        self.lexical.remove(known.number)
        self.sequence.remove(known)

    def are_linked(self, first: Known, second: Known) -> bool:
        behind = self.lexical._behind[first.number] == second.number
        assert behind == (self.lexical._before[second.number] == first.number)
        return behind


def test_only_what_was_said_is_a_turn() -> None:
    assert [is_turn(role) for role in (Role.USER, Role.ASSISTANT)] == [True, True]
    assert [is_turn(role) for role in (Role.FACT, Role.SUMMARY)] == [False, False]
    links = Links()
    first, fact, second = links.add(0), links.add(1, role=Role.FACT), links.add(2)
    assert links.are_linked(first, second)
    links.remove(fact)
    assert links.are_linked(first, second)


def test_what_comes_between_two_is_a_neighbour_of_both_until_it_goes() -> None:
    links = Links()
    first, third = links.add(0), links.add(50)
    assert links.are_linked(first, third)
    second = links.add(20)
    assert links.are_linked(first, second)
    assert links.are_linked(second, third)
    assert not links.are_linked(first, third)
    links.remove(second)
    assert links.are_linked(first, third)


def test_what_was_said_elsewhere_or_long_before_is_none() -> None:
    links = Links()
    first, other, late = links.add(0), links.add(1, "c2"), links.add(61)
    assert not links.are_linked(first, other)
    assert not links.are_linked(first, late)
    alone, nobody = links.add(100, ""), links.add(101, "")
    assert not links.are_linked(alone, nobody)
    within = Links(Scope.of_conversation("c1"))
    assert within.are_linked(within.add(0, ""), within.add(1, ""))


def test_links_are_the_same_in_whatever_order_turns_came() -> None:
    chance = random.Random(5)
    links = Links()
    there: dict[int, Known] = {}
    for minute in chance.sample(range(0, 3000, 7), 200):
        there[minute] = links.add(minute)
        if chance.random() < 0.3:
            links.remove(there.pop(chance.choice([*there])))
    minutes = sorted(there)
    for before, behind in itertools.pairwise(minutes):
        assert links.are_linked(there[before], there[behind]) == (behind - before <= 60)
