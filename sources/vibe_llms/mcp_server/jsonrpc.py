"""JSON-RPC messages: reading, writing, and the codes of errors.

Sources: https://www.jsonrpc.org/specification, and the Model Context Protocol 2025-11-25 and
2026-07-28, "Base Protocol".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
#: From 2026-07-28 on.
HEADER_MISMATCH = -32020
CAPABILITY_MISSING = -32021
VERSION_UNSUPPORTED = -32022
#: Up to 2025-11-25.
RESOURCE_NOT_FOUND = -32002

MessageId: TypeAlias = str | int
_ANYTHING = msgspec.json.Decoder()


class ProtocolError(Exception):
    """A message that cannot be answered with a result; the client gets this error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def describe(self) -> Mapping[str, Any]:
        """Return the error as a member of a response."""
        described: dict[str, Any] = {"code": self.code, "message": str(self)}
        return described if self.data is None else {**described, "data": self.data}


class RpcRequest(Struct, frozen=True):
    """A message that needs a response."""

    id: MessageId
    method: str
    params: Mapping[str, Any]


class RpcNotification(Struct, frozen=True):
    """A message that gets no response."""

    method: str
    params: Mapping[str, Any]


class RpcResponse(Struct, frozen=True):
    """The client's response to a request of the server: a result, or an error."""

    id: MessageId
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


RpcMessage: TypeAlias = RpcRequest | RpcNotification | RpcResponse


def read_message(data: bytes) -> RpcMessage:
    """Return the message in some JSON; `ProtocolError` says what is wrong with it."""
    try:
        value = _ANYTHING.decode(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(PARSE_ERROR, f"the message is not valid JSON: {error}") from None
    return convert_message(value)


def convert_message(value: Any) -> RpcMessage:
    """Return the message in decoded JSON; `ProtocolError` says what is wrong with it."""
    if isinstance(value, list):
        raise _refuse("send one message at a time; batches are not supported")
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise _refuse('a message is an object with "jsonrpc": "2.0"')
    identity = value.get("id")
    if "id" in value and (not isinstance(identity, str | int) or isinstance(identity, bool)):
        raise _refuse("the id of a message is a string or a whole number")
    if "method" in value:
        method, params = value["method"], value.get("params")
        if not isinstance(method, str):
            raise _refuse("method is a string")
        if not isinstance(params, dict | None):
            raise _refuse("params is an object")
        if "id" in value:
            return RpcRequest(value["id"], method, params or {})
        return RpcNotification(method, params or {})
    if "id" not in value:
        raise _refuse("a message has a method, or the id of a request")
    result, error = value.get("result"), value.get("error")
    if isinstance(result, dict) == isinstance(error, dict):
        raise _refuse("a response has either an object result or an object error")
    return RpcResponse(value["id"], result, error)


def find_id(data: bytes) -> MessageId | None:
    """Return the id of a message that could not be read otherwise, for the error; None without."""
    try:
        value = _ANYTHING.decode(data)
    except (ValueError, RecursionError):
        return None
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def write_result(identity: MessageId, result: Mapping[str, Any]) -> bytes:
    """Return a response with a result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "result": result})


def write_error(identity: MessageId | None, error: ProtocolError) -> bytes:
    """Return a response with an error."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "error": error.describe()})


def write_message(
    method: str, params: Mapping[str, Any], identity: MessageId | None = None
) -> bytes:
    """Return a notification, or with an id, a request."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return msgspec.json.encode(message if identity is None else {**message, "id": identity})


def _refuse(reason: str) -> ProtocolError:
    return ProtocolError(INVALID_REQUEST, reason)
