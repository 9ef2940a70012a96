"""Sending through an official client: the same bytes, the same replies, none of its retries."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fakes.anthropic import answer_json
from tests.fakes.interfaces import ANTHROPIC, CHAT, RESPONSES, RecordedInterface
from tests.fakes.raw_server import RawServer, say
from tests.fakes.recordings import strip
from tests.fakes.server import HttpAnswer
from tests.faults.leaks import nothing_left
from tests.providers.test_http_faults import EVIL, HELLO, NEXT
from tests.providers.test_http_transport import send
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    ModelUnavailable,
    PackageMissing,
    ProviderOverloaded,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    ReplyTimeout,
)
from vibe_llms.base.redaction import REDACTED, redact
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.events import Notice
from vibe_llms.providers.anthropic.model import BASE_URL as ANTHROPIC_URL
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.openai.model import BASE_URL as OPENAI_URL
from vibe_llms.providers.sdk_transport import OfficialTransport
from vibe_llms.providers.transport import Outgoing

HI = [UserCanister.from_text("Hi")]
ADVICE = {"retry-after-ms": "1"}


@dataclass(frozen=True)
class Official:
    """An interface with its official client, and what that calls its own."""

    interface: RecordedInterface
    package: str
    client: str
    key: str
    base_url: str
    default_url: str

    @property
    def module(self) -> Any:
        return importlib.import_module(self.package)


_OPENAI = ("openai", "AsyncOpenAI", "OPENAI_API_KEY", "OPENAI_BASE_URL", OPENAI_URL)
OFFICIALS = (
    Official(
        ANTHROPIC,
        *("anthropic", "AsyncAnthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ANTHROPIC_URL),
    ),
    Official(RESPONSES, *_OPENAI),
    Official(CHAT, *_OPENAI),
)


@pytest.fixture(params=OFFICIALS, ids=lambda one: one.interface.row)
def official(request: pytest.FixtureRequest) -> Official:
    """One of the official clients."""
    found: Official = request.param
    return found


@pytest.fixture
def server(official: Official, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The strict fake; its key is where the package looks for it, and nowhere else."""
    with official.interface.serve() as server:
        monkeypatch.setenv(official.key, server.key)
        yield server


@asynccontextmanager
async def opened(official: Official, url: str, **options: Any) -> AsyncIterator[Any]:
    """A model that is reached through the package, its client closed at the end."""
    credential = Credential(official.interface.row, "package")
    model = await official.interface.produce_model(url, credential=credential, **options)
    assert isinstance(model.client.transport, OfficialTransport)
    try:
        yield model
    finally:
        await model.client.close()


@pytest.mark.parametrize("streaming", [True, False])
async def test_both_transports_send_the_same_and_hear_the_same(
    official: Official, server: Any, streaming: bool
) -> None:
    def speak(word: str) -> str:
        """Speak."""
        return word

    interface = official.interface
    said: list[Canister] = [SupervisorCanister.from_text("Be brief."), *HI]
    server.replies = [interface.thoughts("Let me see.", "é😀", '{"word":"a"}') for _ in range(2)]
    context, tools = TurnContext(streaming=streaming), [Invoker.from_function(speak)]
    async with opened(official, server.url) as model:
        theirs = await model.converse(said, tools, context=context)
    model = await interface.produce_model(server)
    ours = await model.converse(said, tools, context=context)
    await model.client.close()
    first, second = server.requests
    assert first.body == second.body
    for name in ("authorization", "content-type", "content-length", "anthropic-version"):
        assert first.headers.get(name) == second.headers.get(name)
    assert strip(theirs) == strip(ours)
    assert server.refusals == []


async def check_one_attempt(official: Official, server: Any) -> None:
    """A failure comes out at once, as the server reported it, of a reply and of a list."""
    server.respond = lambda request: official.interface.failures["overloaded"](headers=ADVICE)
    async with opened(official, server.url) as model:
        with pytest.raises(ProviderOverloaded) as caught:
            await model.converse(HI)
        assert caught.value.request_id == "req_1"
        with pytest.raises(ProviderOverloaded):
            await model.client.survey_models()
    assert len(server.heads) == 2


async def test_the_packages_own_retries_are_off(official: Official, server: Any) -> None:
    await check_one_attempt(official, server)


async def test_the_packages_own_retries_would_be_detected(
    official: Official, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(official.module, official.client)

    def produce(**options: Any) -> Any:
        return original(**{**options, "max_retries": 2})

    monkeypatch.setattr(official.module, official.client, produce)
    with pytest.raises((AssertionError, ProviderUnreachable)):
        await check_one_attempt(official, server)


async def test_a_connection_that_is_lost_is_reported_as_such(
    official: Official, server: Any
) -> None:
    server.replies = [HttpAnswer(drop="close")]
    async with opened(official, server.url) as model:
        with pytest.raises(ProviderUnreachable) as caught:
            await model.converse(HI)
    assert isinstance(caught.value.__cause__, official.module.APIConnectionError)
    assert len(server.heads) == 1


async def test_retries_are_ours_and_one_layer_only(official: Official, server: Any) -> None:
    overloaded = official.interface.failures["overloaded"]
    server.replies = [overloaded(headers=ADVICE) for _ in range(9)]
    reported: list[Notice] = []
    async with opened(official, server.url, stream=StreamSettings(retries=2)) as model:
        with pytest.raises(ProviderOverloaded):
            await model.converse(HI, context=TurnContext(notify=reported.append))
    assert len(server.requests) == 3
    assert [notice.subject for notice in reported] == ["retry", "retry"]


async def check_redirect(official: Official, server: Any, status: int) -> None:
    with official.interface.serve() as elsewhere:
        location = {"location": f"{elsewhere.url}/elsewhere", "content-length": "0"}
        server.replies = [HttpAnswer(status, location)]
        async with opened(official, server.url) as model:
            with pytest.raises(ReplyMalformed, match="redirects to"):
                await model.converse(HI)
        assert elsewhere.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(official: Official, server: Any, status: int) -> None:
    await check_redirect(official, server, status)


async def test_a_redirect_that_is_followed_would_be_detected(
    official: Official, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = official.module.DefaultAsyncHttpxClient

    def produce(**options: Any) -> Any:
        return original(**{**options, "follow_redirects": True})

    monkeypatch.setattr(official.module, "DefaultAsyncHttpxClient", produce)
    with pytest.raises((AssertionError, ModelUnavailable, CredentialRefused)):
        await check_redirect(official, server, 302)


async def test_a_cut_reply_is_a_failure(official: Official, server: Any) -> None:
    chunks = official.interface.encode(official.interface.texts("Hel", "lo"))
    size = len(b"".join(chunks[: official.interface.spoken]))
    server.replies = [official.interface.stream_bytes(chunks, cut=size)]
    async with opened(official, server.url) as model:
        with pytest.raises(ReplyCut):
            await model.converse(HI)


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_limits_are_ours(official: Official, server: Any, streaming: bool) -> None:
    server.replies = [official.interface.stream(official.interface.texts("a"), stall=-1)]
    whole = 30.0 if streaming else 0.4
    limits = StreamSettings(retries=0, first_byte_seconds=0.2, reply_seconds=whole)
    async with opened(official, server.url, stream=limits) as model:
        with pytest.raises(ReplyTimeout) as caught:
            await model.converse(HI, context=TurnContext(streaming=streaming))
    assert caught.value.limit == ("first-byte-seconds" if streaming else "reply-seconds")


async def test_a_server_that_takes_no_bytes_is_reported_by_its_limit(
    official: Official, server: Any
) -> None:
    server.upload_pause = 10
    limits = StreamSettings(retries=0, idle_seconds=0.3)
    async with opened(official, server.url, stream=limits) as model:
        with pytest.raises(ReplyTimeout) as caught:
            await model.converse([UserCanister.from_text("long " * 4_000_000)])
    assert caught.value.limit == "idle-seconds"
    assert isinstance(caught.value.__cause__, official.module.APITimeoutError)


async def test_cancelling_a_request_leaves_nothing_behind(official: Official, server: Any) -> None:
    events = official.interface.texts("a")
    size = len(b"".join(official.interface.encode(events)))
    server.replies = [official.interface.stream(events, stall=place) for place in (-1, size // 2)]
    async with nothing_left():
        async with opened(official, server.url) as model:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await model.converse(HI)
            (said,) = await model.converse(HI)
            assert said.ending is not None
        await server.settled()


async def test_a_client_may_be_closed_twice_and_used_again(official: Official, server: Any) -> None:
    async with opened(official, server.url) as model:
        await model.client.close()
        await model.converse(HI)
        await model.client.close()
        await model.client.close()
        await model.converse(HI)
    assert server.connections == 2


async def test_many_streams_at_once_have_a_connection_each(official: Official, server: Any) -> None:
    number = 120
    server.replies = [
        official.interface.stream(official.interface.texts("a"), await_requests=number)
        for _ in range(number)
    ]
    async with opened(official, server.url) as model, asyncio.timeout(60):
        await asyncio.gather(*(model.converse(HI) for _ in range(number)))
    assert server.connections == number


async def test_the_key_that_the_package_found_is_not_to_be_shown(
    official: Official, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{official.interface.row}-found-by-the-package"
    monkeypatch.setenv(official.key, key)
    server.key = key
    async with opened(official, server.url) as model:
        await model.converse(HI)
    assert redact(f"the key {key}") == f"the key {REDACTED}"


async def test_without_the_package_the_error_says_what_to_run(
    official: Official, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, official.package, None)
    async with opened(official, "http://127.0.0.1:9") as model:
        with pytest.raises(PackageMissing) as caught:
            await model.converse(HI)
    assert caught.value.package == official.package
    assert caught.value.command == f"python -m pip install 'vibe-llms[{official.package}]'"
    row = model.provider
    assert f'credential = "package" of [providers.{row}]' in str(caught.value)


async def test_without_credentials_the_error_says_where_they_are_missing(
    official: Official, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(official.key)
    async with opened(official, server.url) as model:
        place = rf"\[providers.{model.provider}\], key 'credential'"
        with pytest.raises(CredentialMissing, match=place):
            await model.converse(HI)
    assert server.requests == []


async def test_the_environment_of_the_package_gives_the_address(
    official: Official, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(official.base_url, server.url)
    # A row that names no address leaves it to the package.
    async with opened(official, official.default_url) as model:
        await model.converse(HI)
    assert len(server.requests) == 1


@pytest.mark.parametrize("address", ["nonsense", "ftp://example.org", "http://", "http://[::1"])
async def test_an_address_that_is_none_is_a_wrong_configuration(
    official: Official, server: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(official, address) as model:
        with pytest.raises(ConfigurationError, match="address") as caught:
            await model.converse(HI)
        assert (caught.value.table, caught.value.key) == (
            f"providers.{model.provider}",
            "base-url",
        )
    monkeypatch.setenv(official.base_url, address)
    with pytest.raises(ConfigurationError):
        async with opened(official, official.default_url) as model:
            await model.converse(HI)


async def test_a_wrong_key_is_refused_by_the_server(
    official: Official, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(official.key, "sk-wrong-0123456789")
    async with opened(official, server.url) as model:
        with pytest.raises(CredentialRefused):
            await model.converse(HI)


async def test_a_large_answer_without_success_is_read_to_its_end(
    official: Official, server: Any
) -> None:
    body = {"error": {"type": "overloaded_error", "message": "m" * 100_000}}
    server.replies = [answer_json(body, status=529)] * 2
    async with opened(official, server.url) as model:
        for _ in range(2):
            with pytest.raises(ProviderOverloaded, match="mmm"):
                await model.converse(HI)
    assert server.connections == 1


async def test_what_follows_a_reply_is_not_the_next_one(
    official: Official, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(official.key, "sk-something-0123456789")
    async with (
        RawServer(say(HELLO + EVIL), say(NEXT)) as server,
        opened(official, server.url) as model,
    ):
        transport, outgoing = model.client.transport, Outgoing("POST", "/x", [b"{}"])
        assert (await send(transport, outgoing))[2] == b"hello"
        assert (await send(transport, outgoing))[2] == b"next"
        assert len(server.peers) == 2


@pytest.mark.parametrize("value", ["secret\r\nx: y", "secret\0", "secret\n", "secr\u00e9t"])
async def test_a_header_that_cannot_be_sent_is_named_without_its_value(
    official: Official, server: Any, value: str
) -> None:
    async with opened(official, server.url) as model:
        transport: Any = model.client.transport
        transport._headers = {"x-mine": value}
        with pytest.raises(ConfigurationError, match="x-mine") as caught:
            await model.converse(HI)
        assert "secr" not in str(caught.value)
    assert server.requests == []
