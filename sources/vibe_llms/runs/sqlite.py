"""`SqliteRunStore`: the runs of all users in one SQLite file, for processes on one machine.

Transactions that must be durable use `synchronous = full`. Events use `normal`: a power failure may
lose the last events, which are rebuilt from the history when the run is taken over.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.conversations.settings import TurnState
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.runs import rules
from vibe_llms.runs.database import find_file
from vibe_llms.runs.events import first_cursor
from vibe_llms.runs.interfaces import (
    CallApproval,
    Lease,
    Orders,
    Recipe,
    RequestKey,
    RunEnding,
    RunQuestion,
    RunRecord,
    RunStatus,
)
from vibe_llms.runs.news import News
from vibe_llms.runs.purging import Purge
from vibe_llms.runs.sqlite_steering import (
    LEASED,
    TABLE,
    SqliteSteering,
    check_lease,
    insert_steering,
    list_queued,
)
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.interfaces import Details

_STATUS = (
    "runs.user, identity, conversation, status, epoch, cancelling, created, updated, reason, "
    "error, kind"
)
_RECORDS = f"""
select {_STATUS}, coalesce(bodies.recipe, runs.recipe), coalesce(bodies.prompt, runs.prompt), state,
    coalesce(bodies.opening, runs.opening), details, coalesce(bodies.origin, runs.origin)
from runs left join bodies on bodies.user = runs.user and bodies.run = identity
"""  # noqa: S608
#: Number of columns in `_STATUS`.
_STATUS_COLUMNS = 11
_RECIPE = msgspec.json.Decoder(Recipe)
_STATE = msgspec.json.Decoder(TurnState)
_DETAILS = msgspec.json.Decoder(Details)
_APPROVAL = msgspec.json.Decoder(CallApproval)
_QUESTION = msgspec.json.Decoder(RunQuestion)
_ANSWER = msgspec.json.Decoder(ElicitationAnswer)
#: Seconds between searches for old runs, and maximum number of runs purged in a transaction.
_PURGE_SECONDS = 3600.0
_PURGE_BATCH = 100

#: Seconds for which request keys are known.
_REQUEST_SECONDS = 86400.0
_ADDED = """
create table if not exists requests (
    user text not null, key text not null, digest blob not null, run text not null,
    created real not null, primary key (user, key)
) without rowid
"""


class SqliteRunStore(SqliteSteering):
    """A `RunStore` in a file, opened on first use."""

    def __init__(self, path: Path, *, lock_seconds: float = 10.0, events_days: float = 7.0) -> None:
        super().__init__(path, lock_seconds=lock_seconds, added=(_ADDED, TABLE))
        self._events_seconds = events_days * 86400
        self._purge = Purge(self._purge_some, _PURGE_SECONDS)
        self.ended = Counter[RunStatus]()

    #: SQLite does not notify of changes by other processes.
    hears = False

    def listen(self, news: News) -> None:
        """Do nothing: changes by other processes must be polled."""

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        """Store a new run; see `RunStore.create`."""
        steering = [(one.identity, encode_canister(one)) for one in record.steering]

        def work(database: sqlite3.Connection) -> None:
            user, conversation = record.user, record.conversation
            if record.request is not None:
                _find_request(database, user, record.request)
            if most is not None:
                _require_room(database, user, most)
            row = database.execute(
                "select identity, status from runs where user = ? and conversation = ? "
                "and status in ('queued', 'running', 'waiting')",
                (user, conversation),
            ).fetchone()
            if row is not None:
                raise rules.busy(*row)
            now = time.time()
            if (request := record.request) is not None:
                database.execute(
                    "insert or replace into requests values (?, ?, ?, ?, ?)",
                    (user, request.key, request.digest, record.identity, now),
                )
            details = None if record.details is None else msgspec.json.encode(record.details)
            body = msgspec.json.encode(record.recipe), record.origin, record.prompt, record.opening
            recipe, origin, prompt, opening = body
            if record.outline is not None:
                database.execute(
                    "insert into bodies values (?, ?, ?, ?, ?, ?)", (user, record.identity, *body)
                )
                short = Recipe(model=record.recipe.model, invokers=record.recipe.invokers)
                recipe, origin = msgspec.json.encode(short), b""
                prompt, opening = record.outline.prompt, record.outline.opening
            database.execute(
                "insert into runs (user, identity, conversation, status, epoch, until, cancelling, "
                "created, updated, recipe, prompt, opening, details, state, origin, reason, error, "
                "kind) values (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, '', '', '')",
                (
                    *(user, record.identity, conversation, record.status, record.epoch),
                    *(_end_after(seconds), now, now, recipe, prompt, opening, details),
                    *(msgspec.json.encode(record.state), origin),
                ),
            )
            insert_steering(database, user, record.identity, steering)

        await self.write(work)
        self._purge.begin()

    async def find_request(self, user: str, request: RequestKey) -> None:
        """Raise if the key of a request is known; see `RunStore.find_request`."""
        await self.run(lambda database: _find_request(database, user, request))

    async def access(self, user: str, run: str) -> RunRecord:
        """Return a run by its identity or a unique prefix."""

        def work(database: sqlite3.Connection) -> RunRecord:
            return _access(database, user, run)

        return await self.run(work)

    async def refresh(self, record: RunRecord) -> RunRecord:
        """Return the current status of a run; see `RunStore.refresh`."""

        def work(database: sqlite3.Connection) -> RunRecord:
            row = database.execute(
                f"select {_STATUS} from runs where user = ? and identity = ?",  # noqa: S608
                (record.user, record.identity),
            ).fetchone()
            if row is None:
                raise rules.not_found(record.identity)
            return msgspec.structs.replace(record, **_read_status(row))

        return await self.run(work)

    async def survey(
        self,
        user: str,
        *,
        statuses: Collection[RunStatus] = (),
        conversation: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """Return the runs of a user, newest first; see `RunStore.survey`."""
        chosen, values = "user = ?", [user]
        if statuses:
            chosen += f" and status in ({', '.join('?' * len(statuses))})"
            values += statuses
        if conversation:
            chosen += " and conversation = ?"
            values.append(conversation)
        most = -1 if limit is None else limit

        def work(database: sqlite3.Connection) -> Sequence[RunRecord]:
            place = "select created, identity from runs where user = ? and identity = ?"
            if after and not database.execute(place, (user, after)).fetchone():
                raise rules.not_found(after)
            rows = database.execute(
                f"select {_STATUS}, recipe, prompt, state from runs "  # noqa: S608
                f"where {chosen} and (? = '' or (created, identity) < ({place})) "
                "order by created desc, identity desc limit ?",
                (*values, after, user, after, most),
            )
            return [*map(_read_record, rows)]

        return await self.run(work)

    async def count_unfinished(self) -> Mapping[RunStatus, int]:
        """Return the number of unfinished runs of all users, by status."""

        def work(database: sqlite3.Connection) -> Mapping[RunStatus, int]:
            query = "select status, count(*) from runs "
            query += "where status in ('queued', 'running', 'waiting') group by status"
            counts = dict(database.execute(query))
            return {one: counts.get(one, 0) for one in RunStatus if not one.ended}

        return await self.run(work)

    async def claim(
        self, user: str | None, seconds: float, *, known: Collection[str]
    ) -> RunRecord | None:
        """Claim a run without a worker; see `RunStore.claim`."""

        def work(database: sqlite3.Connection) -> Sequence[Any] | None:
            now = time.time()
            found = _find_claimable(database, user, known, now)
            if found is None:
                return None
            database.execute(
                "update runs set status = 'running', epoch = epoch + 1, until = ?, updated = ? "
                "where user = ? and identity = ?",
                (now + seconds, now, *found),
            )
            return _find_row(database, *found)

        # Usually there is none, and no lock is needed.
        if not (await self.read_orders(user, (), known=known)).claimable:
            return None
        row = await self.write(work)
        # Decoded after the claim, so that an unreadable run does not block the others.
        return None if row is None else _read_record(row)

    async def renew(self, leases: Collection[Lease], seconds: float) -> Collection[Lease]:
        """Extend leases by this many seconds; return the leases that were lost."""

        def work(database: sqlite3.Connection) -> Collection[Lease]:
            until = time.time() + seconds
            statement = f"update runs set until = ? where {LEASED}"  # noqa: S608
            return [
                one
                for one in leases
                if not database.execute(statement, (until, *_key_of(one))).rowcount
            ]

        return await self.write(work, durable=False)

    async def read_orders(
        self, user: str | None, leases: Collection[Lease], *, known: Collection[str]
    ) -> Orders:
        """Return pending work for a worker; see `RunStore.read_orders`."""

        def work(database: sqlite3.Connection) -> Orders:
            cancel = [
                one.run
                for one in leases
                if database.execute(
                    "select 1 from runs where user = ? and identity = ? and cancelling",
                    (one.user, one.run),
                ).fetchone()
            ]
            claimable = _find_claimable(database, user, known, time.time()) is not None
            return Orders(cancel, claimable)

        return await self.run(work)

    async def check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if the lease was lost."""
        await self.run(lambda database: check_lease(database, lease))

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Do nothing: conversations are in files, which cannot be fenced."""
        del lease
        return nullcontext()

    async def record_state(self, lease: Lease, state: TurnState) -> None:
        """Record the state of the turn durably."""
        data = msgspec.json.encode(state)
        await self.write(lambda database: _update(database, lease, state=data))

    async def begin_call(self, lease: Lease, invocation: str) -> int:
        """Record durably that a call starts; see `RunStore.begin_call`."""

        def work(database: sqlite3.Connection) -> int:
            check_lease(database, lease)
            row = database.execute(
                "select epoch from calls where user = ? and run = ? and invocation = ?",
                (lease.user, lease.run, invocation),
            ).fetchone()
            if row is not None:
                return int(row[0])
            _insert_call(database, lease, invocation)
            return 0

        return await self.write(work)

    async def begin_again(self, lease: Lease, invocation: str) -> None:
        """Record durably that a call starts again."""

        def work(database: sqlite3.Connection) -> None:
            check_lease(database, lease)
            _insert_call(database, lease, invocation)

        await self.write(work)

    async def append_events(
        self,
        lease: Lease,
        events: Sequence[tuple[int, bytes]],
        *,
        conversation: str = "",
    ) -> None:
        """Record events at their cursors, and the conversation if the run moved to another."""

        def work(database: sqlite3.Connection) -> None:
            check_lease(database, lease)
            _insert_events(database, lease, events)
            if conversation:
                _update(database, lease, conversation=conversation)

        await self.write(work, durable=bool(conversation))

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """Return the events after a cursor, in order."""

        def work(database: sqlite3.Connection) -> Sequence[tuple[int, bytes]]:
            return database.execute(
                "select cursor, data from events where user = ? and run = ? and cursor > ? "
                "order by cursor limit ?",
                (user, run, after, limit),
            ).fetchall()

        return await self.run(work)

    async def suspend(
        self,
        lease: Lease,
        approvals: Sequence[CallApproval],
        events: Sequence[tuple[int, bytes]] = (),
        *,
        questions: Sequence[RunQuestion] = (),
    ) -> RunStatus:
        """Release a run until a call is decided or a question answered; see `RunStore.suspend`."""

        def work(database: sqlite3.Connection) -> RunStatus:
            check_lease(database, lease)
            _insert_events(database, lease, events)
            # A run cancelled in the meantime does not wait: the next worker ends it.
            _, _, _, cancelling = _find(database, lease.user, lease.run)
            status = RunStatus.QUEUED if cancelling else RunStatus.WAITING
            for one in approvals:
                known = _find_approval(database, lease.user, lease.run, one.invocation)
                if known is not None and known.definition == one.definition:
                    status = RunStatus.QUEUED if known.allowed is not None else status
                    continue
                # The tool has changed, so a new decision is needed.
                database.execute(
                    "insert or replace into approvals values (?, ?, ?, ?, null, '')",
                    (lease.user, lease.run, one.invocation, msgspec.json.encode(one)),
                )
            for question in questions:
                asked = _find_question(database, lease.user, lease.run, question.identity)
                if asked is None:
                    _insert_question(database, lease, question)
                elif asked.answer is not None:
                    status = RunStatus.QUEUED
            _update(database, lease, status=status, until=0.0)
            return status

        return await self.write(work)

    async def release(self, lease: Lease, seconds: float = 0.0) -> None:
        """Release a run, so that any worker may continue it after this many seconds."""

        def work(database: sqlite3.Connection) -> None:
            _update(database, lease, status=RunStatus.QUEUED, until=_end_after(seconds))

        await self.write(work)

    async def finish(
        self,
        lease: Lease,
        status: RunStatus,
        events: Sequence[tuple[int, bytes]] = (),
        *,
        reason: str = "",
        error: str = "",
        kind: str = "",
    ) -> None:
        """End a run and record its last events in the same transaction."""

        def work(database: sqlite3.Connection) -> None:
            ends = {"reason": reason, "error": error, "kind": kind}
            _update(database, lease, status=status, until=0.0, **ends)
            _insert_events(database, lease, events)

        await self.write(work)
        self.ended[status] += 1

    async def cancel(self, user: str, run: str, end: RunEnding) -> RunStatus:
        """Request the end of a run; see `RunStore.cancel`."""

        def work(database: sqlite3.Connection) -> tuple[RunStatus, bool]:
            identity, status, epoch, _ = _find(database, user, run)
            if status.ended:
                return status, False
            place, now = (user, identity), time.time()
            worked = database.execute(
                "update runs set cancelling = 1, updated = ? "
                "where user = ? and identity = ? and status = 'running' and until >= ?",
                (now, *place, now),
            )
            if worked.rowcount:
                return RunStatus.RUNNING, False
            database.execute(
                "update runs set status = 'cancelled', epoch = epoch + 1, updated = ? "
                "where user = ? and identity = ?",
                (now, *place),
            )
            last = end(list_queued(database, *place))
            _insert_events(
                database,
                Lease(*place, epoch + 1),
                [*enumerate(last, first_cursor(epoch + 1) + 1)],
            )
            return RunStatus.CANCELLED, True

        status, changed = await self.write(work)
        if changed:
            self.ended[status] += 1
        return status

    async def decide(
        self,
        user: str,
        run: str,
        invocation: str,
        *,
        allowed: bool,
        explanation: str = "",
        always: bool = False,
    ) -> CallApproval:
        """Decide on a call and queue its run; see `RunStore.decide`."""

        def work(database: sqlite3.Connection) -> CallApproval:
            identity, status, _, _ = _find(database, user, run)
            place = (user, identity)
            known = _find_approval(database, *place, invocation)
            known = rules.judge_decision(identity, status, invocation, known, allowed=allowed)
            if known.allowed is not None:
                return known
            known = msgspec.structs.replace(known, always=always)
            database.execute(
                "update approvals set data = ?, allowed = ?, explanation = ? "
                "where user = ? and run = ? and invocation = ?",
                (msgspec.json.encode(known), allowed, explanation, *place, invocation),
            )
            _queue(database, *place)
            return msgspec.structs.replace(known, allowed=allowed, explanation=explanation)

        return await self.write(work)

    async def survey_approvals(self, user: str, run: str) -> Sequence[CallApproval]:
        """Return the calls of a run that needed approval."""

        def work(database: sqlite3.Connection) -> Sequence[CallApproval]:
            rows = database.execute(
                "select data, allowed, explanation from approvals where user = ? and run = ?",
                (user, run),
            )
            return [*map(_read_approval, rows)]

        return await self.run(work)

    async def survey_always(self, user: str, conversation: str) -> Sequence[CallApproval]:
        """Return the calls of a conversation's runs that were allowed `always`."""

        def work(database: sqlite3.Connection) -> Sequence[CallApproval]:
            rows = database.execute(
                "select a.data, a.allowed, a.explanation from approvals a "
                "join runs r on r.user = a.user and r.identity = a.run "
                "where r.user = ? and r.conversation = ? and a.allowed",
                (user, conversation),
            )
            return [one for one in map(_read_approval, rows) if one.always]

        return await self.run(work)

    async def ask(self, lease: Lease, question: RunQuestion) -> None:
        """Record the question of a running call durably."""

        def work(database: sqlite3.Connection) -> None:
            check_lease(database, lease)
            _insert_question(database, lease, question)

        await self.write(work)

    async def close_question(
        self, lease: Lease, question: str, otherwise: ElicitationAnswer
    ) -> ElicitationAnswer:
        """Return the answer to a question, after recording `otherwise` if there is none."""

        def work(database: sqlite3.Connection) -> ElicitationAnswer:
            check_lease(database, lease)
            known = _find_question(database, lease.user, lease.run, question)
            if known is not None and known.answer is not None:
                return known.answer
            _answer(database, lease.user, lease.run, question, otherwise)
            return otherwise

        return await self.write(work)

    async def answer(
        self, user: str, run: str, question: str, answer: ElicitationAnswer
    ) -> RunQuestion:
        """Answer a question and queue its run if it waits; see `RunStore.answer`."""

        def work(database: sqlite3.Connection) -> RunQuestion:
            identity, status, _, _ = _find(database, user, run)
            place = (user, identity)
            known = _find_question(database, *place, question)
            known = rules.judge_answer(identity, status, question, known, answer)
            if known.answer is not None:
                return known
            _answer(database, *place, question, answer)
            _queue(database, *place)
            return msgspec.structs.replace(known, answer=answer)

        return await self.write(work)

    async def survey_questions(self, user: str, run: str) -> Sequence[RunQuestion]:
        """Return the questions of a run, in order."""

        def work(database: sqlite3.Connection) -> Sequence[RunQuestion]:
            rows = database.execute(
                "select data, answer from questions where user = ? and run = ? order by identity",
                (user, run),
            )
            return [*map(_read_question, rows)]

        return await self.run(work)

    async def remove(self, user: str, conversation: str) -> None:
        """Delete the runs of a conversation and their events."""

        def work(database: sqlite3.Connection) -> None:
            place = (user, conversation)
            runs = database.execute(
                "select identity from runs where user = ? and conversation = ?", place
            ).fetchall()
            for (run,) in runs:
                _remove(database, user, run)

        await self.write(work)

    async def remove_run(self, user: str, run: str) -> None:
        """Delete a run and its events."""
        await self.write(lambda database: _remove(database, user, run))

    async def close(self) -> None:
        """Close the store; may be called twice."""
        await self._purge.close()
        await super().close()

    async def _purge_some(self) -> bool:
        """Purge some of the oldest ended runs; return True if there may be more."""

        def work(database: sqlite3.Connection) -> bool:
            now = time.time()
            # Each run has events until it is purged.
            old = database.execute(
                "select user, identity from runs "
                "where status in ('completed', 'failed', 'cancelled') and updated < ? and exists ("
                "select 1 from events where events.user = runs.user and run = identity) "
                "order by updated limit ?",
                (now - self._events_seconds, _PURGE_BATCH),
            ).fetchall()
            for query in (
                "delete from events where user = ? and run = ?",
                "delete from calls where user = ? and run = ?",
                "delete from steering where user = ? and run = ?",
                # A stored response is returned with its request, so `origin` stays.
                "update bodies set prompt = null, opening = null where user = ? and run = ?",
            ):
                database.executemany(query, old)
            database.execute("delete from requests where created < ?", (now - _REQUEST_SECONDS,))
            return len(old) == _PURGE_BATCH

        return await self.write(work, durable=False)


def _key_of(lease: Lease) -> tuple[str, str, int]:
    return lease.user, lease.run, lease.epoch


def _end_after(seconds: float) -> float:
    """Return the time this many seconds from now, or 0 if `seconds` is 0."""
    return time.time() + seconds if seconds else 0.0


def _update(database: sqlite3.Connection, lease: Lease, **values: Any) -> None:
    names = ", ".join(f"{name} = ?" for name in values)
    changed = database.execute(
        f"update runs set {names}, updated = ? where {LEASED}",  # noqa: S608
        (*values.values(), time.time(), *_key_of(lease)),
    )
    if not changed.rowcount:
        raise rules.lost(lease)


def _insert_events(
    database: sqlite3.Connection, lease: Lease, events: Sequence[tuple[int, bytes]]
) -> None:
    database.executemany(
        "insert into events values (?, ?, ?, ?)",
        ((lease.user, lease.run, cursor, data) for cursor, data in events),
    )


def _insert_call(database: sqlite3.Connection, lease: Lease, invocation: str) -> None:
    database.execute(
        "insert or replace into calls values (?, ?, ?, ?)",
        (lease.user, lease.run, invocation, lease.epoch),
    )


def _insert_question(database: sqlite3.Connection, lease: Lease, question: RunQuestion) -> None:
    database.execute(
        "insert into questions values (?, ?, ?, ?, null)",
        (lease.user, lease.run, question.identity, msgspec.json.encode(question)),
    )


def _answer(
    database: sqlite3.Connection, user: str, run: str, question: str, answer: ElicitationAnswer
) -> None:
    database.execute(
        "update questions set answer = ? where user = ? and run = ? and identity = ?",
        (msgspec.json.encode(answer), user, run, question),
    )


def _queue(database: sqlite3.Connection, user: str, run: str) -> None:
    database.execute(
        "update runs set status = 'queued', updated = ? "
        "where user = ? and identity = ? and status = 'waiting'",
        (time.time(), user, run),
    )


def produce_store(backend: Backend) -> SqliteRunStore:
    """Open the store of the runs of all users."""
    return SqliteRunStore(
        find_file(backend.configuration),
        lock_seconds=backend.configuration.storage.lock_seconds,
        events_days=backend.configuration.runs.events_days,
    )


def _find_request(database: sqlite3.Connection, user: str, request: RequestKey) -> None:
    row = database.execute(
        "select digest, run from requests where user = ? and key = ? and created > ?",
        (user, request.key, time.time() - _REQUEST_SECONDS),
    ).fetchone()
    if row is not None:
        rules.refuse_request(request, *row)


def _require_room(database: sqlite3.Connection, user: str, most: int) -> None:
    # The unary plus keeps SQLite from using the index of all runs of the user.
    (running,) = database.execute(
        "select count(*) from runs where status in ('queued', 'running') and +user = ?", (user,)
    ).fetchone()
    rules.require_room(running, most)


def _remove(database: sqlite3.Connection, user: str, run: str) -> None:
    for table, column in (
        *(("events", "run"), ("calls", "run"), ("approvals", "run"), ("questions", "run")),
        *(("requests", "run"), ("bodies", "run"), ("steering", "run")),
        ("runs", "identity"),
    ):
        database.execute(
            f"delete from {table} where user = ? and {column} = ?",  # noqa: S608
            (user, run),
        )


def _find_claimable(
    database: sqlite3.Connection, user: str | None, known: Collection[str], now: float
) -> tuple[str, str] | None:
    """Return a run that is queued and due, or whose worker no longer renews its lease."""
    rows = database.execute(
        "select user, identity, recipe from runs where status in ('queued', 'running') "
        "and (? is null or user = ?) and (until < ? or (status = 'queued' and cancelling)) "
        "order by created",
        (user, user, now),
    )
    for owner, run, recipe in rows:
        if _find_needs(recipe) <= {*known}:
            return owner, run
    return None


def _find_needs(recipe: bytes) -> set[str]:
    """Return the tools that a worker must have; none if unreadable, which `claim` reports."""
    with suppress(msgspec.DecodeError):
        return {*_RECIPE.decode(recipe).invokers}
    return set()


def _find(database: sqlite3.Connection, user: str, run: str) -> tuple[str, RunStatus, int, bool]:
    """Return the identity, status, and epoch of a run, and True if it is being cancelled."""
    # "~" sorts after every character of an identity.
    rows = database.execute(
        "select identity, status, epoch, cancelling from runs "
        "where user = ? and identity between ? and ? order by identity limit 2",
        (user, run, f"{run}~"),
    ).fetchall()
    rules.require_one(run, [row[0] for row in rows])
    identity, status, epoch, cancelling = rows[0]
    return identity, RunStatus(status), epoch, bool(cancelling)


def _access(database: sqlite3.Connection, user: str, run: str) -> RunRecord:
    return _read_record(_find_row(database, user, run))


def _find_row(database: sqlite3.Connection, user: str, run: str) -> Sequence[Any]:
    place = user, _find(database, user, run)[0]
    query = f"{_RECORDS} where runs.user = ? and identity = ?"
    return tuple(database.execute(query, place).fetchone())


def _find_approval(
    database: sqlite3.Connection, user: str, run: str, invocation: str
) -> CallApproval | None:
    row = database.execute(
        "select data, allowed, explanation from approvals "
        "where user = ? and run = ? and invocation = ?",
        (user, run, invocation),
    ).fetchone()
    return None if row is None else _read_approval(row)


def _find_question(
    database: sqlite3.Connection, user: str, run: str, question: str
) -> RunQuestion | None:
    row = database.execute(
        "select data, answer from questions where user = ? and run = ? and identity = ?",
        (user, run, question),
    ).fetchone()
    return None if row is None else _read_question(row)


def _read_question(row: tuple[bytes, bytes | None]) -> RunQuestion:
    data, answer = row
    return msgspec.structs.replace(
        _QUESTION.decode(data),
        answer=None if answer is None else _ANSWER.decode(answer),
    )


def _read_approval(row: tuple[bytes, int | None, str]) -> CallApproval:
    data, allowed, explanation = row
    return msgspec.structs.replace(
        _APPROVAL.decode(data),
        allowed=None if allowed is None else bool(allowed),
        explanation=explanation,
    )


def _read_record(row: Sequence[Any]) -> RunRecord:
    recipe, prompt, state, *rest = row[_STATUS_COLUMNS:]
    opening, details, origin = rest or (b"", None, b"")
    with rules.readable(row[1]):
        return RunRecord(
            **_read_status(row[:_STATUS_COLUMNS]),
            recipe=_RECIPE.decode(recipe),
            prompt=prompt,
            opening=opening,
            details=None if details is None else _DETAILS.decode(details),
            state=_STATE.decode(state),
            origin=origin,
        )


def _read_status(row: Sequence[Any]) -> dict[str, Any]:
    user, identity, conversation, status, epoch, cancelling, created, updated, *ending = row
    reason, error, kind = ending
    return {
        "identity": identity,
        "user": user,
        "conversation": conversation,
        "status": RunStatus(status),
        "created": datetime.fromtimestamp(created, UTC),
        "updated": datetime.fromtimestamp(updated, UTC),
        "epoch": epoch,
        "cancelling": bool(cancelling),
        "reason": reason,
        "error": error,
        "kind": kind,
    }
