"""`BlockingDatabase`: the transactions of `Database` for threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.storage.postgres.connections import (
    connect_blocking,
    find_silence_seconds,
    is_read_only,
)
from vibe_llms.storage.postgres.database import BECOME_FOR_LONG, database_errors
from vibe_llms.storage.postgres.migrations import READ, judge_level
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import Connection

#: A connection within a transaction.
BlockingConnection: TypeAlias = "Connection[Any]"


class BlockingDatabase:
    """Connections of the threads of one process, opened on demand.

    The rules are the same as in `vibe_llms.storage.postgres.database.Database`. A thread has one
    transaction of a user at a time: within the block, `transaction` yields the same one again.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._idle: list[BlockingConnection] = []
        self._room = threading.BoundedSemaphore(settings.connections)
        self._lock = threading.Lock()
        self._own = threading.local()
        self._checked = self._closed = False

    @contextmanager
    def transaction(self, user: str) -> Iterator[BlockingConnection]:
        """Yield a transaction that sees and writes the rows of a user.

        It is committed after the block, or rolled back after an error.
        """
        current: tuple[str, BlockingConnection] | None = getattr(self._own, "current", None)
        with database_errors():
            if current is not None and current[0] == user:
                yield current[1]
                return
            with self._admitted():
                connection = self._begin(user)
                self._own.current = (user, connection)
                try:
                    with _committed(connection):
                        yield connection
                finally:
                    self._own.current = current
                    self._give_back(connection)

    def close(self) -> None:
        """Close all connections, busy ones after their transactions; safe to call twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if not self._room.acquire(timeout=self.settings.connect_seconds):
            raise StorageUnavailable(
                f"all {self.settings.connections} connections to the database are in use"
            )
        try:
            yield
        finally:
            self._room.release()

    def _begin(self, user: str) -> BlockingConnection:
        """Return a connection with a new transaction. Drop idle connections that have broken."""
        from psycopg import OperationalError

        milliseconds = str(int(self.settings.statement_seconds * 1000))
        while True:
            with self._lock:
                used = self._idle.pop() if self._idle else None
            connection = used or self._connect()
            begun = False
            try:
                # The caller may work between two statements for longer than it waits for answers.
                connection.execute(BECOME_FOR_LONG, (user, milliseconds, milliseconds))
                if not self._checked:
                    judge_level(*connection.execute(READ).fetchall()[0])
                    self._checked = True
                begun = True
                return connection
            except OperationalError:
                if used is None:
                    raise
            finally:
                if not begun:
                    connection.close()

    def _connect(self) -> BlockingConnection:
        settings = self.settings
        return connect_blocking(
            settings.dsn,
            settings,
            find_silence_seconds(settings),
            # A pooler may give the connection with the prepared statement to others.
            prepare_threshold=None if settings.pooler else 5,
        )

    def _give_back(self, connection: BlockingConnection) -> None:
        from psycopg.pq import TransactionStatus

        idle = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            kept = idle and not self._closed and not is_read_only(connection)
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.close()


@contextmanager
def _committed(connection: BlockingConnection) -> Iterator[None]:
    """Commit after the block. On failure, roll back, or close the connection if that fails too."""
    from psycopg import Error

    done = False
    try:
        yield
        connection.commit()
        done = True
    finally:
        if not done:
            try:
                connection.rollback()
            except Error:
                connection.close()
