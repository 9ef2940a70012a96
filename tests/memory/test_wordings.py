"""Facts that look alike and do not say the same are told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec import Struct

from vibe_llms.memory.wordings import read_wording, tell_apart


class Pair(Struct, forbid_unknown_fields=True):
    half: Literal["tuning", "held-out"]
    same: bool
    one: str
    other: str


class Pairs(Struct, forbid_unknown_fields=True):
    pairs: list[Pair]


def read_pairs() -> list[Pair]:
    path = Path(__file__).with_name("data") / "pairs.toml"
    return msgspec.toml.decode(path.read_bytes(), type=Pairs).pairs


def told(one: str, other: str) -> str:
    wordings = read_wording(one), read_wording(other)
    answers = {tell_apart(*wordings), tell_apart(*reversed(wordings))}
    assert len(answers) == 1, "it is not the same the other way round"
    return answers.pop()


def test_pairs_that_say_the_same_are_rarely_told_apart() -> None:
    same = [pair for pair in read_pairs() if pair.same]
    apart = [pair for pair in same if told(pair.one, pair.other)]
    assert len(same) == 66
    assert len(apart) <= 7


def test_pairs_that_do_not_say_the_same_are_told_apart_unless_they_have_little_in_common() -> None:
    different = [pair for pair in read_pairs() if not pair.same]
    apart = [pair for pair in different if told(pair.one, pair.other)]
    assert len(different) == 110
    assert len(apart) >= 108


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("Ada eats fish.", "Ada doesn't eat fish.", "sense"),
        ("Ada eats fish.", "Ada doesn\u2019t eat fish.", "sense"),
        ("Ada lives in Rome.", "Ada wants to live in Rome.", "sense"),
        ("Ada writes C.", "Ada writes C++.", "sense"),
        ("Ada isst Fisch.", "Ada isst keinen Fisch.", "sense"),
        ("It is 5 degrees.", "It is -5 degrees.", "figures"),
        ("The dose is 5 mg.", "The dose is .5 mg.", "figures"),
        ("The shelf is 6' high.", 'The shelf is 6" high.', "figures"),
        ("The code is 102.", "The code is 10².", "figures"),
        ("The code is 102.", "The code is “102”, (102) and '102'.", ""),
        ("The fee is 9,100 euros.", "The fee is 8,400 euros.", "figures"),
        ("There are two keys.", "There are three keys.", "figures"),
        ("My aunt is here.", "Her aunt is here.", "persons"),
        ("Ada likes tea at noon.", "Ben likes tea at noon.", "names"),
        ("It opens on Mondays for all.", "It opens on Fridays for all.", "names"),
        ("Ada lent Ben a book.", "Ben lent Ada a book.", "order"),
        ("The cat is called Tom.", "The dog is called Tom.", "words"),
        ("Ada prefers tea to coffee.", "Ada prefers coffee to tea.", "words"),
        ("Ada arrives at the station at five.", "Ada leaves the station at five.", "words"),
        ("Our cat is called Tom.", "The cat is called Tom.", ""),
        ("Ada loves walking by the sea.", "Ada loves to walk by the sea.", ""),
        ("Commit messages are short.", "Short are commit messages.", ""),
        ("Tom is 3.", "Tom is 3, or nearly so.", "sense"),
        ("Ada moved to Porto.", "Ada moved to Porto?", "sense"),
        ("Ada moved to Porto.", "What Ben made up:\nAda moved to Porto.", "sense"),
        ("Ada moved to Porto.", "Ben's tale: Ada moved to Porto.", "sense"),
        ("Ada moved to Porto.", "Ada moved to Porto. Ben mooted that Ada moved to Porto.", ""),
        ("Ada turned the heating.", "Ada turned the heating on.", "sense"),
        ("Ada likes Ben.", "Ada likes Ben's car.", "sense"),
        ("Ada likes tea.", "Ada likes tea with honey.", ""),
        ("Ada likes tea.", "Ada likes tea with honey, she says.", "sense"),
        ("Married.", "Ben is married.", "words"),
        ("Married.", "Married!", ""),
        ("Ada keeps 3 cats.", "Ada keeps 3 cats and a dog.", ""),
        ("", "", ""),
        ("...", "Tea.", ""),
    ],
)
def test_the_reason_is_named(one: str, other: str, reason: str) -> None:
    assert told(one, other) == reason


def test_a_text_is_taken_apart() -> None:
    wording = read_wording("The cat's name isn't Tom; she has 3 legs!")
    assert wording.parts == ("the", "cat", "name", "isn't", "tom", "she", "has", "3", "legs")
    assert wording.words == ("cat", "name", "isnt", "tom", "3", "leg")
    assert wording.turning == {"not"}
    assert wording.figures == {"3"}
    assert wording.names == ("tom",)
    assert wording.persons == {"she"}
    assert wording.statements == (wording.parts[1:],)
