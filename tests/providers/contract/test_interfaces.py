"""The contract around every provider, before servers that refuse what the real ones refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ollama
from tests.fakes.contract import CALL, FINAL, SAID
from tests.fakes.embedded import CONTRACT
from tests.fakes.interfaces import (
    VENDORS,
    Player,
    RecordedInterface,
    asked,
    every_vendor,
)
from tests.fakes.llamacpp import CHATML, FakePackage, write_model
from tests.fakes.ollama import FakeModel
from tests.providers.contract.rig import HELLO, TOOLS, shown
from tests.providers.laws.test_interruptions import check_interruptions
from vibe_llms import open_session
from vibe_llms.base.exceptions import ControlInvalid, ProviderError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import Content, ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageCompletedEvent, MessageFailedEvent
from vibe_llms.providers.contract import history
from vibe_llms.providers.contract.filter import ReplyFilter
from vibe_llms.providers.contract.model import ContractCache, ContractModel
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.ollama.history import OllamaHistory
from vibe_llms.testing.events import check_events
from vibe_llms.testing.wires import ollama_replies

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)


_NATIVE = r'(?<!\\\\)"(tool_use|tool_calls|function_call|tool)"'


def look(where: str = "up") -> list[Content]:
    """Look somewhere."""
    return [TextualContent(f"the sky, {where}"), ImageContent(PIXEL, "image/png")]


def count_calls(conversation: Conversation) -> tuple[int, int]:
    kinds = [type(canister) for canister in conversation.canisters]
    return kinds.count(InvocationCanister), kinds.count(ResultCanister)


async def check_round_trip(interface: RecordedInterface, home: Path) -> None:
    """Native calls, then the contract, then native calls again; every request is accepted."""
    calls = [("look", '{"where":"up"}'), ("look", '{"where":"down"}')]
    with interface.serve() as server:
        async with interface.open_session(server, home) as session:
            begun = await session.begin(
                interface.address, invokers=[look], supervisor="Be brief.", tool_mode="native"
            )
            made = 0
            for mode in ("native", "contract", "native", "contract"):
                conversation = await session.resume(
                    begun.identity, invokers=[look], tool_mode=mode
                ) if made else begun  # fmt: skip
                server.requests.clear()
                words = interface.texts(*f"{CALL}\n{CALL}")
                broken = interface.texts(CALL[:-5], "")
                if mode == "contract":
                    server.replies = [words, broken, interface.texts(*FINAL)]
                else:
                    # Only once, since its calls have the same identities each time.
                    server.replies = [] if made else [interface.tools(*calls)]
                    server.replies += [interface.texts(SAID)]
                made += 0 if made and mode == "native" else 2
                sends = len(server.replies)
                turn = await conversation.converse("What is above?")
                assert turn.text == SAID
                assert server.refusals == []
                assert count_calls(conversation) == (made, made)
                bodies = [request.json for request in asked(server)]
                assert len(bodies) == sends
                for body in bodies:
                    offered = "tools" in body or "toolConfig" in body
                    assert offered == (mode == "native")
                    assert ("tools, one per line" in json.dumps(body)) == (mode == "contract")
                    if mode == "contract":
                        assert not re.search(_NATIVE, json.dumps(body))
            assert '\\"tool_result\\"' in json.dumps(bodies[0])


@every_vendor
async def test_a_conversation_goes_between_native_calls_and_the_contract(
    interface: RecordedInterface, tmp_path: Path
) -> None:
    await check_round_trip(interface, tmp_path)


async def test_calls_that_are_left_as_they_are_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_rewrite_call", lambda call: call)
    with pytest.raises((AssertionError, ProviderError)):
        await check_round_trip(VENDORS["anthropic"], tmp_path)


@every_vendor
async def test_reasoning_goes_back_to_its_issuer_under_the_contract_too(
    interface: RecordedInterface, tmp_path: Path
) -> None:
    with interface.serve() as server:
        async with interface.open_session(server, tmp_path) as session:
            conversation = await session.begin(
                interface.address, invokers=[look], tool_mode="contract"
            )
            server.replies = [interface.thoughts("Hm.", CALL, "{}")]
            # The call that this reply makes by itself is not one of the contract's.
            server.replies += [interface.texts(FINAL)] * 2
            turn = await conversation.converse("What is above?")
            assert turn.text == SAID
            await conversation.converse("And now?")
            assert server.refusals == []


@every_vendor
async def test_what_grows_is_encoded_once_under_the_contract(
    interface: RecordedInterface, tmp_path: Path
) -> None:
    with interface.serve() as server:
        async with interface.open_session(server, tmp_path) as session:
            conversation = await session.begin(
                interface.address, invokers=[look], tool_mode="contract", save=False
            )
            caches = conversation._memo._caches
            kept: Any = None
            for number in range(3):
                server.replies = [interface.texts(CALL), interface.texts(FINAL)]
                await conversation.converse(f"Question {number}?")
                ((address, cache),) = caches.items()
                assert address[2]
                assert isinstance(cache, ContractCache)
                inner = cache.inner
                assert number == 0 or inner is kept
                kept = inner
            assert kept.history is not None
            assert kept._added >= 3 * 4


def produce_blind() -> FakeModel:
    """A model that the server says to have no tools."""
    return FakeModel(("completion",))


async def test_a_model_of_ollama_without_tools_is_offered_them_by_the_contract() -> None:
    with ollama.FakeOllama() as server:
        server.models["plain"] = produce_blind()
        server.replies = [ollama_replies.text_reply(*CALL), ollama_replies.text_reply(FINAL)]
        configuration = VENDORS["ollama"].configure(server)
        async with open_session(configuration=configuration) as session:
            # Whether it has tools is known only when its server was asked.
            conversation = await session.begin("ollama/plain", invokers=[look])
            await conversation.converse("What is above?", controls=Controls(tool_choice="look"))
            assert count_calls(conversation) == (1, 1)
            # A tool had to be called in every reply of this turn.
            assert "must call the tool" in json.dumps(server.chats[-1])
            for chat in server.chats:
                assert "tools" not in chat
            server.replies = [ollama_replies.text_reply("No.")]
            conversation = await session.begin("ollama/plain", invokers=[look], tool_mode="native")
            with pytest.raises(ControlInvalid, match="does not support native tool calls"):
                await conversation.converse("What is above?")
            assert conversation.canisters == ()


async def test_a_model_of_llama_cpp_without_tools_is_offered_them_by_the_contract(
    fake_llamacpp: FakePackage, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "plain.gguf", template=CHATML)
    fake_llamacpp.replies = [CALL, CALL[:-1], FINAL]
    async with open_session() as session:
        conversation = await session.begin(f"llamacpp/{path}", invokers=[look])
        turn = await conversation.converse("What is above?")
    assert turn.text == SAID
    assert count_calls(conversation) == (1, 1)


async def test_a_model_without_tools_gets_old_calls_as_text() -> None:
    reported: list[str] = []
    nativize = OllamaHistory.nativize

    def listen(self: Any, canister: Any, *more: Any, **options: Any) -> Any:
        reported.append(type(canister).__name__)
        return nativize(self, canister, *more, **options)

    with ollama.FakeOllama() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(OllamaHistory, "nativize", listen)
        server.models["plain"] = produce_blind()
        replies: Sequence[str] = (CALL, FINAL, "So.")
        server.replies = [ollama_replies.text_reply(one) for one in replies]
        configuration = VENDORS["ollama"].configure(server)
        async with open_session(configuration=configuration) as session:
            conversation = await session.begin("ollama/plain", invokers=[look])
            await conversation.converse("What is above?")
            assert "InvocationCanister" not in reported
            await conversation.converse("And now?", invokers=[])
    assert "InvocationCanister" in reported
    assert "I called the tool look" in json.dumps(server.chats[-1])


async def test_results_that_are_taken_for_granted_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        history.RewrittenHistory,
        "_collect_answers",
        lambda self: [self._answers[identity] for identity in self._calls],
    )
    with CONTRACT.serve() as backend, pytest.raises(KeyError):
        await check_interruptions(CONTRACT, backend, tmp_path / "archive", 4)


@pytest.mark.storm
@every_vendor
async def test_a_stream_cut_at_any_byte_calls_nothing(
    interface: RecordedInterface, rounds: Callable[[int, int], int]
) -> None:
    step = rounds(31, 1)
    chunks = re.findall(r"(?s).{1,9}", f"{FINAL}\n{CALL}")
    whole = interface.encode(interface.texts(*chunks))
    size = len(b"".join(whole))
    with Player([]) as server:
        model = ContractModel(await interface.produce_model(server))
        for end, place in product(("close", "reset"), range(0, size - len(whole[-1]), step)):
            server.replies = [interface.stream_bytes(whole, cut=place, end=end)] * 3
            events: list[Event] = []
            context = TurnContext(event_handler=events.append)
            try:
                await model.converse(HELLO, TOOLS, context=context)
            except ProviderError:
                check_events(events, turn=False)
                assert isinstance(events[-1], MessageFailedEvent)
                received = [e.canister for e in events if isinstance(e, MessageCompletedEvent)]
                assert not any(isinstance(one, InvocationCanister) for one in received)
                assert SAID.startswith(shown(events))
            else:
                # The mark of the end has come before what was cut off.
                assert place > size - 400


async def test_calls_of_a_reply_that_has_not_ended_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave = ReplyFilter.__exit__

    def finish_anyway(self: Any, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and self._received and not self._ending:
            self.finish(self._received, self.conclude())
        leave(self, kind, error, trace)

    monkeypatch.setattr(ReplyFilter, "__exit__", finish_anyway)
    with pytest.raises(AssertionError):
        await test_a_stream_cut_at_any_byte_calls_nothing(
            VENDORS["openai-chat"], lambda few, many: few
        )
