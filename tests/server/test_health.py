"""Readiness: a balancer sends nothing to a server that cannot keep anything yet."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.fakes.postgres import ROLE, access_cluster, temporary_database
from tests.faults.outages import change
from tests.server.conftest import serving
from tests.server.test_outages import chat, count_tokens, serving_from
from vibe_llms.base import folders as files
from vibe_llms.base.exceptions import FormatNewer
from vibe_llms.server import watching
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.migrations import migrate

TURN = {"model": "scripted/demo", "messages": [{"role": "user", "content": "Hello"}]}
SLOW = {**chat("slow"), "store": False}
RESPONSE = {"model": "scripted/one", "input": "Hello"}


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


async def test_a_server_ends_in_order_when_its_database_is_changed_for_a_newer_version(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watching._CHECK_SECONDS <= 60
    monkeypatch.setattr(watching, "_CHECK_SECONDS", 0.5)
    with temporary_database() as place:
        stack = AsyncExitStack()
        served = await stack.enter_async_context(serving_from(home, place))
        core = served.running._core
        async with served.http() as client, asyncio.timeout(30):
            change(place, "insert into vibe.migrations values (9998, 'gentle', 1)")
            await core.spaces.watch.check()
            assert (await client.get("/ready")).status_code == 200
            turn = asyncio.create_task(client.post("/v1/chat/completions", json=SLOW))
            while not core.spaces.running:
                await asyncio.sleep(0.01)
            change(place, "insert into vibe.migrations values (9999, 'breaking', 9999)")
            # Nobody asks whether it is ready: it looks by itself.
            while not core.ending:
                await asyncio.sleep(0.02)
            assert (await turn).json()["choices"][0]["message"]["content"] == "Done."
            while True:
                try:
                    assert (await client.get("/ready")).status_code == 503
                except httpx2.TransportError:
                    break
            # A second call of `end` would cut it off.
            database = access_database(core.spaces.backend)
            while not database._closed or database._idle:
                await asyncio.sleep(0.01)
        assert any("not ready: the database has level 9999" in one for one in served.log)
        with pytest.raises(FormatNewer, match="needs a newer version of vibe-llms"):
            await stack.aclose()


async def test_no_request_waits_for_a_right_that_was_revoked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks; a request finds out.
    monkeypatch.setattr(watching, "_CHECK_SECONDS", 3600)
    with temporary_database() as place:
        async with serving_from(home, place) as served, served.http() as client:
            assert (await client.post("/v1/responses", json=RESPONSE)).status_code == 200
            tokens = await count_tokens(client)
            change(place, "revoke insert on vibe.run_events from vibe_llms")
            async with asyncio.timeout(10):
                answer = await client.post("/v1/responses", json=RESPONSE)
            assert answer.status_code >= 500
            # The model was asked once at most, and not again and again.
            (_,) = (await client.get("/api/runs")).json()["runs"]
            assert await count_tokens(client) <= tokens * 2
            ready = await client.get("/ready")
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
            assert any("'app' has no right to insert on vibe.run_events" in x for x in served.log)
            # From then on nothing is begun.
            for body in (RESPONSE, {**RESPONSE, "background": True}):
                answer = await client.post("/v1/responses", json=body)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert len((await client.get("/api/runs")).json()["runs"]) == 1
            change(place, "grant insert on vibe.run_events to vibe_llms")
            answer = await client.post("/v1/responses", json=RESPONSE)
            assert answer.status_code == 200
            assert (await client.get("/ready")).status_code == 200
            assert any(line == "ready again" for line in served.log)


async def test_what_balancers_ask_is_not_logged(home: Path) -> None:
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        async with serving(home, archive=archive) as served, served.http() as client:
            for _ in range(3):
                assert (await client.get("/ready")).status_code == 200
                assert (await client.head("/ready")).status_code == 200
                assert (await client.get("/health")).status_code == 200
            assert served.log == []
            change(place, "revoke insert on vibe.run_events from vibe_llms")
            async with asyncio.timeout(10):
                while (await client.get("/ready")).status_code == 200:
                    await asyncio.sleep(0.05)
            for _ in range(3):
                assert (await client.get("/ready")).status_code == 503
            (line,) = served.log
            assert line.startswith("not ready: the role 'app' has no right")
            await client.get("/nowhere")
            assert "GET other 404" in served.log[-1]


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
