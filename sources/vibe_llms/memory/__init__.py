"""Long-term memory: facts, turns, and summaries in files that people can read and edit.

Names are imported on first use, as in `vibe_llms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.base.meta import export_lazily

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.embedding.core import EmbedderConfiguration
    from vibe_llms.embedding.core import register as register_embedder
    from vibe_llms.embedding.interfaces import Embedder
    from vibe_llms.memory.core import Memory
    from vibe_llms.memory.deduplication import Deduplication, DeduplicationSettings
    from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
    from vibe_llms.memory.history import Change, survey_changes
    from vibe_llms.memory.ingestion import Ingestion
    from vibe_llms.memory.interfaces import MemoryStore
    from vibe_llms.memory.reports import IngestionReport, IngestionSettings
    from vibe_llms.memory.retrieval import Recollection, RetrievalSettings
    from vibe_llms.memory.watching import watch
else:
    __getattr__, __dir__ = export_lazily(__name__, {
        ".core": "Memory",
        ".deduplication": "Deduplication DeduplicationSettings",
        "..embedding.core": "EmbedderConfiguration register_embedder=register",
        "..embedding.interfaces": "Embedder",
        ".entries": "Entry GLOBAL Role Scope",
        ".history": "Change survey_changes",
        ".ingestion": "Ingestion",
        ".interfaces": "MemoryStore",
        ".reports": "IngestionReport IngestionSettings",
        ".retrieval": "Recollection RetrievalSettings",
        ".watching": "watch",
    })

__all__ = [
    "GLOBAL", "Change", "Deduplication", "DeduplicationSettings", "Embedder",
    "EmbedderConfiguration", "Entry", "Ingestion", "IngestionReport", "IngestionSettings", "Memory",
    "MemoryStore", "Recollection", "RetrievalSettings", "Role", "Scope", "register_embedder",
    "survey_changes", "watch",
]
# fmt: on
