"""The keys of a row of `[ensembles]` that names an MCP server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.configuration import Seconds
from vibe_llms.ensembles.interfaces import EnsembleRules
from vibe_llms.invocation.invokers import Approval
from vibe_llms.redaction import remember

#: What would make a child load code that its command does not name.
LOADING_VARIABLES = frozenset(
    {
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"),
        *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT"),
        *("BASH_ENV", "ENV"),
    }
)
#: What names a header or a variable that holds a key.
SECRET = re.compile("authorization|cookie|key|password|secret|token", re.IGNORECASE)
#: Stands for a variable of the environment, and perhaps for something else where it is not set.
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


class OAuthSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How one signs in to a server over HTTP.

    With the grant `code` a person signs in with a browser, which is led back to `redirect-port` of
    this machine (a free one where it is 0) within `sign-in-seconds`; with `client-credentials` a
    program does by itself, with a secret, or with the key in `private-key-file`. `client-id` is for
    servers that know us already; others are told of us, or find it at `client-metadata-url`. The
    secret is read like a key: from a variable of the environment, a command, or the kept keys,
    under `NAME.client-secret`. Where the server signs in through another one, the user is asked
    once, unless its origin is in `allowed-origins`.
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
    """Either `command`, which starts a server that speaks over its standard streams, or `url`.

    `{python}` in a command is the Python that runs this library; `needs` are the packages that must
    be installed in it, which the extra `extra` of this library brings.
    `environment` is all that the server gets besides a few harmless variables, `folder` where it
    runs. `${NAME}` in any of these stands for a variable of the environment, so that no key need be
    written down. `transport` is `http` for streamable HTTP, `sse` for the older form. `protocol` is
    the era that is spoken: `handshake` up to 2025-11-25, `stateless` from 2026-07-28 on, `auto`
    what the server understands. A server has so many seconds to answer when it is opened, when it
    lists, and for each call that has no `timeout-seconds` of its own; the time in which a person is
    asked does not count. No message may have more than `message-bytes`.

    `cage` is for the interpreter of Python. With `none` code runs without a cage, and each question
    whether a call may run says so.

    `roots` are folders that the server is told to work in. With `sampling-model`, the address of a
    model, it may ask that model, for at most `sampling-tokens` a time, if whoever approves calls
    agrees or `sampling-approval` says `allow`.
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
        """What is started and where, or the address: what the person agreed to."""
        if self.url:
            return self.url
        place = f" (in {self.folder})" if self.folder else ""
        return shlex.join(self.command) + place + " (without a cage)" * (self.cage == "none")

    def expand(self, environment: Mapping[str, str]) -> McpSettings:
        """The settings with `${NAME}` and `${NAME:-else}` replaced by variables of the environment.

        `KeyError` names one that is not set and has nothing to stand for it.
        """

        def fill(text: str) -> str:
            return VARIABLE.sub(
                lambda found: environment.get(found[1]) or found[2] or environment[found[1]], text
            )

        return msgspec.structs.replace(
            self,
            command=tuple(map(fill, self.command)),
            url=fill(self.url),
            folder=fill(self.folder),
            environment={key: fill(value) for key, value in self.environment.items()},
            headers={key: fill(value) for key, value in self.headers.items()},
        )

    def remember_keys(self) -> None:
        """Keep the keys that the row holds out of all words from now on."""
        for key, value in (*self.headers.items(), *self.environment.items()):
            if SECRET.search(key) and VARIABLE.search(value) is None:
                remember(value.rpartition(" ")[2])
