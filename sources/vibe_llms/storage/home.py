"""The backend in files of the home folder, which every home begins with."""

from __future__ import annotations

from collections.abc import Mapping

from vibe_llms.configuration import Configuration, Places
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.backends import register
from vibe_llms.storage.interfaces import Report, ignore


class HomeBackend:
    """Folders for conversations and memory, SQLite for runs and budgets."""

    parts: Mapping[str, str] = {
        "runs": "vibe_llms.runs.sqlite",
        "budgets": "vibe_llms.runs.sqlite_budgets",
        "memory": "vibe_llms.memory.home",
    }

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def open_archive(
        self, user: str, places: Places, *, report: Report = ignore
    ) -> DirectoryArchive:
        """The archive in the user's folder."""
        del user
        return DirectoryArchive(places.data, self.configuration.storage, report=report)

    async def close(self) -> None:
        """Nothing is open."""


register("home", HomeBackend)
