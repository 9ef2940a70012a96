"""Models that follow a script, servers for tools, and what is on the disk afterwards."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cli.command import write_script
from tests.fakes import mcp_asking, mcp_server
from tests.fakes.warm import warm_command
from vibe_llms.acp.options import LaunchOptions

#: A server with a tool `echo`, and one whose tools ask the user.
ECHO, ASKING = Path(mcp_server.__file__), Path(mcp_asking.__file__)


def options_for(folder: Path, script: str, **options: Any) -> LaunchOptions:
    """Options with a model that follows a script."""
    return LaunchOptions(model=write_script(folder, script), **options)


def replies(*parts: str) -> str:
    """A script whose replies have these parts in TOML, one after the other."""
    return "\n".join(f"[[replies]]\nparts = [ {one} ]" for one in parts)


def call(tool: str, **arguments: Any) -> str:
    """A part that calls a tool."""
    return f"{{ invocation = '{tool}', arguments = '''{json.dumps(arguments)}''' }}"


def server(path: Path = ECHO, name: str = "fake", *arguments: str) -> Mapping[str, Any]:
    """An MCP server, as a client names it."""
    start = warm_command if path == ASKING else lambda *given: [sys.executable, *given]
    command, *given = start(str(path), *arguments)
    return {"name": name, "command": command, "args": given, "env": []}


def stored(home: Path) -> list[dict[str, Any]]:
    """The messages of the only conversation on the disk."""
    (path,) = home.glob("conversations/*/messages.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def said_by_user(home: Path) -> list[str]:
    """The texts of the user in the only conversation on the disk."""
    return [one["contents"][0]["data"] for one in stored(home) if one["role"] == "user"]
