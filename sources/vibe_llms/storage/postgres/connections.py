"""Connections that fail if the server says nothing for too long: its host may have vanished.

The time limit of a statement is the server's own. If its host is gone, or a network in between
drops everything, nothing says so, and a program would wait forever.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, TypeVar

from vibe_llms.exceptions import StorageUnavailable
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import PQGen

RV = TypeVar("RV")

#: Within some 15 seconds the system notices that the host of the database has vanished.
_KEEPALIVES = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}
#: What the server reports of each connection.
_READ_ONLY_STATES = (b"default_transaction_read_only", b"in_hot_standby")


async def connect(
    dsn: str, settings: PostgresSettings, seconds: float, **options: Any
) -> AsyncConnection[Any]:
    """A connection for tasks; the server may say nothing for so many seconds."""
    made, _ = _limit_classes(seconds)
    return await made.connect(dsn, **connection_options(dsn, settings), **options)


def connect_blocking(
    dsn: str, settings: PostgresSettings, seconds: float, **options: Any
) -> Connection[Any]:
    """A connection for threads; the server may say nothing for so many seconds."""
    _, made = _limit_classes(seconds)
    return made.connect(dsn, **connection_options(dsn, settings), **options)


def connection_options(dsn: str, settings: PostgresSettings) -> dict[str, Any]:
    """What every connection is made with, besides its connection string."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(dsn)
    return {
        "connect_timeout": max(2, round(settings.connect_seconds)),
        "application_name": "vibe-llms",
        **{key: value for key, value in _KEEPALIVES.items() if key not in given},
    }


def find_role(dsn: str) -> str:
    """The role that a connection string names, or libpq takes if it names none."""
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    if role := conninfo_to_dict(dsn).get("user"):
        return str(role)
    defaults = {one.keyword: one.val for one in Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def find_silence_seconds(settings: PostgresSettings) -> float:
    """How long the server may say nothing about a statement, which it limits itself."""
    return settings.statement_seconds + settings.connect_seconds


def is_read_only(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether a connection cannot write, which need not change when the database can be written."""
    return any(connection.pgconn.parameter_status(one) == b"on" for one in _READ_ONLY_STATES)


def describe_silence(seconds: float) -> StorageUnavailable:
    """The error of a server that has said nothing; its connection can only be closed."""
    return StorageUnavailable(
        f"the database cannot be used now: it has not answered for {seconds:g} s"
    )


@functools.cache
def _limit_classes(seconds: float) -> tuple[type[AsyncConnection[Any]], type[Connection[Any]]]:
    from psycopg import AsyncConnection, Connection

    class LimitedAsyncConnection(AsyncConnection[Any]):
        def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> Any:
            return super().wait(_limit(gen, seconds), *args, **options)

    class LimitedConnection(Connection[Any]):
        def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> Any:
            return super().wait(_limit(gen, seconds), *args, **options)

    return LimitedAsyncConnection, LimitedConnection


def _limit(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """What psycopg does, ended by an error if nothing can be read or written for so long."""
    ready: Any = None
    moved = time.monotonic()
    try:
        while True:
            # psycopg also goes on several times a second with nothing ready.
            ready = yield gen.send(ready)
            if ready:
                moved = time.monotonic()
            elif time.monotonic() - moved > seconds:
                raise describe_silence(seconds)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
