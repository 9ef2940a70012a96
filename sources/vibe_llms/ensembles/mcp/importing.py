"""Converts servers in other programs' configuration files, `mcpServers` and similar, to rows.

Supported are the files of Claude Desktop, Cursor, Windsurf and Gemini (`mcpServers`), of VS Code
(`servers`, or `mcp.servers` in its settings) and of Zed (`context_servers`), including comments and
trailing commas, as documented in November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from vibe_llms.base.configuration import VARIABLE
from vibe_llms.base.exceptions import RequestError
from vibe_llms.base.redaction import remember
from vibe_llms.ensembles.mcp.settings import LOADING_VARIABLES, SECRET

MODULE = "vibe_llms.ensembles.mcp"
_TABLES = ("mcpServers", "servers", "context_servers")
_KINDS = {
    **dict.fromkeys(("stdio", "local"), "stdio"),
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "remote"), "http"),
    "sse": "sse",
}
#: Keys of a server that are read; a note mentions all others.
_READ = frozenset(
    {
        *("command", "args", "env", "cwd", "type", "transport", "url", "serverUrl", "httpUrl"),
        *("headers", "disabled", "enabled", "name", "description"),
    }
)
# Extensions of JSON to remove: comments, and a comma before the end of a table. Strings stay. An
# unterminated string or comment extends to the end, so no part is read twice.
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*"?)|,(?=\s*[\]}])')
#: Variables that editors replace themselves; they are not environment variables.
_EDITORS = frozenset({"workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "execPath"})
_FOREIGN = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class ImportedServer(Struct, frozen=True):
    """A server from another program's file: its new row, and notes about it.

    If `problem` is not empty, it cannot be imported.
    """

    name: str
    row: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    problem: str = ""


class _EntryInvalid(ValueError):
    """Raised for a server that a row cannot describe."""


def read_servers(text: str) -> list[ImportedServer]:
    """Read the servers in a file of another program; raise `RequestError` if there are none."""
    try:
        text = text.removeprefix("\ufeff")
        for extra in (_COMMENT, _COMMA):
            text = extra.sub(lambda found: found[1] or "", text)
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not valid JSON: {error}") from error
    servers = _find_table(tree)
    taken: set[str] = set()
    found: list[ImportedServer] = []
    for given, entry in servers.items():
        name = _produce_name(given)
        if name in taken:
            found.append(
                ImportedServer(given, {}, problem=f"another server is also called {name!r}")
            )
            continue
        taken.add(name)
        notes = [] if name == given else [f"it was called {given!r}"]
        try:
            row = _produce_row(entry, notes)
        except _EntryInvalid as error:
            found.append(ImportedServer(name, {}, tuple(notes), str(error)))
        else:
            found.append(ImportedServer(name, row, tuple(notes)))
    return found


def survey_keys(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the secrets written in a row, with the names of their headers or variables."""
    for table in ("headers", "environment"):
        for key, value in row.get(table, {}).items():
            if SECRET.search(key) and VARIABLE.search(str(value)) is None:
                yield key, str(value)


def remember_row(row: Mapping[str, Any]) -> None:
    """Redact the keys in a row from all text from now on."""
    for _, value in survey_keys(row):
        remember(value.rpartition(" ")[2])


def is_name(name: str) -> bool:
    """Return True if a row may have this name; the names of its tools begin with it."""
    return _NAME.fullmatch(name) is not None


def _find_table(tree: object) -> Mapping[str, Any]:
    places = [tree]
    if isinstance(tree, dict):
        places.append(tree.get("mcp"))
    for place in places:
        for key in _TABLES:
            if isinstance(place, dict) and isinstance(found := place.get(key), dict) and found:
                return found
    raise RequestError(
        f"no servers found; expected a nonempty table {' or '.join(map(repr, _TABLES))}"
    )


def _produce_name(given: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "-", given).strip("-")[:64] or "server"
    return name if _NAME.fullmatch(name) else f"server-{name}"[:64]


def _produce_row(entry: object, notes: list[str]) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _EntryInvalid("it is not a table")
    reader = _Reader(entry, notes)
    row: dict[str, Any] = {"module": MODULE}
    if entry.get("disabled") is True or entry.get("enabled") is False:
        row["enabled"] = False
    kind = reader.text("type") or reader.text("transport")
    if kind and kind not in _KINDS:
        raise _EntryInvalid(f"its type {kind!r} is unknown")
    url = reader.text("url") or reader.text("serverUrl") or reader.text("httpUrl")
    command = reader.text("command")
    if bool(url) == bool(command):
        raise _EntryInvalid("it has neither a command nor a url" if not url else "it has two URLs")
    if command:
        row["command"] = [command, *reader.texts("args")]
        if environment := reader.table("env"):
            for name in LOADING_VARIABLES & environment.keys():
                del environment[name]
                notes.append(f"{name} is omitted: it can make the program load other code")
            row["environment"] = environment
        if folder := reader.text("cwd"):
            row["folder"] = folder
    else:
        row["url"] = url
        if kind and _KINDS[kind] == "sse":
            row["transport"] = "sse"
        if headers := reader.table("headers"):
            row["headers"] = headers
    for key in entry.keys() - _READ:
        notes.append(f"{key} is omitted")
    notes.sort()
    return {key: value for key, value in row.items() if value != {}}


class _Reader:
    """A reader of a server's table that converts its variables to this library's form."""

    def __init__(self, entry: Mapping[str, Any], notes: list[str]) -> None:
        self._entry = entry
        self._notes = notes

    def text(self, key: str) -> str:
        """Return a string; empty if missing."""
        value = self._entry.get(key) or ""
        if not isinstance(value, str):
            raise _EntryInvalid(f"its {key} is not text")
        return self._translate(value)

    def texts(self, key: str) -> list[str]:
        """Return a list of strings; empty if missing."""
        values = self._entry.get(key) or []
        if not isinstance(values, list):
            raise _EntryInvalid(f"its {key} is not a list")
        return [self._translate(_plain(value, key)) for value in values]

    def table(self, key: str) -> dict[str, str]:
        """Return a table of strings; null values are omitted."""
        values = self._entry.get(key) or {}
        if not isinstance(values, dict):
            raise _EntryInvalid(f"its {key} is not a table")
        return {
            name: self._translate(_plain(value, key))
            for name, value in values.items()
            if value is not None
        }

    def _translate(self, text: str) -> str:
        return _FOREIGN.sub(lambda found: self._name_variable(found[1]), text)

    def _name_variable(self, words: str) -> str:
        kind, _, rest = words.partition(":")
        match kind:
            case "env":
                words = rest
            case "input":
                words = re.sub(r"\W+", "_", rest).upper()
                words = words if re.match(r"[A-Z_]", words) else f"INPUT_{words}"
                self._notes.append(f"it asks for {rest!r}: set the variable {words}")
            case "userHome":
                words = "HOME"
            case "pathSeparator" | "/":
                return "/"
            case _:
                pass
        if words in _EDITORS or VARIABLE.fullmatch(f"${{{words}}}") is None:
            raise _EntryInvalid(f"it uses ${{{words}}}, which is not supported; replace it")
        return f"${{{words}}}"


def _plain(value: object, key: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            raise _EntryInvalid(f"its {key} contains a value that is not text")
