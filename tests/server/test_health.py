"""Readiness: a balancer sends nothing to a server that cannot keep anything yet."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.fakes.postgres import ROLE, temporary_database
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
