"""Credentials of AWS through `botocore`: where they come from, and that nobody sees them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials, SSOProvider

from tests.fakes.bedrock import REGION, FakeBedrock
from tests.fakes.bedrock_clients import produce_client, produce_model
from vibe_llms.base import redaction
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    PackageMissing,
    RequestForbidden,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.opening import open_session
from vibe_llms.providers import logins
from vibe_llms.providers.bedrock import package
from vibe_llms.providers.bedrock.model import BedrockModel
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

HI = [UserCanister.from_text("Hi")]
PACKAGE = Credential("bedrock", "package")
ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "IQoJb3JpZ2luX2VjE/token/0123456789=="


class Metadata(Listener):
    """A server of credentials on this machine: that of a container, an instance, or SSO."""

    def __init__(self, answer: Callable[[ReceivedRequest], HttpAnswer]) -> None:
        super().__init__()
        self.produce = answer

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        return self.produce(request)


def answer_json(body: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {"content-type": "application/json"}, [json.dumps(body).encode()])


def issue(number: int = 0, *, minutes: float = 60) -> dict[str, str]:
    """Temporary credentials that end in so many minutes."""
    ends = datetime.now(UTC) + timedelta(minutes=minutes)
    return {
        "AccessKeyId": f"ASIAEXAMPLE{number}",
        "SecretAccessKey": f"{SECRET}{number}",
        "Token": f"{TOKEN}{number}",
        "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "Code": "Success",
    }


def identify(issued: Mapping[str, str]) -> Credentials:
    return Credentials(issued["AccessKeyId"], issued["SecretAccessKey"], issued["Token"])


@pytest.fixture(autouse=True)
def own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file and no metadata service of the machine is read."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def give_keys(monkeypatch: pytest.MonkeyPatch, token: str = "") -> Credentials:
    """The keys are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    return Credentials(ACCESS, SECRET, token or None)


@asynccontextmanager
async def signed_model(**options: Any) -> AsyncIterator[tuple[FakeBedrock, BedrockModel]]:
    """A server that wants signatures, and a model of a row that signs."""
    with FakeBedrock() as server:
        server.identity = Credentials(ACCESS, SECRET)
        model = await produce_model(server.url, credential=PACKAGE, **options)
        try:
            yield server, model
        finally:
            await model.client.close()


@pytest.mark.parametrize("token", ["", TOKEN])
@pytest.mark.parametrize(
    "name",
    [
        "us.anthropic.claude-opus-5",
        "amazon.nova-lite-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123xyz",
    ],
)
async def test_requests_are_signed_with_the_keys_of_the_environment(
    name: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with signed_model(name=name) as (server, model):
        server.identity = give_keys(monkeypatch, token)
        for _ in range(2):
            (said,) = await model.converse(HI)
            assert getattr(said, "text", "") == "Hello."
        assert server.refusals == []
        assert all("AWS4-HMAC-SHA256" in one.headers["authorization"] for one in server.requests)


async def test_another_key_is_noticed_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with signed_model() as (server, model):
        give_keys(monkeypatch)
        server.identity = Credentials(ACCESS, SECRET + "x")
        with pytest.raises(CredentialRefused, match="signature we calculated"):
            await model.converse(HI)


async def test_a_profile_of_the_shared_files_has_keys_and_a_region(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[work]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-3\n")
    async with signed_model(region="", profile="work") as (server, model):
        server.sign = lambda request: _sign(server, request, "eu-west-3")  # type: ignore[method-assign]
        await model.converse(HI)
        assert "/eu-west-3/bedrock/" in server.requests[0].headers["authorization"]


def _sign(server: FakeBedrock, request: ReceivedRequest, region: str) -> str:
    from tests.fakes import bedrock

    assert server.identity is not None
    return bedrock.sign(request, server.identity, region)


async def test_keys_that_were_replaced_are_used_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with signed_model() as (server, model):
        give_keys(monkeypatch)
        await model.converse(HI)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET + "2")
        await model.converse(HI)
        server.identity = Credentials(ACCESS, SECRET + "2")
        monkeypatch.setattr(package, "_STATIC_SECONDS", 0.0)
        await model.converse(HI)


async def test_temporary_credentials_of_a_container_are_renewed_before_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issued: list[dict[str, str]] = []

    def answer(request: ReceivedRequest) -> HttpAnswer:
        assert request.path == "/role"
        issued.append(issue(len(issued), minutes=5 if not issued else 60))
        return answer_json(issued[-1])

    with Metadata(answer) as metadata:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/role")
        async with signed_model() as (server, model):
            server.sign = lambda request: _sign_with(issued, request)  # type: ignore[method-assign]
            for _ in range(3):
                await model.converse(HI)
        # The first ends in five minutes, so it is renewed at once; the next lasts.
        assert len(issued) == 2
        sent = {one.headers["x-amz-security-token"] for one in server.requests}
        assert sent <= {one["Token"] for one in issued}
        assert issued[1]["Token"] in sent


def _sign_with(issued: list[dict[str, str]], request: ReceivedRequest) -> str:
    from tests.fakes import bedrock

    token = request.headers["x-amz-security-token"]
    return bedrock.sign(request, identify(next(one for one in issued if one["Token"] == token)))


def answer_instance(request: ReceivedRequest, issued: Mapping[str, str]) -> HttpAnswer:
    """The metadata service of an instance."""
    if request.path == "/latest/api/token":
        return HttpAnswer(200, {}, [b"metadata-token"])
    if request.path == "/latest/meta-data/iam/security-credentials/":
        return HttpAnswer(200, {}, [b"role"])
    return answer_json(issued)


async def test_an_instance_has_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    issued = issue()
    with Metadata(lambda request: answer_instance(request, issued)) as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
        async with signed_model() as (server, model):
            server.identity = identify(issued)
            await model.converse(HI)
        assert metadata.requests


async def test_a_redirect_of_a_metadata_service_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issued = issue()
    with Metadata(lambda request: answer_instance(request, issued)) as elsewhere:

        def redirect(request: ReceivedRequest) -> HttpAnswer:
            return HttpAnswer(302, {"location": elsewhere.url + request.path}, [b""])

        with Metadata(redirect) as metadata:
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
            async with signed_model() as (server, model):
                with pytest.raises(CredentialMissing, match="no AWS credentials found"):
                    await model.converse(HI)
            assert metadata.requests
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/role")
            async with signed_model() as (server, model):
                with pytest.raises(CredentialMissing):
                    await model.converse(HI)
        assert elsewhere.requests == []
        assert server.requests == []


async def test_no_metadata_service_is_asked_where_no_request_is_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Metadata(lambda request: answer_json({})) as metadata, FakeBedrock() as server:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", server.key)
        token = Credential("bedrock", "package", "AWS_BEARER_TOKEN_BEDROCK")
        for credential in (None, token, Credential("bedrock", "none")):
            client = produce_client(server.url, credential=credential)
            model = await client.access_model("amazon.nova-lite-v1:0")
            model.check(HI, Controls())
            if credential is None or credential.kind != "none":
                await model.converse(HI)
                await client.survey_models()
            await client.close()
        signing = await produce_model(server.url, credential=PACKAGE)
        signing.check(HI, Controls())
        await signing.preview(HI, (), Controls(), _context())
        assert metadata.requests == []
        assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {server.key}"}


def _context() -> Any:
    from vibe_llms.providers.interfaces import TurnContext

    return TurnContext()


def write_sso(folder: Path, monkeypatch: pytest.MonkeyPatch, *, ends: datetime) -> None:
    """A profile that logs in by SSO, and the token of its login."""
    start = "https://example.awsapps.com/start"
    (folder / "config").write_text(
        f"[profile sso]\nsso_start_url = {start}\nsso_region = us-east-1\n"
        "sso_account_id = 123456789012\nsso_role_name = dev\nregion = us-east-1\n"
    )
    cache = folder / "sso"
    cache.mkdir()
    name = hashlib.sha1(start.encode()).hexdigest()
    token = {"accessToken": "sso-access-token-0123456789", "startUrl": start, "region": REGION}
    told = {**token, "expiresAt": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
    (cache / f"{name}.json").write_text(json.dumps(told))
    monkeypatch.setattr(SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(cache))


def issue_roles(issued: Mapping[str, str]) -> HttpAnswer:
    """What the portal of SSO answers."""
    told = {
        "accessKeyId": issued["AccessKeyId"],
        "secretAccessKey": issued["SecretAccessKey"],
        "sessionToken": issued["Token"],
        "expiration": int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000),
    }
    return answer_json({"roleCredentials": told})


async def test_a_login_by_sso_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    issued = issue()
    write_sso(tmp_path, monkeypatch, ends=datetime.now(UTC) + timedelta(hours=1))
    with Metadata(lambda request: issue_roles(issued)) as portal:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", portal.url)
        async with signed_model(profile="sso") as (server, model):
            server.identity = identify(issued)
            await model.converse(HI)
        assert portal.requests[0].path.startswith("/federation/credentials")


async def test_an_expired_login_is_reported_with_the_command_that_renews_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_sso(tmp_path, monkeypatch, ends=datetime.now(UTC) - timedelta(hours=1))
    async with signed_model(profile="sso") as (server, model):
        with pytest.raises(CredentialMissing, match="run: aws sso login --profile sso") as caught:
            await model.converse(HI)
        assert "expired" in str(caught.value)
        assert "[providers.bedrock]" in str(caught.value)
        assert server.requests == []


async def test_without_credentials_the_error_lists_where_they_could_be() -> None:
    async with signed_model() as (server, model):
        with pytest.raises(CredentialMissing, match="AWS_BEARER_TOKEN_BEDROCK"):
            await model.converse(HI)
        assert server.requests == []


async def test_without_credentials_nothing_is_kept_or_sent() -> None:
    with FakeBedrock() as server:
        row = {"base-url": server.url, "credential": "package", "region": REGION}
        async with open_session(configuration={"providers": {"bedrock": row}}) as session:
            conversation = await session.begin("bedrock/amazon.nova-lite-v1:0")
            with pytest.raises(CredentialMissing):
                await conversation.converse("Hi")
            assert await session.survey_conversations() == []
        assert server.requests == []


async def test_half_a_key_and_an_unknown_profile_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with signed_model(profile="nonesuch") as (_, model):
        with pytest.raises(ConfigurationError, match=r"nonesuch.*AWS_PROFILE"):
            await model.converse(HI)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    async with signed_model() as (_, model):
        with pytest.raises(CredentialMissing, match="AWS_SECRET_ACCESS_KEY"):
            await model.converse(HI)


async def test_a_broken_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile\nbroken")
    async with signed_model() as (_, model):
        with pytest.raises(ConfigurationError, match="credentials cannot be loaded"):
            await model.converse(HI)


async def test_an_unknown_region_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    give_keys(monkeypatch)
    for credential in (PACKAGE, None):
        model = await produce_model(
            "https://bedrock-runtime.REGION.amazonaws.com", region="", credential=credential
        )
        if credential is PACKAGE:
            # The profile may have one.
            model.check(HI, Controls())
        with pytest.raises(ConfigurationError, match="AWS_REGION"):
            await model.converse(HI)
        await model.client.close()


def test_a_missing_package_is_reported_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = util.find_spec
    monkeypatch.setattr(
        logins, "find_spec", lambda name: None if name == "botocore" else find(name)
    )
    client = produce_client(credential=PACKAGE)
    with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[bedrock\]'"):
        client.transport.prepare()


async def test_offline_no_credentials_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Metadata(lambda request: answer_json(issue()))
    with asked as metadata, FakeBedrock() as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/role")
        rows = {"bedrock": {"base-url": server.url, "credential": "package", "region": REGION}}
        far = {"module": "vibe_llms.providers.bedrock", "credential": "package", "region": REGION}
        configuration = {"providers": {**rows, "far": far}, "offline": True}
        async with open_session(configuration=configuration) as session:
            conversation = await session.begin("bedrock/amazon.nova-lite-v1:0")
            with pytest.raises(CredentialMissing):
                await conversation.converse("Hi")
            conversation = await session.begin("far/amazon.nova-lite-v1:0")
            with pytest.raises(RequestForbidden):
                await conversation.converse("Hi")
        assert metadata.requests == []


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += [self.format(record), repr(vars(record))]


@pytest.fixture
def records() -> Iterator[list[str]]:
    """All that any logger says, at the lowest level."""
    root, handler, level = logging.getLogger(), _Records(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.seen
    root.setLevel(level)
    root.removeHandler(handler)


async def hold_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[str]
) -> list[str]:
    """What can be seen of the keys in turns whose keys come from a server, some refused."""
    issued = issue()
    seen: list[str] = []
    write_sso(tmp_path, monkeypatch, ends=datetime.now(UTC) + timedelta(hours=1))
    with Metadata(lambda request: issue_roles(issued)) as portal, FakeBedrock() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", portal.url)
        row = {"base-url": server.url, "credential": "package", "profile": "sso"}
        async with open_session(configuration={"providers": {"bedrock": row}}) as one:
            conversation = await one.begin("bedrock/amazon.nova-lite-v1:0")
            server.identity = identify(issued)
            seen.append(repr(await conversation.converse("Hi")))
            server.identity = Credentials("x", "y")
            for words in (
                f"the key {issued['SecretAccessKey']} and {issued['Token']} are wrong",
                "",
            ):
                server.replies = [answer_json({"message": words}, 403)]
                with pytest.raises(CredentialRefused) as caught:
                    await conversation.converse("Again")
                seen += [*traceback.format_exception(caught.value), repr(vars(caught.value))]
            client: Any = conversation.model.client  # type: ignore[attr-defined]
            seen += [repr(client.transport), repr(vars(client)), repr(one.configuration)]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    seen += [path.read_bytes().decode("utf-8", "replace") for path in files]
    return [
        text[:300]
        for text in [*seen, *records]
        if issued["SecretAccessKey"] in text or issued["Token"] in text
    ]


async def test_the_keys_are_to_be_seen_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[str]
) -> None:
    assert await hold_turns(tmp_path, monkeypatch, records) == []
    assert not [text for text in records if "botocore" in text]


async def test_keys_that_are_logged_as_they_arrive_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[str]
) -> None:
    monkeypatch.setattr(logins._LoadingFilter, "filter", lambda self, record: True)
    monkeypatch.setattr(redaction, "_KNOWN", {})
    monkeypatch.setattr(logins, "remember", lambda key: None)
    assert await hold_turns(tmp_path, monkeypatch, records)


IMPORTS = """
import asyncio, json, sys, threading
from vibe_llms import open_session

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "botocore":
            print("imported", threading.current_thread() is threading.main_thread())

async def main(configuration, address, key):
    keys = {"bedrock": key} if key else None
    async with open_session(configuration=json.loads(configuration), keys=keys) as session:
        conversation = await session.begin(address, save=False)
        print("begun")
        print((await conversation.converse("Hi")).text)

sys.meta_path.insert(0, Watch())
asyncio.run(main(*sys.argv[1:]))
print("botocore" in sys.modules)
"""


@pytest.mark.parametrize("credential", ["key", "package"])
def test_the_package_is_imported_for_a_signature_alone_and_off_the_loop(
    credential: str, tmp_path: Path
) -> None:
    with FakeBedrock() as server:
        row = {"base-url": server.url, "credential": credential, "region": REGION}
        keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        key = server.key if credential == "key" else ""
        server.identity = None if key else Credentials(ACCESS, SECRET)
        configuration = json.dumps({"providers": {"bedrock": row}})
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS, configuration, "bedrock/amazon.nova-lite-v1:0", key],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **keys, "AWS_EC2_METADATA_DISABLED": "true"},
        )
    expected = ["begun", "Hello.", "False"]
    if credential == "package":
        expected = ["begun", "imported False", "Hello.", "True"]
    # `find_spec` of the check looks for it too, without an import.
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != "imported True"] == expected
