"""`Database`: transactions of one user each, over a few connections.

Every transaction names its user first, so that the policies of the tables show the rows of no other
one. Nothing else of a connection's state is relied on: any pooler may sit in between.
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

from vibe_llms.exceptions import (
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
from vibe_llms.storage.postgres.pipelines import Answer, Pipeline, Statement
from vibe_llms.storage.postgres.rights import describe_missing, probe, survey_missing
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import AsyncConnection

#: A connection within a transaction.
Connection: TypeAlias = "AsyncConnection[Any]"

#: Begins every transaction, with the user and a time limit in milliseconds.
BECOME = "select set_config('vibe.user', %s, true), set_config('statement_timeout', %s, true)"
#: The same for one of several statements, with the time in which the next one has to come.
BECOME_FOR_LONG = f"{BECOME}, set_config('idle_in_transaction_session_timeout', %s, true)"
#: A program that vanishes keeps its locks for so long, which is less than half of a lease.
_IDLE_MILLISECONDS = "5000"
#: Classes of SQLSTATE that pass: of connections, resources, the operator, the system, deadlocks.
_PASSING = ("08", "53", "57", "58", "40")
#: A database that was in order so recently is not looked at again.
_LOOK_SECONDS = 1.0
_SILENCE = logging.NullHandler()
_READ_ONLY = "25006"
#: The role of programs lacks a right.
_DENIED = "42501"
#: A transaction that is read-only, lacks a right, or is idle or busy for too long; a lock that
#: others keep.
_PASSING_STATES = (_READ_ONLY, _DENIED, "25P03", "25P04", "55P03")
#: Of `vibe.require_lease`.
_LOST = "VL001"
_NOT_MIGRATED = "the database is not migrated: vibe-llms archive migrate"
_LOGIN = "check the user and the password that [archive] connects with"
_NAMES = "create it, or correct dsn in [archive]"
#: What to do, by SQLSTATE, or by words: an error of connecting has no SQLSTATE in psycopg.
_REMEDIES = {
    "3F000": _NOT_MIGRATED,
    "42P01": _NOT_MIGRATED,
    _DENIED: "let its role use the tables: vibe-llms archive migrate",
    _READ_ONLY: "it is a standby, or set to read-only: connect to one that accepts writes",
    "53100": "free space on its disk",
    "password authentication failed": _LOGIN,
    "no password supplied": _LOGIN,
    "does not exist": _NAMES,
    "connection info string": "correct dsn in [archive]",
}
#: What is sent before additions to conversations.
_FENCES: ContextVar[tuple[Statement, ...]] = ContextVar("fences", default=())


class Database:
    """The connections of one process; they are made as they are needed, up to `connections`.

    Transactions raise `StorageUnavailable` while the database cannot be reached, is read-only, or
    is full. Nothing of such a transaction is kept, unless the connection broke while it was
    committed. The next transaction tries again, at once: a pool that connects in the background,
    such as psycopg's, does not say why it cannot, and pauses longer each time.

    A transaction whose statements do not depend on each other takes one round trip: `fetch`,
    `execute` and `run`. The others take three, and one for each statement.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._milliseconds = str(int(settings.statement_seconds * 1000))
        self._idle: list[Pipeline] = []
        self._room = asyncio.Semaphore(settings.connections)
        self._checked = self._closed = False
        self._looked = -inf

    @property
    def address(self) -> str:
        """The host, the port and the name of the database, as the connection string has them."""
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            # What connects says so.
            return "postgresql:"
        try:
            named = conninfo_to_dict(self.settings.dsn)
        except ProgrammingError:
            return "postgresql: (dsn in [archive] cannot be read)"
        host, port = named.get("host") or named.get("service") or "", named.get("port") or 5432
        return f"postgresql://{host}:{port}/{named.get('dbname') or ''}"

    @asynccontextmanager
    async def transaction(self, user: str) -> AsyncIterator[Connection]:
        """A transaction that sees and writes the rows of a user; committed after the block.

        An error within the block rolls it back.
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
        """The rows of a statement, which is a transaction of a user."""
        (answer,) = await self.run([Statement(user, query, values)])
        return answer.rows

    async def execute(self, user: str, query: str, values: Any = ()) -> int:
        """Run a statement as a transaction of a user; returns how many rows it was about."""
        (answer,) = await self.run([Statement(user, query, values)])
        return answer.count

    async def run(self, statements: Sequence[Statement]) -> Sequence[Answer]:
        """Run statements as one transaction, in one round trip; returns their answers."""
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

    async def look(self) -> None:
        """Raise a `StorageError` unless programs can use the database, or could a second ago.

        Its level is looked at, the rights of the role, and whether a row can be written. It has
        `connect_seconds` for that.
        """
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                if time.monotonic() > self._looked + _LOOK_SECONDS:
                    await self._look()
                    self._looked = time.monotonic()
        except TimeoutError as error:
            raise StorageUnavailable("the database does not answer") from error

    async def _look(self) -> None:
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
        """Close all connections, those in use after their transactions; safe to call twice."""
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
        """A connection whose transaction has begun; one that broke since it was used is dropped."""
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
        """A connection that was used before, if the server has not ended it, or a new one."""
        while self._idle:
            pipeline = self._idle.pop()
            if pipeline.is_open:
                return pipeline
            await pipeline.connection.close()
        # Cancelled statements are ours, and nothing to warn of where no logging is set up.
        logging.getLogger("psycopg").addHandler(_SILENCE)
        seconds = find_silence_seconds(self.settings)
        connection = await connect(
            *(self.settings.dsn, self.settings, seconds),
            autocommit=True,
            # What psycopg prepares, it discards after a rollback, with what pipelines prepare.
            prepare_threshold=None,
        )
        return Pipeline(connection, prepares=not self.settings.pooler, seconds=seconds)

    @asynccontextmanager
    async def _used(self, pipeline: Pipeline) -> AsyncIterator[Pipeline]:
        """Keep a connection after the block, if it is in order."""
        try:
            yield pipeline
        finally:
            if pipeline.is_idle and not self._closed and not is_read_only(pipeline.connection):
                self._idle.append(pipeline)
            else:
                await pipeline.connection.close()


def clean_text(text: str) -> str:
    """A text that a column can hold."""
    return repair_text(text).replace("\0", "\ufffd")


@contextmanager
def fenced(fence: Statement) -> Iterator[None]:
    """Additions to conversations in this context are kept only if a statement does not fail.

    It is part of their transactions, so that what it reads and locks stays true until they end.
    """
    token = _FENCES.set((fence,))
    try:
        yield
    finally:
        _FENCES.reset(token)


def survey_fences() -> Sequence[Statement]:
    """What an addition to a conversation has to send first, in the same transaction."""
    return _FENCES.get()


@asynccontextmanager
async def _committed(connection: Connection) -> AsyncIterator[None]:
    """Commit after the block; if it fails, roll back.

    A connection that cannot roll back is not idle, and is closed by who uses it.
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
    """Errors of the database within the block become our own; `PackageMissing` without psycopg."""
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
