"""No request holds the event loop: counts are bounded, and work on long ones runs in threads."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from asyncio import events
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from tests.server.conftest import serving
from vibe_llms.base.offloading import LOOP_MESSAGES
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages import codecs, identities
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.requests import HistoryCache
from vibe_llms.server import chat_requests, json_bodies, reading, request_limits
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.json_bodies import decode_large

MODEL = "scripted/said"
SCRIPT = '[[replies]]\nwhen = ".*"\nparts = [{ text = "Yes." }]\n'


def chat(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": messages, **more}


def responses(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": messages, **more}


def messages(said: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": said, "max_tokens": 10, **more}


DIALECTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/responses/input_tokens": responses,
    "/v1/messages": messages,
    "/v1/messages/count_tokens": lambda said, **more: {"model": MODEL, "messages": said, **more},
    f"/openai/deployments/{MODEL}/chat/completions": lambda said, **more: {
        "messages": said,
        **more,
    },
}


def part_of(path: str) -> dict[str, str]:
    return {"type": "input_text" if "responses" in path else "text", "text": "Hi"}


def tool_of(path: str, number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    if "messages" in path:
        return {"name": f"t{number}", "input_schema": schema}
    if "responses" in path:
        return {"type": "function", "name": f"t{number}", "parameters": schema}
    return {"type": "function", "function": {"name": f"t{number}", "parameters": schema}}


def scripted(home: Path) -> dict[str, Any]:
    home.mkdir(exist_ok=True)
    (home / "said.toml").write_text(SCRIPT)
    return {"providers": {"scripted": {"scripts": {"said": str(home / "said.toml")}}}}


LIMITS = {"request-messages": 20, "request-parts": 30, "request-tools": 10}


@pytest.mark.parametrize("path", DIALECTS)
async def test_a_request_with_too_many_messages_parts_or_tools_is_refused_by_name(
    home: Path, path: str
) -> None:
    make = DIALECTS[path]
    said = [{"role": "user", "content": "Hi"}]
    cases = {
        "request-messages": make(said * 21),
        "request-parts": make([{"role": "user", "content": [part_of(path)] * 31}]),
        "request-tools": make(said, tools=[tool_of(path, number) for number in range(11)]),
    }
    async with serving(home, **scripted(home), server=LIMITS) as served, served.http() as client:
        for key, body in cases.items():
            answered = await client.post(path, json=body)
            assert answered.status_code == 413, answered.text
            error = answered.json()["error"]
            message = error["message"]
            assert key in message
            assert f"{LIMITS[key]:,}" in message
            member = error["param"] if "param" in error else message.partition(":")[0]
            assert member in ("messages", "input", "tools")
            assert f"{member}: {member}" not in message
        allowed = make([*said * 19, {"role": "user", "content": [part_of(path)] * 30}])
        assert (await client.post(path, json=allowed)).status_code == 200


@pytest.mark.parametrize("path", DIALECTS)
async def test_more_text_than_allowed_is_refused_wherever_it_stands(home: Path, path: str) -> None:
    make, name = DIALECTS[path], "text" if path != "/v1/responses" else "input_text"
    half, limits = "x" * 500, {"request-characters": 999}
    parts = [{"type": name, "text": half}, {"type": name, "text": half}]
    async with serving(home, **scripted(home), server=limits) as served, served.http() as client:
        for said in (
            [{"role": "user", "content": half * 2}],
            [{"role": "user", "content": parts}],
            [{"role": "user", "content": half}] * 2,
        ):
            answered = await client.post(path, json=make(said))
            assert answered.status_code == 413, answered.text
            message = answered.json()["error"]["message"]
            assert "1,000 characters of text, and the limit is 999 (request-characters)" in message
        allowed = make([{"role": "user", "content": half}])
        assert (await client.post(path, json=allowed)).status_code == 200


async def test_a_run_with_more_text_than_allowed_is_refused(home: Path) -> None:
    limits = {"request-characters": 9}
    async with serving(home, **scripted(home), server=limits) as served, served.http() as client:
        answered = await client.post("/api/runs", json={"prompt": "ten letter", "model": "said"})
    assert answered.status_code == 413, answered.text
    assert "request-characters" in answered.text


async def test_a_long_body_is_not_hashed_on_the_loop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    read_key = HttpExchange._read_key

    def read(exchange: HttpExchange, body: bytes) -> Any:
        threads.append(threading.get_ident())
        return read_key(exchange, body)

    monkeypatch.setattr(HttpExchange, "_read_key", read)
    async with serving(home, **scripted(home)) as served, served.http() as client:
        for text in ("short", "x" * 2_000_000):
            answered = await client.post(
                "/v1/chat/completions",
                json=chat([{"role": "user", "content": text}]),
                headers={"Idempotency-Key": str(len(text))},
            )
            assert answered.status_code == 200, answered.text
    assert [one == threading.get_ident() for one in threads] == [True, False]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most messages that one step of the event loop reads, makes or encodes."""
    main, most, current = threading.get_ident(), dict[str, int](), dict[str, int]()

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*values: Any, **named: Any) -> Any:
            if threading.get_ident() == main:
                current[name] = current.get(name, 0) + 1
            return function(*values, **named)

        return counted

    for module, name in (
        (chat_requests, "read_message"),
        (request_limits, "count_items"),
        (codecs, "repair_canister"),
        (codecs, "encode_canister"),
        (identities, "produce_identity"),
        (reading, "decode_large"),
    ):
        monkeypatch.setattr(module, name, count(name, getattr(module, name)))
    monkeypatch.setattr("vibe_llms.conversations.prompts.repair_canister", codecs.repair_canister)
    monkeypatch.setattr("vibe_llms.runs.interfaces.encode_canister", codecs.encode_canister)
    run = events.Handle._run

    def step(handle: events.Handle) -> None:
        current.clear()
        run(handle)
        for name, number in current.items():
            most[name] = max(most.get(name, 0), number)

    monkeypatch.setattr(events.Handle, "_run", step)
    return most


@pytest.mark.parametrize("path", DIALECTS)
async def test_no_step_of_the_loop_works_on_all_messages_of_a_long_request(
    home: Path, path: str, steps: dict[str, int]
) -> None:
    said = [
        {"role": ("user", "assistant")[number % 2], "content": f"Number {number}."}
        for number in range(3001)
    ]
    async with serving(home, **scripted(home)) as served, served.http() as client:
        answered = await client.post(path, json=DIALECTS[path](said))
        assert answered.status_code == 200, answered.text
    assert {name: most for name, most in steps.items() if most > 600} == {}
    assert not steps.get("decode_large"), "a long body is decoded in a thread"


class Part(Struct):
    text: str


class Frozen(Struct, frozen=True):
    text: str


class Body(Struct):
    parts: list[Part | None] = []
    frozen: Frozen | None = None
    members: dict[str, Any] = {}
    raw: Raw = Raw(b"null")
    number: int = 0


DECODER = msgspec.json.Decoder(Body)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take bodies of a few kilobytes as large ones."""
    monkeypatch.setattr(json_bodies, "WHOLE_BYTES", 2000)
    monkeypatch.setattr(json_bodies, "PIECE_BYTES", 1000)
    monkeypatch.setattr(json_bodies, "MOST_VALUES", 1000)


HARD = ["é€😀", 'say "yes"', "C:\\\\", "\n\t\x01", "\\", '\\"', "😀"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("text", [*HARD, "".join(HARD), "plain"])
@pytest.mark.parametrize("shift", range(14))
def test_a_large_body_is_decoded_as_a_small_one_is(text: str, ascii_only: bool, shift: int) -> None:
    long = "x" * shift + text * (2500 // len(text))
    value = {
        "parts": [{"text": long}, None, {"text": "short"}, {"text": "a" + long}],
        "frozen": {"text": long},
        "members": {"deep": [[{"a": long}]], long: 1},
        "raw": {"b": [long, "short"]},
        "number": 3,
    }
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert len(body) > 10_000
    found = decode_large(DECODER, body)
    assert found == DECODER.decode(body)
    assert msgspec.json.decode(found.raw) == value["raw"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "body",
    [
        b'{"members": {"a": "' + b"x" * 6000,
        b'{"members": {"a": "' + b"x" * 6000 + b"\\",
        b'{"members": {"a": "' + b"x" * 6000 + b'\\ud83d"}}',
        b'{"members": {"a": "' + b"x" * 6000 + b"\\ud83d\\n" + b"x" * 6000 + b'"}}',
        b'{"members": {"a": "' + b"\x80" * 6000 + b'"}}',
        b'{"members": {"a": "' + b"x\n" * 6000 + b'"}}',
        b'{"members": {"a": ' + b"x" * 6000 + b"}}",
        b'"' + b"x" * 6000 + b'"',
        b"[" * 900 + b" " * 6000,
    ],
)
def test_a_large_body_that_is_not_valid_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_large(DECODER, body)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "values",
    ['{"a":"b"},' * 2000, "1," * 2000, "[" * 2000, '"",' * 2000, "{}," * 2000],
)
def test_a_body_of_very_many_values_is_refused_before_they_are_made(values: str) -> None:
    body = f'{{"members": {{"a": [{values[:-1]}]}}}}'.encode()
    with pytest.raises(Rejected, match="1,000 values"):
        decode_large(DECODER, body)


@pytest.mark.usefixtures("small")
def test_a_long_text_is_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    decode = msgspec.json.decode

    def count(data: bytes, **named: Any) -> Any:
        pieces.append(len(data))
        return decode(data, **named)

    monkeypatch.setattr(msgspec.json, "decode", count)
    decode_large(DECODER, json.dumps({"members": {"a": "é\n" * 10_000}}).encode())
    assert len(pieces) > 20
    assert max(pieces) <= 1002


@pytest.mark.parametrize("size", [0, 1, 2, 3, 196_608, 196_607, 1_000_001])
def test_base64_in_slices_is_what_it_is_whole(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    encoded = base64.b64encode(data[:size]).decode()
    assert reading.read_base64(encoded, "x") == data[:size]
    for wrong in (encoded + "=", encoded[:-1] + "!", "AA==" + encoded + "AAAA" * 100_000):
        if size > 3:
            with pytest.raises(Rejected):
                reading.read_base64(wrong, "x")


async def test_a_provider_encodes_a_long_history_in_slices() -> None:
    steps, added = [0], 0

    class History:
        def add(self, canister: Canister, texts: object) -> Sequence[Notice]:
            nonlocal added
            added += 1
            steps[-1] += 1
            return ()

    async def tick() -> None:
        while added < 2000:
            steps.append(0)
            await asyncio.sleep(0)

    cache: HistoryCache[Any] = HistoryCache()
    ticking = asyncio.create_task(tick())
    said = [UserCanister.from_text(f"Number {number}.") for number in range(2000)]
    await cache.extend(said, TurnContext(), History, lambda _: None)
    await ticking
    assert sum(steps) == 2000
    assert max(steps) <= LOOP_MESSAGES


async def test_the_schemas_of_many_tools_are_made_to_fit_in_slices() -> None:
    made, between = list[int](), list[int]()

    def fit(some: Sequence[Invoker]) -> Sequence[Invoker]:
        made.append(len(some))
        return some

    async def tick() -> None:
        while sum(made) < 1000:
            between.append(sum(made))
            await asyncio.sleep(0)

    tools = [Invoker.from_declaration(f"tool_{number}", {}) for number in range(1000)]
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    cache: HistoryCache[Any] = HistoryCache()
    assert await cache.fit_tools(tools, fit) == tuple(tools)
    await ticking
    assert max(made) <= 200
    assert len({*between}) >= 5
    # They are the same the next time.
    await cache.fit_tools(tools, fit)
    assert sum(made) == 1000


async def test_a_message_of_many_parts_is_encoded_in_a_thread() -> None:
    threads: list[int] = []

    class History:
        def add(self, canister: Canister, texts: object) -> Sequence[Notice]:
            threads.append(threading.get_ident())
            return ()

    few = UserCanister((TextualContent("a"),) * LOOP_MESSAGES)
    many = UserCanister((TextualContent("a"),) * (LOOP_MESSAGES + 1))
    cache: HistoryCache[Any] = HistoryCache()
    await cache.extend([few, many], TurnContext(), History, lambda _: None)
    assert [one == threading.get_ident() for one in threads] == [True, False]


async def test_lists_in_the_arguments_of_a_call_are_no_parts(home: Path) -> None:
    used = {"type": "tool_use", "id": "a", "name": "add", "input": {"rows": [[0] * 10] * 10}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "45"}
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    async with serving(home, **scripted(home), server=LIMITS) as served, served.http() as client:
        reply = await client.post("/v1/messages", json=messages(said))
    assert reply.status_code == 200, reply.text


async def test_tools_in_namespaces_and_items_count(home: Path) -> None:
    path = "/v1/responses"
    tools = [tool_of(path, number) for number in range(11)]
    said = [{"role": "user", "content": "Hi"}]
    async with serving(home, **scripted(home), server=LIMITS) as served, served.http() as client:
        for body in (
            responses(said, tools=[{"type": "namespace", "name": "n", "tools": tools}]),
            responses([*said, {"type": "additional_tools", "tools": tools}]),
        ):
            reply = await client.post(path, json=body)
            assert reply.status_code == 413
            assert "request-tools" in reply.json()["error"]["message"]
