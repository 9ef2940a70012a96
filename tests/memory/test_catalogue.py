"""What is known of entries is found by place, number, digest and identity, as they come and go."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from vibe_llms.memory.catalogue import Catalogue, Known
from vibe_llms.memory.entries import Role
from vibe_llms.memory.files import Look
from vibe_llms.memory.outlines import Outline

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)


def known(number: int, *, identity: str = "", role: Role = Role.FACT, digest: str = "") -> Known:
    return Known(
        f"facts/{number}.md",
        Look(1, 1, 1, number),
        number,
        identity or f"entry-{number}",
        role,
        BEGIN + timedelta(seconds=number),
        0.5,
        "",
        digest or f"digest-{number}",
        False,
        Outline(1),
    )


def test_what_comes_is_found_and_what_goes_is_not() -> None:
    one, two = known(1), known(2, role=Role.SUMMARY)
    catalogue = Catalogue([two])
    catalogue.add(one)
    assert len(catalogue) == 2
    assert list(catalogue) == [two, one]
    assert catalogue.oldest_first == [one, two]
    assert catalogue.summaries == 1
    assert catalogue.survey_facts("digest-1") == [one]
    assert catalogue.survey_facts("digest-2") == []
    assert catalogue.numbers[2] is catalogue.places["facts/2.md"] is two
    assert catalogue.remove("facts/2.md") is two
    assert catalogue.remove("facts/1.md") is one
    assert (len(catalogue), catalogue.summaries) == (0, 0)
    assert catalogue.survey_facts("digest-1") == []
    with pytest.raises(KeyError):
        catalogue.remove("facts/1.md")


def test_identities_are_found_however_many_have_one_and_whenever_they_came() -> None:
    chance = random.Random(3)
    catalogue = Catalogue()
    there: dict[int, Known] = {}
    for number in range(600):
        if there and chance.random() < 0.4:
            gone = there.pop(chance.choice([*there]))
            assert catalogue.remove(gone.place) is gone
        one = known(number, identity=f"entry-{chance.randrange(40)}", digest="same")
        there[number] = one
        catalogue.add(one)
        if number > 50:
            # From the first time on it is kept in step.
            identity = f"entry-{chance.randrange(40)}"
            fitting = [known for known in there.values() if known.identity == identity]
            wanted = min(fitting, key=lambda known: known.created, default=None)
            assert catalogue.find(identity) is wanted
    assert catalogue.survey_facts("same") == [*there.values()]
