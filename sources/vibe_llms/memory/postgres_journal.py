"""`PostgresJournal`: the turns of one user that are still to be remembered, for all servers.

They are worked on in their order, by the one process that has the user's lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from vibe_llms.exceptions import StorageError
from vibe_llms.memory.tickets import Left, Ticket, Worker
from vibe_llms.messages.identities import produce_identity

if TYPE_CHECKING:
    from vibe_llms.storage.postgres.blocking import BlockingDatabase

_TICKETS = msgspec.json.Decoder(Ticket)
# A turn that is entered twice, as after a crash, is the same ticket.
_ENTER = """
insert into vibe.memory_tickets (owner, turn, data) values (%s, %s, %s) on conflict do nothing
"""
_REPLACE = "update vibe.memory_tickets set data = %s where owner = %s and turn = %s"
_SETTLE = "delete from vibe.memory_tickets where owner = %s and turn = %s"
_SURVEY = "select turn, data from vibe.memory_tickets where owner = %s order by number"
_IS_HELD = "select from vibe.memory_workers where owner = %s and until > clock_timestamp()"
#: A process that dies keeps others from its user's tickets for this time, and a busy one renews it.
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
_HOLD = "select from vibe.memory_workers where owner = %s and holder = %s for update"
_END = "delete from vibe.memory_workers where owner = %s and holder = %s"


class PostgresJournal:
    """The tickets of one user; any thread may call it."""

    def __init__(self, database: BlockingDatabase, user: str) -> None:
        self._database = database
        self._user = user
        self._holder = produce_identity()
        self._begun = False

    def enter(self, ticket: Ticket, identity: str = "") -> str:
        """Keep a ticket until it is settled, a new one or in place of another; its identity."""
        data = msgspec.json.encode(ticket)
        turn = identity or (ticket.canisters[0] if ticket.canisters else produce_identity())
        with self._database.transaction(self._user) as connection:
            if identity:
                connection.execute(_REPLACE, (data, self._user, turn))
                connection.execute(_RENEW, (self._user, self._holder))
            else:
                connection.execute(_ENTER, (self._user, turn, data))
        return turn

    def settle(self, identity: str) -> None:
        """Remove a ticket, since its turn is remembered, or is not to be."""
        with self._database.transaction(self._user) as connection:
            connection.execute(_SETTLE, (self._user, identity))
            connection.execute(_RENEW, (self._user, self._holder))

    def begin(self) -> bool:
        """Take the user's lease, or renew it; false if another process has it."""
        with self._database.transaction(self._user) as connection:
            taken = connection.execute(_BEGIN, (self._user, self._holder)).rowcount == 1
        self._begun = taken
        return taken

    def end(self, *, known: Collection[str] = ()) -> bool:
        """Give the lease back; false if tickets came that no other process works on.

        A process that entered one has not begun, and does not wait: with the lease locked, either
        its ticket is seen here, or it gets the lease.
        """
        with self._database.transaction(self._user) as connection:
            if connection.execute(_HOLD, (self._user, self._holder)).rowcount:
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
        """The tickets that are not `known`, in their order, if this process has the lease."""
        if not self.begin():
            return []
        taken: list[tuple[str, Ticket]] = []
        for left in self.survey():
            ticket = left.ticket
            if ticket.old:
                self.settle(left.identity)
            elif left.identity not in known and (failed or not ticket.failed):
                taken.append((left.identity, ticket))
        return [one for one in taken if one[1].user == user]

    def survey(self) -> Sequence[Left]:
        """All tickets in their order; all are `held` while a process has the lease."""
        with self._database.transaction(self._user) as connection:
            rows = connection.execute(_SURVEY, (self._user,)).fetchall()
            held = connection.execute(_IS_HELD, (self._user,)).rowcount == 1
        return [Left(turn, _TICKETS.decode(data), held) for turn, data in rows]

    @contextmanager
    def working(self) -> Iterator[bool]:
        """Begin in the background: the lease keeps all others away, on every machine."""
        yield True

    def find_worker(self) -> Worker | None:
        """None: the one who has the lease may be on another machine."""
        return None

    def close(self) -> None:
        """Give the lease back, with what is left; safe to call twice."""
        if self._begun:
            # If that fails, the lease ends by itself.
            with suppress(StorageError), self._database.transaction(self._user) as connection:
                connection.execute(_END, (self._user, self._holder))
            self._begun = False
