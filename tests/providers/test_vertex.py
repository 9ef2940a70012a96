"""Rows of Vertex AI: where requests go, with which headers, and what errors say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.lib.vertex import AsyncAnthropicVertex
from google import genai
from google.oauth2.credentials import Credentials

from tests.fakes.gemini import answer_json, failure, reason
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.vertex import KEY, PROJECT, FakeVertex, FakeVertexAnthropic, deny, lose
from tests.fakes.vertex_clients import MODELS, produce_vertex_client, vertex_model
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContentUnsupported,
    CredentialMissing,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderUnreachable,
    RateLimited,
    ReplyMalformed,
    RequestTooLarge,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import ResultCanister, UserCanister
from vibe_llms.messages.contents import ImageContent, Location, TextualContent, VideoContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.vertex import HOST, place
from vibe_llms.testing.wires.gemini_replies import tools_reply

HI = [UserCanister.from_text("Hi")]
ROWS = ("vertex", "vertex-anthropic")
TOKEN = "ya29.token-of-a-test-0123456789"
#: A row with a token in place of a key, as a gateway may have it.
BEARER = Credential("vertex-anthropic", given=Secret(TOKEN))


def serve(row: str) -> Any:
    return FakeVertexAnthropic() if row == "vertex-anthropic" else FakeVertex()


async def ask(row: str, server: Any, *, streaming: bool = True, **options: Any) -> Any:
    """The last canister of a reply to one message."""
    model = await vertex_model(row)(server.url, **options)
    try:
        return (await model.converse(HI, context=TurnContext(streaming=streaming)))[-1]
    finally:
        await model.client.close()


def describe(request: ReceivedRequest) -> tuple[str, str, dict[str, str]]:
    """Where a request goes, and the headers that say who sends it and what it wants."""
    names = ("x-goog-api-key", "authorization", "anthropic-version", "anthropic-beta")
    given = {name: value for name in names if (value := request.headers.get(name))}
    return request.method, request.path.removesuffix("?alt=sse"), given


# The official clients.


def hold_token() -> Any:
    """Credentials that have a token already."""
    produce: Any = Credentials
    return produce(token=TOKEN)


def google_client(url: str, **options: Any) -> Any:
    return genai.Client(
        vertexai=True, http_options={"base_url": url, "api_version": "v1"}, **options
    )


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", ["gemini-3.8-flash", "publishers/google/models/gemini-2.5-pro"])
async def test_requests_go_where_those_of_googles_client_go(name: str, *, streaming: bool) -> None:
    with FakeVertex() as server:
        await ask("vertex", server, name=name, streaming=streaming)
        async with google_client(server.url, api_key=KEY).aio as client:
            if streaming:
                async for _ in await client.models.generate_content_stream(
                    model=name, contents="Hi"
                ):
                    pass
            else:
                await client.models.generate_content(model=name, contents="Hi")
        ours, theirs = map(describe, server.requests)
        assert server.refusals == []
    assert ours == theirs


@pytest.mark.parametrize("method", ["count", "embed", "embed-gemini", "list"])
async def test_other_methods_go_where_those_of_googles_client_go(method: str) -> None:
    """They have a token and a project here; a key would do as well."""
    name = "gemini-embedding-001" if method == "embed-gemini" else "text-embedding-005"
    with FakeVertex(key=TOKEN) as server:
        server.names = ("gemini-3.8-flash",)
        server.project = PROJECT
        login = {"credentials": hold_token(), "project": PROJECT, "location": "global"}
        client = google_client(server.url, **login)
        api = client.aio.models
        if method == "count":
            await api.count_tokens(model="gemini-3.8-flash", contents="Hi")
        elif method == "list":
            client._api_client._http_options.api_version = "v1beta1"
            await api.list(config={"page_size": 100})
        else:
            size = {"output_dimensionality": 2}
            await api.embed_content(model=name, contents=["a", "b"], config=size)
        (theirs,) = map(describe, server.requests)
        await client.aio.aclose()
        own: Any = produce_vertex_client("vertex", server.url, credential=None)
        own.transport._authorize = lambda key: {"authorization": f"Bearer {TOKEN}"}
        own.transport._express = False
        if method == "count":
            model = await own.access_model("gemini-3.8-flash")
            assert (await model.count_tokens(HI)).tokens == 7
        elif method == "list":
            assert [one.name for one in await own.survey_models()] == ["gemini-3.8-flash"]
        else:
            found = await own.embed(name, ["a", "b"], dimensions=2)
            assert len(found.vectors) == 2
            assert found.usage.input_tokens == (0 if method == "embed-gemini" else 4)
        await own.close()
        ours = describe(server.requests[-1])
        assert server.refusals == []
        bodies = [request.body and request.json for request in server.requests]
    assert ours == theirs
    if method == "embed":
        assert bodies[0] == bodies[-1]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", ["claude-opus-5", "claude-haiku-4-5@20251001", "a:b;c d/e"])
async def test_requests_go_where_those_of_anthropics_client_go(
    name: str, *, streaming: bool
) -> None:
    beta = "context-1m-2025-08-07"
    with FakeVertexAnthropic(key=TOKEN) as server:
        server.respond = lambda request: deny()  # type: ignore[method-assign]
        official: Any = AsyncAnthropicVertex(
            region="global",
            project_id=PROJECT,
            access_token=TOKEN,
            base_url=server.url,
            max_retries=0,
        )
        said: Any = [{"role": "user", "content": "Hi"}]
        async with official as client:
            with pytest.raises(Exception, match="401"):
                await client.beta.messages.create(
                    model=name, max_tokens=9, messages=said, stream=streaming, betas=[beta]
                )
            with pytest.raises(Exception, match="401"):
                await client.messages.count_tokens(model=name, messages=said)
        model = await vertex_model("vertex-anthropic")(
            server.url, name=name, credential=BEARER, beta=(beta,)
        )
        for make in (
            model.converse(HI, context=TurnContext(streaming=streaming)),
            model.count_tokens(HI),
        ):
            with pytest.raises(CredentialRefused):
                await make
        await model.client.close()
        theirs, ours = server.requests[:2], server.requests[2:]
    assert describe(ours[0]) == describe(theirs[0])
    # A header of features has no meaning for a count, but is that of the row.
    assert [one.path for one in ours] == [one.path for one in theirs]
    for own, official_one in zip(ours, theirs, strict=True):
        assert own.json["anthropic_version"] == official_one.json["anthropic_version"]
        assert ("model" in own.json) is ("model" in official_one.json)


async def test_anthropics_client_is_answered_by_the_fake() -> None:
    """So the fake is as the client knows the server."""
    said: Any = [{"role": "user", "content": "Hi"}]
    with FakeVertexAnthropic(key=TOKEN) as server:
        place_of: Any = {"region": "global", "project_id": PROJECT, "base_url": server.url}
        official: Any = AsyncAnthropicVertex(access_token=TOKEN, **place_of)
        async with official as client:
            asked: Any = {"model": "claude-opus-5", "messages": said}
            whole = await client.messages.create(max_tokens=9, **asked)
            async with client.messages.stream(max_tokens=9, **asked) as stream:
                streamed = await stream.get_final_text()
            counted = await client.messages.count_tokens(**asked)
        assert (whole.content[0].text, streamed, counted.input_tokens) == ("Hello.", "Hello.", 7)
        assert server.refusals == []


# Places.


@pytest.mark.parametrize("location", ["us-central1", "europe-west4", "us", "eu", "global"])
@pytest.mark.parametrize("row", ROWS)
def test_a_location_has_the_address_that_the_official_clients_use(row: str, location: str) -> None:
    version = "/v1" if row == "vertex-anthropic" else ""
    client = produce_vertex_client(row, base_url=f"https://{HOST}{version}", location=location)
    if row == "vertex":
        login: Any = {"credentials": hold_token(), "project": PROJECT}
        official = genai.Client(vertexai=True, location=location, **login)
        theirs = official._api_client._http_options.base_url
    else:
        theirs = str(AsyncAnthropicVertex(region=location, project_id=PROJECT).base_url)
        theirs = theirs.removesuffix("v1/")
    assert f"{client.address}/" == theirs
    assert client.settings.base_url == client.address


@pytest.mark.parametrize("location", ["", "us-central1.evil.example/", "US", "a b", "x@y"])
def test_a_location_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a location") as caught:
        produce_vertex_client("vertex", location=location)
    assert caught.value.key == "location"


def test_a_private_address_has_its_location_too() -> None:
    assert place("https://LOCATION-aiplatform.p.googleapis.com", "us-east1") == (
        "https://us-east1-aiplatform.p.googleapis.com"
    )


async def test_a_location_without_a_server_is_named() -> None:
    model = await vertex_model("vertex")("https://LOCATION.invalid", location="mars-west1")
    with pytest.raises(ProviderUnreachable, match=r"location 'mars-west1'\? Set location"):
        await model.converse(HI)
    await model.client.close()


async def test_a_network_that_is_down_is_not_taken_for_a_wrong_location() -> None:
    model = await vertex_model("vertex")("https://LOCATION.invalid", location="global")
    with pytest.raises(ProviderUnreachable) as caught:
        await model.converse(HI)
    assert "location" not in str(caught.value)
    await model.client.close()


async def test_a_tuned_model_is_an_endpoint_of_its_project() -> None:
    with FakeVertex() as server:
        name = "projects/p1/locations/us-east1/endpoints/42"
        model = await vertex_model("vertex")(server.url, name=name)
        (said,) = await model.converse(HI)
        assert said.text == "Hello."
        assert server.requests[0].path == f"/v1/{name}:streamGenerateContent?alt=sse"
        await model.client.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [("/v1", "/v1"), ("/gateway/v1beta1", "/gateway/v1beta1"), ("/gateway", "/gateway")],
)
async def test_a_gateway_for_anthropics_models_may_be_anywhere(address: str, expected: str) -> None:
    client = produce_vertex_client("vertex-anthropic", base_url=f"https://g.example{address}")
    home = "/projects/{project}/locations/global/publishers/anthropic/models/m"
    assert client.address + client.locate("m") == f"https://g.example{expected}{home}"


def test_variables_of_both_official_clients_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = "${GOOGLE_CLOUD_LOCATION:-${CLOUD_ML_REGION:-global}}"
    for variables, expected in (
        ({}, "global"),
        ({"CLOUD_ML_REGION": "us-east5"}, "us-east5"),
        ({"CLOUD_ML_REGION": "us-east5", "GOOGLE_CLOUD_LOCATION": "eu"}, "eu"),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        client = produce_vertex_client("vertex", location=shipped)
        assert client.settings.location == expected


async def test_a_project_that_nobody_names_is_missed_before_anything_is_sent() -> None:
    with FakeVertexAnthropic() as server:
        client = produce_vertex_client("vertex-anthropic", server.url, project="")
        with pytest.raises(ConfigurationError, match="set GOOGLE_CLOUD_PROJECT") as caught:
            client.transport.prepare()
        assert caught.value.key == "project"
        # In express mode there is none.
        produce_vertex_client("vertex", server.url, project="").transport.prepare()
        assert server.requests == []


def test_a_missing_key_names_the_login() -> None:
    client = produce_vertex_client("vertex", credential=Credential("vertex", variable="MY_KEY"))
    with pytest.raises(CredentialMissing, match=r"set MY_KEY.*credential = \"package\""):
        client.transport.prepare()


# What differs from the Gemini API.


def speak(word: str) -> str:
    """Speak."""
    return word


async def test_calls_have_no_ids_even_if_the_server_gives_them() -> None:
    invoker = Invoker.from_function(speak, name="speak")
    with FakeVertex() as server:
        server.replies = [tools_reply(("speak", '{"word":"a"}'), ("speak", '{"word":"b"}'))]
        model = await vertex_model("vertex")(server.url)
        heard = await model.converse(HI, [invoker])
        calls = [one for one in heard if hasattr(one, "arguments")]
        results = [
            ResultCanister((TextualContent("done"),), invocation=one.identity) for one in calls
        ]
        await model.converse([*HI, *heard, *results], [invoker])
        await model.client.close()
        assert len(calls) == 2
        assert server.refusals == []
        sent = json.dumps(server.requests[1].json)
    assert '"id"' not in sent
    assert sent.count('"functionResponse"') == 2


@pytest.mark.parametrize("address", ["gs://bucket/door.mp4", "https://example.org/door.mp4"])
async def test_media_may_be_in_a_bucket(address: str) -> None:
    film = UserCanister((VideoContent(Location(address)), TextualContent("What is it?")))
    with FakeVertex() as server:
        model = await vertex_model("vertex")(server.url)
        await model.converse([film])
        await model.client.close()
        (first, _) = server.requests[0].json["contents"][0]["parts"]
        assert server.refusals == []
    assert first == {"fileData": {"mimeType": "video/mp4", "fileUri": address}}


async def test_other_addresses_are_refused_with_those_that_are_not() -> None:
    film = UserCanister((VideoContent(Location("s3://bucket/door.mp4")),))
    model = await vertex_model("vertex")()
    with pytest.raises(ContentUnsupported, match=r"not an http\(s\) or gs:// address"):
        model.check([film], Controls())


async def test_media_that_are_too_large_are_refused_with_where_they_can_be() -> None:
    images = (ImageContent(b"\x89PNG" + bytes(16_000_000), "image/png"),)
    with FakeVertex() as server:
        model = await vertex_model("vertex")(server.url)
        large = UserCanister(images)
        context = TurnContext(fresh=frozenset({large.identity}))
        with pytest.raises(RequestTooLarge, match=r"attach them by their gs:// address"):
            await model.converse([large], context=context)
        await model.client.close()
        assert server.requests == []


async def test_labels_are_extras() -> None:
    controls = Controls(extras={"vertex": {"labels": {"team": "search"}}})
    with FakeVertex() as server:
        model = await vertex_model("vertex")(server.url)
        await model.converse(HI, controls=controls)
        await model.client.close()
        assert server.requests[0].json["labels"] == {"team": "search"}
        assert server.refusals == []


async def test_models_of_anthropic_are_known_with_their_dates() -> None:
    client = produce_vertex_client("vertex-anthropic")
    for name, accepted in (("claude-opus-5", False), ("claude-haiku-4-5@20251001", True)):
        model = await client.access_model(name)
        native = model.attributes.native
        assert ("enabled" in native["thinking"]) is accepted


async def test_the_hour_of_the_cache_is_not_sent_by_default() -> None:
    model = await vertex_model("vertex-anthropic")()
    assert model.settings.cache_duration == "5m"


# Errors.


def answer(reply: HttpAnswer) -> Callable[[Any], None]:
    def give(server: Any) -> None:
        server.replies = [reply]

    return give


def change(**members: Any) -> Callable[[Any], None]:
    def give(server: Any) -> None:
        for name, value in members.items():
            setattr(server, name, value)

    return give


QUOTA = (
    "Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_base_model with "
    "base model: anthropic-claude-sonnet-4. Please submit a quota increase request."
)
ZERO = failure(
    429,
    "RESOURCE_EXHAUSTED",
    "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'",
    details=[{**reason("RATE_LIMIT_EXCEEDED"), "metadata": {"quota_limit_value": "0"}}],
)
UNUSED = (
    "Vertex AI API has not been used in project 123 before or it is disabled. Enable it by "
    "visiting https://console.developers.google.com/apis/api/aiplatform.googleapis.com/overview?project=123"
)
REGION = (
    "Publisher Model `projects/p/locations/global/publishers/anthropic/models/claude-sonnet-5` is "
    "not servable in region global."
)
FORBIDDEN = (
    "Project `123` is not allowed to use Publisher Model "
    "`projects/p/locations/us-east5/publishers/anthropic/models/claude-3-sonnet@20240229`"
)
PAGE = HttpAnswer(404, {"content-type": "text/html"}, [b"<html><title>Error 404</title></html>"])
BUSY = failure(429, "RESOURCE_EXHAUSTED", "Resource exhausted. Please try again later.")
KEYS = failure(
    401,
    "UNAUTHENTICATED",
    "API keys are not supported by this API. Expected OAuth2 access token or other authentication "
    "credentials that assert a principal.",
    details=[reason("CREDENTIALS_MISSING")],
)


@pytest.mark.parametrize(
    ("prepare", "kind", "says"),
    [
        (answer(lose("gone")), ModelUnavailable, "enable the model in Model Garden, or set"),
        (answer(failure(400, "FAILED_PRECONDITION", REGION)), ModelUnavailable, "such as global"),
        (answer(failure(400, "FAILED_PRECONDITION", FORBIDDEN)), ModelUnavailable, "Model Garden"),
        (
            answer(failure(403, "PERMISSION_DENIED", UNUSED)),
            CredentialRefused,
            "gcloud services en",
        ),
        (answer(failure(429, "RESOURCE_EXHAUSTED", QUOTA)), RateLimited, "may be 0: see Quotas"),
        (answer(ZERO), PaymentRequired, "quota for this model is 0: raise it"),
        (answer(BUSY), RateLimited, "try again later"),
        (answer(PAGE), ReplyMalformed, "is location of the row right, and is base-url right?"),
        (answer(KEYS), CredentialRefused, 'set credential = "package"'),
        (answer(deny()), CredentialRefused, "run: gcloud auth application-default login"),
        (change(payer="p2"), CredentialRefused, "set-quota-project"),
    ],
)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("listed", [False, True])
async def test_an_error_says_what_to_do_next(
    row: str,
    prepare: Callable[[Any], None],
    kind: type[ProviderError],
    says: str,
    *,
    listed: bool,
) -> None:
    """An error may be the only item of a list, as it is for a stream."""
    with serve(row) as server:
        prepare(server)
        for reply in server.replies if listed else ():
            if reply is not PAGE:
                body = json.loads(b"".join(reply.chunks))
                server.replies = [answer_json([body], status=reply.status)]
        with pytest.raises(kind) as caught:
            await ask(row, server)
        assert len(server.requests) == 1
    assert type(caught.value) is kind
    assert says in str(caught.value)
    assert KEY not in str(caught.value)


async def test_an_identity_without_the_role_is_told_which_one_it_needs() -> None:
    with FakeVertexAnthropic() as server:
        server.project = "other"
        with pytest.raises(CredentialRefused, match=r"project of .* right\? .*roles/aiplatform"):
            await ask("vertex-anthropic", server)


def test_models_of_the_tests_are_known() -> None:
    assert set(MODELS) == set(ROWS)
