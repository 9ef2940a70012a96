"""Full-text index of the entries of a scope, in an in-memory SQLite database.

FTS5 maps words to entries. The rare words of a question choose candidates, and all its words score
them, by BM25 over fields (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
Beyond", 2009, section 3.6). The fields are the text of an entry, its labels, and the turns around
it: a question often has the words of the turn before the one that answers it. FTS5's own ranking
would need those turns in each row, and takes 2 to 20 times as long (ADR 46).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from vibe_llms.base.exceptions import StorageError
from vibe_llms.embedding.words import is_of_date
from vibe_llms.memory.entries import SPOKEN, Role
from vibe_llms.memory.parts import NORM, Fit, WeightedPart
from vibe_llms.memory.places import FileStat
from vibe_llms.memory.records import IndexRecord

K1, B = 1.2, 0.75
#: Weight of a word in nearby turns, by their distance behind the turn that contains it.
WINDOW = {0: 1.0, 1: 0.6, 2: 0.4, 3: 0.3, 4: 0.2, -1: 0.3, -2: 0.2}
_NEAREST_LAST = dict(sorted(WINDOW.items(), key=lambda one: one[1]))
_BEFORE = [(distance, share) for distance, share in WINDOW.items() if distance > 0]
#: Weight of a word as a label: speaker, date, or topic of an entry.
LABEL = 2.0
#: Ranking factor for a turn if the question names another speaker: turns around an answer contain
#: its words too, and are often another person's reply.
OTHERS = 1 / 1.3
#: Once the rarest words of a question match this many entries, and the best of those have this
#: share of the other words' worth, the others choose no candidates.
_ENOUGH, _USUAL = 150, 0.4
#: Turns farther apart in time are not neighbors: microseconds, and the gap between their positions,
#: which is larger than a window.
_HOUR, _APART = 3_600_000_000, 8
#: Positions reserved for a conversation.
_BLOCK = 1 << 24
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Prefix that marks a label among the words.
_MARK = "@"

_TABLES = """
create table entries (
    number integer primary key, place text unique not null, identity text not null,
    role text not null, digest text not null, conversation text, created integer not null,
    position integer not null, length integer not null, words text not null,
    record blob not null);
create index by_identity on entries (identity);
create index by_digest on entries (digest);
create index by_time on entries (conversation, created);
create index by_position on entries (position);
create virtual table postings using fts5 (
    words, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '@'''");
insert into postings (postings, rank) values ('hashsize', 16777216);
create virtual table frequencies using fts5vocab (postings, 'row');
"""
_SPACE_OUT = """
update entries set position = spaced.position from (
    select number, :block + sum(step) over (turns rows unbounded preceding) as position
    from (
        select number, created, identity, place,
            case when created - lag(created) over turns > :hour then :apart else 1 end as step
        from entries where conversation = :conversation
        window turns as (order by created, identity, place))
    window turns as (order by created, identity, place)
) as spaced where entries.number = spaced.number
"""


class _Spot(NamedTuple):
    number: int
    role: str
    length: int


class _Layout:
    """Entries by position; the turns of a conversation have adjacent positions."""

    def __init__(self, spots: Sequence[tuple[int, _Spot]]) -> None:
        self.spots = dict(spots)
        self.positions = {spot.number: position for position, spot in spots}
        lengths = sum(map(self.window_length, self.spots))
        #: Mean length of a window.
        self.mean = lengths / (len(spots) or 1) or 1.0

    def role_at(self, position: int) -> str | None:
        """Return the role of the entry at a position, or `None`."""
        spot = self.spots.get(position)
        return None if spot is None else spot.role

    def window_length(self, position: int) -> float:
        """Return the words of an entry plus the weighted words of the turns before it."""
        length = float(self.spots[position].length)
        for distance, share in _BEFORE:
            before = self.spots.get(position - distance)
            if before is None:
                break
            length += share * before.length
        return length


class IndexDatabase:
    """Entries with their words and labels; `data` comes from `serialize`, or is empty.

    Raise `ValueError` for other `data`. Not thread-safe.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        #: Conversations whose turns are not in order of position.
        self._disordered: set[str] = set()
        #: Order and position of the last turn of some conversations.
        self._last_turns: dict[str, tuple[int, str, str, int]] = {}
        self._layout: _Layout | None = None
        self.stats: dict[str, FileStat] = {}
        try:
            if data:
                self._database.deserialize(data)
            else:
                self._database.executescript(_TABLES)
            self._database.execute("pragma secure_delete = on")
            self.stats = {one.place: one.stat for one in self}
            (last,) = self._database.execute("select max(number) from entries").fetchone()
            self._last_number = int(last or 0)
        except (sqlite3.Error, AttributeError) as error:
            # `deserialize` needs SQLite 3.36 or later.
            raise ValueError(f"not an index database: {error}") from error

    def __len__(self) -> int:
        return len(self.stats)

    def __iter__(self) -> Iterator[IndexRecord]:
        """Iterate over all entries, oldest first."""
        rows = self._database.execute("select record from entries order by created, identity")
        return map(_decode, rows.fetchall())

    def serialize(self) -> bytes:
        """Return the database as bytes, without the words of deleted entries.

        Raise `StorageError` if SQLite is too old.
        """
        if not hasattr(self._database, "serialize"):
            raise StorageError("storing the index of memory needs SQLite 3.36 or later")
        self._lay_out()
        self._database.execute("insert into postings (postings) values ('optimize')")
        return self._database.serialize()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Group many changes in one transaction, which is faster."""
        self._database.execute("begin")
        try:
            yield
        finally:
            self._database.execute("commit")

    def put(
        self,
        record: IndexRecord,
        words: Sequence[str],
        labels: Iterable[str],
        conversation: str | None,
    ) -> int:
        """Add an entry, replacing the one at its place; return its new number.

        `conversation` is given for a turn that has neighbors.
        """
        created = (record.created - _EPOCH) // timedelta(microseconds=1)
        order = (conversation, created, record.identity)
        position = None
        if record.place in self.stats:
            position = self._position_at(record.place, order)
            if position is None:
                self.drop(record.place)
            else:
                self._erase(record.place)
        if position is None:
            position = self._append(record.place, *order)
        self._last_number = number = self._last_number + 1
        record = msgspec.structs.replace(record, number=number)
        text = " ".join((*words, *(f"{_MARK}{name}" for name in labels)))
        self._database.execute(
            "insert into entries values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(number, record.place, record.identity, record.role, record.digest),
                *(conversation, created, position, len(words), text),
                msgspec.msgpack.encode(record),
            ),
        )
        self._database.execute("insert into postings (rowid, words) values (?, ?)", (number, text))
        self._layout = None
        self.stats[record.place] = record.stat
        return number

    def drop(self, place: str) -> int | None:
        """Remove the entry at a place; return its number."""
        if place not in self.stats:
            return None
        conversation, position = self._database.execute(
            "select conversation, position from entries where place = ?", [place]
        ).fetchone()
        if conversation is not None:
            least, most = self._database.execute(
                "select min(position), max(position) from entries where conversation = ?",
                [conversation],
            ).fetchone()
            if least < position < most:
                self._disordered.add(conversation)
        return self._erase(place)

    def record(self, number: int) -> IndexRecord | None:
        """Return the entry with a number."""
        return self._find("number = ?", number)

    def records(self, numbers: Iterable[int]) -> Iterator[IndexRecord]:
        """Yield the entries with some numbers, in any order."""
        for _, data in self._select("record", [*numbers]):
            yield _decode((data,))

    def at(self, place: str) -> IndexRecord | None:
        """Return the entry whose file is at a place."""
        return self._find("place = ?", place) if place in self.stats else None

    def find(self, identity: str) -> IndexRecord | None:
        """Return the entry with an identity; the oldest if files were copied."""
        return self._find("identity = ? order by created, place limit 1", identity)

    def facts(self, digest: str) -> Sequence[IndexRecord]:
        """Return the facts with a digest."""
        rows = self._database.execute(
            "select record from entries where digest = ? and role = ?", (digest, Role.FACT)
        )
        return [*map(_decode, rows)]

    def count_entries(self, words: Iterable[str]) -> Mapping[str, int]:
        """Estimate how many entries have each word in their texts or labels."""
        terms = [term for word in words for term in (word, _MARK + word)]
        marks = ", ".join("?" * len(terms))
        counts = Counter[str]()
        for term, count in self._database.execute(
            f"select term, doc from frequencies where term in ({marks})",  # noqa: S608
            terms,
        ):
            counts[term.removeprefix(_MARK)] += count
        return {word: min(count, len(self)) for word, count in counts.items()}

    def score(
        self, parts: Sequence[WeightedPart], count: int, roles: Collection[Role]
    ) -> dict[int, Fit]:
        """Return how entries of some roles fit a message, up to about `count`, by number."""
        layout = self._lay_out()
        first, *others = parts
        scores = self._choose(layout, first.rarities, count)
        if others:
            # A single part is in order without scaling.
            scores = {place: (score / first.weight) ** NORM for place, score in scores.items()}
        for part in others:
            for position, score in self._choose(layout, part.rarities, count).items():
                scores[position] = scores.get(position, 0.0) + (score / part.weight) ** NORM
        least = _worst_of_best(scores, 2 * count)
        best = [
            position
            for position, score in scores.items()
            if score >= least and layout.role_at(position) in roles
        ]
        if len(best) < count < len(scores):
            # Entries of other roles, or empty positions, took their places.
            best = [position for position in scores if layout.role_at(position) in roles]
        best.sort(key=scores.__getitem__, reverse=True)
        return self._rate(layout, parts, best[:count])

    def assess(self, parts: Sequence[WeightedPart], numbers: Iterable[int]) -> dict[int, Fit]:
        """Return how some entries fit a message."""
        layout = self._lay_out()
        return self._rate(layout, parts, [layout.positions[number] for number in numbers])

    def _choose(
        self, layout: _Layout, rarities: Mapping[str, float], count: int
    ) -> dict[int, float]:
        """Estimate scores by position for some words; at least the best `count`."""
        scores: dict[int, float] = {}
        found, left = 0, sum(rarities.values())
        for word in sorted(rarities, key=rarities.__getitem__, reverse=True):
            if found > _ENOUGH and _worst_of_best(scores, count) >= _USUAL * left:
                break
            left -= rarities[word]
            # Worth of the word at each position, nearest last. Repetitions within a window count
            # once here: these scores only choose candidates for `_rate`.
            worth: dict[int, float] = {}
            for positions, distances in (
                (self._match(layout, word), _NEAREST_LAST),
                (self._match(layout, _MARK + word), {0: LABEL}),
            ):
                found += len(positions)
                for distance, share in distances.items():
                    part = rarities[word] * share / (share + K1)
                    worth.update(zip(map(distance.__add__, positions), repeat(part)))
            for position in scores.keys() & worth.keys():
                worth[position] += scores[position]
            scores.update(worth)
        return scores

    def _rate(
        self, layout: _Layout, parts: Sequence[WeightedPart], positions: Collection[int]
    ) -> dict[int, Fit]:
        """Return how the entries at some positions fit, by number."""
        rarities = {word: rarity for part in parts for word, rarity in part.rarities.items()}
        held = self._count_words(layout, rarities, positions)
        shares: dict[int, list[float]] = {}
        names: dict[int, set[str]] = {}
        for position in positions:
            weights: dict[str, float] = {}
            its_names: set[str] = set()
            for distance, share in WINDOW.items():
                for word, count in held.get(position - distance, ()):
                    if word[0] != _MARK:
                        weights[word] = weights.get(word, 0.0) + share * count
                    elif not distance:
                        name = word[1:]
                        weights[name] = weights.get(name, 0.0) + LABEL
                        its_names.add(name)
            flat = K1 * (1 - B + B * layout.window_length(position) / layout.mean)
            worth = {
                word: rarities[word] * weight / (weight + flat) for word, weight in weights.items()
            }
            shares[position] = [
                sum(map(worth.__getitem__, worth.keys() & part.rarities)) / part.weight
                for part in parts
            ]
            if layout.spots[position].role in SPOKEN:
                names[position] = {name for name in its_names if not is_of_date(name)}
        named = set[str]().union(*names.values())
        asked = [named.intersection(part.rarities) for part in parts]
        return {
            layout.spots[position].number: Fit.of(
                its_shares,
                [
                    OTHERS if some and names.get(position, some).isdisjoint(some) else 1.0
                    for some in asked
                ],
            )
            for position, its_shares in shares.items()
        }

    def _count_words(
        self, layout: _Layout, words: Iterable[str], positions: Iterable[int]
    ) -> dict[int, list[tuple[str, int]]]:
        """Count words and labels in the entries around some positions."""
        near = {position - distance for position in positions for distance in WINDOW}
        numbers = [layout.spots[position].number for position in near if position in layout.spots]
        asked = {name for word in words for name in (word, _MARK + word)}
        held: dict[int, list[tuple[str, int]]] = {}
        for number, text in self._select("words", numbers):
            its_words = text.split()
            if found := asked.intersection(its_words):
                held[layout.positions[number]] = [(word, its_words.count(word)) for word in found]
        return held

    def _match(self, layout: _Layout, word: str) -> list[int]:
        """Return the positions of the entries that have a word."""
        rows = self._database.execute(
            "select rowid from postings where postings match ?", [f'"{word}"']
        )
        return [layout.positions[number] for (number,) in rows]

    def _select(self, column: str, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Select a column of the entries with some numbers."""
        for start in range(0, len(numbers), _ASKED):
            some = numbers[start : start + _ASKED]
            marks = ", ".join("?" * len(some))
            yield from self._database.execute(
                f"select number, {column} from entries where number in ({marks})",  # noqa: S608
                some,
            ).fetchall()

    def _find(self, where: str, value: int | str) -> IndexRecord | None:
        row = self._database.execute(
            f"select record from entries where {where}",  # noqa: S608
            [value],
        ).fetchone()
        return None if row is None else _decode(row)

    def _erase(self, place: str) -> int:
        number, words, conversation = self._database.execute(
            "select number, words, conversation from entries where place = ?", [place]
        ).fetchone()
        self._database.execute(
            "insert into postings (postings, rowid, words) values ('delete', ?, ?)", (number, words)
        )
        self._database.execute("delete from entries where number = ?", [number])
        del self.stats[place]
        self._last_turns.pop(conversation, None)
        self._layout = None
        return int(number)

    def _position_at(self, place: str, order: tuple[str | None, int, str]) -> int | None:
        """Return the position of the entry at a place, if its order is unchanged."""
        row = self._database.execute(
            "select position, conversation, created, identity from entries where place = ?", [place]
        ).fetchone()
        return None if row is None or row[1:] != order else int(row[0])

    def _append(self, place: str, conversation: str | None, created: int, identity: str) -> int:
        """Return the position of a new entry: after the last turn of its conversation."""
        if conversation is None:
            return self._new_block()
        last = self._last_turns.get(conversation) or self._find_last_turn(conversation)
        turn = (created, identity, place)
        if last is None:
            position = self._new_block()
        else:
            position = last[3] + (1 if created - last[0] <= _HOUR else _APART)
            if turn < last[:3]:
                self._disordered.add(conversation)
                return position
        self._last_turns[conversation] = (*turn, position)
        return position

    def _find_last_turn(self, conversation: str) -> tuple[int, str, str, int] | None:
        """Return the order and position of the last turn of a conversation."""
        found: tuple[int, str, str, int] | None = self._database.execute(
            "select created, identity, place, position from entries where conversation = ? "
            "order by created desc, identity desc, place desc limit 1",
            [conversation],
        ).fetchone()
        return found

    def _lay_out(self) -> _Layout:
        """Return the layout, after putting the turns of each conversation in order."""
        while self._disordered:
            self._last_turns.clear()
            self._database.execute(
                _SPACE_OUT,
                {
                    "block": self._new_block(),
                    "conversation": self._disordered.pop(),
                    "hour": _HOUR,
                    "apart": _APART,
                },
            )
        if self._layout is None:
            rows = self._database.execute("select position, number, role, length from entries")
            self._layout = _Layout([(position, _Spot(*row)) for position, *row in rows])
        return self._layout

    def _new_block(self) -> int:
        (last,) = self._database.execute("select max(position) from entries").fetchone()
        return ((last or 0) // _BLOCK + 1) * _BLOCK


#: SQLite accepts at least this many values per statement.
_ASKED = 30_000


def _worst_of_best(scores: Mapping[int, float], count: int) -> float:
    """Return the lowest of the best `count` scores; 0 if there are fewer."""
    return 0.0 if len(scores) < count else sorted(scores.values())[-count]


def _decode(row: tuple[bytes]) -> IndexRecord:
    return msgspec.msgpack.decode(row[0], type=IndexRecord)
