"""`PostgresSettings`: the keys of `[archive]` besides its module."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.configuration import ARCHIVE, Configuration, Positive, Seconds
from vibe_llms.storage.objects import CONTENTS


class PostgresSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How the database is reached.

    `dsn` is a connection string of libpq; what it leaves out, such as a password, libpq takes from
    its environment variables and files. `admin_dsn` is that of the owner of the tables, which only
    `vibe-llms archive migrate` uses. With a `pooler` in transaction mode, nothing is prepared, and
    `listen_dsn` leads around it; without that, news is read and not listened for. A process has up
    to `connections` for requests, as many for memory, and two more for runs.
    """

    dsn: Annotated[str, Meta(min_length=1)]
    admin_dsn: str = ""
    listen_dsn: str = ""
    connections: Positive = 16
    connect_seconds: Seconds = 5.0
    statement_seconds: Seconds = 30.0
    pooler: bool = False


def read_postgres_settings(configuration: Configuration) -> PostgresSettings:
    """The settings in `[archive]`; `ConfigurationError` names a key that is wrong."""
    row = configuration.row("", ARCHIVE)
    # `contents` is a row of its own.
    own = {key: value for key, value in row.settings.items() if key != CONTENTS}
    return configuration.read(PostgresSettings, own, ARCHIVE)
