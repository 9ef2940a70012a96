"""Headers of MCP requests, which repeat members of the body for proxies, and must agree with it.

Source: Model Context Protocol 2026-07-28, "Streamable HTTP", "Standard Request Headers".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from vibe_llms.mcp_server.eras import HANDSHAKE_VERSIONS, STATELESS_VERSIONS, McpClient
from vibe_llms.mcp_server.jsonrpc import (
    HEADER_MISMATCH,
    VERSION_UNSUPPORTED,
    ProtocolError,
    RpcRequest,
)

VERSION, METHOD, NAME, SESSION = (
    b"mcp-protocol-version",
    b"mcp-method",
    b"mcp-name",
    b"mcp-session-id",
)
#: Member that the header `Mcp-Name` repeats, by method.
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
#: A value that is not plain ASCII.
_ENCODED = re.compile(r"=\?base64\?([A-Za-z0-9+/=]*)\?=")
#: Version of clients that send no header. Source: MCP 2025-11-25, "Protocol Version Header".
_DEFAULT = "2025-03-26"


def is_stateless_header(headers: Mapping[bytes, bytes]) -> bool:
    """Return True if the header names a version without a handshake."""
    return read_header(headers, VERSION) in STATELESS_VERSIONS


def check_agreement(request: RpcRequest, client: McpClient, headers: Mapping[bytes, bytes]) -> None:
    """Raise `ProtocolError` if the headers and the body of a request do not agree."""
    _compare(headers, VERSION, client.version)
    _compare(headers, METHOD, request.method)
    member = _NAMED.get(request.method, "")
    name = request.params.get(member)
    if isinstance(name, str):
        _compare(headers, NAME, name)


def find_version(headers: Mapping[bytes, bytes]) -> str:
    """Return the version with a handshake that a client speaks; `ProtocolError` if unknown."""
    version = read_header(headers, VERSION) or _DEFAULT
    if version not in HANDSHAKE_VERSIONS:
        supported = [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
        raise ProtocolError(
            VERSION_UNSUPPORTED,
            f"protocol version {version!r} is not supported; supported: {', '.join(supported)}",
            {"supported": supported, "requested": version},
        )
    return version


def read_header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """Return the value of a header; empty if it is missing."""
    return headers.get(name, b"").decode("latin-1").strip()


def _compare(headers: Mapping[bytes, bytes], name: bytes, expected: str) -> None:
    given = _decode(read_header(headers, name))
    if given != expected:
        raise ProtocolError(
            HEADER_MISMATCH,
            f"the header {name.decode()} is {given!r}, and the body says {expected!r}"
            if name in headers
            else f"the header {name.decode()} is missing",
        )


def _decode(value: str) -> str | None:
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
