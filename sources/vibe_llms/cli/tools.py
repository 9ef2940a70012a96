"""The command `tools`: lists, shows and calls the tools of ensembles, without a model."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import click

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import InvokerInvalid, RequestError, VibeLlmsError
from vibe_llms.base.folders import storage_errors
from vibe_llms.base.keys import KeyVault
from vibe_llms.cli.completion import (
    complete_ensembles,
    complete_paths,
    complete_tools,
    remember_tools,
)
from vibe_llms.cli.failures import explain, status_of
from vibe_llms.cli.function_files import open_functions
from vibe_llms.cli.options import functions_option
from vibe_llms.cli.questions import Questions
from vibe_llms.cli.running import asynchronous, interruptible
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import (
    aside,
    is_terminal,
    note,
    without_escapes,
    write,
    write_json,
    write_lines,
    write_row,
)
from vibe_llms.cli.text import pad, spell
from vibe_llms.cli.tool_questions import produce_elicitor
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import Invoker, describe, find_invoker, gather_invokers
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import Content, TextualContent
from vibe_llms.messages.events import Event, InvocationProgressEvent
from vibe_llms.messages.hidden import one_line, visible

_FAILED = 1


@click.group("tools")
def tools() -> None:
    """List, show and call tools, without a model.

    An ensemble is a named group of tools, such as an MCP server.
    """


@tools.command("list")
@click.argument("names", nargs=-1, metavar="[ENSEMBLE]...", shell_complete=complete_ensembles)
@functions_option
@yes_option
@json_option
@asynchronous
async def list_tools(
    names: tuple[str, ...], functions: tuple[str, ...], yes: bool, as_json: bool
) -> int:
    """List tools and their approval.

    Lists the tools of all your ensembles, or of those and the files that you name. An ensemble
    that cannot be opened is reported, and the others are still listed.
    """
    found: list[Invoker] = []
    failures: list[VibeLlmsError] = []
    for file in open_functions(load_configuration(), functions, yes=yes):
        found += file.invokers
    async with open_ensembles() as ensembles:
        wanted = names if names or functions else ensembles.survey_names()
        opened = await ensembles.attempt(wanted)
        others = (
            []
            if names or functions
            else [n for n in ensembles.survey_names(shipped=True) if n not in opened]
        )
        for one in opened.values():
            if isinstance(one, VibeLlmsError):
                failures.append(one)
            else:
                found += ensembles.survey_invokers(one)
    _remember(one for one in found if one.ensemble in opened)
    if as_json:
        write_json(json.dumps([describe_tool(one) for one in found]))
    for invoker in () if as_json else found:
        write_row(*draw_tool(invoker))
    for failure in failures:
        note(f"vibe-llms: {explain(failure)}")
    if others and not as_json:
        note(f"(not opened: {', '.join(others)}; to open one: vibe-llms tools list NAME)", dim=True)
    if not opened and not functions and not as_json:
        note("no ensembles yet; add a server: vibe-llms mcp add NAME -- COMMAND")
    return status_of(failures[0]) if failures else 0


@tools.command("show")
@click.argument("name", shell_complete=complete_tools)
@functions_option
@yes_option
@json_option
@asynchronous
async def show_tool(name: str, functions: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Show a tool: its description, arguments and approval."""
    async with open_ensembles() as ensembles:
        files = open_functions(load_configuration(), functions, yes=yes)
        invoker = await _find(ensembles, name, files)
    if as_json:
        write_json(json.dumps(describe_tool(invoker)))
        return 0
    lines = [f"{visible(spell(invoker.name))}: {state_of(invoker)}"]
    if invoker.blocked:
        lines.append(f"({invoker.blocked})")
    marks = [
        "returns untrusted text" if invoker.outside else "",
        "may send data out" if invoker.sends else "",
        f"may take {invoker.timeout_seconds:g} s" if invoker.timeout_seconds else "",
    ]
    if any(marks):
        lines.append("; ".join(mark for mark in marks if mark))
    if invoker.description:
        lines += ["", invoker.description]
    lines += ["", json.dumps(invoker.arguments_schema, indent=2, ensure_ascii=False)]
    if invoker.annotations:
        lines += ["", json.dumps(invoker.annotations, indent=2, ensure_ascii=False)]
    write_lines(visible("\n".join(lines)))
    return 0


@tools.command("call")
@click.argument("name", shell_complete=complete_tools)
@click.argument("arguments", default="{}")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    shell_complete=complete_paths,
    help="Write the image or file that it returns to PATH.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, images and files included.")
@click.option("-q", "--quiet", is_flag=True, help="Hide progress.")
@functions_option
@yes_option
@asynchronous
async def call_tool(
    name: str,
    arguments: str,
    output: str | None,
    as_json: bool,
    quiet: bool,
    functions: tuple[str, ...],
    yes: bool,
) -> int:
    """Call a tool.

    ARGUMENTS is a JSON object; - reads standard input. A tool whose approval is `ask` runs
    without a question. Denied and blocked tools do not run. Exits with status 1 if the tool fails.
    """
    if arguments == "-":
        with interruptible():
            arguments = sys.stdin.read()
    kept: list[ResultCanister] = []

    async def keep(results: Sequence[ResultCanister]) -> None:
        kept.extend(results)

    def handle(event: Event) -> None:
        if isinstance(event, InvocationProgressEvent) and not quiet:
            note(f"· {one_line(event.text)}", dim=True)

    configuration = load_configuration()
    async with open_ensembles() as ensembles:
        files = open_functions(configuration, functions, yes=yes)
        invoker = await _find(ensembles, name, files)
        if invoker.blocked or invoker.approval == "deny":
            raise RequestError(
                f"{invoker.name}: {invoker.blocked}"
                if invoker.blocked
                else f"{invoker.name} is denied by your configuration; see: vibe-llms config show"
            )
        limits = configuration.tools
        await execute(
            [InvocationCanister(name=invoker.name, arguments=arguments)],
            Execution(
                invokers={invoker.name: invoker},
                event_handler=handle,
                keep=keep,
                admit=_admit,
                timeout_seconds=limits.timeout_seconds,
                # A user wants the whole result.
                shown_bytes=limits.kept_bytes,
                kept_bytes=limits.kept_bytes,
            ),
        )
    (result,) = kept
    if output is not None and not result.failed:
        _save(result.contents, Path(output))
    if as_json:
        contents = [_describe_content(content) for content in result.contents]
        answer = {"tool": invoker.name, "failed": result.failed, "contents": contents}
        write_json(json.dumps(answer))
    elif result.failed:
        aside(f"vibe-llms: {invoker.name}: {result.text.rstrip()}\n")
    else:
        _print(result, saved=output is not None)
    return _FAILED if result.failed else 0


COMMANDS: dict[str, click.Command] = {"tools": tools}


def _remember(invokers: Iterable[Invoker]) -> None:
    texts = {one.name: one_line(one.description.partition("\n")[0]) for one in invokers}
    if texts:
        remember_tools(load_configuration().places.state, texts)


@asynccontextmanager
async def open_ensembles() -> AsyncIterator[Ensembles]:
    """Open the ensembles of the configuration inside the block."""
    configuration = load_configuration()
    host = EnsembleHost(
        elicitor=produce_elicitor(Questions()),
        vault=KeyVault(configuration.places.keys_file),
    )
    ensembles = Ensembles(configuration, host)
    try:
        yield ensembles
    finally:
        await ensembles.close()


async def open_one(ensembles: Ensembles, name: str) -> Ensemble:
    """Open an ensemble by the name of its row, or raise the error that prevents it."""
    found = (await ensembles.attempt([name]))[name]
    if isinstance(found, VibeLlmsError):
        raise found
    return found


def draw_tool(invoker: Invoker) -> tuple[str, str]:
    """Draw a tool as a row: name and approval, and its summary."""
    head = visible(f"{pad(spell(invoker.name), 24)} {state_of(invoker):<8}")
    return head, visible(summarize(invoker))


def summarize(invoker: Invoker) -> str:
    """Return the first line of the description of a tool."""
    return one_line(invoker.description.partition("\n")[0])


def state_of(invoker: Invoker) -> str:
    """Return the approval of a tool: `allow`, `always`, `ask`, `deny` or `blocked`."""
    return "blocked" if invoker.blocked else invoker.approval


def describe_tool(invoker: Invoker) -> dict[str, Any]:
    """Describe a tool as JSON."""
    return {
        **describe(invoker),
        "ensemble": invoker.ensemble,
        "aliases": list(invoker.aliases),
        "annotations": dict(invoker.annotations),
        "approval": invoker.approval,
        "blocked": invoker.blocked,
        "outside": invoker.outside,
        "sends": invoker.sends,
        "timeout_seconds": invoker.timeout_seconds,
    }


async def _admit(_: InvocationCanister, __: Invoker) -> str:
    """Admit the call: the user who types it approves it."""
    return ""


async def _find(ensembles: Ensembles, name: str, files: Sequence[FunctionEnsemble] = ()) -> Invoker:
    """Find a tool by its name, with or without its ensemble if that is unique."""
    own = gather_invokers(chain.from_iterable(one.invokers for one in files))
    if (found := find_invoker(own, name)) is not None:
        return found
    rows = ensembles.survey_names()
    named = [row for row in ensembles.survey_names(shipped=True) if name.startswith(f"{row}/")]
    opened = await ensembles.attempt(named or rows)
    invokers: dict[str, Invoker] = {}
    for one in opened.values():
        if not isinstance(one, VibeLlmsError):
            invokers.update({tool.name: tool for tool in ensembles.survey_invokers(one)})
        elif named:
            raise one
    _remember(invokers.values())
    invokers.update(own)
    if (found := find_invoker(invokers, name)) is not None:
        return found
    short = [one for one in invokers.values() if one.name.partition("/")[2] == name]
    if len(short) == 1:
        return short[0]
    known = ", ".join([one.name for one in short] or invokers) or "none"
    raise InvokerInvalid(
        f"tool {name!r} not found; known tools: {known}; see: vibe-llms tools list"
    )


def _print(result: ResultCanister, *, saved: bool) -> None:
    for content in result.contents:
        match content:
            case TextualContent(data=str(text)):
                whole = content.whole if isinstance(content.whole, str) else text
                whole += "" if whole.endswith("\n") else "\n"
                # A file or a program may show the output on a terminal later.
                show = visible if is_terminal(sys.stdout) else without_escapes
                write(sys.stdout, show(whole))
            case _ if not saved or not is_terminal(sys.stdout):
                note(f"({_measure(content)}; -o PATH saves it, --json prints it)", dim=True)
            case _:
                pass


def _save(contents: Iterable[Content], path: Path) -> None:
    for content in contents:
        if isinstance(data := getattr(content, "data", None), bytes):
            with storage_errors(path):
                path.write_bytes(data)
            note(f"{path}: {_measure(content)}")
            return
    raise RequestError("the tool returned no image or file")


def _measure(content: Content) -> str:
    data = getattr(content, "data", b"")
    return f"{getattr(content, 'mimetype', type(content).__name__)}, {len(data):,} bytes"


def _describe_content(content: Content) -> Mapping[str, Any]:
    data = getattr(content, "data", None)
    if isinstance(content, TextualContent):
        whole = content.whole if isinstance(content.whole, str) else data
        return {"kind": "text", "text": whole}
    encoded = base64.b64encode(data).decode() if isinstance(data, bytes) else None
    return {
        "kind": type(content).__name__.removesuffix("Content").lower(),
        "mimetype": getattr(content, "mimetype", ""),
        "data": encoded,
    }
