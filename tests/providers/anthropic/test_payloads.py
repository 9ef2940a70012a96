"""T9: what only its issuer understands goes back byte for byte, and to nobody else."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.anthropic import FakeAnthropic, block, reply, text_block, thinking_block
from tests.fakes.recordings import read_events
from vibe_llms.configuration import StorageSettings
from vibe_llms.controls import Controls
from vibe_llms.conversation import Conversation
from vibe_llms.events import Event, NoticeEvent
from vibe_llms.exceptions import RequestRefused
from vibe_llms.messages.contents import Issuer
from vibe_llms.providers.anthropic import messages
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive

#: Recorded replies that hold what must not be changed.
NAMES = ("thinking", "redacted", "omitted", "server", "caller", "citations", "unknown", "unicode")
OPUS, FABLE, GATEWAY = (
    "anthropic/claude-opus-5",
    "anthropic/claude-fable-5",
    "gateway/claude-opus-5",
)
LONG = "Let me think about this\u2028 for a long time. é😀 " * 100


@asynccontextmanager
async def opened(
    home: Path, server: FakeAnthropic, gateway: FakeAnthropic | None = None
) -> AsyncIterator[Session]:
    """A session with an archive in a folder; `gateway` is another row of the same module."""
    rows: dict[str, Any] = {"anthropic": {"base-url": server.url, "retries": 0}}
    keys = {"anthropic": server.key}
    if gateway is not None:
        module = "vibe_llms.providers.anthropic"
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


async def check_cycles(server: FakeAnthropic, home: Path, name: str, cycles: int) -> None:
    """A reply that was stored, restored and forked so often is sent as on the first day."""
    chance = random.Random(name)
    thought = thinking_block(0, LONG, signature='+/=\u2028\\"é' * 20)
    async with opened(home, server) as session:
        conversation = await session.begin(OPUS)
        server.replies = [reply(thought, text_block(1, "Well.")), read_events(name)]
        await conversation.converse("Think")
        await conversation.converse("Go")
        sent = await preview(session, conversation)
        assert LONG.split("\u2028")[0].encode() in sent
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
    name: str, fake_anthropic: FakeAnthropic, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    await check_cycles(fake_anthropic, tmp_path, name, rounds(8, 500))


def produce_reply(number: int) -> Sequence[dict[str, Any]]:
    """A reply full of what only its issuer understands."""
    identity = f"srvtoolu_{number}"
    use = {"type": "server_tool_use", "id": identity, "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": identity, "content": []}
    return reply(
        thinking_block(0, f"thought {number}", signature=f"SIG{number}=="),
        block(1, {"type": "redacted_thinking", "data": f"HIDDEN{number}=="}),
        block(2, use, {"type": "input_json_delta", "partial_json": '{"query":"x"}'}),
        block(3, result),
        text_block(4, f"answer {number}"),
    )


async def check_switches(
    server: FakeAnthropic, gateway: FakeAnthropic, home: Path, switches: int
) -> list[Event]:
    """Each model is sent what it issued itself, all of it, and nothing of the others'."""
    chance = random.Random(9)
    issued: dict[str, list[int]] = {OPUS: [], FABLE: [], GATEWAY: []}
    events: list[Event] = []
    async with opened(home, server, gateway) as session:
        conversation = await session.begin(OPUS, event_handler=events.append)
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
                    assert (f"SIG{one}==" in body) is (other == address)
                    assert (f"HIDDEN{one}==" in body) is (other == address)
                    assert (f'"srvtoolu_{one}"' in body) is (other == address)
                    assert f"answer {one}" in body
            issued[address].append(number)
            assert server.refusals == gateway.refusals == []
    return events


@pytest.mark.storm
async def test_no_foreign_signature_is_sent_after_a_switch(
    fake_anthropic: FakeAnthropic, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    with FakeAnthropic() as gateway:
        events = await check_switches(fake_anthropic, gateway, tmp_path, rounds(30, 300))
    told = [event.notice.text for event in events if isinstance(event, NoticeEvent)]
    assert any("the reasoning of another model is left out" in text for text in told)
    assert any("'server_tool_use' that only its model understands" in text for text in told)


# Bugs that these would find.


def ignore_the_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        messages._Work, "read", lambda self, native, decoder: native and decoder.decode(native.data)
    )


def ignore_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Any, native: Any, decoder: Any) -> Any:
        if native is None:
            return None
        own = Issuer(messages.MODULE, "any", self.model.name)
        issuer = msgspec.structs.replace(native.issuer, row="any")
        return decoder.decode(native.data) if issuer == own else None

    monkeypatch.setattr(messages._Work, "read", read)


@pytest.mark.parametrize("seed", [ignore_the_issuer, ignore_the_row])
async def test_a_foreign_signature_would_be_found_out(
    seed: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    fake_anthropic: FakeAnthropic,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with FakeAnthropic() as gateway, pytest.raises((AssertionError, RequestRefused)):
        await check_switches(fake_anthropic, gateway, tmp_path, 30)


async def test_thinking_that_is_written_anew_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch, fake_anthropic: FakeAnthropic, tmp_path: Path
) -> None:
    text = messages._Work.text
    monkeypatch.setattr(messages._Work, "text", lambda self, data: text(self, data).strip())
    with pytest.raises((AssertionError, RequestRefused)):
        await check_cycles(fake_anthropic, tmp_path, "thinking", 1)


async def test_payloads_that_are_not_kept_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch, fake_anthropic: FakeAnthropic, tmp_path: Path
) -> None:
    restore = DirectoryArchive.restore

    async def forget(self: DirectoryArchive, identity: str) -> Any:
        restored = await restore(self, identity)
        return msgspec.structs.replace(
            restored,
            canisters=[
                msgspec.structs.replace(
                    one,
                    contents=tuple(
                        msgspec.structs.replace(content, native=None) for content in one.contents
                    ),
                )
                if one.contents
                else one
                for one in restored.canisters
            ],
        )

    monkeypatch.setattr(DirectoryArchive, "restore", forget)
    with pytest.raises(AssertionError):
        await check_cycles(fake_anthropic, tmp_path, "redacted", 20)
