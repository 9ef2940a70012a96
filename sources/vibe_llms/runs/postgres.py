"""`PostgresRunStore`: the runs of all users in PostgreSQL, for processes on any machine.

The status of runs is in a table without content, in which workers find the runs of all users. All
other tables show only the rows of one user. See `storage/postgres/tables/0004_runs.sql`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import ConversationBusy, StorageError, StorageUnavailable
from vibe_llms.conversations.settings import TurnState
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.runs import postgres_statements as statements
from vibe_llms.runs import rules
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
from vibe_llms.runs.postgres_news import PostgresNews
from vibe_llms.runs.postgres_rows import read_approval, read_question, read_record, read_status
from vibe_llms.runs.postgres_steering import (
    INSERT,
    PostgresSteering,
    list_queued,
    lock_lease,
    name_lease,
    write_steering,
)
from vibe_llms.runs.purging import Purge
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Connection, Database, clean_text, fenced
from vibe_llms.storage.postgres.pipelines import Statement

#: Seconds between searches for old runs, and maximum number of runs purged in a transaction.
_PURGE_SECONDS = 60.0
_PURGE_BATCH = 20
#: Statement timeout of lease renewals, short enough to try again before a lease ends.
_LEASE_SECONDS = 2.0


class PostgresRunStore(PostgresSteering):
    """A `RunStore` in PostgreSQL.

    Writes are durable when their method returns. Events that arrive during a commit wait and are
    committed together.
    """

    def __init__(self, database: Database, *, events_days: float = 7.0) -> None:
        self._database = database
        # A separate connection, because a busy worker that renews its leases late would lose them.
        settings = database.settings
        seconds = min(settings.statement_seconds, _LEASE_SECONDS)
        self._leases = Database(replace(settings, connections=1, statement_seconds=seconds))
        self._news = PostgresNews(database)
        self._events_days = events_days
        self._purge = Purge(self._purge_some, _PURGE_SECONDS)
        self.ended = Counter[RunStatus]()
        self._waiting: list[_Append] = []
        self._appending: asyncio.Task[None] | None = None

    @property
    def hears(self) -> bool:
        """True if notifications of other processes are being received."""
        return self._news.hears

    def listen(self, news: News) -> None:
        """Report changes by other processes to `news`, if the database supports LISTEN."""
        self._news.listen(news)

    def exists(self) -> bool:
        """Return True, because only the database knows if there are runs."""
        return True

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        """Store a new run; see `RunStore.create`."""
        user, request = record.user, record.request
        values = {
            "owner": user,
            "run": record.identity,
            "conversation": record.conversation,
            "status": record.status,
            "epoch": record.epoch,
            "seconds": seconds,
            "invokers": [*record.recipe.invokers],
            "recipe": msgspec.json.encode(record.recipe),
            "prompt": record.prompt,
            "opening": record.opening,
            "details": None if record.details is None else msgspec.json.encode(record.details),
            "state": msgspec.json.encode(record.state),
            "origin": record.origin,
            "most": most,
            "key": None,
            "short_recipe": msgspec.json.encode(Recipe(model=record.recipe.model)),
            "short_prompt": None if record.outline is None else record.outline.prompt,
            "short_opening": None if record.outline is None else record.outline.opening,
        }
        if request is not None:
            values |= {"key": _encode(request.key), "digest": request.digest}
        # A statement sees what was committed before it, so the decision must follow the lock.
        queries = [statements.LOCK_RUNS, statements.CREATE]
        if request is not None:
            queries.append(statements.KEEP_REQUEST)
        if record.steering:
            values |= write_steering(record.steering)
            queries.append(INSERT)
        _, created, *_ = await self._database.run(
            [Statement(user, query, values) for query in queries]
        )
        ((others, made),) = created.rows
        if not made:
            if request is not None:
                await self.find_request(user, request)
            if most is not None:
                rules.require_room(others, most)
            raise await self._find_busy(user, record.conversation)
        self._news.tell_orders(record.identity)
        self._purge.begin()

    async def find_request(self, user: str, request: RequestKey) -> None:
        """Raise if the key of a request is known; see `RunStore.find_request`."""
        for digest, run in await self._database.fetch(
            user, statements.REQUEST, {"owner": user, "key": _encode(request.key)}
        ):
            rules.refuse_request(request, digest, run)

    async def access(self, user: str, run: str) -> RunRecord:
        """Return a run by its identity or a unique prefix."""
        return _find_record(run, await self._database.fetch(*_seek(user, run)))

    async def refresh(self, record: RunRecord) -> RunRecord:
        """Return the current status of a run; see `RunStore.refresh`."""
        place = record.user, record.identity
        for row in await self._database.fetch(record.user, statements.REFRESH, place):
            return replace(record, **read_status(row))
        raise rules.not_found(record.identity)

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
        values = {
            "owner": user,
            "after": clean_text(after),
            "conversation": clean_text(conversation),
            "limit": limit,
        }
        # As literals, because an index is partial: it has only runs that have not ended.
        names = ", ".join(f"'{RunStatus(one)}'" for one in statuses)
        chosen = f"run.status in ({names})" if statuses else "true"
        if conversation:
            chosen += " and run.conversation = %(conversation)s"
        place = "select created, identity from vibe.runs where owner = %(owner)s and identity = "
        place += "%(after)s"
        if after and not await self._database.fetch(user, place, values):
            raise rules.not_found(after)
        rows = await self._database.fetch(
            user,
            f"{statements.LISTED} where run.owner = %(owner)s "
            f"and {chosen} and (%(after)s = '' or (run.created, run.identity) < ({place})) "
            "order by run.created desc, run.identity desc limit %(limit)s",
            values,
        )
        return [*map(read_record, rows)]

    async def count_unfinished(self) -> Mapping[RunStatus, int]:
        """Return the number of unfinished runs of all users, by status."""
        counts = dict(await self._database.fetch("", "select * from vibe.count_runs()"))
        return {one: counts.get(one, 0) for one in RunStatus if not one.ended}

    async def claim(
        self, user: str | None, seconds: float, *, known: Collection[str]
    ) -> RunRecord | None:
        """Claim a run without a worker; see `RunStore.claim`."""
        values = {"user": user, "seconds": seconds, "known": [*known]}
        _, found = await self._leases.run(
            [
                Statement(user or "", statements.CLAIM, values),
                Statement(user or "", statements.CLAIMED, {}),
            ]
        )
        return read_record(found.rows[0]) if found.rows else None

    async def renew(self, leases: Collection[Lease], seconds: float) -> Collection[Lease]:
        """Extend leases by this many seconds; return the leases that were lost."""
        held = [*leases]
        rows = await self._leases.fetch(
            "",
            "select place from vibe.renew_leases(%s::text[], %s::text[], %s::integer[], %s)",
            (
                *([one.user for one in held], [one.run for one in held]),
                *([one.epoch for one in held], seconds),
            ),
        )
        return [held[place - 1] for (place,) in rows]

    async def read_orders(
        self, user: str | None, leases: Collection[Lease], *, known: Collection[str]
    ) -> Orders:
        """Return pending work for a worker; see `RunStore.read_orders`."""
        ((cancel, claimable),) = await self._leases.fetch(
            user or "",
            "select * from vibe.read_orders(%s, %s::text[], %s::text[], %s::text[])",
            (user, [*known], [one.user for one in leases], [one.run for one in leases]),
        )
        return Orders(cancel, claimable)

    async def check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if the lease was lost."""
        if not await self._database.fetch(lease.user, statements.CHECK, name_lease(lease)):
            raise rules.lost(lease)

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Refuse messages in this block if the lease is lost."""
        values = {**name_lease(lease), "refusal": str(rules.lost(lease))}
        return fenced(Statement(lease.user, statements.FENCE, values))

    async def record_state(self, lease: Lease, state: TurnState) -> None:
        """Record the state of the turn durably."""
        values = {**name_lease(lease), "state": msgspec.json.encode(state)}
        if not await self._database.execute(lease.user, statements.RECORD_STATE, values):
            raise rules.lost(lease)

    async def begin_call(self, lease: Lease, invocation: str) -> int:
        """Record durably that a call starts; see `RunStore.begin_call`."""
        return await self._begin_call(statements.BEGIN_CALL, lease, invocation)

    async def begin_again(self, lease: Lease, invocation: str) -> None:
        """Record durably that a call starts again."""
        await self._begin_call(statements.BEGIN_AGAIN, lease, invocation)

    async def append_events(
        self,
        lease: Lease,
        events: Sequence[tuple[int, bytes]],
        *,
        conversation: str = "",
    ) -> None:
        """Record events at their cursors, and the conversation if the run moved to another."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(lease, _write_events(lease, events, conversation), done))
        if self._appending is None or self._appending.done():
            self._appending = asyncio.create_task(self._append_waiting(), name="events of runs")
        await done

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """Return the events after a cursor, in order."""
        return await self._database.fetch(
            user,
            "select cursor, data from vibe.run_events "
            "where owner = %s and run = %s and cursor > %s order by cursor limit %s",
            (user, clean_text(run), after, limit),
        )

    async def suspend(
        self,
        lease: Lease,
        approvals: Sequence[CallApproval],
        events: Sequence[tuple[int, bytes]] = (),
        *,
        questions: Sequence[RunQuestion] = (),
    ) -> RunStatus:
        """Release a run until a call is decided or a question answered; see `RunStore.suspend`."""
        async with self._database.transaction(lease.user) as connection:
            # A run cancelled in the meantime does not wait: the next worker ends it.
            cancelling = await lock_lease(connection, lease)
            await _append(connection, lease, events)
            status = RunStatus.QUEUED if cancelling else RunStatus.WAITING
            decided = {
                one.invocation: one
                for one in await _survey_approvals(connection, lease.user, lease.run)
            }
            for one in approvals:
                known = decided.get(one.invocation)
                if known is not None and known.definition == one.definition:
                    status = RunStatus.QUEUED if known.allowed is not None else status
                else:
                    # The tool has changed, so a new decision is needed.
                    await _keep_approval(connection, lease.user, lease.run, one)
            asked = {
                one.identity: one
                for one in await _survey_questions(connection, lease.user, lease.run)
            }
            for question in questions:
                earlier = asked.get(question.identity)
                if earlier is None:
                    await _insert_question(connection, lease, question)
                elif earlier.answer is not None:
                    status = RunStatus.QUEUED
            await _give_back(connection, lease, status)
        self._news.tell_orders(lease.run)
        return status

    async def release(self, lease: Lease, seconds: float = 0.0) -> None:
        """Release a run, so that any worker may continue it after this many seconds."""
        values = {**name_lease(lease), "seconds": seconds}
        if not await self._database.execute(lease.user, statements.RELEASE, values):
            raise rules.lost(lease)
        self._news.tell_orders(lease.run)

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
        values = {
            **_write_events(lease, events),
            "ending": msgspec.json.encode((reason, error, kind)),
            "status": status,
        }
        queries = [statements.GIVE_BACK]
        if reason or error or kind:
            queries.insert(0, statements.RECORD_ENDING)
        if events:
            queries.insert(0, statements.APPEND)
        *_, given_back = await self._database.run(
            [Statement(lease.user, query, values) for query in queries]
        )
        if not given_back.count:
            raise rules.lost(lease)
        self.ended[status] += 1
        self._news.tell_events(lease.run)

    async def cancel(self, user: str, run: str, end: RunEnding) -> RunStatus:
        """Request the end of a run; see `RunStore.cancel`."""
        async with self._database.transaction(user) as connection:
            # "update", because changing the epoch must wait for transactions that rely on it.
            run, status, epoch = await _lock(connection, user, run, "update")
            if status.ended:
                return status
            place = {"owner": user, "run": run}
            worked = await connection.execute(
                "update vibe.runs set cancelling = true, updated = clock_timestamp() "
                "where owner = %(owner)s and identity = %(run)s and status = 'running' "
                "and until >= clock_timestamp()",
                place,
            )
            if not worked.rowcount:
                await connection.execute(
                    "update vibe.runs set status = 'cancelled', epoch = epoch + 1, "
                    "updated = clock_timestamp() where owner = %(owner)s and identity = %(run)s",
                    place,
                )
                last = end(await list_queued(connection, place))
                for cursor, event in enumerate(last, first_cursor(epoch + 1) + 1):
                    await connection.execute(
                        "insert into vibe.run_events (owner, run, cursor, data) "
                        "values (%s, %s, %s, %s)",
                        (user, run, cursor, event),
                    )
        self._news.tell_orders(run)
        if worked.rowcount:
            return RunStatus.RUNNING
        self.ended[RunStatus.CANCELLED] += 1
        return RunStatus.CANCELLED

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
        async with self._database.transaction(user) as connection:
            run, status, _ = await _lock(connection, user, run)
            found = await _survey_approvals(connection, user, run)
            known = next((one for one in found if one.invocation == invocation), None)
            known = rules.judge_decision(run, status, invocation, known, allowed=allowed)
            if known.allowed is not None:
                return known
            decided = replace(known, allowed=allowed, explanation=explanation, always=always)
            await _keep_approval(connection, user, run, decided)
            await _queue(connection, user, run)
        self._news.tell_orders(run)
        return decided

    async def survey_approvals(self, user: str, run: str) -> Sequence[CallApproval]:
        """Return the calls of a run that needed approval."""
        rows = await self._database.fetch(user, statements.APPROVALS, (user, clean_text(run)))
        return [*map(read_approval, rows)]

    async def survey_always(self, user: str, conversation: str) -> Sequence[CallApproval]:
        """Return the calls of a conversation's runs that were allowed `always`."""
        values = (user, clean_text(conversation))
        rows = await self._database.fetch(user, statements.CONVERSATION_APPROVALS, values)
        return [one for one in map(read_approval, rows) if one.allowed and one.always]

    async def ask(self, lease: Lease, question: RunQuestion) -> None:
        """Record the question of a running call durably."""
        async with self._database.transaction(lease.user) as connection:
            await lock_lease(connection, lease)
            await _insert_question(connection, lease, question)

    async def close_question(
        self, lease: Lease, question: str, otherwise: ElicitationAnswer
    ) -> ElicitationAnswer:
        """Return the answer to a question, after recording `otherwise` if there is none."""
        async with self._database.transaction(lease.user) as connection:
            await lock_lease(connection, lease)
            found = await _survey_questions(connection, lease.user, lease.run)
            for known in found:
                if known.identity == question:
                    if known.answer is not None:
                        return known.answer
                    await _answer(connection, lease.user, lease.run, known, otherwise)
        return otherwise

    async def answer(
        self, user: str, run: str, question: str, answer: ElicitationAnswer
    ) -> RunQuestion:
        """Answer a question and queue its run if it waits; see `RunStore.answer`."""
        async with self._database.transaction(user) as connection:
            run, status, _ = await _lock(connection, user, run)
            found = await _survey_questions(connection, user, run)
            known = next((one for one in found if one.identity == question), None)
            known = rules.judge_answer(run, status, question, known, answer)
            if known.answer is not None:
                return known
            answered = await _answer(connection, user, run, known, answer)
            await _queue(connection, user, run)
        self._news.tell_orders(run)
        return answered

    async def survey_questions(self, user: str, run: str) -> Sequence[RunQuestion]:
        """Return the questions of a run, in order."""
        rows = await self._database.fetch(user, statements.QUESTIONS, (user, clean_text(run)))
        return [*map(read_question, rows)]

    async def remove(self, user: str, conversation: str) -> None:
        """Delete the runs of a conversation and their events."""
        await self._remove(user, conversation=clean_text(conversation))

    async def remove_run(self, user: str, run: str) -> None:
        """Delete a run and its events."""
        await self._remove(user, run=clean_text(run))

    async def close(self) -> None:
        """Finish pending writes and close; may be called twice."""
        while self._appending is not None and not self._appending.done():
            await asyncio.wait([self._appending])
        await self._purge.close()
        await self._news.close()
        await self._leases.close()

    async def _find_busy(self, user: str, conversation: str) -> ConversationBusy:
        rows = await self._database.fetch(
            user,
            "select identity, status from vibe.runs where owner = %s and conversation = %s "
            "and status in ('queued', 'running', 'waiting')",
            (user, conversation),
        )
        if not rows:
            return ConversationBusy("a run of this conversation has just ended; try again")
        ((run, status),) = rows
        return rules.busy(run, status)

    async def _begin_call(self, query: str, lease: Lease, invocation: str) -> int:
        values = {**name_lease(lease), "invocation": invocation}
        rows = await self._database.fetch(lease.user, query, values)
        if not rows:
            raise rules.lost(lease)
        ((epoch,),) = rows
        return int(epoch)

    async def _remove(self, user: str, **names: str) -> None:
        values: dict[str, Any] = {"owner": user, "run": None, "conversation": None, **names}
        await self._database.execute(user, statements.REMOVE, values)

    async def _append_waiting(self) -> None:
        while jobs := [job for job in self._waiting if not job.done.done()]:
            self._waiting.clear()
            # All processes lock in this order. The sort is stable, so events of a run stay in
            # order.
            jobs.sort(key=lambda job: _place(job.lease))
            try:
                await self._append_each(jobs)
            finally:
                for job in jobs:
                    job.done.cancel()

    async def _append_each(self, jobs: Sequence[_Append]) -> None:
        try:
            await self._append_all(jobs)
        except StorageError as error:
            if len(jobs) > 1 and not isinstance(error, StorageUnavailable):
                # One job is at fault, and the transaction stored nothing.
                for job in jobs:
                    await self._append_each([job])
                return
            for job in jobs:
                job.refuse(error)

    async def _append_all(self, jobs: Sequence[_Append]) -> None:
        answers = await self._database.run(
            [Statement(job.lease.user, statements.APPEND, job.values) for job in jobs]
        )
        self._news.tell_events(*(job.lease.run for job in jobs))
        for job, answer in zip(jobs, answers, strict=True):
            if not _had_lease(answer.rows):
                job.refuse(rules.lost(job.lease))
            elif not job.done.done():
                job.done.set_result(None)

    async def _purge_some(self) -> bool:
        """Purge some of the oldest ended runs; return True if there may be more."""
        find = "select owner, runs from vibe.survey_old_runs(%s, %s)"
        old = await self._database.fetch("", find, (self._events_days, _PURGE_BATCH))
        for owner, runs in old:
            values = {"owner": owner, "runs": runs}
            queries = statements.PURGE, statements.PURGE_REQUESTS
            await self._database.run([Statement(owner, query, values) for query in queries])
        return bool(old)


class _Append(Struct):
    """Events to record, and the future of their caller."""

    lease: Lease
    values: Mapping[str, Any]
    done: asyncio.Future[None]

    def refuse(self, error: StorageError) -> None:
        """Pass an error to the caller."""
        if not self.done.done():
            self.done.set_exception(error)


def produce_store(backend: Backend) -> PostgresRunStore:
    """Open the store of the runs of all users in a backend's database."""
    return PostgresRunStore(
        access_database(backend), events_days=backend.configuration.runs.events_days
    )


def _place(lease: Lease) -> tuple[str, str]:
    return lease.user, lease.run


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


async def _fetch(connection: Connection, query: str, values: Any = ()) -> list[Any]:
    cursor = connection.cursor(binary=True)
    await cursor.execute(query.encode(), values)
    return await cursor.fetchall()


async def _append(
    connection: Connection, lease: Lease, events: Sequence[tuple[int, bytes]]
) -> None:
    if not _had_lease(await _fetch(connection, statements.APPEND, _write_events(lease, events))):
        raise rules.lost(lease)


def _had_lease(rows: Sequence[Sequence[int]]) -> bool:
    """Return True if the worker that appended events still had the run."""
    ((held,),) = rows
    return bool(held)


def _write_events(
    lease: Lease, events: Sequence[tuple[int, bytes]], conversation: str = ""
) -> Mapping[str, Any]:
    return {
        **name_lease(lease),
        "conversation": conversation,
        "cursors": [cursor for cursor, _ in events],
        "data": [data for _, data in events],
    }


async def _give_back(connection: Connection, lease: Lease, status: RunStatus) -> None:
    changed = await connection.execute(
        statements.GIVE_BACK.encode(), {**name_lease(lease), "status": status}
    )
    if not changed.rowcount:
        raise rules.lost(lease)


async def _queue(connection: Connection, user: str, run: str) -> None:
    await connection.execute(
        "update vibe.runs set status = 'queued', updated = clock_timestamp() "
        "where owner = %s and identity = %s and status = 'waiting'",
        (user, run),
    )


async def _lock(
    connection: Connection, user: str, run: str, strength: str = "no key update"
) -> tuple[str, RunStatus, int]:
    """Lock a run until the transaction ends; return its identity, status, and epoch."""
    _, query, values = _seek(user, run, statements.LOCK)
    rows = await _fetch(connection, f"{query} for {strength} of run", values)
    rules.require_one(run, [row[1] for row in rows])
    _, identity, status, epoch = rows[0]
    return identity, RunStatus(status), epoch


def _seek(user: str, run: str, columns: str = statements.RECORDS) -> tuple[str, str, Sequence[str]]:
    """Return a query for a run by its identity or prefix; a second row means ambiguity."""
    # "~" sorts after every character of an identity.
    query = f"{columns} where run.owner = %s and run.identity between %s and %s "
    query += "order by run.identity limit 2"
    return user, query, (user, clean_text(run), f"{clean_text(run)}~")


def _find_record(run: str, rows: Sequence[Sequence[Any]]) -> RunRecord:
    rules.require_one(run, [row[1] for row in rows])
    return read_record(rows[0])


async def _survey_approvals(connection: Connection, user: str, run: str) -> list[CallApproval]:
    return [*map(read_approval, await _fetch(connection, statements.APPROVALS, (user, run)))]


async def _keep_approval(
    connection: Connection, user: str, run: str, approval: CallApproval
) -> None:
    await connection.execute(
        "insert into vibe.run_approvals (owner, run, invocation, data) values (%s, %s, %s, %s) "
        "on conflict (owner, run, invocation) do update set data = excluded.data",
        (user, run, approval.invocation, msgspec.json.encode(approval)),
    )


async def _survey_questions(connection: Connection, user: str, run: str) -> list[RunQuestion]:
    return [*map(read_question, await _fetch(connection, statements.QUESTIONS, (user, run)))]


async def _insert_question(connection: Connection, lease: Lease, question: RunQuestion) -> None:
    await connection.execute(
        "insert into vibe.run_questions (owner, run, identity, data) values (%s, %s, %s, %s)",
        (lease.user, lease.run, question.identity, msgspec.json.encode(question)),
    )


async def _answer(
    connection: Connection, user: str, run: str, question: RunQuestion, answer: ElicitationAnswer
) -> RunQuestion:
    answered = replace(question, answer=answer)
    await connection.execute(
        "update vibe.run_questions set data = %s where owner = %s and run = %s and identity = %s",
        (msgspec.json.encode(answered), user, run, question.identity),
    )
    return answered
