"""Regions, names of models, and the lists of Bedrock."""

from __future__ import annotations

import socket
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fakes.bedrock import KEY, REGION, FakeBedrock, failure
from tests.fakes.bedrock_clients import produce_client, produce_model
from tests.fakes.bedrock_replies import text_reply
from tests.fakes.recordings import strip
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    ProviderUnreachable,
    ReplyMalformed,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.opening import open_session
from vibe_llms.providers.interfaces import TurnContext

HI = [UserCanister.from_text("Hi")]
ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123xyz"
AWS = "https://bedrock-runtime.REGION.amazonaws.com"


def address_of(client: Any) -> str:
    """Where the requests of a client go."""
    found: str = client.transport._place("")
    return found


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("amazon.nova-lite-v1:0", "amazon.nova-lite-v1%3A0"),
        ("us.anthropic.claude-opus-5", "us.anthropic.claude-opus-5"),
        (ARN, ARN.replace(":", "%3A").replace("/", "%2F")),
    ],
)
@pytest.mark.parametrize("proxied", [False, True])
async def test_the_name_of_a_model_is_one_segment_of_the_path(
    name: str, segment: str, streaming: bool, proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if proxied:
        # Through httpx2, which encodes addresses itself.
        monkeypatch.setitem(sys.modules, "httptools", None)
    with FakeBedrock() as server:
        model = await produce_model(server.url, name=name)
        (said,) = await model.converse(HI, context=TurnContext(streaming=streaming))
        assert getattr(said, "text", "") == "Hello."
        await model.client.close()
        tail = "converse-stream" if streaming else "converse"
        assert server.requests[0].path == f"/model/{segment}/{tail}"


def test_the_region_is_that_of_the_row_the_address_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    row = dict(load_configuration().tree["providers"]["bedrock"])
    settings = {"url": row["base-url"], "region": row["region"]}
    assert address_of(produce_client(**settings)) == (
        "https://bedrock-runtime.eu-west-1.amazonaws.com"
    )
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert "eu-central-1" in address_of(produce_client(**settings))
    assert "us-west-2" in address_of(produce_client(row["base-url"], region="us-west-2"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://vpce.example/")
    client = produce_client(**settings)
    assert address_of(client) == "https://vpce.example"


@pytest.mark.parametrize(
    ("address", "region"),
    [
        ("https://bedrock-runtime.us-west-2.amazonaws.com", "us-west-2"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://vpce-0a.bedrock-runtime.eu-west-3.vpce.amazonaws.com", "eu-west-3"),
        ("https://bedrock-runtime.ap-southeast-2.api.aws", "ap-southeast-2"),
        ("https://gateway.example/bedrock", REGION),
    ],
)
def test_an_address_says_its_region(address: str, region: str) -> None:
    assert produce_client(address).transport._region == region  # type: ignore[attr-defined]


async def test_the_server_of_a_model_is_that_of_its_region() -> None:
    model = await produce_model(AWS, region="eu-west-1")
    assert model.server == "https://bedrock-runtime.eu-west-1.amazonaws.com"


@pytest.mark.parametrize("region", ["eu.evil.example/", "EU-WEST-1", "west", "eu west", "a@b-1"])
async def test_what_is_no_region_does_not_become_an_address(region: str) -> None:
    model = await produce_model(AWS, region=region)
    with pytest.raises(ConfigurationError, match="is not a region of AWS"):
        model.check(HI, Controls())


async def test_a_region_without_a_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    model = await produce_model(AWS, region="us-esat-1")
    with pytest.raises(ProviderUnreachable, match="have the region 'us-esat-1'") as caught:
        await model.converse(HI)
    assert not caught.value.connected
    # A name in an address of the user's own says nothing of a region.
    model = await produce_model("https://nowhere.example")
    with pytest.raises(ProviderUnreachable, match="not known") as caught:
        await model.converse(HI)
    assert "region" not in str(caught.value)


async def test_an_arn_of_another_region_is_refused_before_anything_is_sent() -> None:
    model = await produce_model(AWS, region="eu-west-1", name=ARN)
    with pytest.raises(ConfigurationError, match="set region to us-east-1"):
        model.check(HI, Controls())
    for region, name in (("us-east-1", ARN), ("", ARN), ("eu-west-1", "arn:aws:bedrock:::x")):
        model = await produce_model(AWS, region=region, name=name)
        if region:
            model.check(HI, Controls())
    # A gateway may know better.
    (await produce_model(region="eu-west-1", name=ARN)).check(HI, Controls())


MODELS: list[dict[str, Any]] = [
    {
        "modelArn": "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0",
        "modelId": "amazon.nova-lite-v1:0",
        "modelName": "Nova Lite",
        "providerName": "Amazon",
        "inputModalities": ["TEXT", "IMAGE", "VIDEO"],
        "outputModalities": ["TEXT"],
        "inferenceTypesSupported": ["ON_DEMAND"],
        "modelLifecycle": {"status": "ACTIVE", "endOfLifeTime": "2027-05-01T00:00:00Z"},
    },
    {
        "modelArn": "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-5",
        "modelId": "anthropic.claude-opus-5",
        "modelName": "Claude Opus 5",
        "providerName": "Anthropic",
        "inputModalities": ["TEXT", "IMAGE"],
        "outputModalities": ["TEXT"],
        "inferenceTypesSupported": ["INFERENCE_PROFILE"],
    },
    {
        "modelArn": "arn:aws:bedrock:us-east-1::foundation-model/meta.llama3-1-8b-instruct-v1:0",
        "modelId": "meta.llama3-1-8b-instruct-v1:0",
        "inputModalities": ["TEXT"],
        "outputModalities": ["TEXT"],
        "inferenceTypesSupported": ["ON_DEMAND"],
    },
    {"modelId": "amazon.titan-embed-text-v2:0", "outputModalities": ["EMBEDDING"]},
]


def profile(name: str, model: str, kind: str = "SYSTEM_DEFINED") -> dict[str, Any]:
    arn = f"arn:aws:bedrock:us-east-1::foundation-model/{model}"
    own = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{name}"
    return {
        "inferenceProfileId": name,
        "inferenceProfileName": name.upper(),
        "inferenceProfileArn": ARN if kind == "APPLICATION" else own,
        "models": [{"modelArn": arn}],
        "status": "ACTIVE",
        "type": kind,
    }


async def test_models_on_demand_and_inference_profiles_are_listed() -> None:
    with FakeBedrock() as server:
        server.models = MODELS
        server.profiles = [
            profile("us.anthropic.claude-opus-5", "anthropic.claude-opus-5"),
            profile("global.anthropic.claude-opus-5", "anthropic.claude-opus-5"),
            profile("costs", "anthropic.claude-opus-5", "APPLICATION"),
            profile("us.embed", "amazon.titan-embed-text-v2:0"),
        ]
        server.page_size = 2
        client = produce_client(server.url)
        models = {model.name: model.attributes for model in await client.survey_models()}
        await client.close()
        await client.close()
    assert list(models) == [
        "amazon.nova-lite-v1:0",
        "meta.llama3-1-8b-instruct-v1:0",
        "us.anthropic.claude-opus-5",
        "global.anthropic.claude-opus-5",
        ARN,
    ]
    nova, llama, claude = list(models.values())[:3]
    assert (nova.title, nova.retires) == ("Amazon Nova Lite", "2027-05-01")
    assert "image/png" in nova.accepts
    assert llama.accepts == ()
    assert claude.title == "US.ANTHROPIC.CLAUDE-OPUS-5"
    assert claude.reasoning
    pages = [urlsplit(one.path).query for one in server.requests]
    assert pages == ["", "maxResults=1000", "maxResults=1000&nextToken=2%3D"]


async def test_lists_are_asked_of_their_own_service() -> None:
    client = produce_client(AWS)
    assert client.lists._place("") == "https://bedrock.us-east-1.amazonaws.com"


async def test_the_lists_of_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK", "https://lists.example")
    assert produce_client(AWS).lists._place("") == "https://lists.example"


async def test_lists_that_are_refused_or_cannot_be_read_are_errors() -> None:
    with FakeBedrock() as server:
        client = produce_client(server.url)
        server.models = [{"modelId": 7}]
        with pytest.raises(ReplyMalformed, match="the list of models"):
            await client.survey_models()
        words = "User: x is not authorized to perform: bedrock:ListFoundationModels"
        server._list = lambda *_: failure(403, "AccessDeniedException", words)  # type: ignore[method-assign]
        with pytest.raises(CredentialRefused, match="IAM policy"):
            await client.survey_models()
        await client.close()


async def test_a_session_uses_the_shipped_row_with_a_token_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeBedrock() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
        async with open_session() as session:
            conversation = await session.begin("bedrock/us.amazon.nova-lite-v1:0")
            turn = await conversation.converse("Hi")
            assert turn.text == "Hello."
            assert turn.usage is not None
            assert (turn.usage.cache_read_tokens, turn.usage.cache_write_tokens) == (90, 30)


async def test_a_missing_key_is_reported_with_both_ways_to_get_one() -> None:
    model = await produce_model(credential=Credential("bedrock", "key", "AWS_BEARER_TOKEN_BEDROCK"))
    words = r'set AWS_BEARER_TOKEN_BEDROCK or .*keys set bedrock.*credential = "package"'
    with pytest.raises(CredentialMissing, match=words):
        model.check(HI, Controls())


async def test_a_server_that_sends_the_whole_reply_is_understood() -> None:
    with FakeBedrock() as server:
        model = await produce_model(server.url)
        from tests.fakes.bedrock import answer_json
        from tests.fakes.bedrock_replies import accumulate

        server.replies = [answer_json(accumulate(text_reply("Well."))), text_reply("Well.")]
        heard = [await model.converse(HI) for _ in range(2)]
        assert strip(heard[0]) == strip(heard[1])
        await model.client.close()
