"""Signing in: by a person with a browser, by a program, anew where a token has ended."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ensembles.mcp.servers import opened, produce_ensemble
from tests.fakes.mcp_http import FakeMcp, encode
from vibe_llms.base.exceptions import ConfigurationError, EnsembleFailed, SignInNeeded
from vibe_llms.base.keys import KeyVault
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.ensembles.mcp import oauth
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest

ECHO = '{"text": "hi"}'


@pytest.fixture
async def server() -> AsyncIterator[FakeMcp]:
    """A server that wants a token."""
    async with FakeMcp() as fake:
        fake.tokens = set()
        yield fake


@pytest.fixture
def vault(tmp_path: Path) -> KeyVault:
    return KeyVault(tmp_path / "kept" / "keys.toml")


class Browser:
    """A person who opens every address in a browser, and signs in there."""

    def __init__(self, change: Callable[[str], str] = lambda url: url) -> None:
        self.requests: list[ElicitationRequest] = []
        self.pages: list[str] = []
        self._change = change

    def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        self.requests.append(request)
        with urllib.request.urlopen(self._change(request.url)) as page:
            self.pages.append(page.read().decode())
        return ElicitationAnswer("accept")


def row(server: FakeMcp, **keys: Any) -> dict[str, Any]:
    return {"url": f"{server.url}/mcp", **keys}


async def echo(ensemble: McpEnsemble) -> str:
    return (await ensemble.invoke("echo", ECHO)).text


@pytest.mark.parametrize("transport", ["events", "json"])
async def test_a_person_signs_in_once_and_the_tokens_are_kept_like_keys(
    server: FakeMcp, vault: KeyVault, tmp_path: Path, transport: str
) -> None:
    server.events = transport == "events"
    browser = Browser()
    async with opened(EnsembleHost(elicitor=browser, vault=vault), **row(server)) as ensemble:
        assert await echo(ensemble) == "hi"
    (request,) = browser.requests
    assert request.ensemble == "fake"
    assert request.message == f"Sign in at {server.url.removeprefix('http://')}"
    assert "You have signed in." in browser.pages[0]
    file = tmp_path / "kept" / "keys.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "canary-access" in vault.read("mcp.fake")
    # Another process, without a user.
    async with opened(EnsembleHost(vault=vault), **row(server)) as ensemble:
        assert await echo(ensemble) == "hi"
    assert len(server.asked) == 1


class Early(FakeMcp):
    """A server of 2025-03-26: its own authorization server, described at its root alone."""

    issuer = "/oauth"

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path.startswith("/.well-known/oauth-protected-resource"):
            return HttpAnswer(404)
        return super().respond(request)

    def _describe(self) -> dict[str, Any]:
        about = super()._describe()
        issuer = self.issuer if "://" in self.issuer else self.url + self.issuer
        return {**about, "issuer": issuer}


@pytest.mark.parametrize(
    ("issuer", "signs_in"), [("/oauth", True), ("", True), ("http://evil.example/oauth", False)]
)
async def test_an_early_server_may_name_a_path_of_its_own_as_issuer(
    vault: KeyVault, issuer: str, signs_in: bool
) -> None:
    async with Early() as server:
        server.tokens = set()
        server.issuer = issuer
        host = EnsembleHost(elicitor=Browser(), vault=vault)
        if signs_in:
            async with opened(host, **row(server)) as ensemble:
                assert await echo(ensemble) == "hi"
            return
        with pytest.raises(EnsembleFailed, match="issuer mismatch"):
            async with opened(host, **row(server)):
                pass


async def test_a_token_that_has_ended_is_renewed_without_anybody(
    server: FakeMcp, vault: KeyVault
) -> None:
    server.lasts = 1
    async with opened(EnsembleHost(elicitor=Browser(), vault=vault), **row(server)):
        pass
    server.tokens = set()
    server.lasts = 3600
    async with opened(EnsembleHost(vault=vault), **row(server)) as ensemble:
        assert await echo(ensemble) == "hi"
    assert len(server.asked) == 1


@pytest.mark.parametrize("vaulted", [True, False])
async def test_a_missing_sign_in_is_reported_in_one_line(
    server: FakeMcp, vault: KeyVault, vaulted: bool
) -> None:
    if vaulted:
        server.lasts = 1
        async with opened(EnsembleHost(elicitor=Browser(), vault=vault), **row(server)):
            pass
        server.tokens, server.refreshing = set(), False
    words = "the token has expired" if vaulted else "it requires signing in"
    with pytest.raises(SignInNeeded) as caught:
        async with opened(EnsembleHost(vault=vault), **row(server)):
            pass
    assert str(caught.value) == (f"fake: {words}; sign in at a terminal: vibe-llms mcp test fake")


async def test_a_token_that_is_revoked_in_mid_session_is_reported(
    server: FakeMcp, vault: KeyVault
) -> None:
    async with opened(EnsembleHost(elicitor=Browser(), vault=vault), **row(server)):
        pass
    async with opened(EnsembleHost(vault=vault), **row(server)) as ensemble:
        server.tokens = set()
        with pytest.raises(
            SignInNeeded, match="fake: the token has expired; sign in at a terminal"
        ):
            await echo(ensemble)


async def test_who_declines_to_sign_in_is_not_asked_for_ever(server: FakeMcp) -> None:
    def decline(_: ElicitationRequest) -> ElicitationAnswer:
        return ElicitationAnswer("decline")

    with pytest.raises(SignInNeeded, match="fake: no user signed in; sign in at"):
        async with opened(EnsembleHost(elicitor=decline), **row(server)):
            pass
    assert not server.asked


async def test_signing_in_that_is_refused_is_reported(server: FakeMcp) -> None:
    server.refusal = "access_denied"
    browser = Browser()
    with pytest.raises(SignInNeeded, match="fake: signing in was refused: access_denied; sign in"):
        async with opened(EnsembleHost(elicitor=browser), **row(server)):
            pass
    assert "Signing in was refused: access_denied" in browser.pages[0]


async def test_signing_in_times_out(server: FakeMcp) -> None:
    def leave(_: ElicitationRequest) -> ElicitationAnswer:
        return ElicitationAnswer("accept")

    keys = row(server, oauth={"sign-in-seconds": 0.2})
    with pytest.raises(SignInNeeded, match=r"no user signed in within 0.2 s \(sign-in-seconds\)"):
        async with opened(EnsembleHost(elicitor=leave), **keys):
            pass


async def test_the_time_in_which_one_signs_in_does_not_count(server: FakeMcp) -> None:
    browser = Browser()

    async def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        await asyncio.sleep(1.5)
        return await asyncio.to_thread(browser, request)

    keys = row(server, **{"open-seconds": 1.2})
    async with opened(EnsembleHost(elicitor=elicit), **keys) as ensemble:
        assert await echo(ensemble) == "hi"


async def test_another_person_s_code_is_not_taken(server: FakeMcp) -> None:
    def change(url: str) -> str:
        return url.replace("state=", "state=another")

    with pytest.raises(EnsembleFailed, match="State parameter mismatch"):
        async with opened(EnsembleHost(elicitor=Browser(change)), **row(server)):
            pass


async def test_a_port_in_use_is_reported(server: FakeMcp) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        keys = row(server, oauth={"redirect-port": port})
        with pytest.raises(SignInNeeded, match=rf"port {port} is taken \(redirect-port\)"):
            async with opened(EnsembleHost(elicitor=Browser()), **keys):
                pass


async def test_another_address_is_not_given_the_token(server: FakeMcp, vault: KeyVault) -> None:
    async with opened(EnsembleHost(elicitor=Browser(), vault=vault), **row(server)):
        pass
    async with FakeMcp() as other:
        other.tokens = set()
        with pytest.raises(SignInNeeded, match="it requires signing in"):
            async with opened(EnsembleHost(vault=vault), **row(other)):
                pass
        assert not any("canary" in str(one.headers) for one in other.requests)


async def test_a_header_of_the_row_says_who_we_are(server: FakeMcp) -> None:
    server.tokens = {"given-0123456789"}
    keys = row(server, headers={"Authorization": "Bearer given-0123456789"})
    async with opened(**keys) as ensemble:
        assert await echo(ensemble) == "hi"


@pytest.mark.parametrize("right", [True, False])
async def test_a_program_signs_in_by_itself(
    server: FakeMcp, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    server.secret = "canary-secret-0123456789"
    monkeypatch.setenv("ROBOT", server.secret if right else "canary-wrong-0123456789")
    table = {
        "grant": "client-credentials",
        "client-id": "robot",
        "client-secret-environment": "ROBOT",
        "issuer": server.url,
    }
    if right:
        async with opened(**row(server, oauth=table)) as ensemble:
            assert await echo(ensemble) == "hi"
        return
    with pytest.raises(EnsembleFailed, match="Token exchange failed") as caught:
        async with opened(**row(server, oauth=table)):
            pass
    assert "canary-wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"client-id": "robot", "private-key-file": "/none"}, "the private key cannot be read"),
        ({"client-id": "robot"}, "no API key"),
        ({"client-secret-environment": "ROBOT"}, "client-credentials need client-id, and issuer"),
    ],
)
async def test_a_program_that_cannot_sign_in_learns_the_reason(
    server: FakeMcp, table: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBOT", "canary-secret-0123456789")
    ensemble = produce_ensemble(**row(server, oauth={"grant": "client-credentials", **table}))
    with pytest.raises(ConfigurationError, match=words):
        await ensemble.open()
    await ensemble.close()


async def test_a_client_that_the_server_knows_already_is_not_registered(
    server: FakeMcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = oauth.find_port()
    server._clients["known"] = [f"http://127.0.0.1:{port}/callback"]
    monkeypatch.setenv("SECRET", "canary-secret-0123456789")
    table = {
        "client-id": "known",
        "client-secret-environment": "SECRET",
        "redirect-port": port,
        "scope": "all",
    }
    async with opened(EnsembleHost(elicitor=Browser()), **row(server, oauth=table)) as ensemble:
        assert await echo(ensemble) == "hi"
    assert not any(one.path == "/register" for one in server.requests)


async def sign_in_and_fail(server: FakeMcp, vault: KeyVault) -> list[str]:
    """All words that come of signing in and of what fails afterwards."""
    words = []
    async with opened(EnsembleHost(elicitor=Browser(), vault=vault), **row(server)) as ensemble:
        await echo(ensemble)
        token = max(server.tokens or ())
        reported = {"code": -32000, "message": f"wrong: Bearer {token} or {token}"}
        server.override = lambda method, message: (
            server.reply(message, error=reported) if method == "tools/call" else None
        )
        try:
            await echo(ensemble)
        except EnsembleFailed as error:
            words.append(str(error))
    server.override = lambda *_: None
    server.tokens = set()
    server.lasts = 1
    try:
        async with opened(EnsembleHost(vault=vault), **row(server)):
            pass
    except EnsembleFailed as error:
        words.append(str(error))
    return words


async def test_no_token_is_in_any_words(
    server: FakeMcp, vault: KeyVault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    words = await sign_in_and_fail(server, vault)
    assert len(words) == 2
    reported = [*words, *(record.getMessage() for record in caplog.records if "mcp" in record.name)]
    assert not [one for one in reported if "canary-access" in one or "canary-refresh" in one]


async def test_a_token_in_words_would_be_seen(
    server: FakeMcp, vault: KeyVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vibe_llms.ensembles.mcp import tokens

    monkeypatch.setattr(tokens, "remember", lambda _: None)
    words = await sign_in_and_fail(server, vault)
    assert any("canary-access" in one for one in words)


def lead_away(away: HttpAnswer, wanted: str, method: str, _: Any) -> HttpAnswer | None:
    return away if wanted in ("", method) else None


async def check_redirects(server: FakeMcp, vault: KeyVault) -> None:
    """M5: whatever a server answers with, another origin sees neither token nor header."""
    async with opened(EnsembleHost(elicitor=Browser(), vault=vault), **row(server)):
        pass
    async with FakeMcp() as other:
        for number in range(20):
            status = (301, 302, 303, 307, 308)[number % 5]
            method = ("initialize", "tools/list", "server/discover", "tools/call")[number % 4]
            away = HttpAnswer(status, headers={"location": f"{other.url}/mcp?{number}"})
            server.override = partial(lead_away, away, "" if number % 5 == 4 else method)
            keys = row(server, headers={"x-key": "canary-header"})
            async with asyncio.timeout(30):
                try:
                    async with opened(EnsembleHost(vault=vault), **keys) as ensemble:
                        await echo(ensemble)
                except EnsembleFailed:
                    continue
        assert not [one for one in other.requests if "canary" in str(one.headers)]


async def test_no_token_follows_a_redirect_to_another_origin(
    server: FakeMcp, vault: KeyVault
) -> None:
    await check_redirects(server, vault)


@pytest.mark.slow
async def test_a_token_that_follows_would_be_seen(
    server: FakeMcp, vault: KeyVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp.shared import _httpx_utils as package

    async def agree(*_: object) -> None:
        """Let every request go everywhere."""

    monkeypatch.setattr(package, "_within_origin", lambda *_: True)
    monkeypatch.setattr(oauth._Agreement, "__call__", agree)
    with pytest.raises(AssertionError):
        await check_redirects(server, vault)


async def test_other_requests_to_the_port_are_refused() -> None:
    port = oauth.find_port()

    def knock(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
                return int(page.status)
        except urllib.error.HTTPError as error:
            return error.code

    async with oauth.listen(port) as arrival:
        for garbage in (b"\x16\x03\x01\r\n", b"GET\r\n", b"x" * 20_000 + b"\r\n", b""):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage)
            writer.close()
        assert await asyncio.to_thread(knock, "/favicon.ico") == 404
        assert await asyncio.to_thread(knock, "/callback?x=1") == 404
        assert not arrival.done()
        assert await asyncio.to_thread(knock, "/callback?code=1&state=2") == 200
        assert await asyncio.to_thread(knock, "/callback?code=3&state=4") == 200
        assert await arrival == {"code": "1", "state": "2"}


async def test_unreadable_tokens_count_as_missing(server: FakeMcp, vault: KeyVault) -> None:
    vault.keep("mcp.fake", "{")
    with pytest.raises(SignInNeeded, match="it requires signing in"):
        async with opened(EnsembleHost(vault=vault), **row(server)):
            pass


class Led(FakeMcp):
    """A server that signs in elsewhere: `places` are its metadata, changed."""

    def __init__(self, **places: str) -> None:
        super().__init__()
        self.tokens = set()
        self.places = places

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """As others, with addresses of its own choice."""
        answer = super().respond(request)
        if (where := self.places.get("resource_metadata")) and answer.status == 401:
            answer.headers["www-authenticate"] = f'Bearer resource_metadata="{where}"'
        path = request.path.partition("?")[0]
        if path.startswith("/.well-known/") and answer.status == 200:
            about = json.loads(b"".join(answer.chunks))
            for name, value in self.places.items():
                if name in about:
                    about[name] = [value] if isinstance(about[name], list) else value
            answer = msgspec.structs.replace(answer, chunks=encode(about))
        return answer


class Agreeing(Browser):
    """A person who also allows every other server."""

    def __init__(self, allow: bool = True) -> None:
        super().__init__()
        self.allow = allow
        self.questions: list[str] = []

    def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        if request.url:
            return super().__call__(request)
        self.questions.append(request.message)
        return ElicitationAnswer("accept", {"allow": self.allow})


HIDDEN = "http://169.254.169.254"
PLACES = (
    {"resource_metadata": f"{HIDDEN}/latest/meta-data"},
    {"authorization_servers": f"{HIDDEN}/"},
    {"registration_endpoint": f"{HIDDEN}/register"},
    {"token_endpoint": f"{HIDDEN}/token"},
)


@pytest.mark.parametrize("places", PLACES, ids=lambda places: next(iter(places)))
@pytest.mark.parametrize("asked", [True, False])
async def test_no_server_leads_to_a_hidden_address(places: dict[str, str], asked: bool) -> None:
    # Whatever connects to another address than this machine's fails the test; see conftest.
    person = Agreeing()
    async with Led(**places) as server:
        with pytest.raises(EnsembleFailed) as caught:
            async with opened(EnsembleHost(elicitor=person if asked else None), **row(server)):
                pass
    if asked:
        assert "it is a link-local address" in str(caught.value)
        (question,) = person.questions
        assert question == f"{server.url} signs in through another server: {HIDDEN}"
    else:
        assert "sign in at a terminal" in str(caught.value)


async def test_another_server_is_asked_about_once(vault: KeyVault) -> None:
    person = Agreeing()
    async with FakeMcp() as other, Led(authorization_servers=other.url) as server:
        other.tokens, other.resource = server.tokens, f"{server.url}/mcp"
        with pytest.raises(SignInNeeded, match="requires signing in"):
            async with opened(EnsembleHost(vault=vault), **row(server)):
                pass
        assert not other.requests
        async with opened(EnsembleHost(elicitor=person, vault=vault), **row(server)) as ensemble:
            assert await echo(ensemble) == "hi"
        assert person.questions == [f"{server.url} signs in through another server: {other.url}"]
        # Neither is asked again: in another process, and where the token has expired.
        server.tokens = other.tokens = set()
        async with opened(EnsembleHost(elicitor=person, vault=vault), **row(server)) as ensemble:
            assert await echo(ensemble) == "hi"
    assert len(person.questions) == 1


async def test_another_server_that_is_declined_gets_nothing() -> None:
    async with FakeMcp() as other, Led(authorization_servers=other.url) as server:
        with pytest.raises(SignInNeeded, match=r"signing in through .* was declined"):
            async with opened(EnsembleHost(elicitor=Agreeing(allow=False)), **row(server)):
                pass
        assert not other.requests


async def test_another_server_of_the_row_is_not_asked_about(vault: KeyVault) -> None:
    person = Agreeing()
    async with FakeMcp() as other, Led(authorization_servers=other.url) as server:
        other.tokens, other.resource = server.tokens, f"{server.url}/mcp"
        keys = row(server, oauth={"allowed-origins": [other.url]})
        async with opened(EnsembleHost(elicitor=person, vault=vault), **keys) as ensemble:
            assert await echo(ensemble) == "hi"
    assert not person.questions
