"""The passages of an entry: its sentences, with the name of who says them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from tests.memory.test_sentences import SENTENCES
from vibe_llms.memory import snapshot
from vibe_llms.memory.chunks import MOST, split_passages
from vibe_llms.memory.entries import Entry


def split(content: str, speaker: str = "") -> list[str]:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return split_passages(Entry(content=content, identity="one", created=created, speaker=speaker))


@pytest.mark.parametrize(
    ("content", "passages"),
    [
        ("One thing.", ["One thing."]),
        ("One thing. Another one! And a third?", ["One thing.", "Another one!", "And a third?"]),
        ("A heading\n\nand a text", ["A heading", "and a text"]),
        ("No. It is not so.", ["No. It is not so."]),
        ("It is so. Ok", ["It is so.", "Ok"]),
        ("ok", ["ok"]),
        ("これは猫です。それは犬です。", ["これは猫です。", "それは犬です。"]),
        ("I met Dr. Who. He paid 3.5 euros", ["I met Dr. Who.", "He paid 3.5 euros"]),
        ("To buy:\n- milk\n- tea", ["To buy:", "- milk", "- tea"]),
    ],
)
def test_a_text_is_taken_sentence_by_sentence(content: str, passages: list[str]) -> None:
    assert split(content) == passages
    assert split(content, "Ada") == [f"Ada: {one}" for one in passages]


def test_a_long_text_has_longer_passages_and_loses_nothing() -> None:
    sentences = [f"This is sentence {number}." for number in range(100)]
    passages = split(" ".join(sentences))
    assert len(passages) <= MOST
    assert " ".join(passages) == " ".join(sentences)


def test_stored_vectors_are_never_those_of_other_passages() -> None:
    # Where this fails, texts are embedded in other parts than before: raise the format of
    # snapshots, so that whatever is stored is made anew, and then write both down here.
    every = "\n".join("\n".join(split(" ".join(some), "Ada")) for some in SENTENCES.values())
    digest = hashlib.sha256(every.encode()).hexdigest()[:16]
    assert (snapshot.FORMAT.partition(" ")[0], digest) == ("6", "a12886a5e7de16e0")
