"""The keys of a row of `[ensembles]` that names an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from vibe_llms.configuration import Seconds
from vibe_llms.ensembles.interfaces import EnsembleRules

#: What would make a child load code that its command does not name.
LOADING_VARIABLES = frozenset(
    {
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"),
        *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT"),
        *("BASH_ENV", "ENV"),
    }
)


class McpSettings(EnsembleRules, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Either `command`, which starts a server that speaks over its standard streams, or `url`.

    `{python}` in a command is the Python that runs this library; `needs` are the packages that must
    be installed in it, which the extra `extra` of this library brings.
    `environment` is all that the server gets besides a few harmless variables, `folder` where it
    runs. `transport` is `http` for streamable HTTP, `sse` for the older form. A server has so many
    seconds to answer when it is opened, when it lists, and for each call.
    """

    command: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    extra: str = "mcp"
    url: str = ""
    transport: Literal["http", "sse"] = "http"
    environment: Mapping[str, str] = {}
    folder: str = ""
    headers: Mapping[str, str] = {}
    open_seconds: Seconds = 10.0
    list_seconds: Seconds = 10.0
    call_seconds: Seconds = 60.0
    message_bytes: int = 16 * 1024 * 1024
