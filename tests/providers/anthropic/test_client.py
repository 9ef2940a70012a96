"""Provider, client and model against the strict fake: settings, credentials, models, replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.fakes.anthropic import (
    KEY,
    VERSION,
    FakeAnthropic,
    answer_json,
    failure,
    reply,
    stream,
    text_block,
    text_reply,
    thinking_block,
    tool_block,
)
from tests.fakes.clients import produce_client, produce_model
from tests.fakes.recordings import strip
from tests.fakes.server import Answer
from vibe_llms.configuration import StreamSettings
from vibe_llms.controls import Controls
from vibe_llms.credentials import Credential, Secret
from vibe_llms.events import (
    Event,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    Notice,
)
from vibe_llms.exceptions import (
    ConfigurationError,
    ControlInvalid,
    CredentialMissing,
    CredentialRefused,
    ModelNotFound,
    ModelUnavailable,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestTooLarge,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    Provenance,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.providers.anthropic.client import VERSION as OURS
from vibe_llms.providers.anthropic.client import AnthropicClient
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.transport import HttpTransport
from vibe_llms.testing import check_events

HI = [UserCanister.from_text("Hi")]
RETRY = StreamSettings(retries=2)
ADVICE = {"retry-after-ms": "1"}


@pytest.fixture
async def client(fake_anthropic: FakeAnthropic) -> AsyncIterator[AnthropicClient]:
    """A client of the fake server."""
    client = produce_client(fake_anthropic.url)
    yield client
    await client.close()


def add(a: int) -> int:
    """Add."""
    return a


# Settings.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cahce": "5m"}, r"\[providers.anthropic\], key 'cahce': this key is not known"),
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


async def test_a_client_without_a_request_opens_nothing(fake_anthropic: FakeAnthropic) -> None:
    client = produce_client(fake_anthropic.url)
    model = await client.access_model("claude-opus-5")
    model.check(HI, Controls())
    await model.preview(HI, (), Controls(), TurnContext())
    await client.close()
    await client.close()
    assert fake_anthropic.connections == 0


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


async def test_a_missing_key_says_where_to_put_one(fake_anthropic: FakeAnthropic) -> None:
    credential = Credential("anthropic", variable="NO_SUCH_KEY")
    model = await produce_model(fake_anthropic.url, credential=credential)
    with pytest.raises(CredentialMissing, match="set NO_SUCH_KEY or run: vibe-llms keys set"):
        await model.converse(HI)
    assert fake_anthropic.requests == []


async def test_a_wrong_key_is_refused(fake_anthropic: FakeAnthropic) -> None:
    credential = Credential("anthropic", given=Secret("sk-ant-wrong-012345678901"))
    model = await produce_model(fake_anthropic.url, credential=credential)
    with pytest.raises(CredentialRefused, match="vibe-llms keys set"):
        await model.converse(HI)
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


async def test_an_unknown_model_shows_when_it_is_spoken_with(
    client: AnthropicClient, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.replies = [failure(404, "not_found_error", "model: claude-nine")]
    model = await client.access_model("claude-nine")
    with pytest.raises(ModelUnavailable, match=r"claude-nine \(list the models"):
        await model.converse(HI)


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
    told = await survey(fake_anthropic, ENTRY)
    assert (told.title, told.retires) == ("Claude Next", "2027-01-01")
    assert (told.context_tokens, told.output_tokens) == (500_000, 50_000)
    assert "application/pdf" in told.accepts
    assert told.accept("image")
    assert told.reasoning
    assert told.controls is not None
    assert told.controls["effort"].choices == ("low", "ultra")
    assert told.controls["output-tokens"].maximum == 50_000
    assert "reasoning-tokens" not in told.controls
    # What it says nothing of stays as the files have it.
    assert told.request_bytes == 32_000_000
    assert told.native == {"thinking": ["adaptive"], "system-messages": True}


@pytest.mark.parametrize(
    ("types", "bounds"),
    [
        (["enabled", "disabled"], (0, 49_999)),
        (["enabled"], (1024, 49_999)),
        (["disabled", "adaptive"], (0, 0)),
    ],
)
async def test_which_budgets_a_model_takes_follows_from_its_kinds_of_thinking(
    fake_anthropic: FakeAnthropic, types: Sequence[str], bounds: tuple[int, int]
) -> None:
    thinking = {**SUPPORTED, "types": dict.fromkeys(types, SUPPORTED)}
    told = await survey(fake_anthropic, {**ENTRY, "capabilities": {"thinking": thinking}})
    assert told.controls is not None
    budget = told.controls["reasoning-tokens"]
    assert (budget.minimum, budget.maximum) == bounds


async def test_a_model_that_can_do_nothing_of_it(fake_anthropic: FakeAnthropic) -> None:
    capabilities = {"effort": {"supported": False}, "thinking": {"supported": False}}
    told = await survey(fake_anthropic, {**ENTRY, "capabilities": capabilities})
    assert told.accepts == ()
    assert told.reasoning is False
    assert told.controls is not None
    assert "effort" not in told.controls


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
    told = await survey(fake_anthropic, entry)
    assert told.output_tokens == 128_000
    assert told.controls is not None
    assert told.controls["effort"].choices == ("low", "medium", "high", "xhigh", "max")


async def test_a_budget_without_a_known_bound_has_a_least_one(
    fake_anthropic: FakeAnthropic,
) -> None:
    capabilities = {"thinking": {"types": {"enabled": SUPPORTED}}}
    told = await survey(fake_anthropic, {"id": "other", "capabilities": capabilities})
    assert told.controls is not None
    budget = told.controls["reasoning-tokens"]
    assert (budget.minimum, budget.maximum) == (1024, None)


async def test_the_users_own_word_goes_before_the_servers(fake_anthropic: FakeAnthropic) -> None:
    models = {
        "claude-next": {"context-tokens": 1_000, "controls": {"effort": {"choices": ["max"]}}}
    }
    told = await survey(fake_anthropic, ENTRY, models=models)
    assert told.context_tokens == 1_000
    assert told.controls is not None
    assert told.controls["effort"].choices == ("max",)


@pytest.mark.parametrize(
    "body", [[], {"data": 5}, {"data": [{"name": "x"}]}, {}, {"data": [{"id": 5}]}]
)
async def test_a_list_that_is_none_is_malformed(
    client: AnthropicClient, fake_anthropic: FakeAnthropic, body: Any
) -> None:
    class Odd(FakeAnthropic):
        def _list_models(self, query: Any) -> Answer:
            return answer_json(body)

    with Odd() as server:
        odd = produce_client(server.url)
        with pytest.raises(ReplyMalformed, match="the list of models is not in"):
            await odd.survey_models()
        await odd.close()


async def test_pages_that_lead_nowhere_end() -> None:
    class Endless(FakeAnthropic):
        def _list_models(self, query: Any) -> Answer:
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


async def test_streamed_and_not_the_reply_is_the_same(
    client: AnthropicClient, fake_anthropic: FakeAnthropic
) -> None:
    events = reply(
        thinking_block(0, "Let me ", "see."),
        text_block(1, "It ", "is"),
        tool_block(2, "time__now", '{"a":1}', call="toolu_7"),
        stop_reason="tool_use",
    )
    fake_anthropic.replies = [events, events]
    model = await client.access_model("claude-opus-5")
    tools = [Invoker.from_function(add, name="time/now")]
    heard = []
    for streaming in (True, False):
        told: list[Event] = []
        context = TurnContext(streaming=streaming, event_handler=told.append, conversation="c1")
        heard.append(await model.converse(HI, tools, context=context))
        check_events(told, turn=False)
        assert {event.conversation for event in told} == {"c1"}
        assert fake_anthropic.requests[-1].json["stream"] is streaming
    assert strip(heard[0]) == strip(heard[1])
    spoken, call = heard[0]
    assert isinstance(spoken, AssistantCanister)
    assert isinstance(call, InvocationCanister)
    assert isinstance(spoken.contents[0], ReasoningContent)
    assert (call.name, call.call, call.parsed) == ("time/now", "toolu_7", {"a": 1})
    provenance = Provenance("vibe_llms.providers.anthropic", "anthropic", "claude-opus-5", "msg_1")
    assert spoken.provenance == call.provenance == provenance
    assert fake_anthropic.refusals == []


async def test_events_go_to_the_providers_handler_unless_another_is_given(
    fake_anthropic: FakeAnthropic,
) -> None:
    default: list[Event] = []
    own: list[Event] = []
    model = await produce_model(fake_anthropic.url, event_handler=default.append)
    await model.converse(HI)
    assert isinstance(default[-1], MessageCompletedEvent)
    count = len(default)
    await model.converse(HI, context=TurnContext(event_handler=own.append))
    assert (len(default), len(own)) == (count, count)
    await model.client.close()


async def test_a_preview_is_what_would_be_sent(
    client: AnthropicClient, fake_anthropic: FakeAnthropic
) -> None:
    said: list[Canister] = [SupervisorCanister.from_text("Be brief."), *HI]
    model = await client.access_model("claude-opus-5")
    tools, controls, context = [Invoker.from_function(add)], Controls(effort="low"), TurnContext()
    body = await model.preview(said, tools, controls, context)
    assert fake_anthropic.requests == []
    await model.converse(said, tools, controls, context)
    assert fake_anthropic.requests[0].body == body
    assert json.loads(body)["output_config"] == {"effort": "low"}


async def test_a_call_that_cannot_be_made_is_refused_before_it_is_sent(
    client: AnthropicClient, fake_anthropic: FakeAnthropic
) -> None:
    model = await client.access_model("claude-opus-5")
    with pytest.raises(ControlInvalid):
        await model.converse(HI, controls=Controls(temperature=1.0))
    assert fake_anthropic.requests == []


async def test_a_request_that_the_server_finds_too_large_tells_its_size(
    client: AnthropicClient, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.replies = [failure(413, "request_too_large", "Too large")]
    model = await client.access_model("claude-opus-5")
    with pytest.raises(RequestTooLarge) as caught:
        await model.converse(HI)
    size = len(fake_anthropic.requests[0].body)
    assert f"Too large (it has {size} bytes)" in str(caught.value)


# Retries.


@pytest.mark.parametrize(
    "fault",
    [
        failure(429, "rate_limit_error", headers=ADVICE),
        failure(529, "overloaded_error", headers=ADVICE),
        failure(500, "api_error", headers=ADVICE),
        failure(409, "conflict_error", headers=ADVICE),
    ],
    ids=["429", "529", "500", "409"],
)
async def test_what_passes_is_tried_again_and_told(
    fake_anthropic: FakeAnthropic, fault: Answer
) -> None:
    fake_anthropic.replies = [fault, fault]
    model = await produce_model(fake_anthropic.url, stream=RETRY)
    told: list[Notice] = []
    events: list[Event] = []
    context = TurnContext(notify=told.append, event_handler=events.append)
    (spoken,) = await model.converse(HI, context=context)
    assert isinstance(spoken, AssistantCanister)
    assert spoken.text == "Hello."
    assert [notice.subject for notice in told] == ["retry", "retry"]
    assert len({request.body for request in fake_anthropic.requests}) == 1
    assert len(fake_anthropic.requests) == 3
    check_events(events, turn=False)
    await model.client.close()


async def test_what_does_not_pass_is_told_in_the_end(fake_anthropic: FakeAnthropic) -> None:
    fault = failure(429, "rate_limit_error", headers=ADVICE)
    fake_anthropic.replies = [fault] * 5
    model = await produce_model(fake_anthropic.url, stream=RETRY)
    with pytest.raises(RateLimited) as caught:
        await model.converse(HI)
    assert caught.value.retry_after == 0.001
    assert len(fake_anthropic.requests) == 3
    await model.client.close()


async def test_an_error_after_something_was_seen_is_not_tried_again(
    fake_anthropic: FakeAnthropic,
) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    begun = text_reply("Hel", "lo")[:4]
    fake_anthropic.replies = [stream([*begun, error])]
    events: list[Event] = []
    model = await produce_model(fake_anthropic.url, stream=RETRY, event_handler=events.append)
    with pytest.raises(ProviderOverloaded):
        await model.converse(HI)
    assert len(fake_anthropic.requests) == 1
    assert isinstance(events[-1], MessageFailedEvent)
    assert "".join(e.chunk.text for e in events if isinstance(e, MessageProgressEvent)) == "Hel"
    await model.client.close()


async def test_an_error_before_anything_was_seen_is_tried_again(
    fake_anthropic: FakeAnthropic,
) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    fake_anthropic.replies = [stream([text_reply("a")[0], error])]
    model = await produce_model(fake_anthropic.url, stream=RETRY)
    (spoken,) = await model.converse(HI)
    assert isinstance(spoken, AssistantCanister)
    assert spoken.text == "Hello."
    await model.client.close()


async def test_the_count_and_the_list_are_tried_again_too(fake_anthropic: FakeAnthropic) -> None:
    class Moody(FakeAnthropic):
        def respond(self, request: Any) -> Answer:
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
