"""`[memory]`, read and checked, and the memory that it describes."""

from __future__ import annotations

from vibe_llms.configuration import Configuration, MemoryMode, Seconds
from vibe_llms.memory.core import Memory
from vibe_llms.memory.ingestion import IngestionSettings
from vibe_llms.memory.recall import RecallSettings
from vibe_llms.memory.retrieval import RetrievalSettings


class MemorySettings(RetrievalSettings, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory]`: whose memory it is, how entries are chosen, and how conversations have it.

    `enabled` is what `chat` does where neither --memory nor --no-memory is given. A session that
    closes waits `drain_seconds` for what is still to be taken in. `recall` is what is brought to a
    turn, `[memory.recall]`, and `ingestion` how turns become memory, `[memory.ingestion]`.
    """

    user: str = "me"
    enabled: bool = False
    mode: MemoryMode = "automatic"
    drain_seconds: Seconds = 60.0
    recall: RecallSettings = RecallSettings()
    ingestion: IngestionSettings = IngestionSettings()


def read_memory_settings(configuration: Configuration) -> MemorySettings:
    """What `[memory]` says; a `ConfigurationError` names the key of what does not fit."""
    return configuration.read(MemorySettings, configuration.memory, "memory")


def produce_memory(configuration: Configuration, settings: MemorySettings) -> Memory:
    """The memory in the user's folder; nothing is read before it is asked. Close it."""
    return Memory(
        configuration.places.data / "memory",
        settings,
        lock_seconds=configuration.storage.lock_seconds,
        durable=configuration.storage.durability == "safe",
    )
