"""Connections that fail if the server is silent for too long, because its host may have vanished.

The server itself enforces the time limit of a statement. If its host is gone, or a network in
between drops all packets, a program would otherwise wait forever.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, TypeVar

from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import PQGen

RV = TypeVar("RV")

#: TCP settings with which the system detects a vanished host within about 15 seconds.
_KEEPALIVES = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}
#: States that the server reports for each connection.
_READ_ONLY_STATES = (b"default_transaction_read_only", b"in_hot_standby")


async def connect(
    dsn: str, settings: PostgresSettings, seconds: float, **options: Any
) -> AsyncConnection[Any]:
    """Return a connection for tasks, with a limit in seconds on the server's silence."""
    made, _ = _limit_classes(seconds)
    return await made.connect(dsn, **connection_options(dsn, settings), **options)


def connect_blocking(
    dsn: str, settings: PostgresSettings, seconds: float, **options: Any
) -> Connection[Any]:
    """Return a connection for threads, with a limit in seconds on the server's silence."""
    _, made = _limit_classes(seconds)
    return made.connect(dsn, **connection_options(dsn, settings), **options)


def connection_options(dsn: str, settings: PostgresSettings) -> dict[str, Any]:
    """Return the options of every connection besides its connection string."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(dsn)
    return {
        "connect_timeout": max(2, round(settings.connect_seconds)),
        "application_name": "vibe-llms",
        **{key: value for key, value in _KEEPALIVES.items() if key not in given},
    }


def find_role(dsn: str) -> str:
    """Return the role that a connection string names, or libpq's default."""
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    if role := conninfo_to_dict(dsn).get("user"):
        return str(role)
    defaults = {one.keyword: one.val for one in Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def find_silence_seconds(settings: PostgresSettings) -> float:
    """Return the limit of the server's silence, in seconds: its own limit and time to connect."""
    return settings.statement_seconds + settings.connect_seconds


def is_read_only(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Return True if a connection cannot write, even if the database has become writable."""
    return any(connection.pgconn.parameter_status(one) == b"on" for one in _READ_ONLY_STATES)


def describe_silence(seconds: float) -> StorageUnavailable:
    """Return the error for a silent server. Its connection can only be closed."""
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
    """Run psycopg's generator, and raise if the connection is silent for this many seconds."""
    ready: Any = None
    moved = time.monotonic()
    try:
        while True:
            # psycopg also resumes several times per second without an event.
            ready = yield gen.send(ready)
            if ready:
                moved = time.monotonic()
            elif time.monotonic() - moved > seconds:
                raise describe_silence(seconds)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
