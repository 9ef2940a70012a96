"""Sending through the official client: the same bytes, the same replies, none of its retries."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.fakes.anthropic import (
    KEY,
    FakeAnthropic,
    answer_json,
    failure,
    reply,
    stream,
    text_block,
    text_reply,
    thinking_block,
    tool_block,
)
from tests.fakes.clients import produce_model
from tests.fakes.recordings import strip
from tests.fakes.server import Answer
from tests.faults.leaks import nothing_left
from vibe_llms.configuration import StreamSettings
from vibe_llms.credentials import Credential
from vibe_llms.events import Notice
from vibe_llms.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    PackageMissing,
    ProviderOverloaded,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    ReplyTimeout,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.providers.anthropic.client import BASE_URL, AnthropicModel
from vibe_llms.providers.anthropic.package import PackageTransport
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.redaction import REDACTED, redact

HI = [UserCanister.from_text("Hi")]
PACKAGE = Credential("anthropic", "package")


def add(a: int) -> int:
    """Add."""
    return a


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key stands where the package looks for it, and nowhere else."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AnthropicModel]:
    """A model that is reached through the package, its client closed at the end."""
    model = await produce_model(url, credential=PACKAGE, **options)
    try:
        yield model
    finally:
        await model.client.close()


@pytest.mark.parametrize("streaming", [True, False])
async def test_both_transports_send_the_same_and_hear_the_same(
    fake_anthropic: FakeAnthropic, streaming: bool
) -> None:
    said: list[Canister] = [SupervisorCanister.from_text("Be brief."), *HI]
    events = reply(
        thinking_block(0, "Let me ", "see."),
        text_block(1, "é", "😀"),
        tool_block(2, "add", '{"a"', ":1}"),
        stop_reason="tool_use",
    )
    fake_anthropic.replies = [events, events]
    heard = []
    for credential in (PACKAGE, None):
        model = await produce_model(fake_anthropic.url, credential=credential, beta=["a-1", "b_2"])
        assert isinstance(model.client.transport, PackageTransport) == (credential is PACKAGE)
        tools = [Invoker.from_function(add)]
        heard.append(await model.converse(said, tools, context=TurnContext(streaming=streaming)))
        await model.client.close()
    theirs, ours = fake_anthropic.requests
    assert theirs.body == ours.body
    for name in ("authorization", "anthropic-version", "anthropic-beta", "content-type"):
        assert theirs.headers[name] == ours.headers[name]
    assert strip(heard[0]) == strip(heard[1])
    assert fake_anthropic.refusals == []


async def test_models_are_listed_and_tokens_counted_through_the_package(
    fake_anthropic: FakeAnthropic,
) -> None:
    fake_anthropic.models = [{"id": "claude-opus-5"}, {"id": "claude-haiku-4-5"}]
    fake_anthropic.page_size = 1
    async with opened(fake_anthropic.url) as model:
        models = await model.client.survey_models()
        assert [one.name for one in models] == ["claude-opus-5", "claude-haiku-4-5"]
        assert (await model.count_tokens(HI)).tokens == 7


async def check_one_attempt(server: FakeAnthropic) -> None:
    """A failure comes out at once, told as the server told it."""
    server.replies = [failure(529, "overloaded_error", headers={"retry-after-ms": "1"})]
    async with opened(server.url) as model:
        with pytest.raises(ProviderOverloaded) as caught:
            await model.converse(HI)
    assert (caught.value.status, caught.value.request_id) == (529, "req_1")
    assert len(server.heads) == 1


async def test_the_packages_own_retries_are_off(fake_anthropic: FakeAnthropic) -> None:
    await check_one_attempt(fake_anthropic)


async def test_the_packages_own_retries_would_be_found_out(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = anthropic.AsyncAnthropic

    def produce(**options: Any) -> anthropic.AsyncAnthropic:
        return original(**{**options, "max_retries": 2})

    monkeypatch.setattr(anthropic, "AsyncAnthropic", produce)
    with pytest.raises((AssertionError, ProviderUnreachable)):
        await check_one_attempt(fake_anthropic)


async def test_a_connection_that_is_lost_is_told_as_such(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.replies = [Answer(drop="close")]
    async with opened(fake_anthropic.url) as model:
        with pytest.raises(ProviderUnreachable) as caught:
            await model.converse(HI)
    assert isinstance(caught.value.__cause__, anthropic.APIConnectionError)
    assert len(fake_anthropic.heads) == 1


async def test_retries_are_ours_and_one_layer_only(fake_anthropic: FakeAnthropic) -> None:
    advice = {"retry-after-ms": "1"}
    fake_anthropic.replies = [failure(529, "overloaded_error", headers=advice) for _ in range(9)]
    told: list[Notice] = []
    async with opened(fake_anthropic.url, stream=StreamSettings(retries=2)) as model:
        with pytest.raises(ProviderOverloaded):
            await model.converse(HI, context=TurnContext(notify=told.append))
    assert len(fake_anthropic.requests) == 3
    assert [notice.subject for notice in told] == ["retry", "retry"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(fake_anthropic: FakeAnthropic, status: int) -> None:
    with FakeAnthropic() as elsewhere:
        location = {"location": f"{elsewhere.url}/v1/messages", "content-length": "0"}
        fake_anthropic.replies = [Answer(status, location)]
        async with opened(fake_anthropic.url) as model:
            with pytest.raises(ReplyMalformed, match="redirects to"):
                await model.converse(HI)
        assert elsewhere.connections == 0


async def test_a_cut_reply_is_a_failure(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.replies = [stream(text_reply("Hel", "lo"), cut=600)]
    async with opened(fake_anthropic.url) as model:
        with pytest.raises(ReplyCut):
            await model.converse(HI)


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_limits_are_ours(fake_anthropic: FakeAnthropic, streaming: bool) -> None:
    fake_anthropic.replies = [stream(text_reply("a"), stall=-1)]
    limits = StreamSettings(retries=0, first_byte_seconds=0.2, reply_seconds=0.4)
    async with opened(fake_anthropic.url, stream=limits) as model:
        with pytest.raises(ReplyTimeout) as caught:
            await model.converse(HI, context=TurnContext(streaming=streaming))
    assert caught.value.limit == ("first-byte-seconds" if streaming else "reply-seconds")


async def test_a_server_that_takes_no_bytes_is_told_by_its_limit(
    fake_anthropic: FakeAnthropic,
) -> None:
    fake_anthropic.upload_pause = 10
    limits = StreamSettings(retries=0, idle_seconds=0.3)
    async with opened(fake_anthropic.url, stream=limits) as model:
        with pytest.raises(ReplyTimeout) as caught:
            await model.converse([UserCanister.from_text("long " * 4_000_000)])
    assert caught.value.limit == "idle-seconds"
    assert isinstance(caught.value.__cause__, anthropic.APITimeoutError)


async def test_cancelling_a_request_leaves_nothing_behind(fake_anthropic: FakeAnthropic) -> None:
    events = text_reply("a")
    fake_anthropic.replies = [stream(events, stall=-1), stream(events, stall=300)]
    async with nothing_left():
        async with opened(fake_anthropic.url) as model:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await model.converse(HI)
            (said,) = await model.converse(HI)
            assert said.ending is not None
        await fake_anthropic.settled()


async def test_a_client_may_be_closed_twice_and_used_again(fake_anthropic: FakeAnthropic) -> None:
    async with opened(fake_anthropic.url) as model:
        await model.client.close()
        await model.converse(HI)
        await model.client.close()
        await model.client.close()
        await model.converse(HI)
    assert fake_anthropic.connections == 2


async def test_without_the_package_the_error_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    async with opened("http://127.0.0.1:9") as model:
        with pytest.raises(PackageMissing) as caught:
            await model.converse(HI)
    assert caught.value.package == "anthropic"
    assert caught.value.command == "python -m pip install 'vibe-llms[anthropic]'"
    assert 'credential = "package" of [providers.anthropic]' in str(caught.value)


async def test_without_credentials_the_error_says_where_they_are_missing(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    async with opened(fake_anthropic.url) as model:
        with pytest.raises(CredentialMissing, match=r"\[providers.anthropic\], key 'credential'"):
            await model.converse(HI)
    assert fake_anthropic.requests == []


async def test_a_profile_that_is_not_there_is_an_error_of_ours(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_PROFILE", "missing")
    async with opened(fake_anthropic.url) as model:
        with pytest.raises(CredentialMissing, match="missing") as caught:
            await model.converse(HI)
    assert isinstance(caught.value.__cause__, anthropic.CredentialsError)


async def test_the_environment_of_the_package_gives_address_and_token(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", fake_anthropic.url)
    # A row that names no address leaves it to the package.
    async with opened(BASE_URL) as model:
        await model.converse(HI)
    assert len(fake_anthropic.requests) == 1


def write_profile(folder: Path, url: str, token: str) -> None:
    """A profile on disk, as the package's own login writes it."""
    files = {
        "configs/default.json": {"base_url": url, "authentication": {"type": "user_oauth"}},
        "credentials/default.json": {"type": "oauth_token", "access_token": token},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
        path.chmod(0o600)


async def test_a_profile_on_disk_gives_address_and_token(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    fake_anthropic.key = "token-of-a-profile"
    write_profile(tmp_path, fake_anthropic.url, fake_anthropic.key)
    async with opened(BASE_URL, beta=["mine"]) as model:
        await model.converse(HI)
    (request,) = fake_anthropic.requests
    assert request.headers["anthropic-beta"].startswith("mine,oauth-")
    assert redact("token-of-a-profile") == REDACTED


@pytest.mark.parametrize("address", ["nonsense", "ftp://example.org", "http://", "http://[::1"])
async def test_an_address_that_is_none_is_a_wrong_configuration(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(address) as model:
        with pytest.raises(ConfigurationError, match="address") as caught:
            await model.converse(HI)
    assert (caught.value.table, caught.value.key) == ("providers.anthropic", "base-url")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    async with opened(BASE_URL) as model:
        with pytest.raises(ConfigurationError):
            await model.converse(HI)


async def test_a_wrong_key_is_refused_by_the_server(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-wrong-0123456789")
    async with opened(fake_anthropic.url) as model:
        with pytest.raises(CredentialRefused):
            await model.converse(HI)


async def test_a_large_answer_without_success_is_read_to_its_end(
    fake_anthropic: FakeAnthropic,
) -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "m" * 100_000}}
    fake_anthropic.replies = [answer_json(body, status=529)] * 2
    async with opened(fake_anthropic.url) as model:
        for _ in range(2):
            with pytest.raises(ProviderOverloaded, match="mmm"):
                await model.converse(HI)
    assert fake_anthropic.connections == 1
