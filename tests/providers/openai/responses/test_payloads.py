"""T9: what only its issuer understands goes back byte for byte, and to nobody else."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.openai import FakeOpenAI, message, reasoning, response_reply
from tests.fakes.openai_clients import read_events
from vibe_llms.configuration import StorageSettings
from vibe_llms.controls import Controls
from vibe_llms.conversation import Conversation
from vibe_llms.events import Event, NoticeEvent
from vibe_llms.exceptions import RequestRefused
from vibe_llms.messages.contents import Issuer
from vibe_llms.providers import conversions
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.openai.responses import messages
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive

#: Recorded replies that hold what must not be changed.
NAMES = ("thoughts", "search", "image", "unknown", "parts", "unicode")
SOL, MINI, GATEWAY = ("openai/gpt-6.1-sol", "openai/gpt-5.4-mini", "gateway/gpt-6.1-sol")
LONG = "Let me think about this\u2028 for a long time. é😀 " * 100


@asynccontextmanager
async def opened(
    home: Path, server: FakeOpenAI, gateway: FakeOpenAI | None = None
) -> AsyncIterator[Session]:
    """A session with an archive in a folder; `gateway` is another row of the same module."""
    rows: dict[str, Any] = {"openai": {"base-url": server.url, "retries": 0}}
    keys = {"openai": server.key}
    if gateway is not None:
        module = "vibe_llms.providers.openai.responses"
        rows["gateway"] = {"module": module, "base-url": gateway.url, "retries": 0}
        keys["gateway"] = gateway.key
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    async with open_session(
        configuration={"providers": rows}, archive=archive, keys=keys
    ) as session:
        yield session


async def preview(session: Session, conversation: Conversation) -> bytes:
    """The request that would be sent, byte for byte."""
    load = session.archive.load_all
    return await conversation.model.preview(
        conversation.canisters, (), Controls(), TurnContext(load=load)
    )


async def check_cycles(server: FakeOpenAI, home: Path, name: str, cycles: int) -> None:
    """A reply that was stored, restored and forked so often is sent as on the first day."""
    chance = random.Random(name)
    thought = reasoning(LONG, encrypted='+/=\u2028\\"é' * 20)
    async with opened(home, server) as session:
        conversation = await session.begin(SOL)
        server.replies = [
            response_reply(thought, message("Well.")),
            read_events(f"responses/{name}"),
        ]
        await conversation.converse("Think")
        await conversation.converse("Go")
        sent = await preview(session, conversation)
        # As the server wrote it, which is not how everybody would.
        assert json.dumps(thought, separators=(",", ":"), ensure_ascii=False).encode() in sent
        for _ in range(cycles):
            if chance.random() < 0.5:
                conversation = await session.resume(conversation.identity)
            else:
                conversation = await conversation.fork()
            assert await preview(session, conversation) == sent
        identity = conversation.identity
    async with opened(home, server) as session:
        conversation = await session.resume(identity)
        assert await preview(session, conversation) == sent
        await conversation.converse("And now?")
    assert server.refusals == []


@pytest.mark.storm
@pytest.mark.parametrize("name", NAMES)
async def test_what_was_stored_and_forked_goes_back_byte_for_byte(
    name: str, fake_openai: FakeOpenAI, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    await check_cycles(fake_openai, tmp_path, name, rounds(8, 500))


def produce_reply(number: int) -> Any:
    """A reply full of what only its issuer understands."""
    search = {"id": f"ws_{number}", "type": "web_search_call", "status": "completed"}
    return response_reply(
        reasoning(f"thought {number}", encrypted=f"SIG{number}=="),
        {**search, "action": {"type": "search", "query": "x"}},
        message(f"answer {number}", phase="final_answer"),
    )


async def check_switches(
    server: FakeOpenAI, gateway: FakeOpenAI, home: Path, switches: int
) -> list[Event]:
    """Each model is sent what it issued itself, all of it, and nothing of the others'."""
    chance = random.Random(9)
    issued: dict[str, list[int]] = {SOL: [], MINI: [], GATEWAY: []}
    events: list[Event] = []
    async with opened(home, server, gateway) as session:
        conversation = await session.begin(SOL, event_handler=events.append)
        for number in range(switches):
            address = chance.choice(sorted(issued))
            await conversation.switch(address)
            if conversation.canisters and chance.random() < 0.3:
                twin = await conversation.fork()
                conversation = await session.resume(twin.identity, event_handler=events.append)
            here = gateway if address == GATEWAY else server
            here.replies = [produce_reply(number)]
            assert (await conversation.converse(f"question {number}")).text == f"answer {number}"
            body = here.requests[-1].body.decode()
            for other, numbers in issued.items():
                for one in numbers:
                    assert (f'"SIG{one}=="' in body) is (other == address)
                    assert (f'"ws_{one}"' in body) is (other == address)
                    assert f'"answer {one}"' in body
            issued[address].append(number)
            assert server.refusals == gateway.refusals == []
    return events


@pytest.mark.storm
async def test_no_foreign_reasoning_is_sent_after_a_switch(
    fake_openai: FakeOpenAI, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    with FakeOpenAI() as gateway:
        events = await check_switches(fake_openai, gateway, tmp_path, rounds(30, 300))
    told = [event.notice.text for event in events if isinstance(event, NoticeEvent)]
    assert any("the reasoning of another model is left out" in text for text in told)
    assert any("'web_search_call' that only its model understands" in text for text in told)


# Bugs that these would find.


def ignore_the_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions.Conversion, "issued", lambda self, native: native is not None)


def ignore_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def issued(self: Any, native: Any) -> bool:
        if native is None:
            return False
        own = Issuer(messages.MODULE, "any", self.model.name)
        return bool(msgspec.structs.replace(native.issuer, row="any") == own)

    monkeypatch.setattr(conversions.Conversion, "issued", issued)


@pytest.mark.parametrize("seed", [ignore_the_issuer, ignore_the_row])
async def test_a_foreign_payload_would_be_found_out(
    seed: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    fake_openai: FakeOpenAI,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with FakeOpenAI() as gateway, pytest.raises((AssertionError, RequestRefused)):
        await check_switches(fake_openai, gateway, tmp_path, 30)


async def test_items_that_are_written_anew_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch, fake_openai: FakeOpenAI, tmp_path: Path
) -> None:
    nativize = messages._nativize_reasoning

    def write_anew(*arguments: Any) -> Any:
        block: Any = nativize(*arguments)
        return (json.dumps(json.loads(b"".join(block))).encode(),) if block else None

    monkeypatch.setattr(messages, "_nativize_reasoning", write_anew)
    with pytest.raises((AssertionError, RequestRefused)):
        await check_cycles(fake_openai, tmp_path, "thoughts", 1)


async def test_payloads_that_are_not_kept_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch, fake_openai: FakeOpenAI, tmp_path: Path
) -> None:
    restore = DirectoryArchive.restore

    async def forget(self: DirectoryArchive, identity: str) -> Any:
        restored = await restore(self, identity)
        bare = [
            msgspec.structs.replace(
                one,
                contents=tuple(
                    msgspec.structs.replace(content, native=None) for content in one.contents
                ),
            )
            if one.contents
            else one
            for one in restored.canisters
        ]
        return msgspec.structs.replace(restored, canisters=bare)

    monkeypatch.setattr(DirectoryArchive, "restore", forget)
    with pytest.raises(AssertionError):
        await check_cycles(fake_openai, tmp_path, "thoughts", 20)
