"""`PostgresSettings`: the keys of `[archive]` besides its module."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.base.configuration import ARCHIVE, Configuration, Positive, Seconds
from vibe_llms.storage.objects import CONTENTS


class PostgresSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of the connections to the database.

    `dsn` is a connection string of libpq. For parts that it omits, such as a password, libpq uses
    its environment variables and files. `admin_dsn` is the connection string of the owner of the
    tables, used only by `vibe-llms archive migrate`. With a `pooler` in transaction mode,
    statements are not prepared, and `listen_dsn` bypasses the pooler; without it, the database is
    polled for news. A process has up to `connections` for requests, as many for memory, and two
    more for runs.
    """

    dsn: Annotated[str, Meta(min_length=1)]
    admin_dsn: str = ""
    listen_dsn: str = ""
    connections: Positive = 16
    connect_seconds: Seconds = 5.0
    statement_seconds: Seconds = 30.0
    pooler: bool = False


def read_postgres_settings(configuration: Configuration) -> PostgresSettings:
    """Return the settings in `[archive]`, or raise a `ConfigurationError` that names a bad key."""
    row = configuration.row("", ARCHIVE)
    # `contents` is a separate table.
    own = {key: value for key, value in row.settings.items() if key != CONTENTS}
    return configuration.read(PostgresSettings, own, ARCHIVE)
