"""How the server writes errors: in the form of the interface that the client speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from vibe_llms.server.failures import Failure


class Dialect(Struct, frozen=True):
    """What differs between the interfaces that the server speaks, whatever the endpoint.

    `encode_failure` writes an error as the body of a response, from the failure and the identity of
    the request; `request_id` is the header that has this identity. `event` begins the event that
    has an error after a stream has begun.
    """

    encode_failure: Callable[[Failure, str], bytes]
    request_id: bytes
    event: bytes

    def write_failure(self, failure: Failure, request_id: str) -> bytes:
        """An error after the stream has begun."""
        return self.event + self.encode_failure(failure, request_id) + b"\n\n"


class OpenAIError(Struct):
    """What is wrong; `param` names the member of the request."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIFailure(Struct):
    """An error in the form of OpenAI."""

    error: OpenAIError


class AnthropicError(Struct, omit_defaults=True):
    """What is wrong."""

    type: str
    message: str
    details: Mapping[str, str] = {}


class AnthropicFailure(Struct, tag_field="type", tag="error"):
    """An error in the form of Anthropic, for requests below `/v1/messages` and with its header."""

    error: AnthropicError
    request_id: str


def _encode_openai(failure: Failure, _: str) -> bytes:
    error = OpenAIError(failure.message, failure.type, failure.param, failure.code)
    return msgspec.json.encode(OpenAIFailure(error))


#: Anthropic's words for each status. Source: `types/shared/error_type.py` of anthropic 2.12.0, and
#: for those that it leaves out https://platform.claude.com/docs/en/api/errors (2026-11).
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _encode_anthropic(failure: Failure, request_id: str) -> bytes:
    other = "invalid_request_error" if failure.status < 500 else "api_error"
    where = f"{failure.param}: " if failure.param else ""
    error = AnthropicError(
        _ANTHROPIC_TYPES.get(failure.status, other),
        f"{where}{failure.message}",
        {} if failure.code is None else {"error_code": failure.code},
    )
    return msgspec.json.encode(AnthropicFailure(error, request_id))


OPENAI = Dialect(_encode_openai, b"x-request-id", b"data: ")
ANTHROPIC = Dialect(_encode_anthropic, b"request-id", b"event: error\ndata: ")
_ANTHROPIC_PATH = "/v1/messages"


def find_dialect(path: str, headers: Mapping[bytes, bytes]) -> Dialect:
    """The dialect of a request: Anthropic's clients name their version on every path."""
    if path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/"):
        return ANTHROPIC
    return ANTHROPIC if b"anthropic-version" in headers else OPENAI
