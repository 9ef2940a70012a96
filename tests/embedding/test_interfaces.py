"""What all embedders keep, shown on the double that other tests use."""

from __future__ import annotations

import math

import pytest

from tests.fakes.embedders import WordsEmbedder, likeness
from vibe_llms.base.exceptions import ProviderUnreachable
from vibe_llms.embedding.interfaces import Embedder


async def test_the_double_puts_related_texts_nearer_than_others() -> None:
    embedder: Embedder = WordsEmbedder()
    moved, moving, cheese, marks = await embedder.embed(
        ["We moved to Lisbon.", "When were you moving to Lisbon?", "Cheese is what I like.", "?!"]
    )
    assert likeness(moved, moving) > 0.9 > 0.5 > likeness(moved, cheese)
    for vector in (moved, moving, cheese, marks):
        assert math.isclose(likeness(vector, vector), 1, abs_tol=1e-5)
        assert vector.typecode == "f"
        assert len(vector) == 64


async def test_the_double_fails_when_it_shall() -> None:
    embedder = WordsEmbedder()
    embedder.failure = ProviderUnreachable("no server", provider="local")
    with pytest.raises(ProviderUnreachable):
        await embedder.embed(["one"])
    embedder.failure = None
    assert await embedder.embed(["one"]) == await WordsEmbedder().embed(["one"], question=True)
    assert embedder.texts == ["one", "one"]


async def test_models_of_other_names_give_other_vectors() -> None:
    (one,) = await WordsEmbedder().embed(["cheese"])
    (other,) = await WordsEmbedder(model="others").embed(["cheese"])
    assert likeness(one, other) < 0.5
