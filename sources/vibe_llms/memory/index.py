"""The index of one scope: what its files say, kept in step with them, stored as one generation.

Files are the truth. Before every answer the folder is looked at; what changed is read again. The
index is stored as a folder that appears whole, with counts and checksums; one that does not fit is
made anew from the files, never taken half.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
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
from vibe_llms.storage.files import make_folder, new_folder, storage_errors, write_new

INDEX = "index"
#: Raised when what is stored changes its form; another one is made anew.
_FORMAT = f"1 {sys.byteorder}"
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
    format: str
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
        self._facts: dict[str, dict[str, Known]] = {}
        self._listed: set[str] = set()
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
        # Before the look: what appears between the two is seen as new the next time.
        self._listed = self._files.list_facts(self.scope)
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
            else:
                self.damaged.pop(place, None)
                self._broken.pop(place, None)
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
        """The fact that says the same as another one, word for word, as the files are now."""
        if not self._loaded or self._files.list_facts(self.scope) != self._listed:
            self.refresh()
        wanted = digest_of(entry.content)
        for known in [*self._facts.get(wanted, {}).values()]:
            found = self.read(known)
            if found is not None and digest_of(found.content) == wanted:
                return found
        return None

    def take_in(self, entry: Entry, place: str) -> None:
        """Take in a new entry, just written, without a look at all the others."""
        self._take(entry, place, self._files.look_at(self.scope, place))
        self._listed.add(os.path.basename(place))
        self._changes += 1

    def access(self, number: int) -> Known:
        """What is known of the entry with a number."""
        return self._numbered[number]

    def read(self, known: Known) -> Entry | None:
        """The entry as its file has it now; none where it has gone or is damaged."""
        try:
            return self._files.read(self.scope, known.place)
        except (FileNotFoundError, MemoryDamaged):
            return None

    def store(self, *, always: bool = False, seconds: float | None = None) -> None:
        """Keep the index for the next process, if enough has changed or it shall be `always`.

        It is derived: where the disk is full or read-only, or another process holds the scope for
        so many `seconds`, nothing is kept, and the next process makes it anew.
        """
        if not self._changes:
            return
        if not always and self._changes < max(_CHANGES, _SHARE * len(self._known)):
            return
        if not os.path.isdir(self._files.path_of(self.scope)):
            return
        # Two processes store one after the other, and nobody stores what is gone by now.
        with suppress(StorageError), self._files.changing(self.scope, seconds=seconds):
            self._files.clear(self.scope)
            self.refresh()
            self._write()

    def _write(self) -> None:
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
        with storage_errors(self._folder):
            make_folder(self._folder)
            old = os.listdir(self._folder)
            target = self._folder / os.urandom(8).hex()
            with new_folder(target, durable=False) as folder:
                for name, data in parts.items():
                    write_new(folder / name, data, durable=False)
                write_new(folder / "manifest", msgspec.json.encode(manifest), durable=False)
            self._changes = 0
            for name in old:
                _remove(self._folder / name)

    def discard(self) -> None:
        """Give up what is stored and known; the next look makes it anew."""
        with storage_errors(self._folder), suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                _remove(self._folder / name)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lexical = LexicalIndex()
        self._known, self._numbered, self._facts, self._turns = {}, {}, {}, []
        self._broken, self._listed = {}, set()
        self.damaged.clear()
        self._changes = 1
        self._loaded = True

    def _load(self) -> None:
        """Read a generation that is whole; which one matters little, as the files are looked at."""
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
        self._facts = {}
        for one in known:
            if one.role == Role.FACT:
                self._facts.setdefault(one.digest, {})[one.place] = one
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
            self._facts.setdefault(known.digest, {})[place] = known
        if _is_turn(entry.role):
            turn = (*known.order, number)
            insort(self._turns, turn)
            self._join(bisect_left(self._turns, turn))

    def _drop(self, place: str) -> None:
        known = self._known.pop(place)
        del self._numbered[known.number]
        if known.role == Role.FACT:
            alike = self._facts[known.digest]
            del alike[place]
            if not alike:
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
        # Turns of no known conversation are nobody's neighbours.
        together = before[0] == behind[0] and (before[0] or self.scope.kind == "conversation")
        if together and behind[1] - before[1] <= _APART:
            self._lexical.link(before[3], behind[3])
        else:
            self._lexical.link(before[3], NONE)
            self._lexical.link(NONE, behind[3])


def _is_turn(role: Role) -> bool:
    return role in (Role.USER, Role.ASSISTANT)


def _remove(path: Path) -> None:
    """What lies among the generations, whatever it is."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
