"""Readiness: a balancer sends nothing to a server that cannot keep anything yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg

from tests.fakes.postgres import ROLE, access_cluster, temporary_database
from tests.server.conftest import serving
from vibe_llms.storage.postgres.migrations import migrate


async def test_a_server_is_ready_once_its_database_is_migrated(home: Path) -> None:
    with temporary_database(bare=True) as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        async with serving(home, archive=archive) as served, served.http() as client:
            assert (await client.get("/health")).status_code == 200
            answer = await client.get("/ready")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            # Why not is for the operator.
            assert "level" not in answer.text
            assert any("vibe-llms archive migrate" in line for line in served.log)
            connect = psycopg.AsyncConnection.connect
            async with await connect(place.admin_dsn, autocommit=True) as connection:
                await migrate(connection, ROLE)
            assert (await client.get("/ready")).status_code == 200


async def test_a_server_is_not_ready_while_its_database_does_not_answer(home: Path) -> None:
    cluster = access_cluster()
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        async with serving(home, archive=archive) as served, served.http() as client:
            assert (await client.get("/ready")).status_code == 200
            cluster.execute(f"alter database {place.name} allow_connections off")
            cluster.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                f"where datname = '{place.name}'"
            )
            async with asyncio.timeout(30):
                # For a second, the last answer counts.
                while (answer := await client.get("/ready")).status_code == 200:
                    await asyncio.sleep(0.05)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            cluster.execute(f"alter database {place.name} allow_connections on")
            assert (await client.get("/ready")).status_code == 200


async def test_a_server_is_ready_once_its_password_is_right(home: Path) -> None:
    cluster = access_cluster()
    with temporary_database() as place, cluster.guarded_role("secret") as role:
        dsn = cluster.address(place.name, role, "not-it")
        archive = {"module": "vibe_llms.storage.postgres", "dsn": dsn}
        async with serving(home, archive=archive) as served, served.http() as client:

            async def answers(status: int) -> None:
                # No user has this key, which only the database knows.
                answer = await client.get("/v1/models")
                assert answer.status_code == status
                assert ("retry-after" in answer.headers) == (status == 503)
                assert "password" not in answer.text

            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).status_code == 503
            await answers(503)
            assert any(f'failed for user "{role}"' in line for line in served.log)
            cluster.execute(f"alter role {role} password 'not-it'")
            assert (await client.get("/ready")).status_code == 200
            await answers(401)
            # It is changed while the server runs.
            cluster.execute(f"alter role {role} password 'secret'")
            cluster.execute(
                f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"
            )
            await answers(503)
            cluster.execute(f"alter role {role} password 'not-it'")
            await answers(401)
            assert not any("not-it" in line for line in served.log)
