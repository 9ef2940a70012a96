"""`vibe-llms chat`: one question and its answer, or the way into the REPL."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from vibe_llms.cli.answering import produce_elicitor
from vibe_llms.cli.approving import produce_approver
from vibe_llms.cli.completion import (
    complete_controls,
    complete_conversations,
    complete_ensembles,
    complete_models,
    complete_paths,
)
from vibe_llms.cli.draining import hold_work
from vibe_llms.cli.failures import BAD_USAGE, INTERRUPTED
from vibe_llms.cli.lookalikes import is_meant, leaves
from vibe_llms.cli.options import (
    Options,
    Said,
    address_of,
    check_options,
    controls_of,
    open_conversation,
    output_of,
    overrides_of,
    produce_display,
    read_said,
    report_turn,
)
from vibe_llms.cli.pictures import report_pictures
from vibe_llms.cli.questions import Questions
from vibe_llms.cli.repl import hold_repl
from vibe_llms.cli.running import bound_import, hold_turn, run
from vibe_llms.cli.terminal import is_terminal, note, shown, write
from vibe_llms.conversation import Conversation
from vibe_llms.messages.canisters import StopReason
from vibe_llms.session import open_session


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="The model: provider/model, a part of its name, or an alias.",
)
@click.option("-s", "--system", metavar="TEXT", help="System text, from here on.")
@click.option(
    "--system-file", metavar="PATH", shell_complete=complete_paths, help="The same from a file."
)
@click.option(
    "-c",
    "--continue",
    "continue_last",
    is_flag=True,
    help="Go on with the conversation that was used last.",
)
@click.option(
    "--cid",
    "conversation",
    metavar="ID",
    shell_complete=complete_conversations,
    help="Go on with this one: its identity, 4 or more characters of it, or its name.",
)
@click.option("--fork", is_flag=True, help="With -c or --cid: go on in a fork; the other stays.")
@click.option("--name", default="", metavar="NAME", help="The name of a new one, or of the fork.")
@click.option("--print-id", is_flag=True, help="Print the id of the conversation on stderr.")
@click.option("-n", "--no-log", is_flag=True, help="Keep nothing of this.")
@click.option(
    "-a",
    "--attachment",
    "attachments",
    multiple=True,
    metavar="PATH|URL|-",
    shell_complete=complete_paths,
    help="Attach a picture or a file; - is standard input.",
)
@click.option(
    "--at",
    "typed_attachments",
    multiple=True,
    type=(str, str),
    metavar="PATH TYPE",
    help="The same with its MIME type, such as image/png.",
)
@click.option(
    "-f",
    "--fragment",
    "fragments",
    multiple=True,
    metavar="PATH|URL|-",
    shell_complete=complete_paths,
    help="Give a file as a document.",
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    type=(str, str),
    metavar="NAME VALUE",
    shell_complete=complete_controls,
    help="A control, such as: -o effort high.",
)
@click.option(
    "-T",
    "--tool",
    "--mcp",
    "tools",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_ensembles,
    help="Offer the tools of an ensemble, a row of [ensembles] such as an MCP server.",
)
@click.option(
    "--ta",
    "--tools-approve",
    "approve_all",
    is_flag=True,
    help="Run the tools without asking, except those that are denied.",
)
@click.option(
    "--tool-mode",
    type=click.Choice(("auto", "native", "contract", "off")),
    help="How tools are offered: as the model can, by its own calls, by an agreement in its "
    "instructions, or not.",
)
@click.option(
    "--cl",
    "--chain-limit",
    "rounds",
    type=click.IntRange(min=0),
    metavar="N",
    help="At most so many rounds of tool calls in a turn.",
)
@click.option(
    "--td",
    "--tools-debug",
    "tools_debug",
    is_flag=True,
    help="Show the arguments and the results of tools whole.",
)
@click.option(
    "--memory/--no-memory",
    "memory",
    default=None,
    help="Recall what is remembered of you, and remember what you say; as [memory] enabled, if not "
    "given.",
)
@click.option(
    "--wait/--no-wait",
    "wait",
    default=None,
    help="With --memory and a prompt: wait until memory has taken in what was said; as [memory] "
    "wait, if not given.",
)
@click.option(
    "--schema",
    metavar="SCHEMA",
    shell_complete=complete_paths,
    help="Answer with JSON that follows a schema: JSON, a file, or 'name, age int, bio: a text'.",
)
@click.option("--stream/--no-stream", default=True, help="Show the answer as it comes, or whole.")
@click.option("--render/--raw", default=None, help="Draw Markdown, or show it as it is written.")
@click.option("--json", is_flag=True, help="Print one JSON object.")
@click.option("--jsonl", is_flag=True, help="Print one JSON object for each event, as it comes.")
@click.option("-x", "--extract", is_flag=True, help="Print only the first fenced block.")
@click.option("--xl", "extract_last", is_flag=True, help="Print only the last fenced block.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but the answer, and errors.")
@click.option("-u", "--usage", is_flag=True, help="Print the tokens, and their cost, on stderr.")
@click.option("-R", "--hide-reasoning", is_flag=True, help="Do not show what the model thinks.")
@click.option(
    "--save",
    metavar="FOLDER",
    shell_complete=complete_paths,
    help="Save the pictures that tools and models make.",
)
@click.option("--key", metavar="KEY", help="The key to use, for this once.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of the model's row in [providers], for this once.",
)
@click.option(
    "--context-size",
    type=click.IntRange(min=0),
    metavar="N",
    help="The context of a model that is loaded here: --set context-tokens=N.",
)
@click.option(
    "--gpu-layers",
    type=click.IntRange(min=-1),
    metavar="N",
    help="Its layers on the graphics card, -1 for all: --set gpu-layers=N.",
)
@click.option("--dry-run", is_flag=True, help="Check and print the request instead of sending it.")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def chat(**values: Any) -> int:
    """Ask once with a PROMPT or piped input, or else hold a conversation at the terminal.

    Piped input stands before the prompt; a picture or a PDF that is piped in is attached.
    Everything is kept unless -n is given.
    """
    options = Options(**values)
    context = click.get_current_context()
    if leaves(context, options.prompt):
        return 0
    if not is_meant(context, options.prompt):
        return BAD_USAGE
    check_options(options)
    said = read_said(options)
    if not options.prompt and is_terminal(sys.stdin):
        if options.json or options.jsonl or options.extract or options.extract_last:
            raise click.UsageError("--json, --jsonl, -x and --xl need a prompt.")
        if options.dry_run:
            raise click.UsageError("--dry-run needs a prompt.")
        return run(hold_repl(options, said))
    return run(_ask_once(options, said))


COMMANDS: dict[str, click.Command] = {"chat": chat}


async def _ask_once(options: Options, said: Said) -> int:
    canisters = said.canisters()
    output = output_of(options)
    overrides = await overrides_of(options)
    display = produce_display(options)
    questions = Questions(display.settle)
    async with open_session(
        event_handler=display,
        configuration=overrides.settings,
        keys=overrides.keys,
        interactive=is_terminal(sys.stdout) and not options.json,
        import_guard=bound_import,
        approver=produce_approver(approve_all=options.approve_all, questions=questions),
        elicitor=produce_elicitor(questions),
    ) as session:
        conversation = await open_conversation(session, options)
        if options.dry_run:
            preview = await conversation.preview(
                canisters, controls=controls_of(options), output=output, streaming=options.stream
            )
            write(sys.stdout, shown(preview) + "\n")
            return 0
        running = conversation.converse(
            canisters, controls=controls_of(options), output=output, streaming=options.stream
        )
        waits = session.configuration.memory_waits if options.wait is None else options.wait
        if not waits:
            session.postpone()
        display.begin(address_of(conversation))
        try:
            turn, left = await hold_turn(conversation, running)
            display.finish()
        finally:
            display.close()
            if options.print_id and not options.no_log:
                note(conversation.identity)
        report_turn(session, conversation, turn, options)
        await report_pictures(session, turn, folder=options.save, quiet=options.quiet)
        await hold_work(session, leave=left, quiet=options.quiet)
        interrupted = left or turn.stop_reason == StopReason.INTERRUPTED
        if interrupted and not options.quiet:
            note(_interrupted(conversation, options))
    if session.postponed:
        # Only after the session is closed can another process take over its turns.
        memory = import_module("vibe_llms.cli.memory.ingesting")
        memory.start_ingestion(
            session.configuration, keys=overrides.keys, overrides=overrides.settings
        )
    return INTERRUPTED if interrupted else 0


def _interrupted(conversation: Conversation, options: Options) -> str:
    # A terminal has written ^C where the cursor stood.
    start = "\n" if is_terminal(sys.stderr) else ""
    if options.no_log:
        return f"{start}interrupted"
    again = f"vibe-llms chat --cid {conversation.identity}"
    return f"{start}interrupted; what arrived is kept. Go on: {again}"
