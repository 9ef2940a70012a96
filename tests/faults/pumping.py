"""Texts that make a regular expression slow, made from its own structure; and how slow they do.

A pattern that backtracks, or that scans to the end of the text from every place, takes its time
where something that it repeats is repeated in the text: so each repetition is pumped, behind what
leads to it, and ended by what does not fit.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

_PARSER: Any = import_module("re._parser")
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
#: Characters tried for a class, the likely ones first.
_POOL = " a0\n.\"'-_:/,<>[](){}|=`~*#\\;!?&@\tAz\ue000é。中"
#: A repetition of fewer is no place to pump.
_MANY = 8
_VARIANTS = 3
_ENDS = ("", "\x00", "\n\x00", "!\ue002")
#: Small steps, so that the first one that takes long does not take for ever.
_EXPLODING_SIZES = (8, 12, 15, 18, 21, 24, 27, 30, 33, 37, 42, 50, 70, 120, 200, 400)
_EXPLODED_SECONDS = 0.05
_NOTICED_SECONDS = 0.004
#: Of the time for a text four times as long: about 4 is linear, 16 quadratic.
_LONGEST_GROWTH = 9.0
_TIMES = 4

Run = Callable[[Any], object]


def find_growth(pattern: re.Pattern[Any], run: Run, size: int, limit: int) -> str | None:
    """A text of so many characters on which the time grows faster than the text, if one is found.

    `run` does with a text what the program does with it; `limit` is how many texts are tried.
    """
    for prefix, pump, suffix in itertools.islice(produce_pumps(pattern), limit):

        def make(
            size: int, prefix: str = prefix, pump: str = pump, suffix: str = suffix
        ) -> str | bytes:
            text = prefix + pump * (size // len(pump)) + suffix
            return text.encode("utf-8") if isinstance(pattern.pattern, bytes) else text

        # A machine that stops for a moment does not do so each time.
        if all(_explodes(run, make) or _grows(run, make, size) for _ in range(_TIMES)):
            return f"{prefix!r} + {pump!r} * n + {suffix!r}"
    return None


def produce_pumps(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """The beginning, what is repeated, and the end; no two the same, the likely first."""
    text = pattern.pattern
    source = text.decode("latin-1") if isinstance(text, bytes) else text
    tree = _PARSER.parse(source, pattern.flags & ~re.UNICODE if isinstance(text, bytes) else 0)
    structure = _Structure(tree)
    seen: set[tuple[str, str]] = set()
    ways: list[tuple[str, str]] = []
    for optional in (True, False):
        for prefix, pumps in structure.walk(tree, "", optional):
            for pump in pumps:
                ways += [(prefix, pump), ("", prefix + pump)]
                ways += [(prefix + pump, other) for other in structure.common if other != pump]
    # One of each repetition before further ones of the first.
    ways.sort(key=lambda way: len(way[0]) > 40)
    for way in ways:
        if way not in seen and way[1]:
            seen.add(way)
            yield from ((*way, end) for end in _ENDS)


def _explodes(run: Run, make: Callable[[int], Any]) -> bool:
    return any(_time(run, make(size)) > _EXPLODED_SECONDS for size in _EXPLODING_SIZES)


def _grows(run: Run, make: Callable[[int], Any], size: int) -> bool:
    if _time(run, make(size // 4)) > _NOTICED_SECONDS * 20:
        return True
    if _time(run, make(size)) < _NOTICED_SECONDS:
        return False
    short, long = make(size // 4), make(size)
    # Of several measurements the least: whatever else the machine does only adds to them.
    return min(_time(run, long) for _ in range(3)) > _LONGEST_GROWTH * min(
        _time(run, short) for _ in range(5)
    )


def _time(run: Run, text: Any) -> float:
    begun = time.thread_time()
    run(text)
    return time.thread_time() - begun


class _Structure:
    """The parts of a pattern, and texts that they match."""

    def __init__(self, tree: Any) -> None:
        counted: Counter[str] = Counter()
        for item in _all_items(tree):
            body: Any = item[1][2] if _name(item) in _REPEATS else ()
            if len(body) == 1:
                counted.update(one for one in _POOL if _accepts(body[0], one))
        #: Characters that most repetitions take: where two of them meet, they share these.
        self.common = tuple(one for one, _ in counted.most_common(2))
        literals = [chr(item[1]) for item in _all_items(tree) if _name(item) == "LITERAL"]
        self._order = sorted(_POOL, key=lambda one: (-counted[one], _POOL.index(one)))
        # What the pattern itself names may begin it anew, within what it takes for anything else.
        self._literal_order = [*dict.fromkeys(literals), *self._order]

    def walk(self, items: Any, prefix: str, optional: bool) -> Iterator[tuple[str, Sequence[str]]]:
        """Each repetition: what leads to it, and what it repeats."""
        for item in items:
            name, value = _name(item), item[1]
            if name in _REPEATS and int(value[1]) - int(value[0]) >= _MANY:
                yield prefix, self._variants(value[2], optional)
            for part in _parts(item):
                yield from self.walk(part, prefix, optional)
            prefix += self._sample(item, optional)

    def _variants(self, body: Any, optional: bool) -> Sequence[str]:
        branches = body[0][1][1] if len(body) == 1 and _name(body[0]) == "BRANCH" else [body]
        found = [
            "".join(self._sample(item, optional, order) for item in branch)
            for branch in branches
            for order in (self._order, self._literal_order)
        ]
        if len(body) == 1:
            found += [one for one in self._order if _accepts(body[0], one)][:_VARIANTS]
        return [one for one in dict.fromkeys(found) if one]

    def _sample(self, item: Any, optional: bool, order: Sequence[str] = ()) -> str:
        name, value = _name(item), item[1]
        if name == "LITERAL":
            return chr(value)
        if name in ("IN", "ANY", "ANY_ALL", "NOT_LITERAL"):
            return next((one for one in order or self._order if _accepts(item, one)), "")
        if name in ("ASSERT", "ASSERT_NOT"):
            return ""
        once = "".join(
            self._sample(one, optional, order) for part in _parts(item)[:1] for one in part
        )
        return once * max(int(value[0]), int(optional)) if name in _REPEATS else once


def _all_items(items: Any) -> Iterator[Any]:
    for item in items:
        yield item
        for part in _parts(item):
            yield from _all_items(part)


def _parts(item: Any) -> Sequence[Any]:
    """The patterns within an item."""
    name, value = _name(item), item[1]
    if name in _REPEATS:
        return (value[2],)
    if name == "BRANCH":
        return tuple(value[1])
    if name == "SUBPATTERN":
        return (value[3],)
    if name in ("ASSERT", "ASSERT_NOT"):
        return (value[1],)
    return (value,) if name == "ATOMIC_GROUP" else ()


def _accepts(item: Any, character: str) -> bool:
    """Whether an item of the structure is one character, and takes this one."""
    name, value = _name(item), item[1]
    match name:
        case "LITERAL":
            return bool(chr(value) == character)
        case "NOT_LITERAL":
            return bool(chr(value) != character)
        case "ANY":
            return character != "\n"
        case "ANY_ALL":
            return True
        case "RANGE":
            return bool(value[0] <= ord(character) <= value[1])
        case "CATEGORY":
            kind = str(value).removeprefix("CATEGORY_").removeprefix("UNI_")
            found = re.match(_CATEGORIES.get(kind.removeprefix("NOT_"), "(?!)"), character)
            return (found is None) == kind.startswith("NOT_")
        case "IN":
            negated = _name(value[0]) == "NEGATE"
            return any(_accepts(one, character) for one in value[negated:]) != negated
        case "SUBPATTERN":
            return len(value[3]) == 1 and _accepts(value[3][0], character)
        case _:
            return False


def _name(item: Any) -> str:
    return str(item[0])
