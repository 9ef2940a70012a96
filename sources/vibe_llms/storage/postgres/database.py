"""`Database`: transactions of one user each, over a few connections.

Every transaction names its user first, so that the tables' policies hide the rows of all others. It
relies on no other state of the connection, so any pooler may be used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from vibe_llms.base.exceptions import (
    LeaseLost,
    PackageMissing,
    StorageError,
    StorageUnavailable,
    VibeLlmsError,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.storage.postgres.connections import (
    connect,
    find_role,
    find_silence_seconds,
    is_read_only,
)
from vibe_llms.storage.postgres.migrations import READ, judge_level
from vibe_llms.storage.postgres.pipelines import Pipeline, Statement, StatementResult
from vibe_llms.storage.postgres.rights import describe_missing, probe, survey_missing
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import AsyncConnection

#: A connection within a transaction.
Connection: TypeAlias = "AsyncConnection[Any]"

#: First statement of every transaction, with the user and a time limit in milliseconds.
BECOME = "select set_config('vibe.user', %s, true), set_config('statement_timeout', %s, true)"
#: The same with a limit in milliseconds between statements, for transactions with several.
BECOME_FOR_LONG = f"{BECOME}, set_config('idle_in_transaction_session_timeout', %s, true)"
#: Milliseconds for which a vanished program keeps its locks; less than half of a lease.
_IDLE_MILLISECONDS = "5000"
#: SQLSTATE classes of temporary errors: connection, resources, operator, system, and rollback.
_PASSING = ("08", "53", "57", "58", "40")
#: Seconds for which a successful check of the database stays valid.
_CHECK_SECONDS = 1.0
_SILENCE = logging.NullHandler()
_READ_ONLY = "25006"
#: The role of programs lacks a right.
_DENIED = "42501"
#: Temporary errors: a transaction that is read-only, lacks a right, or exceeds a time limit; and a
#: lock that others hold.
_PASSING_STATES = (_READ_ONLY, _DENIED, "25P03", "25P04", "55P03")
#: Raised by `vibe.require_lease`.
_LOST = "VL001"
_NOT_MIGRATED = "the database is not migrated: vibe-llms archive migrate"
_LOGIN = "check the user and the password that [archive] connects with"
_NAMES = "create it, or correct dsn in [archive]"
#: Remedies by SQLSTATE, or by words: psycopg's connection errors do not have a SQLSTATE.
_REMEDIES = {
    "3F000": _NOT_MIGRATED,
    "42P01": _NOT_MIGRATED,
    _DENIED: "grant its role the rights on the tables: vibe-llms archive migrate",
    _READ_ONLY: "it is a standby or read-only; connect to a server that accepts writes",
    "53100": "free space on its disk",
    "password authentication failed": _LOGIN,
    "no password supplied": _LOGIN,
    "does not exist": _NAMES,
    "connection info string": "correct dsn in [archive]",
}
#: Statements sent before additions to conversations.
_FENCES: ContextVar[tuple[Statement, ...]] = ContextVar("fences", default=())


class Database:
    """Connections of one process, opened on demand, up to `connections`.

    Transactions raise `StorageUnavailable` while the database is unreachable, read-only, or full.
    Such a transaction leaves no changes, unless the connection broke during the commit. The next
    transaction tries again immediately. A pool that connects in the background, such as psycopg's,
    does not report the reason for a failure and pauses longer each time.

    A transaction of independent statements takes one round trip with `fetch`, `execute`, or `run`.
    Other transactions take three, and one for each statement.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._milliseconds = str(int(settings.statement_seconds * 1000))
        self._idle: list[Pipeline] = []
        self._room = asyncio.Semaphore(settings.connections)
        self._checked = self._closed = False
        self._checked_at = -inf

    @property
    def address(self) -> str:
        """Host, port, and name of the database, as in the connection string."""
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            # Connecting raises an error for the missing package.
            return "postgresql:"
        try:
            named = conninfo_to_dict(self.settings.dsn)
        except ProgrammingError:
            return "postgresql: (dsn in [archive] cannot be read)"
        host, port = named.get("host") or named.get("service") or "", named.get("port") or 5432
        return f"postgresql://{host}:{port}/{named.get('dbname') or ''}"

    @asynccontextmanager
    async def transaction(self, user: str) -> AsyncIterator[Connection]:
        """Yield a transaction that sees and writes the rows of a user.

        It is committed after the block, or rolled back after an error.
        """
        with database_errors():
            async with (
                self._admitted(),
                self._used(await self._begin(user)) as pipeline,
                _committed(pipeline.connection),
            ):
                if not self._checked:
                    cursor = await pipeline.connection.execute(READ)
                    judge_level(*(await cursor.fetchall())[0])
                    self._checked = True
                yield pipeline.connection

    async def fetch(self, user: str, query: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement as a transaction of a user, and return its rows."""
        (answer,) = await self.run([Statement(user, query, values)])
        return answer.rows

    async def execute(self, user: str, query: str, values: Any = ()) -> int:
        """Run a statement as a transaction of a user, and return the number of affected rows."""
        (answer,) = await self.run([Statement(user, query, values)])
        return answer.count

    async def run(self, statements: Sequence[Statement]) -> Sequence[StatementResult]:
        """Run statements as one transaction in one round trip, and return their answers."""
        await self.prepare()
        sent: list[Statement] = []
        user = None
        for one in statements:
            if one.user != user:
                user = one.user
                sent.append(Statement(user, BECOME, (user, self._milliseconds)))
            sent.append(one)
        with database_errors():
            async with self._admitted(), self._used(await self._connect()) as pipeline:
                answers = await pipeline.run(sent)
        return [answer for one, answer in zip(sent, answers, strict=True) if one.query != BECOME]

    async def prepare(self) -> None:
        """Begin a transaction, unless one has begun before."""
        if not self._checked:
            async with self.transaction(""):
                pass

    async def check(self) -> None:
        """Raise a `StorageError` unless programs can use the database or could a second ago.

        Checks its level, the rights of the role, and whether a row can be written, within
        `connect_seconds`.
        """
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                if time.monotonic() > self._checked_at + _CHECK_SECONDS:
                    await self._check()
                    self._checked_at = time.monotonic()
        except TimeoutError as error:
            raise StorageUnavailable("the database does not answer") from error

    async def _check(self) -> None:
        written = probe()
        become = Statement(written.user, BECOME, (written.user, self._milliseconds))
        begin, end = Statement("", "begin"), Statement("", "rollback")
        with database_errors():
            async with self._admitted(), self._used(await self._connect()) as pipeline:
                _, _, level = await pipeline.run([begin, become, Statement("", READ)])
                judge_level(*level.rows[0])
                missing, *_ = await pipeline.run([survey_missing(), written, end])
        if missing.rows:
            role = find_role(self.settings.dsn)
            raise StorageUnavailable(
                f"{describe_missing(role, [right for right, _ in missing.rows])}; "
                f"{_REMEDIES[_DENIED]}",
                refused=True,
            )
        self._checked = True

    async def close(self) -> None:
        """Close all connections, busy ones after their transactions; safe to call twice."""
        self._closed = True
        while self._idle:
            await self._idle.pop().connection.close()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                await self._room.acquire()
        except TimeoutError as error:
            raise StorageUnavailable(
                f"all {self.settings.connections} connections to the database are in use"
            ) from error
        try:
            yield
        finally:
            self._room.release()

    async def _begin(self, user: str) -> Pipeline:
        """Return a connection with a new transaction. Drop idle connections that have broken."""
        from psycopg import OperationalError

        limits = (user, self._milliseconds, _IDLE_MILLISECONDS)
        begin = Statement(user, "begin"), Statement(user, BECOME_FOR_LONG, limits)
        while True:
            used = bool(self._idle)
            pipeline = await self._connect()
            begun = False
            try:
                await pipeline.run(begin)
                begun = True
                return pipeline
            except OperationalError:
                if not used:
                    raise
            finally:
                if not begun:
                    await pipeline.connection.close()

    async def _connect(self) -> Pipeline:
        """Return an idle connection that the server has not ended, or a new one."""
        while self._idle:
            pipeline = self._idle.pop()
            if pipeline.is_open:
                return pipeline
            await pipeline.connection.close()
        # We cancel statements deliberately. Without logging setup, psycopg would print warnings.
        logging.getLogger("psycopg").addHandler(_SILENCE)
        seconds = find_silence_seconds(self.settings)
        connection = await connect(
            self.settings.dsn,
            self.settings,
            seconds,
            autocommit=True,
            # After a rollback, psycopg would discard its prepared statements together with ours.
            prepare_threshold=None,
        )
        return Pipeline(connection, prepares=not self.settings.pooler, seconds=seconds)

    @asynccontextmanager
    async def _used(self, pipeline: Pipeline) -> AsyncIterator[Pipeline]:
        """Keep the connection after the block if it is still usable."""
        try:
            yield pipeline
        finally:
            if pipeline.is_idle and not self._closed and not is_read_only(pipeline.connection):
                self._idle.append(pipeline)
            else:
                await pipeline.connection.close()


def clean_text(text: str) -> str:
    """Return a text that a column can hold."""
    return repair_text(text).replace("\0", "\ufffd")


@contextmanager
def fenced(fence: Statement) -> Iterator[None]:
    """Make additions to conversations in this context depend on the success of a statement.

    The statement is part of their transactions, so that what it reads and locks stays true until
    they end.
    """
    token = _FENCES.set((fence,))
    try:
        yield
    finally:
        _FENCES.reset(token)


def survey_fences() -> Sequence[Statement]:
    """Return the statements that an addition to a conversation sends first in its transaction."""
    return _FENCES.get()


@asynccontextmanager
async def _committed(connection: Connection) -> AsyncIterator[None]:
    """Commit after the block, or roll back on failure.

    A connection that cannot roll back is not idle, so its user closes it.
    """
    from psycopg import Error

    done = False
    try:
        yield
        await connection.commit()
        done = True
    finally:
        if not done:
            with suppress(Error):
                await connection.rollback()


@contextmanager
def database_errors() -> Iterator[None]:
    """Convert database errors within the block; raise `PackageMissing` without psycopg."""
    try:
        from psycopg import Error, OperationalError
    except ImportError as error:
        raise PackageMissing(
            "PostgreSQL",
            package=error.name or "psycopg",
            command='pip install "vibe-llms[postgres]"',
        ) from error
    try:
        yield
    except VibeLlmsError:
        raise
    except Error as error:
        state = error.sqlstate or ""
        if state == _LOST:
            raise LeaseLost(error.diag.message_primary or "") from error
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        for sign, remedy in _REMEDIES.items():
            if sign == state or (not state and sign in text):
                text = f"{text}; {remedy}"
        passing = state[:2] in _PASSING or state in _PASSING_STATES
        if passing or (not state and isinstance(error, OperationalError)):
            raise StorageUnavailable(
                f"the database cannot be used now: {text}", refused=state == _DENIED
            ) from error
        raise StorageError(f"the database: {text}") from error
