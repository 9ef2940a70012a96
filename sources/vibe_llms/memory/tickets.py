"""The turns that are still to be remembered: tickets, and the journal that keeps them.

Only identities are kept; the archive has the texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec import Struct

#: The number of automatic attempts; after that, users may ask for another, for some days.
MOST_ATTEMPTS = 3
_KEPT = timedelta(days=30)


class Ticket(Struct, frozen=True):
    """A turn to remember: whose memory, which conversation, which canisters.

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
        """Whether there are no more automatic attempts."""
        return self.attempts >= MOST_ATTEMPTS

    @property
    def old(self) -> bool:
        """Whether it is kept no longer."""
        return self.entered is not None and datetime.now(UTC) - self.entered > _KEPT


class Left(Struct, frozen=True):
    """A ticket by its identity; `held` by a running process, or left by one that has ended."""

    identity: str
    ticket: Ticket
    held: bool


class Worker(Struct, frozen=True):
    """The process that remembers turns in the background, and since when."""

    process: int
    since: datetime


class TicketJournal(Protocol):
    """The tickets of a user, until they are settled; every method waits for the disk or a database.

    One process at a time works on a ticket. If it ends, another takes over what it left.
    """

    def enter(self, ticket: Ticket, identity: str = "") -> str:
        """Keep a ticket until it is settled, a new one or in place of another; its identity."""
        ...

    def settle(self, identity: str) -> None:
        """Remove a ticket, since its turn is remembered."""
        ...

    def begin(self) -> bool:
        """Begin to remember; false if another process does it, and takes these tickets too."""
        ...

    def end(self, *, known: Collection[str] = ()) -> bool:
        """End remembering; false if tickets came that the caller has to `take_over` first.

        Those that are `known` do not count, nor do failed ones.
        """
        ...

    def take_over(
        self, user: str, *, known: Collection[str] = (), failed: bool = False
    ) -> Sequence[tuple[str, Ticket]]:
        """Take over a user's turns that other processes have left, in their order.

        Those that are `known` are left out, and so are failed ones, unless `failed` is set. A
        journal that several servers share also lists those of this process.
        """
        ...

    def survey(self) -> Sequence[Left]:
        """All tickets, without taking any over."""
        ...

    def working(self) -> AbstractContextManager[bool]:
        """Become the only worker in the background of this machine; false if another is."""
        ...

    def find_worker(self) -> Worker | None:
        """The worker in the background of this machine, if one is running."""
        ...

    def close(self) -> None:
        """Leave what is not settled to another process; safe to call twice."""
        ...
