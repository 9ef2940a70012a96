"""What the index of a scope keeps of each entry beside its words: where it lies, and its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from vibe_llms.memory.entries import Role
from vibe_llms.memory.files import Look
from vibe_llms.memory.outlines import Outline


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
    asks: bool
    outline: Outline

    @property
    def order(self) -> tuple[str, datetime, str]:
        """Where it stands among the turns of its conversation."""
        return self.conversation, self.created, self.identity


class Catalogue:
    """All that is known of a scope, by places, by numbers, by what facts say and by identities.

    `places` and `numbers` are for reading. `summaries` is how many of the entries are such.
    """

    def __init__(self, known: Iterable[Known] = ()) -> None:
        self.places: dict[str, Known] = {}
        self.numbers: dict[int, Known] = {}
        self.summaries = 0
        self._facts: dict[str, dict[str, Known]] = {}
        # Most processes look for no identity, and so it is made for the first that does.
        self._identities: dict[str, tuple[Known, ...]] | None = None
        for one in known:
            self.add(one)

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Known]:
        return iter(self.places.values())

    @property
    def oldest_first(self) -> Sequence[Known]:
        """All of it, in the order in which it was made."""
        return sorted(self.places.values(), key=lambda one: (one.created, one.identity))

    def add(self, known: Known) -> None:
        """Take in an entry whose place and number are new."""
        self.places[known.place] = self.numbers[known.number] = known
        self.summaries += known.role == Role.SUMMARY
        if known.role == Role.FACT:
            self._facts.setdefault(known.digest, {})[known.place] = known
        if self._identities is not None:
            same = self._identities.get(known.identity, ())
            self._identities[known.identity] = (*same, known)

    def remove(self, place: str) -> Known:
        """Give up what lies at a place; what it was."""
        known = self.places.pop(place)
        del self.numbers[known.number]
        self.summaries -= known.role == Role.SUMMARY
        if known.role == Role.FACT:
            alike = self._facts[known.digest]
            del alike[place]
            if not alike:
                del self._facts[known.digest]
        if self._identities is not None:
            same = tuple(one for one in self._identities.pop(known.identity) if one is not known)
            if same:
                self._identities[known.identity] = same
        return known

    def survey_facts(self, digest: str) -> Sequence[Known]:
        """The facts that have a digest of what they say."""
        return [*self._facts.get(digest, {}).values()]

    def find(self, identity: str) -> Known | None:
        """The entry of an identity, the oldest where files were copied; none where there is none.

        The first time this goes through all, and then it takes the same time however many.
        """
        if self._identities is None:
            self._identities = {}
            for one in self:
                same = self._identities.get(one.identity, ())
                self._identities[one.identity] = (*same, one)
        found = self._identities.get(identity)
        return None if found is None else min(found, key=lambda one: (one.created, one.place))
