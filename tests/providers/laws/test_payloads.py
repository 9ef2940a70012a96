"""T9: what only its issuer understands goes back byte for byte, and to no other model."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import bedrock_replies
from tests.fakes.interfaces import ANTHROPIC, BEDROCK, GEMINI, RESPONSES, RecordedInterface
from tests.fakes.strict import Events
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import RequestRefused
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.providers.anthropic import messages as anthropic_messages
from vibe_llms.providers.conversions import Conversion
from vibe_llms.providers.gemini import messages as gemini_messages
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.openai.responses import messages as responses_messages
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.wires import anthropic_replies as messages
from vibe_llms.testing.wires import gemini_replies as gemini
from vibe_llms.testing.wires import responses_replies as responses

LONG = "Let me think about this\u2028 for a long time. é😀 " * 100
SIGNATURE = '+/=\u2028\\"é' * 20


@dataclass(frozen=True)
class Opaque:
    """An interface whose replies hold what must not be changed.

    `names` are such recorded replies; `thought` is one whose bytes `kept` are in the request;
    `reply` is full of what only its issuer understands, `marks` are the signs of it in a request.
    """

    interface: RecordedInterface
    other: str
    names: Sequence[str]
    thought: Events
    kept: bytes
    reply: Callable[[int], Events]
    marks: Sequence[str]
    reported: str

    @property
    def addresses(self) -> Sequence[str]:
        """Two models of the row, and the first of them behind another row of the same module."""
        row, model = self.interface.row, self.interface.model
        return (f"{row}/{model}", f"{row}/{self.other}", f"gateway/{model}")


def _reply_anthropic(number: int) -> Events:
    identity = f"srvtoolu_{number}"
    use = {"type": "server_tool_use", "id": identity, "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": identity, "content": []}
    return messages.reply(
        messages.thinking_block(0, f"thought {number}", signature=f"SIG{number}=="),
        messages.block(1, {"type": "redacted_thinking", "data": f"HIDDEN{number}=="}),
        messages.block(2, use, {"type": "input_json_delta", "partial_json": '{"query":"x"}'}),
        messages.block(3, result),
        messages.text_block(4, f"answer {number}"),
    )


def _reply_responses(number: int) -> Events:
    search = {"id": f"ws_{number}", "type": "web_search_call", "status": "completed"}
    return responses.response_reply(
        responses.reasoning(f"thought {number}", encrypted=f"SIG{number}=="),
        {**search, "action": {"type": "search", "query": "x"}},
        responses.message(f"answer {number}", phase="final_answer"),
    )


def _reply_bedrock(number: int) -> Events:
    return bedrock_replies.reply(
        bedrock_replies.reasoning_block(0, f"thought {number}", signature=f"SIG{number}=="),
        bedrock_replies.redacted_block(1, f"hidden{number:03}".encode()),
        bedrock_replies.tool_block(
            2, "web_search", '{"query":"x"}', call=f"srv_{number}", kind="server_tool_use"
        ),
        bedrock_replies.result_block(3, {"text": "found"}, call=f"srv_{number}"),
        bedrock_replies.text_block(4, f"answer {number}"),
    )


def _reply_gemini(number: int) -> Events:
    code = {"language": "PYTHON", "code": f"print({number})"}
    return gemini.reply(
        gemini.chunk(gemini.text(f"thought {number}", thought=True)),
        gemini.chunk({"executableCode": code, "thoughtSignature": f"SIG{number}=="}),
        gemini.chunk(gemini.text(f"answer {number}")),
    )


_REASONING = responses.reasoning(LONG, encrypted=SIGNATURE)
OPAQUE = (
    Opaque(
        ANTHROPIC,
        "claude-fable-5",
        ("thinking", "redacted", "omitted", "server", "caller", "citations", "unknown", "unicode"),
        messages.reply(
            messages.thinking_block(0, LONG, signature=SIGNATURE), messages.text_block(1, "Well.")
        ),
        LONG.split("\u2028")[0].encode(),
        _reply_anthropic,
        ("SIG{}==", "HIDDEN{}==", '"srvtoolu_{}"'),
        "server_tool_use",
    ),
    Opaque(
        RESPONSES,
        "gpt-5.4-mini",
        ("thoughts", "search", "image", "unknown", "parts", "unicode"),
        responses.response_reply(_REASONING, responses.message("Well.")),
        # As the server wrote it, which is not how everybody would.
        json.dumps(_REASONING, separators=(",", ":"), ensure_ascii=False).encode(),
        _reply_responses,
        ('"SIG{}=="', '"ws_{}"'),
        "web_search_call",
    ),
    Opaque(
        BEDROCK,
        "amazon.nova-2-lite-v1:0",
        ("thinking", "redacted", "omitted", "server", "citations", "unicode"),
        bedrock_replies.reply(
            bedrock_replies.reasoning_block(0, LONG, signature=SIGNATURE),
            bedrock_replies.text_block(1, "Well."),
        ),
        LONG.split("\u2028")[0].encode(),
        _reply_bedrock,
        ('"SIG{}=="', '"srv_{}"'),
        "toolUse",
    ),
    Opaque(
        GEMINI,
        "gemini-3.5-flash",
        ("signed", "thinking", "tools", "code", "image", "unknown", "unicode", "grounding"),
        gemini.reply(
            gemini.chunk(gemini.text(LONG, SIGNATURE, thought=True)),
            gemini.chunk(gemini.text("Well."), gemini.text("", SIGNATURE)),
        ),
        json.dumps(
            {"text": "", "thoughtSignature": SIGNATURE}, separators=(",", ":"), ensure_ascii=False
        ).encode(),
        _reply_gemini,
        ('"SIG{}=="', '"print({})"'),
        "executableCode",
    ),
)
_OPAQUE = {one.interface.row: one for one in OPAQUE}
every_opaque = pytest.mark.parametrize("opaque", OPAQUE, ids=lambda one: one.interface.row)


@asynccontextmanager
async def opened(opaque: Opaque, home: Path, server: Any, gateway: Any) -> AsyncIterator[Session]:
    """A session with an archive in a folder; `gateway` is another row of the same module."""
    row, module = opaque.interface.row, opaque.interface.recordings.module
    rows = {
        row: {"base-url": server.url, "retries": 0},
        "gateway": {"module": module, "base-url": gateway.url, "retries": 0},
    }
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    async with open_session(
        configuration={"providers": rows},
        archive=archive,
        keys={row: server.key, "gateway": gateway.key},
    ) as session:
        yield session


async def preview(session: Session, conversation: Conversation) -> bytes:
    """The request that would be sent, byte for byte."""
    context = TurnContext(load=session.archive.load_all)
    return await conversation.model.preview(conversation.canisters, (), Controls(), context)


async def check_cycles(opaque: Opaque, home: Path, name: str, cycles: int) -> None:
    """A reply that was stored, restored and forked so often is sent as on the first day."""
    chance = random.Random(name)
    with opaque.interface.serve() as server:
        async with opened(opaque, home, server, server) as session:
            conversation = await session.begin(opaque.addresses[0])
            server.replies = [opaque.thought, opaque.interface.recordings.events(name)]
            await conversation.converse("Think")
            await conversation.converse("Go")
            sent = await preview(session, conversation)
            assert opaque.kept in sent
            for _ in range(cycles):
                if chance.random() < 0.5:
                    conversation = await session.resume(conversation.identity)
                else:
                    conversation = await conversation.fork()
                assert await preview(session, conversation) == sent
        async with opened(opaque, home, server, server) as session:
            conversation = await session.resume(conversation.identity)
            assert await preview(session, conversation) == sent
            await conversation.converse("And now?")
        assert server.refusals == []


@pytest.mark.storm
@pytest.mark.parametrize(
    ("opaque", "name"),
    [(one, name) for one in OPAQUE for name in one.names],
    ids=[f"{one.interface.row}-{name}" for one in OPAQUE for name in one.names],
)
async def test_what_was_stored_and_forked_goes_back_byte_for_byte(
    opaque: Opaque, name: str, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    await check_cycles(opaque, tmp_path, name, rounds(6, 500))


async def check_switches(opaque: Opaque, home: Path, switches: int) -> list[Event]:
    """Each model is sent what it issued itself, all of it, and nothing of the others'."""
    chance = random.Random(9)
    issued: dict[str, list[int]] = {address: [] for address in opaque.addresses}
    events: list[Event] = []
    produce = opaque.interface.serve
    with produce() as server, produce() as gateway:
        async with opened(opaque, home, server, gateway) as session:
            conversation = await session.begin(opaque.addresses[0], event_handler=events.append)
            for number in range(switches):
                address = chance.choice(sorted(issued))
                await conversation.switch(address)
                if conversation.canisters and chance.random() < 0.3:
                    twin = await conversation.fork()
                    conversation = await session.resume(twin.identity, event_handler=events.append)
                here = gateway if address.startswith("gateway") else server
                here.replies = [opaque.reply(number)]
                turn = await conversation.converse(f"question {number}")
                assert turn.text == f"answer {number}"
                body = here.requests[-1].body.decode()
                for other, numbers in issued.items():
                    for one in numbers:
                        for mark in opaque.marks:
                            assert (mark.format(one) in body) is (other == address)
                        assert f'"answer {one}"' in body
                issued[address].append(number)
                assert server.refusals == gateway.refusals == []
    return events


@pytest.mark.storm
@every_opaque
async def test_no_foreign_payload_is_sent_after_a_switch(
    opaque: Opaque, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    events = await check_switches(opaque, tmp_path, rounds(30, 300))
    reported = [event.notice.text for event in events if isinstance(event, NoticeEvent)]
    assert any("the reasoning of another model is left out" in text for text in reported)
    assert any(f"'{opaque.reported}' that only its model understands" in text for text in reported)


# Bugs that these would find.


def ignore_the_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversion, "issued", lambda self, native: native is not None)


def ignore_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def issued(self: Any, native: Any) -> bool:
        if native is None:
            return False
        own = msgspec.structs.replace(self._issuer, row="any")
        return bool(msgspec.structs.replace(native.issuer, row="any") == own)

    monkeypatch.setattr(Conversion, "issued", issued)


@every_opaque
@pytest.mark.parametrize("seed", [ignore_the_issuer, ignore_the_row])
async def test_a_foreign_payload_would_be_detected(
    seed: Callable[[pytest.MonkeyPatch], None],
    opaque: Opaque,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with pytest.raises((AssertionError, RequestRefused)):
        await check_switches(opaque, tmp_path, 30)


def strip_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    text = anthropic_messages._Work.text
    monkeypatch.setattr(
        anthropic_messages._Work, "text", lambda self, data: text(self, data).strip()
    )


def encode_items_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    nativize = responses_messages._nativize_reasoning

    def write_anew(*arguments: Any) -> Any:
        block: Any = nativize(*arguments)
        return (json.dumps(json.loads(b"".join(block))).encode(),) if block else None

    monkeypatch.setattr(responses_messages, "_nativize_reasoning", write_anew)


def sign_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    split = gemini_messages._split

    def split_carelessly(text: str, signed: Any, **options: Any) -> Any:
        for span in () if signed is None else signed.signatures[:1]:
            signed = gemini_messages._Signed([(0, len(text), span[2])])
        return split(text, signed, **options)

    monkeypatch.setattr(gemini_messages, "_split", split_carelessly)


@pytest.mark.parametrize(
    ("seed", "opaque"),
    [
        (strip_thinking, _OPAQUE["anthropic"]),
        (encode_items_anew, _OPAQUE["openai"]),
        (sign_the_whole_text, _OPAQUE["gemini"]),
    ],
)
async def test_what_is_written_anew_would_be_detected(
    seed: Callable[[pytest.MonkeyPatch], None],
    opaque: Opaque,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with pytest.raises((AssertionError, RequestRefused)):
        await check_cycles(opaque, tmp_path, opaque.names[0], 1)


@every_opaque
async def test_payloads_that_are_not_kept_would_be_detected(
    opaque: Opaque, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    restore = DirectoryArchive.restore
    replace = msgspec.structs.replace

    async def forget(self: DirectoryArchive, identity: str) -> Any:
        restored = await restore(self, identity)
        bare = [
            replace(one, contents=tuple(replace(part, native=None) for part in one.contents))
            if one.contents
            else one
            for one in restored.canisters
        ]
        return replace(restored, canisters=bare)

    monkeypatch.setattr(DirectoryArchive, "restore", forget)
    with pytest.raises(AssertionError):
        await check_cycles(opaque, tmp_path, opaque.names[0], 20)
