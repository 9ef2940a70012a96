"""`Pipeline`: sends several statements over a connection at once, and reads the answers.

It uses libpq through psycopg's wrapper, and psycopg's adaptation of values. psycopg's own pipelines
take about 100 µs more CPU time, which is most of a server's work for a request.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vibe_llms.storage.postgres.connections import describe_silence

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.pq.abc import PGresult

_PLACE = re.compile(r"%(?:\((\w+)\)s|s|%)")
#: Statements that differ each time must not fill the memory of the server.
_MOST_PREPARED = 200
_CANCEL_SECONDS = 1.0
#: SQLSTATEs of a prepared statement that is gone or that now returns other columns.
_OUTDATED = ("26000", "0A000")


class Statement(Struct, frozen=True):
    """A statement of a user, with its values."""

    user: str
    query: str
    values: Any = ()


class StatementResult(Struct, frozen=True):
    """Rows of a statement, and the number of rows returned or changed."""

    rows: list[tuple[Any, ...]]
    count: int


class Pipeline:
    """Runner of statements over a connection that commits each transaction automatically."""

    def __init__(self, connection: AsyncConnection[Any], *, prepares: bool, seconds: float) -> None:
        """Create a pipeline. If it `prepares` statements, the server keeps them.

        The server may be silent for this many seconds.
        """
        from psycopg.adapt import Transformer

        self.connection = connection
        self._transformer = Transformer(connection)
        self._prepares = prepares
        self._seconds = seconds
        #: Names of prepared statements, by the text and the types of their values.
        self._prepared: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._names = itertools.count()
        #: The event waited for, the time when the wait began, and True if a check is scheduled.
        self._ready: asyncio.Future[None] | None = None
        self._since = 0.0
        self._watched = False

    @property
    def is_open(self) -> bool:
        """True if the server has not ended the connection since its last use."""
        from psycopg import OperationalError

        try:
            # The first call reads the server's final message, and the second the end.
            self.connection.pgconn.consume_input()
            self.connection.pgconn.consume_input()
        except OperationalError:
            return False
        return True

    @property
    def is_idle(self) -> bool:
        """True if neither a transaction nor a pipeline has begun."""
        from psycopg.pq import PipelineStatus, TransactionStatus

        line = self.connection.pgconn
        idle = line.transaction_status == TransactionStatus.IDLE
        return idle and line.pipeline_status == PipelineStatus.OFF

    async def run(self, statements: Sequence[Statement]) -> Sequence[StatementResult]:
        """Run statements as one transaction, and return their answers.

        Raises the error of the first statement that fails, and then keeps no changes. If the
        connection breaks, if this is cancelled, or if a value cannot be sent, the connection can
        only be closed.
        """
        from psycopg import Error, OperationalError

        line = self.connection.pgconn
        line.enter_pipeline_mode()
        # One entry per expected result: True if it is an answer.
        expected: list[bool] = []
        known = {*self._prepared}
        try:
            for one in statements:
                self._send(one, expected)
            # Without BEGIN, all statements before this form a transaction.
            line.pipeline_sync()
            results = await self._receive()
        except asyncio.CancelledError:
            with suppress(Error):
                await self.connection.cancel_safe(timeout=_CANCEL_SECONDS)
            raise
        line.exit_pipeline_mode()
        try:
            answers = [self._read(result) for result in results]
        except Error as error:
            # The server may or may not have prepared the new statements.
            for key in self._prepared.keys() - known:
                del self._prepared[key]
            if known and error.sqlstate in _OUTDATED:
                await self.connection.close()
                raise OperationalError(f"a connection was closed: {error}") from error
            raise
        return [one for one, is_wanted in zip(answers, expected, strict=True) if is_wanted]

    def _send(self, statement: Statement, expected: list[bool]) -> None:
        from psycopg.adapt import PyFormat
        from psycopg.pq import Format

        line, transformer = self.connection.pgconn, self._transformer
        text, names = _translate(statement.query)
        values = statement.values
        chosen = [values[name] for name in names]
        dumped = transformer.dump_sequence(chosen, [PyFormat.AUTO] * len(chosen))
        types, formats = transformer.types or (), transformer.formats
        key = (text, types)
        if key not in self._prepared:
            if not self._prepares or len(self._prepared) >= _MOST_PREPARED:
                line.send_query_params(text, dumped, types, formats, Format.BINARY)
                expected.append(True)
                return
            self._prepared[key] = b"vibe_%d" % next(self._names)
            line.send_prepare(self._prepared[key], text, types)
            expected.append(False)
        line.send_query_prepared(self._prepared[key], dumped, formats, Format.BINARY)
        expected.append(True)

    async def _receive(self) -> Sequence[PGresult]:
        """Return all results until the end of the transaction."""
        from psycopg import OperationalError
        from psycopg.pq import ConnStatus, ExecStatus

        line = self.connection.pgconn
        results: list[PGresult] = []
        while line.flush():
            await self._wait(writing=True)
            line.consume_input()
        while True:
            while not line.is_busy():
                result = line.get_result()
                if result is None:
                    # Between two statements, or at the end of a broken connection.
                    if line.status != ConnStatus.OK:
                        raise OperationalError(line.get_error_message())
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    return results
                else:
                    results.append(result)
            await self._wait()
            line.consume_input()

    async def _wait(self, *, writing: bool = False) -> None:
        """Wait until the server has sent something or can receive more."""
        loop, socket = asyncio.get_running_loop(), self.connection.pgconn.socket
        ready = self._ready = loop.create_future()
        self._since = loop.time()
        if not self._watched:
            self._watch(loop, self._seconds)
        loop.add_reader(socket, _resolve, ready)
        if writing:
            loop.add_writer(socket, _resolve, ready)
        try:
            await ready
        finally:
            loop.remove_reader(socket)
            if writing:
                loop.remove_writer(socket)

    def _watch(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Schedule a check of the server's silence in some seconds."""
        self._watched = True
        # A timer for each wait would take a tenth of the CPU time of a statement.
        loop.call_later(seconds, self._check_silence, loop)

    def _check_silence(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched = False
        if self._ready is None or self._ready.done():
            return
        if (rest := self._since + self._seconds - loop.time()) > 0:
            self._watch(loop, rest)
        else:
            self._ready.set_exception(describe_silence(self._seconds))

    def _read(self, result: PGresult) -> StatementResult:
        from psycopg.errors import error_from_result
        from psycopg.pq import ExecStatus, Format

        if result.status == ExecStatus.TUPLES_OK:
            self._transformer.set_pgresult(result, format=Format.BINARY)
            rows = self._transformer.load_rows(0, result.ntuples, tuple)
            return StatementResult(rows, len(rows))
        if result.status == ExecStatus.COMMAND_OK:
            return StatementResult([], result.command_tuples or 0)
        raise error_from_result(result)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@functools.lru_cache(maxsize=_MOST_PREPARED)
def _translate(query: str) -> tuple[bytes, Sequence[Any]]:
    """Return a query with PostgreSQL's placeholders, and the keys of their values.

    >>> _translate("select %(name)s, %(id)s, %(name)s")
    (b'select $1, $2, $1', ['name', 'id'])
    >>> _translate("select %s %% %s")
    (b'select $1 % $2', [0, 1])
    """
    keys: list[Any] = []

    def place(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        key = match[1] or len(keys)
        if key not in keys:
            keys.append(key)
        return f"${keys.index(key) + 1}"

    return _PLACE.sub(place, query).encode(), keys
