"""Several changes to one scope as one: what was read before them is still so when they are made.

Whoever decides slowly about memory works on a snapshot. What was decided is carried out here, while
the scope is held, against what the files say by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.memory.entries import Entry, Scope, check_entry
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import Known, ScopeIndex


class HeldScope:
    """A scope while it is held; made by `Memory.change`, and of no use when that has returned.

    All methods wait for the disk; nothing here may call the memory itself.
    """

    def __init__(self, files: MemoryFiles, index: ScopeIndex) -> None:
        self._files = files
        self._index = index

    @property
    def scope(self) -> Scope:
        """The scope that is held."""
        return self._index.scope

    @property
    def entries(self) -> Sequence[Known]:
        """What is known of the entries as they are now, the oldest first."""
        self._index.refresh()
        return self._index.entries

    def read(self, known: Known) -> Entry | None:
        """The entry itself; none where it has gone or is damaged."""
        return self._index.read(known)

    def is_unchanged(self, known: Known) -> bool:
        """Whether the file of an entry is still what it was when it was looked at."""
        return self._files.find_look(self.scope, known.place) == known.look

    def write_over(self, entry: Entry, known: Known) -> None:
        """Write an entry anew where its place is known."""
        self._files.rewrite(check_entry(entry), known.place)

    def put_away(self, entry: Entry, known: Known, *, replaced_by: str = "") -> None:
        """Move an entry among the deleted ones where its place is known."""
        self._files.give_up(entry, known.place, replaced_by=replaced_by)
