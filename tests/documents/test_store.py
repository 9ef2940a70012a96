"""A store: texts kept under the hash of their file, searched from tasks."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ProviderUnreachable
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents import store as store_module
from vibe_llms.documents.store import DocumentStore, produce_store
from vibe_llms.embedding.cache import digest_text

TEXT = DocumentText("a.txt", "Ada planted quinces. " + "Nothing else happened. " * 600)


async def test_what_is_added_is_found(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    await store.add("hash", TEXT)
    assert await store.access("hash") == TEXT
    assert await store.access("other") is None
    found = await store.search("quinces", ["hash"], characters=1_000)
    assert found[0].text.startswith("Ada planted quinces.")
    await store.close()


async def test_unused_documents_are_dropped_when_one_is_added(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path, ttl_hours=24)
    await store.add("hash", TEXT)
    await store.close()
    later = DocumentStore(tmp_path, ttl_hours=-1)
    await later.add("other", TEXT)
    assert await later.access("hash") is None
    await later.close()


def make_texts() -> tuple[DocumentText, str]:
    """A long text, and a request that shares no word with the sentence that answers it."""
    filler = "The committee met again and discussed the usual matters at length. "
    return DocumentText("long", filler * 60 + "Zebra yak xylophone. " + filler * 60), "Qi zonda?"


class MeaningEmbedder(WordsEmbedder):
    """Knows that two texts mean the same although they share no word."""

    def embed_one(self, text: str) -> array[float]:
        """The vector of a text, or of what it means."""
        return super().embed_one("zebra" if "Zebra" in text or "zonda" in text else text)


@pytest.mark.parametrize("kept", [True, False])
async def test_meaning_finds_what_words_do_not(tmp_path: Path, kept: bool) -> None:
    text, request = make_texts()
    folder = tmp_path if kept else None
    alone = DocumentStore(folder)
    await alone.add("long", text)
    assert await alone.search(request, ["long"], characters=500) == []
    await alone.close()
    embedder = MeaningEmbedder()
    store = DocumentStore(folder, embedder=embedder, wait_seconds=60)
    await store.add("long", text)
    found = await store.search(request, ["long"], characters=500)
    assert any("Zebra" in one.text for one in found)
    assert all(0 <= one.score <= 1 for one in found[:1])
    await store.close()
    assert embedder.closed
    if kept:
        # Another process makes no vector again but that of the question.
        later = MeaningEmbedder()
        again = DocumentStore(folder, embedder=later, wait_seconds=60)
        assert await again.search(request, ["long"], characters=500) == found
        assert later.texts == [request]
        await again.close()


async def test_an_embedder_that_fails_leaves_the_words() -> None:
    text, _ = make_texts()
    embedder, notices = WordsEmbedder(), list[str]()
    embedder.failure = ProviderUnreachable("no network", provider="words")
    store = DocumentStore(embedder=embedder, notify=notices.append, wait_seconds=60)
    await store.add("long", text)
    found = await store.search("zebra", ["long"], characters=500)
    assert "Zebra" in found[0].text
    assert [one for one in notices if "documents are searched by words only" in one] == [
        notices[-1]
    ]
    await store.close()


class SlowEmbedder(WordsEmbedder):
    """Never finishes the vectors of documents."""

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for a question only."""
        if not question:
            await asyncio.Event().wait()
        return await super().embed(texts, question=question)


async def test_a_search_does_not_wait_for_slow_vectors() -> None:
    text, _ = make_texts()
    notices: list[str] = []
    store = DocumentStore(embedder=SlowEmbedder(), notify=notices.append, wait_seconds=0.01)
    await store.add("long", text)
    found = await store.search("zebra", ["long"], characters=500)
    assert "Zebra" in found[0].text
    assert any("not ready" in one for one in notices)
    # Closing it ends what is under way.
    await store.close()


async def test_dropped_documents_leave_no_vectors(tmp_path: Path) -> None:
    text, request = make_texts()
    store = DocumentStore(tmp_path, embedder=WordsEmbedder(), ttl_hours=-1, wait_seconds=60)
    await store.add("long", text)
    await store.search(request, ["long"])
    digests = [digest_text(one) for one in store._index.split("long")]
    assert store._embedding is not None
    model = store._embedding.model
    assert {*store._cache.read(model, digests)} == {*digests}
    store._purge()
    assert await store.access("long") is None
    assert store._cache.read(model, digests) == {}
    assert store._cache.read_size(model) is None
    await store.close()


async def test_nothing_is_kept_of_vectors_that_were_made_or_could_not_be_made() -> None:
    text, request = make_texts()
    for failure in (None, ProviderUnreachable("no network", provider="words")):
        embedder = MeaningEmbedder()
        embedder.failure = failure
        store = DocumentStore(embedder=embedder, wait_seconds=60)
        await store.add("long", text)
        found = await store.search(request, ["long"], characters=500)
        assert bool(found) is (failure is None)
        assert store._making == {}
        await store.close()


async def test_the_store_of_a_configuration() -> None:
    store = produce_store(load_configuration())
    await store.add("hash", TEXT)
    assert await store.access("hash") == TEXT
    await store.close()
    assert (load_configuration().places.data / "documents" / "index.sqlite").exists()


async def test_the_store_is_made_as_the_configuration_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def make(_: object, address: str, **__: object) -> str:
        given.append(address)
        return "one"

    monkeypatch.setattr(store_module, "produce_embedder", make)
    monkeypatch.setattr(store_module, "DocumentStore", lambda *_, **named: named)
    tables: dict[str, Any] = {
        "documents": {"embedder": "words/one", "ttl-hours": 7.0},
        "storage": {"lock-seconds": 3.0},
    }
    configuration = load_configuration(Places.under(home), overrides=tables)
    made: Any = produce_store(configuration, notify=given.append)
    assert given == ["words/one"]
    assert made == {
        "embedder": "one",
        "ttl_hours": 7.0,
        "lock_seconds": 3.0,
        "notify": made["notify"],
    }
    made["notify"]("a word")
    assert given[-1] == "a word"
