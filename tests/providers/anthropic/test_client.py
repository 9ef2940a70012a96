"""Provider, client and model against the strict fake: settings, credentials, models, replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.fakes.anthropic import KEY, VERSION, FakeAnthropic, answer_json, failure
from tests.fakes.clients import produce_client, produce_model
from tests.fakes.server import HttpAnswer
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialRefused,
    ModelNotFound,
    ReplyMalformed,
)
from vibe_llms.messages.canisters import (
    UserCanister,
)
from vibe_llms.providers.anthropic.client import AnthropicClient
from vibe_llms.providers.anthropic.model import VERSION as OURS
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.http_transport import HttpTransport

HI = [UserCanister.from_text("Hi")]
RETRY = StreamSettings(retries=2)
ADVICE = {"retry-after-ms": "1"}


@pytest.fixture
async def client(fake_anthropic: FakeAnthropic) -> AsyncIterator[AnthropicClient]:
    """A client of the fake server."""
    client = produce_client(fake_anthropic.url)
    yield client
    await client.close()


# Settings.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cahce": "5m"}, r"\[providers.anthropic\], key 'cahce': unknown key"),
        ({"cache": "2h"}, "key 'cache'"),
        ({"citations": "yes"}, "key 'citations'"),
        ({"beta": "one"}, "key 'beta'"),
        ({"beta": ["a", "b c"]}, r"\[providers.anthropic.beta\], key '1'"),
        ({"beta": ["a\n"]}, r"\[providers.anthropic.beta\], key '0'"),
        ({"base_url": 5}, "key 'base-url'"),
    ],
)
def test_a_wrong_key_of_the_row_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        produce_client(**settings)


@pytest.mark.parametrize("url", ["nonsense", "ftp://example.org", "http://"])
async def test_an_address_that_is_none_is_a_wrong_configuration(url: str) -> None:
    model = await produce_model(url)
    with pytest.raises(ConfigurationError, match="is not an http"):
        await model.converse(HI)


# Credentials and headers.


async def test_a_request_carries_the_key_and_the_version_in_its_headers(
    fake_anthropic: FakeAnthropic,
) -> None:
    model = await produce_model(fake_anthropic.url, beta=["one-1", "two_2.0"])
    await model.converse(HI)
    (request,) = fake_anthropic.requests
    assert OURS == VERSION
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["anthropic-version"] == VERSION
    assert request.headers["anthropic-beta"] == "one-1,two_2.0"
    assert request.headers["content-type"] == "application/json"
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert KEY.encode() not in request.body
    assert fake_anthropic.refusals == []
    await model.client.close()


async def test_a_row_without_credentials_sends_none(fake_anthropic: FakeAnthropic) -> None:
    credential = Credential("anthropic", "none", variable="ANTHROPIC_API_KEY")
    model = await produce_model(fake_anthropic.url, credential=credential)
    with pytest.raises(CredentialRefused):
        await model.converse(HI)
    (request,) = fake_anthropic.requests
    assert "authorization" not in request.headers
    assert "anthropic-beta" not in request.headers
    await model.client.close()


# Models.


async def test_a_model_is_accessed_without_asking_the_server(
    client: AnthropicClient, fake_anthropic: FakeAnthropic
) -> None:
    model = await client.access_model("claude-haiku-4-5")
    assert (model.provider, model.name) == ("anthropic", "claude-haiku-4-5")
    assert model.attributes.context_tokens == 200_000
    with pytest.raises(ModelNotFound, match="which model of 'anthropic'"):
        await client.access_model("")
    assert fake_anthropic.requests == []


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_models_are_listed_over_all_pages(
    client: AnthropicClient, fake_anthropic: FakeAnthropic, size: int
) -> None:
    names = ["claude-opus-5", "claude/odd name&", "claude-haiku-4-5"]
    fake_anthropic.models = [{"id": name, "type": "model"} for name in names]
    fake_anthropic.page_size = size
    assert [model.name for model in await client.survey_models()] == names
    assert len(fake_anthropic.requests) == -(-len(names) // size)


async def test_there_may_be_no_models(client: AnthropicClient) -> None:
    assert await client.survey_models() == []


SUPPORTED = {"supported": True}
ENTRY: dict[str, Any] = {
    "id": "claude-next",
    "type": "model",
    "display_name": "Claude Next",
    "created_at": "2026-01-01T00:00:00Z",
    "lifecycle": "active",
    "retires_at": "2027-01-01",
    "max_input_tokens": 500_000,
    "max_tokens": 50_000,
    "capabilities": {
        "image_input": SUPPORTED,
        "pdf_input": SUPPORTED,
        "thinking": {**SUPPORTED, "types": {"adaptive": SUPPORTED, "novel": SUPPORTED}},
        "effort": {**SUPPORTED, "low": SUPPORTED, "ultra": SUPPORTED, "max": {"supported": False}},
    },
}


async def survey(server: FakeAnthropic, entry: Any, **options: Any) -> ModelAttributes:
    """What a client makes of an entry of the list of models."""
    server.models = [entry]
    client = produce_client(server.url, **options)
    (model,) = await client.survey_models()
    # What the server said counts from now on, however the model is asked for.
    assert (await client.access_model(model.name)).attributes == model.attributes
    await client.close()
    return model.attributes


async def test_what_the_server_says_of_a_model_is_laid_over_the_files(
    fake_anthropic: FakeAnthropic,
) -> None:
    reported = await survey(fake_anthropic, ENTRY)
    assert (reported.title, reported.retires) == ("Claude Next", "2027-01-01")
    assert (reported.context_tokens, reported.output_tokens) == (500_000, 50_000)
    assert "application/pdf" in reported.accepts
    assert reported.accept("image")
    assert reported.reasoning
    assert reported.controls is not None
    assert reported.controls["effort"].choices == ("low", "ultra")
    assert reported.controls["output-tokens"].maximum == 50_000
    assert "reasoning-tokens" not in reported.controls
    # What it says nothing of stays as the files have it.
    assert reported.request_bytes == 32_000_000
    assert reported.native == {"thinking": ["adaptive"], "system-messages": True}


@pytest.mark.parametrize(
    ("types", "bounds"),
    [
        (["enabled", "disabled"], (0, 49_999)),
        (["enabled"], (1024, 49_999)),
        (["disabled", "adaptive"], (0, 0)),
        (["between_tools", "adaptive"], (0, 0)),
    ],
)
async def test_which_budgets_a_model_takes_follows_from_its_kinds_of_thinking(
    fake_anthropic: FakeAnthropic, types: Sequence[str], bounds: tuple[int, int]
) -> None:
    thinking = {**SUPPORTED, "types": dict.fromkeys(types, SUPPORTED)}
    reported = await survey(fake_anthropic, {**ENTRY, "capabilities": {"thinking": thinking}})
    assert reported.controls is not None
    budget = reported.controls["reasoning-tokens"]
    assert (budget.minimum, budget.maximum) == bounds


async def test_a_model_that_can_do_nothing_of_it(fake_anthropic: FakeAnthropic) -> None:
    capabilities = {"effort": {"supported": False}, "thinking": {"supported": False}}
    reported = await survey(fake_anthropic, {**ENTRY, "capabilities": capabilities})
    assert reported.accepts == ()
    assert reported.reasoning is False
    assert reported.controls is not None
    assert "effort" not in reported.controls


@pytest.mark.parametrize(
    "capabilities",
    [
        None,
        {},
        {"thinking": True, "effort": ["low"], "image_input": "yes"},
        {"thinking": {"types": "all"}, "effort": None, "pdf_input": {"supported": "yes"}},
    ],
)
async def test_capabilities_of_another_form_are_passed_over(
    fake_anthropic: FakeAnthropic, capabilities: Any
) -> None:
    entry = {"id": "claude-opus-5", "capabilities": capabilities, "max_tokens": None}
    reported = await survey(fake_anthropic, entry)
    assert reported.output_tokens == 128_000
    assert reported.controls is not None
    assert reported.controls["effort"].choices == ("low", "medium", "high", "xhigh", "max")


async def test_a_budget_without_a_known_bound_has_a_least_one(
    fake_anthropic: FakeAnthropic,
) -> None:
    capabilities = {"thinking": {"types": {"enabled": SUPPORTED}}}
    reported = await survey(fake_anthropic, {"id": "other", "capabilities": capabilities})
    assert reported.controls is not None
    budget = reported.controls["reasoning-tokens"]
    assert (budget.minimum, budget.maximum) == (1024, None)


async def test_the_users_own_word_goes_before_the_servers(fake_anthropic: FakeAnthropic) -> None:
    models = {
        "claude-next": {"context-tokens": 1_000, "controls": {"effort": {"choices": ["max"]}}}
    }
    reported = await survey(fake_anthropic, ENTRY, models=models)
    assert reported.context_tokens == 1_000
    assert reported.controls is not None
    assert reported.controls["effort"].choices == ("max",)


@pytest.mark.parametrize(
    "body", [[], {"data": 5}, {"data": [{"name": "x"}]}, {}, {"data": [{"id": 5}]}]
)
async def test_a_list_that_is_none_is_malformed(
    client: AnthropicClient, fake_anthropic: FakeAnthropic, body: Any
) -> None:
    class Odd(FakeAnthropic):
        def _list_models(self, query: Any) -> HttpAnswer:
            return answer_json(body)

    with Odd() as server:
        odd = produce_client(server.url)
        with pytest.raises(ReplyMalformed, match="the list of models cannot be read from"):
            await odd.survey_models()
        await odd.close()


async def test_pages_that_lead_nowhere_end() -> None:
    class Endless(FakeAnthropic):
        def _list_models(self, query: Any) -> HttpAnswer:
            return answer_json({"data": [{"id": "a"}], "has_more": True, "last_id": "a"})

    with Endless() as server:
        client = produce_client(server.url)
        assert [model.name for model in await client.survey_models()] == ["a", "a"]
        await client.close()
        assert [request.path for request in server.requests] == [
            "/v1/models?limit=1000",
            "/v1/models?limit=1000&after_id=a",
        ]


async def test_a_list_that_is_refused_says_why(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.key = "sk-ant-another-0123456789"
    client = produce_client(fake_anthropic.url)
    with pytest.raises(CredentialRefused):
        await client.survey_models()
    await client.close()


# Replies.


async def test_the_count_and_the_list_are_tried_again_too(fake_anthropic: FakeAnthropic) -> None:
    class Moody(FakeAnthropic):
        def respond(self, request: Any) -> HttpAnswer:
            if len(self.requests) % 2:
                return failure(529, "overloaded_error", headers=ADVICE)
            return super().respond(request)

    with Moody() as server:
        server.models = [{"id": "a"}]
        client = produce_client(server.url, stream=RETRY)
        (model,) = await client.survey_models()
        assert (await model.count_tokens(HI)).tokens == 7
        assert len(server.requests) == 4
        await client.close()


def test_the_transport_follows_from_the_credential() -> None:
    assert isinstance(produce_client().transport, HttpTransport)
