"""`[memory]`, and the memory that it describes, with an embedder and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.embedding.test_cache import holds
from tests.fakes.ollama import FakeModel, FakeOllama
from vibe_llms.base.configuration import Configuration, load_configuration
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.embedding.cache import FILE, EmbeddingCache, digest_text
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL
from vibe_llms.memory.settings import produce_memory, read_memory_settings
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.storage.backends import open_backend

MODEL = "nomic-embed-text"


def configure(fake: FakeOllama | None = None, **memory: Any) -> Configuration:
    url = fake.url if fake is not None else "http://127.0.0.1:9"
    row = {"base-url": url, "retries": 0}
    return load_configuration(overrides={"memory": memory, "providers": {"ollama": row}})


def produce(configuration: Configuration, **options: Any) -> Memory:
    settings = read_memory_settings(configuration)
    return produce_memory(configuration, settings, backend=open_backend(configuration), **options)


@pytest.fixture
def fake(fake_ollama: FakeOllama) -> FakeOllama:
    fake_ollama.models[MODEL] = FakeModel()
    return fake_ollama


def count_embedded(fake: FakeOllama) -> int:
    return sum(len(one.json["input"]) for one in fake.requests if one.path == "/api/embed")


async def test_without_an_embedder_no_model_is_asked(fake: FakeOllama, home: Path) -> None:
    memory = produce(configure(fake))
    await memory.add("Ada likes tea")
    assert len(await memory.search("tea")) == 1
    await memory.close()
    assert fake.requests == []
    assert not (home / "memory" / "embeddings").exists()


async def test_the_embedder_that_is_named_is_used(fake: FakeOllama, home: Path) -> None:
    configuration = configure(fake, embedder=f"ollama/{MODEL}")
    memory = produce(configuration)
    await memory.add("Ada likes tea")
    assert fake.requests == []
    (found,) = await memory.search("tea")
    assert found.entry.content == "Ada likes tea"
    assert count_embedded(fake) == 2
    await memory.close()
    # The next process embeds the question only, also where the index is made anew.
    memory = produce(configuration)
    await memory.reindex()
    await memory.search("tea")
    assert count_embedded(fake) == 3
    await memory.close()
    assert (home / "memory" / "embeddings" / FILE).is_file()


async def test_the_clients_of_a_session_are_used(fake: FakeOllama) -> None:
    configuration = configure(fake, embedder=f"ollama/{MODEL}")
    providers = Providers(configuration, ignore_events)
    memory = produce(configuration, providers=providers)
    await memory.add("Ada likes tea")
    await memory.search("tea")
    await memory.close()
    assert len(providers._clients) == 1
    await providers.close()


async def test_memory_works_on_where_its_embedder_fails(fake: FakeOllama) -> None:
    reported: list[str] = []
    memory = produce(configure(embedder=f"ollama/{MODEL}"), notify=reported.append)
    await memory.add("Ada likes tea")
    for _ in range(3):
        assert len(await memory.search("tea")) == 1
    assert len(reported) == 1
    assert "ollama serve" in reported[0]
    await memory.close()
    # Nothing is lost: the vectors come with the server.
    memory = produce(configure(fake, embedder=f"ollama/{MODEL}"), notify=reported.append)
    assert await memory.embed() == 1
    assert len(reported) == 1
    await memory.close()


def test_an_invalid_embedder_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match="not found; available"):
        produce(configure(embedder="no-such"))


async def test_what_is_forgotten_leaves_no_vector(fake: FakeOllama, home: Path) -> None:
    configuration = configure(fake, embedder=f"ollama/{MODEL}")
    memory = produce(configuration)
    spoken = await memory.add("Ada drinks. She drinks much.", category="secret")
    await memory.add("Ben drinks tea.")
    changed = await memory.add("Cem was very ill.")
    await memory.embed()
    await memory.revise(changed.identity, content="Cem is well.")
    await memory.embed()
    folder = home / "memory" / "embeddings"
    cache = EmbeddingCache(folder)
    before = ["Ada drinks.", "She drinks much.", "Cem was very ill."]
    vectors = cache.read(f"ollama/{MODEL}", [digest_text(text) for text in before])
    assert len(vectors) == 3
    await memory.close()
    # Also where there is no embedder any more, and for words next to the text.
    memory = produce(configure(fake))
    assert await memory.forget("secret") == [spoken]
    left = [digest_text(text) for text in ("Ben drinks tea.", "Cem is well.")]
    assert set(cache.read(f"ollama/{MODEL}", left)) == set(left)
    for text in before:
        assert not holds(folder, vectors[digest_text(text)], text)
    await memory.close()


async def test_making_the_index_anew_clears_what_is_kept(fake: FakeOllama, home: Path) -> None:
    memory = produce(configure(fake, embedder=f"ollama/{MODEL}"))
    entry = await memory.add("Ada likes tea.", scope=GLOBAL)
    await memory.embed()
    await memory.remove(entry.identity)
    cache = EmbeddingCache(home / "memory" / "embeddings")
    digests = [digest_text("Ada likes tea.")]
    assert cache.read(f"ollama/{MODEL}", digests)
    await memory.reindex()
    assert not cache.read(f"ollama/{MODEL}", digests)
    await memory.close()
