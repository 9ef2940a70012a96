"""The keys of a row of `[ensembles]` that names an MCP server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec

from vibe_llms.configuration import Seconds
from vibe_llms.ensembles.interfaces import EnsembleRules
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
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class McpSettings(EnsembleRules, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Either `command`, which starts a server that speaks over its standard streams, or `url`.

    `environment` is all that the server gets besides a few harmless variables, `folder` where it
    runs. `${NAME}` in any of these stands for a variable of the environment, so that no key need
    be written down. `transport` is `http` for streamable HTTP, `sse` for the older form. A server
    has so many seconds to answer when it is opened, when it lists, and for each call; a tool with
    `timeout-seconds` of its own has those.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    transport: Literal["http", "sse"] = "http"
    environment: Mapping[str, str] = {}
    folder: str = ""
    headers: Mapping[str, str] = {}
    open_seconds: Seconds = 10.0
    list_seconds: Seconds = 10.0
    call_seconds: Seconds = 60.0
    message_bytes: int = 16 * 1024 * 1024

    @property
    def origin(self) -> str:
        """What is started and where, or the address: what the person agreed to."""
        if self.url:
            return self.url
        return shlex.join(self.command) + (f" (in {self.folder})" if self.folder else "")

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
