"""`[memory]`, read and checked, and the memory that it describes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated

from msgspec import Meta

from vibe_llms.configuration import Configuration, MemoryMode, Seconds
from vibe_llms.exceptions import MemoryInvalid
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import DeduplicationSettings
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.embedders.rows import produce_embedder
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.recall import RecallSettings
from vibe_llms.memory.reports import IngestionSettings
from vibe_llms.memory.reranking import InquiringReranker, Reranking, RerankingSettings
from vibe_llms.memory.retrieval import RetrievalSettings
from vibe_llms.memory.versions import Versions
from vibe_llms.providers.rows import Providers


class MemorySettings(RetrievalSettings, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory]`: whose memory it is, how entries are chosen, and how conversations have it.

    `embedder` is a row of `[embedders]`, with a model or without, or `PROVIDER/MODEL`; without one
    entries are found by their words alone. A process that is started when it is needed keeps the
    embedder's model loaded until it was idle for `keep_loaded_minutes`; with 0 each command loads
    it. With `versioning` git keeps each change: one commit per
    command, tool call and turn. `enabled` is what `chat` does where neither --memory nor
    --no-memory is given. A single question at the terminal leaves what is to be remembered to a
    process in the background, which ends after `background_seconds` at the latest; with `wait` it
    waits for that itself. A session that closes waits `drain_seconds` for what is still to be taken
    in. The rest are tables of their own: `[memory.recall]`, what is brought to a turn, and so on.
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
    """What `[memory]` says; a `ConfigurationError` names the key of what does not fit."""
    settings = configuration.read(MemorySettings, configuration.memory, "memory")
    try:
        Scope.of_user(settings.user)
    except MemoryInvalid as error:
        raise configuration.error(str(error), "memory", "user") from error
    return settings


def produce_reranking(
    settings: RerankingSettings, tell: Callable[[str], None] = ignore
) -> Reranking | None:
    """The reranking that `[memory.reranking]` asks for, if it does; nothing is loaded yet."""
    return Reranking(produce_reranker(settings), settings, tell) if settings.model else None


def produce_reranker(settings: RerankingSettings) -> InquiringReranker:
    """What judges by the model of `[memory.reranking]`; nothing is loaded yet."""
    # What it stands on is slow to import, and most people have no use for it.
    module = import_module("vibe_llms.memory.cross_encoders")
    reranker: InquiringReranker = module.CrossEncoderReranker(settings.model)
    return reranker


def produce_memory(
    configuration: Configuration,
    settings: MemorySettings,
    *,
    providers: Providers | None = None,
    tell: Callable[[str], None] = ignore,
) -> Memory:
    """The memory in the user's folder; nothing is read before it is asked. Close it.

    `providers` are those of a session, if there is one. `tell` is told, by any thread, what a
    person should know and no call fails for: what keeps entries from being found by their meaning,
    say.
    """
    folder = configuration.places.data / "memory"
    embedder = None
    if settings.embedder:
        embedder = produce_embedder(
            configuration,
            settings.embedder,
            providers=providers,
            tell=tell,
            keep_minutes=settings.keep_loaded_minutes,
        )
    return Memory(
        folder,
        settings,
        lock_seconds=configuration.storage.lock_seconds,
        durable=configuration.storage.durability == "safe",
        embedder=embedder,
        tell=tell,
        versions=Versions(folder, tell=tell) if settings.versioning else None,
        reranking=produce_reranking(settings.reranking, tell),
    )
