"""The command `memory`: what is remembered, added, found, changed, deleted and forgotten."""

from __future__ import annotations

import click

from vibe_llms.cli.memory import (
    copies,
    deduplication,
    editing,
    facts,
    forgetting,
    history,
    ingesting,
    serving,
    upkeep,
)


@click.group("memory", context_settings={"help_option_names": ["-h", "--help"]})
def memory() -> None:
    """Remember facts, find them, change them, delete them and forget them.

    Each is a Markdown file that you may read and edit; `vibe-llms memory status` prints where.
    """


for _command in (
    facts.add,
    facts.search,
    facts.list_entries,
    facts.show,
    editing.edit,
    facts.remove,
    forgetting.forget,
    history.log,
    copies.export,
    copies.take,
    deduplication.deduplicate,
    ingesting.ingest,
    serving.serve_embedder,
    upkeep.reindex,
    upkeep.status,
    upkeep.watch_files,
):
    memory.add_command(_command)


@memory.result_callback()
@click.pass_context
def _finish(context: click.Context, status: int) -> int:
    """Go on with what earlier conversations have left, unless this was about that itself."""
    if context.invoked_subcommand not in ("ingest", "forget", "serve-embedder"):
        ingesting.finish_ingestion()
    return status


COMMANDS: dict[str, click.Command] = {"memory": memory}
