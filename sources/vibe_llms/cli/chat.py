"""The command `chat`: answers one question, or starts the REPL."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import click

from vibe_llms.cli.completion import (
    complete_conversations,
    complete_ensembles,
    complete_paths,
    complete_skills,
)
from vibe_llms.cli.failures import BAD_USAGE, INTERRUPTED
from vibe_llms.cli.inputs import PromptInput, fetch_pages, read_input, take_expanded
from vibe_llms.cli.options import (
    UNSAVED,
    Options,
    agent_option,
    answer_json_option,
    check_options,
    control_option,
    controls_of,
    debug_option,
    dry_run_option,
    fallback_option,
    functions_option,
    key_option,
    model_option,
    open_conversation,
    output_of,
    overrides_of,
    produce_display,
    quiet_option,
    render_option,
    stream_option,
    unlogged_option,
    usage_option,
    variable_option,
)
from vibe_llms.cli.questions import Questions
from vibe_llms.cli.reports import address_of, report_turn, shorten_data
from vibe_llms.cli.running import bound_import, finish_work, run_turn
from vibe_llms.cli.shared_options import follow_links_option
from vibe_llms.cli.terminal import is_terminal, note, shown, write
from vibe_llms.cli.tool_questions import produce_approver, produce_elicitor
from vibe_llms.cli.typed_commands import is_forced, is_meant, leaves
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import Canister, StopReason, Turn
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session


@click.command()
@click.argument("prompt", nargs=-1)
@model_option
@fallback_option
@agent_option
@variable_option
@click.option("-s", "--system", metavar="TEXT", help="Add a system prompt.")
@click.option(
    "--system-file",
    metavar="PATH",
    shell_complete=complete_paths,
    help="Read the system prompt from a file.",
)
@click.option(
    "-c",
    "--continue",
    "continue_last",
    is_flag=True,
    help="Continue the most recent conversation.",
)
@click.option(
    "--cid",
    "conversation",
    metavar="ID",
    shell_complete=complete_conversations,
    help="Continue a conversation, by its id, 4 or more characters of it, or its name.",
)
@click.option("--fork", is_flag=True, help="With -c or --cid: continue in a fork.")
@click.option("--name", default="", metavar="NAME", help="Name the new conversation or fork.")
@click.option("--print-id", is_flag=True, help="Print the conversation's id on stderr.")
@unlogged_option
@click.option(
    "--detach",
    is_flag=True,
    help="Answer in the background, and print the id of the run; see: vibe-llms runs.",
)
@click.option(
    "-a",
    "--attachment",
    "attachments",
    multiple=True,
    metavar="PATH|URL|-",
    shell_complete=complete_paths,
    help="Attach an image or a file; - reads standard input.",
)
@click.option(
    "--at",
    "typed_attachments",
    multiple=True,
    type=(str, str),
    metavar="PATH TYPE",
    help="Attach a file with a MIME type, such as image/png.",
)
@click.option(
    "-f",
    "--fragment",
    "fragments",
    multiple=True,
    metavar="PATH|URL|-",
    shell_complete=complete_paths,
    help="Add a file, a folder, a pattern such as '*.pdf', or a web page as documents.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Trust the text of -f: tools that send data do not ask because of it.",
)
@follow_links_option
@control_option
@click.option(
    "-T",
    "--tool",
    "--mcp",
    "tools",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_ensembles,
    help="Offer the tools of an MCP server or another row of [ensembles].",
)
@functions_option
@click.option(
    "--docs",
    "collections",
    multiple=True,
    metavar="NAME",
    help="Let the model search this collection of documents; see: vibe-llms index.",
)
@click.option(
    "--skill",
    "skills",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_skills,
    help="Offer this skill, or all with '*' (default: all, or the agent's); see: vibe-llms skills.",
)
@click.option("--no-skills", is_flag=True, help="Offer no skills.")
@click.option(
    "--ta",
    "--tools-approve",
    "approve_all",
    is_flag=True,
    help="Run tools without asking, except denied ones.",
)
@click.option(
    "--tool-mode",
    type=click.Choice(("auto", "native", "contract", "off")),
    help="Offer tools natively, by instructions in the prompt (contract), or not at all.",
)
@click.option(
    "--cl",
    "--chain-limit",
    "rounds",
    type=click.IntRange(min=0),
    metavar="N",
    help="Limit the rounds of tool calls in a turn.",
)
@click.option(
    "--td",
    "--tools-debug",
    "tools_debug",
    is_flag=True,
    help="Show tool arguments and results in full.",
)
@click.option(
    "--memory/--no-memory",
    "memory",
    default=None,
    help="Recall facts and remember new ones (default: memory.enabled).",
)
@click.option(
    "--wait/--no-wait",
    "wait",
    default=None,
    help="With a prompt: wait until new facts are remembered (default: memory.wait).",
)
@click.option(
    "--schema",
    metavar="SCHEMA",
    shell_complete=complete_paths,
    help="Answer in JSON that follows a schema: JSON, a file, or 'name, age int, bio: a text'.",
)
@stream_option
@render_option
@answer_json_option
@click.option("--jsonl", is_flag=True, help="Print a JSON object for each event.")
@click.option("-x", "--extract", is_flag=True, help="Print only the first code block.")
@click.option("--xl", "extract_last", is_flag=True, help="Print only the last code block.")
@quiet_option
@usage_option
@click.option("-R", "--hide-reasoning", is_flag=True, help="Hide the model's reasoning.")
@click.option(
    "--save",
    metavar="FOLDER",
    shell_complete=complete_paths,
    help="Save images from tools and models in FOLDER.",
)
@key_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the model's row in [providers] for this run.",
)
@click.option(
    "--context-size",
    type=click.IntRange(min=0),
    metavar="N",
    help="Set the context window of a local model; short for --set context-tokens=N.",
)
@click.option(
    "--gpu-layers",
    type=click.IntRange(min=-1),
    metavar="N",
    help="Put N layers of a local model on the GPU, -1 for all; short for --set gpu-layers=N.",
)
@dry_run_option
@debug_option
def chat(**values: Any) -> int:
    """Ask a question, or start a chat.

    With a PROMPT or piped input, prints one answer; otherwise starts a chat at the terminal. Piped
    text comes before the prompt; piped images and PDFs are attached. The conversation is saved
    unless -n is given.
    """
    options = Options(**values)
    context = click.get_current_context()
    if leaves(context, options.prompt):
        return 0
    if not is_forced(context):
        options = take_expanded(options)
    if not is_meant(context, options.prompt):
        return BAD_USAGE
    check_options(options)
    said = read_input(options)
    if options.detach:
        # Imported only here: most questions start no run.
        from vibe_llms.cli.runs import start_detached

        return asyncio.run(start_detached(options, said))
    if not options.prompt and is_terminal(sys.stdin):
        if options.json or options.jsonl or options.extract or options.extract_last:
            raise click.UsageError("--json, --jsonl, -x and --xl need a prompt.")
        if options.dry_run:
            raise click.UsageError("--dry-run needs a prompt.")
        from vibe_llms.cli.repl import run_repl

        return asyncio.run(run_repl(options, said))
    return asyncio.run(ask_once(options, said))


COMMANDS: dict[str, click.Command] = {"chat": chat}


class Preparation(Protocol):
    """Steps of a command before a question is asked and after it is answered."""

    async def prepare(
        self, session: Session, conversation: Conversation, canisters: Sequence[Canister]
    ) -> Sequence[Canister]:
        """Return the messages to send instead of the given ones."""
        ...

    def describe(self, turn: Turn) -> Mapping[str, Any]:
        """Return additional members for the answer's JSON."""
        ...

    def report(self, turn: Turn) -> None:
        """Print additional text after the answer."""
        ...


async def ask_once(
    options: Options, said: PromptInput, preparation: Preparation | None = None
) -> int:
    """Ask a question and print its answer; return the exit status."""
    canisters = said.canisters()
    output = output_of(options)
    overrides = await overrides_of(options)
    display = produce_display(options)
    questions = Questions(display.pause)
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
        canisters = await fetch_pages(session, canisters, quiet=options.quiet)
        if preparation is not None:
            canisters = await preparation.prepare(session, conversation, canisters)
        if options.dry_run:
            preview = await conversation.preview(
                canisters, controls=controls_of(options), output=output, streaming=options.stream
            )
            write(sys.stdout, shown(shorten_data(preview)) + "\n")
            return 0
        running = conversation.converse(
            canisters, controls=controls_of(options), output=output, streaming=options.stream
        )
        waits = session.configuration.memory_waits if options.wait is None else options.wait
        if not waits:
            session.background.postpone()
        display.begin(address_of(conversation))
        try:
            turn, left = await run_turn(conversation, running)
            display.finish()
        finally:
            display.close()
            if options.print_id and not options.no_log:
                note(conversation.identity)
        facts = {} if preparation is None else preparation.describe(turn)
        await report_turn(session, conversation, turn, options, facts)
        if preparation is not None:
            preparation.report(turn)
        if options.no_log and is_terminal(sys.stderr) and not options.quiet:
            note(UNSAVED, dim=True)
        await finish_work(session, leave=left, quiet=options.quiet)
        interrupted = left or turn.stop_reason == StopReason.INTERRUPTED
        if interrupted and not options.quiet:
            note(_interrupted(conversation, kept=bool(turn.canisters) and not options.no_log))
    if session.background.postponed:
        # Another process can take over the turns only after the session is closed.
        from vibe_llms.cli.memory.ingesting import start_ingestion

        start_ingestion(session.configuration, keys=overrides.keys, overrides=overrides.settings)
    return INTERRUPTED if interrupted else 0


def _interrupted(conversation: Conversation, *, kept: bool) -> str:
    # The terminal has written ^C at the cursor.
    start = "\n" if is_terminal(sys.stderr) else ""
    if not kept:
        return f"{start}interrupted"
    again = f"vibe-llms chat --cid {conversation.identity}"
    return f"{start}interrupted; the partial answer is kept. Continue: {again}"
