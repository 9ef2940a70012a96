"""Turns still to be remembered: tickets, and the journal that stores them.

Only identities are stored; the archive has the texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec import Struct

#: Maximum number of automatic attempts; after that, users may start another for some days.
MOST_ATTEMPTS = 3
_KEPT = timedelta(days=30)


class Ticket(Struct, frozen=True):
    """A turn to remember: its user, conversation, and canisters.

    `model` is the address of the model that answered, `attempts` the number of failed attempts, and
    `failure` the reason of the last one.
    """

    user: str
    conversation: str
    canisters: tuple[str, ...]
    attempts: int = 0
    model: str = ""
    entered: datetime | None = None
    failure: str = ""

    @property
    def failed(self) -> bool:
        """True if no automatic attempts are left."""
        return self.attempts >= MOST_ATTEMPTS

    @property
    def old(self) -> bool:
        """True if the ticket has expired."""
        return self.entered is not None and datetime.now(UTC) - self.entered > _KEPT


class PendingTicket(Struct, frozen=True):
    """A ticket by its identity; `held` by a running process, or left by one that has ended."""

    identity: str
    ticket: Ticket
    held: bool


class Worker(Struct, frozen=True):
    """Process that remembers turns in the background, and its start time."""

    process: int
    since: datetime


class TicketJournal(Protocol):
    """Tickets of a user, until they are removed; every method waits for the disk or a database.

    One process at a time works on a ticket. If it ends, another takes over the rest.
    """

    def enter(self, ticket: Ticket, identity: str = "") -> str:
        """Store a ticket until it is removed, or replace one; return its identity."""
        ...

    def remove(self, identity: str) -> None:
        """Remove a ticket, after its turn was remembered or rejected."""
        ...

    def begin(self) -> bool:
        """Begin to remember; return False if another process does it, including these tickets."""
        ...

    def end(self, *, known: Collection[str] = ()) -> bool:
        """End remembering; return False if tickets arrived that the caller must take over.

        Tickets in `known` do not count, nor do failed ones.
        """
        ...

    def take_over(
        self, user: str, *, known: Collection[str] = (), failed: bool = False
    ) -> Sequence[tuple[str, Ticket]]:
        """Take over a user's turns left by other processes, in their order.

        Turns in `known` are skipped, and so are failed ones, unless `failed` is set. A journal that
        several servers share also lists this process's own.
        """
        ...

    def survey(self) -> Sequence[PendingTicket]:
        """Return all tickets, without taking any over."""
        ...

    def working(self) -> AbstractContextManager[bool]:
        """Become the only background worker of this machine; yield False if another is."""
        ...

    def find_worker(self) -> Worker | None:
        """Return the background worker of this machine, if one is running."""
        ...

    def close(self) -> None:
        """Leave remaining tickets to another process; safe to call twice."""
        ...
