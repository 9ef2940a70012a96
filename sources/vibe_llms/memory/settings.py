"""`[memory]`, read and checked, and the memory that it describes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from vibe_llms.configuration import Configuration
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import DeduplicationSettings
from vibe_llms.memory.embedding import ignore_notes
from vibe_llms.memory.reranking import Reranking, RerankingSettings
from vibe_llms.memory.retrieval import RetrievalSettings


class MemorySettings(RetrievalSettings, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory]`: whose memory it is, and how entries are chosen."""

    user: str = "me"
    deduplication: DeduplicationSettings = DeduplicationSettings()
    reranking: RerankingSettings = RerankingSettings()


def read_memory_settings(configuration: Configuration) -> MemorySettings:
    """What `[memory]` says; a `ConfigurationError` names the key of what does not fit."""
    return configuration.read(MemorySettings, configuration.memory, "memory")


def produce_reranking(
    settings: RerankingSettings, tell: Callable[[str], None] = ignore_notes
) -> Reranking | None:
    """The reranking that `[memory.reranking]` asks for, if it does; nothing is loaded yet."""
    if not settings.model:
        return None
    # What it stands on is slow to import, and most people have no use for it.
    module = import_module("vibe_llms.memory.cross_encoders")
    return Reranking(module.CrossEncoderReranker(settings.model), settings, tell)


def produce_memory(configuration: Configuration, settings: MemorySettings) -> Memory:
    """The memory in the user's folder; nothing is read before it is asked. Close it."""
    return Memory(
        configuration.places.data / "memory",
        settings,
        lock_seconds=configuration.storage.lock_seconds,
        durable=configuration.storage.durability == "safe",
        reranking=produce_reranking(settings.reranking),
    )
