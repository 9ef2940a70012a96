"""The tree of a conversation's messages: its branches, and which is the conversation.

Parents decide; lists of children are not needed. Messages that lead to themselves are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from vibe_llms.importing.messages import ExportedConversation, ExportedMessage

_NEVER = datetime.min.replace(tzinfo=UTC)


class MessageTree:
    """The messages of a conversation that can be reached from a beginning.

    Messages without parts are not in it, but connect those around them. `losses` describes what was
    left out.
    """

    def __init__(self, conversation: ExportedConversation) -> None:
        self.losses: list[str] = []
        #: Messages by id, parents before children.
        self.messages: dict[str, ExportedMessage] = {}
        #: Ids of the children of a message, in their order; those of "" begin the conversation.
        self.children: dict[str, list[str]] = {"": []}
        #: Id of the parent of a message; "" for one that begins the conversation.
        self.parents: dict[str, str] = {}
        self._order: dict[str, int] = {}
        self._represented: dict[str, str] = {"": ""}
        self._arrange(conversation.messages)
        self.current = self._represented.get(conversation.current, "")

    def path(self, identity: str) -> Sequence[str]:
        """Return the ids from the beginning to a message; empty for ""."""
        found = []
        while identity:
            found.append(identity)
            identity = self.parents[identity]
        return found[::-1]

    def find_end(self, beginning: str) -> str:
        """Return the end of the branch to go on with from a message.

        It is the current one if that is below, otherwise the message that was written last.
        """
        if self.current and beginning in ("", *self.path(self.current)):
            return self.current
        ends = (one for one in self.descend(beginning) if not self.children[one])
        return max(ends, key=self._age, default=beginning)

    def descend(self, beginning: str) -> Iterator[str]:
        """Yield the ids of a message and of all below it, parents first; of all for ""."""
        waiting = [beginning]
        while waiting:
            identity = waiting.pop()
            if identity:
                yield identity
            waiting.extend(reversed(self.children[identity]))

    def _age(self, identity: str) -> tuple[datetime, int]:
        return self.messages[identity].created or _NEVER, self._order[identity]

    def _arrange(self, messages: Sequence[ExportedMessage]) -> None:
        given: dict[str, ExportedMessage] = {}
        for message in messages:
            given.setdefault(message.id, message)
        if repeated := len(messages) - len(given):
            self.losses.append(count(repeated, "message with the id of another"))
        below: dict[str, list[str]] = {identity: [] for identity in given}
        waiting: list[str] = []
        orphans = 0
        for identity, message in given.items():
            orphans += bool(message.parent) and message.parent not in given
            siblings = below.get(message.parent) if message.parent else None
            (waiting if siblings is None else siblings).append(identity)
        if orphans and any(one.parts for one in given.values()):
            self._note_orphans(given)
        waiting.reverse()
        while waiting:
            identity = waiting.pop()
            self._place(given[identity])
            waiting.extend(reversed(below[identity]))
        if circular := sum(
            bool(one.parts) for one in given.values() if one.id not in self._represented
        ):
            self.losses.append(count(circular, "message that leads to itself"))

    def _note_orphans(self, given: dict[str, ExportedMessage]) -> None:
        """Record the messages whose parent is missing, except the first, which often has none."""
        lost = [
            one.id
            for one in given.values()
            if one.parent and one.parent not in given and one.id != next(iter(given))
        ]
        if lost:
            self.losses.append(
                count(len(lost), "message whose parent is missing", "now a beginning")
            )

    def _place(self, message: ExportedMessage) -> None:
        parent = self._represented.get(message.parent, "")
        if not message.parts:
            self._represented[message.id] = parent
            return
        self._represented[message.id] = message.id
        self._order[message.id] = len(self._order)
        self.messages[message.id] = message
        self.parents[message.id] = parent
        self.children[parent].append(message.id)
        self.children[message.id] = []


def count(number: int, what: str, remark: str = "") -> str:
    """Return a counted loss, such as "2 messages that lead to themselves"."""
    first, _, rest = what.partition(" ")
    noun = first if number == 1 else f"{first}s"
    if number > 1:
        rest = rest.replace("leads to itself", "lead to themselves").replace(
            "parent is", "parents are"
        )
    return f"{number:,} {noun} {rest}".rstrip() + (f" ({remark})" if remark else "")
