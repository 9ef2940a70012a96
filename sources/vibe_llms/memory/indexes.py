"""The indexes of scopes in use, and of recently used ones.

The order of locks, from the outside in; none is taken while one after it is held:

1. the `CrossLoopLock` of a scope, in `memory.core`: tasks of this process wait to change it;
2. that of the scope in its store, `MemoryStore.changing`: other processes wait, perhaps for long;
3. the locks of indexes, `ScopeIndex.lock`, several in the order of their scopes: threads that read
   and take in what was read wait, never for another process;
4. the lock of the collection here, only for a lookup.

So a task that waits for another process holds no index lock, and searches continue. The vector file
and git have locks of their own, taken without 3 and 4.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from vibe_llms.base.locks import LockTimeout
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.interfaces import IndexStorage
from vibe_llms.memory.long_work import LongWork

#: Maximum number of indexes in memory. A turn uses three, of a user, a conversation, and the global
#: scope, which leaves room for some conversations at once. An index of 500 entries, the default
#: limit of a scope, takes 2 MB, and loads from disk in 4 ms.
MOST = 16


class _Place:
    """An index, its number of current users, and of all uses."""

    def __init__(self, index: ScopeIndex) -> None:
        self.index = index
        self.users = self.uses = 0


class Indexes:
    """Indexes of the scopes in use, up to `most` in all.

    The least recently used index is stored and dropped first; one in use stays. `model` makes the
    vectors. `work` gets the progress of long work, and can end it.
    """

    def __init__(
        self, files: IndexStorage, model: str, *, most: int = MOST, work: LongWork | None = None
    ) -> None:
        self._files = files
        self._work = work or LongWork()
        self._model = model
        self._most = most
        self._lock = threading.Lock()
        self._places: OrderedDict[Scope, _Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def using(self, scope: Scope, *, passing: bool = False) -> Iterator[ScopeIndex]:
        """Keep the index of a scope in memory during the context, without holding its lock.

        Afterwards it is stored, if enough changed and no wait is needed. With `passing`, as when
        all scopes are searched, it is not stored, and does not displace indexes used otherwise.
        """
        place = self._take(scope, passing=passing)
        try:
            yield place.index
            if not passing:
                place.index.store(seconds=0)
        finally:
            self._give_back(place)
            self._shrink()

    @contextmanager
    def pinned(self, scope: Scope, *, passing: bool = False) -> Iterator[None]:
        """Keep the index of a scope in memory; never waits for the disk, so tasks may call it."""
        place = self._take(scope, passing=passing)
        try:
            yield
        finally:
            self._give_back(place)

    @contextmanager
    def holding(self, scopes: Sequence[Scope]) -> Iterator[Sequence[ScopeIndex]]:
        """Lock the indexes of several scopes, and bring them up to date for a search."""
        with ExitStack() as stack:
            indexes = {scope: stack.enter_context(self.using(scope)) for scope in scopes}
            for index in indexes.values():
                if not index.loaded:
                    # This may take long, and does not block the indexes of other scopes.
                    with index.lock:
                        index.refresh()
            for scope in sorted(indexes):
                stack.enter_context(indexes[scope].lock)
                indexes[scope].refresh(thorough=False)
            yield list(indexes.values())

    def keep(self, patience: LockTimeout) -> None:
        """Store all for the next process, unless others hold them longer than `patience`."""
        with self._lock:
            scopes = list(self._places)
        for scope in scopes:
            with self.using(scope, passing=True) as index:
                index.store(always=True, seconds=patience)

    def _take(self, scope: Scope, *, passing: bool) -> _Place:
        with self._lock:
            place = self._places.get(scope)
            if place is None:
                index = ScopeIndex(self._files, scope, self._model, self._work)
                place = self._places[scope] = _Place(index)
                if passing:
                    self._places.move_to_end(scope, last=False)
            if not passing:
                self._places.move_to_end(scope)
            place.users += 1
            place.uses += 1
            return place

    def _give_back(self, place: _Place) -> None:
        with self._lock:
            place.users -= 1

    def _shrink(self) -> None:
        """Store and drop the least recently used indexes until at most `most` are left."""
        busy: set[Scope] = set()
        while (place := self._choose(busy)) is not None:
            scope, uses = place.index.scope, place.uses
            # If another process holds the scope, it is dropped another time.
            free = place.index.store(always=True, seconds=0)
            with self._lock:
                place.users -= 1
                if free and place.uses == uses:
                    del self._places[scope]
                else:
                    busy.add(scope)

    def _choose(self, busy: set[Scope]) -> _Place | None:
        with self._lock:
            if len(self._places) <= self._most:
                return None
            for scope, place in self._places.items():
                if not place.users and scope not in busy:
                    # Prevents other threads from releasing it at the same time.
                    place.users += 1
                    return place
        return None
