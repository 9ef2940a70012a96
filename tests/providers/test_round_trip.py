"""One round trip: what is waited for and what is not, what is tried again, what is refused.

`test_stalls.py` (T3) and `test_retries.py` (T5) hold the promises with every interface.
"""

from __future__ import annotations

import asyncio
import email.utils
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.fakes.anthropic import FakeAnthropic, failure, stream
from tests.fakes.clients import produce_model
from tests.fakes.interfaces import Player
from tests.fakes.recordings import ANTHROPIC, ReplayTransport
from tests.fakes.server import HttpAnswer
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import (
    ProviderError,
    ProviderUnreachable,
    RateLimited,
    ReplyMalformed,
    ReplyTimeout,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import (
    Event,
    MessageProgressEvent,
    Notice,
    ignore_events,
)
from vibe_llms.providers import round_trip
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.deltas import Delta, ReplyClosed, TextDelta
from vibe_llms.providers.interfaces import TurnContext, ignore_notices
from vibe_llms.providers.round_trip import (
    ERROR_BODY_BYTES,
    PIECE_BYTES,
    Assimilator,
    RoundTrip,
    run_round_trip,
)
from vibe_llms.providers.transport import Outgoing
from vibe_llms.providers.watch import Watch
from vibe_llms.testing.wires.anthropic_replies import text_reply

HELLO = [UserCanister.from_text("Hi")]


async def check_upload() -> None:
    """While the server takes its time to read, more than the kernels hold is still to be sent."""
    settings = StreamSettings(first_byte_seconds=2.0, retries=0)
    with Player([stream(text_reply("Hello."))]) as server:
        server.upload_pause = 3.0
        model = await produce_model(server.url, stream=settings)
        try:
            await model.converse([UserCanister.from_text("x" * 30_000_000)])
        finally:
            await model.client.close()


async def test_the_upload_of_a_large_request_is_not_waiting_for_its_answer() -> None:
    await check_upload()


async def test_counting_the_upload_as_waiting_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hand_over(
        outgoing: Outgoing, watch: Watch, first_byte_seconds: float
    ) -> AsyncIterator[bytes]:
        watch.expect("first-byte-seconds", first_byte_seconds)
        for part in outgoing.body:
            yield part

    monkeypatch.setattr(round_trip, "_hand_over", hand_over)
    with pytest.raises(ReplyTimeout):
        await check_upload()


def one_by_one() -> HttpAnswer:
    """A reply whose pieces come faster than they are handled, yet never two at once."""
    events = text_reply(*"abcd")
    deltas = [i for i, event in enumerate(events) if event["type"] == "content_block_delta"]
    return stream(events, waits=dict.fromkeys(deltas[1:], 0.15))


async def check_own_time(server: Player) -> None:
    """However long a handler or a reader takes, it is not the provider that is late."""
    settings = StreamSettings(
        first_byte_seconds=0.3, idle_seconds=0.4, reply_seconds=0.5, retries=0
    )

    def linger(event: Event) -> None:
        if isinstance(event, MessageProgressEvent):
            time.sleep(0.2)

    async def hold_back() -> None:
        await asyncio.sleep(0.2)

    model = await produce_model(server.url, stream=settings, event_handler=linger)
    try:
        for context in (
            TurnContext(),
            TurnContext(event_handler=ignore_events, throttle=hold_back),
        ):
            (reply,) = await model.converse(HELLO, context=context)
            assert getattr(reply, "text", "") == "abcd"
    except ReplyTimeout as error:
        raise AssertionError(str(error)) from error
    finally:
        await model.client.close()


async def test_the_time_of_handlers_and_readers_is_their_own() -> None:
    with Player([one_by_one(), one_by_one()]) as server:
        await check_own_time(server)


async def test_counting_the_time_of_handlers_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Watch, "spare", lambda self, seconds, steps=1: None)
    with Player([one_by_one()]) as server, pytest.raises(AssertionError):
        await check_own_time(server)


# Retries.

RETRYING = StreamSettings(first_byte_seconds=1.0, idle_seconds=1.0)


async def test_a_host_that_is_not_found_is_tried_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups: list[object] = []

    def getaddrinfo(host: object, *_: object, **__: object) -> None:
        lookups.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    notices: list[Notice] = []
    model = await produce_model("https://nowhere.invalid", stream=RETRYING)
    with pytest.raises(ProviderUnreachable, match="name resolution"):
        await model.converse(HELLO, context=TurnContext(notify=notices.append))
    assert (len(lookups), len(notices)) == (3, 2)
    await model.client.close()


async def test_a_server_that_speaks_no_tls_is_tried_three_times(
    fake_anthropic: FakeAnthropic,
) -> None:
    url = fake_anthropic.url.replace("http:", "https:")
    model = await produce_model(url, stream=RETRYING)
    with pytest.raises(ProviderUnreachable):
        await model.converse(HELLO)
    assert (fake_anthropic.connections, fake_anthropic.requests) == (3, [])
    await model.client.close()


async def produce_refusals(
    headers: dict[str, str],
) -> tuple[list[Notice], int, BaseException | None]:
    notices: list[Notice] = []
    error: BaseException | None = None
    refusal = failure(429, "rate_limit_error", headers=headers)
    with Player([refusal, stream(text_reply("Hello."))]) as server:
        model = await produce_model(server.url, stream=StreamSettings(retry_wait_seconds=5))
        try:
            await model.converse(HELLO, context=TurnContext(notify=notices.append))
        except RateLimited as raised:
            error = raised
        await model.client.close()
        return notices, len(server.requests), error


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after-ms": "20"}, "0 s"),
        ({"retry-after": "0.11"}, "0.1 s"),
        ({"retry-after": "nonsense", "retry-after-ms": "300"}, "0.3 s"),
        ({"retry-after": email.utils.formatdate(time.time() - 100, usegmt=True)}, "0 s"),
    ],
)
async def test_the_wait_that_the_provider_asks_for_is_kept(
    headers: dict[str, str], wait: str
) -> None:
    (notice,), requests, error = await produce_refusals(headers)
    assert f"retrying in {wait} (" in notice.text
    assert (requests, error) == (2, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "6"},
        {"retry-after-ms": "5001"},
        {"retry-after": email.utils.formatdate(time.time() + 3600, usegmt=True)},
    ],
)
async def test_too_long_a_wait_is_an_error_at_once(headers: dict[str, str]) -> None:
    notices, requests, error = await produce_refusals(headers)
    assert (notices, requests) == ([], 1)
    assert isinstance(error, RateLimited)
    assert error.retry_after is not None
    assert error.retry_after > 5


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_web_page_instead_of_a_reply_says_that_the_address_is_wrong(
    fake_anthropic: FakeAnthropic, streaming: bool
) -> None:
    page = HttpAnswer(200, {"content-type": "text/html; charset=utf-8"}, [b"<html>Welcome</html>"])
    fake_anthropic.replies = [page]
    fake_anthropic.count = page
    model = await produce_model(fake_anthropic.url)
    with pytest.raises(ReplyMalformed, match="base-url"):
        await model.converse(HELLO, context=TurnContext(streaming=streaming))
    with pytest.raises(ReplyMalformed, match="base-url"):
        await model.count_tokens(HELLO)
    await model.client.close()


async def test_an_endless_error_is_read_only_so_far(fake_anthropic: FakeAnthropic) -> None:
    endless = HttpAnswer(400, {}, [b"x" * 65536] * 500)
    fake_anthropic.replies, fake_anthropic.count = [endless], endless
    model = await produce_model(fake_anthropic.url)
    for ask in (model.converse, model.count_tokens):
        with pytest.raises(ProviderError, match="the server answered with status 400"):
            await ask(HELLO)
    await model.client.close()
    await fake_anthropic.settled()
    assert fake_anthropic.closed_by_client == 2


class Plain:
    """Takes every chunk for text; the reply ends with the stream."""

    def feed(self, chunk: bytes) -> Sequence[Delta]:
        return [TextDelta(chunk.decode())]

    def conclude(self) -> Sequence[Delta]:
        return [ReplyClosed("finished")]

    def assimilate(self, body: bytes) -> Sequence[Delta]:
        return [*self.feed(body), *self.conclude()]


async def hold_plainly(
    transport: ReplayTransport,
    settings: StreamSettings,
    produce_assimilator: Callable[[], Assimilator] = Plain,
    **members: Any,
) -> str:
    """The text of a reply; only one attempt is made."""
    trip = RoundTrip(
        provider="row",
        transport=transport,
        settings=msgspec.structs.replace(settings, retries=0),
        produce_assimilator=produce_assimilator,
        read_error=lambda status, headers, body: ProviderError("no", provider="row"),
        notify=ignore_notices,
        **members,
    )
    accumulator = Accumulator(ANTHROPIC.provenance, ignore_events)
    (reply,) = await run_round_trip(trip, Outgoing("POST", "/"), accumulator)
    return str(getattr(reply, "text", ""))


async def test_what_the_end_of_a_stream_adds_is_taken() -> None:
    assert await hold_plainly(ReplayTransport(b"Hello", 2), StreamSettings()) == "Hello"


async def test_readers_are_waited_for_after_each_chunk() -> None:
    pauses: list[None] = []

    async def pause() -> None:
        pauses.append(None)

    transport = ReplayTransport(b"Hello", 2)
    assert await hold_plainly(transport, StreamSettings(), throttle=pause) == "Hello"
    assert len(pauses) == 3


@pytest.mark.parametrize("size", [ERROR_BODY_BYTES + 1, ERROR_BODY_BYTES * 2])
async def test_a_whole_reply_may_be_longer_than_an_error(size: int) -> None:
    transport = ReplayTransport(b"x" * size, ERROR_BODY_BYTES, kind="application/json")
    text = await hold_plainly(transport, StreamSettings(), streaming=False)
    assert len(text) == size
    with pytest.raises(ReplyMalformed, match=r"more than 1,000 bytes \(reply-bytes\)"):
        await hold_plainly(transport, StreamSettings(reply_bytes=1000), streaming=False)


class Leaping(Plain):
    """Every piece that it takes in takes so many seconds, and then something else is to be done."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[int] = []
        self.seen: list[int] = []
        self._seconds, self._passed = seconds, 0.0
        self._loop = asyncio.get_running_loop()
        begun = self._loop.time()
        monkeypatch.setattr(self._loop, "time", lambda: begun + self._passed)

    def feed(self, chunk: bytes) -> Sequence[Delta]:
        self._passed += self._seconds
        self.seen.append(len(self.done))
        self._loop.call_soon(self.done.append, 0)
        return super().feed(chunk)


@pytest.mark.parametrize(("seconds", "seen"), [(60.0, [0, 1, 2]), (0.0, [0, 0, 0])])
async def test_others_get_their_turn_while_a_large_chunk_takes_long(
    seconds: float, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 3 * PIECE_BYTES
    reader = Leaping(seconds, monkeypatch)
    # The time of its pieces counts for no limit.
    settings = StreamSettings(first_byte_seconds=10, idle_seconds=10, reply_seconds=100)
    text = await hold_plainly(ReplayTransport(b"x" * size, size), settings, lambda: reader)
    assert (len(text), reader.seen) == (size, seen)


class Early(Plain):
    """Takes the first chunk for the last one."""

    ending = True


async def test_a_connection_that_breaks_after_an_early_end_loses_nothing() -> None:
    broken = ReplayTransport(b"Hello", 5, end="reset")
    assert await hold_plainly(broken, StreamSettings(), Early) == "Hello"
