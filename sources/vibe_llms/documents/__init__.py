"""Documents: the text of files, where each part of it came from, and the passages that answer.

Names are imported when they are first used, as in `vibe_llms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.meta import export_lazily

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.documents.collections import Collection, CollectionFile
    from vibe_llms.documents.core import Documents, Found
    from vibe_llms.documents.passages import Passage
    from vibe_llms.documents.readers.interfaces import Reader, Remark, Source
    from vibe_llms.documents.readers.interfaces import register as register_reader
    from vibe_llms.documents.reading import DocumentReader
    from vibe_llms.documents.store import DocumentStore, Refreshed
    from vibe_llms.documents.texts import DocumentText, Part, Place
else:
    __getattr__, __dir__ = export_lazily(__name__, {
        ".collections": "Collection CollectionFile",
        ".core": "Documents Found",
        ".passages": "Passage",
        ".readers.interfaces": "Reader Remark Source register_reader=register",
        ".reading": "DocumentReader",
        ".store": "DocumentStore Refreshed",
        ".texts": "DocumentText Part Place",
    })

__all__ = [
    "Collection", "CollectionFile", "DocumentReader", "DocumentStore", "DocumentText", "Documents",
    "Found", "Part", "Passage", "Place", "Reader", "Refreshed", "Remark", "Source",
    "register_reader",
]
# fmt: on
