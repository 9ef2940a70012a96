"""The command `ask`: answers one question about documents, with sources."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.cli.chat import ask_once
from vibe_llms.cli.completion import complete_paths
from vibe_llms.cli.inputs import read_input, split_question
from vibe_llms.cli.options import (
    Options,
    agent_option,
    answer_json_option,
    control_option,
    debug_option,
    dry_run_option,
    fallback_option,
    functions_option,
    key_option,
    model_option,
    quiet_option,
    render_option,
    stream_option,
    unlogged_option,
    usage_option,
    variable_option,
)
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.shared_options import follow_links_option
from vibe_llms.cli.terminal import write_lines
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.documents import measure_room, survey_files
from vibe_llms.documents.core import Found
from vibe_llms.messages.canisters import Canister, DocumentCanister, Turn
from vibe_llms.messages.contents import TextualContent
from vibe_llms.session.core import Session
from vibe_llms.transcripts.citations import list_citations

INSTRUCTIONS = """\
Answer the question from the documents. Say where each part of the answer comes from, by title and
page or heading, as in (report.pdf, page 3). If the documents do not contain the answer, say so."""
_PASSAGES = "Passages that may answer the question"
#: Number of sources that are printed.
_PRINTED = 10


@click.command()
@click.argument(
    "words", metavar="[FILE]... QUESTION", nargs=-1, required=True, shell_complete=complete_paths
)
@click.option(
    "-f",
    "--fragment",
    "fragments",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_paths,
    help="Another FILE, as in chat.",
)
@model_option
@fallback_option
@agent_option
@variable_option
@click.option(
    "--docs",
    "collections",
    multiple=True,
    metavar="NAME",
    help="Search this collection; see: vibe-llms index.",
)
@functions_option
@follow_links_option
@click.option("-s", "--system", metavar="TEXT", help="Replace the instructions to the model.")
@control_option
@unlogged_option
@stream_option
@render_option
@answer_json_option
@quiet_option
@usage_option
@key_option
@dry_run_option
@debug_option
def ask(words: tuple[str, ...], fragments: tuple[str, ...], **values: Any) -> int:
    """Ask about files, folders or collections, and print the answer with its sources.

    The last argument is the question. Each FILE is a file, a folder, a pattern such as '*.pdf', a
    web address, or - for standard input. To continue: vibe-llms chat -c.
    """
    files, question = split_question(words)
    files = (*fragments, *files)
    if values["agent"] is None:
        values["system"] = values["system"] or INSTRUCTIONS
    # A question about documents needs no other instructions, unless its agent has them.
    no_skills = values["agent"] is None
    options = Options(prompt=(question,), fragments=files, no_skills=no_skills, **values)
    if not files and not options.collections:
        raise click.UsageError(
            "Give a file and a question, such as: vibe-llms ask report.pdf 'What changed?'"
        )
    return asyncio.run(ask_once(options, read_input(options), _Sources(options)))


class _Sources:
    """The documents of a question: finds passages before it is asked, and prints the sources."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._given: Sequence[str] = ()

    async def prepare(
        self, session: Session, conversation: Conversation, canisters: Sequence[Canister]
    ) -> Sequence[Canister]:
        """Return the messages, with passages if the documents are too long to be sent whole."""
        documents = session.access_documents()
        files = survey_files(canisters)
        collections = self._options.collections
        texts: dict[str, int] = {}
        waiting = Waiting(enabled=not self._options.quiet)
        try:
            for file in files:
                waiting.show(f"reading {file.name}")
                # The turn reports unreadable documents.
                with suppress(DocumentUnreadable):
                    texts[file.name] = len((await documents.read(file)).text)
        finally:
            waiting.clear()
        if not collections and sum(texts.values()) <= measure_room(conversation.model):
            self._given = [*texts]
            return canisters
        question = self._options.prompt[0]
        found = await documents.find(question, files, collections)
        self._given = [_name(one) for one in found] or [*texts]
        if not found:
            return canisters
        text = "\n\n".join(f"[{_name(one)}]\n{one.text}" for one in found)
        passages = DocumentCanister((TextualContent(text),), title=_PASSAGES)
        return [*canisters[:-1], passages, canisters[-1]]

    def describe(self, turn: Turn) -> Mapping[str, Any]:
        """Return the sources that the model cites, or else the documents that it was given."""
        cited = [line for one in turn.canisters for line in list_citations(one.contents)]
        return {"sources": [*dict.fromkeys(cited or self._given)]}

    def report(self, turn: Turn) -> None:
        """Print the sources, unless the answer is JSON."""
        sources = self.describe(turn)["sources"]
        if sources and not self._options.json and not self._options.quiet:
            lines = [f"- {line}" for line in sources[:_PRINTED]]
            if len(sources) > _PRINTED:
                lines.append(f"… and {len(sources) - _PRINTED} more; --json has all")
            write_lines("\nSources:\n" + "\n".join(lines), "  ")


def _name(found: Found) -> str:
    return ", ".join(filter(None, (found.name, found.place)))


COMMANDS: dict[str, click.Command] = {"ask": ask}
