"""A server whose database or bucket cannot be used: it says so, and goes on once it can."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import msgspec
import psycopg
import pytest
import tomli_w

from tests.fakes.objects import BucketServer, access_bucket_server
from tests.fakes.postgres import TestDatabase, temporary_database
from tests.faults.outages import Outage, full, full_for_messages, read_only
from tests.pictures import make_png
from tests.server.conftest import Served, serving
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.storage.backends import opened_backend
from vibe_llms.storage.objects import BucketSettings, BucketStore
from vibe_llms.storage.user_stores import produce_users

LARGE = "word " * 400
SCRIPT = {
    "replies": [
        {"when": "slow", "parts": [{"text": "Done.", "delay-seconds": 0.5}]},
        {"when": "at length", "parts": [{"text": LARGE}]},
        {"when": ".", "parts": [{"text": "Done."}]},
    ]
}
PICTURE = base64.b64encode(make_png(3_000)).decode()
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ONCE = {"idempotency-key": "once-1"}
#: What cannot be used yet, and what makes it right.
Trouble: TypeAlias = Callable[
    [BucketServer, pytest.MonkeyPatch],
    AbstractContextManager[tuple[BucketSettings, Callable[[], None]]],
]


@asynccontextmanager
async def serving_from(home: Path, place: TestDatabase, **contents: Any) -> AsyncIterator[Served]:
    """A server that keeps everything in a database, and perhaps large contents elsewhere."""
    home.mkdir()
    (home / "script.toml").write_text(tomli_w.dumps(SCRIPT))
    tables: dict[str, Any] = {
        "archive": {"module": "vibe_llms.storage.postgres", "dsn": place.dsn, **contents},
        "providers": {"scripted": {"scripts": {"one": str(home / "script.toml")}}},
        "runs": {"lease-seconds": 1.0},
    }
    async with opened_backend(load_configuration(Places.under(home), overrides=tables)) as backend:
        key = await produce_users(backend).add("local")
    async with serving(home, **tables) as served:
        served.keys["local"] = key
        yield served


def chat(said: Any, **more: Any) -> Mapping[str, Any]:
    """The body of a request for a chat completion."""
    messages = [{"role": "user", "content": said}]
    return {"model": "scripted/one", "messages": messages, **more}


def respond(said: str, **more: Any) -> Mapping[str, Any]:
    """The body of a request for a response."""
    return {"model": "scripted/one", "input": said, **more}


def read_rows(place: TestDatabase) -> Mapping[str, object]:
    """All that is in each table."""
    with psycopg.connect(place.admin_dsn) as connection:
        names = connection.execute(
            "select relname from pg_class where relnamespace = 'vibe'::regnamespace "
            "and relkind = 'r'"
        ).fetchall()
        rows = "select coalesce(string_agg(t::text, ' ' order by t::text), '') from vibe.{} t"
        return {
            name: connection.execute(rows.format(name).encode()).fetchone() for (name,) in names
        }


async def count_messages(client: httpx2.AsyncClient) -> list[int]:
    """How many messages each conversation has, in order."""
    listed = (await client.get("/api/conversations")).json()["conversations"]
    return sorted(one["messages"] for one in listed)


async def count_tokens(client: httpx2.AsyncClient) -> float:
    """How many tokens the model has answered with."""
    text = (await client.get("/metrics")).text
    return sum(map(float, re.findall(r'tokens_total\{kind="output".*\} (\S+)', text)))


async def wait_for_run(client: httpx2.AsyncClient, response: str) -> None:
    """Wait until a run is completed."""
    path = f"/api/runs/{response.removeprefix('resp_')}"
    async with asyncio.timeout(20):
        while (await client.get(path)).json()["status"] != "completed":
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("outage", "remedy"),
    [(read_only, "connect to a server that accepts writes"), (full, "free space on its disk")],
)
async def test_what_cannot_be_written_is_refused_whole_and_written_later(
    outage: Outage, remedy: str, home: Path
) -> None:
    with temporary_database() as place:
        async with serving_from(home, place) as served, served.http() as client:
            assert (await client.post(CHAT, json=chat("Hello"))).status_code == 200
            fact = await client.post("/api/memory", json={"content": "Ada sails."})
            ((conversation,),) = [
                [one["id"] for one in page["conversations"]]
                for page in [(await client.get("/api/conversations")).json()]
            ]
            tokens = await count_tokens(client)
            slow = (await client.post(RESPONSES, json=respond("slow", background=True))).json()
            async with asyncio.timeout(20):
                while await count_messages(client) != [1, 2]:
                    await asyncio.sleep(0.02)
            own = f"/api/conversations/{conversation}"
            writes: list[tuple[str, str, dict[str, Any]]] = [
                ("POST", CHAT, {"json": chat("Hello")}),
                ("POST", CHAT, {"json": chat("Hello", stream=True)}),
                ("POST", CHAT, {"json": chat("Once"), "headers": ONCE}),
                ("POST", "/v1/messages", {"json": chat("Hello", max_tokens=9)}),
                ("POST", RESPONSES, {"json": respond("Hello")}),
                ("POST", RESPONSES, {"json": respond("Hello", stream=True)}),
                ("POST", RESPONSES, {"json": respond("Hello", background=True)}),
                ("POST", "/api/runs", {"json": {"model": "scripted/one", "prompt": "Hello"}}),
                ("POST", "/api/files", {"content": b"a file"}),
                ("POST", "/api/memory", {"json": {"content": "Ada keeps bees."}}),
                ("DELETE", f"/api/memory/{fact.json()['id']}", {}),
                ("PATCH", own, {"json": {"name": "later"}}),
                ("POST", f"{own}/fork", {"json": {}}),
                ("DELETE", own, {}),
            ]
            with outage(place):
                async with asyncio.timeout(20):
                    # The reply arrives while it cannot be kept.
                    while await count_tokens(client) == tokens:
                        await asyncio.sleep(0.02)
                rows = read_rows(place)
                served.log.clear()
                for method, path, given in writes:
                    answer = await client.request(method, path, **given)
                    assert answer.status_code == 503, f"{method} {path}: {answer.text}"
                    assert answer.headers["retry-after"] == "1"
                    assert "storage" in answer.text
                said = [line for line in served.log if "failed" in line]
                assert len(said) == len(writes)
                assert all("the database cannot be used now" in line for line in said)
                assert all(line.endswith(remedy) for line in said)
                for path in (own, "/api/files", "/api/runs", "/api/memory/search?text=sails"):
                    assert (await client.get(path)).status_code == 200
                unstored = await client.post(CHAT, json=chat("Hello", store=False))
                assert unstored.status_code == 200
                assert read_rows(place) == rows
            for method, path, given in writes:
                answer = await client.request(method, path, **given)
                assert answer.status_code < 300, f"{method} {path}: {answer.text}"
            await wait_for_run(client, slow["id"])
            again = await client.post(CHAT, json=chat("Once"), headers=ONCE)
            assert again.status_code == 200
            for run in (await client.get("/api/runs")).json()["runs"]:
                await wait_for_run(client, run["id"])
            # Of the first one, the fork is left.
            assert await count_messages(client) == [2] * 10


async def test_a_turn_that_cannot_be_stored_leaves_nothing_of_it(home: Path) -> None:
    with temporary_database() as place:
        async with serving_from(home, place) as served, served.http() as client:
            first = (await client.post(CHAT, json=chat("Hello"))).json()["choices"][0]["message"]
            said = [{"role": "user", "content": "Hello"}, first, {"role": "user", "content": "On"}]
            turns = [chat("Hello"), chat(LARGE), chat(LARGE, stream=True), chat("", messages=said)]
            with full_for_messages(place):
                rows = read_rows(place)
                for turn in turns:
                    assert (await client.post(CHAT, json=turn)).status_code == 503
                assert read_rows(place) == rows
            for turn in turns:
                assert (await client.post(CHAT, json=turn)).status_code == 200
            assert await count_messages(client) == [2, 2, 2, 4]


@contextmanager
def missing(
    server: BucketServer, _: pytest.MonkeyPatch
) -> Iterator[tuple[BucketSettings, Callable[[], None]]]:
    """There is no bucket, until it is made."""
    settings = server.produce_bucket(exists=False)
    yield settings, lambda: server.make_bucket(settings.bucket)


@contextmanager
def refused(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[BucketSettings, Callable[[], None]]]:
    """The credentials do not allow anything, until they do."""
    user, login = server.make_login()
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    settings = server.produce_bucket(skip_signature=False)
    with server.checking():
        yield settings, lambda: server.allow(user)


@pytest.mark.parametrize(
    ("trouble", "complaint"),
    [
        (missing, "does not exist; create it, or correct [archive.contents]"),
        (refused, "Access Denied; its credentials need s3:GetObject"),
    ],
)
async def test_without_its_bucket_a_server_keeps_what_was_said_and_asks_for_nothing_twice(
    trouble: Trouble, complaint: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = access_bucket_server()
    with trouble(server, monkeypatch) as (settings, mend), temporary_database() as place:
        row = msgspec.to_builtins(settings)
        contents = {"module": "vibe_llms.storage.objects", **row}
        async with serving_from(home, place, contents=contents) as served, served.http() as client:
            address = {"url": f"data:image/png;base64,{PICTURE}"}
            picture = {"type": "image_url", "image_url": address}
            turns: list[tuple[str, Mapping[str, Any]]] = [
                (CHAT, chat(LARGE)),
                (CHAT, chat(LARGE, stream=True)),
                (CHAT, chat([{"type": "text", "text": "What is it?"}, picture])),
                (CHAT, chat("Answer at length")),
                (RESPONSES, respond("Answer at length")),
                (RESPONSES, respond(LARGE)),
                ("/v1/messages", chat(LARGE, max_tokens=9)),
            ]
            for path, body in turns:
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, f"{path}: {answer.text}"
            run_tokens = (await client.post(RESPONSES, json=respond("at length"))).json()["usage"][
                "output_tokens"
            ]
            before = await count_tokens(client)
            run = (await client.post(RESPONSES, json=respond("at length", background=True))).json()
            await wait_for_run(client, run["id"])
            # It was asked for once.
            assert await count_tokens(client) == before + run_tokens
            shown = (await client.get(f"{RESPONSES}/{run['id']}")).json()
            assert shown["output"][0]["content"][0]["text"] == LARGE
            assert await count_messages(client) == [2] * 9
            # What nothing was paid for is refused.
            upload = await client.post("/api/files", content=LARGE.encode())
            assert (upload.status_code, upload.headers["retry-after"]) == (503, "1")
            place_said = f"the bucket {settings.bucket!r} at {settings.endpoint} cannot be used now"
            assert any(place_said in line and complaint in line for line in served.log)
            assert (await client.get("/ready")).status_code == 200
            with pytest.raises(StorageUnavailable):
                await served.running.backend.catch_up()
            mend()
            await served.running.backend.catch_up()
            objects = await BucketStore(settings).survey("local")
            assert objects == {
                hashlib.sha256(data).hexdigest(): len(data)
                for data in (LARGE.encode(), base64.b64decode(PICTURE))
            }
            rows = read_rows(place)
            assert "word word" not in str(rows["contents"])
            for digest, size in objects.items():
                loaded = await client.get(f"/api/contents/{digest}")
                assert len(loaded.content) == size
            assert (await client.post("/api/files", content=LARGE.encode())).status_code == 201
            # What is lost is for the operator, too.
            digest = hashlib.sha256(LARGE.encode()).hexdigest()
            await BucketStore(settings).remove("local", [digest])
            served.log.clear()
            assert (await client.get(f"/api/contents/{digest}")).status_code == 404
            assert any(f"local/{digest}, which is not in the bucket" in one for one in served.log)
            served.log.clear()
            assert (await client.get(f"/api/contents/{'0' * 64}")).status_code == 404
            assert len(served.log) == 1
