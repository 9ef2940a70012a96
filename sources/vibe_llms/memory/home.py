"""Memory in files of the home folder."""

from __future__ import annotations

from vibe_llms.base.configuration import Configuration
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.journal import Journal
from vibe_llms.storage.backends import Backend


class HomeStores:
    """Factory for the memory in each user's folder."""

    def open_store(self, user: str, configuration: Configuration) -> MemoryFiles:
        """Open the memory below the places of a configuration, which belong to the user."""
        del user
        storage = configuration.storage
        return MemoryFiles(
            configuration.places.data / "memory",
            lock_seconds=storage.lock_seconds,
            durable=storage.durability == "safe",
        )

    def open_journal(self, user: str, configuration: Configuration) -> Journal:
        """Open the tickets below the places of a configuration."""
        del user
        durable = configuration.storage.durability == "safe"
        return Journal(configuration.places.state / "ingestion", durable=durable)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def produce_store(backend: Backend) -> HomeStores:
    """Produce the memory of the home folder."""
    del backend
    return HomeStores()
