"""`memory serve-embedder`: keeps the embedder's model loaded for other commands."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from typing import Any

import click
import msgspec

from vibe_llms.cli.memory.opening import local_time, progress, tell
from vibe_llms.cli.running import ENDINGS, run, signals
from vibe_llms.cli.terminal import note
from vibe_llms.configuration import Configuration, load_configuration
from vibe_llms.exceptions import ArchiveLocked, ConfigurationError
from vibe_llms.memory.embedders.interfaces import LoadingEmbedder
from vibe_llms.memory.embedders.rows import produce_embedder
from vibe_llms.memory.embedders.serving import EmbedderServer, Served, find_server
from vibe_llms.memory.settings import MemorySettings, read_memory_settings

_NICENESS = 5


@click.command("serve-embedder", short_help="Keep the embedder's model loaded for other commands.")
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="End when no command has needed it for so long.",
)
@click.option("--embedder", metavar="ROW[/MODEL]", help="The embedder; as [memory] embedder.")
@click.option("--detached", is_flag=True, hidden=True)
def serve_embedder(idle_minutes: float, embedder: str | None, detached: bool) -> int:
    """Keep the embedder's model loaded, so that other commands need not load it.

    They find it by a socket that only you can use. Ctrl-C ends it. To have it started when it is
    needed, set keep-loaded-minutes in [memory].
    """
    if detached:
        os.nice(_NICENESS)

    async def work() -> int:
        configuration = load_configuration()
        settings = read_memory_settings(configuration)
        address = embedder or settings.embedder
        if not address:
            raise configuration.error(
                "no embedder is set; for one that runs here: embedder = 'sentence-transformers'",
                *("memory", "embedder"),
            )
        strict = produce_embedder(configuration, address, tell=tell, served=False)
        try:
            if not isinstance(strict.bare, LoadingEmbedder):
                raise ConfigurationError(
                    f"{address} loads no model into a process, so nothing can be kept loaded"
                )
            await strict.inquire()
            server = EmbedderServer(strict.bare, configuration.places, idle_minutes=idle_minutes)
            await _serve(server, configuration, strict.bare.model, detached=detached)
        finally:
            await strict.close()
        return 0

    return run(work())


async def _serve(
    server: EmbedderServer, configuration: Configuration, model: str, *, detached: bool
) -> None:
    with ExitStack() as stack:
        stack.enter_context(progress(f"loading {model}"))

        def tell_ready() -> None:
            stack.close()
            if not detached:
                note(f"serving {model}; Ctrl-C ends it")

        task = asyncio.ensure_future(server.serve(tell_ready))
        try:
            with signals(dict.fromkeys((signal.SIGINT, *ENDINGS), task.cancel)):
                await task
        except asyncio.CancelledError:
            return
        except ArchiveLocked:
            served = await find_server(configuration.places, model)
            by = "another process" if served is None else f"process {served.process}"
            note(f"{model} is served already, by {by}")
            return
    if not detached:
        note("ended: no command needed it")


async def survey_served(configuration: Configuration, settings: MemorySettings) -> Served | None:
    """The process that keeps the embedder's model loaded, if one does."""
    if not settings.embedder:
        return None
    embedder = produce_embedder(configuration, settings.embedder, served=False)
    try:
        if not isinstance(embedder.bare, LoadingEmbedder):
            return None
        return await find_server(configuration.places, embedder.bare.model)
    finally:
        await embedder.close()


def describe_served(served: Served) -> str:
    """A line for a person."""
    return (
        f"embedder: {served.model}, kept loaded by process {served.process} since "
        f"{local_time(served.since)}, until it is idle for {served.idle_minutes:g} minutes"
    )


def encode_served(served: Served | None) -> dict[str, Any] | None:
    """The same for programs."""
    encoded: dict[str, Any] | None = msgspec.to_builtins(served)
    return encoded
