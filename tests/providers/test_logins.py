"""Logins with Entra ID through `azure-identity`: when a token is fetched, and who sees it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure import DENIED, KEY, FakeAzure, FakeFoundry
from tests.fakes.azure_clients import azure_model
from vibe_llms.base import redaction
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    CredentialMissing,
    CredentialRefused,
    PackageMissing,
    RequestForbidden,
)
from vibe_llms.base.network.offline import forbid_requests
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.opening import open_session
from vibe_llms.providers import azure, logins
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

HI = [UserCanister.from_text("Hi")]
PACKAGE = Credential("azure", "package", variable="AZURE_OPENAI_API_KEY")
TOKEN = "opaque-token-of-entra-0123456789"


class Metadata(Listener):
    """A server of tokens on a machine of Azure."""

    def __init__(self, seconds: float = 3600, *, reply: HttpAnswer | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self.reply = reply

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if self.reply is not None:
            return self.reply
        number = len(self.requests)
        ends = int(time.time() + self.seconds)
        issued = {"access_token": f"{TOKEN}-{number}", "token_type": "Bearer", "resource": "x"}
        return answer_json({**issued, "expires_on": str(ends)})


def answer_json(body: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {"content-type": "application/json"}, [json.dumps(body).encode()])


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let tokens come only from the managed identity of an app, at an address."""

    def use(url: str) -> None:
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setenv("IDENTITY_ENDPOINT", url)
        monkeypatch.setenv("IDENTITY_HEADER", "header-of-the-app")

    return use


def use_cli(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let tokens come only from a program `az`."""
    program = folder / "az"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


async def test_a_request_has_a_token_and_no_key(
    sources: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    for row, server in (("azure", FakeAzure()), ("azure-anthropic", FakeFoundry())):
        with Metadata() as metadata, server:
            sources(metadata.url)
            server.key, server.token = "nothing", f"{TOKEN}-1"
            model = await azure_model(row)(server.url, credential=PACKAGE)
            model.client.transport.prepare()
            assert metadata.requests == []
            for _ in range(2):
                await model.converse(HI)
            await model.client.close()
            assert server.refusals == []
            assert len(metadata.requests) == 1
            scope = "ai.azure.com" if row == "azure-anthropic" else "cognitiveservices.azure.com"
            assert scope in metadata.requests[0].path


async def test_a_token_is_fetched_once_for_requests_at_once_and_off_the_event_loop(
    sources: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    fetch = azure.EntraLogin.fetch

    def note(login: azure.EntraLogin) -> logins.AccessToken:
        threads.append(threading.get_ident())
        return fetch(login)

    monkeypatch.setattr(azure.EntraLogin, "fetch", note)
    with Metadata() as metadata, FakeAzure() as server:
        sources(metadata.url)
        server.token = f"{TOKEN}-1"
        model = await azure_model("azure")(server.url, credential=PACKAGE)
        await asyncio.gather(*(model.converse(HI) for _ in range(5)))
        await model.client.close()
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize(("seconds", "fetched"), [(200, 2), (3600, 1)])
async def test_a_token_is_renewed_before_it_ends(
    seconds: float, fetched: int, sources: Callable[[str], None]
) -> None:
    with Metadata(seconds) as metadata, FakeAzure() as server:
        sources(metadata.url)
        model = await azure_model("azure")(server.url, credential=PACKAGE)
        login = model.client.transport._login
        tokens = [(await login.access()).text for _ in range(2)]
        await model.client.close()
    assert tokens == [f"{TOKEN}-1", f"{TOKEN}-{fetched}"]


async def test_a_token_that_is_refused_is_not_used_again(sources: Callable[[str], None]) -> None:
    with Metadata() as metadata, FakeAzure() as server:
        sources(metadata.url)
        server.key, server.token = "nothing", f"{TOKEN}-2"
        model = await azure_model("azure")(server.url, credential=PACKAGE)
        with pytest.raises(CredentialRefused):
            await model.converse(HI)
        await model.converse(HI)
        await model.client.close()
        assert len(metadata.requests) == 2


class Failing(azure.EntraLogin):
    """A login that gives one token and then fails."""

    seconds = 0.0

    def load(self) -> None:
        """Import nothing."""

    def fetch(self) -> logins.AccessToken:
        if self._held is not None:
            raise self.miss("no token")
        return logins.AccessToken(TOKEN, time.time() + self.seconds)


@pytest.mark.parametrize(("seconds", "used"), [(200, True), (20, False)])
async def test_a_token_that_still_lasts_is_used_if_it_cannot_be_renewed(
    seconds: float, *, used: bool
) -> None:
    login = Failing("azure", "scope")
    login.seconds = seconds
    assert (await login.access()).text == TOKEN
    if used:
        assert (await login.access()).text == TOKEN
    else:
        with pytest.raises(CredentialMissing):
            await login.access()


def test_the_package_is_not_imported_before_a_token_is_needed() -> None:
    script = """
import asyncio, sys
from tests.fakes.azure_clients import azure_model
from vibe_llms.base.credentials import Credential
async def main():
    model = await azure_model("azure")(credential=Credential("azure", "package"))
    model.client.transport.prepare()
    await model.client.close()
asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith(("azure.", "msal"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["azure.nowhere", "nowhere.identity"])
async def test_a_missing_package_is_named_with_its_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure.EntraLogin, "package", name)
    model = await azure_model("azure")(credential=PACKAGE)
    with pytest.raises(PackageMissing) as caught:
        model.client.transport.prepare()
    assert caught.value.command == "python -m pip install 'vibe-llms[azure]'"
    assert caught.value.package == "azure-identity"


async def test_a_package_that_cannot_be_imported_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(PackageMissing):
        await azure.EntraLogin("azure", "scope").access()


async def test_offline_no_login_is_asked(sources: Callable[[str], None]) -> None:
    with Metadata() as metadata, FakeAzure() as server:
        sources(metadata.url)
        model = await azure_model("azure")(server.url, credential=PACKAGE)
        with forbid_requests(), pytest.raises(RequestForbidden, match=r"login\.microsoftonline"):
            await model.converse(HI)
        await model.client.close()
        assert metadata.requests == []
        assert server.requests == []


async def test_a_redirect_of_a_metadata_address_is_not_followed(
    sources: Callable[[str], None],
) -> None:
    with Metadata() as other:
        for status in (302, 307):
            moved = HttpAnswer(status, {"location": other.url, "content-length": "0"}, [])
            with Metadata(reply=moved) as metadata:
                sources(metadata.url)
                with pytest.raises(CredentialMissing, match="run: az login"):
                    await azure.EntraLogin("azure", "https://ai.azure.com/.default").access()
                assert len(metadata.requests) == 1
        assert other.requests == []


async def test_an_expired_login_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = "ERROR: AADSTS700082: The refresh token has expired due to inactivity."
    use_cli(monkeypatch, tmp_path, f"echo '{words}' >&2; exit 1")
    with pytest.raises(CredentialMissing) as caught:
        await azure.EntraLogin("azure", "https://ai.azure.com/.default").access()
    assert str(caught.value) == (
        "[providers.azure], key 'credential': no token of Entra ID: AADSTS700082: The refresh "
        "token has expired due to inactivity; run: az login, or set AZURE_TENANT_ID, "
        "AZURE_CLIENT_ID and AZURE_CLIENT_SECRET of a service principal"
    )


async def test_without_any_login_the_error_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_cli(monkeypatch, tmp_path, "echo \"Please run 'az login' to set up account.\" >&2; exit 1")
    with pytest.raises(CredentialMissing, match="azure-identity found no login; run: az login"):
        await azure.EntraLogin("azure", "https://ai.azure.com/.default").access()


async def test_a_wrong_name_of_a_source_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "nobody")
    with pytest.raises(CredentialMissing, match="environment of azure-identity is wrong"):
        await azure.EntraLogin("azure", "scope").access()


async def test_the_token_of_the_cli_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = int(time.time() + 3600)
    issued = json.dumps({"accessToken": TOKEN, "expires_on": ends})
    use_cli(monkeypatch, tmp_path, f"echo x >> {tmp_path}/asked; echo '{issued}'")
    login = azure.EntraLogin("azure", "https://ai.azure.com/.default")
    assert [(await login.access()).text for _ in range(3)] == [TOKEN] * 3
    assert (tmp_path / "asked").read_text() == "x\n"


async def test_no_token_is_in_logs_errors_or_the_archive(
    sources: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(redaction, "_KNOWN", {})
    caplog.set_level(logging.DEBUG)
    for name in azure.EntraLogin.loggers:
        logging.getLogger(name).setLevel(logging.DEBUG)
    with Metadata() as metadata, FakeAzure() as server:
        sources(metadata.url)
        server.token = f"{TOKEN}-1"
        body = json.loads(b"".join(DENIED.chunks))
        body["error"]["message"] += f" Bearer {TOKEN}-1 of {TOKEN}-1"
        archive = DirectoryArchive(tmp_path, StorageSettings(durability="fast"))
        row = {"base-url": server.url, "credential": "package", "retries": 0}
        configuration = {"providers": {"azure": row}}
        async with open_session(configuration=configuration, archive=archive) as session:
            conversation = await session.begin("azure/gpt-6.1-sol")
            await conversation.converse("Hi")
            server.replies = [answer_json(body, 401)]
            with pytest.raises(CredentialRefused) as caught:
                await conversation.converse("Again")
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}-1"
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Again" in stored
    for text in (caplog.text, str(caught.value), repr(caught.value), stored.decode("latin-1")):
        assert TOKEN not in text
        assert "header-of-the-app" not in text


async def test_a_source_that_hangs_does_not_keep_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """
import asyncio
from vibe_llms.providers.azure import EntraLogin
async def main():
    try:
        async with asyncio.timeout(2):
            await EntraLogin("azure", "https://ai.azure.com/.default").access()
    except TimeoutError:
        print("left")
asyncio.run(main())
"""
    use_cli(monkeypatch, tmp_path, "exec sleep 9")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "left\n"
    assert time.monotonic() - started < 9
