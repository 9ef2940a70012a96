"""Worker processes: running the runs of all users without answering requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from vibe_llms.agents.definitions import check_agent, check_ensembles, read_agents
from vibe_llms.base.configuration import Configuration
from vibe_llms.messages.events import ignore_events
from vibe_llms.messages.tracing import Tracer, guard
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.server.settings import ServerSettings
from vibe_llms.server.spaces import UserSpaces
from vibe_llms.storage.backends import Backend
from vibe_llms.telemetry import produce_tracer


async def work(
    configuration: Configuration,
    settings: ServerSettings,
    ended: asyncio.Event,
    begin: Callable[[Backend], Awaitable[object]],
) -> None:
    """Work on runs until `ended` is set, then release unfinished runs.

    `begin` is awaited first. Raises `ConfigurationError` with the row and the key if an agent
    cannot work, and `FormatNewer` if the database was migrated for a newer version.
    """
    check_agents(configuration)
    tracer = produce_tracer(configuration) if configuration.telemetry.enabled else Tracer()
    spaces = UserSpaces(configuration, settings, guard(tracer))
    try:
        await begin(spaces.backend)
        spaces.start(ended.set)
        await ended.wait()
    finally:
        try:
            await spaces.close()
        finally:
            await tracer.close()
    if spaces.watch.outdated is not None:
        raise spaces.watch.outdated


def check_agents(configuration: Configuration) -> None:
    """Raise `ConfigurationError` with the row and the key if an agent cannot work."""
    providers = Providers(configuration, ignore_events)
    for agent in read_agents(configuration).values():
        check_agent(configuration, agent, providers.locate)
        check_ensembles(configuration, agent)
