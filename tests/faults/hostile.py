"""Identities that no conversation has, made by an attacker who wants out of the folder."""

from __future__ import annotations

import random
from collections.abc import Iterator

_ATOMS = (
    "..", ".", "/", "\\", "//", "\0", "\n", "\r", " ", "~", "$HOME", "%2e%2e%2f", "C:", "CON",
    "a", "abcd2345wxyz", "A", "é", "\u202e", "\uff0e\uff0e", "\u2215", "😀", "\ud800", "\x7f", "*",
    "?", "|", ";", "`id`", "$(id)", "-", "_", ".new-", "messages.jsonl", "metadata.toml",
    "../content", "/etc/passwd", "outside", "../../outside", "{}", "%s", "'", '"',
)  # fmt: skip
_ALPHABET = set("abcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST = 64


def produce_hostile_identities(count: int) -> Iterator[str]:
    """So many texts that are no identity, the same ones every time."""
    chance = random.Random(10)
    made: set[str] = {"", "-a", "_a", "a" * 65, "a" * 5_000, "../outside", "/", "."}
    while len(made) < count:
        text = "".join(chance.choices(_ATOMS, k=chance.randint(1, 5)))
        if not _is_harmless(text):
            made.add(text)
    yield from sorted(made, key=lambda text: text.encode("utf-8", "surrogatepass"))


def _is_harmless(text: str) -> bool:
    """Said once more, in other words than those of the archive."""
    return 0 < len(text) <= _LONGEST and text[0] not in "-_" and not set(text) - _ALPHABET
