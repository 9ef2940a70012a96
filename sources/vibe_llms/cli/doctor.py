"""The command `doctor`: checks archive, memory and configuration, and repairs the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing

import click
import msgspec

from vibe_llms.base.configuration import (
    Configuration,
    Places,
    load_configuration,
)
from vibe_llms.base.exceptions import (
    ConfigurationError,
    VibeLlmsError,
)
from vibe_llms.cli.config_checks import survey_problems
from vibe_llms.cli.memory.common import open_store
from vibe_llms.cli.running import bound_import
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, write_json, write_lines
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.memory.inspection import inspect_memory
from vibe_llms.memory.settings import produce_reranker, read_memory_settings
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice, ignore_events
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.providers.windows import Windows
from vibe_llms.server.inspection import inspect_server
from vibe_llms.server.settings import read_server_settings
from vibe_llms.storage.backends import open_backend, opened_backend
from vibe_llms.storage.interfaces import Diagnosis
from vibe_llms.storage.users import survey_homes


@click.command()
@click.option("--repair", is_flag=True, help="Repair the archive; old files are kept.")
@json_option
def doctor(repair: bool, as_json: bool) -> int:
    """Check all conversations, their contents, memory, the configuration, the keys and the server.

    Exits with status 1 if a problem is left.
    """
    found: list[Diagnosis] = []

    def show(diagnosis: Diagnosis) -> None:
        found.append(diagnosis)
        if not as_json:
            state = "repaired: " if diagnosis.mended else ""
            write_lines(f"{state}{diagnosis.path}: {diagnosis.text}", "    ")
            if diagnosis.remedy and not diagnosis.mended:
                write_lines(f"    {diagnosis.remedy}")

    for problem in check_configuration():
        show(problem)
    if _is_whole():
        configuration = load_configuration()
        note(f"checking {_describe_archive(configuration)}")
        homes = [*survey_homes(configuration)]
        asyncio.run(_check_kept(configuration, homes, repair, show))
        for diagnosis in inspect_server(configuration, repair=repair):
            show(diagnosis)
        for text in asyncio.run(_survey_contradictions(configuration)):
            note(text)
    if as_json:
        write_json(msgspec.json.encode(found).decode())
    elif not found:
        note("no problems found")
    return 1 if any(not diagnosis.mended for diagnosis in found) else 0


COMMANDS: dict[str, click.Command] = {"doctor": doctor}


def _describe_archive(configuration: Configuration) -> str:
    """Name the archive that is checked, and the configuration file that chose it."""
    file = configuration.places.configuration_file
    told = f"named in {file}" if file.exists() else f"{file} not found"
    return f"{open_backend(configuration).address} ({told})"


def check_configuration() -> Sequence[Diagnosis]:
    """List problems of the configuration, the keys, the providers and the models of memory."""
    configuration, found = survey_problems()
    if configuration is None or not _is_whole():
        return found
    return [*found, *asyncio.run(_check_embedder()), *asyncio.run(_check_models())]


def _is_whole() -> bool:
    """Return True if the configuration can be used, even if one of its rows is wrong."""
    try:
        configuration = load_configuration()
        read_memory_settings(configuration)
        read_server_settings(configuration)
        open_backend(configuration)
    except ConfigurationError:
        return False
    return True


async def _check_kept(
    configuration: Configuration,
    homes: Sequence[Places],
    repair: bool,
    show: Callable[[Diagnosis], None],
) -> None:
    """Check the archive, and the memory of all users if the database can be used."""
    usable = True
    async with opened_backend(configuration) as backend:
        async for diagnosis in backend.inspect(homes, repair=repair):
            show(diagnosis)
            usable = usable and diagnosis.subject != "database"
        for user in await backend.survey_users() if usable else ():
            with closing(open_store(backend, user)) as store:
                for diagnosis in await asyncio.to_thread(list, inspect_memory(store, user)):
                    show(diagnosis)


async def _survey_contradictions(configuration: Configuration) -> Sequence[str]:
    """Describe the models that accept fewer tokens than declared; ask no server."""
    problems: list[Notice] = []
    windows = Windows(configuration.places.state, problems.append)
    providers = Providers(configuration, ignore_events, import_guard=bound_import)
    told: list[str] = []
    try:
        for one in await windows.survey():
            try:
                model = await providers.access_model(one.address)
            except VibeLlmsError:
                # Its row was removed, or cannot be used, which is reported elsewhere.
                continue
            if one.declared is not None and one.fits(model):
                told.append(
                    f"{one.address} accepts {one.tokens:,} tokens, not {one.declared:,} as "
                    f"declared, by what its server said on {one.created}; to ask it for more "
                    f"again: vibe-llms models forget {one.address}"
                )
    finally:
        await providers.close()
    return [*(one.text for one in problems), *told]


async def _check_embedder() -> Sequence[Diagnosis]:
    """List problems of the embedder that `[memory]` names; load no model."""
    configuration = load_configuration()
    address = read_memory_settings(configuration).embedder
    if not address:
        return []
    providers = Providers(configuration, ignore_events, import_guard=bound_import)
    try:
        embedder = produce_embedder(configuration, address, providers=providers)
        try:
            await embedder.inquire()
        finally:
            await embedder.close()
    except VibeLlmsError as error:
        return [Diagnosis("embedder", "memory.embedder", str(error))]
    finally:
        await providers.close()
    return []


async def _check_models() -> Sequence[Diagnosis]:
    """List problems of the other models of `[memory]`; load and call none."""
    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    found: list[Diagnosis] = []
    if settings.ingestion.model:
        providers = Providers(configuration, ignore_events, import_guard=bound_import)
        try:
            model = await providers.access_model(settings.ingestion.model)
            model.check((), Controls())
        except VibeLlmsError as error:
            found.append(Diagnosis("model", "memory.ingestion.model", str(error)))
        finally:
            await providers.close()
    if settings.reranking.model:
        reranker = produce_reranker(settings.reranking)
        try:
            await reranker.inquire()
        except VibeLlmsError as error:
            found.append(Diagnosis("model", "memory.reranking.model", str(error)))
        finally:
            await reranker.close()
    return found
