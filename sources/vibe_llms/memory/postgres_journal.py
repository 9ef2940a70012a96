"""Journal in PostgreSQL: the turns of one user still to be remembered, shared by all servers.

They are processed in order by the one process that holds the user's lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from vibe_llms.base.exceptions import StorageError
from vibe_llms.memory.tickets import PendingTicket, Ticket, Worker
from vibe_llms.messages.identities import produce_identity

if TYPE_CHECKING:
    from vibe_llms.storage.postgres.blocking import BlockingDatabase

_TICKETS = msgspec.json.Decoder(Ticket)
# A turn entered twice, as after a crash, is the same ticket.
_ENTER = """
insert into vibe.memory_tickets (owner, turn, data) values (%s, %s, %s) on conflict do nothing
"""
_REPLACE = "update vibe.memory_tickets set data = %s where owner = %s and turn = %s"
_REMOVE = "delete from vibe.memory_tickets where owner = %s and turn = %s"
_SURVEY = "select turn, data from vibe.memory_tickets where owner = %s order by number"
_IS_HELD = "select from vibe.memory_workers where owner = %s and until > clock_timestamp()"
#: The lease of a dead process expires after this time; a busy process renews it.
_BEGIN = """
insert into vibe.memory_workers as workers (owner, holder, until)
values (%s, %s, clock_timestamp() + interval '10 minutes')
on conflict (owner) do update set holder = excluded.holder, until = excluded.until
where workers.holder = excluded.holder or workers.until < clock_timestamp()
"""
_RENEW = """
update vibe.memory_workers set until = clock_timestamp() + interval '10 minutes'
where owner = %s and holder = %s
"""
_LOCK_LEASE = "select from vibe.memory_workers where owner = %s and holder = %s for update"
_END = "delete from vibe.memory_workers where owner = %s and holder = %s"


class PostgresJournal:
    """Tickets of one user; safe to call from any thread."""

    def __init__(self, database: BlockingDatabase, user: str) -> None:
        self._database = database
        self._user = user
        self._holder = produce_identity()
        self._begun = False

    def enter(self, ticket: Ticket, identity: str = "") -> str:
        """Store a ticket until it is removed, or replace one; return its identity."""
        data = msgspec.json.encode(ticket)
        turn = identity or (ticket.canisters[0] if ticket.canisters else produce_identity())
        with self._database.transaction(self._user) as connection:
            if identity:
                connection.execute(_REPLACE, (data, self._user, turn))
                connection.execute(_RENEW, (self._user, self._holder))
            else:
                connection.execute(_ENTER, (self._user, turn, data))
        return turn

    def remove(self, identity: str) -> None:
        """Remove a ticket, after its turn was remembered or rejected."""
        with self._database.transaction(self._user) as connection:
            connection.execute(_REMOVE, (self._user, identity))
            connection.execute(_RENEW, (self._user, self._holder))

    def begin(self) -> bool:
        """Take or renew the user's lease; return False if another process holds it."""
        with self._database.transaction(self._user) as connection:
            taken = connection.execute(_BEGIN, (self._user, self._holder)).rowcount == 1
        self._begun = taken
        return taken

    def end(self, *, known: Collection[str] = ()) -> bool:
        """Release the lease; return False if tickets arrived that no other process works on.

        A process that entered a ticket has not begun, and does not wait. With the lease locked,
        either its ticket is seen here, or that process gets the lease.
        """
        with self._database.transaction(self._user) as connection:
            if connection.execute(_LOCK_LEASE, (self._user, self._holder)).rowcount:
                rows = connection.execute(_SURVEY, (self._user,)).fetchall()
                if any(
                    turn not in known and not _TICKETS.decode(data).failed for turn, data in rows
                ):
                    return False
                connection.execute(_END, (self._user, self._holder))
        self._begun = False
        return True

    def take_over(
        self, user: str, *, known: Collection[str] = (), failed: bool = False
    ) -> Sequence[tuple[str, Ticket]]:
        """Return the tickets that are not `known`, in order, if this process gets the lease."""
        if not self.begin():
            return []
        taken: list[tuple[str, Ticket]] = []
        for left in self.survey():
            ticket = left.ticket
            if ticket.old:
                self.remove(left.identity)
            elif left.identity not in known and (failed or not ticket.failed):
                taken.append((left.identity, ticket))
        return [one for one in taken if one[1].user == user]

    def survey(self) -> Sequence[PendingTicket]:
        """Return all tickets in order; all are `held` while a process holds the lease."""
        with self._database.transaction(self._user) as connection:
            rows = connection.execute(_SURVEY, (self._user,)).fetchall()
            held = connection.execute(_IS_HELD, (self._user,)).rowcount == 1
        return [PendingTicket(turn, _TICKETS.decode(data), held) for turn, data in rows]

    @contextmanager
    def working(self) -> Iterator[bool]:
        """Yield True: the lease keeps other processes away, on every machine."""
        yield True

    def find_worker(self) -> Worker | None:
        """Return `None`: the holder of the lease may be on another machine."""
        return None

    def close(self) -> None:
        """Release the lease, leaving the remaining tickets. Safe to call twice."""
        if self._begun:
            # On failure, the lease expires.
            with suppress(StorageError), self._database.transaction(self._user) as connection:
                connection.execute(_END, (self._user, self._holder))
            self._begun = False
