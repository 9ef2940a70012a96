"""The two eras of the protocol, and what is known about the client of a request.

Up to 2025-11-25, a client introduces itself once, with `initialize`. From 2026-07-28 on, it does so
in the member `_meta` of each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from vibe_llms.mcp_server.jsonrpc import INVALID_PARAMS, VERSION_UNSUPPORTED, ProtocolError

#: Versions with a handshake, and versions without, oldest first.
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ("2026-07-28",)

PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = f"{PREFIX}protocolVersion"
CAPABILITIES_KEY = f"{PREFIX}clientCapabilities"
SERVER_KEY = f"{PREFIX}serverInfo"
_LEVEL_KEY = f"{PREFIX}logLevel"
#: Severities of log messages, mildest first.
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class McpClient(Struct, frozen=True, kw_only=True):
    """The client of a request: protocol version, capabilities, and the wanted log messages.

    `level` is the mildest severity of wanted log messages; empty for none.
    """

    version: str
    capabilities: Mapping[str, Any] = {}
    level: str = "info"

    @property
    def stateless(self) -> bool:
        """True from 2026-07-28 on: the server cannot send requests."""
        return self.version in STATELESS_VERSIONS

    def supports(self, capability: str, part: str = "") -> bool:
        """Return True if the client has a capability, and a part of it.

        A client that names no parts of `elicitation` supports its part `form`.
        """
        given = self.capabilities.get(capability)
        if not isinstance(given, Mapping):
            return False
        return not part or part in given or (part == "form" and "url" not in given)


def negotiate(params: Mapping[str, Any]) -> McpClient:
    """Return the client that `initialize` introduces.

    A client that asks for an unknown version is offered the newest one with a handshake, and
    decides if it goes on.
    """
    version, capabilities = params.get("protocolVersion"), params.get("capabilities", {})
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, "initialize needs protocolVersion, a string")
    if not isinstance(capabilities, Mapping):
        raise ProtocolError(INVALID_PARAMS, "capabilities is an object")
    known = version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
    return McpClient(version=known, capabilities=capabilities)


def is_stateless(params: Mapping[str, Any]) -> bool:
    """Return True if a request is of the era without a handshake."""
    meta = params.get("_meta")
    return isinstance(meta, Mapping) and VERSION_KEY in meta


def read_client(params: Mapping[str, Any]) -> McpClient:
    """Return the client that the `_meta` of a request introduces; its version is not checked."""
    meta = params.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    if missing := [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]:
        raise ProtocolError(INVALID_PARAMS, f"params._meta needs {' and '.join(missing)}")
    version, capabilities = meta[VERSION_KEY], meta[CAPABILITIES_KEY]
    if not isinstance(version, str) or not isinstance(capabilities, Mapping):
        raise ProtocolError(
            INVALID_PARAMS, f"{VERSION_KEY} is a string and {CAPABILITIES_KEY} an object"
        )
    level = meta.get(_LEVEL_KEY, "")
    if level and level not in LEVELS:
        raise ProtocolError(INVALID_PARAMS, f"{_LEVEL_KEY} is one of {', '.join(LEVELS)}")
    return McpClient(version=version, capabilities=capabilities, level=level)


def check_version(version: str) -> None:
    """Raise `ProtocolError` if a version is not one of those without a handshake."""
    if version not in STATELESS_VERSIONS:
        raise ProtocolError(
            VERSION_UNSUPPORTED,
            f"protocol version {version!r} is not supported; supported: "
            f"{', '.join(STATELESS_VERSIONS)}, and with initialize {', '.join(HANDSHAKE_VERSIONS)}",
            {"supported": [*STATELESS_VERSIONS], "requested": version},
        )
