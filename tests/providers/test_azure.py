"""Rows of Azure: where requests go, with which headers, and what errors say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropicFoundry
from openai import AsyncAzureOpenAI, AsyncOpenAI, Omit

from tests.fakes.azure import DENIED, KEY, FakeAzure, FakeFoundry, fail
from tests.fakes.azure_clients import MODELS, azure_model, produce_azure_client
from tests.fakes.openai import answer_json
from tests.fakes.server import HttpAnswer, ReceivedRequest
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.canisters import StopReason, UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.providers.azure import find_endpoint
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing.wires.chat_completions_replies import chat_reply
from vibe_llms.testing.wires.responses_replies import message, response_reply

HI = [UserCanister.from_text("Hi")]
SAID: Any = [{"role": "user", "content": "Hi"}]
INPUT: Any = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
]
DATED = "2025-04-01-preview"
ROWS = ("azure", "azure-chat", "azure-anthropic")
#: A deployment may have a dot, a colon or anything else in its name.
NAMES = ("gpt-4.1", "my deployment", "a/b:c?d#e")


def serve(row: str) -> Any:
    return FakeFoundry() if row == "azure-anthropic" else FakeAzure()


async def ask(row: str, server: Any, *, notices: list[str] | None = None, **options: Any) -> Any:
    """The last canister of a reply to one message."""
    model = await azure_model(row)(server.url, **options)

    def note(event: Event) -> None:
        if isinstance(event, NoticeEvent) and notices is not None:
            notices.append(event.notice.text)

    try:
        return (await model.converse(HI, context=TurnContext(event_handler=note)))[-1]
    finally:
        await model.client.close()


async def ask_officially(row: str, url: str, name: str, version: str) -> None:
    """Send the same with the official package."""
    key: dict[str, Any] = {"api_key": KEY, "max_retries": 0}
    if row == "azure-anthropic":
        async with AsyncAnthropicFoundry(base_url=f"{url}/anthropic", **key) as foundry:
            await foundry.messages.create(model=name, max_tokens=9, messages=SAID)
        return
    if version:
        client: AsyncOpenAI = AsyncAzureOpenAI(azure_endpoint=url, api_version=version, **key)
    else:
        # The v1 API is used through the ordinary client, as Azure's pages say.
        client = AsyncOpenAI(base_url=f"{url}/openai/v1", **key)
    headers: dict[str, Any] = {} if version else {"api-key": KEY, "Authorization": Omit()}
    async with client:
        if row == "azure":
            await client.responses.create(
                model=name, input=INPUT, store=False, extra_headers=headers
            )
        else:
            await client.chat.completions.create(model=name, messages=SAID, extra_headers=headers)


def describe(request: ReceivedRequest) -> tuple[str, str, dict[str, str]]:
    """Where a request goes, and the headers that say who sends it."""
    names = ("api-key", "x-api-key", "authorization", "content-type")
    given = {name: value for name in names if (value := request.headers.get(name))}
    return request.method, request.path, given


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["", DATED])
@pytest.mark.parametrize("row", ["azure", "azure-chat"])
async def test_requests_go_where_those_of_the_official_client_go(
    row: str, version: str, name: str
) -> None:
    with FakeAzure() as server:
        server.deployments = [name]
        await ask(row, server, name=name, api_version=version)
        await ask_officially(row, server.url, name, version)
        ours, theirs = map(describe, server.requests)
        assert server.refusals == []
    assert ours == theirs


async def test_requests_to_foundry_go_where_those_of_the_official_client_go() -> None:
    with FakeFoundry() as server:
        await ask("azure-anthropic", server)
        await ask_officially("azure-anthropic", server.url, "claude-opus-5", "")
        ours, theirs = map(describe, server.requests)
        assert server.refusals == []
    # For the sake of older resources, the official client sends the key twice.
    assert theirs[2].pop("api-key") == KEY
    assert ours == theirs


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("https://r.openai.azure.com", "https://r.openai.azure.com"),
        ("https://r.openai.azure.com/openai/v1/", "https://r.openai.azure.com"),
        (
            "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=x",
            "https://r.openai.azure.com",
        ),
        ("https://r.services.ai.azure.com/api/projects/p", None),
        ("https://gateway.example/openai-gateway", None),
        ("https://gateway.example:8443/a/openai/responses", "https://gateway.example:8443/a"),
        ("https://[::1", None),
    ],
)
def test_any_address_of_a_resource_leads_to_its_endpoint(
    address: str, endpoint: str | None
) -> None:
    assert find_endpoint(address, "openai") == (endpoint or address)


@pytest.mark.parametrize("version", ["", DATED])
async def test_embeddings_go_to_their_deployment(version: str) -> None:
    with FakeAzure() as server:
        client: Any = produce_azure_client("azure", server.url, api_version=version)
        found = await client.embed("text-embedding-3-small", ["a", "b"])
        await client.close()
        assert len(found.vectors) == 2
        assert server.refusals == []


async def test_a_request_whose_schema_is_refused_is_sent_again_to_its_deployment() -> None:
    with FakeAzure() as server:
        server.replies = [fail(400, "BadRequest", "response_format is not supported")]
        model = await azure_model("azure-chat")(
            server.url, name="llama-3", api_version=DATED, stream_usage=False
        )
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        await model.converse(HI, controls=Controls(response_schema=schema))
        await model.client.close()
        paths = {request.path for request in server.requests}
    assert paths == {f"/openai/deployments/llama-3/chat/completions?api-version={DATED}"}


# Names.


async def test_the_resource_takes_its_place_in_the_address() -> None:
    with FakeAzure() as server:
        port = server.url.rpartition(":")[2]
        model = await azure_model("azure")(f"http://RESOURCE:{port}", resource="localhost")
        await model.converse(HI)
        await model.client.close()
        assert server.refusals == []


@pytest.mark.parametrize("row", ROWS)
def test_a_row_without_a_resource_says_what_to_set(row: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not known; set [A-Z_]+ to its") as it:
        produce_azure_client(row, "https://RESOURCE.example").transport.prepare()
    assert it.value.table == f"providers.{row}"


def test_an_address_is_read_from_the_variable_of_the_official_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    client = produce_azure_client("azure", base_url="${AZURE_OPENAI_ENDPOINT}")
    assert client.address == "https://mine.openai.azure.com"


async def test_a_deployment_has_the_attributes_of_its_model() -> None:
    deployments = {"prod": "gpt-5.5", "cheap": "gpt-4o-mini"}
    client = produce_azure_client("azure-chat", deployments=deployments)
    prod, cheap = await client.survey_models()
    assert [(one.name, one.attributes.reasoning) for one in (prod, cheap)] == [
        ("prod", True),
        ("cheap", False),
    ]
    assert (await client.access_model("other")).attributes.reasoning is not True


@pytest.mark.parametrize("version", ["24", "2024", "2024-10-21/../x", "latest2"])
def test_a_version_of_no_known_form_is_refused_before_anything_is_sent(version: str) -> None:
    with pytest.raises(ConfigurationError, match="write it as 2024-10-21") as caught:
        produce_azure_client("azure", api_version=version)
    assert caught.value.key == "api-version"


async def test_a_dated_version_is_not_sent_a_cache_key() -> None:
    for version, sent in (("", True), (DATED, False)):
        model = await azure_model("azure")("https://r.openai.azure.com", api_version=version)
        context = TurnContext(conversation="conversation")
        body = await model.preview(HI, (), Controls(), context)
        assert ("prompt_cache_key" in json.loads(body)) is sent


# Errors.


def test_a_missing_key_names_both_ways_in() -> None:
    client = produce_azure_client("azure", credential=Credential("azure", variable="AZURE_KEY"))
    with pytest.raises(CredentialMissing, match=r"set AZURE_KEY.*credential = \"package\""):
        client.transport.prepare()


def disable(server: Any) -> None:
    server.key_disabled = True


def rename(server: Any) -> None:
    server.deployments = ["other"]


def answer(reply: HttpAnswer) -> Callable[[Any], None]:
    def give(server: Any) -> None:
        server.replies = [reply]

    return give


LIMITED = answer_json({"error": {"code": "429", "message": "Rate limit is exceeded."}}, status=429)
LIMITED.headers["x-ratelimit-limit-tokens"] = "0"
PRINCIPAL = (
    "The principal `p` lacks the required data action `Microsoft.CognitiveServices/accounts/OpenAI/"
    "deployments/chat/completions/action` to perform `POST /openai/deployments/{deployment-id}/…`."
)
UNSUPPORTED = fail(
    400,
    "invalid_image_format",
    "You uploaded an unsupported image. Please make sure your image is below 20 MB in size and is "
    "of one the following formats: ['png', 'jpeg', 'gif', 'webp'].",
    type="invalid_request_error",
    param=None,
)
EXPIRED = (
    "Unauthorized. Access token is missing, invalid, audience is incorrect "
    "(https://cognitiveservices.azure.com), or have expired."
)


@pytest.mark.parametrize(
    ("settings", "prepare", "kind", "says"),
    [
        ({"name": "gone"}, rename, ModelUnavailable, "is 'gone' a deployment of this resource"),
        (
            {"api_version": "2023-01-01"},
            lambda server: None,
            RequestRefused,
            "are base-url and api-version of [providers.azure] right",
        ),
        (
            {"api_version": "2024-10-21"},
            lambda server: None,
            RequestRefused,
            "set another api-version in [providers.azure]",
        ),
        ({}, disable, CredentialRefused, 'set credential = "package"'),
        ({}, answer(DENIED), CredentialRefused, "vibe-llms keys set azure"),
        ({}, answer(fail(401, "PermissionDenied", PRINCIPAL)), CredentialRefused, "the role"),
        ({}, answer(fail(401, "401", EXPIRED)), CredentialRefused, "run: az login"),
        ({}, answer(LIMITED), PaymentRequired, "quota of the deployment is 0"),
        (
            {},
            answer(fail(429, "429", "Your quota limit is 0.")),
            PaymentRequired,
            "raise it in the Azure portal",
        ),
        ({}, answer(UNSUPPORTED), RequestRefused, "['png', 'jpeg', 'gif', 'webp']"),
        ({}, answer(fail(413, "413", "Request too large")), RequestTooLarge, "leave images and"),
    ],
)
async def test_an_error_says_what_to_do_next(
    settings: dict[str, Any], prepare: Callable[[Any], None], kind: type[ProviderError], says: str
) -> None:
    with FakeAzure() as server:
        prepare(server)
        with pytest.raises(kind) as caught:
            await ask("azure", server, **settings)
        assert len(server.requests) == 1
    assert says in str(caught.value)
    assert KEY not in str(caught.value)
    assert str(caught.value).count("(") <= 2


async def test_an_ordinary_rate_limit_stays_one() -> None:
    words = "Requests have exceeded the token rate limit of 100. Retry after 6 seconds."
    with FakeFoundry() as server:
        server.replies = [fail(429, "429", words)]
        with pytest.raises(ProviderError, match="Retry after 6") as caught:
            await ask("azure-anthropic", server)
    assert caught.value.kind == "rate-limited"


# Content filters.

FLAGGED = {
    "hate": {"filtered": False, "severity": "safe"},
    "violence": {"filtered": True, "severity": "medium"},
    "jailbreak": {"filtered": False, "detected": True},
    "custom_blocklists": [{"id": "mine", "filtered": True}],
}
WORDS = "violence (medium), jailbreak (detected), custom blocklists (blocked)"
CLEAN = {"hate": {"filtered": False, "severity": "safe"}}


@pytest.mark.parametrize("member", ["content_filter_result", "content_filter_results"])
@pytest.mark.parametrize("row", ["azure", "azure-chat"])
async def test_a_filtered_prompt_is_a_refusal_with_its_categories(row: str, member: str) -> None:
    refused = fail(
        400,
        "content_filter",
        "The response was filtered due to the prompt triggering Azure OpenAI's content management "
        "policy. Please modify your prompt and retry.",
        param="prompt",
        innererror={"code": "ResponsibleAIPolicyViolation", member: FLAGGED},
    )
    with FakeAzure() as server:
        server.replies = [refused]
        with pytest.raises(RequestRefused) as caught:
            await ask(row, server)
    assert caught.value.code == "content_filter"
    assert str(caught.value).endswith(f"retry. (content filter: {WORDS})")


async def test_a_filtered_prompt_of_responses_is_a_refusal_with_its_categories() -> None:
    filters = [{"blocked": True, "source_type": "prompt", "content_filter_results": FLAGGED}]
    with FakeAzure() as server:
        server.replies = [fail(400, "content_filter", "Filtered.", content_filters=filters)]
        with pytest.raises(RequestRefused, match=r"content filter: violence \(medium\), jail"):
            await ask("azure", server)


def filtered(*, finish: str) -> list[dict[str, Any]]:
    """A reply of Chat Completions whose prompt and text are flagged, as Azure sends it."""
    head = {"id": "", "object": "", "created": 0, "model": "", "choices": []}
    prompt = {**head, "prompt_filter_results": [
        {"prompt_index": 0, "content_filter_results": {"jailbreak": {"detected": True}}}
    ]}  # fmt: skip
    chunks: list[Any] = [*chat_reply("Well, ", "so.", finish=finish)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            choice["content_filter_results"] = CLEAN
    late = {"index": 0, "finish_reason": None, "content_filter_results": FLAGGED}
    offsets = {"check_offset": 44, "start_offset": 44, "end_offset": 198}
    return [
        prompt,
        *chunks[:2],
        {**head, "choices": [{**late, "content_filter_offsets": offsets}]},
        {**head, "choices": [{**late, "content_filter_offsets": offsets}]},
        *chunks[2:],
    ]


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", StopReason.FINISHED), ("content_filter", StopReason.REFUSED)]
)
async def test_flags_of_a_stream_become_notices_and_explain_a_refusal(
    finish: str, reason: StopReason
) -> None:
    notices: list[str] = []
    with FakeAzure() as server:
        server.replies = [filtered(finish=finish)]
        reply = await ask("azure-chat", server, notices=notices)
    assert "".join(content.data for content in reply.contents) == "Well, so."
    assert reply.ending.reason == reason
    assert reply.ending.detail == (WORDS if reason == StopReason.REFUSED else "")
    assert notices == [
        "azure-chat: content filter, prompt: jailbreak (detected)",
        f"azure-chat: content filter, reply: {WORDS}",
    ]


async def test_a_flag_within_plain_chunks_is_not_overlooked() -> None:
    chunks: list[Any] = [*chat_reply("a", "b", "c", "d")]
    text = [one for one in chunks if one["choices"] and one["choices"][0]["delta"].get("content")]
    text[-2]["choices"][0]["content_filter_results"] = FLAGGED
    notices: list[str] = []
    with FakeAzure() as server:
        server.replies = [chunks]
        await ask("azure-chat", server, notices=notices)
    assert notices == [f"azure-chat: content filter, reply: {WORDS}"]


async def test_a_filter_that_failed_is_told() -> None:
    chunks: list[Any] = [*chat_reply("a")]
    failed = {"error": {"code": "content_filter_error", "message": "The contents are not filtered"}}
    chunks[0]["choices"][0]["content_filter_results"] = failed
    notices: list[str] = []
    with FakeAzure() as server:
        server.replies = [chunks]
        await ask("azure-chat", server, notices=notices)
    assert notices == ["azure-chat: content filter, reply: not checked"]


async def test_flags_of_a_response_become_notices_and_explain_a_refusal() -> None:
    events: list[Any] = [*response_reply(message("Well."))]
    last = events[-1]
    last["type"] = "response.incomplete"
    last["response"] |= {
        "status": "incomplete",
        "incomplete_details": {"reason": "content_filter"},
        "content_filters": [
            {"blocked": False, "source_type": "prompt", "content_filter_results": CLEAN},
            {"blocked": True, "source_type": "completion", "content_filter_results": FLAGGED},
        ],
    }
    notices: list[str] = []
    with FakeAzure() as server:
        server.replies = [events]
        reply = await ask("azure", server, notices=notices)
    assert (reply.ending.reason, reply.ending.detail) == (StopReason.REFUSED, WORDS)
    assert notices == [f"azure: content filter, reply: {WORDS}"]


def test_models_of_the_tests_are_known() -> None:
    assert set(MODELS) == set(ROWS)
