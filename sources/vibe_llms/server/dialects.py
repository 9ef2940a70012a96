"""`Dialect`: the error format of the API that a client uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from vibe_llms.server.failures import ClientFailure
from vibe_llms.server.rate_headers import (
    RateHeaders,
    produce_anthropic_headers,
    produce_openai_headers,
)


class Dialect(Struct, frozen=True):
    """Behavior that varies by API dialect.

    `encode_failure` encodes a failure and the identity of the request as a response body, and
    `request_id` is the header with this identity. `event` begins the event with an error that
    occurs during a stream. `rate_headers` produces the headers with the user's limits.
    """

    encode_failure: Callable[[ClientFailure, str], bytes]
    request_id: bytes
    event: bytes
    rate_headers: RateHeaders

    def write_failure(self, failure: ClientFailure, request_id: str) -> bytes:
        """Encode an error that occurs during a stream."""
        return self.event + self.encode_failure(failure, request_id) + b"\n\n"


class OpenAIError(Struct):
    """Details of an error; `param` names the member of the request."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIFailure(Struct):
    """An error in OpenAI's format."""

    error: OpenAIError


class AnthropicError(Struct, omit_defaults=True):
    """Details of an error."""

    type: str
    message: str
    details: Mapping[str, str] = {}


class AnthropicFailure(Struct, tag_field="type", tag="error"):
    """An error in Anthropic's format, for `/v1/messages` and for requests with its header."""

    error: AnthropicError
    request_id: str


def _encode_openai(failure: ClientFailure, _: str) -> bytes:
    error = OpenAIError(failure.message, failure.type, failure.param, failure.code)
    return msgspec.json.encode(OpenAIFailure(error))


#: Anthropic's error types by status. Source: `types/shared/error_type.py` of anthropic 2.12.0, and
#: for statuses missing there https://platform.claude.com/docs/en/api/errors (2026-11).
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


def _encode_anthropic(failure: ClientFailure, request_id: str) -> bytes:
    other = "invalid_request_error" if failure.status < 500 else "api_error"
    where = f"{failure.param}: " if failure.param else ""
    error = AnthropicError(
        _ANTHROPIC_TYPES.get(failure.status, other),
        f"{where}{failure.message}",
        {} if failure.code is None else {"error_code": failure.code},
    )
    return msgspec.json.encode(AnthropicFailure(error, request_id))


class McpError(Struct, omit_defaults=True):
    """Details of an error of `/mcp`; `data` depends on the code."""

    code: int
    message: str
    data: Mapping[str, Any] = {}


class McpFailure(Struct):
    """An error of `/mcp`, in JSON-RPC; `id` is null if the message was not read."""

    jsonrpc: Literal["2.0"]
    id: str | int | None
    error: McpError


#: A code of the range that the protocol leaves to servers. Source: MCP 2026-07-28, "Error Codes".
_MCP_CODE = -32000


def _encode_mcp(failure: ClientFailure, _: str) -> bytes:
    data = {"type": failure.type, "code": failure.code}
    return msgspec.json.encode(McpFailure("2.0", None, McpError(_MCP_CODE, failure.message, data)))


OPENAI = Dialect(_encode_openai, b"x-request-id", b"data: ", produce_openai_headers)
ANTHROPIC = Dialect(
    _encode_anthropic, b"request-id", b"event: error\ndata: ", produce_anthropic_headers
)
MCP = Dialect(_encode_mcp, b"x-request-id", b"event: message\ndata: ", produce_openai_headers)
_ANTHROPIC_PATH, _MCP_PATH = "/v1/messages", "/mcp"


def find_dialect(path: str, headers: Mapping[bytes, bytes]) -> Dialect:
    """Return the dialect of a request; Anthropic's clients send a header on every path."""
    if path == _MCP_PATH:
        return MCP
    if path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/"):
        return ANTHROPIC
    return ANTHROPIC if b"anthropic-version" in headers else OPENAI
