"""The command `doctor`: checks the archive and the configuration, and mends what can be."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click
import msgspec

from vibe_llms.cli.checking import survey_problems
from vibe_llms.cli.running import bound_import, run
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.configuration import Configuration, load_configuration
from vibe_llms.controls import Controls
from vibe_llms.events import ignore_events
from vibe_llms.exceptions import ConfigurationError, MemoryDamaged, VibeLlmsError
from vibe_llms.memory.embedders.rows import produce_embedder
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.settings import produce_reranker, read_memory_settings
from vibe_llms.providers.rows import Providers
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.inspection import inspect_archive
from vibe_llms.storage.interfaces import Diagnosis


@click.command()
@click.option("--repair", is_flag=True, help="Mend what can be; old files are kept.")
@click.option("--json", "as_json", is_flag=True, help="An array of objects.")
def doctor(repair: bool, as_json: bool) -> int:
    """Check every conversation and content, what is remembered, the configuration and the keys.

    Leaves with status 1 where something is wrong that was not mended.
    """
    found: list[Diagnosis] = []

    def tell(diagnosis: Diagnosis) -> None:
        found.append(diagnosis)
        if not as_json:
            state = "mended: " if diagnosis.mended else ""
            write(sys.stdout, shown(f"{state}{diagnosis.path}: {diagnosis.text}") + "\n")
            if diagnosis.remedy and not diagnosis.mended:
                write(sys.stdout, shown(f"    {diagnosis.remedy}") + "\n")

    for problem in check_configuration():
        tell(problem)
    if _is_whole():
        configuration = load_configuration()
        archive = DirectoryArchive(configuration.places.data, configuration.storage)
        for diagnosis in inspect_archive(archive, repair=repair):
            tell(diagnosis)
        for diagnosis in check_memory(configuration):
            tell(diagnosis)
        if repair:
            archive.collect_now()
    if as_json:
        write_json(msgspec.json.encode(found).decode())
    elif not found:
        note("all is well")
    return 1 if any(not diagnosis.mended for diagnosis in found) else 0


COMMANDS: dict[str, click.Command] = {"doctor": doctor}


def check_configuration() -> Sequence[Diagnosis]:
    """What is wrong with the configuration, the keys, the providers, and the models of memory."""
    configuration, found = survey_problems()
    if configuration is None or not _is_whole():
        return found
    return [*found, *run(_check_embedder()), *run(_check_models())]


def _is_whole() -> bool:
    """Whether the configuration can be used, though a row of it may be wrong."""
    try:
        read_memory_settings(load_configuration())
    except ConfigurationError:
        return False
    return True


def check_memory(configuration: Configuration) -> Iterator[Diagnosis]:
    """The files of the memory that are no entries, and so are not remembered."""
    files = MemoryFiles(configuration.places.data / "memory")
    for scope in files.survey_scopes():
        for place in sorted(files.look(scope)):
            try:
                files.read(scope, place)
            except FileNotFoundError:
                pass
            except MemoryDamaged as error:
                text = str(error).removeprefix(f"{error.path}: ")
                yield Diagnosis("memory", error.path, text, "mend it by hand, or move it away")


async def _check_embedder() -> Sequence[Diagnosis]:
    """What stands in the way of the embedder that `[memory]` names; no model is loaded."""
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
    """What stands in the way of the other models of `[memory]`; none is loaded or asked."""
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
