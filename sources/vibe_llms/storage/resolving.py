"""Rules of `Archive.resolve`, which find the conversation that a text refers to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from vibe_llms.base.exceptions import ConversationAmbiguous, ConversationNotFound

_SHORTEST_PREFIX = 4
_SHOWN_TITLE = 30
_MOST_SHOWN = 8
_FROM_NEWEST = re.compile(r"-[1-9][0-9]{0,8}")


class Named(Struct, frozen=True):
    """Searchable names of a conversation. `title` is its name or its opening."""

    identity: str
    name: str
    title: str


def rank_of(text: str) -> int:
    """Return the rank from the newest, 1, for a text such as `-1`, or 0 for other texts."""
    return -int(text) if _FROM_NEWEST.fullmatch(text) else 0


def refuse_rank(text: str, count: int) -> ConversationNotFound:
    """Return the error for a rank beyond the last conversation."""
    if not count:
        return ConversationNotFound("no conversations yet; start one: vibe-llms chat")
    return ConversationNotFound(f"conversation {text} not found; the list has {count}")


def find_conversation(text: str, identities: Sequence[str], current: Sequence[Named]) -> str:
    """Return the identity of the conversation that a text refers to, if it is not an identity.

    `identities` has all conversations, and `current` those that lists show, newest first.
    """
    if rank := rank_of(text):
        if rank > len(current):
            raise refuse_rank(text, len(current))
        return current[rank - 1].identity
    found = _find(text, identities, current)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConversationNotFound(f"no conversation named {text!r}; see: vibe-llms list")
    titles = {one.identity: one.title for one in current}
    shown = ", ".join(
        f"{one} {_shorten(titles.get(one, ''))}".strip() for one in found[:_MOST_SHOWN]
    )
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    raise ConversationAmbiguous(
        f"{text!r} matches {len(found)} conversations: {shown}{more}; give more of the "
        "name, or the id",
        candidates=tuple(found),
    )


def _find(text: str, identities: Sequence[str], current: Sequence[Named]) -> Sequence[str]:
    """Return the conversations that match a text best, newest first."""
    wanted = text.casefold()
    titled = [(one.identity, one.name.casefold(), one.title.casefold()) for one in current]
    begun = {one for one in identities if one.startswith(wanted)}
    if len(text) < _SHORTEST_PREFIX:
        begun = set()
    kinds: Sequence[Callable[[str, str, str], bool]] = (
        lambda identity, name, _: identity in begun or name == wanted,
        lambda _, __, title: title.startswith(wanted),
        lambda _, __, title: wanted in title,
    )
    for fits in kinds if wanted.strip() else ():
        if found := [one[0] for one in titled if fits(*one)]:
            return found
        # Hidden conversations are found only by identity.
        if begun:
            return sorted(begun)
    return ()


def _shorten(title: str) -> str:
    line = " ".join(title.split())
    line = line if len(line) <= _SHOWN_TITLE else f"{line[: _SHOWN_TITLE - 1]}…"
    return repr(line) if line else ""
