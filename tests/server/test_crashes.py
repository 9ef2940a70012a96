"""Servers are killed at random moments: nothing is lost, nothing is done or seen twice."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import access_cluster, temporary_database
from tests.server.planted import BUGS, Planted
from tests.server.processes import SCRIPT, SLOW_SCRIPT, prepare
from tests.server.storms import storming


@pytest.mark.storm
async def test_killed_servers_lose_nothing_and_do_nothing_twice(
    home: Path, rounds: Callable[[int, int], int]
) -> None:
    prepare(home)
    async with storming(home) as storm:
        figures = await storm.hold(rounds(2, 300))
    sys.stdout.write(msgspec.json.encode(figures).decode())


@pytest.mark.storm
async def test_servers_and_workers_of_one_database_lose_nothing_whatever_is_away(
    home: Path, rounds: Callable[[int, int], int]
) -> None:
    cluster, bucket = access_cluster(), access_bucket_server()

    async def restart_database() -> None:
        await asyncio.to_thread(cluster.restart)

    async def miss_bucket() -> None:
        await asyncio.to_thread(bucket.stop)
        await asyncio.sleep(rounds(1, 30))
        await asyncio.to_thread(bucket.start)

    outages = [restart_database] * rounds(1, 10)
    outages.insert(len(outages) // 2, miss_bucket)
    users = ["local", *(f"user{number}" for number in range(1, rounds(3, 200)))]
    settings = msgspec.to_builtins(bucket.produce_bucket(timeout_seconds=5))
    contents = {"module": "vibe_llms.storage.objects", **settings}
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn, "contents": contents}
        prepare(home, archive={**archive, "connect-seconds": 2})
        async with storming(home, users, servers=rounds(2, 3), workers=1, outages=outages) as storm:
            figures = await storm.hold(rounds(2, 200), together=1)
    sys.stdout.write(msgspec.json.encode(figures).decode())


async def judge(home: Path, planted: Planted, bug: str) -> str:
    """What is wrong with servers that have a bug; nothing if all is well."""
    prepare(home, SLOW_SCRIPT if planted.slow else SCRIPT)
    found = ""
    try:
        async with asyncio.timeout(100), storming(home, servers=planted.servers, bug=bug) as storm:
            await storm.hold(0, together=1)
    except* AssertionError as errors:
        found = str(errors.exceptions)
    return found


@pytest.mark.storm
async def test_each_promise_is_broken_by_a_bug_and_kept_without_it(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    for name in [*BUGS][: rounds(1, len(BUGS))]:
        planted = BUGS[name]
        found = await judge(tmp_path / name, planted, name)
        assert re.search(planted.found, found), f"{name}: {found}"
        if rounds(0, 1):
            without = f"{name}-moment"
            assert not await judge(tmp_path / without, planted, without), name
