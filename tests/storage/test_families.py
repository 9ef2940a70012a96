"""Families of conversations: who descends from whom, and where they part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from vibe_llms.storage.families import FamilyView, describe_family, find_family
from vibe_llms.storage.interfaces import Origin, Relative, Summary

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def produce(*forks: tuple[str, int, str, str, int]) -> list[Relative]:
    """Conversations: identity, messages, parent, the last common message and their number."""
    return [
        Relative(
            Summary(
                identity,
                "",
                identity,
                BEGUN + timedelta(hours=hour),
                BEGUN,
                "m",
                (),
                Origin(parent, at) if parent else None,
                messages,
            ),
            shared,
        )
        for hour, (identity, messages, parent, at, shared) in enumerate(forks)
    ]


def places(family: FamilyView) -> dict[str, Any]:
    """Where each conversation parts from its parent."""
    return {one.id: (one.parent, one.at, one.at_index) for one in family.conversations}


def test_a_conversation_alone_is_a_family() -> None:
    family = describe_family("a", produce(("a", 3, "", "", 0)))
    assert (family.root, places(family), family.siblings) == ("a", {"a": (None, None, -1)}, {})


def test_forks_at_one_message_are_siblings() -> None:
    relatives = produce(("a", 4, "", "", 0), ("b", 4, "a", "m1", 2), ("c", 6, "a", "m1", 2))
    family = describe_family("c", relatives)
    assert family.root == "a"
    assert places(family)["c"] == ("a", "m1", 1)
    assert family.siblings == {"m1": ["a", "b", "c"]}


def test_a_message_that_is_edited_again_has_all_versions_as_siblings() -> None:
    """The third version is forked from the second, at a message that is the first one's."""
    relatives = produce(("a", 4, "", "", 0), ("b", 4, "a", "m1", 2), ("c", 4, "b", "m1", 2))
    family = describe_family("b", relatives)
    assert places(family)["c"] == ("a", "m1", 1)
    assert family.siblings == {"m1": ["a", "b", "c"]}


def test_a_fork_above_the_place_where_its_parent_parted_belongs_to_the_grandparent() -> None:
    relatives = produce(("a", 6, "", "", 0), ("b", 6, "a", "m3", 4), ("c", 3, "b", "m1", 2))
    family = describe_family("b", relatives)
    assert places(family)["c"] == ("a", "m1", 1)
    assert family.siblings == {"m3": ["a", "b"], "m1": ["a", "c"]}


def test_a_fork_below_the_place_where_its_parent_parted_belongs_to_the_parent() -> None:
    relatives = produce(("a", 4, "", "", 0), ("b", 6, "a", "m1", 2), ("c", 5, "b", "n3", 4))
    family = describe_family("b", relatives)
    assert places(family)["c"] == ("b", "n3", 3)
    assert family.siblings == {"m1": ["a", "b"], "n3": ["b", "c"]}


def test_first_messages_are_siblings_too() -> None:
    relatives = produce(("a", 4, "", "", 0), ("b", 4, "a", "m1", 2), ("c", 2, "b", "", 0))
    family = describe_family("c", relatives)
    assert places(family)["c"] == ("a", "", -1)
    assert family.siblings == {"m1": ["a", "b"], "": ["a", "c"]}


def test_conversations_that_end_where_others_part_are_no_siblings() -> None:
    relatives = produce(("a", 2, "", "", 0), ("b", 2, "a", "m1", 2), ("c", 4, "a", "m1", 2))
    assert describe_family("a", relatives).siblings == {}


def test_forks_of_a_deleted_conversation_are_siblings() -> None:
    relatives = produce(("b", 4, "gone", "m1", 2), ("c", 4, "gone", "m1", 2))
    family = describe_family("c", relatives)
    assert places(family) == {"b": (None, "m1", 1), "c": (None, "m1", 1)}
    assert (family.root, family.siblings) == ("c", {"m1": ["b", "c"]})


def test_origins_in_a_circle_end() -> None:
    circle = {"a": "b", "b": "c", "c": "a"}
    assert find_family("a", circle) == {"a", "b", "c"}
    relatives = produce(*((one, 1, parent, "", 0) for one, parent in circle.items()))
    assert {one.id for one in describe_family("a", relatives).conversations} == {"a", "b", "c"}
