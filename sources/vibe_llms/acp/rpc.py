"""Messages of JSON-RPC 2.0, one on each line: reading, writing, and errors."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

#: Codes of JSON-RPC 2.0, and those that ACP adds.
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
NOT_FOUND, CANCELLED = -32002, -32800
#: Longest line that is read, in bytes: an attachment of 64 MiB in base64 fits.
LONGEST_LINE = 128 * 1024 * 1024
_VERSION = "2.0"
_NOTHING = Raw(b"{}")
#: Characters of the other side's text that an error repeats.
_QUOTED = 100

RequestId: TypeAlias = int | str | None
P = TypeVar("P", bound=Struct)


class RpcError(Exception):
    """An error that the other side gets in place of a result, or sent in place of one."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class _Line(Struct):
    """A line: a request has a method and an id, a notification a method, a response an id."""

    jsonrpc: str | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = _NOTHING
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class Call(Struct, frozen=True):
    """A request, or a notification, which has no `identity` and gets no answer."""

    method: str
    params: Raw
    identity: RequestId | UnsetType = UNSET


class Response(Struct, frozen=True):
    """The other side's answer to a request: a result, or an error."""

    identity: RequestId
    result: Raw = _NOTHING
    error: RpcError | None = None


class _ErrorBody(Struct, omit_defaults=True):
    code: int
    message: str
    data: Any = None


# msgspec 0.22 crashes if two threads are the first to use a type, so use it here first.
_LINES = msgspec.json.Decoder(_Line)
_ERRORS = msgspec.json.Decoder(_ErrorBody)


def read_line(line: bytes) -> Call | Response:
    """Read a line; raises `RpcError` if it is not a message of JSON-RPC 2.0."""
    try:
        message = _LINES.decode(line)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"not a JSON-RPC 2.0 message: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"not valid JSON: {error}") from error
    if message.jsonrpc != _VERSION:
        raise RpcError(INVALID_REQUEST, 'not a JSON-RPC 2.0 message: "jsonrpc" must be "2.0"')
    if not isinstance(message.method, UnsetType):
        return Call(message.method, message.params, message.id)
    if isinstance(message.id, UnsetType):
        raise RpcError(INVALID_REQUEST, 'not a JSON-RPC 2.0 message: no "method" and no "id"')
    if not isinstance(message.error, UnsetType):
        return Response(message.id, error=_read_error(message.error))
    if isinstance(message.result, UnsetType):
        raise RpcError(
            INVALID_REQUEST, 'not a JSON-RPC 2.0 message: no "method", "result" or "error"'
        )
    return Response(message.id, message.result)


def read_params(params: Raw, decoder: msgspec.json.Decoder[P]) -> P:
    """Read the parameters of a method; raises `RpcError` if they are not valid."""
    try:
        return decoder.decode(params)
    except (ValueError, RecursionError) as error:
        raise RpcError(INVALID_PARAMS, f"invalid parameters: {error}") from error


def write_call(method: str, params: Struct, identity: int | None = None) -> bytes:
    """Return the line of a request, or of a notification if it has no `identity`."""
    members: dict[str, Any] = {"jsonrpc": _VERSION}
    if identity is not None:
        members["id"] = identity
    return _encode({**members, "method": method, "params": params})


def write_result(identity: RequestId, result: Struct) -> bytes:
    """Return the line of a result."""
    return _encode({"jsonrpc": _VERSION, "id": identity, "result": result})


def write_error(identity: RequestId, error: RpcError) -> bytes:
    """Return the line of an error."""
    body = _ErrorBody(error.code, error.message, error.data)
    return _encode({"jsonrpc": _VERSION, "id": identity, "error": body})


def quote(text: str) -> str:
    """Return the other side's text for an error, in quotes and not too long."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def _read_error(body: Raw) -> RpcError:
    try:
        read = _ERRORS.decode(body)
    except (ValueError, RecursionError):
        return RpcError(INTERNAL_ERROR, "an error that is not one of JSON-RPC 2.0")
    return RpcError(read.code, read.message, read.data)


def _encode(message: Any) -> bytes:
    # Escapes every line end in strings, so that a message is one line.
    return msgspec.json.encode(message) + b"\n"
