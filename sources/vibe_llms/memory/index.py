"""The index of one scope: what its files say, kept in step with them, stored as one generation.

Files are the truth: what changed in the folder is read again before an answer. What is stored of
the index is derived; where it does not fit it is made anew from the files, never taken half.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vibe_llms.exceptions import ArchiveLocked, EmbeddingsMixed, MemoryDamaged, StorageError
from vibe_llms.memory.catalogue import Catalogue, Known
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.files import Look, MemoryFiles
from vibe_llms.memory.generations import discard_generations, write_generation
from vibe_llms.memory.lexical import LexicalIndex
from vibe_llms.memory.lookout import Lookout
from vibe_llms.memory.outlines import outline_of
from vibe_llms.memory.sequences import TurnSequence, is_turn
from vibe_llms.memory.stored import StoredIndex, encode_index, read_index
from vibe_llms.memory.vectors import VectorIndex
from vibe_llms.memory.words import digest_of, label, split_words
from vibe_llms.storage.locks import Patience

INDEX = "index"
#: So many changes are worth storing the index anew, and this share of all.
_CHANGES, _SHARE = 64, 0.05


class ScopeIndex:
    """The entries of one scope, found by their words, and with the vectors of a `model` by those.

    `embedder` is the model that its vectors are of, stored ones too; where it is another than
    `model`, none are taken in or searched until the index is discarded. `loaded` tells whether it
    knows what lies in the files, or did.

    One thread at a time uses it, the one that holds its `lock`. `read` and `discard` need none, and
    whoever calls `store` must have none; the order is told in `vibe_llms.memory.indexes`.
    """

    def __init__(self, files: MemoryFiles, scope: Scope, model: str = "") -> None:
        self.scope = scope
        self.model = model
        self.embedder = ""
        self.damaged: dict[str, MemoryDamaged] = {}
        self.lock = threading.RLock()
        self.loaded = False
        self._files = files
        self._folder = files.folder / INDEX / str(scope)
        self._lookout = Lookout(files, scope)
        self._lexical = LexicalIndex()
        self._catalogue = Catalogue()
        self._sequence = TurnSequence(scope, self._lexical)
        self._broken: dict[str, Look] = {}
        self._vectors: VectorIndex | None = None
        self._bare: set[int] = set()
        self._changes = 0

    def __len__(self) -> int:
        return len(self._catalogue)

    def __iter__(self) -> Iterator[Known]:
        return iter(self._catalogue)

    @property
    def entries(self) -> Sequence[Known]:
        """All that is known, the oldest first."""
        return self._catalogue.oldest_first

    @property
    def summaries(self) -> int:
        """How many of its entries are such."""
        return self._catalogue.summaries

    @property
    def mixed(self) -> bool:
        """Whether vectors are stored that are of another model than the one that is asked."""
        return bool(self.model and self.embedder and self.embedder != self.model)

    def refresh(self, *, thorough: bool = True) -> None:
        """Take in what changed in the folder since the last time.

        Where it is not to be `thorough` and there are many files, those that were written over in
        place may be noticed some seconds later.
        """
        if not self.loaded:
            self._load()
            self.loaded = True
            thorough = True
        known = self._catalogue.places
        now = self._lookout.look(self._look_of, thorough=thorough)
        if now is None:
            return
        gone = [place for place in known if place not in now]
        changed = [
            place
            for place, look in now.items()
            if (old := known.get(place)) is None or old.look != look
            if self._broken.get(place) != look
        ]
        self.damaged = {place: error for place, error in self.damaged.items() if place in now}
        self._broken = {place: look for place, look in self._broken.items() if place in now}
        for place in (*gone, *(place for place in changed if place in known)):
            self._drop(place)
        read: list[tuple[Entry, str, Look]] = []
        for place in changed:
            try:
                read.append((self._files.read(self.scope, place), place, now[place]))
            except MemoryDamaged as error:
                self.damaged[place] = error
                if isinstance(error.__cause__, OSError):
                    # Not the file is broken, but it could not be read now; the next time perhaps.
                    self._lookout.doubt()
                else:
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

    def _look_of(self, place: str) -> Look | None:
        """What the file at a place looked like when it was read."""
        known = self._catalogue.places.get(place)
        return self._broken.get(place) if known is None else known.look

    def frequency(self, word: str) -> int:
        """In about how many entries a word stands."""
        return self._lexical.frequency(word)

    def score(self, rarities: Mapping[str, float]) -> Mapping[int, float]:
        """How well entries fit a question, by their numbers; see `LexicalIndex.score`."""
        return self._lexical.score(rarities)

    def assess(
        self, rarities: Mapping[str, float], numbers: Collection[int]
    ) -> Mapping[int, float]:
        """The same for some entries, exactly."""
        return self._lexical.assess(rarities, numbers)

    def rank(self, question: array[float], count: int) -> Mapping[int, float]:
        """The entries that mean most nearly what a vector means, with their cosines."""
        return {} if self._vectors is None else self._vectors.search(question, count)

    def compare(self, question: array[float], numbers: Sequence[int]) -> Mapping[int, float]:
        """The cosines of some entries, as far as they have vectors."""
        return {} if self._vectors is None else self._vectors.score(question, numbers)

    def sum_up(self, question: array[float]) -> tuple[float, int]:
        """The cosines of all passages together, and how many passages there are."""
        return (0.0, 0) if self._vectors is None else self._vectors.sum_up(question)

    def vectors_of(self, number: int) -> Any:
        """The vectors of an entry's passages as an array of numpy; none if it has none."""
        return None if self._vectors is None else self._vectors.read(number)

    def survey_bare(self, count: int) -> Sequence[tuple[Known, Entry]]:
        """Some entries that have no vectors yet, the newest first."""
        found: list[tuple[Known, Entry]] = []
        if not self.model or self.mixed:
            return found
        for number in sorted(self._bare, reverse=True)[:count]:
            known = self._catalogue.numbers[number]
            entry = self.read(known)
            if entry is None:
                self._bare.discard(number)
            else:
                found.append((known, entry))
        return found

    def still_has(self, known: Known) -> bool:
        """Whether what was known is so still; an index that was made anew has other numbers."""
        return self._catalogue.numbers.get(known.number) is known

    def take_vectors(self, vectors: Mapping[int, Sequence[array[float]]]) -> None:
        """Take in the vectors of entries, made by the `model`; those of entries gone are not."""
        fresh = {number: some for number, some in vectors.items() if number in self._bare}
        if not fresh or self.mixed:
            return
        if self._vectors is None:
            self._vectors = VectorIndex(self.model)
        every = [one for some in fresh.values() for one in some]
        if not all(self._vectors.fits(one) for one in every):
            raise EmbeddingsMixed(
                f"{self.model} gives vectors of {len(every[0])} dimensions now, not of "
                f"{self._vectors.dimension}; make them anew: vibe-llms memory reindex"
            )
        self._vectors.add(fresh)
        self.embedder = self.model
        self._bare -= fresh.keys()
        self._changes += len(fresh)

    def find_repeat(self, entry: Entry, *, looked: bool = False) -> Entry | None:
        """The fact that says the same as another one, word for word, as the files are now.

        Whoever has `looked` since the scope is held knows of all that others added.
        """
        if not looked and not (self.loaded and self._lookout.is_listed()):
            self.refresh()
        wanted = digest_of(entry.content)
        for known in self._catalogue.survey_facts(wanted):
            found = self.read(known)
            if found is not None and digest_of(found.content) == wanted:
                return found
        return None

    def find(self, identity: str) -> Known | None:
        """What is known of the entry with this very identity."""
        return self._catalogue.find(identity)

    def take_in(self, entry: Entry, place: str) -> None:
        """Take in an entry, just written at a place, without a look at all the others."""
        look = self._files.look_at(self.scope, place)
        known = self._catalogue.places.get(place)
        if not self.loaded or look is None or (known is not None and known.look == look):
            # The next refresh sees it, or one of another thread has.
            return
        if known is not None:
            self._drop(place)
        self.damaged.pop(place, None)
        self._broken.pop(place, None)
        self._take(entry, place, look)
        if entry.role == Role.FACT:
            self._lookout.listed.add(os.path.basename(place))
        self._changes += 1

    def leave_out(self, place: str) -> None:
        """Give up what was at a place, just moved away, without a look at all the others."""
        known = self._catalogue.places.get(place)
        if known is not None:
            self._drop(place)
            if known.role == Role.FACT:
                self._lookout.listed.discard(os.path.basename(place))
            self._changes += 1

    def access(self, number: int) -> Known:
        """What is known of the entry with a number."""
        return self._catalogue.numbers[number]

    def read(self, known: Known) -> Entry | None:
        """The entry as its file has it now; none where it has gone or is damaged."""
        try:
            return self._files.read(self.scope, known.place)
        except (FileNotFoundError, MemoryDamaged):
            return None

    def store(self, *, always: bool = False, seconds: float | Patience | None = None) -> bool:
        """Keep the index for the next process, if enough has changed or it shall be `always`.

        It is derived: where the disk is full or read-only, or another process holds the scope for
        so many `seconds`, nothing is kept, and the next process makes it anew. False where it was
        held.
        """
        enough = 1 if always else max(_CHANGES, _SHARE * len(self))
        if self._changes < enough or not os.path.isdir(self._files.path_of(self.scope)):
            return True
        try:
            # Two processes store one after the other, and nobody stores what is gone by now.
            with self._files.changing(self.scope, seconds=seconds):
                self._files.clear(self.scope)
                self._write()
        except ArchiveLocked:
            return False
        except StorageError:
            return True
        return True

    def _write(self) -> None:
        with self.lock:
            self.refresh()
            known = list(self._catalogue)
            stored = StoredIndex(known, self._lexical, self._vectors, self.embedder)
            counts, parts = encode_index(stored)
            changes, self._changes = self._changes, 0
        written = False
        try:
            write_generation(self._folder, counts, parts)
            written = True
        finally:
            if not written:
                with self.lock:
                    self._changes += changes

    def discard(self) -> None:
        """Give up what is stored and known; to be called while the scope is held.

        The next look makes it anew.
        """
        discard_generations(self._folder)
        with self.lock:
            self.embedder = ""
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._lexical = LexicalIndex()
        self._catalogue = Catalogue()
        self._sequence = TurnSequence(self.scope, self._lexical)
        self._vectors, self._bare = None, set()
        self._broken = {}
        self._lookout.begin_anew()
        self.damaged.clear()
        self._changes = 1
        self.loaded = True

    def _load(self) -> None:
        """Read a generation that is whole; which one matters little, as the files are looked at."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            try:
                self._take_over(read_index(self._folder / name, self.model))
                return
            except (OSError, ValueError, StorageError):
                self._begin_anew()

    def _take_over(self, stored: StoredIndex) -> None:
        self._vectors, self.embedder = stored.vectors, stored.embedder
        numbers = {one.number for one in stored.known}
        self._bare = numbers - (set() if stored.vectors is None else stored.vectors.numbers)
        self._lexical = stored.lexical
        self._catalogue = Catalogue(stored.known)
        self._sequence = TurnSequence(self.scope, stored.lexical, stored.known)

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
            is_turn(entry.role) and entry.content.endswith(("?", "\uff1f")),
            outline_of(entry),
        )
        self._bare.add(number)
        self._catalogue.add(known)
        self._sequence.add(known)

    def _drop(self, place: str) -> None:
        known = self._catalogue.remove(place)
        self._lexical.remove(known.number)
        self._bare.discard(known.number)
        if self._vectors is not None:
            self._vectors.remove(known.number)
        self._sequence.remove(known)
