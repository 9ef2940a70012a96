"""`credential = "caller"`: the provider's key comes with the request, and is gone with it."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import serving
from tests.server.test_bad_input import HELLO, SPEECHES, Speech
from vibe_llms.base import redaction
from vibe_llms.base.credentials import Secret
from vibe_llms.providers.caller_keys import CallerKey, calling_with, find_caller_key
from vibe_llms.testing import fake_server
from vibe_llms.testing.server import FakeServer

CANARY = "sk-canary-4f1d9a77c0ffee-0123456789"
OTHER = "sk-other-4f1d9a77c0ffee-0123456789"


@pytest.fixture(params=SPEECHES)
def speech(request: pytest.FixtureRequest) -> Speech:
    """Each dialect."""
    return SPEECHES[request.param]


@pytest.fixture
def upstream() -> Iterator[FakeServer]:
    """A provider that answers everyone who has a key."""
    with fake_server(["Well, ", "well."]) as server:
        yield server


def configure(upstream: FakeServer, **tables: Any) -> Any:
    row = {
        "module": "vibe_llms.providers.openai.chat_completions",
        "base-url": f"{upstream.url}/v1",
        "credential": "caller",
        "default-model": "gpt",
        "requests-per-minute": 1,
    }
    return {"providers": {"theirs": row}, "stream": {"retries": 0}, **tables}


def keys_of(upstream: FakeServer) -> list[str]:
    sent = [{k.lower(): v for k, v in one.request.headers.items()} for one in upstream.received]
    assert not any("x-provider-key" in headers for headers in sent)
    return [headers.get("authorization", "") for headers in sent]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_key_of_the_request_is_used_and_nothing_keeps_it(
    home: Path,
    speech: Speech,
    upstream: FakeServer,
    stream: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    upstream.key = CANARY
    async with serving(home, **configure(upstream)) as served, served.http() as client:
        store = speech is not SPEECHES["responses"]
        body = speech.write("theirs/gpt", [HELLO], stream=stream, store=store)
        good = await client.post(speech.path, json=body, headers={"x-provider-key": CANARY})
        assert good.status_code == 200, good.text
        # What is not streamed here is not streamed there either.
        asked = json.loads(upstream.received[0].request.body)
        assert asked.get("stream", False) is stream
        assert "well." in good.text
        wrong = await client.post(speech.path, json=body, headers={"x-provider-key": OTHER})
        assert wrong.status_code in (401, 502), wrong.text
        none = await client.post(speech.path, json=body)
        assert none.status_code == 400
        assert "X-Provider-Key" in speech.read_error(none.json())
        log = [*served.log, caplog.text, good.text, wrong.text, none.text]
    assert keys_of(upstream) == [f"Bearer {CANARY}", f"Bearer {OTHER}"]
    kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    for key in (CANARY, OTHER):
        assert not any(key in text for text in log)
        assert not any(key.encode() in data for data in kept)
        assert key not in redaction._KNOWN
    # A thread that has just finished may hold its last work for a moment.
    async with asyncio.timeout(10):
        while find_secrets():
            await asyncio.sleep(0.05)


def find_secrets() -> list[object]:
    """Return what still has one of the keys, after a collection of garbage."""
    gc.collect()
    found = gc.get_objects()
    clients = [one for one in found if isinstance(one, CallerKey) and one._clients]
    secrets = [one for one in found if isinstance(one, Secret)]
    return [*clients, *(one for one in secrets if one.reveal() in (CANARY, OTHER))]


async def test_requests_at_the_same_time_use_their_own_keys(
    home: Path, upstream: FakeServer
) -> None:
    speech = SPEECHES["chat"]
    keys = [f"sk-key-number-{number:04}-0123456789" for number in range(8)]
    upstream.key = ""
    async with serving(home, **configure(upstream)) as served, served.http() as client:
        posts = [
            client.post(
                speech.path,
                json=speech.write("theirs/gpt", [("user", key[::-1])]),
                headers={"x-provider-key": key},
            )
            for key in keys
        ]
        replies = await asyncio.gather(*posts)
    assert {one.status_code for one in replies} <= {200, 502}
    said = [one.body["messages"][-1]["content"][::-1] for one in upstream.received]
    assert sorted(keys_of(upstream)) == [f"Bearer {key}" for key in keys]
    assert [f"Bearer {key}" for key in said] == keys_of(upstream)


async def test_what_outlives_the_request_is_refused(home: Path, upstream: FakeServer) -> None:
    agents = {"clerk": {"model": "theirs/gpt", "ensembles": ["clock"]}}
    rows = {"clock": {"module": "tests.server.clock"}}
    tables = configure(upstream, agents=agents, ensembles=rows)
    async with serving(home, **tables) as served, served.http() as client:
        client.headers["x-provider-key"] = upstream.key
        chat, responses = SPEECHES["chat"], SPEECHES["responses"]
        for speech, options, headers in (
            (responses, {}, {}),
            (responses, {"background": True}, {}),
            (responses, {"stream": True}, {}),
            (chat, {}, {"idempotency-key": "a"}),
        ):
            body = speech.write("theirs/gpt", [HELLO], **options)
            refused = await client.post(speech.path, json=body, headers=headers)
            assert refused.status_code == 400, refused.text
            assert "is part of one request" in speech.read_error(refused.json())
        refused = await client.post("/api/runs", json={"prompt": "Hi", "model": "theirs/gpt"})
        assert refused.status_code == 400, refused.text
        # One of its tools asks before it runs.
        refused = await client.post(chat.path, json=chat.write("clerk", [HELLO], tool="mine"))
        assert refused.status_code == 400
        assert "clock/sell" in chat.read_error(refused.json())
        refused = await client.get("/v1/models", headers={"x-provider-key": "not a key"})
        assert refused.status_code == 400
        assert upstream.received == []
        listed = await client.get("/v1/models")
        assert "theirs/gpt" in [one["id"] for one in listed.json()["data"]]
        async with served.session() as session:
            assert await session.survey_conversations() == []
            assert await session.survey_runs() == []


async def test_nothing_is_remembered_with_the_key_of_a_caller(
    home: Path, upstream: FakeServer
) -> None:
    agents = {"friend": {"model": "theirs/gpt", "memory": True}}
    tables = configure(upstream, agents=agents)
    async with serving(home, **tables) as served, served.http() as client:
        body = SPEECHES["chat"].write("friend", [HELLO])
        headers = {"x-provider-key": upstream.key}
        reply = await client.post("/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200
    assert len(upstream.received) == 1
    assert not (home / "memory").exists()


async def test_a_key_does_not_outlive_its_block() -> None:
    kept: list[CallerKey] = []
    async with calling_with(CANARY):
        held = find_caller_key()
        assert held is not None
        kept.append(held)
        async with calling_with(CANARY):
            assert find_caller_key() is not held
        assert redaction.redact(f"x {CANARY}") == "x [secret]"
    assert find_caller_key() is None
    assert CANARY not in redaction._KNOWN
    with pytest.raises(Exception, match="X-Provider-Key"):
        kept[0].access_client("theirs", lambda secret: pytest.fail(secret.reveal()))


async def test_the_key_of_one_user_is_no_secret_of_another(home: Path) -> None:
    fact = {"content": "My favourite tea is Assam."}
    tea = "favourite"
    async with serving(home) as served, served.http("alice") as alice, served.http("bob") as bob:
        alice.headers["x-provider-key"] = tea
        begun, end = asyncio.Event(), asyncio.Event()

        async def write() -> AsyncIterator[bytes]:
            yield b"{"
            begun.set()
            await end.wait()
            yield b"}"

        post = asyncio.create_task(alice.post("/api/memory", content=write()))
        await begun.wait()
        # The server answers the second request of a connection later than the first one's head.
        assert (await bob.get("/health")).status_code == 200
        kept = await bob.post("/api/memory", json=fact)
        end.set()
        assert (await post).status_code == 400
        own = await alice.post("/api/memory", json=fact)
    assert kept.status_code == 201, kept.text
    assert own.status_code == 400
    assert tea not in own.text


async def test_tasks_and_threads_of_a_request_know_its_key_and_no_others_do() -> None:
    key, begun, end = "favourite tea", asyncio.Event(), asyncio.Event()

    async def say() -> str:
        return redaction.redact(key)

    async def say_late() -> str:
        await end.wait()
        return redaction.redact(key)

    async def serve() -> None:
        async with calling_with(key):
            # Programs that wrap the key once more do not make it known to all.
            assert Secret(key).reveal() == key
            assert await asyncio.create_task(say()) == "[secret]"
            assert await asyncio.to_thread(redaction.redact, key) == "[secret]"
            late.append(asyncio.create_task(say_late()))
            begun.set()
            await asyncio.sleep(0)
        end.set()

    late = list[asyncio.Task[str]]()
    request = asyncio.create_task(serve())
    await begun.wait()
    assert redaction.redact(key) == key
    await request
    assert await late[0] == key
