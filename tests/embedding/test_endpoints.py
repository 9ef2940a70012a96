"""Vectors from servers, by the rows of `[providers]`, their keys and their limits."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.ollama import FakeModel, FakeOllama
from tests.fakes.openai import KEY, FakeOpenAI, answer_json, encode_vector, failure
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContextOverflow,
    CredentialMissing,
    ModelUnavailable,
    ProviderOverloaded,
    ProviderUnreachable,
    ReplyMalformed,
    RequestForbidden,
)
from vibe_llms.base.network.offline import forbid_requests
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.strict import StrictEmbedder
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.provider_pool import Providers

MODEL = "text-embedding-3-small"
MODULE = "vibe_llms.embedding.endpoints"


@pytest.fixture
def fake_openai() -> Iterator[FakeOpenAI]:
    """A strict server of OpenAI's interfaces on this machine."""
    with FakeOpenAI() as server:
        yield server


@asynccontextmanager
async def opened(
    url: str = "",
    address: str = f"openai/{MODEL}",
    *,
    embedder: dict[str, Any] | None = None,
    notify: Callable[[str], None] = lambda _: None,
    key: str = KEY,
    **row: Any,
) -> AsyncIterator[StrictEmbedder]:
    """An embedder; `row` is laid over the provider's, `embedder` is a row named `small`."""
    name = address.partition("/")[0] if embedder is None else embedder["provider"]
    overrides: dict[str, Any] = {"providers": {name: {"retries": 0, **row}}}
    if url:
        overrides["providers"][name]["base-url"] = url
    if embedder is not None:
        overrides["embedders"] = {"small": {"module": MODULE, **embedder}}
    configuration = load_configuration(overrides=overrides)
    providers = Providers(configuration, ignore_events, keys={name: key} if key else {})
    made = produce_embedder(configuration, address, providers=providers, notify=notify)
    try:
        yield made
    finally:
        await made.close()
        await providers.close()


@pytest.mark.parametrize("row", ["openai", "openai-chat", "mistral"])
async def test_rows_of_openais_interfaces_embed(fake_openai: FakeOpenAI, row: str) -> None:
    async with opened(fake_openai.url, f"{row}/{MODEL}") as embedder:
        assert embedder.model == f"{row}/{MODEL}"
        await embedder.inquire()
        assert fake_openai.requests == []
        one, other = await embedder.embed(["one", "other"])
    assert [list(one), list(other)] == [encode_vector("one", 16), encode_vector("other", 16)]


async def test_ollama_embeds(fake_ollama: FakeOllama) -> None:
    fake_ollama.models["nomic-embed-text"] = FakeModel()
    async with opened(fake_ollama.url, "ollama/nomic-embed-text", key="") as embedder:
        await embedder.inquire()
        assert fake_ollama.requests == []
        (vector,) = await embedder.embed(["text"], question=True)
    assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-5)


async def test_a_row_says_more_than_an_address_can(fake_openai: FakeOpenAI) -> None:
    row = {
        "provider": "openai",
        "default-model": MODEL,
        "dimensions": 8,
        "batch-texts": 2,
        "entry-prefix": "passage: ",
        "query-prefix": "query: ",
    }
    async with opened(fake_openai.url, "small", embedder=row) as embedder:
        assert embedder.model == f"openai/{MODEL} dimensions=8 'passage: '"
        vectors = await embedder.embed(["a", "b", "c"])
        await embedder.embed(["a"], question=True)
    assert {len(vector) for vector in vectors} == {8}
    sent = [request.json["input"] for request in fake_openai.requests]
    assert sent == [["passage: a", "passage: b"], ["passage: c"], ["query: a"]]


async def test_a_request_is_not_too_long(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai.url) as embedder:
        assert len(await embedder.embed(["word " * 6_000] * 12)) == 12
    assert [len(request.json["input"]) for request in fake_openai.requests] == [3] * 4
    assert fake_openai.refusals == []


async def test_of_a_text_that_is_too_long_the_beginning_counts(fake_openai: FakeOpenAI) -> None:
    reported: list[str] = []
    texts = ["short", "much too long " * 5_000, "other", "long too " * 9_000]
    async with opened(fake_openai.url, notify=reported.append) as embedder:
        vectors = await embedder.embed(texts)
    assert len(vectors) == 4
    assert list(vectors[0]) == encode_vector("short", 16)
    assert list(vectors[2]) == encode_vector("other", 16)
    # Halved until the server takes it, and no further.
    assert list(vectors[1]) == encode_vector(texts[1][: len(texts[1]) // 4], 16)
    assert list(vectors[3]) == encode_vector(texts[3][: len(texts[3]) // 4], 16)
    assert len(reported) == 1
    assert "only its beginning is used" in reported[0]


async def test_a_text_that_is_refused_however_short_it_is_ends_it(fake_openai: FakeOpenAI) -> None:
    overflow = failure(400, "invalid_request_error", "m", "context_length_exceeded")
    fake_openai.replies = [overflow] * 20
    async with opened(fake_openai.url) as embedder:
        with pytest.raises(ContextOverflow):
            await embedder.embed(["word " * 200])
    assert len(fake_openai.requests) == 4


@pytest.mark.parametrize("name", ["anthropic", "llamacpp"])
async def test_a_provider_that_makes_no_vectors_is_reported(name: str) -> None:
    async with opened(address=f"{name}/model", key="sk-ant-0123456789abcdefghij") as embedder:
        for work in (embedder.inquire(), embedder.embed(["text"])):
            with pytest.raises(
                ConfigurationError, match=f"'{name}' does not embed texts"
            ) as caught:
                await work
            assert (caught.value.table, caught.value.key) == ("memory", "embedder")
    row = {"provider": name, "default-model": "model"}
    async with opened(address="small", embedder=row, key="") as embedder:
        with pytest.raises(ConfigurationError, match="does not embed texts") as caught:
            await embedder.inquire()
        assert (caught.value.table, caught.value.key) == ("embedders.small", "provider")


async def test_a_missing_key_is_reported_before_anything_is_sent(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai.url, key="") as embedder:
        for work in (embedder.inquire(), embedder.embed(["text"])):
            with pytest.raises(CredentialMissing, match="OPENAI_API_KEY"):
                await work
    assert fake_openai.requests == []


async def test_where_requests_are_forbidden_none_is_made() -> None:
    async with opened() as embedder:
        with forbid_requests():
            for work in (embedder.inquire(), embedder.embed(["text"])):
                with pytest.raises(RequestForbidden, match=r"api\.openai\.com"):
                    await work


async def test_a_provider_that_is_not_there_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="provider 'no-such' not found") as caught:
        async with opened(
            address="small/model", embedder={"provider": "no-such"}, module="vibe_llms.none",
            enabled=False,
        ):  # fmt: skip
            pass
    assert caught.value.table == "embedders.small"
    configuration = load_configuration(overrides={"embedders": {"small": {"module": MODULE}}})
    with pytest.raises(ConfigurationError, match="provider"):
        produce_embedder(configuration, "small/model")


async def test_a_server_that_fails_half_way_gives_nothing(fake_openai: FakeOpenAI) -> None:
    row = {"provider": "openai", "default-model": MODEL, "batch-texts": 1}
    async with opened(fake_openai.url, "small", embedder=row) as embedder:
        fake_openai.replies = [
            answer_json({"data": [{"index": 0, "embedding": encode_vector("a", 16)}]}),
            failure(503, "server_error"),
        ]
        with pytest.raises(ProviderOverloaded):
            await embedder.embed(["a", "b", "c"])
        assert len(fake_openai.requests) == 2
        # It goes on as soon as the server does.
        assert len(await embedder.embed(["a", "b", "c"])) == 3


async def test_a_server_that_changes_its_model_is_detected(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai.url) as embedder:
        await embedder.embed(["a"])
        fake_openai.replies = [answer_json({"data": [{"index": 0, "embedding": [1.0] * 4}]})]
        with pytest.raises(ReplyMalformed, match="4 numbers after those of 16"):
            await embedder.embed(["a"])


async def test_a_model_that_is_not_there_is_reported(
    fake_openai: FakeOpenAI, fake_ollama: FakeOllama
) -> None:
    async with opened(fake_openai.url, "openai/gpt-0") as embedder:
        with pytest.raises(ModelUnavailable, match="gpt-0"):
            await embedder.embed(["a"])
    async with opened(fake_ollama.url, "ollama/bge-m3", key="") as embedder:
        with pytest.raises(ModelUnavailable, match="ollama pull bge-m3"):
            await embedder.embed(["a"])


async def test_a_server_that_does_not_run_is_reported_at_once() -> None:
    started = time.monotonic()
    async with opened("http://127.0.0.1:9", "ollama/bge-m3", key="") as embedder:
        with pytest.raises(ProviderUnreachable, match="ollama serve"):
            await embedder.embed(["a"])
    assert time.monotonic() - started < 10


async def test_the_limits_of_the_row_hold(fake_openai: FakeOpenAI) -> None:
    overrides: dict[str, Any] = {
        "providers": {"openai": {"base-url": fake_openai.url, "tokens-per-minute": 1_000_000}}
    }
    configuration = load_configuration(overrides=overrides)
    providers = Providers(configuration, ignore_events, keys={"openai": KEY})
    embedder = produce_embedder(configuration, f"openai/{MODEL}", providers=providers)
    await embedder.embed(["word " * 200] * 3)
    limiter = providers.access_row_limiter("openai")
    assert limiter is not None
    # Not what was estimated counts, but what the server says.
    assert [spent.tokens for spent in limiter._spent] == [750]
    await providers.close()
