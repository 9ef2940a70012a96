"""A server whose provider is itself: by the variables that it asks its clients to set."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.opening import open_session
from vibe_llms.providers.passed_servers import HEADER, passing
from vibe_llms.testing import fake_server

HI: Any = [{"role": "user", "content": "Hi"}]
#: As people have them in the shell in which they start the server again.
VARIABLES = {
    "anthropic/claude-sonnet-5-5": ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", ""),
    "openai/gpt-6.1-sol": ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
    "openai-chat/gpt-5.5": ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
}


def count(served: Served, status: int) -> int:
    """How many requests for a reply were answered with a status."""
    return sum(line.startswith("POST ") and f" {status} " in line for line in served.log)


@pytest.mark.parametrize("model", VARIABLES)
async def test_a_server_that_is_its_own_provider_refuses_it_at_once(
    model: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, key, path = VARIABLES[model]
    async with serving(home, stream={"retries": 5}) as served:
        monkeypatch.setenv(address, served.url + path)
        monkeypatch.setenv(key, served.key())
        for stream in (False, True):
            served.log.clear()
            async with served.openai() as client:
                with pytest.raises(openai.BadRequestError, match="sent the request to itself"):
                    await client.chat.completions.create(model=model, messages=HI, stream=stream)
            # That of the client, and one of the server's own.
            assert count(served, 400) == sum(line.startswith("POST ") for line in served.log) == 2
            assert any("OPENAI_BASE_URL" in line for line in served.log)


async def test_a_stored_response_in_the_background_ends_in_a_failure(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home) as served:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{served.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", served.key())
        async with served.openai() as client, asyncio.timeout(30):
            response = await client.responses.create(
                model="openai/gpt-6.1-sol", input="Hi", background=True
            )
            while response.status in ("queued", "in_progress"):
                response = await client.responses.retrieve(response.id)
        assert response.status == "failed"
        assert count(served, 400) == 1, served.log


async def test_two_servers_that_are_each_others_providers_refuse_it_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = "openai-chat/gpt-5.5"
    async with serving(home) as one, serving(tmp_path / "other") as other:
        for served, next_one in ((one, other), (other, one)):
            row = served.configuration.tree["providers"]["openai-chat"]
            row["base-url"] = f"{next_one.url}/v1"
            row["api-key-environment"] = f"KEY_{next_one.running.url.rpartition(':')[2]}"
            monkeypatch.setenv(row["api-key-environment"], next_one.key())
        async with one.openai() as client:
            with pytest.raises(openai.BadRequestError, match="sent the request to itself"):
                await client.chat.completions.create(model=model, messages=HI)
        assert (count(one, 400), count(other, 400)) == (2, 1)


async def test_a_server_may_be_the_provider_of_another(home: Path, tmp_path: Path) -> None:
    with fake_server(["Hello."]) as server:
        row = {"base-url": server.openai_url, "api-key-command": ["echo", server.key]}
        async with serving(home, providers={"openai-chat": row}) as served:
            row = {"base-url": f"{served.url}/v1", "api-key-command": ["echo", served.key()]}
            async with (
                serving(tmp_path / "other", providers={"openai": row}) as other,
                other.openai() as client,
            ):
                model = "openai/openai-chat/gpt-5.5"
                reply = await client.chat.completions.create(model=model, messages=HI)
        assert reply.choices[0].message.content == "Hello."
        # Each has added itself.
        (request,) = (one for one in server.requests if one.method == "POST")
        assert len(request.headers[HEADER].split(", ")) == 2


async def test_only_names_of_servers_are_passed_on(home: Path) -> None:
    with fake_server(["Hello."]) as server:
        row = {"base-url": server.openai_url, "api-key-command": ["echo", server.key]}
        async with serving(home, providers={"openai-chat": row}) as served, served.http() as client:
            body = {"model": "openai-chat/gpt-5.5", "messages": HI}
            headers = {HEADER: "0a1b, Bearer x"}
            path = "/v1/chat/completions"
            assert (await client.post(path, json=body, headers=headers)).status_code == 200
            headers = {HEADER: ", ".join("ab" for _ in range(16))}
            refused = await client.post(path, json=body, headers=headers)
            assert refused.json()["error"]["code"] == "request_loop"
        (request,) = (one for one in server.requests if one.method == "POST")
        first, own = request.headers[HEADER].split(", ")
        assert first == "0a1b"
        assert own != first


@pytest.mark.parametrize("credential", ["key", "package"])
async def test_both_transports_name_the_servers_that_a_request_has_passed(
    credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server(["Hello."]) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        configuration = {"providers": {"openai": {"credential": credential}}}
        async with open_session(configuration=configuration) as session:
            conversation = await session.begin("openai/gpt-6.1-sol")
            await conversation.converse("Hi")
            with passing(("0a1b", "2c3d")):
                await conversation.converse("Hi")
        sent = [one.headers.get(HEADER) for one in server.requests]
        assert sent == [None, "0a1b, 2c3d"]
