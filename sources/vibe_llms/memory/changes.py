"""Several changes to one scope as one, so that nothing changes between reading and writing.

A model that decides about memory is slow, so it works on a snapshot. Its decisions are applied
here, to the current files, while the scope is held.
"""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.memory.entries import Entry, Role, Scope, check_entry
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.places import DELETED
from vibe_llms.memory.records import IndexRecord


class HeldScope:
    """A scope while it is held; made by `Memory.change`, and valid until that returns.

    All methods wait for the disk, and none may call the memory itself. The folder is read once, and
    changes made here are known from then on. Changes by hand in that short time are noticed for
    entries that were found, and by the next `Memory.change`.
    """

    def __init__(self, files: MemoryStore, index: ScopeIndex) -> None:
        self._files = files
        self._index = index
        self._scanned = self._listed = False

    @property
    def scope(self) -> Scope:
        """The scope that is held."""
        return self._index.scope

    @property
    def entries(self) -> Sequence[IndexRecord]:
        """The records of the current entries, the oldest first."""
        with self._index.lock:
            self._refresh()
            return [*self._index]

    def read(self, known: IndexRecord) -> Entry | None:
        """The entry itself; none if it is gone or damaged."""
        return self._index.read(known)

    def read_many(self, known: Sequence[IndexRecord]) -> Sequence[Entry | None]:
        """The same for several entries, in their order."""
        return self._index.read_many(known)

    def find(self, identity: str) -> Entry | None:
        """The entry with exactly this identity, as its file is now; `None` if there is none."""
        known = self._locate(identity)
        return None if known is None else self.read(known)

    def find_repeat(self, entry: Entry) -> Entry | None:
        """The fact that says the same, word for word; see `ScopeIndex.find_repeat`."""
        with self._index.lock:
            found = self._index.find_repeat(entry, looked=self._listed)
            self._listed = True
        return found

    def holds(self, entry: Entry) -> bool:
        """Whether the file of an entry is where it was written."""
        return self._files.holds(entry.scope, self._files.place_of(entry))

    def is_deleted(self, entry: Entry) -> bool:
        """Whether the file of an entry is among the deleted ones."""
        return self._files.holds(entry.scope, f"{DELETED}/{self._files.place_of(entry)}")

    def has_forgotten(self, entry: Entry) -> bool:
        """Whether an entry that was written is completely gone, its deleted file too.

        The entry may belong to another scope, which is not held. Only the place where it was
        written counts; to find a file that was moved, look for its identity.
        """
        return not self.holds(entry) and not self.is_deleted(entry)

    def restore(self, entry: Entry) -> Entry:
        """Write an entry as it is; a fact that is there already is returned instead."""
        repeat = self.find_repeat(entry) if entry.role == Role.FACT else None
        return repeat or self.add(entry)

    def add(self, entry: Entry) -> Entry:
        """Write an entry, even if it repeats another; durable when this returns."""
        checked = check_entry(entry)
        self._take_in(checked, self._files.write(checked))
        return checked

    def rewrite(self, entry: Entry) -> bool:
        """Write the entry with this identity again, in its file; false if there is none."""
        known = self._locate(entry.identity)
        if known is None:
            return False
        self.write_over(entry, known)
        return True

    def is_unchanged(self, known: IndexRecord) -> bool:
        """Whether the file of an entry is what it was when it was indexed."""
        return self._files.stat_many(self.scope, [known.place]).get(known.place) == known.stat

    def write_over(self, entry: Entry, known: IndexRecord) -> None:
        """Write an entry again whose record is known."""
        checked = check_entry(entry)
        self._files.rewrite(checked, known.place)
        self._take_in(checked, known.place)

    def delete(self, entry: Entry, *, replaced_by: str = "") -> bool:
        """Move an entry to the deleted ones; false if it is gone."""
        known = self._locate(entry.identity)
        if known is None:
            return False
        self.delete_record(entry, known, replaced_by=replaced_by)
        return True

    def delete_record(self, entry: Entry, known: IndexRecord, *, replaced_by: str = "") -> None:
        """The same for an entry whose record is known."""
        self._files.delete(entry, known.place, replaced_by=replaced_by)
        with self._index.lock:
            self._index.leave_out(known.place)

    def _locate(self, identity: str) -> IndexRecord | None:
        with self._index.lock:
            if not self._scanned:
                self._refresh()
            known = self._index.find(identity)
            if known is not None and not self.is_unchanged(known):
                # Changed by hand: it may be another entry now, or in another place.
                self._refresh()
                known = self._index.find(identity)
            return known

    def _refresh(self) -> None:
        self._index.refresh()
        self._scanned = self._listed = True

    def _take_in(self, entry: Entry, place: str) -> None:
        with self._index.lock:
            self._index.take_in(entry, place)


def evict(held: HeldScope, most: int) -> Sequence[Entry]:
    """Delete the oldest facts and turns of a scope until it has at most `most` of them.

    Summaries do not count and stay. Facts with an importance of `PROTECTED` or more go last.
    """
    counted = [known for known in held.entries if known.role != Role.SUMMARY]
    gone: list[Entry] = []
    for known in sorted(counted, key=_worth):
        if len(gone) >= len(counted) - most:
            break
        entry = held.read(known)
        if entry is not None:
            held.delete_record(entry, known)
            gone.append(entry)
    return gone


#: Facts of this importance are deleted only if nothing else is left.
PROTECTED = 0.8


def _worth(known: IndexRecord) -> tuple[bool, float, str]:
    protected = known.role == Role.FACT and known.importance >= PROTECTED
    return protected, known.created.timestamp(), known.identity
