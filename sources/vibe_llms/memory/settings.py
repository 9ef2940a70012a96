"""The table `[memory]` as checked settings, and the memory that they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from vibe_llms.base.configuration import LOCAL, Configuration, MemoryMode, Seconds
from vibe_llms.base.exceptions import MemoryInvalid
from vibe_llms.embedding.core import ignore
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.memory.changes import PROTECTED
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import DeduplicationSettings
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.long_work import Report
from vibe_llms.memory.pruning import Retention
from vibe_llms.memory.recall import RecallSettings
from vibe_llms.memory.reports import IngestionSettings
from vibe_llms.memory.reranking import InquiringReranker, Reranking, RerankingSettings
from vibe_llms.memory.retrieval import RetrievalSettings, Share
from vibe_llms.memory.stores import MEMORY_STORES
from vibe_llms.memory.versions import Versions
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.storage.backends import Backend

#: A hundred years; longer times are not dates.
_MOST_DAYS = 36_500


class MemorySettings(RetrievalSettings, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The table `[memory]`: its user, its search, and its use in conversations.

    `embedder` is a row of `[embedders]`, with or without a model, or `PROVIDER/MODEL`; without one,
    only keywords find entries. A separate process keeps the embedder's model loaded until it has
    been idle for `keep_loaded_minutes`; with 0, each command loads it. With `versioning`, git keeps
    each change, with a commit per command, tool call, and turn. `enabled` is the default of `chat`
    without --memory and --no-memory. A single question at the terminal leaves remembering to a
    background process, which ends after `background_seconds`; with `wait`, the command waits
    instead. A session that closes waits up to `drain_seconds` for it. Entries that were not created
    or changed for `keep_days` are forgotten, unless their importance is at least `keep_importance`.
    The other members are tables: `[memory.recall]` and so on.
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
    keep_days: Annotated[float, Meta(gt=0, le=_MOST_DAYS)] | None = None
    keep_importance: Share = PROTECTED
    recall: RecallSettings = RecallSettings()
    ingestion: IngestionSettings = IngestionSettings()
    deduplication: DeduplicationSettings = DeduplicationSettings()
    reranking: RerankingSettings = RerankingSettings()

    def find_retention(self) -> Retention | None:
        """Return the rule by which entries are forgotten now, or None if no age is set."""
        if self.keep_days is None:
            return None
        return Retention.of(self.keep_days, self.keep_importance)


def read_memory_settings(configuration: Configuration) -> MemorySettings:
    """Read `[memory]`; a `ConfigurationError` names the key of an invalid value."""
    settings = configuration.read(MemorySettings, configuration.memory, "memory")
    try:
        Scope.of_user(settings.user)
    except MemoryInvalid as error:
        raise configuration.error(str(error), "memory", "user") from error
    return settings


def produce_reranking(
    settings: RerankingSettings, notify: Callable[[str], None] = ignore
) -> Reranking | None:
    """Produce the reranking of `[memory.reranking]`, if it names a model; nothing is loaded yet."""
    return Reranking(produce_reranker(settings), settings, notify) if settings.model else None


def produce_reranker(settings: RerankingSettings) -> InquiringReranker:
    """Produce the reranker of `[memory.reranking]`; nothing is loaded yet."""
    # Slow to import, and few users need it.
    from vibe_llms.memory.cross_encoders import CrossEncoderReranker

    return CrossEncoderReranker(settings.model)


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
    """Produce the memory of a user, unread; callers close it, and the backend.

    `providers` belong to a session, if there is one. `notify` is called from any thread with
    messages for users about problems that fail no call, such as an unusable embedder. `report` gets
    the progress of indexing many entries.
    """
    store = MEMORY_STORES.produce(backend).open_store(user, configuration)
    if settings.versioning and not store.has_files:
        raise configuration.error(
            "versioning needs files, but this memory is in a database",
            "memory",
            "versioning",
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
