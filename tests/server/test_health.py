"""Readiness: a balancer sends nothing to a server that cannot keep anything yet."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import psycopg
import pytest

from tests.fakes.postgres import ROLE, access_cluster, temporary_database
from tests.server.conftest import serving
from vibe_llms.storage import files
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


async def test_a_full_disk_is_said_to_pass_and_the_server_is_not_ready(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home) as served, served.http() as client:
        assert (await client.get("/ready")).status_code == 200
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(files, "write_all", refuse)
            ready = await client.get("/ready")
            body = {"model": "scripted/demo", "messages": [{"role": "user", "content": "Hello"}]}
            reply = await client.post("/v1/chat/completions", json=body)
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == "storage_unavailable"
        assert [one.name for one in home.iterdir() if one.name.startswith(".new-")] == []
        assert (await client.get("/ready")).status_code == 200


async def test_a_path_with_nul_is_of_nothing(home: Path) -> None:
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        async with serving(home, archive=archive) as served, served.http() as client:
            for path in ("/api/conversations/a%00b", "/v1/responses/a%00b", "/v1/models/a%00b"):
                assert (await client.get(path)).status_code == 404


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
