"""Index record of an entry: its file and its sort keys."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from vibe_llms.memory.entries import Role
from vibe_llms.memory.metadata import Metadata
from vibe_llms.memory.places import FileStat


class IndexRecord(Struct, frozen=True, array_like=True):
    """Entry in the index of its scope.

    `number` identifies it there, `stat` describes its file when it was read, `digest` is the digest
    of its normalized text, and `asks` is true for a turn that ends with a question mark.
    """

    place: str
    stat: FileStat
    number: int
    identity: str
    role: Role
    created: datetime
    importance: float
    conversation: str
    digest: str
    asks: bool
    metadata: Metadata
