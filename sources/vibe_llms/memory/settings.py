"""`[memory]`, read and checked, and the memory that it describes."""

from __future__ import annotations

from collections.abc import Callable

from vibe_llms.configuration import Configuration
from vibe_llms.memory.core import Memory
from vibe_llms.memory.embedding import ignore_notes
from vibe_llms.memory.ingestion import IngestionSettings
from vibe_llms.memory.retrieval import RetrievalSettings
from vibe_llms.memory.versions import Versions


class MemorySettings(RetrievalSettings, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory]`: whose memory it is, how entries are chosen, and whether git keeps versions.

    `ingestion` is how turns become memory, the table `[memory.ingestion]`.
    """

    user: str = "me"
    versioning: bool = False
    ingestion: IngestionSettings = IngestionSettings()


def read_memory_settings(configuration: Configuration) -> MemorySettings:
    """What `[memory]` says; a `ConfigurationError` names the key of what does not fit."""
    return configuration.read(MemorySettings, configuration.memory, "memory")


def produce_memory(
    configuration: Configuration,
    settings: MemorySettings,
    *,
    tell: Callable[[str], None] = ignore_notes,
) -> Memory:
    """The memory in the user's folder; nothing is read before it is asked. Close it.

    `tell` is told, by any thread, what a person should know and no call fails for.
    """
    folder = configuration.places.data / "memory"
    return Memory(
        folder,
        settings,
        lock_seconds=configuration.storage.lock_seconds,
        durable=configuration.storage.durability == "safe",
        tell=tell,
        versions=Versions(folder, tell=tell) if settings.versioning else None,
    )
