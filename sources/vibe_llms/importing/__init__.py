"""Import of conversations that other programs exported or stored."""

from typing import TYPE_CHECKING

from vibe_llms.base.meta import export_lazily

if TYPE_CHECKING:
    from vibe_llms.importing.core import import_conversations
    from vibe_llms.importing.reports import (
        ImportedConversation,
        ImportOptions,
        ImportProgress,
        ImportReport,
    )
else:
    __getattr__, __dir__ = export_lazily(
        __name__,
        {
            ".core": "import_conversations",
            ".reports": "ImportOptions ImportProgress ImportReport ImportedConversation",
        },
    )

__all__ = [
    "ImportOptions",
    "ImportProgress",
    "ImportReport",
    "ImportedConversation",
    "import_conversations",
]
