"""A cache of a server's list of tools, valid for as long as the server says."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, read_trusted
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.meta import __version__
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.messages.contents import repair_text

if TYPE_CHECKING:
    from mcp_types import Tool

#: Longest validity of a list, as in the official package.
LONGEST_SECONDS = 24 * 3600.0
#: Parts of a server's description of a tool that are not annotations.
_DEFINED_ELSEWHERE = {"name", "description", "input_schema", "icons", "meta"}


class ServerTool(Struct, frozen=True):
    """A tool as its server describes it."""

    name: str
    description: str
    arguments_schema: Mapping[str, Any]
    annotations: Mapping[str, Any] = {}

    @property
    def reads_only(self) -> bool:
        """True if the server says that the tool changes nothing."""
        return self._read("annotations", "readOnlyHint") is True

    @property
    def open_world(self) -> bool:
        """True if the tool may deal with more than the server itself."""
        return self._read("annotations", "openWorldHint") is not False

    @property
    def needs_task(self) -> bool:
        """True if its calls must be tasks of 2025-11-25, which the package does not support."""
        return self._read("execution", "taskSupport") == "required"

    def _read(self, table: str, name: str) -> object:
        return self.annotations.get(table, {}).get(name)


class _Remembered(Struct):
    """Content of the file: a list, its expiry time, and a hash of its server."""

    key: str
    until: float
    tools: tuple[ServerTool, ...]


def assimilate_tool(tool: Tool) -> ServerTool:
    """Convert a tool of a list."""
    return ServerTool(
        tool.name,
        repair_text(tool.description or tool.title or ""),
        dict(tool.input_schema),
        tool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_DEFINED_ELSEWHERE),
    )


class ToolListFile:
    """The last list of one server, in a file of the state folder."""

    def __init__(self, state: Path, ensemble: str) -> None:
        digest = hashlib.sha256(ensemble.encode()).hexdigest()
        self.path = state / "tools" / f"{digest}.json"

    def read(self, settings: McpSettings) -> Sequence[ServerTool] | None:
        """Return the tools that a server with these settings listed; None if expired or changed."""
        import json

        try:
            found = msgspec.convert(json.loads(read_trusted(self.path)), _Remembered)
            same = found.key == _produce_key(settings)
        except (OSError, ValueError, RecursionError):
            return None
        fresh = 0 < found.until - time.time() <= LONGEST_SECONDS
        return found.tools if same and fresh else None

    def keep(self, settings: McpSettings, tools: Sequence[ServerTool], seconds: float) -> None:
        """Replace the stored list with one valid for `seconds`; ignore storage errors."""
        import json

        self.forget()
        if seconds <= 0:
            return
        until = time.time() + min(seconds, LONGEST_SECONDS)
        with suppress(StorageError, RecursionError), storage_errors(self.path):
            content = _Remembered(_produce_key(settings), until, tuple(tools))
            data = json.dumps(msgspec.to_builtins(content)).encode()
            make_folder(self.path.parent)
            replace_file(self.path, data, LARGEST_SETTINGS, durable=False)

    def forget(self) -> None:
        """Delete the stored list."""
        with suppress(OSError):
            self.path.unlink()


def _produce_key(settings: McpSettings) -> str:
    """Hash the server's program, folder and settings, which may contain keys."""
    import json

    program = shutil.which(settings.command[0])
    place = settings.folder or os.getcwd()
    started = [__version__, sys.executable, program, place, msgspec.to_builtins(settings)]
    return hashlib.sha256(json.dumps(started, sort_keys=True).encode()).hexdigest()
