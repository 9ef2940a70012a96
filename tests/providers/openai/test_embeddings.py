"""Texts to vectors by OpenAI's interface, and by servers that are a little different."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from tests.fakes.openai import KEY, FakeOpenAI, answer_json, encode_vector, failure
from tests.fakes.openai_clients import INTERFACES, produce_openai_client
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialMissing,
    CredentialRefused,
    ModelUnavailable,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.canisters import Usage
from vibe_llms.providers.interfaces import EmbeddingClient
from vibe_llms.providers.limits import Limiter, limited
from vibe_llms.providers.openai.client import OpenAIClient

MODEL = "text-embedding-3-small"


@asynccontextmanager
async def opened(
    server: FakeOpenAI, interface: str = "chat", **options: Any
) -> AsyncIterator[OpenAIClient[Any, Any]]:
    client = produce_openai_client(interface, server.url, **options)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_texts_become_vectors_in_their_order(
    fake_openai: FakeOpenAI, interface: str, encoding: str
) -> None:
    fake_openai.encoding, fake_openai.shuffled = encoding, True
    texts = ["one", "fourteen chars", "broken \ud83d"]
    async with opened(fake_openai, interface) as client:
        assert isinstance(client, EmbeddingClient)
        found = await client.embed(MODEL, texts)
    assert [list(vector) for vector in found.vectors] == [encode_vector(one, 16) for one in texts]
    assert found.usage == Usage(uncached_input_tokens=1 + 4 + 2)
    assert fake_openai.refusals == []
    assert fake_openai.requests[0].json["input"][2] == "broken \ufffd"


async def test_so_many_numbers_are_asked_for(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai) as client:
        found = await client.embed(MODEL, ["a", "b"], dimensions=8)
        assert {len(vector) for vector in found.vectors} == {8}
        with pytest.raises(RequestRefused, match="does not support specifying dimensions"):
            await client.embed("text-embedding-ada-002", ["a"], dimensions=8)
        # A server that passes over what it was asked for.
        fake_openai.replies = [answer_json({"data": [{"index": 0, "embedding": [1.0] * 16}]})]
        with pytest.raises(ReplyMalformed, match="of 16 dimensions, not the requested 8"):
            await client.embed(MODEL, ["a"], dimensions=8)


async def test_nothing_is_asked_for_no_texts(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai) as client:
        assert (await client.embed(MODEL, [])).vectors == ()
    assert fake_openai.requests == []


async def test_what_is_too_long_is_an_overflow(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai) as client:
        with pytest.raises(ContextOverflow) as caught:
            await client.embed(MODEL, ["short", "long" * 9_000])
        assert caught.value.limit == 8192
        with pytest.raises(RequestTooLarge):
            await client.embed(MODEL, ["long" * 8_000] * 40)
        for status, message in (
            (400, "This model's maximum context length is 8192 tokens, however you requested 9000"),
            (500, "input (2048 tokens) is too large to process. increase the batch size"),
        ):
            fake_openai.replies = [failure(status, "x", message)]
            with pytest.raises(ContextOverflow):
                await client.embed(MODEL, ["text"])


async def test_what_a_server_refuses_is_reported(fake_openai: FakeOpenAI) -> None:
    async with opened(fake_openai) as client:
        with pytest.raises(ModelUnavailable, match="gpt-0"):
            await client.embed("gpt-0", ["a"])
        with pytest.raises(RequestRefused, match="input"):
            await client.embed(MODEL, [""])
        fake_openai.replies = [failure(429, "requests", "slow down", "rate_limit_exceeded")]
        with pytest.raises(RateLimited):
            await client.embed(MODEL, ["a"])
    wrong = Credential("chat", given=Secret("sk-proj-wrong-0123456789abcdefghijklm"))
    async with opened(fake_openai, credential=wrong) as client:
        with pytest.raises(CredentialRefused):
            await client.embed(MODEL, ["a"])
    missing = Credential("chat", variable="NO_SUCH_KEY")
    async with opened(fake_openai, credential=missing) as client:
        with pytest.raises(CredentialMissing, match="NO_SUCH_KEY"):
            await client.embed(MODEL, ["a"])


async def test_a_server_that_fails_for_a_moment_is_asked_again(fake_openai: FakeOpenAI) -> None:
    fake_openai.replies = [failure(500, "server_error")]
    async with opened(fake_openai, stream=StreamSettings(retries=1)) as client:
        assert len((await client.embed(MODEL, ["a"])).vectors) == 1
    assert len(fake_openai.requests) == 2


async def test_requests_count_against_the_limits_of_their_row(fake_openai: FakeOpenAI) -> None:
    limiter = Limiter("chat", requests=2)
    fake_openai.replies = [failure(500, "server_error")]
    async with opened(fake_openai, stream=StreamSettings(retries=1)) as client:
        with limited(limiter, 10):
            await client.embed(MODEL, ["a"])
    # The retry is a request too: the next one would have to wait.
    assert len(limiter._starts) == 2


NOT_A_NUMBER = base64.b64encode(struct.pack("<2f", 1.0, float("nan"))).decode()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": None},
        {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 2, "embedding": [2.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"embedding": [2.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]},
        {"data": [{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [None]}, {"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}]},
        {"data": [{"index": 0, "embedding": "no base64!"}, {"index": 1, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": "AAAA"}, {"index": 1, "embedding": "AAAA"}]},
        {"data": [{"index": i, "embedding": NOT_A_NUMBER} for i in range(2)]},
        {"data": [{"index": i, "embedding": [1e300]} for i in range(2)]},
        [],
    ],
)
async def test_what_is_no_vector_for_each_text_is_malformed(
    fake_openai: FakeOpenAI, body: Any
) -> None:
    fake_openai.replies = [answer_json(body)]
    async with opened(fake_openai) as client:
        with pytest.raises(ReplyMalformed):
            await client.embed(MODEL, ["a", "b"])


async def test_servers_that_send_no_index_keep_the_order(fake_openai: FakeOpenAI) -> None:
    fake_openai.replies = [answer_json({"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]})]
    async with opened(fake_openai) as client:
        found = await client.embed(MODEL, ["a", "b"])
    assert [list(vector) for vector in found.vectors] == [[1.0], [2.0]]
    assert found.usage == Usage()


async def test_the_official_package_reads_the_same(fake_openai: FakeOpenAI) -> None:
    texts = ["one", "three", "eleven"]
    async with opened(fake_openai) as client:
        ours = await client.embed(MODEL, texts, dimensions=12)
    async with AsyncOpenAI(
        api_key=KEY, base_url=fake_openai.url, http_client=httpx2.AsyncClient()
    ) as official:
        theirs = await official.embeddings.create(model=MODEL, input=texts, dimensions=12)
    assert [list(one) for one in ours.vectors] == [one.embedding for one in theirs.data]
    sent = [json.loads(request.body) for request in fake_openai.requests]
    # Theirs asks for base64, which some servers refuse; ours takes what comes.
    assert sent[1] == {**sent[0], "encoding_format": "base64"}
