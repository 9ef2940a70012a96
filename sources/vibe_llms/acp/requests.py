"""Parameters of the methods that clients call, as they are read.

Unknown members are ignored, and those that may be left out may be null.
"""

from __future__ import annotations

import os.path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from vibe_llms.acp.rpc import INVALID_PARAMS, RpcError, quote

#: Names of transports to MCP servers.
STDIO, HTTP, SSE = "stdio", "http", "sse"


class ElicitationAbilities(Struct, frozen=True):
    """The kinds of questions to the user that a client can ask; None means that it cannot."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ClientAbilities(Struct, frozen=True):
    """The abilities of a client that this agent uses."""

    elicitation: ElicitationAbilities | None = None


class InitializeParams(Struct, frozen=True, rename="camel"):
    """Parameters of `initialize`."""

    protocol_version: Annotated[int, Meta(ge=0)]
    client_capabilities: ClientAbilities | None = None


class NamedValue(Struct, frozen=True):
    """A variable of the environment, or a header."""

    name: str
    value: str


class ServerParams(Struct, frozen=True):
    """An MCP server of the client: a command with variables, or a URL with headers."""

    name: str
    type: str = STDIO
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[NamedValue, ...] = ()
    url: str = ""
    headers: tuple[NamedValue, ...] = ()

    def check(self) -> None:
        """Raise `RpcError` if the server cannot be used."""
        if self.type not in (STDIO, HTTP, SSE):
            raise RpcError(
                INVALID_PARAMS,
                f"the MCP server {quote(self.name)} has the type {quote(self.type)}; "
                f"use {STDIO}, {HTTP} or {SSE}",
            )
        member = "command" if self.type == STDIO else "url"
        if not getattr(self, member):
            raise RpcError(INVALID_PARAMS, f"the MCP server {quote(self.name)} has no {member}")


class NewSessionParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/new`."""

    cwd: str
    mcp_servers: tuple[ServerParams, ...] | None = None

    def check(self) -> None:
        """Raise `RpcError` if the folder or a server cannot be used."""
        check_folder(self.cwd)
        if not os.path.isdir(self.cwd):
            raise RpcError(INVALID_PARAMS, f"cwd: the folder {quote(self.cwd)} does not exist")
        for server in self.mcp_servers or ():
            server.check()


class StoredSessionParams(NewSessionParams, frozen=True, rename="camel", kw_only=True):
    """Parameters of `session/load` and `session/resume`."""

    session_id: str


class SessionParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/cancel`, `session/close` and `session/delete`."""

    session_id: str


class ListParams(Struct, frozen=True):
    """Parameters of `session/list`."""

    cwd: str | None = None
    cursor: str | None = None


class OptionParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/set_config_option`."""

    session_id: str
    config_id: str
    value: str | bool


class ResourceParams(Struct, frozen=True, rename="camel"):
    """A file with its text, or with its bytes in base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class BlockParams(Struct, frozen=True, rename="camel"):
    """A part of a prompt; the `type` says which members it has."""

    type: str
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None
    uri: str | None = None
    name: str | None = None
    resource: ResourceParams | None = None


class PromptParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/prompt`."""

    session_id: str
    prompt: tuple[BlockParams, ...]


# msgspec 0.22 crashes if two threads are the first to use a type, so use it here first.
INITIALIZE = msgspec.json.Decoder(InitializeParams)
NEW_SESSION = msgspec.json.Decoder(NewSessionParams)
STORED_SESSION = msgspec.json.Decoder(StoredSessionParams)
SESSION = msgspec.json.Decoder(SessionParams)
LIST = msgspec.json.Decoder(ListParams)
OPTION = msgspec.json.Decoder(OptionParams)
PROMPT = msgspec.json.Decoder(PromptParams)


def check_folder(folder: str) -> None:
    """Raise `RpcError` if a path is not absolute."""
    if not os.path.isabs(folder) or "\0" in folder:
        raise RpcError(INVALID_PARAMS, f"cwd must be an absolute path, not {quote(folder)}")
