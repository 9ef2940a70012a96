"""Anthropic's cache of prefixes: what a request reads of it, and what it writes.

A prefix is looked for at each mark and at most 19 blocks before it. What was written lives for the
time of its mark, from its last use on. Positions are those of blocks: tools, system, messages.

Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching (2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple

from tests.fakes.strict import Refused

_LOOKED_BACK = 20
_SECONDS = {"5m": 300.0, "1h": 3600.0}
_PRICES = {"5m": 1.25, "1h": 2.0}
_READ = 0.1


class Counted(NamedTuple):
    """Bytes of a request: in all, read from the cache, written to it, and their price."""

    size: int
    read: int
    written: int
    price: float


class AnthropicCache:
    """What the server remembers of the requests so far."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def ask(self, body: Mapping[str, Any], now: float = 0.0) -> Counted:
        blocks = list(_blocks_of(body))
        lives = [_life(block) for block in blocks]
        marks = [place for place, life in enumerate(lives) if life]
        _check_order([life for life in lives if life])
        bare = [_encode({**one, "cache_control": None}) for one in blocks]
        sizes = list(accumulate(map(len, bare)))
        keys = list(accumulate(bare, lambda key, one: sha256((key + one).encode()).hexdigest()))
        found = [
            place
            for mark in marks
            for place in range(max(mark - _LOOKED_BACK + 1, 0), mark + 1)
            if self._ends.get(keys[place], 0) > now
        ]
        read = sizes[max(found)] if found else 0
        written = max(sizes[marks[-1]] - read, 0) if marks else 0
        for place in marks:
            life = _SECONDS[lives[place]]
            self._ends[keys[place]] = max(self._ends.get(keys[place], 0), now + life)
        rest = sizes[-1] - read - written
        dear = _PRICES[lives[marks[-1]]] if marks else 1.0
        return Counted(sizes[-1], read, written, _READ * read + dear * written + rest)


def _blocks_of(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from body.get("tools") or ()
    yield from body.get("system") or ()
    for message in body["messages"]:
        for block in message["content"]:
            yield {"role": message["role"], **block}


def _life(block: Mapping[str, Any]) -> str:
    mark = block.get("cache_control") or {}
    return str(mark.get("ttl", "5m")) if mark else ""


def _check_order(lives: list[str]) -> None:
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        raise Refused(
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
        )


def _encode(value: object) -> str:
    return json.dumps(value, sort_keys=True)
