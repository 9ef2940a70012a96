"""The command `tools`: what the configured ensembles offer, shown and called without a model."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from vibe_llms.cli.answering import produce_elicitor
from vibe_llms.cli.completion import complete_ensembles, complete_paths, complete_tools
from vibe_llms.cli.failures import explain, status_of
from vibe_llms.cli.layout import pad
from vibe_llms.cli.offers import remember_tools
from vibe_llms.cli.questions import Questions
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import (
    aside,
    is_terminal,
    note,
    one_line,
    shown,
    visible,
    write,
    write_json,
)
from vibe_llms.configuration import load_configuration
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.ensembles.interfaces import Ensemble, EnsembleHost
from vibe_llms.events import Event, InvocationProgressEvent
from vibe_llms.exceptions import InvokerInvalid, RequestError, VibeLlmsError
from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import Invoker, describe, find_invoker
from vibe_llms.keys import KeyVault
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import Content, TextualContent
from vibe_llms.storage.files import storage_errors

_FAILED = 1


@click.group("tools", context_settings={"help_option_names": ["-h", "--help"]})
def tools() -> None:
    """List, show and call the tools of the ensembles that the configuration names."""


@tools.command("list")
@click.argument("ensembles", nargs=-1, metavar="[ENSEMBLE]...", shell_complete=complete_ensembles)
@click.option("--json", "as_json", is_flag=True, help="An array of objects.")
def list_tools(ensembles: tuple[str, ...], as_json: bool) -> int:
    """List the tools of the ensembles that you have set up, or that you name; and whether they ask.

    An ensemble that cannot be opened is told, and hides no other.
    """
    return run(_list(ensembles, as_json))


@tools.command("show")
@click.argument("name", shell_complete=complete_tools)
@click.option("--json", "as_json", is_flag=True, help="One object.")
def show_tool(name: str, as_json: bool) -> int:
    """Show what is known of a tool: what models are told of it, and what holds for its calls."""
    return run(_show(name, as_json))


@tools.command("call")
@click.argument("name", shell_complete=complete_tools)
@click.argument("arguments", default="{}")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    shell_complete=complete_paths,
    help="Write the picture or the file that it returns here.",
)
@click.option("--json", "as_json", is_flag=True, help="One object, pictures and files included.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
def call_tool(name: str, arguments: str, output: str | None, as_json: bool, quiet: bool) -> int:
    """Call the tool NAME with ARGUMENTS, a JSON object, or - for standard input; no model is asked.

    Tools that ask run, since you call them yourself; those that are denied or blocked do not.
    Leaves with status 1 where the tool fails.
    """
    text = sys.stdin.read() if arguments == "-" else arguments
    return run(_call(name, text, output, as_json=as_json, quiet=quiet))


COMMANDS: dict[str, click.Command] = {"tools": tools}


def _remember(invokers: Iterable[Invoker]) -> None:
    texts = {one.name: one_line(one.description.partition("\n")[0]) for one in invokers}
    if texts:
        remember_tools(load_configuration().places.state, texts)


@asynccontextmanager
async def open_ensembles() -> AsyncIterator[Ensembles]:
    """The ensembles of the configuration, closed with the block."""
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
    """An ensemble by the name of its row; raises why it cannot be opened."""
    found = (await ensembles.attempt([name]))[name]
    if isinstance(found, VibeLlmsError):
        raise found
    return found


def draw_tool(invoker: Invoker) -> str:
    """A tool in a line: its name, whether it asks, and what it does."""
    return visible(f"{pad(invoker.name, 24)} {state_of(invoker):<8} {summarize(invoker)}").rstrip()


def summarize(invoker: Invoker) -> str:
    """What a tool does, in a line."""
    return one_line(invoker.description.partition("\n")[0])


def state_of(invoker: Invoker) -> str:
    """What happens when the tool is called: `allow`, `ask`, `deny` or `blocked`."""
    return "blocked" if invoker.blocked else invoker.approval


def describe_tool(invoker: Invoker) -> dict[str, Any]:
    """All that is known of a tool, as `--json` prints it."""
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


async def _list(names: Sequence[str], as_json: bool) -> int:
    found: list[Invoker] = []
    failures: list[VibeLlmsError] = []
    async with open_ensembles() as ensembles:
        opened = await ensembles.attempt(names or ensembles.survey_names())
        others = (
            [] if names else [n for n in ensembles.survey_names(shipped=True) if n not in opened]
        )
        for one in opened.values():
            if isinstance(one, VibeLlmsError):
                failures.append(one)
            else:
                found += ensembles.survey_invokers(one)
    _remember(found)
    if as_json:
        write_json(json.dumps([describe_tool(one) for one in found]))
    for invoker in () if as_json else found:
        write(sys.stdout, draw_tool(invoker) + "\n")
    for failure in failures:
        note(f"vibe-llms: {explain(failure)}")
    if others and not as_json:
        note(f"(not opened: {', '.join(others)}; vibe-llms tools list NAME opens one)", dim=True)
    if not opened and not as_json:
        note("no ensembles of yours yet; add one: vibe-llms mcp add NAME -- COMMAND")
    return status_of(failures[0]) if failures else 0


async def _show(name: str, as_json: bool) -> int:
    async with open_ensembles() as ensembles:
        invoker = await _find(ensembles, name)
    if as_json:
        write_json(json.dumps(describe_tool(invoker)))
        return 0
    lines = [draw_tool(invoker).partition("  ")[0] + f": {state_of(invoker)}"]
    if invoker.blocked:
        lines.append(f"({invoker.blocked})")
    marks = [
        "what it returns is text from outside" if invoker.outside else "",
        "it sends data out" if invoker.sends else "",
        f"it may take {invoker.timeout_seconds:g} s" if invoker.timeout_seconds else "",
    ]
    if any(marks):
        lines.append("; ".join(mark for mark in marks if mark))
    if invoker.description:
        lines += ["", invoker.description]
    lines += ["", json.dumps(invoker.arguments_schema, indent=2, ensure_ascii=False)]
    if invoker.annotations:
        lines += ["", json.dumps(invoker.annotations, indent=2, ensure_ascii=False)]
    write(sys.stdout, visible("\n".join(lines)) + "\n")
    return 0


async def _call(
    name: str, arguments: str, output: str | None, *, as_json: bool, quiet: bool
) -> int:
    kept: list[ResultCanister] = []

    async def keep(results: Sequence[ResultCanister]) -> None:
        kept.extend(results)

    def tell(event: Event) -> None:
        if isinstance(event, InvocationProgressEvent) and not quiet:
            note(f"· {one_line(event.text)}", dim=True)

    configuration = load_configuration()
    async with open_ensembles() as ensembles:
        invoker = await _find(ensembles, name)
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
                event_handler=tell,
                keep=keep,
                admit=_admit,
                timeout_seconds=limits.timeout_seconds,
                # A person wants the whole of it.
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


async def _admit(_: InvocationCanister, __: Invoker) -> str:
    """Whoever types the call has approved it."""
    return ""


async def _find(ensembles: Ensembles, name: str) -> Invoker:
    """A tool by its name, or by the name of the only tool that has it in any ensemble."""
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
    if (found := find_invoker(invokers, name)) is not None:
        return found
    short = [one for one in invokers.values() if one.name.partition("/")[2] == name]
    if len(short) == 1:
        return short[0]
    known = ", ".join([one.name for one in short] or invokers) or "none"
    raise InvokerInvalid(f"there is no tool {name!r}; there are {known}: vibe-llms tools list")


def _print(result: ResultCanister, *, saved: bool) -> None:
    for content in result.contents:
        match content:
            case TextualContent(data=str(text)):
                whole = content.whole if isinstance(content.whole, str) else text
                write(sys.stdout, shown(whole if whole.endswith("\n") else f"{whole}\n"))
            case _ if not saved or not is_terminal(sys.stdout):
                note(f"({_measure(content)}; -o PATH keeps it, --json prints it)", dim=True)
            case _:
                pass


def _save(contents: Iterable[Content], path: Path) -> None:
    for content in contents:
        if isinstance(data := getattr(content, "data", None), bytes):
            with storage_errors(path):
                path.write_bytes(data)
            note(f"{path}: {_measure(content)}")
            return
    raise RequestError("the tool returned no picture and no file to be written")


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
