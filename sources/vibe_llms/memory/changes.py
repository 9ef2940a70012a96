"""Several changes to one scope as one: what was read before them is still so when they are made.

Whoever lets a model decide about memory works on a snapshot, since a model takes long. What it
decided is carried out here, while the scope is held, against what the files say by then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.entries import Entry, Role, Scope, check_entry
from vibe_llms.memory.files import DELETED, MemoryFiles
from vibe_llms.memory.index import ScopeIndex


class HeldScope:
    """A scope while it is held; made by `Memory.change`, and of no use when that has returned.

    All methods wait for the disk; nothing here may call the memory itself. The folder is looked
    through once, and what is changed here is known from then on; what people change by hand in that
    short time is seen where it is about an entry that was found, and by the next change.
    """

    def __init__(self, files: MemoryFiles, index: ScopeIndex) -> None:
        self._files = files
        self._index = index
        self._looked = self._listed = False

    @property
    def scope(self) -> Scope:
        """The scope that is held."""
        return self._index.scope

    @property
    def entries(self) -> Sequence[Known]:
        """What is known of the entries as they are now, the oldest first."""
        with self._index.lock:
            self._look()
            return self._index.entries

    def read(self, known: Known) -> Entry | None:
        """The entry itself; none where it has gone or is damaged."""
        return self._index.read(known)

    def find(self, identity: str) -> Entry | None:
        """The entry with this very identity, as its file has it now; none where there is none."""
        known = self._locate(identity)
        return None if known is None else self.read(known)

    def find_repeat(self, entry: Entry) -> Entry | None:
        """The fact that says the same, word for word; see `ScopeIndex.find_repeat`."""
        with self._index.lock:
            found = self._index.find_repeat(entry, looked=self._listed)
            self._listed = True
        return found

    def holds(self, entry: Entry) -> bool:
        """Whether the file of an entry is still where it was written."""
        return self._is_there(entry.scope, self._files.place_of(entry))

    def has_given_up(self, entry: Entry) -> bool:
        """Whether the file of an entry lies among the deleted ones."""
        return self._is_there(entry.scope, f"{DELETED}/{self._files.place_of(entry)}")

    def has_forgotten(self, entry: Entry) -> bool:
        """Whether there is nothing left of an entry that was written, not even a deleted file.

        The entry may be of another scope, which is not held. It counts where it lay when it was
        written; who moved its file has to look for it by its identity.
        """
        return not self.holds(entry) and not self.has_given_up(entry)

    def restore(self, entry: Entry) -> Entry:
        """Write an entry as it is; of a fact that is there already, that one."""
        repeat = self.find_repeat(entry) if entry.role == Role.FACT else None
        return repeat or self.add(entry)

    def add(self, entry: Entry) -> Entry:
        """Write an entry; durable when this returns. Whether it is a repeat is not looked at."""
        checked = check_entry(entry)
        self._take_in(checked, self._files.write(checked))
        return checked

    def rewrite(self, entry: Entry) -> bool:
        """Write the entry with this identity anew, in its file; false where there is none."""
        known = self._locate(entry.identity)
        if known is None:
            return False
        self.write_over(entry, known)
        return True

    def is_unchanged(self, known: Known) -> bool:
        """Whether the file of an entry is still what it was when it was looked at."""
        return self._files.look_at(self.scope, known.place) == known.look

    def write_over(self, entry: Entry, known: Known) -> None:
        """Write an entry anew where its place is known."""
        checked = check_entry(entry)
        self._files.rewrite(checked, known.place)
        self._take_in(checked, known.place)

    def give_up(self, entry: Entry, *, replaced_by: str = "") -> bool:
        """Move an entry among the deleted ones; false where it is there no more."""
        known = self._locate(entry.identity)
        if known is None:
            return False
        self.put_away(entry, known, replaced_by=replaced_by)
        return True

    def put_away(self, entry: Entry, known: Known, *, replaced_by: str = "") -> None:
        """The same where its place is known."""
        self._files.give_up(entry, known.place, replaced_by=replaced_by)
        with self._index.lock:
            self._index.leave_out(known.place)

    def _locate(self, identity: str) -> Known | None:
        with self._index.lock:
            if not self._looked:
                self._look()
            known = self._index.find(identity)
            if known is not None and not self.is_unchanged(known):
                # By hand: it may be somebody else's by now, or lie somewhere else.
                self._look()
                known = self._index.find(identity)
            return known

    def _look(self) -> None:
        self._index.refresh()
        self._looked = self._listed = True

    def _take_in(self, entry: Entry, place: str) -> None:
        with self._index.lock:
            self._index.take_in(entry, place)

    def _is_there(self, scope: Scope, place: str) -> bool:
        return os.path.lexists(self._files.path_of(scope, place))


def evict(held: HeldScope, most: int) -> Sequence[Entry]:
    """Give up the oldest facts and turns of a scope until it has no more than `most` of them.

    Summaries neither count nor go. Facts of an importance from `PROTECTED` on go last.
    """
    counted = [known for known in held.entries if known.role != Role.SUMMARY]
    gone: list[Entry] = []
    for known in sorted(counted, key=_worth):
        if len(gone) >= len(counted) - most:
            break
        entry = held.read(known)
        if entry is not None:
            held.put_away(entry, known)
            gone.append(entry)
    return gone


#: Facts that are so important are given up only where there is nothing else left to give up.
PROTECTED = 0.8


def _worth(known: Known) -> tuple[bool, float, str]:
    protected = known.role == Role.FACT and known.importance >= PROTECTED
    return protected, known.created.timestamp(), known.identity
