"""Several changes to one scope as one, with nothing changing between reading and writing.

A model that decides about memory is slow, so it works on a snapshot. Its decisions are applied here
to the current files, while the scope is held.
"""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.memory.entries import Entry, Role, Scope, check_entry
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.interfaces import EntryWriter
from vibe_llms.memory.places import DELETED
from vibe_llms.memory.records import IndexRecord


class HeldScope:
    """A held scope; made by `Memory.change` and valid until that returns.

    All methods wait for the disk, and none may call the memory. The folder is read once, and
    changes made here are known from then on. A concurrent edit by hand is noticed for entries that
    were found, and by the next `Memory.change`.
    """

    def __init__(self, files: EntryWriter, index: ScopeIndex) -> None:
        self._files = files
        self._index = index
        self._scanned = self._listed = False

    @property
    def scope(self) -> Scope:
        """The held scope."""
        return self._index.scope

    @property
    def entries(self) -> Sequence[IndexRecord]:
        """Records of the current entries, oldest first."""
        with self._index.lock:
            self._refresh()
            return [*self._index]

    def read(self, known: IndexRecord) -> Entry | None:
        """Read the entry of a record; return `None` if it is gone or damaged."""
        return self._index.read(known)

    def read_many(self, known: Sequence[IndexRecord]) -> Sequence[Entry | None]:
        """Read several entries, in the order of their records."""
        return self._index.read_many(known)

    def find(self, identity: str) -> Entry | None:
        """Read the entry with exactly this identity; return `None` if there is none."""
        known = self._locate(identity)
        return None if known is None else self.read(known)

    def find_repeat(self, entry: Entry) -> Entry | None:
        """Return the fact with the same words; see `ScopeIndex.find_repeat`."""
        with self._index.lock:
            found = self._index.find_repeat(entry, looked=self._listed)
            self._listed = True
        return found

    def holds(self, entry: Entry) -> bool:
        """Return True if the file of an entry is where it was written."""
        return self._files.holds(entry.scope, self._files.place_of(entry))

    def is_deleted(self, entry: Entry) -> bool:
        """Return True if the file of an entry is among the deleted ones."""
        return self._files.holds(entry.scope, f"{DELETED}/{self._files.place_of(entry)}")

    def has_forgotten(self, entry: Entry) -> bool:
        """Return True if an entry is completely gone, including its deleted file.

        The entry may belong to another scope, which is not held. Only the place where it was
        written counts; to find a file that was moved, search for its identity.
        """
        return not self.holds(entry) and not self.is_deleted(entry)

    def restore(self, entry: Entry) -> Entry:
        """Write an entry unchanged; return the existing one if it repeats a fact."""
        repeat = self.find_repeat(entry) if entry.role == Role.FACT else None
        return repeat or self.add(entry)

    def add(self, entry: Entry) -> Entry:
        """Write an entry, even if it repeats another; durable on return."""
        checked = check_entry(entry)
        self._add_to_index(checked, self._files.write(checked))
        return checked

    def rewrite(self, entry: Entry) -> bool:
        """Rewrite the entry with this identity in its file; return False if there is none."""
        known = self._locate(entry.identity)
        if known is None:
            return False
        self.write_over(entry, known)
        return True

    def is_unchanged(self, known: IndexRecord) -> bool:
        """Return True if the file of an entry is the same as when it was indexed."""
        return self._files.stat_many(self.scope, [known.place]).get(known.place) == known.stat

    def write_over(self, entry: Entry, known: IndexRecord) -> None:
        """Rewrite an entry at the place of its record."""
        checked = check_entry(entry)
        self._files.rewrite(checked, known.place)
        self._add_to_index(checked, known.place)

    def delete(self, entry: Entry, *, replaced_by: str = "") -> bool:
        """Move an entry to the deleted ones; return False if it is gone."""
        known = self._locate(entry.identity)
        if known is None:
            return False
        self.delete_record(entry, known, replaced_by=replaced_by)
        return True

    def delete_record(self, entry: Entry, known: IndexRecord, *, replaced_by: str = "") -> None:
        """Move an entry with a known record to the deleted ones."""
        self._files.delete(entry, known.place, replaced_by=replaced_by)
        with self._index.lock:
            self._index.drop_moved(known.place)

    def _locate(self, identity: str) -> IndexRecord | None:
        with self._index.lock:
            if not self._scanned:
                self._refresh()
            known = self._index.find(identity)
            if known is not None and not self.is_unchanged(known):
                # Edited by hand: it may be another entry now, or in another place.
                self._refresh()
                known = self._index.find(identity)
            return known

    def _refresh(self) -> None:
        self._index.refresh()
        self._scanned = self._listed = True

    def _add_to_index(self, entry: Entry, place: str) -> None:
        with self._index.lock:
            self._index.add_written(entry, place)


def evict(held: HeldScope, most: int) -> Sequence[Entry]:
    """Delete the oldest facts and turns of a scope until at most `most` are left.

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


#: Facts of at least this importance are deleted only if nothing else is left.
PROTECTED = 0.8


def _worth(known: IndexRecord) -> tuple[bool, float, str]:
    protected = known.role == Role.FACT and known.importance >= PROTECTED
    return protected, known.created.timestamp(), known.identity
