"""A database that cannot be used for a while: no one can connect, or nothing can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import psycopg

from tests.fakes.postgres import TestDatabase, access_cluster

Outage: TypeAlias = Callable[[TestDatabase], AbstractContextManager[None]]

#: A statement fails whether or not it would write a row.
_FILL = """
create function public.fill() returns trigger language plpgsql as $$ begin
    raise exception 'could not extend file: No space left on device' using errcode = '53100';
end $$;
do $$ declare place text; begin
    for place in select relname from pg_class where relnamespace = 'vibe'::regnamespace
        and relkind = 'r' and relname ~ '{pattern}'
    loop
        execute format('create trigger fill before insert or update on vibe.%I '
            'for each statement execute function public.fill()', place);
    end loop;
end $$
"""


def change(place: TestDatabase, statement: str) -> None:
    """Run statements as the owner of the tables."""
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def closed(place: TestDatabase) -> Iterator[None]:
    """No one can connect, and open connections are closed."""
    cluster = access_cluster()
    cluster.execute(f"alter database {place.name} allow_connections off")
    _disconnect(place)
    yield
    cluster.execute(f"alter database {place.name} allow_connections on")


@contextmanager
def read_only(place: TestDatabase) -> Iterator[None]:
    """Transactions may not write; connections that were made then never can."""
    cluster = access_cluster()
    cluster.execute(f"alter database {place.name} set default_transaction_read_only = on")
    _disconnect(place)
    yield
    cluster.execute(f"alter database {place.name} reset default_transaction_read_only")


@contextmanager
def full(place: TestDatabase, pattern: str = "") -> Iterator[None]:
    """The disk is full, at least for tables whose names have a pattern."""
    change(place, _FILL.format(pattern=pattern))
    yield
    change(place, "drop function public.fill cascade")


@contextmanager
def full_for_messages(place: TestDatabase) -> Iterator[None]:
    """What is written with a message, and before it, has room; the message has not."""
    with full(place, "^messages$"):
        yield


def _disconnect(place: TestDatabase) -> None:
    access_cluster().execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        f"where datname = '{place.name}'"
    )
