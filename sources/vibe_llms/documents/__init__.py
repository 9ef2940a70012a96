"""Documents: the text of files, the place of each part, and the passages that fit a request.

Names are imported on first use, as in `vibe_llms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.base.meta import export_lazily

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.conversations.document_texts import DocumentText, Part, Place
    from vibe_llms.documents.collections import Collection, CollectionFile
    from vibe_llms.documents.core import Documents, Found
    from vibe_llms.documents.passages import Passage
    from vibe_llms.documents.readers.interfaces import Reader, ReaderNotice, Source
    from vibe_llms.documents.readers.interfaces import register as register_reader
    from vibe_llms.documents.reading import DocumentReader
    from vibe_llms.documents.store import DocumentStore, Refreshed
else:
    __getattr__, __dir__ = export_lazily(__name__, {
        ".collections": "Collection CollectionFile",
        ".core": "Documents Found",
        ".passages": "Passage",
        ".readers.interfaces": "Reader ReaderNotice Source register_reader=register",
        ".reading": "DocumentReader",
        ".store": "DocumentStore Refreshed",
        "..conversations.document_texts": "DocumentText Part Place",
    })

__all__ = [
    "Collection",
    "CollectionFile",
    "DocumentReader",
    "DocumentStore",
    "DocumentText",
    "Documents",
    "Found",
    "Part",
    "Passage",
    "Place",
    "Reader",
    "ReaderNotice",
    "Refreshed",
    "Source",
    "register_reader",
]
# fmt: on
