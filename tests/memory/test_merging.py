"""Merged facts lose nothing and say nothing twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.memory.entries import Entry
from vibe_llms.memory.merging import merge_contents, merge_entries, says_all

WHEN = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kept", "other", "merged"),
    [
        ("Tea is at five.", "tea is at five", "Tea is at five."),
        ("Our cat is called Tom.", "The cat is called Tom!", "Our cat is called Tom."),
        ("The cat is called Tom.", "Our cat is called Tom.", "Our cat is called Tom."),
        ("Ada likes tea.", "Ada likes tea with honey.", "Ada likes tea with honey."),
        ("Ada likes tea", "Ada drinks tea", "Ada likes tea. Ada drinks tea"),
        ("Ada eats meat.", "Ada eats all but meat.", "Ada eats meat. Ada eats all but meat."),
        ("One. Two.", "Two. Three.", "One. Two. Three."),
        *(
            (kept, other, f"{kept} {other}")
            for kept, other in (
                ("Ada moved.", "Ben mooted that Ada moved."),
                ("Ada moved.", "Ada moved?"),
                ("Ada moved?", "Ada moved."),
                ("Ada likes tea.", "Ada likes tea as much as dirt."),
                ("Ada likes tea.", "Ada likes tea towels."),
                ("Tea.", "Not tea."),
                ("Tea.", "Tea?"),
            )
        ),
        ("- Ada has a cat\n- two", "Ada has a cat.", "- Ada has a cat\n- two"),
        (
            "Fox. Owl. Bee.",
            "The fox runs. The bee and the owl.",
            "The fox runs. The bee and the owl.",
        ),
        ("- one\n- two", "three", "- one\n- two\n\nthree"),
        ("- one\n- two", "Two!", "- one\n- two"),
        ("two", "- one\n- two", "- one\n- two"),
        ("?!", "?!", "?!"),
        ("Tea.", "?!", "Tea. ?!"),
        ("is", "tea !  !  tea tea", "is. tea tea. !"),
        ("See p. 5.", 'He said "Go." He went.', 'See p. 5. He said "Go." He went.'),
        ('He said "Go." He went.', "Why?", 'He said "Go." He went. Why?'),
    ],
)
def test_contents_are_merged_by_sentences(kept: str, other: str, merged: str) -> None:
    assert merge_contents(kept, other) == merged


_TEXTS = st.lists(
    st.sampled_from(
        ["tea", "is", "not", "the", "Ada", "5", "C++", "five. ", "with", "so?", "\n", "! "]
    ),
    min_size=1,
).map(" ".join)


@given(_TEXTS, _TEXTS)
def test_nothing_that_either_said_is_lost(kept: str, other: str) -> None:
    kept, other = kept.strip() or "x", other.strip() or "y"
    merged = merge_contents(kept, other)
    assert says_all(merged, kept)
    assert says_all(merged, other)
    assert merge_contents(merged, other) == merged


def test_an_entry_takes_over_topics_and_says_where_it_came_from() -> None:
    one = Entry(content="Tea.", identity="a", created=WHEN, topics=("x", "y"), merged_from=("z",))
    two = Entry(content="Cocoa.", identity="b", created=WHEN, topics=("y", "w"), category="drink")
    three = Entry(content="Tea!", identity="c", created=WHEN, merged_from=("d", "a"))
    merged = merge_entries(one, [two, three])
    assert merged.content == "Tea. Cocoa."
    assert merged.topics == ("x", "y", "w")
    assert merged.category == "drink"
    assert merged.merged_from == ("z", "b", "c", "d")
    assert (merged.identity, merged.created) == ("a", WHEN)
