"""Long-term memory: facts, turns and summaries in files that people can read and edit.

Names are loaded from their homes when they are first used, as those of `vibe_llms` are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.memory.core import Memory
    from vibe_llms.memory.deduplication import Deduplication, DeduplicationSettings
    from vibe_llms.memory.embedders.core import EmbedderConfiguration
    from vibe_llms.memory.embedders.core import register as register_embedder
    from vibe_llms.memory.embedders.interfaces import Embedder
    from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
    from vibe_llms.memory.history import Change, survey_changes
    from vibe_llms.memory.ingestion import Ingestion
    from vibe_llms.memory.reports import IngestionReport, IngestionSettings
    from vibe_llms.memory.retrieval import Recollection, RetrievalSettings
    from vibe_llms.memory.watching import watch

_HOMES = {
    "core": "Memory",
    "deduplication": "Deduplication DeduplicationSettings",
    "embedders.core": "EmbedderConfiguration",
    "embedders.interfaces": "Embedder",
    "entries": "Entry GLOBAL Role Scope",
    "history": "Change survey_changes",
    "ingestion": "Ingestion",
    "reports": "IngestionReport IngestionSettings",
    "retrieval": "Recollection RetrievalSettings",
    "watching": "watch",
}

__all__ = [
    "GLOBAL", "Change", "Deduplication", "DeduplicationSettings", "Embedder",
    "EmbedderConfiguration", "Entry", "Ingestion", "IngestionReport", "IngestionSettings", "Memory",
    "Recollection", "RetrievalSettings", "Role", "Scope", "register_embedder", "survey_changes",
    "watch",
]
# fmt: on

_PLACES = {name: (home, name) for home, names in _HOMES.items() for name in names.split()}
_PLACES["register_embedder"] = ("embedders.core", "register")


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, there = _PLACES[name]
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), there)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
