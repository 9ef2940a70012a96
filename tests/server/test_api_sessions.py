"""Logins of the web page: codes, keys, cookies, and who may use them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx2
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.server import application, logins
from vibe_llms.server.settings import CODE_SECONDS
from vibe_llms.storage.logins import MOST_LOGINS

#: Sent by a browser with each request of a page of this server.
PAGE = {"sec-fetch-site": "same-origin"}


def browser(served: Served, **headers: str) -> httpx2.AsyncClient:
    """A browser on a page of the server, without a login; it keeps cookies."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.AsyncClient(base_url=served.url, headers={**PAGE, **named}, timeout=30)


async def log_in(client: httpx2.AsyncClient, served: Served, user: str = "ada") -> str:
    """Log in with a key, and return the cookie as a browser sends it."""
    response = await client.post("/api/login", json={"key": served.key(user)})
    assert response.status_code == 200
    return response.headers["set-cookie"].partition(";")[0]


def read_code(link: str) -> str:
    """The code in a link, which browsers do not send to the server."""
    address, _, code = link.partition("/#code=")
    assert address.startswith("http://127.0.0.1:")
    return code


def failed(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of a refused request."""
    return response.status_code, response.json()["error"]["code"]


async def test_without_keys_everyone_is_the_user_of_the_command(home: Path) -> None:
    async with serving(home, keys=False) as served, browser(served) as client:
        assert (await client.get("/api/session")).json() == {
            "user": "local",
            "name": "local",
            "expires": None,
            "login": False,
        }
        refused = await client.post("/api/login", json={"key": "any"})
        assert failed(refused) == (400, "login_not_needed")


async def test_with_keys_a_login_is_needed(served: Served) -> None:
    async with browser(served) as client:
        assert failed(await client.get("/api/session")) == (401, "invalid_api_key")
        assert failed(await client.post("/api/logout")) == (401, "invalid_api_key")
    async with served.http("ada") as client:
        shown = (await client.get("/api/session")).json()
        assert (shown["user"], shown["expires"], shown["login"]) == ("ada", None, True)


async def test_a_code_logs_in_one_browser_once(served: Served) -> None:
    code = read_code(served.running.invite("local"))
    async with browser(served) as client, browser(served) as other:
        response = await client.post("/api/login", json={"code": code})
        assert response.json()["user"] == "local"
        shown = (await client.get("/api/session")).json()
        assert shown["user"] == "local"
        assert shown["expires"][:19] == response.json()["expires"][:19]
        again = await other.post("/api/login", json={"code": code})
        assert failed(again) == (401, "invalid_code")
        assert "set-cookie" not in again.headers
        assert failed(await other.get("/api/session")) == (401, "invalid_api_key")
    assert code not in "".join(served.log)


async def test_of_browsers_that_use_a_code_at_once_one_logs_in(served: Served) -> None:
    code = read_code(served.running.invite("local"))
    async with browser(served) as client:
        tries = [client.post("/api/login", json={"code": code}) for _ in range(4)]
        statuses = sorted([one.status_code for one in await asyncio.gather(*tries)])
    assert statuses == [200, 401, 401, 401]


async def test_a_code_expires(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CODE_SECONDS <= 900
    monkeypatch.setattr(logins, "CODE_SECONDS", 0.0)
    code = read_code(served.running.invite("local"))
    async with browser(served) as client:
        response = await client.post("/api/login", json={"code": code})
        assert failed(response) == (401, "invalid_code")


async def test_the_cookie_is_for_the_server_alone(served: Served) -> None:
    async with browser(served, origin=served.url) as client:
        response = await client.post("/api/login", json={"key": served.key("ada")})
    pair, _, attributes = response.headers["set-cookie"].partition("; ")
    assert attributes == "Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
    found = re.fullmatch(r"vibe-llms-[0-9a-f]{16}=([\w-]{43})", pair)
    assert found is not None
    # Only hashes are stored.
    assert found[1] not in response.text
    stored = await asyncio.to_thread(served.users.file.read_bytes)
    assert found[1].encode() not in stored
    assert served.key("ada").encode() not in stored


async def test_with_tls_the_cookie_needs_it(home: Path) -> None:
    host = "chat.example.org"
    async with (
        serving(home, server={"allowed-hosts": [host]}) as served,
        browser(served, host=host, origin=f"https://{host}") as client,
    ):
        response = await client.post("/api/login", json={"key": served.key("ada")})
        cookie = response.headers["set-cookie"]
        assert re.match(r"__Host-vibe-llms-[0-9a-f]{16}=", cookie)
        assert cookie.endswith("; Secure")
        pair = cookie.partition(";")[0]
        # The cookie of a page without TLS, which another site of the domain may have set, is
        # not taken instead.
        other = f"{pair.removeprefix('__Host-').partition('=')[0]}=planted"
        for sent in (pair, f"{other}; {pair}", f"{pair}; {other}"):
            shown = await client.get("/api/session", headers={"cookie": sent})
            assert shown.json()["user"] == "ada"


async def test_homes_of_one_machine_have_cookies_of_their_own(tmp_path: Path) -> None:
    names = []
    for one in (tmp_path / "one", tmp_path / "two", tmp_path / "one"):
        one.mkdir(exist_ok=True)
        async with serving(one) as served, browser(served) as client:
            code = read_code(served.running.invite("local"))
            response = await client.post("/api/login", json={"code": code})
            names.append(response.headers["set-cookie"].partition("=")[0])
    assert names[0] != names[1]
    # A restarted server, also at another port, knows its logins again.
    assert names[0] == names[2]


async def test_a_login_outlives_the_server(home: Path) -> None:
    async with serving(home) as served, browser(served) as client:
        cookie = await log_in(client, served)
    async with serving(home) as served, browser(served, cookie=cookie) as client:
        assert (await client.get("/api/session")).json()["user"] == "ada"


@pytest.mark.parametrize(
    ("headers", "reads", "writes"),
    [
        ({"sec-fetch-site": "same-origin"}, True, True),
        # The user typed the address, or opened a picture in a tab.
        ({"sec-fetch-site": "none"}, True, False),
        # A page at another port of this machine.
        ({"sec-fetch-site": "same-site"}, False, False),
        ({"sec-fetch-site": "cross-site"}, False, False),
        ({"sec-fetch-site": ""}, False, False),
        ({"sec-fetch-site": "same-site", "origin": "{url}"}, False, False),
        ({"origin": "{url}"}, True, True),
        # A proxy with TLS passes on the host without the port of its own.
        ({"sec-fetch-site": "same-origin", "origin": "https://127.0.0.1:8443"}, True, True),
        ({"origin": "https://127.0.0.1:8443"}, False, False),
        ({"origin": "https://friend.example"}, False, False),
        ({"origin": "null"}, False, False),
        # A browser without Sec-Fetch-Site sends Origin with all that is not only read.
        ({}, True, False),
    ],
)
async def test_only_pages_of_the_server_use_a_login(
    home: Path, headers: dict[str, str], reads: bool, writes: bool
) -> None:
    # Pages of an allowed origin have a key.
    server = {"allowed-origins": ["https://friend.example"]}
    async with serving(home, server=server) as served:
        async with browser(served) as client:
            cookie = await log_in(client, served)
        sent = {name: value.format(url=served.url) for name, value in headers.items()}
        async with httpx2.AsyncClient(
            base_url=served.url, headers={**sent, "cookie": cookie}
        ) as client:
            shown = await client.get("/api/memory")
            added = await client.post("/api/memory", json={"content": "Ada keeps horses."})
            assert (shown.status_code, added.status_code) == (
                200 if reads else 403,
                201 if writes else 403,
            )
        async with served.http("ada") as client:
            assert len((await client.get("/api/memory")).json()["entries"]) == int(writes)


async def test_a_login_begins_on_a_page_of_the_server_or_without_a_browser(served: Served) -> None:
    body = {"key": served.key("ada")}
    async with httpx2.AsyncClient(base_url=served.url) as client:
        for headers, status in (
            ({}, 200),
            (PAGE, 200),
            ({"origin": served.url}, 200),
            ({"sec-fetch-site": "same-site"}, 403),
            ({"sec-fetch-site": "none"}, 403),
            ({"origin": "http://127.0.0.1:1"}, 403),
        ):
            response = await client.post("/api/login", json=body, headers=headers)
            assert response.status_code == status, headers
            assert ("set-cookie" in response.headers) == (status == 200)


async def test_a_login_opens_nothing_but_the_interface_of_the_page(served: Served) -> None:
    async with browser(served) as client:
        await log_in(client, served)
        assert (await client.get("/api/conversations")).status_code == 200
        for path in ("/v1/models", "/v1/files", "/metrics"):
            assert (await client.get(path)).status_code == 401
        path = "/openai/deployments/scripted/demo/chat/completions"
        assert (await client.post(path, json={"messages": []})).status_code == 401


async def test_a_key_counts_more_than_a_login(served: Served) -> None:
    async with browser(served) as client:
        await log_in(client, served, "ada")
        bearer = {"authorization": f"Bearer {served.key('eve')}"}
        assert (await client.get("/api/session", headers=bearer)).json()["user"] == "eve"
        wrong = {"authorization": "Bearer vl-none"}
        assert (await client.get("/api/session", headers=wrong)).status_code == 401


async def test_logins_are_listed_and_ended(served: Served) -> None:
    async with (
        browser(served, user_agent="Laptop") as laptop,
        browser(served, user_agent="Phone") as phone,
    ):
        await log_in(laptop, served)
        await log_in(phone, served)
        listed = (await laptop.get("/api/sessions")).json()["sessions"]
        assert [(one["client"], one["current"]) for one in listed] == [
            ("Phone", False),
            ("Laptop", True),
        ]
        ended = await laptop.delete(f"/api/sessions/{listed[0]['id']}")
        assert ended.json() == listed[0]
        assert (await phone.get("/api/session")).status_code == 401
        assert (await laptop.get("/api/session")).status_code == 200
        again = await laptop.delete(f"/api/sessions/{listed[0]['id']}")
        assert failed(again) == (404, "session_not_found")


async def test_logging_out_ends_the_login_and_removes_the_cookie(served: Served) -> None:
    async with browser(served) as client:
        cookie = await log_in(client, served)
        response = await client.post("/api/logout")
        name, _, rest = response.headers["set-cookie"].partition("=")
        assert cookie.startswith(f"{name}=")
        assert rest == "; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
        # Whoever has copied the cookie has nothing.
        sent = {"cookie": cookie}
        assert (await client.get("/api/session", headers=sent)).status_code == 401


@pytest.mark.parametrize("change", ["rotate", "remove", "remove and add"])
async def test_a_login_ends_with_the_key_of_its_user(served: Served, change: str) -> None:
    async with browser(served) as client, browser(served) as other:
        await log_in(client, served, "ada")
        await log_in(other, served, "eve")
        if change == "rotate":
            served.users.rotate("ada")
        else:
            served.users.remove("ada")
        if change == "remove and add":
            served.users.add("ada")
        assert (await client.get("/api/session")).status_code == 401
        assert (await other.get("/api/session")).status_code == 200


STALL = '[[replies]]\nparts = [{ text = "first " }, { stall = true }]\n'


async def test_a_stream_ends_with_its_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert logins._WATCH_SECONDS <= 30
    monkeypatch.setattr(logins, "_WATCH_SECONDS", 0.05)
    home.mkdir()
    (home / "stall.toml").write_text(STALL)
    rows = {"scripted": {"scripts": {"stall": str(home / "stall.toml")}}}
    async with (
        serving(home, providers=rows) as served,
        browser(served) as client,
        served.http("ada") as known,
    ):
        await log_in(client, served)
        order = {"model": "scripted/stall", "prompt": "Hello"}
        run = (await client.post("/api/runs", json=order)).json()["id"]
        (session,) = (await known.get("/api/sessions")).json()["sessions"]
        async with (
            asyncio.timeout(30),
            client.stream("GET", f"/api/runs/{run}/events") as mine,
            known.stream("GET", f"/api/runs/{run}/events") as other,
        ):
            received, others = mine.aiter_lines(), other.aiter_lines()
            await anext(received)
            await anext(others)
            await known.delete(f"/api/sessions/{session['id']}")
            with pytest.raises(httpx2.RemoteProtocolError):
                async for _ in received:
                    pass
            # One that uses the key goes on.
            await known.post(f"/api/runs/{run}/cancel")
            assert any("ended" in line for line in [line async for line in others])


async def test_a_login_expires(home: Path) -> None:
    async with serving(home, server={"login-seconds": 1.5}) as served, browser(served) as client:
        cookie = {"cookie": await log_in(client, served)}
        assert (await client.get("/api/session", headers=cookie)).status_code == 200
        async with asyncio.timeout(10):
            while (await client.get("/api/session", headers=cookie)).status_code != 401:
                await asyncio.sleep(0.1)
        async with served.http("ada") as known:
            assert (await known.get("/api/sessions")).json() == {"sessions": []}


async def test_failed_logins_are_few(served: Served) -> None:
    async with browser(served) as client:
        tries = [client.post("/api/login", json={"key": f"vl-{one}"}) for one in range(20)]
        answers = await asyncio.gather(*tries)
        statuses = [one.status_code for one in answers]
        assert statuses.count(401) == 5
        late = next(one for one in answers if one.status_code != 401)
        assert failed(late) == (429, "too_many_logins")
        assert late.headers["retry-after"] == "1"
        async with asyncio.timeout(10):
            body = {"key": served.key("ada")}
            while (await client.post("/api/login", json=body)).status_code == 429:
                await asyncio.sleep(0.1)
        # What succeeds does not count.
        for _ in range(10):
            assert (await client.post("/api/login", json=body)).status_code == 200


async def test_a_user_has_a_bounded_number_of_logins(served: Served) -> None:
    async with browser(served) as client:
        first = await log_in(client, served)
        for _ in range(MOST_LOGINS):
            await log_in(client, served)
        # The client keeps the last cookie.
        assert len((await client.get("/api/sessions")).json()["sessions"]) == MOST_LOGINS
        assert (await client.get("/api/session", headers={"cookie": first})).status_code == 401


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"key": "a", "code": "b"}', "application/json", 400),
        (b"{}", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"user": "ada"}', "application/json", 400),
        (b'{"key": 1}', "application/json", 400),
        (b'{"key": "\\ud800"}', "application/json", 400),
        (b'{"key": "\\u0000"}', "application/json", 401),
        (b'{"key": "' + b"a" * 5000 + b'"}', "application/json", 413),
        (b'{"key": "a"}', "text/plain", 415),
        (b"key=a", "application/x-www-form-urlencoded", 415),
        (b'{"key": "a"}', "", 415),
    ],
)
async def test_a_bad_login_is_refused(
    served: Served, content: bytes, kind: str, status: int
) -> None:
    headers = {"content-type": kind} if kind else {}
    async with browser(served) as client:
        response = await client.post("/api/login", content=content, headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize(
    "cookie", ["", "=", ";;", "vibe-llms", "{name}", "{name}=", "{name}=%00", "{name}=\xff; a=b"]
)
async def test_another_cookie_is_no_login(served: Served, cookie: str) -> None:
    async with browser(served) as client:
        name = (await log_in(client, served)).partition("=")[0]
        sent = {"cookie": cookie.format(name=name).encode("latin-1")}
        response = await client.get("/api/session", headers=sent)  # type: ignore[arg-type]
    assert failed(response) == (401, "invalid_api_key")


async def test_a_page_of_another_port_would_be_found(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "check_page", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        await test_only_pages_of_the_server_use_a_login(
            home, {"sec-fetch-site": "same-site"}, False, False
        )


async def test_a_login_that_opens_more_would_be_found(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_COOKIE_PATHS", "/")
    with pytest.raises(AssertionError):
        await test_a_login_opens_nothing_but_the_interface_of_the_page(served)
