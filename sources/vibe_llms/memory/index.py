"""The index of one scope: what its files say, kept in step with them, stored as one generation.

Files are the truth. Before every answer the folder is looked at; what changed is read again. The
index is stored as a folder that appears whole, with counts and checksums; one that does not fit is
made anew from the files, never taken half.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import MemoryDamaged, StorageError
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.files import Look, MemoryFiles
from vibe_llms.memory.lexical import NONE, LexicalIndex
from vibe_llms.memory.words import digest_of, label, split_words
from vibe_llms.storage.files import make_folder, new_folder, remove_folder, write_new

INDEX = "index"
#: Raised when what is stored changes its form; another one is made anew.
_FORMAT = 1
#: Turns that are further apart stand in no window of each other.
_APART = timedelta(hours=1)
#: So many changes are worth storing the index anew, and this share of all.
_CHANGES, _SHARE = 64, 0.05


class Known(Struct, array_like=True):
    """What the index keeps of an entry: where it lies, its number, and what it is sorted by."""

    place: str
    look: Look
    number: int
    identity: str
    role: Role
    created: datetime
    importance: float
    conversation: str
    digest: str

    @property
    def order(self) -> tuple[str, datetime, str]:
        """Where it stands among the turns of its conversation."""
        return self.conversation, self.created, self.identity


class _Manifest(Struct):
    format: int
    entries: int
    words: int
    checksums: dict[str, str]


class ScopeIndex:
    """The entries of one scope, found by their words."""

    def __init__(self, files: MemoryFiles, scope: Scope) -> None:
        self.scope = scope
        self.damaged: dict[str, MemoryDamaged] = {}
        self._files = files
        self._folder = files.folder / INDEX / str(scope)
        self._lexical = LexicalIndex()
        self._known: dict[str, Known] = {}
        self._numbered: dict[int, Known] = {}
        self._facts: dict[str, Known] = {}
        self._turns: list[tuple[str, datetime, str, int]] = []
        self._broken: dict[str, Look] = {}
        self._changes = 0
        self._loaded = False

    def __len__(self) -> int:
        return len(self._known)

    @property
    def entries(self) -> Sequence[Known]:
        """All that is known, the oldest first."""
        return sorted(self._known.values(), key=lambda one: (one.created, one.identity))

    def refresh(self) -> None:
        """Take in what changed in the folder since the last time."""
        if not self._loaded:
            self._load()
            self._loaded = True
        now = self._files.look(self.scope)
        gone = [place for place in self._known if place not in now]
        changed = [
            place
            for place, look in now.items()
            if (known := self._known.get(place)) is None or known.look != look
            if self._broken.get(place) != look
        ]
        for place in (place for place in self._broken if place not in now):
            self.damaged.pop(place, None)
        self._broken = {place: look for place, look in self._broken.items() if place in now}
        for place in (*gone, *(place for place in changed if place in self._known)):
            self._drop(place)
        read: list[tuple[Entry, str, Look]] = []
        for place in changed:
            try:
                read.append((self._files.read(self.scope, place), place, now[place]))
            except MemoryDamaged as error:
                self.damaged[place] = error
                self._broken[place] = now[place]
            except FileNotFoundError:
                continue
        for entry, place, look in sorted(read, key=lambda one: (one[0].created, one[0].identity)):
            self._take(entry, place, look)
        self._changes += len(gone) + len(changed)
        if self._lexical.wasteful:
            self._begin_anew()
            self.refresh()

    def frequency(self, word: str) -> int:
        """In about how many entries a word stands."""
        return self._lexical.frequency(word)

    def score(self, rarities: Mapping[str, float]) -> Mapping[int, float]:
        """How well entries fit a question, by their numbers; see `LexicalIndex.score`."""
        return self._lexical.score(rarities)

    def find_repeat(self, entry: Entry) -> Entry | None:
        """The fact that says the same as another one, word for word."""
        known = self._facts.get(digest_of(entry.content))
        return None if known is None else self.read(known)

    def access(self, number: int) -> Known:
        """What is known of the entry with a number."""
        return self._numbered[number]

    def read(self, known: Known) -> Entry | None:
        """The entry as its file has it now; none where it has gone or is damaged."""
        try:
            return self._files.read(self.scope, known.place)
        except (FileNotFoundError, MemoryDamaged):
            return None

    def store(self, *, always: bool = False) -> None:
        """Keep the index for the next process, if enough has changed or it shall be `always`."""
        if not self._changes:
            return
        if not always and self._changes < max(_CHANGES, _SHARE * len(self._known)):
            return
        parts = {
            "entries": msgspec.msgpack.encode(list(self._known.values())),
            "words": self._lexical.encode(),
        }
        manifest = _Manifest(
            _FORMAT,
            len(self._known),
            len(self._lexical),
            {name: _digest(data) for name, data in parts.items()},
        )
        try:
            make_folder(self._folder)
            old = os.listdir(self._folder)
            target = self._folder / os.urandom(8).hex()
            with new_folder(target, durable=False) as folder:
                for name, data in parts.items():
                    write_new(folder / name, data, durable=False)
                write_new(folder / "manifest", msgspec.json.encode(manifest), durable=False)
            for name in old:
                remove_folder(self._folder / name)
        except OSError:
            # It is derived: on a full or read-only disk it is made anew by the next process.
            return
        self._changes = 0

    def discard(self) -> None:
        """Give up what is stored and known; the next look makes it anew."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                remove_folder(self._folder / name)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lexical = LexicalIndex()
        self._known, self._numbered, self._facts, self._turns = {}, {}, {}, []
        self._broken = {}
        self.damaged.clear()
        self._changes = 1
        self._loaded = True

    def _load(self) -> None:
        """Read the newest generation that is whole."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            try:
                self._read_generation(self._folder / name)
                return
            except (OSError, ValueError, StorageError):
                self._begin_anew()

    def _read_generation(self, folder: Path) -> None:
        manifest = msgspec.json.decode((folder / "manifest").read_bytes(), type=_Manifest)
        if manifest.format != _FORMAT:
            raise ValueError("another version made it")
        parts = {name: (folder / name).read_bytes() for name in ("entries", "words")}
        if {name: _digest(data) for name, data in parts.items()} != manifest.checksums:
            raise ValueError("its checksums do not fit")
        known = msgspec.msgpack.decode(parts["entries"], type=list[Known])
        lexical = LexicalIndex.decode(parts["words"])
        if len(known) != manifest.entries or len(lexical) != manifest.words:
            raise ValueError("its counts do not fit")
        if len(known) != lexical.count:
            raise ValueError("its parts do not fit each other")
        self._lexical = lexical
        self._known = {one.place: one for one in known}
        self._numbered = {one.number: one for one in known}
        self._facts = {one.digest: one for one in known if one.role == Role.FACT}
        self._turns = sorted((*one.order, one.number) for one in known if _is_turn(one.role))

    def _take(self, entry: Entry, place: str, look: Look) -> None:
        number = self._lexical.add(
            split_words(entry.content),
            label(entry.speaker, entry.created, (entry.category, *entry.topics)),
        )
        known = Known(
            place,
            look,
            number,
            entry.identity,
            entry.role,
            entry.created,
            entry.importance,
            entry.conversation,
            digest_of(entry.content),
        )
        self._known[place] = self._numbered[number] = known
        if entry.role == Role.FACT:
            self._facts[known.digest] = known
        if _is_turn(entry.role):
            turn = (*known.order, number)
            insort(self._turns, turn)
            self._join(bisect_left(self._turns, turn))

    def _drop(self, place: str) -> None:
        known = self._known.pop(place)
        del self._numbered[known.number]
        if self._facts.get(known.digest) is known:
            del self._facts[known.digest]
        self._lexical.remove(known.number)
        if _is_turn(known.role):
            position = bisect_left(self._turns, (*known.order, known.number))
            del self._turns[position]
            if 0 < position < len(self._turns):
                self._link(position - 1, position)

    def _join(self, position: int) -> None:
        """Make a turn the neighbour of those beside it."""
        if position:
            self._link(position - 1, position)
        if position + 1 < len(self._turns):
            self._link(position, position + 1)

    def _link(self, first: int, second: int) -> None:
        before, behind = self._turns[first], self._turns[second]
        if before[0] == behind[0] and behind[1] - before[1] <= _APART:
            self._lexical.link(before[3], behind[3])
        else:
            self._lexical.link(before[3], NONE)
            self._lexical.link(NONE, behind[3])


def _is_turn(role: Role) -> bool:
    return role in (Role.USER, Role.ASSISTANT)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
