"""`Pipeline`: sends statements over a connection at once, and reads what the database answers.

It uses libpq as psycopg wraps it, and psycopg's adaptation of values. psycopg's own pipelines do
the same for some 100 µs more of CPU time, which is most of what a server does for a request.
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
#: Statements that are different each time must not fill the memory of the server.
_MOST_PREPARED = 200
_CANCEL_SECONDS = 1.0
#: What was prepared is not there any more, or gives other columns than then.
_OUTDATED = ("26000", "0A000")


class Statement(Struct, frozen=True):
    """A statement of a user, with its values."""

    user: str
    query: str
    values: Any = ()


class Answer(Struct, frozen=True):
    """The rows that a statement gives, and how many rows it gives or has changed."""

    rows: list[tuple[Any, ...]]
    count: int


class Pipeline:
    """Runs statements over a connection that commits each transaction by itself."""

    def __init__(self, connection: AsyncConnection[Any], *, prepares: bool, seconds: float) -> None:
        """A pipeline; if it `prepares` statements, the server keeps them for this connection.

        The server may say nothing for so many seconds.
        """
        from psycopg.adapt import Transformer

        self.connection = connection
        self._transformer = Transformer(connection)
        self._prepares = prepares
        self._seconds = seconds
        #: The names of what the server keeps, by the text and the types of its values.
        self._prepared: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._names = itertools.count()
        #: What is waited for, since when, and whether a look at that is due.
        self._ready: asyncio.Future[None] | None = None
        self._since = 0.0
        self._watched = False

    @property
    def is_open(self) -> bool:
        """Whether the server has not ended the connection since it was used."""
        from psycopg import OperationalError

        try:
            # What it says when it ends one, and the end.
            self.connection.pgconn.consume_input()
            self.connection.pgconn.consume_input()
        except OperationalError:
            return False
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no transaction and nothing else has begun."""
        from psycopg.pq import PipelineStatus, TransactionStatus

        line = self.connection.pgconn
        idle = line.transaction_status == TransactionStatus.IDLE
        return idle and line.pipeline_status == PipelineStatus.OFF

    async def run(self, statements: Sequence[Statement]) -> Sequence[Answer]:
        """Run statements as one transaction; returns their answers.

        Raises the error of the first that fails; then nothing is kept of any. The connection can
        only be closed if it breaks, if this is cancelled, and if a value cannot be sent.
        """
        from psycopg import Error, OperationalError

        line = self.connection.pgconn
        line.enter_pipeline_mode()
        # For each result that will come, whether it is an answer.
        expected: list[bool] = []
        known = {*self._prepared}
        try:
            for one in statements:
                self._send(one, expected)
            # Without BEGIN, what comes before this is a transaction.
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
            # Whether the server has prepared what is new is not known.
            for key in self._prepared.keys() - known:
                del self._prepared[key]
            if known and error.sqlstate in _OUTDATED:
                await self.connection.close()
                raise OperationalError(f"a connection was given up: {error}") from error
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
        """All results until the end of the transaction."""
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
                    # Between two statements, or at the end of a connection that broke.
                    if line.status != ConnStatus.OK:
                        raise OperationalError(line.get_error_message())
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    return results
                else:
                    results.append(result)
            await self._wait()
            line.consume_input()

    async def _wait(self, *, writing: bool = False) -> None:
        """Wait until the server has sent something, or can be sent more."""
        loop, socket = asyncio.get_running_loop(), self.connection.pgconn.socket
        ready = self._ready = loop.create_future()
        self._since = loop.time()
        if not self._watched:
            self._watch(loop, self._seconds)
        loop.add_reader(socket, _settle, ready)
        if writing:
            loop.add_writer(socket, _settle, ready)
        try:
            await ready
        finally:
            loop.remove_reader(socket)
            if writing:
                loop.remove_writer(socket)

    def _watch(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Look in so many seconds whether the server has been silent for too long."""
        self._watched = True
        # One for each wait would take a tenth of the CPU time of a statement.
        loop.call_later(seconds, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched = False
        if self._ready is None or self._ready.done():
            return
        if (rest := self._since + self._seconds - loop.time()) > 0:
            self._watch(loop, rest)
        else:
            self._ready.set_exception(describe_silence(self._seconds))

    def _read(self, result: PGresult) -> Answer:
        from psycopg.errors import error_from_result
        from psycopg.pq import ExecStatus, Format

        if result.status == ExecStatus.TUPLES_OK:
            self._transformer.set_pgresult(result, format=Format.BINARY)
            rows = self._transformer.load_rows(0, result.ntuples, tuple)
            return Answer(rows, len(rows))
        if result.status == ExecStatus.COMMAND_OK:
            return Answer([], result.command_tuples or 0)
        raise error_from_result(result)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@functools.lru_cache(maxsize=_MOST_PREPARED)
def _translate(query: str) -> tuple[bytes, Sequence[Any]]:
    """A query with the places of PostgreSQL, and the keys of their values.

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
