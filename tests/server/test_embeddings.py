"""Embeddings as the official client sees them, from a real server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.openai import answer_json
from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest
from tests.server.conftest import Served, serving

EMBEDDINGS = "/v1/embeddings"
MODEL = "scripted/demo"


class Obliging(FakeServer):
    """A provider that lists one model, and takes every name."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path == "/models":
            return answer_json({"data": [{"id": "listed"}]})
        return answer_json({"data": [{"index": 0, "embedding": [1.0, 0.0]}]})


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_texts_become_vectors_which_are_near_if_their_words_are(served: Served) -> None:
    texts = ["The harbour is closed", "Is the harbour closed?", "Bread needs flour"]
    async with served.openai() as client:
        # This client asks for base64 unless it is told otherwise.
        packed = await client.embeddings.create(model=MODEL, input=texts)
        plain = await client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [one.index for one in packed.data] == [0, 1, 2]
    first, second, third = (one.embedding for one in plain.data)
    assert [one.embedding for one in packed.data] == [first, second, third]
    assert math.hypot(*first) == pytest.approx(1)
    assert likeness(first, second) > likeness(first, third)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


async def test_a_text_alone_and_a_size_are_taken(served: Served) -> None:
    async with served.openai() as client:
        reply = await client.embeddings.create(model=MODEL, input="one", dimensions=7)
    (one,) = reply.data
    assert len(one.embedding) == 7


async def test_aliases_name_embedders_too(home: Path) -> None:
    rows = {"small": {"module": "vibe_llms.embedding.endpoints", "provider": "scripted"}}
    rows["small"]["default-model"] = "demo"
    aliases = {"text-embedding-3-small": MODEL, "mine": "small"}
    tables: Any = {"embedders": rows, "aliases": aliases}
    async with serving(home, **tables) as served, served.openai() as client:
        vectors = [
            (await client.embeddings.create(model=model, input="one")).data[0].embedding
            for model in (*aliases, "small", MODEL)
        ]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="small", input="one", dimensions=7)
    assert vectors == [vectors[0]] * 4
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b'{"input": "a"}', 400, "model"),
        (b'{"model": "scripted/demo"}', 400, "input"),
        (b'{"model": "scripted/demo", "input": []}', 400, "input"),
        (b'{"model": "scripted/demo", "input": ["a", " "]}', 400, "input[1]"),
        (b'{"model": "scripted/demo", "input": [1, 2]}', 400, "input[0]"),
        (b'{"model": "scripted/demo", "input": [[1, 2]]}', 400, "input[0]"),
        (b'{"model": "scripted/demo", "input": "a", "dimensions": 0}', 400, "dimensions"),
        (b'{"model": "scripted/demo", "input": "a", "encoding_format": "x"}', 400, None),
        (b'{"model": "none", "input": "a"}', 404, None),
        (b'{"model": "none/such", "input": "a"}', 404, None),
        (b'{"model": "onnx//etc/passwd", "input": "a"}', 404, None),
        (b'{"model": "anthropic/claude", "input": "a"}', 404, None),
        (b'{"model": "scripted/none", "input": "a"}', 404, None),
    ],
)
async def test_a_wrong_request_is_answered_with_what_is_wrong(
    served: Served, body: bytes, status: int, param: str | None
) -> None:
    async with served.http() as client:
        response = await client.post(EMBEDDINGS, content=body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert {*error} == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param


async def test_a_provider_that_is_down_is_a_bad_gateway(home: Path) -> None:
    rows = {"openai": {"base-url": "http://127.0.0.1:9/v1", "credential": "none"}}
    aliases = {"small": "openai/text-embedding-3-small"}
    tables: Any = {"providers": rows, "aliases": aliases, "stream": {"retries": 0}}
    async with serving(home, **tables) as served, served.openai() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.embeddings.create(model="small", input="a")
    assert caught.value.status_code == 502


async def test_only_models_that_are_listed_or_configured_are_taken_and_counted(home: Path) -> None:
    async with Obliging() as upstream:
        rows = {"openai": {"base-url": upstream.url, "credential": "none", "retries": 0}}
        tables: Any = {"providers": rows, "aliases": {"mine": "openai/unlisted"}}
        async with serving(home, **tables) as served, served.http() as client:
            found = {}
            for model in ("openai/listed", "listed", "mine", "openai/unlisted", "openai/made-up"):
                body = {"model": model, "input": "a"}
                found[model] = (await client.post(EMBEDDINGS, json=body)).status_code
            counted = (await client.get("/metrics")).text
    assert found == {
        **dict.fromkeys(("openai/listed", "listed", "mine"), 200),
        **dict.fromkeys(("openai/unlisted", "openai/made-up"), 404),
    }
    assert 'model="openai/listed"' in counted
    assert 'model="mine"' in counted
    assert 'model="openai/made-up"' not in counted


async def test_embeddings_count_against_the_budget_of_their_user(home: Path) -> None:
    budgets = {"tokens": 60, "period": "total"}
    async with serving(home, budgets=budgets) as served, served.openai() as client:
        for _ in range(2):
            await client.embeddings.create(model=MODEL, input=["one two three"])
        async with served.http() as http:
            (balance,) = (await http.get("/api/budgets")).json()["budgets"]
        with pytest.raises(openai.RateLimitError) as caught:
            await client.embeddings.create(model=MODEL, input=["words " * 20])
        async with served.openai("ada") as another:
            await another.embeddings.create(model=MODEL, input=["one two three"])
    assert caught.value.code == "insufficient_quota"
    # Waiting does not help: it never fits.
    assert "retry-after" not in caught.value.response.headers
    assert 0 < balance["spent"] < 60
    assert balance["reserved"] == 0
