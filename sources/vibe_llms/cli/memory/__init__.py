"""The command `memory`: manages the facts remembered across conversations."""

from __future__ import annotations

import click

from vibe_llms.cli.memory import (
    editing,
    export,
    facts,
    forgetting,
    ingesting,
    pruning,
    setup,
    upkeep,
)


@click.group("memory")
def memory() -> None:
    """Manage what is remembered across conversations.

    Each entry is a Markdown file that you can read and edit; `vibe-llms memory status` prints the
    folder.
    """


for _command in (
    setup.set_up,
    facts.add,
    facts.search,
    facts.list_entries,
    facts.show,
    editing.edit,
    facts.remove,
    forgetting.forget,
    pruning.prune,
    facts.log,
    export.export,
    export.take,
    upkeep.deduplicate,
    ingesting.ingest,
    upkeep.serve_embedder,
    upkeep.reindex,
    upkeep.status,
    upkeep.watch_files,
):
    memory.add_command(_command)


@memory.result_callback()
@click.pass_context
def _finish(context: click.Context, status: int | None) -> int | None:
    """Continue with queued turns, unless the command was about them."""
    if context.invoked_subcommand not in ("ingest", "forget", "prune", "serve-embedder", "setup"):
        ingesting.finish_ingestion()
    return status


COMMANDS: dict[str, click.Command] = {"memory": memory}
