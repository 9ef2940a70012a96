"""The command `mcp`: manages the rows of MCP servers, tests them, and approves changed tools."""

from __future__ import annotations

import difflib
import json
import re
import sys
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vibe_llms.base.configuration import (
    Configuration,
    load_configuration,
    parse_settings,
    parse_value,
    read_settings,
)
from vibe_llms.base.configuration_file import add_rows, draw_rows, remove_row
from vibe_llms.base.exceptions import EnsembleFailed, RequestError, VibeLlmsError
from vibe_llms.base.redaction import redact
from vibe_llms.cli.completion import complete_paths, complete_servers
from vibe_llms.cli.failures import message_of, status_of
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import note, write, write_json, write_lines, write_row
from vibe_llms.cli.text import pad
from vibe_llms.cli.tools import open_ensembles, open_one
from vibe_llms.conversations.attachments import read_bytes
from vibe_llms.conversations.hosts import ENSEMBLES, EnsembleConfiguration, access_ensemble
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.ensembles.mcp.importing import (
    MODULE,
    is_name,
    read_servers,
    remember_row,
    survey_keys,
)
from vibe_llms.ensembles.mcp.tool_lists import ToolListFile
from vibe_llms.ensembles.pins import Definition, Pins, ToolChange
from vibe_llms.invocation.ensembles import Ensemble, OutsideEnsemble
from vibe_llms.messages.hidden import one_line, visible

_STANDARD_INPUT = "-"
_URL = re.compile(r"https?://", re.IGNORECASE)
_REMEDIES = {
    "opening": "check that this works on its own: {origin}",
    "listing": "allow it more time (list-seconds), or report it to its authors",
}


@click.group("mcp")
def mcp() -> None:
    """Manage the MCP servers of your configuration, or be one."""


@mcp.command("list")
@json_option
def list_servers(as_json: bool) -> None:
    """List servers with their commands or URLs; none is started."""
    found = [_describe_row(name, row) for name, row in _survey_rows(load_configuration()).items()]
    if as_json:
        write_json(redact(json.dumps(found)))
        return
    for one in found:
        off = "" if one["enabled"] else "(not enabled) "
        write_row(one["name"], visible(redact(f"{off}{one['origin']}")), cells=16)
    if not found:
        note("no servers yet; add one: vibe-llms mcp add NAME -- COMMAND")


@mcp.command("add", context_settings={"ignore_unknown_options": False})
@click.argument("name")
@click.argument("command", nargs=-1, metavar="[URL | -- COMMAND...]")
@click.option("--url", default="", metavar="URL", help="Use the server at URL, like NAME URL.")
@click.option("--transport", type=click.Choice(["http", "sse"]), help="Set the transport at URL.")
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable for it.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Send it a header.")
@click.option("--folder", default="", metavar="PATH", help="Run its command in this folder.")
@click.option(
    "--approval",
    type=click.Choice(["always", "allow", "ask", "deny"]),
    help="Set the approval of all its tools.",
)
@click.option(
    "--set",
    "others",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set another key of its row.",
)
@click.option("--force", is_flag=True, help="Replace a server with this name.")
def add_server(name: str, force: bool, **values: Any) -> None:
    """Add a server: vibe-llms mcp add clock -- python clock_server.py

    A server elsewhere: vibe-llms mcp add wiki https://example.org/mcp

    Values can refer to environment variables, so that no key is written down: --header
    'Authorization=Bearer ${TOKEN}'
    """
    if not is_name(name):
        raise RequestError(f"{name!r} is not a valid name; use letters, digits, _ and -")
    command, url = list[str](values["command"]), values["url"]
    if not url and command and _URL.match(command[0]):
        url = command.pop(0)
    if bool(command) == bool(url):
        raise click.UsageError("Give either a URL, or a command after --.")
    row = {
        "module": MODULE,
        "command": command,
        "url": url,
        "transport": values["transport"],
        "environment": dict(_split(pair, "--env") for pair in values["environment"]),
        "headers": dict(_split(pair, "--header") for pair in values["headers"]),
        "folder": values["folder"],
        "approval": values["approval"],
    }
    others = dict(_split(pair, "--set") for pair in values["others"])
    row |= {key: parse_value(value) for key, value in others.items()}
    rows = {name: {key: value for key, value in row.items() if value not in ("", None, [], {})}}
    configuration = load_configuration()
    _check(configuration, rows, force=force)
    add_rows(configuration.places.configuration_file, ENSEMBLES, rows)
    _print_keys(rows)
    note(f"added; to test it: vibe-llms mcp test {name}")


@mcp.command("import")
@click.argument("file", shell_complete=complete_paths)
@click.option("--force", is_flag=True, help="Replace servers with the same names.")
@yes_option
def import_servers(file: str, force: bool, yes: bool) -> int:
    """Import servers from another program.

    FILE is its configuration; - reads standard input. Reads the JSON of Claude, Cursor, VS Code
    and others: a table mcpServers, servers or context_servers. Shows first what it will write.
    """
    data = sys.stdin.buffer.read() if file == _STANDARD_INPUT else read_bytes(Path(file))
    found = read_servers(data.decode("utf-8", "replace"))
    rows = {one.name: one.row for one in found if not one.problem}
    configuration = load_configuration()
    _check(configuration, rows, force=force)
    for row in rows.values():
        remember_row(row)
    for one in found:
        for words in (one.problem and f"skipped: {one.problem}", *one.notes):
            if words:
                note(one_line(f"note: {one.name}: {words}"))
    if not rows:
        raise RequestError("no server can be added")
    note(redact(draw_rows(ENSEMBLES, rows)).rstrip())
    _print_keys(rows)
    file_of_rows = configuration.places.configuration_file
    _confirm(f"Add {'it' if len(rows) == 1 else 'them'} to {file_of_rows}?", yes=yes)
    add_rows(file_of_rows, ENSEMBLES, rows)
    note(f"added {', '.join(rows)}; to test them: vibe-llms mcp test")
    return 0


@mcp.command("remove")
@click.argument("name", shell_complete=complete_servers)
def remove_server(name: str) -> None:
    """Remove a server and the approvals of its tools."""
    configuration = load_configuration()
    if name not in _survey_rows(configuration):
        raise RequestError(f"no server {name!r}; see: vibe-llms mcp list")
    file = configuration.places.configuration_file
    if name not in parse_settings(read_settings(file), file).get(ENSEMBLES, {}):
        raise RequestError(
            f"{name!r} is not in {file}; to turn it off: [ensembles.{name}] enabled = false"
        )
    row = configuration.row(ENSEMBLES, name)
    one = access_ensemble(row, EnsembleConfiguration(configuration, row.settings))
    remove_row(file, ENSEMBLES, name)
    state = configuration.places.state
    if isinstance(one, OutsideEnsemble):
        Pins(state, name, one.origin).remove()
    ToolListFile(state, name).forget()
    note(f"removed {name}")


@mcp.command("test")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_servers)
@json_option
@asynchronous
async def test_servers(names: tuple[str, ...], as_json: bool) -> int:
    """Start servers to test them.

    Tests all servers, or those that you name. Prints the version, the number of tools, and the
    time to start. The exit status is that of the first failure.
    """
    reports: list[dict[str, Any]] = []
    status = 0
    async with open_ensembles() as ensembles:
        rows = _survey_rows(load_configuration())
        for name in names or [name for name in ensembles.survey_names() if name in rows]:
            report, failure = await _probe(ensembles, name)
            reports.append(report)
            status = status or (0 if failure is None else status_of(failure))
            if not as_json:
                write_lines(visible(redact(_draw_report(report))), " " * 17)
    if as_json:
        write_json(redact(json.dumps(reports)))
    elif not reports:
        note("no servers yet; add one: vibe-llms mcp add NAME -- COMMAND")
    return status


@mcp.command("serve")
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@click.option("--tools", metavar="NAME,...", help="Offer only these tools, such as chat,wait.")
@asynchronous
async def serve_client(read_only: bool, tools: str | None) -> None:
    """Be an MCP server: offer conversations, memory and documents to a client.

    The client starts this command, and talks to it over standard input and output. Turns are runs:
    they go on when the client leaves.
    """
    from vibe_llms.cli.mcp_serving import serve

    names = None if tools is None else [one for part in tools.split(",") if (one := part.strip())]
    await serve(names, read_only=read_only)


@mcp.command("approve")
@click.argument("name", shell_complete=complete_servers)
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@yes_option
@asynchronous
async def approve_changes(name: str, tools: tuple[str, ...], yes: bool) -> int:
    """Review and approve changed tools of the server NAME.

    Tools that changed since they were approved are blocked until then. Invisible characters are
    shown as codes.
    """
    async with open_ensembles() as ensembles:
        one: Ensemble = await open_one(ensembles, name)
        guard = ensembles.guard(one)
        if guard is None:
            raise RequestError(f"the tools of {name!r} are not pinned, so none is blocked")
        known = {tool.name for tool in one.invokers}
        wanted = {tool if "/" in tool else f"{name}/{tool}" for tool in tools}
        if unknown := wanted - known:
            raise RequestError(f"{name!r} has no tool {', '.join(sorted(unknown))}")
        changes = [c for c in guard.changes if not wanted or c.offered.name in wanted]
        if not changes:
            note("no tool has changed")
            return 0
        for change in changes:
            write(sys.stdout, draw_change(change))
        _confirm("Approve the changes?", yes=yes)
        guard.pins.approve(changes)
    note(f"approved: {', '.join(change.offered.name for change in changes)}")
    return 0


COMMANDS: dict[str, click.Command] = {"mcp": mcp}


async def _probe(ensembles: Ensembles, name: str) -> tuple[dict[str, Any], VibeLlmsError | None]:
    """Open a server; return the report, and the error if it cannot be used."""
    start = time.monotonic()
    found = (await ensembles.attempt([name]))[name]
    seconds = round(time.monotonic() - start, 3)
    if not isinstance(found, VibeLlmsError):
        tools = ensembles.survey_invokers(found)
        details = dict(found.details) if isinstance(found, OutsideEnsemble) else {}
        blocked = [tool.name for tool in tools if tool.blocked]
        report = {"name": name, "ok": True, **details, "tools": len(tools), "seconds": seconds}
        return {**report, "blocked": blocked} if blocked else report, None
    error = {"kind": found.kind, "message": message_of(found)}
    if isinstance(found, EnsembleFailed) and found.phase:
        row = load_configuration().tree[ENSEMBLES].get(name, {})
        error["phase"] = found.phase
        error["remedy"] = _REMEDIES.get(found.phase, "").format(origin=_describe_origin(row))
    return {"name": name, "ok": False, "seconds": seconds, "error": error}, found


def _draw_report(report: Mapping[str, Any]) -> str:
    name = pad(report["name"], 16)
    if not report["ok"]:
        error = report["error"]
        remedy = error.get("remedy")
        return f"{name} {one_line(error['message'])}" + (f"\n{'':<17}{remedy}" if remedy else "")
    spoken = [f"{key} {report[key]}" for key in ("server", "protocol") if report.get(key)]
    words = [*spoken, f"{report['tools']} tools", f"opened in {report['seconds']:.2f}s"]
    if blocked := report.get("blocked"):
        words.append(f"{len(blocked)} blocked: vibe-llms mcp approve {report['name']}")
    return f"{name} ok: {', '.join(words)}"


def draw_change(change: ToolChange) -> str:
    """Draw the changes of a tool, line by line; invisible and new characters as codes."""
    before, after = (_draw_definition(one) for one in (change.approved, change.offered))
    strange = {c for c in after if not c.isascii()} - set(before)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "approved", "offered now", lineterm="", n=2
    )
    return "".join(f"{_reveal(line, strange)}\n" for line in (change.approved.name, *lines))


def _draw_definition(definition: Definition) -> str:
    lines = [f"name: {definition.name}", "description:"]
    lines += [f"    {line}" for line in definition.description.split("\n")]
    for title, tree in (
        ("arguments", definition.arguments_schema),
        ("annotations", definition.annotations),
    ):
        drawn = json.dumps(tree, indent=4, ensure_ascii=False, sort_keys=True)
        lines.append(f"{title}: {drawn}")
    return "\n".join(lines)


def _reveal(text: str, strange: set[str]) -> str:
    """Replace invisible and strange characters by codes."""
    return "".join(f"\\u{{{ord(c):04x}}}" if c in strange or _is_hidden(c) else c for c in text)


def _is_hidden(character: str) -> bool:
    if character.isascii():
        return not character.isprintable()
    # Marks are visible only together with the character before them.
    return not character.isprintable() or unicodedata.category(character).startswith("M")


def _confirm(question: str, *, yes: bool) -> None:
    if not confirm(question, yes=yes):
        raise click.Abort


def _survey_rows(configuration: Configuration) -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of servers, without other ensembles."""
    every: Mapping[str, Mapping[str, Any]] = configuration.tree.get(ENSEMBLES, {})
    return {name: row for name, row in every.items() if row.get("module") == MODULE}


def _describe_row(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    remember_row(row)
    return {
        "name": name,
        "enabled": row.get("enabled", True) is not False,
        "origin": _describe_origin(row),
        "command": row.get("command", []),
        "url": row.get("url", ""),
        "approval": row.get("approval"),
    }


def _describe_origin(row: Mapping[str, Any]) -> str:
    return str(row.get("url") or " ".join(map(str, row.get("command", []))))


def _check(
    configuration: Configuration, rows: Mapping[str, Mapping[str, Any]], *, force: bool
) -> None:
    """Raise an error for rows that clash with existing ones, or that are invalid."""
    clashes = [name for name in rows if name in configuration.tree.get(ENSEMBLES, {})]
    if clashes and not force:
        raise RequestError(f"{', '.join(map(repr, clashes))} already exists; --force replaces it")
    for name, row in rows.items():
        settings = {key: value for key, value in row.items() if key not in ("module", "enabled")}
        trial = load_configuration(
            configuration.places, environment={}, overrides={ENSEMBLES: {name: {**row}}}
        )
        found = trial.row(ENSEMBLES, name)
        access_ensemble(found, EnsembleConfiguration(trial, settings))


def _print_keys(rows: Mapping[str, Mapping[str, Any]]) -> None:
    for name, row in rows.items():
        for key, _ in survey_keys(row):
            note(
                f"note: {name}: {key} contains a key, which is written to config.toml, readable by "
                f"you alone; use '${{NAME}}' to read an environment variable instead"
            )


def _split(pair: str, option: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise click.UsageError(f"{option} needs NAME=VALUE, not {pair!r}.")
    return name, value
