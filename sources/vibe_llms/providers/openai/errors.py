"""The errors of OpenAI's interfaces and of servers like them, told apart by type, code and status.

Source: the classes in `openai._exceptions` and the codes in `types/responses/response_error.py` of
openai 3.54.0; https://developers.openai.com/api/docs/guides/error-codes (2026-11).
`tests/providers/openai/test_errors.py` fails when the package grows one that is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.providers.refusals import (
    advise,
    clear_words,
    describe_answer,
    read_reset,
    read_retry_after,
    refuse_redirect,
)
from vibe_llms.providers.repairs import parse_object, repair

BY_STATUS: dict[int, type[ProviderError]] = {
    400: RequestRefused,
    401: CredentialRefused,
    402: PaymentRequired,
    403: CredentialRefused,
    404: ModelUnavailable,
    405: RequestRefused,
    408: ProviderOverloaded,
    409: ProviderOverloaded,
    413: RequestTooLarge,
    415: RequestRefused,
    422: RequestRefused,
    429: RateLimited,
    431: RequestRefused,
    499: ProviderOverloaded,
}

BY_TYPE: dict[str, type[ProviderError]] = {
    "invalid_request_error": RequestRefused,
    "BadRequestError": RequestRefused,
    "authentication_error": CredentialRefused,
    "permission_error": CredentialRefused,
    "not_found_error": ModelUnavailable,
    "NotFoundError": ModelUnavailable,
    "insufficient_quota": PaymentRequired,
    "rate_limit_error": RateLimited,
    "requests": RateLimited,
    "tokens": RateLimited,
    "server_error": ProviderOverloaded,
    "api_error": ProviderOverloaded,
    "overloaded_error": ProviderOverloaded,
    "service_unavailable_error": ProviderOverloaded,
    "unavailable_error": ProviderOverloaded,
    "exceed_context_size_error": ContextOverflow,
}

#: The codes say more than type and status: a used-up quota has the status of a rate limit, say,
#: though waiting does not help.
BY_CODE: dict[str, type[ProviderError]] = {
    "insufficient_quota": PaymentRequired,
    "billing_hard_limit_reached": PaymentRequired,
    "billing_not_active": PaymentRequired,
    "invalid_api_key": CredentialRefused,
    "account_deactivated": CredentialRefused,
    "unsupported_country_region_territory": CredentialRefused,
    "invalid_organization": CredentialRefused,
    "model_not_found": ModelUnavailable,
    "model_not_available": ModelUnavailable,
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "request_too_large": RequestTooLarge,
    "max_tokens_per_request": RequestTooLarge,
    "rate_limit_exceeded": RateLimited,
    "server_error": ProviderOverloaded,
    "vector_store_timeout": ProviderOverloaded,
    "previous_response_not_found": RequestRefused,
    **dict.fromkeys(
        (
            "invalid_prompt",
            "data_residency_mismatch",
            "bio_policy",
            "misalignment_policy_violation",
            "content_policy_violation",
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "image_content_policy_violation",
            "invalid_image_mode",
            "image_file_too_large",
            "unsupported_image_media_type",
            "empty_image_file",
            "failed_to_download_image",
            "image_file_not_found",
        ),
        RequestRefused,
    ),
}

_MOST_DIGITS = 12
# Compatible servers have neither a type nor a code for an overflow, so their words have to tell it.
_OVERFLOWS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"maximum (?:context|prompt|input) length is (?P<limit>\d+)(?:\D+(?P<tokens>\d+) tokens)?",
        r"contains (?P<tokens>\d+) tokens.{0,200}too large for model with (?P<limit>\d+)",
        r"input token count \((?P<tokens>\d+)\) exceeds the maximum .{0,100}\((?P<limit>\d+)\)",
        r"exceeds? the (?:available )?context (?:size|window|length)",
        r"context (?:the )?overflows",
        r"(?:prompt|input) is too long",
        r"input .{0,30}is too large to process",
    )
)


# llama-cpp-python's server has no other sign than the text of pydantic's and FastAPI's errors.
_INVALID = re.compile(r"\A\d{1,6} validation errors?\b|'loc': \('body'")


class ErrorObject(Struct, frozen=True):
    """What a server says of an error: in a body, in the middle of a stream, or in a response.

    `status` is a status of the 400s that the object itself names, whatever the answer's status is;
    an object that lists what does not fit in the request has 422.
    """

    message: str = ""
    type: str = ""
    code: str = ""
    tokens: int | None = None
    limit: int | None = None
    status: int | None = None


def read_object(value: Any) -> ErrorObject:
    """An error object in any of the forms that servers send: an object, a text, nothing."""
    value = repair(value)
    if not isinstance(value, dict):
        value = {"message": value} if value else {}
    message = value.get("message") or value.get("msg") or value.get("detail") or ""
    code = value.get("code")
    words = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    return ErrorObject(
        words,
        _word(value.get("type")),
        "" if isinstance(code, int) else _word(code),
        _number(value.get("n_prompt_tokens")),
        _number(value.get("n_ctx")),
        422 if _lists_problems(message) or _INVALID.search(words) else _read_status(code),
    )


def find_error(body: Mapping[str, Any]) -> ErrorObject | None:
    """The error that a JSON object of a server holds, if it holds one.

    OpenAI's have `error`; old vLLM's are the object itself, those of FastAPI have `detail`.
    """
    if body.get("error"):
        return read_object(body["error"])
    if body.get("object") == "error" or body.get("type") == "error":
        return read_object(body)
    if "detail" in body and "choices" not in body and "output" not in body:
        return read_object(body["detail"]) if body["detail"] else None
    return None


def read_error(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, *, size: int = 0
) -> ProviderError:
    """The error of an answer whose status is not success; `size` is the bytes of the request."""
    if 300 <= status < 400:
        return refuse_redirect(provider, status, headers)
    try:
        told = parse_object(body)
        error = find_error(told) or read_object(told)
    except ValueError:
        told, error = {}, ErrorObject()
    # What FastAPI, and the server of llama.cpp, say where there is no such path, before it is any
    # interface's turn to speak.
    untold = not error.type and not error.code
    nowhere = untold and (not error.message or told.get("detail") == "Not Found")
    if status == 404 and (nowhere or error.message == "File Not Found"):
        words = describe_answer(status, headers, body)
        return ReplyMalformed(f"{words}; is base-url right?", provider=provider, status=status)
    if not error.message:
        error = msgspec.structs.replace(error, message=describe_answer(status, headers, body))
    if status == 413 and size:
        error = msgspec.structs.replace(error, message=f"{error.message} (it has {size} bytes)")
    made = produce_error(provider, error, status=status, request_id=headers.get("x-request-id", ""))
    if isinstance(made, RateLimited | ProviderOverloaded):
        made.retry_after = read_retry_after(headers)
        if made.retry_after is None and isinstance(made, RateLimited):
            made.retry_after = read_reset(headers)
    return made


def produce_error(
    provider: str, error: ErrorObject, *, status: int | None = None, request_id: str = ""
) -> ProviderError:
    """The error of an error object, in a body or in the middle of a stream."""
    kind = BY_CODE.get(error.code) or BY_TYPE.get(error.type)
    named = status
    if error.status is not None and (status is None or status >= 500):
        # The server failed, but at what the request says: sent again it would fail again.
        named = error.status
        kind = None if kind is ProviderOverloaded else kind
    known = BY_STATUS.get(named) if named is not None else None
    if kind is RequestRefused and named in (401, 402, 403, 404, 413, 429):
        kind = BY_CODE.get(error.code) or known
    if kind is None:
        kind = known or (
            RequestRefused if named is not None and named < 500 else ProviderOverloaded
        )
    message = clear_words(error.message) or error.code or error.type or "an error"
    overflow = _find_overflow(message, kind)
    if overflow is not None and not issubclass(kind, RequestTooLarge):
        return _produce_overflow(overflow, error, message, provider, status, request_id)
    return kind(
        f"{message}{advise(kind, provider)}",
        provider=provider,
        status=status,
        code=error.code or error.type,
        request_id=request_id,
    )


def _find_overflow(message: str, kind: type[ProviderError]) -> Mapping[str, str | None] | None:
    # Also of an inner error: some local servers answer 500 to what they cannot take.
    if not issubclass(kind, RequestRefused | ProviderOverloaded):
        return None
    found = next((found for one in _OVERFLOWS if (found := one.search(message))), None)
    if found is not None:
        return found.groupdict()
    return {} if kind is ContextOverflow else None


def _produce_overflow(
    sizes: Mapping[str, str | None],
    error: ErrorObject,
    message: str,
    provider: str,
    status: int | None,
    request_id: str,
) -> ContextOverflow:
    made = ContextOverflow(
        f"the history is too long for this model ({message}); go on in a fork of an earlier "
        "point, or with a model that has a larger context",
        provider=provider,
        status=status,
        code="context_overflow",
        request_id=request_id,
    )
    made.tokens = error.tokens or _number(sizes.get("tokens"))
    made.limit = error.limit or _number(sizes.get("limit"))
    return made


def _lists_problems(value: object) -> bool:
    """Whether this is what FastAPI and pydantic say of a request that does not fit its schema."""
    return isinstance(value, list) and any(
        isinstance(one, dict) and {"loc", "msg", "type"} <= one.keys() for one in value
    )


def _read_status(code: object) -> int | None:
    """The status in the 400s that a code is, as a number or its digits."""
    text = str(code) if isinstance(code, int | str) else ""
    return int(text) if re.fullmatch(r"4[0-9]{2}", text, re.ASCII) else None


def _word(value: object) -> str:
    return clear_words(value) if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
