"""How a message is divided into parts, and what an entry's share of them is."""

from __future__ import annotations

import pytest

from vibe_llms.memory.parts import Fit, WeightedPart, Words, split_message, weigh_parts

TALK = "We had a lovely walk by the river yesterday. The kettle broke again. Where is my lantern?"


def test_a_short_message_is_one_part() -> None:
    assert split_message("I moved. Where do I live?") == [Words(["move", "live"])]
    assert split_message("") == [Words([])]
    assert split_message("who is it") == [Words(["who", "is", "it"])]
    (stop,) = split_message("Who was it that they had there with them before you and I were?")
    assert len(stop.words) > 10


def test_each_sentence_of_a_longer_message_is_a_part() -> None:
    more = f"{TALK} Did Ada repair the broken violin?"
    assert [(set(words), asks) for words, asks in split_message(more)] == [
        ({"love", "walk", "river", "yesterday"}, False),
        ({"kettl", "broke"}, False),
        ({"lantern"}, True),
        ({"ada", "repair", "broken", "violin"}, True),
    ]


def test_a_long_sentence_is_several_parts_of_about_the_same_size() -> None:
    sentence = " ".join(f"word{number}" for number in range(25))
    parts = split_message(f"{sentence}. Thanks!")
    assert [len(one.words) for one in parts] == [8, 8, 9, 1]
    assert [word for one in parts[:3] for word in one.words] == sentence.split()


def test_lines_and_texts_without_spaces_are_divided() -> None:
    lines = "\n".join(f"- item{number} costs coin{number}" for number in range(9))
    assert len(split_message(lines)) == 9
    assert len(split_message("我住在里斯本。" * 3 + "小提琴在哪里\uff1f大海是蓝色的。")) > 1


def test_of_a_very_long_message_the_first_words_are_looked_for() -> None:
    text = " ".join(f"word{number}" for number in range(200_000))
    words = [word for one in split_message(text) for word in one.words]
    assert words == [f"word{number}" for number in range(256)]


def test_a_sentence_weighs_the_same_in_messages_of_any_length() -> None:
    words = ["lantern", "boathouse"]
    others = [Words([f"other{number}", f"thing{number}"]) for number in range(40)]
    weights = set()
    for count in (10, 40):
        parts = [Words(words), *others[:count]]
        counts = dict.fromkeys((word for one in parts for word in one.words), 1)
        weights.add(weigh_parts(parts, counts, 100)[0].weight)
    assert len(weights) == 1


def test_one_short_sentence_in_a_message_does_not_have_its_whole_weight() -> None:
    counts = dict.fromkeys("abcdefghij", 1)
    (alone,) = weigh_parts([Words("ab")], counts | {}, 100)
    assert sum(alone.rarities.values()) < alone.weight
    told, asked, _ = weigh_parts([Words("a", asks=False), Words("b"), Words("cdefghij")], counts, 9)
    assert told.weight > asked.weight > asked.rarities["b"]
    # A message of a few words has no more weight than its words.
    (short,) = weigh_parts([Words("ab")], dict.fromkeys("ab", 1), 100)
    assert short.weight == pytest.approx(sum(short.rarities.values()))


def test_no_words_weigh_something() -> None:
    assert weigh_parts([Words([])], {}, 0) == [WeightedPart({}, 1.0)]


def test_an_entry_that_fits_several_parts_fits_better_than_one_that_fits_the_best() -> None:
    both = [1.0, 1.0]
    one, several = Fit.of([0.5, 0.0], both), Fit.of([0.5, 0.4], both)
    evenly = Fit.of([0.3, 0.3], both)
    assert one == Fit(0.5, 0.5)
    assert several.whole > one.whole > evenly.whole
    assert several.best == one.best
    assert Fit.of([0.5], [1.0]) == Fit(0.5, 0.5)
    assert Fit.of([], []) == Fit(0.0, 0.0)


def test_a_factor_changes_the_order_and_not_what_is_found() -> None:
    assert Fit.of([0.5], [1.5]) == Fit(0.5, 0.75)
    many = Fit.of([0.5, 0.4], [1.5, 1.0])
    assert many.best == 0.5
    assert many.whole > 0.75
