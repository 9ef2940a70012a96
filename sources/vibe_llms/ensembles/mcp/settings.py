"""Keys of a row of `[ensembles]` that names an MCP server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import VARIABLE, Seconds, fill_variables
from vibe_llms.base.redaction import remember
from vibe_llms.invocation.ensembles import EnsembleRules
from vibe_llms.invocation.invokers import Approval

#: Variables that would make a child load code that its command does not name.
LOADING_VARIABLES = frozenset(
    {
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"),
        *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT"),
        *("BASH_ENV", "ENV"),
    }
)
#: Names of headers and variables that contain a key.
SECRET = re.compile("authorization|cookie|key|password|secret|token", re.IGNORECASE)


class OAuthSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings for signing in to an HTTP server.

    With the grant `code`, a user signs in with a browser, which returns to the local port
    `redirect-port` (any free one if 0) within `sign-in-seconds`. With `client-credentials`, a
    program signs in with a secret or the key in `private-key-file`. `client-id` is for servers
    where we are registered; others register us, or read `client-metadata-url`. The secret is looked
    up like a key: in an environment variable, a command, or the stored keys, under
    `NAME.client-secret`. If the server signs in through another one, the user is asked once, unless
    its origin is in `allowed-origins`.
    """

    grant: Literal["code", "client-credentials"] = "code"
    client_id: str = ""
    client_secret_environment: str = ""
    client_secret_command: tuple[str, ...] = ()
    client_metadata_url: str = ""
    private_key_file: str = ""
    signing_algorithm: str = "RS256"
    scope: str = ""
    issuer: str = ""
    allowed_origins: tuple[str, ...] = ()
    redirect_port: int = 0
    sign_in_seconds: Seconds = 300.0


class McpSettings(EnsembleRules, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Either `command`, which starts a server that uses its standard streams, or `url`.

    `{python}` in a command is the Python that runs this library. `needs` are packages that must be
    installed in it; the extra `extra` of this library installs them. `environment` is added to a
    few harmless variables that the server inherits, and `folder` is its working directory.
    `${NAME}` in any of these is replaced by an environment variable, to keep keys out of the file.
    `transport` is `http` for streamable HTTP, `sse` for the older protocol. `protocol` is
    `handshake` up to 2025-11-25, `stateless` from 2026-07-28, or `auto` to use the one that the
    server supports. The time limits apply to opening, to listing, and to each call without a
    `timeout-seconds` of its own; time spent asking the user does not count. No message may exceed
    `message-bytes`.

    `cage` is for the Python interpreter: with `none`, code runs without a cage, and each approval
    question says so.

    `roots` are working folders that are sent to the server. With `sampling-model`, the address of a
    model, the server may use that model, for at most `sampling-tokens` at a time, if the approver
    agrees or `sampling-approval` is `allow`.
    """

    command: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    extra: str = "mcp"
    url: str = ""
    transport: Literal["http", "sse"] = "http"
    protocol: Literal["auto", "handshake", "stateless"] = "auto"
    environment: Mapping[str, str] = {}
    folder: str = ""
    headers: Mapping[str, str] = {}
    oauth: OAuthSettings | None = None
    cage: Literal["required", "none"] = "required"
    roots: tuple[str, ...] = ()
    sampling_model: str = ""
    sampling_approval: Approval = "ask"
    sampling_tokens: int = 4096
    open_seconds: Seconds = 10.0
    list_seconds: Seconds = 10.0
    call_seconds: Seconds = 60.0
    message_bytes: int = 16 * 1024 * 1024

    @property
    def origin(self) -> str:
        """Command, folder and cage of the server, or its URL: everything the user agreed to."""
        if self.url:
            return self.url
        place = f" (in {self.folder})" if self.folder else ""
        return shlex.join(self.command) + place + " (without a cage)" * (self.cage == "none")

    def expand(self, environment: Mapping[str, str]) -> McpSettings:
        """Replace `${NAME}` and `${NAME:-else}` in the settings from the environment.

        `KeyError` names a variable that is not set and has no default.
        """

        def fill(text: str) -> str:
            return fill_variables(text, environment)

        return msgspec.structs.replace(
            self,
            command=tuple(map(fill, self.command)),
            url=fill(self.url),
            folder=fill(self.folder),
            environment={key: fill(value) for key, value in self.environment.items()},
            headers={key: fill(value) for key, value in self.headers.items()},
        )

    def remember_keys(self) -> None:
        """Redact the keys in the row from all text from now on."""
        for key, value in (*self.headers.items(), *self.environment.items()):
            if SECRET.search(key) and VARIABLE.search(value) is None:
                remember(value.rpartition(" ")[2])
