"""What Bedrock refuses: one clear error each, with the next step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.fakes.bedrock import describe, encode_event, failure, stream_bytes
from tests.fakes.bedrock_clients import produce_model
from tests.fakes.bedrock_replies import text_reply
from tests.fakes.interfaces import Player
from tests.fakes.server import HttpAnswer
from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.providers.bedrock.errors import BY_TYPE, ERRORS, clear_name

HI = [UserCanister.from_text("Hi")]


@dataclass
class Case:
    """What the service says, the error that it is, and words that it must have."""

    status: int
    name: str
    words: str
    error: type[ProviderError]
    advice: str


CASES = {
    "a clock that is behind": Case(
        403,
        "InvalidSignatureException",
        "Signature expired: 20261128T080000Z is now earlier than 20261128T085500Z "
        "(20261128T090000Z - 5 min.)",
        CredentialRefused,
        "this machine's clock is wrong: set it",
    ),
    "a clock that is ahead": Case(
        403,
        "InvalidSignatureException",
        "Signature not yet current: 20261128T100000Z is still later than 20261128T090500Z",
        CredentialRefused,
        "this machine's clock is wrong",
    ),
    "an expired login": Case(
        403,
        "ExpiredTokenException",
        "The security token included in the request is expired",
        CredentialRefused,
        "run aws sso login",
    ),
    "an unknown key": Case(
        403,
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        CredentialRefused,
        "vibe-llms keys set bedrock",
    ),
    "a wrong region of a signature": Case(
        403,
        "InvalidSignatureException",
        "Credential should be scoped to a valid region.",
        CredentialRefused,
        "is `region` of the row right?",
    ),
    "a model without access": Case(
        403,
        "AccessDeniedException",
        "You don't have access to the model with the specified model ID.",
        ModelUnavailable,
        "ask for access in the Bedrock console",
    ),
    "an action that is not allowed": Case(
        403,
        "AccessDeniedException",
        "User: arn:aws:iam::123456789012:user/ada is not authorized to perform: "
        "bedrock:InvokeModelWithResponseStream on resource: arn:aws:bedrock:us-east-1::x",
        CredentialRefused,
        "allow the action in the IAM policy",
    ),
    "a model of another region": Case(
        400,
        "ValidationException",
        "The provided model identifier is invalid.",
        ModelUnavailable,
        "is `region` of the row right?",
    ),
    "a model that is asked through profiles only": Case(
        400,
        "ValidationException",
        "Invocation of model ID anthropic.claude-opus-5 with on-demand throughput isn't supported."
        " Retry your request with the ID or ARN of an inference profile that contains this model.",
        ModelUnavailable,
        "name an inference profile, such as us.MODEL",
    ),
    "a model at its end": Case(
        404,
        "ResourceNotFoundException",
        "This model version has reached the end of its life.",
        ModelUnavailable,
        "vibe-llms models bedrock",
    ),
    "a quota of zero": Case(
        429,
        "ThrottlingException",
        "Too many tokens per day, please wait before trying again.",
        RateLimited,
        "the account's quota may be 0",
    ),
    "another quota": Case(
        400,
        "ServiceQuotaExceededException",
        "Your request exceeds the service quota for your account.",
        RateLimited,
        "see Service Quotas",
    ),
    "too many requests": Case(
        429,
        "ThrottlingException",
        "Too many requests, please wait before trying again.",
        RateLimited,
        "try again later",
    ),
    "a picture of another type": Case(
        400,
        "ValidationException",
        "The model returned the following errors: messages.0.content.1.image.source.base64.data: "
        "Image does not match the provided media type image/png",
        RequestRefused,
        "does not match the provided media type",
    ),
    "a picture that is too large": Case(
        400,
        "ValidationException",
        "The model returned the following errors: messages.0.content.0.image.source.base64: image "
        "exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        RequestTooLarge,
        "leave images and files out",
    ),
    "an overflow": Case(
        400,
        "ValidationException",
        "The model returned the following errors: prompt is too long: 205429 tokens > 200000 "
        "maximum",
        ContextOverflow,
        "compact the conversation",
    ),
    "an overflow without numbers": Case(
        400,
        "ValidationException",
        "Input is too long for requested model.",
        ContextOverflow,
        "compact the conversation",
    ),
    "a model that failed": Case(
        424, "ModelErrorException", "The model failed.", ProviderOverloaded, "try again later"
    ),
    "a model that is not ready": Case(
        429, "ModelNotReadyException", "Model is not ready.", ProviderOverloaded, "try again"
    ),
    "a model that was too slow": Case(
        408, "ModelTimeoutException", "Model has timed out.", ProviderOverloaded, "try again"
    ),
}


async def fail(answer: HttpAnswer) -> ProviderError:
    """The error that an answer becomes."""
    with Player([answer]) as server:
        model = await produce_model(server.url)
        with pytest.raises(ProviderError) as caught:
            await model.converse(HI)
        await model.client.close()
        return caught.value


@pytest.mark.parametrize("name", CASES)
async def test_a_refusal_is_one_clear_error_with_the_next_step(name: str) -> None:
    case = CASES[name]
    error = await fail(failure(case.status, case.name, case.words))
    assert type(error) is case.error
    assert case.words.rstrip(".")[:30] in str(error)
    assert case.advice in str(error)
    assert error.request_id == "req_1"
    if case.error is not ContextOverflow:
        assert error.code == case.name


FORMS: Mapping[str, tuple[dict[str, str], object]] = {
    "in a header": ({"x-amzn-errortype": "ThrottlingException"}, {"message": "slow"}),
    "in a header with an address": (
        {"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/coral/x/"},
        {"Message": "slow"},
    ),
    "in the body": (
        {},
        {"__type": "com.amazon.coral.service#ThrottlingException", "message": "slow"},
    ),
    "without words": ({"x-amzn-errortype": "ThrottlingException"}, {}),
}


@pytest.mark.parametrize("form", FORMS)
async def test_the_name_of_an_exception_is_found_in_every_place(form: str) -> None:
    headers, body = FORMS[form]
    error = await fail(HttpAnswer(400, headers, [json.dumps(body).encode()]))
    assert type(error) is RateLimited
    assert error.code == "ThrottlingException"


async def test_an_unknown_exception_counts_by_its_status() -> None:
    error = await fail(failure(400, "NovelException", "odd"))
    assert type(error) is RequestRefused
    error = await fail(failure(503, "NovelException", "odd"))
    assert type(error) is ProviderOverloaded


LATE: Mapping[str, type[ProviderError]] = {
    "internalServerException": ProviderOverloaded,
    "modelStreamErrorException": ProviderOverloaded,
    "validationException": RequestRefused,
    "throttlingException": RateLimited,
    "serviceUnavailableException": ProviderOverloaded,
}


@pytest.mark.parametrize("name", LATE)
async def test_an_exception_in_the_stream_is_the_error_of_its_kind(name: str) -> None:
    begun = [*map(encode_event, text_reply("a")[:2])]
    raw = encode_event({name: {"message": "An error occurred", "originalMessage": "GPU lost"}})
    error = await fail(stream_bytes([*begun, raw]))
    assert type(error) is LATE[name]
    assert "GPU lost" in str(error)
    assert error.code == clear_name(name)


def test_every_exception_of_the_stream_is_tested() -> None:
    events = describe("ConverseStream").output_shape.members["stream"].members
    assert LATE.keys() == {
        name for name, shape in events.items() if shape.metadata.get("exception")
    }


async def test_an_error_without_a_shape_is_an_error_with_its_words() -> None:
    raw = encode_event({"error": {"code": "InternalFailure", "message": "boom"}})
    error = await fail(stream_bytes([raw]))
    assert type(error) is ProviderOverloaded
    assert "boom" in str(error)


async def test_a_damaged_stream_is_reported_as_such() -> None:
    good, bad = map(encode_event, text_reply("a")[:2])
    error = await fail(stream_bytes([good, bad[:-1] + b"\0"]))
    assert type(error) is ReplyMalformed
    assert "checksum" in str(error)
    error = await fail(stream_bytes([good, bad[:-1]]))
    assert type(error) is ReplyCut


async def test_an_answer_that_is_no_reply_is_quoted() -> None:
    # A wrong path is answered so, with the status of success.
    body = {"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}}
    answer = HttpAnswer(200, {"content-type": "application/json"}, [json.dumps(body).encode()])
    error = await fail(answer)
    assert type(error) is ReplyMalformed
    assert "UnknownOperationException" in str(error)


def test_all_exceptions_of_the_operations_are_known() -> None:
    for service, operations in {
        "bedrock-runtime": ("Converse", "ConverseStream"),
        "bedrock": ("ListFoundationModels", "ListInferenceProfiles"),
    }.items():
        for operation in operations:
            for shape in describe(operation, service).error_shapes:
                assert shape.name in BY_TYPE, shape.name


def test_parsing_survives_any_json() -> None:
    for body in (b"", b"[]", b"1", b'{"failure":1}', b'{"failure":{}}', b'{"failure":{"body":[]}}'):
        ERRORS.parse(body)
