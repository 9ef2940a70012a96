"""What a recall costs in a database as it grows: the rows of all users, then those of one scope.

    python .auxiliary/benchmarks/memory_growth.py [--rows 1000 1000000] [--entries 1000 100000]

First, one user has 500 entries, and others have so many rows in all. Then one scope has so many
entries, in files and in rows. Each figure is the CPU time of a search, in milliseconds: of this
process, and of the server. So it does not depend on what else the machine does. Words alone are
searched, and the index is loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from memory_search import fill, produce_texts
from memory_stores import OpenStore, stores

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psycopg
from tests.fakes.postgres import access_cluster

from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL
from vibe_llms.memory.postgres import PostgresMemory

QUESTIONS = 200
_USERS_ENTRIES = 500
#: Rows of so many users.
GROW = """
with owners as (
    select 'user' || number as owner from generate_series(%(first)s::int, %(last)s::int) as number),
scopes as (
    insert into vibe.memory_scopes (owner, scope, change, erased)
    select owner, 'global', nextval('vibe.memory_changes'), 0 from owners returning owner)
insert into vibe.memory_entries (owner, scope, place, change, data)
select owner, 'global', 'facts/' || number || '.md', nextval('vibe.memory_changes'),
    convert_to(repeat(md5(owner || number), 8), 'utf8')
from owners, generate_series(1, %(each)s::int) as number
"""


def server_seconds() -> float:
    """The CPU time of all processes of the database that run."""
    found = 0.0
    postmaster = (access_cluster().socket / "postmaster.pid").read_text().splitlines()[0]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            values = path.read_text().rpartition(")")[2].split()
            if values[1] == postmaster:
                found += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return found


def execute(store: PostgresMemory, statement: str, **values: int) -> None:
    """Run a statement as the owner of the tables."""
    with store._database.transaction("benchmark") as connection:
        name = connection.info.dbname
    address = access_cluster().address(name)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement.encode(), values or None)


async def measure(open_store: OpenStore, texts: Sequence[str], *, rows: bool) -> tuple[float, ...]:
    """The milliseconds of a search in this process and in the server."""
    chance = random.Random(2)
    memory = Memory(open_store("benchmark"))
    questions = [
        " ".join(chance.sample(chance.choice(texts).replace(".", "").split(), 4))
        for _ in range(QUESTIONS)
    ]
    await memory.search("anything", scopes=[GLOBAL])
    own, served = time.process_time(), server_seconds() if rows else 0.0
    for question in questions:
        await memory.search(question, scopes=[GLOBAL])
    own = time.process_time() - own
    served = server_seconds() - served if rows else 0.0
    await memory.close()
    return 1000 * own / QUESTIONS, 1000 * served / QUESTIONS


async def grow(sizes: Sequence[int]) -> None:
    """Measure one user among more and more rows of others."""
    texts = produce_texts(_USERS_ENTRIES, random.Random(1))
    with stores("postgres") as open_store:
        store = open_store("benchmark")
        fill(store, texts)
        assert isinstance(store, PostgresMemory)
        owners = 0
        for size in sizes:
            wanted = size // _USERS_ENTRIES
            execute(store, GROW, first=owners + 1, last=wanted, each=_USERS_ENTRIES)
            execute(store, "analyze")
            owners = wanted
            own, served = await measure(open_store, texts, rows=True)
            print(f"{size:>9} rows of others: {own:.2f} ms here, {served:.2f} ms in the server")


async def compare(sizes: Sequence[int]) -> None:
    """Measure larger and larger scopes, in files and in rows."""
    for size in sizes:
        texts = produce_texts(size, random.Random(1))
        figures = {}
        for name in ("files", "postgres"):
            with stores(name) as open_store:
                store = open_store("benchmark")
                fill(store, texts)
                if isinstance(store, PostgresMemory):
                    # As PostgreSQL does by itself within a minute.
                    execute(store, "analyze")
                figures[name] = await measure(open_store, texts, rows=name == "postgres")
        (files, _), (own, served) = figures.values()
        print(
            f"{size:>9} entries: {files:.2f} ms in files; in rows {own:.2f} ms here, "
            f"{served:.2f} ms in the server, {(own + served) / files:.2f} of that",
            flush=True,
        )


def main() -> None:
    """Measure, and print a line for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--entries", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    options = parser.parse_args()
    asyncio.run(grow(options.rows))
    asyncio.run(compare(options.entries))


if __name__ == "__main__":
    main()
