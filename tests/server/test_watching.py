"""The watch over the storage: it looks by itself, and does what was deferred."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec
import pytest

from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import temporary_database
from tests.faults.outages import change
from tests.server.test_outages import LARGE, RESPONSES, respond, serving_from
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import FormatNewer
from vibe_llms.server import watching
from vibe_llms.server.settings import read_server_settings
from vibe_llms.server.working import work
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.objects import BucketStore


async def test_a_worker_ends_when_its_database_is_changed_for_a_newer_version(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CHECK_SECONDS", 0.1)
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        places = Places.under(home)
        configuration = load_configuration(places, overrides={"archive": archive})

        async def begin(backend: Backend) -> None:
            await backend.prepare()
            change(place, "insert into vibe.migrations values (9999, 'breaking', 9999)")

        working = work(configuration, read_server_settings(configuration), asyncio.Event(), begin)
        with pytest.raises(FormatNewer, match="needs a newer version"):
            await asyncio.wait_for(working, 30)


async def test_a_server_moves_what_the_bucket_did_not_take_by_itself(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CATCH_UP_SECONDS", 0.1)
    server = access_bucket_server()
    bucket = server.produce_bucket(exists=False)
    contents = {"module": "vibe_llms.storage.objects", **msgspec.to_builtins(bucket)}
    with temporary_database() as place:
        async with serving_from(home, place, contents=contents) as served, served.http() as client:
            answer = await client.post(RESPONSES, json=respond("Answer at length"))
            assert answer.status_code == 200
            server.make_bucket(bucket.bucket)
            async with asyncio.timeout(20):
                while not await BucketStore(bucket).survey("local"):
                    await asyncio.sleep(0.05)
            digest = hashlib.sha256(LARGE.encode()).hexdigest()
            assert [*await BucketStore(bucket).survey("local")] == [digest]


async def test_the_rights_of_a_server_are_looked_at_without_any_request(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(watching, "_PROBLEM_SECONDS", 0.1)
    with temporary_database() as place:
        async with serving_from(home, place) as served, asyncio.timeout(20):
            change(place, "revoke select on vibe.runs from vibe_llms")
            while not any("no right to select on vibe.runs" in line for line in served.log):
                await asyncio.sleep(0.05)
            assert served.running._core.spaces.worker.guard is not None
            change(place, "grant select on vibe.runs to vibe_llms")
            while "ready again" not in served.log:
                await asyncio.sleep(0.05)
            assert served.running._core.spaces.worker.guard is None
