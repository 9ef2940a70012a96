"""Lists of models in the forms of different servers."""

from __future__ import annotations

import msgspec
import pytest

from tests.fakes.openai import FakeOpenAI
from tests.fakes.openai_clients import produce_openai_client
from vibe_llms.base.exceptions import ReplyMalformed
from vibe_llms.providers.openai.catalogue import OpenaiModelEntry, decode_models


async def test_models_are_listed_in_the_forms_of_different_servers(
    fake_openai: FakeOpenAI,
) -> None:
    client = produce_openai_client("chat", fake_openai.url)
    fake_openai.models = {
        "object": "list",
        "data": [
            {"id": "gpt-6-astra", "object": "model", "created": 1, "owned_by": "openai"},
            {
                "id": "a/b",
                "name": "A: B",
                "context_length": 4096,
                "architecture": {"input_modalities": ["text", "image"]},
            },
            {"id": "local", "max_model_len": 8192},
        ],
    }
    models = {model.name: model.attributes for model in await client.survey_models()}
    assert list(models) == ["a/b", "gpt-6-astra", "local"]
    assert (models["a/b"].context_tokens, models["a/b"].title) == (4096, "A: B")
    assert "image/png" in models["a/b"].accepts
    assert models["gpt-6-astra"].context_tokens == 1_050_000
    assert models["local"].context_tokens == 8192
    fake_openai.models = [{"id": "bare"}]
    assert [model.name for model in await client.survey_models()] == ["bare"]
    fake_openai.models = {"models": 7}
    with pytest.raises(ReplyMalformed, match="list of models"):
        await client.survey_models()
    await client.close()


@pytest.mark.parametrize(
    ("entry", "attributes"),
    [
        ({"max_model_len": 0, "context_window": 9}, {"context-tokens": 9, "context-varies": False}),
        ({"context_length": "long", "context_window": None}, {}),
        ({"name": "m", "shutdown_date": None}, {}),
        ({"name": "M", "shutdown_date": "2027-01-01"}, {"title": "M", "retires": "2027-01-01"}),
        ({"architecture": {"input_modalities": ["file", 7]}}, {"accepts": ["application/pdf"]}),
        ({"architecture": {"input_modalities": "text"}}, {}),
        ({"architecture": {}}, {}),
        ({"architecture": "llama"}, {}),
        ({"architecture": ["llama"]}, {}),
    ],
)
def test_what_a_server_reports_is_used_where_it_is_understood(
    entry: dict[str, object], attributes: dict[str, object]
) -> None:
    body = msgspec.json.encode([{"id": "m", **entry}])
    assert [one.attributes() for one in decode_models(body)] == [attributes]


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[7]", b'{"data": 7}', b'[{"name": "m"}]', b"[" * 9999]
)
def test_what_is_no_list_of_models_is_reported(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_models(body)


def test_both_forms_of_a_list_are_read() -> None:
    for body in (b' [{"id": "a"}]', b'{"data": [{"id": "a"}]}'):
        assert decode_models(body) == [OpenaiModelEntry("a")]
