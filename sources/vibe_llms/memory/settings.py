"""`[memory]` as checked settings, and the memory that they describe."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated

from msgspec import Meta

from vibe_llms.configuration import LOCAL, Configuration, MemoryMode, Seconds
from vibe_llms.exceptions import MemoryInvalid
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import DeduplicationSettings
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.embedders.rows import produce_embedder
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.interfaces import MemoryStores
from vibe_llms.memory.long_work import Report
from vibe_llms.memory.recall import RecallSettings
from vibe_llms.memory.reports import IngestionSettings
from vibe_llms.memory.reranking import InquiringReranker, Reranking, RerankingSettings
from vibe_llms.memory.retrieval import RetrievalSettings
from vibe_llms.memory.versions import Versions
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.storage.backends import Backend, produce_part


class MemorySettings(RetrievalSettings, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory]`: whose memory it is, how entries are found, and how conversations use it.

    `embedder` is a row of `[embedders]`, with or without a model, or `PROVIDER/MODEL`; without one,
    only keywords find entries. A process of its own keeps the embedder's model loaded until it has
    been idle for `keep_loaded_minutes`; with 0, each command loads it. With `versioning`, git keeps
    each change, with a commit per command, tool call and turn. `enabled` is the default of `chat`
    without --memory and --no-memory. A single question at the terminal leaves remembering to a
    process in the background, which ends after `background_seconds`; with `wait`, the command
    waits instead. A session that closes waits `drain_seconds` for it. The other members are tables:
    `[memory.recall]` and so on.
    """

    user: str = "me"
    embedder: str = ""
    versioning: bool = False
    enabled: bool = False
    mode: MemoryMode = "automatic"
    keep_loaded_minutes: Annotated[float, Meta(ge=0)] = 0.0
    wait: bool = False
    drain_seconds: Seconds = 60.0
    background_seconds: Seconds = 900.0
    recall: RecallSettings = RecallSettings()
    ingestion: IngestionSettings = IngestionSettings()
    deduplication: DeduplicationSettings = DeduplicationSettings()
    reranking: RerankingSettings = RerankingSettings()


def read_memory_settings(configuration: Configuration) -> MemorySettings:
    """The settings of `[memory]`; a `ConfigurationError` names the key of an invalid value."""
    settings = configuration.read(MemorySettings, configuration.memory, "memory")
    try:
        Scope.of_user(settings.user)
    except MemoryInvalid as error:
        raise configuration.error(str(error), "memory", "user") from error
    return settings


def produce_reranking(
    settings: RerankingSettings, notify: Callable[[str], None] = ignore
) -> Reranking | None:
    """The reranking of `[memory.reranking]`, if it names a model; nothing is loaded yet."""
    return Reranking(produce_reranker(settings), settings, notify) if settings.model else None


def produce_reranker(settings: RerankingSettings) -> InquiringReranker:
    """The reranker with the model of `[memory.reranking]`; nothing is loaded yet."""
    # What it needs is slow to import, and few users need it.
    module = import_module("vibe_llms.memory.cross_encoders")
    reranker: InquiringReranker = module.CrossEncoderReranker(settings.model)
    return reranker


def produce_memory(
    configuration: Configuration,
    settings: MemorySettings,
    *,
    backend: Backend,
    user: str = LOCAL,
    providers: Providers | None = None,
    notify: Callable[[str], None] = ignore,
    report: Report | None = None,
) -> Memory:
    """The memory of a user; nothing is read before it is used. Callers close it, and the backend.

    `providers` are those of a session, if there is one. `notify` is called from any thread with
    what users should know although no call fails: for example, why the embedder is not used.
    `report` gets the progress of indexing many entries.
    """
    stores: MemoryStores = produce_part(backend, "memory")
    store = stores.open_store(user, configuration)
    if settings.versioning and not store.has_files:
        raise configuration.error(
            "git keeps versions of files, and this memory is kept in a database",
            *("memory", "versioning"),
        )
    embedder = None
    if settings.embedder:
        embedder = produce_embedder(
            configuration,
            settings.embedder,
            providers=providers,
            notify=notify,
            keep_minutes=settings.keep_loaded_minutes,
        )
    return Memory(
        store,
        settings,
        lock_seconds=configuration.storage.lock_seconds,
        embedder=embedder,
        notify=notify,
        versions=Versions(store.folder, notify=notify) if settings.versioning else None,
        reranking=produce_reranking(settings.reranking, notify),
        report=report,
    )
