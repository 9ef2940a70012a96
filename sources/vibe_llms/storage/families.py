"""Families of conversations: a conversation, its forks, the forks of these, and so on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from vibe_llms.storage.interfaces import Relative, Time


class FamilyMember(Struct, kw_only=True):
    """A conversation of a family.

    It parts from `parent` after the message `at`, which both have at the index `at_index`. If they
    have no message in common, `at` is empty and the index -1. `parent` is the conversation in which
    `at` was written, which may be an earlier one than the forked one. Both are null if this is not
    a fork, and `parent` is null if it was deleted.
    """

    id: str
    name: str
    title: str
    created: Time
    updated: Time
    model: str
    messages: int
    parent: str | None
    at: str | None
    at_index: int
    superseded_by: str | None


class FamilyView(Struct, kw_only=True):
    """All conversations that were forked from one `root`, oldest first.

    `siblings` has the messages after which conversations part, and these conversations, oldest
    first. The empty message is the beginning. A conversation that is not among them continues like
    its nearest ancestor that is.
    """

    root: str
    conversations: list[FamilyMember]
    siblings: dict[str, list[str]]


def find_family(identity: str, parents: Mapping[str, str]) -> AbstractSet[str]:
    """Return the identities of a family, from the parents of all forks.

    >>> sorted(find_family("b", {"b": "a", "c": "a", "d": "c", "y": "x"}))
    ['a', 'b', 'c', 'd']
    """
    children: dict[str, list[str]] = defaultdict(list)
    for child, parent in parents.items():
        children[parent].append(child)
    climbed = {identity}
    while (parent := parents.get(identity, "")) and parent not in climbed:
        climbed.add(identity := parent)
    family, waiting = {identity}, [identity]
    while waiting:
        for child in children[waiting.pop()]:
            if child not in family:
                family.add(child)
                waiting.append(child)
    return family


def describe_family(identity: str, relatives: Sequence[Relative]) -> FamilyView:
    """Return the JSON form of the family of a conversation, given its members by age."""
    members = {one.summary.identity: one for one in relatives}
    described = {one.id: one for one in (_describe(relative, members) for relative in relatives)}
    parted: dict[str, set[str]] = defaultdict(set)
    for member in described.values():
        if member.at is not None:
            meeting = [member.id] if member.parent is None else [member.parent, member.id]
            # A conversation that ends there continues in no way of its own.
            going = (one for one in meeting if described[one].messages > member.at_index + 1)
            parted[member.at].update(going)
    return FamilyView(
        root=_ascend(identity, described)[-1],
        conversations=[*described.values()],
        siblings={
            at: [one for one in described if one in ways]
            for at, ways in parted.items()
            if len(ways) > 1
        },
    )


def _describe(relative: Relative, members: Mapping[str, Relative]) -> FamilyMember:
    summary = relative.summary
    origin = summary.forked_from
    parent = _find_parent(relative, members)
    return FamilyMember(
        id=summary.identity,
        name=summary.name,
        title=summary.title,
        created=summary.created.isoformat(),
        updated=summary.updated.isoformat(),
        model=summary.model,
        messages=summary.messages,
        parent=parent,
        at=None if origin is None else origin.canister,
        at_index=relative.shared - 1,
        superseded_by=summary.superseded_by or None,
    )


def _find_parent(relative: Relative, members: Mapping[str, Relative]) -> str | None:
    """Return the member in which the last common message was written, or None."""
    found: str | None = None
    seen = {relative.summary.identity}
    one: Relative | None = relative
    # What the parent shares with its own parent was written further up.
    while one is not None and (found is None or relative.shared <= one.shared):
        origin = one.summary.forked_from
        if origin is None or origin.conversation not in members or origin.conversation in seen:
            break
        seen.add(found := origin.conversation)
        one = members[found]
    return found


def _ascend(identity: str, described: Mapping[str, FamilyMember]) -> Sequence[str]:
    """Return a conversation and its ancestors."""
    line = [identity]
    while (parent := described[line[-1]].parent) is not None and parent not in line:
        line.append(parent)
    return line
