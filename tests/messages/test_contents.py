"""Contents are equal by their hash; they hold their data or say where it lies."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from tests.fakes.canisters import produce_canisters
from vibe_llms.base.exceptions import ContentNotLoaded
from vibe_llms.messages.contents import (
    FileContent,
    ImageContent,
    Issuer,
    Location,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
    Upload,
    loaded_text,
    repair_text,
    text_of,
)

HEAVY = Reference.from_bytes(b"heavy words")


def test_a_reference_is_the_hash_and_the_size_of_the_bytes() -> None:
    assert Reference(hashlib.sha256(b"heavy words").hexdigest(), 11) == HEAVY


def test_contents_are_equal_where_one_holds_the_data_and_the_other_its_reference() -> None:
    assert TextualContent("heavy words") == TextualContent(HEAVY)
    assert ReasoningContent("heavy words") == ReasoningContent(HEAVY)
    assert ImageContent(b"heavy words") == ImageContent(HEAVY)
    assert hash(TextualContent("heavy words")) == hash(TextualContent(HEAVY))
    assert hash(ImageContent(b"heavy words")) == hash(ImageContent(HEAVY))
    assert len({TextualContent("heavy words"), TextualContent(HEAVY)}) == 1


def test_contents_differ_in_kind_data_and_whatever_else_they_say() -> None:
    assert TextualContent("a") != TextualContent("b")
    assert TextualContent("a") != ReasoningContent("a")
    assert not TextualContent("a") == "a"  # noqa: SIM201
    assert not TextualContent("a") == ReasoningContent("a")  # noqa: SIM201
    assert TextualContent(HEAVY) != TextualContent("light words")
    assert TextualContent("a", "text/markdown") != TextualContent("a")
    assert FileContent(b"a", name="b") != FileContent(b"a", name="c")
    assert ImageContent(Location("http://a/b")) != ImageContent(HEAVY)
    assert ImageContent(Location("http://a/b")) == ImageContent(Location("http://a/b"))
    assert ImageContent(Upload("a", "b")) != ImageContent(Upload("a", "c"))
    payload = NativePayload(Issuer("m", "r", "o"), msgspec.Raw(b"1"))
    assert TextualContent("a", native=payload) != TextualContent("a")
    assert hash(ImageContent(Upload("a", "b"))) == hash(ImageContent(Upload("a", "b")))


def test_equal_generated_contents_have_equal_hashes() -> None:
    once, again = produce_canisters(5, 500), produce_canisters(5, 500)
    compared = 0
    for one, other in zip(once, again, strict=True):
        for a, b in zip(getattr(one, "contents", ()), getattr(other, "contents", ()), strict=True):
            assert a == b
            assert hash(a) == hash(b)
            compared += 1
    assert compared > 500


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TextualContent("a").data = "b"  # type: ignore[misc]


def test_text_that_lies_elsewhere_has_to_be_loaded_first() -> None:
    with pytest.raises(ContentNotLoaded, match=r"archive\.load"):
        _ = TextualContent(HEAVY).text
    with pytest.raises(ContentNotLoaded, match="11 bytes"):
        _ = ReasoningContent(HEAVY).text
    assert loaded_text("here") == TextualContent("here").text == ReasoningContent("here").text


def test_the_visible_text_of_contents_leaves_reasoning_and_media_out() -> None:
    contents = (
        ReasoningContent("hm"),
        TextualContent("a"),
        ImageContent(b"x", "image/png"),
        UnknownContent(label="new"),
        TextualContent("b"),
    )
    assert text_of(contents) == "ab"


def test_adjacent_halves_of_a_character_are_joined() -> None:
    assert repair_text("\ud83d\ude00 \ude00\ud83d") == "\U0001f600 \ufffd\ufffd"
