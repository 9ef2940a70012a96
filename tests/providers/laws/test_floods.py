"""A server that floods us ends at the limits of the row, and blocks no other conversation."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec
import pytest

from tests.fakes.interfaces import (
    ANTHROPIC,
    BEDROCK,
    MAKERS,
    OLLAMA,
    SERVERS,
    HttpInterface,
    Player,
    every_server,
)
from tests.fakes.server import HttpAnswer
from tests.fakes.strict import Events
from tests.faults.heartbeat import PROMISED_SECONDS, steady
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ProviderError, ReplyMalformed, ReplyTimeout
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import Event, MessageFailedEvent, MessageProgressEvent
from vibe_llms.providers.interfaces import TurnContext

HELLO = [UserCanister.from_text("Hi")]
CHUNK = 64 * 1024
MANY = 1_000_000


def begin(interface: HttpInterface) -> bytes:
    """The beginning of a reply, up to its first words."""
    return encode(interface, interface.texts("Hello", " there")[: interface.spoken])


def speak(interface: HttpInterface, text: str = "x") -> bytes:
    """One more piece of text of that reply."""
    return encode(
        interface, interface.texts("Hello", text)[interface.spoken : interface.spoken + 1]
    )


def encode(interface: HttpInterface, events: Events) -> bytes:
    return b"".join(interface.encode(events)).removesuffix(b"data: [DONE]\n\n")


def repeat(part: bytes, times: int = MANY) -> Iterator[bytes]:
    return itertools.repeat(part * max(1, CHUNK // len(part)), times)


def flood(interface: HttpInterface, kind: str) -> Iterable[bytes]:
    """What comes after the beginning of a reply."""
    match kind:
        case "words":
            return repeat(speak(interface))
        case "comments":
            return repeat(b"\n" if interface.lines else b":\n\n")
        case "nothing":
            return repeat(interface.frame(b"{}"))
        case "nonsense":
            return repeat(interface.frame(b"x"))
        case "unknown":
            return repeat(interface.frame(b'{"type":"ping"}'))
        case "returns":
            return repeat(b"\r")
        case "endless":
            return repeat(b"x")
        case "deep":
            return repeat(interface.frame(b'{"type":' + b"[" * 50_000), 20)
        case "digits":
            return repeat(interface.frame(b'{"index":' + b"9" * 200_000 + b"}"), 20)
        case "fraction":
            return repeat(interface.frame(b'{"index":0.' + b"3" * 200_000 + b"}"), 20)
        case "long":
            return iter([speak(interface, "é\\" * 1_000_000)])
        case _:
            raise AssertionError(kind)


KINDS = (
    *("words", "comments", "nothing", "nonsense", "unknown", "returns", "endless"),
    *("deep", "digits", "fraction", "long"),
)


async def hold(
    interface: HttpInterface, answer: HttpAnswer, settings: StreamSettings
) -> tuple[ProviderError | None, list[Event]]:
    """One reply that is flooded, after one that is not: the error that it ends with."""
    reported: list[Event] = []
    with Player([interface.stream(interface.texts("Hi")), answer]) as server:
        model = await interface.produce_model(server, stream=settings)
        await model.converse(HELLO, context=TurnContext())
        try:
            async with asyncio.timeout(60), steady(PROMISED_SECONDS):
                await model.converse(HELLO, context=TurnContext(event_handler=reported.append))
        except ProviderError as error:
            return error, reported
        finally:
            await model.client.close()
    return None, reported


#: A wire of events, one of lines and one of binary frames; the others are read by the same code.
_WIRES = (ANTHROPIC, OLLAMA, BEDROCK)


@pytest.mark.parametrize(
    ("interface", "kind"),
    [
        pytest.param(
            *(interface, kind),
            id=f"{kind}-{name}",
            marks=()
            if interface in _WIRES or (kind in ("words", "nonsense") and name not in MAKERS)
            else pytest.mark.slow,
        )
        for kind in KINDS
        for name, interface in SERVERS.items()
    ],
)
async def test_a_flood_blocks_no_one_and_ends_in_time(interface: HttpInterface, kind: str) -> None:
    chunks = itertools.chain([begin(interface)], flood(interface, kind))
    settings = StreamSettings(retries=0, reply_seconds=0.5, idle_seconds=0.5)
    error, reported = await hold(interface, interface.stream_bytes(cast("Any", chunks)), settings)
    assert error is not None
    failed = [event for event in reported if isinstance(event, MessageFailedEvent)]
    assert len(failed) == 1
    if kind == "words":
        assert isinstance(error, ReplyTimeout)
        assert error.limit == "reply-seconds"


@every_server
async def test_a_reply_has_so_many_bytes_and_what_came_is_kept(interface: HttpInterface) -> None:
    chunks = itertools.chain([begin(interface)], repeat(speak(interface)))
    settings = StreamSettings(retries=2, reply_bytes=300_000)
    error, reported = await hold(interface, interface.stream_bytes(cast("Any", chunks)), settings)
    assert isinstance(error, ReplyMalformed)
    assert str(error).endswith(": the reply has more than 300,000 bytes (reply-bytes)")
    said = "".join(
        getattr(one.chunk, "text", "") for one in reported if isinstance(one, MessageProgressEvent)
    )
    assert said.startswith("Hello")
    assert len(said) > 500


@every_server
async def test_a_whole_reply_has_no_more_bytes_either(interface: HttpInterface) -> None:
    answer = interface.whole(interface.texts("Hello"))
    answer.chunks = cast("Any", repeat(b" "))
    answer.headers.pop("content-length", None)
    error, _ = await hold(interface, answer, StreamSettings(retries=0, reply_bytes=1_000_000))
    assert "more than 1,000,000 bytes (reply-bytes)" in str(error)


@pytest.mark.parametrize("interface", _WIRES, ids=lambda one: one.row)
async def test_a_bomb_is_unpacked_piece_by_piece(interface: HttpInterface) -> None:
    bomb = gzip.compress(begin(interface) + speak(interface) * 400_000)
    answer = interface.stream_bytes([bomb])
    answer.headers["content-encoding"] = "gzip"
    answer.headers.pop("content-length", None)
    error, _ = await hold(interface, answer, StreamSettings(retries=0, reply_bytes=4_000_000))
    assert "reply-bytes" in str(error)


HEADERS = ("retry-after", "retry-after-ms", "x-ratelimit-reset-tokens", "request-id", "location")
WORDS = (
    *("9" * 14_000, "1s" * 7_000, "prompt is too long: " * 700, "[" * 14_000),
    *("maximum context length is 1 or " * 400, "model " * 2_000, " " * 14_000, '"' * 14_000),
)


@every_server
@pytest.mark.parametrize(
    "status", [400, *(pytest.param(one, marks=pytest.mark.slow) for one in (429, 500))]
)
async def test_no_refusal_holds_anybody_up(interface: HttpInterface, status: int) -> None:
    for words in WORDS:
        headers = {name: words.strip() or "0" for name in HEADERS}
        headers |= {"x-ratelimit-remaining-tokens": "0", "content-type": "application/json"}
        body = msgspec.json.encode({"error": {"message": words * 60, "type": words}})
        answer = HttpAnswer(status, headers=headers, chunks=[body])
        error, _ = await hold(interface, answer, StreamSettings(retries=0))
        assert error is not None
        assert len(str(error)) < 10_000
