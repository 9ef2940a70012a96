"""Logins with Google through `google-auth`: where tokens come from, and who sees them."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.compute_engine import _metadata

from tests.fakes.vertex import PROJECT, FakeVertex, FakeVertexAnthropic, deny
from tests.fakes.vertex_clients import vertex_model
from vibe_llms.base import redaction
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    PackageMissing,
    RequestForbidden,
)
from vibe_llms.base.network.offline import forbid_requests
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.opening import open_session
from vibe_llms.providers import logins, vertex
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

HI = [UserCanister.from_text("Hi")]
PACKAGE = Credential("vertex", "package")
TOKEN = "ya29.token-of-a-service-account-0123456789"
OWN = "project-of-the-file"


class TokenServer(Listener):
    """Issues tokens, as Google's server of OAuth and as the metadata server of a machine do."""

    def __init__(self, seconds: float = 3600, *, reply: HttpAnswer | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self.reply = reply
        self.issued = 0

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if self.reply is not None:
            return self.reply
        path = request.path.partition("?")[0]
        if path == "/":
            return answer_text("")
        if path.endswith("/project/project-id"):
            return answer_text(OWN)
        if path.endswith("/service-accounts/default/") and "recursive" in request.path:
            about = {"email": "robot@p.iam.gserviceaccount.com", "scopes": [vertex.SCOPE]}
            return answer_json(about)
        self.issued += 1
        token = f"{TOKEN}-{self.issued}"
        return answer_json(
            {"access_token": token, "token_type": "Bearer", "expires_in": int(self.seconds)}
        )


def answer_json(body: Any, status: int = 200) -> HttpAnswer:
    headers = {"content-type": "application/json", "metadata-flavor": "Google"}
    return HttpAnswer(status, headers, [json.dumps(body).encode()])


def answer_text(text: str) -> HttpAnswer:
    headers = {"content-type": "application/text", "metadata-flavor": "Google"}
    return HttpAnswer(200, {**headers, "content-length": str(len(text))}, [text.encode()])


@cache
def make_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *form).decode()


Use = Callable[..., None]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file and no metadata server of this machine is read."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", True)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    """Let tokens come from a service account, at an address."""

    def use(url: str, **members: Any) -> None:
        about = {
            "type": "service_account",
            "project_id": OWN,
            "private_key_id": "0123456789abcdef",
            "private_key": make_key(),
            "client_email": "robot@p.iam.gserviceaccount.com",
            "token_uri": f"{url}/token",
            **members,
        }
        path = tmp_path / "account.json"
        path.write_text(json.dumps(about))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))

    return use


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    """Let tokens come from the login of `gcloud`, at an address."""

    def use(url: str, **members: Any) -> None:
        about = {
            "type": "authorized_user",
            "client_id": "1234.apps.googleusercontent.com",
            "client_secret": "client-secret-0123456789",
            "refresh_token": "1//refresh-token-0123456789",
            "quota_project_id": "payer",
            **members,
        }
        folder = tmp_path / "gcloud"
        folder.mkdir(exist_ok=True)
        (folder / "application_default_credentials.json").write_text(json.dumps(about))
        monkeypatch.setattr(
            "google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{url}/token"
        )
        monkeypatch.setattr("google.auth._cloud_sdk.get_project_id", lambda: None)

    return use


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let tokens come from the metadata server of a machine, at an address."""

    def use(url: str) -> None:
        host = url.removeprefix("http://")
        monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", False)
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
        monkeypatch.setenv("GCE_METADATA_IP", host)

    return use


@pytest.mark.parametrize("row", ["vertex", "vertex-anthropic"])
async def test_a_request_has_a_token_and_the_project_of_the_credentials(
    row: str, account: Use
) -> None:
    server: Any = FakeVertexAnthropic() if row == "vertex-anthropic" else FakeVertex()
    with TokenServer() as issuer, server:
        account(issuer.url)
        server.key, server.token, server.project = "nothing", f"{TOKEN}-1", OWN
        model = await vertex_model(row)(server.url, credential=PACKAGE, project="")
        model.client.transport.prepare()
        assert issuer.requests == []
        for _ in range(2):
            await model.converse(HI)
        await model.client.close()
        assert server.refusals == []
        assert issuer.issued == 1


async def test_the_project_of_the_row_comes_first(account: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        account(issuer.url)
        server.token = f"{TOKEN}-1"
        model = await vertex_model("vertex")(server.url, credential=PACKAGE)
        await model.converse(HI)
        await model.client.close()
        assert server.requests[0].path.startswith(f"/v1/projects/{PROJECT}/")


async def test_a_login_of_gcloud_names_the_project_that_pays(user: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        user(issuer.url)
        server.token, server.project, server.payer = f"{TOKEN}-1", "payer", "payer"
        model = await vertex_model("vertex")(server.url, credential=PACKAGE, project="")
        await model.converse(HI)
        server.names = ("gemini-x",)
        assert [one.name for one in await model.client.survey_models()] == ["gemini-x"]
        await model.client.close()
        assert server.refusals == []


async def test_a_machine_of_google_has_a_service_account(machine: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        machine(issuer.url)
        server.token, server.project = f"{TOKEN}-1", OWN
        model = await vertex_model("vertex")(server.url, credential=PACKAGE, project="")
        await model.converse(HI)
        await model.client.close()
        assert server.refusals == []
        assert all(one.headers["metadata-flavor"] == "Google" for one in issuer.requests)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_no_redirect_of_an_issuer_is_followed(
    status: int, account: Use, machine: Use
) -> None:
    with TokenServer() as other:
        moved = HttpAnswer(status, {"location": f"{other.url}/x", "content-length": "0"}, [])
        with TokenServer(reply=moved) as issuer:
            account(issuer.url)
            with pytest.raises(CredentialMissing):
                await vertex.GoogleLogin("vertex").access()
            assert issuer.requests
        assert other.requests == []


async def test_no_redirect_of_a_metadata_server_is_followed(
    machine: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TokenServer() as other:
        moved = HttpAnswer(302, {"location": f"{other.url}/", "content-length": "0"}, [])
        with TokenServer(reply=moved) as issuer:
            machine(issuer.url)
            monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
            with pytest.raises(CredentialMissing, match="google-auth found no login"):
                await vertex.GoogleLogin("vertex").access()
            assert issuer.requests
        assert other.requests == []


@pytest.mark.parametrize(("seconds", "fetched"), [(200, 2), (3600, 1)])
async def test_a_token_is_renewed_before_it_ends(
    seconds: float, fetched: int, account: Use
) -> None:
    with TokenServer(seconds) as issuer:
        account(issuer.url)
        login = vertex.GoogleLogin("vertex")
        granted = [await login.access() for _ in range(2)]
    assert [one.text for one in granted] == [f"{TOKEN}-1", f"{TOKEN}-{fetched}"]
    assert abs(granted[0].ends - time.time() - seconds) < 30


async def test_requests_at_once_share_a_token(account: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        account(issuer.url)
        server.token = f"{TOKEN}-1"
        model = await vertex_model("vertex")(server.url, credential=PACKAGE)
        await asyncio.gather(*(model.converse(HI) for _ in range(5)))
        await model.client.close()
        assert issuer.issued == 1


async def test_a_token_that_is_refused_is_not_used_again(account: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        account(issuer.url)
        server.token = f"{TOKEN}-2"
        model = await vertex_model("vertex")(server.url, credential=PACKAGE)
        with pytest.raises(CredentialRefused):
            await model.converse(HI)
        (said,) = await model.converse(HI)
        assert said.text == "Hello."
        await model.client.close()
        assert issuer.issued == 2


def grant_nothing(error: str, **members: str) -> HttpAnswer:
    return answer_json({"error": "invalid_grant", "error_description": error, **members}, 400)


async def test_an_expired_login_says_what_to_run_and_a_new_one_is_used_at_once(user: Use) -> None:
    """The words are those of aaif-goose/goose#9689 (2026-06)."""
    expired = grant_nothing("reauth related error (invalid_rapt)", error_subtype="invalid_rapt")
    with TokenServer(reply=expired) as issuer:
        user(issuer.url)
        login = vertex.GoogleLogin("vertex")
        with pytest.raises(CredentialMissing) as caught:
            await login.access()
        issuer.reply = None
        user(issuer.url, refresh_token="1//another-token-0123456789")
        assert (await login.access()).text == f"{TOKEN}-1"
        assert b"another-token" in issuer.requests[-1].body
    assert str(caught.value) == (
        "[providers.vertex], key 'credential': no token of Google: Reauthentication is needed. "
        "Please run gcloud auth application-default login to reauthenticate"
    )


async def test_a_revoked_login_says_what_to_run(user: Use) -> None:
    with TokenServer(reply=grant_nothing("Token has been expired or revoked.")) as issuer:
        user(issuer.url)
        with pytest.raises(CredentialMissing, match="revoked; run: gcloud auth app") as caught:
            await vertex.GoogleLogin("vertex").access()
    assert "refresh-token" not in str(caught.value)


async def test_a_key_of_a_service_account_that_is_gone_is_told(account: Use) -> None:
    with TokenServer(reply=grant_nothing("Invalid JWT Signature.")) as issuer:
        account(issuer.url)
        with pytest.raises(CredentialMissing, match=r"Invalid JWT Signature; is the service acc"):
            await vertex.GoogleLogin("vertex").access()


async def test_without_any_login_the_error_says_what_to_run() -> None:
    with pytest.raises(CredentialMissing) as caught:
        await vertex.GoogleLogin("vertex").access()
    assert str(caught.value) == (
        "[providers.vertex], key 'credential': no token of Google: google-auth found no login; "
        "run: gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to the "
        "file of a service account"
    )


@pytest.mark.parametrize("text", [None, "{", '{"type": "nothing"}', '{"type": "service_account"}'])
async def test_a_broken_file_is_told(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(CredentialMissing, match=r"broken\.json"):
        await vertex.GoogleLogin("vertex").access()


@pytest.mark.parametrize(
    "reply", [answer_text("Log in to the hotel"), answer_json({}), answer_json({"a": 1}, 503)]
)
async def test_an_issuer_that_says_something_else_is_told(reply: HttpAnswer, user: Use) -> None:
    with TokenServer(reply=reply) as issuer:
        user(issuer.url)
        with pytest.raises(CredentialMissing, match="no token of Google"):
            await vertex.GoogleLogin("vertex").access()


async def test_an_unreachable_issuer_is_told(account: Use) -> None:
    account("http://127.0.0.1:9")
    with pytest.raises(CredentialMissing, match="is the network reachable"):
        await vertex.GoogleLogin("vertex").access()


async def test_credentials_without_a_project_say_what_to_set(user: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        user(issuer.url, quota_project_id=None)
        model = await vertex_model("vertex")(server.url, credential=PACKAGE, project="")
        with pytest.raises(ConfigurationError, match="set GOOGLE_CLOUD_PROJECT"):
            await model.converse(HI)
        await model.client.close()
        assert server.requests == []


async def test_without_a_login_nothing_is_kept_or_sent() -> None:
    with FakeVertex() as server:
        row = {"base-url": server.url, "credential": "package", "project": "p"}
        async with open_session(configuration={"providers": {"vertex": row}}) as session:
            conversation = await session.begin("vertex/gemini-3.8-flash")
            with pytest.raises(CredentialMissing):
                await conversation.converse("Hi")
            assert await session.survey_conversations() == []
        assert server.requests == []


async def test_offline_no_login_is_asked(account: Use) -> None:
    with TokenServer() as issuer, FakeVertex() as server:
        account(issuer.url)
        model = await vertex_model("vertex")(server.url, credential=PACKAGE)
        with forbid_requests(), pytest.raises(RequestForbidden, match=r"oauth2\.googleapis"):
            await model.converse(HI)
        await model.client.close()
        row = {"base-url": server.url, "credential": "package", "project": "p"}
        settings = {"providers": {"vertex": row}, "offline": True}
        async with open_session(configuration=settings) as session:
            conversation = await session.begin("vertex/gemini-3.8-flash")
            with pytest.raises(RequestForbidden):
                await conversation.converse("Hi")
        assert issuer.requests == []
        assert server.requests == []


async def test_a_package_that_cannot_be_imported_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    with pytest.raises(PackageMissing) as caught:
        await vertex.GoogleLogin("vertex").access()
    assert caught.value.command == "python -m pip install 'vibe-llms[vertex]'"


async def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertex.GoogleLogin, "package", "google.nowhere")
    model = await vertex_model("vertex")(credential=PACKAGE)
    with pytest.raises(PackageMissing, match="google-auth"):
        model.client.transport.prepare()


@pytest.mark.parametrize("row", ["vertex", "vertex-anthropic"])
def test_the_package_is_not_imported_before_a_token_is_needed(row: str) -> None:
    script = f"""
import asyncio, sys
from vibe_llms import open_session
from tests.fakes.vertex_clients import MODELS, produce_vertex_client
from vibe_llms.base.credentials import Credential
before = {{name for name in sys.modules if name.startswith(("google", "requests", "urllib3"))}}
async def main():
    client = produce_vertex_client({row!r}, credential=Credential({row!r}, "package"))
    client.transport.prepare()
    await client.close()
    async with open_session() as session:
        await session.begin("{row}/" + MODELS[{row!r}], save=False)
asyncio.run(main())
found = {{name for name in sys.modules if name.startswith(("google", "requests", "urllib3"))}}
# `find_spec` imports the namespace that holds the package.
print(sorted(found - before - {{"google"}}))
"""
    script = script.replace("from tests.fakes.vertex_clients import", _CLIENTS)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


#: The fake itself has Google's package for its types.
_CLIENTS = """
import types
fake = types.ModuleType("tests.fakes.vertex")
fake.KEY, fake.PROJECT = "", "p"
sys.modules["tests.fakes.vertex"] = fake
from tests.fakes.vertex_clients import"""


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All that the packages log, at the lowest level."""
    caplog.set_level(logging.DEBUG)
    names = [*vertex.GoogleLogin.loggers, *logging.root.manager.loggerDict]
    kept = {name: logging.getLogger(name).level for name in names}
    for name in kept:
        if name.startswith(vertex.GoogleLogin.loggers):
            logging.getLogger(name).setLevel(logging.DEBUG)
    yield caplog
    for name, level in kept.items():
        logging.getLogger(name).setLevel(level)


async def test_no_token_is_in_logs_errors_or_the_archive(
    user: Use,
    monkeypatch: pytest.MonkeyPatch,
    records: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(redaction, "_KNOWN", {})
    with TokenServer() as issuer, FakeVertex() as server:
        user(issuer.url)
        server.token, server.project = f"{TOKEN}-1", "p"
        body = json.loads(b"".join(deny().chunks))
        body["error"]["message"] += f" Bearer {TOKEN}-1 of {TOKEN}-1"
        archive = DirectoryArchive(tmp_path / "archive", StorageSettings(durability="fast"))
        row = {"base-url": server.url, "project": "p", "location": "global", "retries": 0}
        configuration = {"providers": {"vertex": row}}
        async with open_session(configuration=configuration, archive=archive) as session:
            conversation = await session.begin("vertex/gemini-3.8-flash")
            await conversation.converse("Hi")
            server.replies = [answer_json(body, 401)]
            with pytest.raises(CredentialRefused) as caught:
                await conversation.converse("Again")
            shown = repr(vars(conversation.model.client.transport))  # type: ignore[attr-defined]
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}-1"
    stored = b"".join(path.read_bytes() for path in (tmp_path / "archive").rglob("*.json*"))
    assert b"Again" in stored
    texts = (records.text, str(caught.value), repr(caught.value), stored.decode("latin-1"), shown)
    for text in texts:
        for secret in (TOKEN, "refresh-token-0123456789", "client-secret-0123456789"):
            assert secret not in text
    assert not [one for one in records.records if one.name.startswith(("google", "urllib3"))]


def test_a_token_is_not_shown() -> None:
    ends = (datetime.now(UTC) + timedelta(hours=1)).timestamp()
    token = vertex.GoogleToken(TOKEN, ends, "p", "p")
    assert TOKEN not in repr(token)
    assert logins.AccessToken(TOKEN, ends).secrets == token.secrets == (TOKEN,)
