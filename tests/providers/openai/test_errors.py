"""Errors of both interfaces, and of servers like them, mapped to ours."""

from __future__ import annotations

import json
from typing import Any, get_args

import openai
import pytest
from openai.types.responses.response_error import ResponseError

from tests.fakes.openai import FakeOpenAI, answer_json, failure, stream_bytes
from tests.fakes.openai_clients import produce_openai_model
from tests.fakes.recordings import CHAT, RESPONSES, Recordings
from tests.fakes.server import HttpAnswer
from tests.fakes.strict import encode_event
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.providers.http_errors import STATUSES, read_object
from vibe_llms.providers.openai.errors import BY_CODE, ERRORS
from vibe_llms.testing.wires.chat_completions_replies import chat_reply, chunk
from vibe_llms.testing.wires.responses_replies import response_reply

#: Classes of the package without a status of their own: of the client's side, of its parsing and
#: of connections, which `package.py` and `transport.py` translate; `InternalServerError` stands for
#: all statuses from 500 on.
WITHOUT_STATUS = {
    "APIConnectionError",
    "APIError",
    "APIRemovedInV1",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "ContentFilterFinishReasonError",
    "InternalServerError",
    "LengthFinishReasonError",
    "MissingDependencyError",
    "MutuallyExclusiveAuthError",
    "OpenAIError",
    "StreamAlreadyConsumed",
    "SubjectTokenProviderError",
    "WebSocketConnectionClosedError",
    "WebSocketQueueFullError",
    "_AmbiguousModuleClientUsageError",
}


def find_unknown(base: type[Exception]) -> set[str]:
    """The classes of the official package that nothing here knows."""
    unknown, waiting = set(), [base]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not kind.__module__.startswith("openai"):
            continue
        status = getattr(kind, "status_code", None)
        known = status in STATUSES if status is not None else kind.__name__ in WITHOUT_STATUS
        if not known:
            unknown.add(kind.__name__)
    return unknown


@pytest.mark.drift
def test_every_class_of_the_official_package_is_known() -> None:
    assert find_unknown(openai.OpenAIError) == set()


def test_a_class_that_the_package_grows_would_be_detected() -> None:
    class TeapotError(openai.APIStatusError):
        __module__ = "openai._exceptions"
        status_code = 418

    assert find_unknown(openai.OpenAIError) == {"TeapotError"}
    del TeapotError
    import gc

    gc.collect()


@pytest.mark.drift
def test_every_code_of_a_failed_response_is_known() -> None:
    codes = get_args(ResponseError.model_fields["code"].annotation)
    assert len(codes) > 10
    assert set(codes) <= set(BY_CODE)


@pytest.mark.parametrize(
    ("status", "kind", "code", "expected"),
    [
        (400, "invalid_request_error", None, RequestRefused),
        (401, "invalid_request_error", "invalid_api_key", CredentialRefused),
        (403, "invalid_request_error", "unsupported_country_region_territory", CredentialRefused),
        (404, "invalid_request_error", "model_not_found", ModelUnavailable),
        (402, "x", None, PaymentRequired),
        (413, "x", None, RequestTooLarge),
        (422, "x", None, RequestRefused),
        (429, "requests", "rate_limit_exceeded", RateLimited),
        (429, "insufficient_quota", "insufficient_quota", PaymentRequired),
        (500, "server_error", None, ProviderOverloaded),
        (503, "x", None, ProviderOverloaded),
        # A local server that answers an inner error to a bad request.
        (500, "invalid_request_error", None, RequestRefused),
        (400, "invalid_request_error", "context_length_exceeded", ContextOverflow),
    ],
)
def test_type_code_and_status_decide(
    status: int, kind: str, code: str | None, expected: type[ProviderError]
) -> None:
    answer = failure(status, kind, "no", code)
    error = ERRORS.read("openai", status, {}, answer.chunks[0])
    assert type(error) is expected
    assert error.status == status
    assert "no" in str(error)


#: What llama-cpp-python's server says of a request that its types do not take: the text of what
#: FastAPI raised, in its two forms.
PROBLEM = {
    "type": "string_type",
    "loc": ("body", "messages", 1, "typed-dict", "content"),
    "msg": "Input should be a valid string",
    "input": None,
}
FAILED_ON_THE_REQUEST: dict[str, dict[str, Any]] = {
    "a list as text": {
        "error": {"message": str([PROBLEM]), "type": "internal_server_error", "code": None}
    },
    "lines of text": {
        "error": {
            "message": f"1 validation error:\n  {PROBLEM}\n",
            "type": "internal_server_error",
            "code": None,
        }
    },
    "pydantic's own words": {
        "error": "2 validation errors for ChatRequest\nmessages.1.content ..."
    },
    "a list in detail": {"detail": [PROBLEM]},
    "a list in the error": {"error": {"message": [PROBLEM], "type": "server_error"}},
    "a code": {"error": {"message": "messages: null is no string", "type": "None", "code": 400}},
    "a code as text": {"error": {"message": "null is no string", "type": "None", "code": "422"}},
}


@pytest.mark.parametrize("name", FAILED_ON_THE_REQUEST)
def test_a_failure_that_names_the_request_as_its_cause_is_a_refusal(name: str) -> None:
    body = json.dumps(FAILED_ON_THE_REQUEST[name]).encode()
    error = ERRORS.read("local", 500, {}, body)
    assert type(error) is RequestRefused
    assert error.status == 500
    assert any(words in str(error) for words in ("valid string", "null is no", "messages.1"))


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (500, {"message": "CUDA error", "type": "internal_server_error"}, ProviderOverloaded),
        (500, {"message": "oh", "type": "server_error", "code": 500}, ProviderOverloaded),
        (502, {"message": "slow down", "code": 429}, RateLimited),
        (None, {"message": "slow down", "code": 429}, RateLimited),
        (503, {"message": "no such model", "code": "404"}, ModelUnavailable),
        # The status of an answer that says itself that the request is at fault stays what it is.
        (404, {"message": "no such model", "code": 400}, ModelUnavailable),
    ],
)
def test_a_status_that_the_error_names_counts_where_the_server_failed(
    status: int | None, said: dict[str, Any], expected: type[ProviderError]
) -> None:
    error = ERRORS.produce("local", read_object(said), status=status)
    assert (type(error), error.status) == (expected, status)


async def test_a_request_that_the_server_failed_on_is_not_sent_again(
    fake_openai: FakeOpenAI,
) -> None:
    said = FAILED_ON_THE_REQUEST["a list as text"]["error"]
    fake_openai.replies = [answer_json({"error": said}, status=500)] * 2
    model = await produce_openai_model("chat", fake_openai.url, stream=StreamSettings(retries=1))
    with pytest.raises(RequestRefused, match="Input should be a valid string"):
        await model.converse([UserCanister.from_text("Hi")])
    assert len(fake_openai.requests) == 1
    await model.client.close()


@pytest.mark.parametrize(
    ("status", "body", "sizes"),
    [
        (
            400,
            {
                "error": {
                    "message": "This model's maximum context length is 8192 tokens. However, your "
                    "messages resulted in 10000 tokens. Please reduce the length.",
                    "type": "invalid_request_error",
                    "code": "context_length_exceeded",
                }
            },
            (10000, 8192),
        ),
        (
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 9000,
                    "n_ctx": 4096,
                }
            },
            (9000, 4096),
        ),
        (
            400,
            {
                "error": {
                    "message": "the request exceeds the available context size",
                    "n_prompt_tokens": "many",
                    "n_ctx": "4096",
                }
            },
            (None, 4096),
        ),
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 4096 tokens. However, you "
                "requested 5000 tokens in the messages, Please reduce the length.",
                "type": "BadRequestError",
                "code": 400,
            },
            (5000, 4096),
        ),
        (
            500,
            {"error": "Trying to keep the first 9 tokens when context the overflows"},
            (None,) * 2,
        ),
        (
            400,
            {
                "detail": "Prompt contains 40000 tokens and 0 draft tokens, too large for model "
                "with 32768 maximum context length"
            },
            (40000, 32768),
        ),
        (
            400,
            {"error": {"message": "Your input exceeds the context window of this model."}},
            (None, None),
        ),
    ],
)
def test_an_overflow_is_known_by_its_code_or_its_words(
    status: int, body: Any, sizes: tuple[int | None, int | None]
) -> None:
    error = ERRORS.read("local", status, {}, json.dumps(body).encode())
    assert type(error) is ContextOverflow
    assert (error.tokens, error.limit) == sizes


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"detail":"Not Found"}', ReplyMalformed),
        (404, b'{"detail":"The model m is not here"}', ModelUnavailable),
        (
            404,
            b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
            ReplyMalformed,
        ),
        (
            404,
            b'{"error":{"code":404,"message":"model m not found","type":"not_found_error"}}',
            ModelUnavailable,
        ),
        (500, b'{"error": {"message": "\\ud83d"}}', ProviderOverloaded),
        (400, b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', RequestRefused),
        (400, b'{"error": {}}', RequestRefused),
        (400, b"null", RequestRefused),
    ],
)
def test_an_answer_that_is_no_error_object_is_an_error_all_the_same(
    status: int, body: bytes, expected: type[ProviderError]
) -> None:
    error = ERRORS.read("local", status, {}, body)
    assert type(error) is expected
    str(error).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, ProviderOverloaded),
        ({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, RateLimited),
        ({"error": "out of memory"}, ProviderOverloaded),
        ({"object": "error", "message": "too long", "code": 400}, RequestRefused),
        ({"detail": "no such model"}, ModelUnavailable),
        ({"error": {"message": "x", "code": "context_length_exceeded"}}, ContextOverflow),
    ],
)
@pytest.mark.parametrize("recordings", [CHAT, RESPONSES], ids=["chat", "responses"])
def test_an_error_within_a_stream_is_an_error(
    recordings: Recordings, data: dict[str, Any], expected: type[ProviderError]
) -> None:
    begin = chat_reply("par")[:2] if recordings is CHAT else response_reply()[:2]
    events = [encode_event(event) for event in begin]
    last = f"data: {json.dumps(data)}\n\n".encode()
    with pytest.raises(expected) as caught:
        recordings.assimilate([*events, last])
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "error", "code": "server_error", "message": "m"}, ProviderOverloaded),
        ({"type": "error", "error": {"type": "tokens", "message": "m"}}, RateLimited),
        (
            {
                "type": "response.failed",
                "response": {
                    "id": "r",
                    "status": "failed",
                    "error": {"code": "invalid_prompt", "message": "m"},
                },
            },
            RequestRefused,
        ),
    ],
)
def test_a_failed_response_is_an_error(
    event: dict[str, Any], expected: type[ProviderError]
) -> None:
    with pytest.raises(expected):
        RESPONSES.assimilate([encode_event(event)])
    if event["type"] == "response.failed":
        with pytest.raises(expected):
            RESPONSES.assimilate([json.dumps(event["response"]).encode()], whole=True)


@pytest.mark.parametrize("data", [b"{", b"[1]", b'{"choices": 7}', b'{"choices":[{"delta":[]}]}'])
def test_what_is_no_chunk_is_named(data: bytes) -> None:
    with pytest.raises(ReplyMalformed, match="unexpected data"):
        CHAT.assimilate([b"data: " + data + b"\n\n"])


@pytest.mark.parametrize("interface", ["chat", "responses"])
async def test_answers_of_foreign_kinds_fail_clearly(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    model = await produce_openai_model(interface, fake_openai.url)
    html = HttpAnswer(200, {"content-type": "text/html"}, [b"<html>hello</html>"])
    wrong = stream_bytes([b'{"error": {"message": "boom", "code": "server_error"}}'])
    cases: list[tuple[HttpAnswer, type[ProviderError]]] = [
        (html, ReplyMalformed),
        (stream_bytes([b""]), ReplyCut),
        (failure(429, "tokens", "slow"), RateLimited),
    ]
    if interface == "chat":
        cases.append((wrong, ProviderOverloaded))
        cases.append((answer_json(chunk({"content": "half"})), ReplyMalformed))
    for answer, expected in cases:
        fake_openai.replies = [answer]
        with pytest.raises(expected):
            await model.converse([UserCanister.from_text("Hi")])
    await model.client.close()
