"""Who is answered, and what a bad request gets: from a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import RequestError
from vibe_llms.opening import open_session
from vibe_llms.server.settings import read_server_settings
from vibe_llms.server.spaces import UserSpaces
from vibe_llms.storage.users import find_user_places

HELLO: dict[str, Any] = {
    "model": "scripted/demo",
    "messages": [{"role": "user", "content": "Hello"}],
}
CHAT = "/v1/chat/completions"
STALL = """
[[replies]]
parts = [{ stall = true }]
"""


def stalling(home: Path) -> dict[str, Any]:
    """A row whose model never answers."""
    home.mkdir(exist_ok=True)
    (home / "stall.toml").write_text(STALL)
    return {"providers": {"scripted": {"scripts": {"stall": "stall.toml"}}}}


async def count_conversations(served: Served) -> int:
    async with served.session() as session:
        return len(await session.survey_conversations())


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_a_key_is_taken_from_each_header(served: Served, header: str) -> None:
    key = served.key()
    value = f"Bearer {key}" if header == "authorization" else key
    async with httpx2.AsyncClient(base_url=served.url) as client:
        assert (await client.get("/v1/models", headers={header: value})).status_code == 200
        wrong = await client.get("/v1/models", headers={header: f"{value}x"})
        none = await client.get("/v1/models")
    assert [wrong.status_code, none.status_code] == [401, 401]
    assert wrong.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"messages": []}', 400, "messages"),
        (b'{"model": 1, "messages": []}', 400, "model"),
        (b'{"model": "scripted/demo", "messages": []}', 400, "messages"),
        (b'{"model": "none", "messages": [{"role": "user", "content": "a"}]}', 404, None),
        (
            b'{"model": "scripted//etc/a.toml", "messages": [{"role": "user", "content": "a"}]}',
            404,
            None,
        ),
        (b'{"model": "scripted/demo", "n": 2, "messages": [{"role": "user"}]}', 400, "n"),
        (
            b'{"model": "scripted/demo", "messages": [{"role": "tool", "tool_call_id": "a"}]}',
            400,
            "messages[0].tool_call_id",
        ),
        (
            (
                b'{"model": "scripted/demo", "messages": [{"role": "user", "content": '
                b'[{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}'
            ),
            400,
            "messages[0].content",
        ),
    ],
)
async def test_a_bad_request_gets_an_error_and_nothing_is_stored(
    served: Served, body: bytes, status: int, param: str | None
) -> None:
    async with served.http() as client:
        response = await client.post(CHAT, content=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert await count_conversations(served) == 0


async def test_unknown_paths_and_methods_are_said_so(served: Served) -> None:
    async with served.http() as client:
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.get(CHAT)).status_code == 405
        assert (await client.get("/v1/models/none")).status_code == 404
        assert (await client.get("/v1/models/scripted/demo")).json()["id"] == "scripted/demo"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost"}, 200),
        ({"host": "my.example:80"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://pages.example"}, 200),
    ],
)
async def test_other_names_and_other_sites_are_refused(
    home: Path, headers: dict[str, str], status: int
) -> None:
    settings = {
        "allowed-hosts": ["my.example"],
        "allowed-origins": ["https://pages.example"],
    }
    async with serving(home, server=settings) as served, served.http() as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == status


async def test_a_body_that_is_too_long_is_refused(home: Path) -> None:
    async with serving(home, server={"body-bytes": 100}) as served, served.http() as client:
        declared = await client.post(CHAT, content=b"x" * 101)

        async def grow() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 50

        undeclared = await client.post(CHAT, content=grow())
    assert [declared.status_code, undeclared.status_code] == [413, 413]


async def test_without_keys_it_listens_on_this_machine_only(home: Path) -> None:
    async with serving(home, keys=False) as served, httpx2.AsyncClient() as client:
        assert (await client.post(f"{served.url}{CHAT}", json=HELLO)).status_code == 200
    with pytest.raises(RequestError, match="this machine only"):
        async with serving(home, keys=False, server={"host": "0.0.0.0"}):
            pass


async def test_a_port_in_use_is_one_clear_error(served: Served, home: Path) -> None:
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(RequestError, match=f"port {port}"):
        async with serving(home, server={"port": port}):
            pass


async def test_each_user_has_conversations_of_their_own(served: Served, home: Path) -> None:
    history = [*HELLO["messages"]]
    for user in ("local", "ada", "bob"):
        async with served.openai(user) as client:
            reply = await client.chat.completions.create(model="scripted/demo", messages=history)
            # What one user was answered is no continuation of another's conversation.
            history = [*HELLO["messages"]]
            history.append({"role": "assistant", "content": reply.choices[0].message.content})
            history.append({"role": "user", "content": f"I am {user}."})
    assert await count_conversations(served) == 1
    for user in ("ada", "bob"):
        places = find_user_places(served.configuration.places, user)
        async with open_session(home=places.data) as session:
            (summary,) = await session.survey_conversations()
            assert summary.messages == 4
    users = home / "server" / "users.sqlite"
    assert users.stat().st_mode & 0o777 == 0o600
    assert not any(
        served.key(user).encode() in users.read_bytes() for user in ("local", "ada", "bob")
    )


async def test_a_new_key_replaces_the_old_one_while_the_server_runs(served: Served) -> None:
    async with served.openai("ada") as client:
        await client.models.list()
        new = served.users.rotate("ada")
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        await client.with_options(api_key=new).models.list()
        served.users.remove("ada")
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key=new).models.list()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_cancels_the_turn(home: Path, stream: bool) -> None:
    async with serving(home, **stalling(home)) as served, served.http() as client:
        body = {**HELLO, "model": "scripted/stall", "stream": stream}
        request = asyncio.create_task(client.post(CHAT, json=body))
        metrics = served.http()
        async with metrics, asyncio.timeout(10):
            while "running_turns 1.0" not in (await metrics.get("/metrics")).text:
                assert not request.done()
            request.cancel()
            while "running_turns 0.0" not in (await metrics.get("/metrics")).text:
                pass
        assert any(f"{CHAT} 499" in line for line in served.log)


async def test_too_many_turns_of_a_user_are_refused_for_now(home: Path) -> None:
    settings = {"user-turns": 1}
    async with (
        serving(home, server=settings, **stalling(home)) as served,
        served.http() as client,
        asyncio.timeout(20),
    ):
        body = {**HELLO, "model": "scripted/stall"}
        request = asyncio.create_task(client.post(CHAT, json=body))
        while "running_turns 1.0" not in (await client.get("/metrics")).text:
            assert not request.done()
        refused = await client.post(CHAT, json=HELLO)
        request.cancel()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_the_log_has_no_content_and_no_key(served: Served) -> None:
    async with served.http() as client:
        response = await client.post(CHAT, json=HELLO)
    assert len(served.log) == 1
    assert "Hello" not in served.log[0]
    assert served.key() not in served.log[0]
    assert served.log[0].startswith(f"POST {CHAT} 200 ")
    assert served.log[0].endswith(f" {response.headers['x-request-id']} local")


async def test_store_false_stores_nothing(served: Served) -> None:
    async with served.http() as client:
        assert (await client.post(CHAT, json={**HELLO, "store": False})).status_code == 200
    assert await count_conversations(served) == 0


async def test_pages_of_an_allowed_origin_can_call_it_from_a_browser(home: Path) -> None:
    origin = "https://pages.example"
    async with (
        serving(home, server={"allowed-origins": [origin]}) as served,
        httpx2.AsyncClient(base_url=served.url) as client,
    ):
        # What the official clients send, in JavaScript too.
        clients = (served.openai().default_headers, served.anthropic().default_headers)
        named = sorted({name.lower() for headers in clients for name in headers})
        named.append("anthropic-dangerous-direct-browser-access")
        wanted = {"origin": origin, "access-control-request-headers": ",".join(named)}
        asked = await client.options(CHAT, headers=wanted)
        refused = await client.get("/v1/models", headers={"origin": origin})
        other = await client.options(CHAT, headers={"origin": "https://evil.example"})
    assert (asked.status_code, refused.status_code, other.status_code) == (204, 401, 403)
    for response in (asked, refused):
        assert response.headers["access-control-allow-origin"] == origin
        shown = response.headers["access-control-expose-headers"].split(", ")
        ids = {"x-request-id", "request-id", "mcp-session-id"}
        assert {"retry-after", "x-left-out", *ids} == {*shown}
    assert asked.headers["access-control-allow-headers"].split(",") == named
    assert {"x-stainless-lang", "anthropic-version"} < {*named}
    assert int(asked.headers["access-control-max-age"]) > 0
    assert "access-control-allow-origin" not in other.headers


async def test_headers_that_are_too_long_are_refused(home: Path) -> None:
    async with serving(home, server={"header-bytes": 500}) as served, served.http() as client:
        long = await client.get("/v1/models", headers={"x-more": "x" * 500})
        assert (await client.get("/health")).status_code == 200
    assert long.status_code == 431
    assert long.json()["error"]["code"] == "headers_too_large"


async def test_what_users_sign_in_to_is_theirs_alone(home: Path) -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    with spaces.enter("ada") as ada, spaces.enter("eve") as eve:
        ada.session.vault.keep("tokens", "secret")
        assert ada.session.vault.read("tokens") == "secret"
        assert eve.session.vault.read("tokens") == ""
    await spaces.close()


async def test_a_request_over_the_users_budget_is_429_with_the_time_to_wait(home: Path) -> None:
    budgets = {"tokens": 100_000, "users": {"anna": {"tokens": 500, "period": "day"}}}
    async with serving(home, budgets=budgets) as served:
        async with served.http("anna") as client:
            refused = await client.post(CHAT, json=HELLO)
        async with served.http("berta") as client:
            answered = await client.post(CHAT, json=HELLO)
    assert (refused.status_code, answered.status_code) == (429, 200)
    error = refused.json()["error"]
    assert (error["code"], "the request alone exceeds it" in error["message"]) == (
        "insufficient_quota",
        True,
    )


async def test_the_limits_of_a_provider_hold_for_all_users_together(home: Path) -> None:
    rows = {"scripted": {"requests-per-minute": 1}}
    body = {"model": "scripted/demo", "messages": [{"role": "user", "content": "Hello"}]}
    async with serving(home, server={"turn-seconds": 2}, providers=rows) as served:
        statuses = []
        for user in ("ada", "eve"):
            async with served.http(user) as http:
                statuses.append((await http.post("/v1/chat/completions", json=body)).status_code)
    # The second one would have had to wait for the rest of the minute.
    assert statuses == [200, 504]
