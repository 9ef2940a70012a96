"""Every ordered pair of providers, switched in mid-conversation, before strict servers.

The history has parallel calls, a result with a picture, reasoning of the first provider's own, a
document with a file, system text in mid-conversation, and a turn that was interrupted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import (
    anthropic,
    bedrock,
    bedrock_clients,
    bedrock_replies,
    gemini,
    llamacpp,
    ollama,
    openai,
    strict,
)
from tests.fakes.llamacpp import FakePackage, write_model
from tests.fakes.server import FakeServer
from vibe_llms import open_session
from vibe_llms.base.exceptions import ProviderError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import (
    AssistantCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import Content, FileContent, ImageContent, TextualContent
from vibe_llms.messages.events import Event, MessageProgressEvent, NoticeEvent
from vibe_llms.providers.conversions import Conversion
from vibe_llms.session.core import Session
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    gemini_replies,
    ollama_replies,
    responses_replies,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)
PDF = b"%PDF-1.4\n"
CALLS = (("weather", '{"city":"Oslo"}'), ("weather", '{"city":"Rome"}'))


def weather(city: str) -> list[Content]:
    """Tell the weather."""
    return [TextualContent(f"mild in {city}"), ImageContent(PIXEL, "image/png")]


def tell(city: str) -> str:
    """Tell the weather."""
    return f"mild in {city}"


def think_with_anthropic() -> Any:
    calls = [
        anthropic_replies.tool_block(number, name, arguments)
        for number, (name, arguments) in enumerate(CALLS, 1)
    ]
    return anthropic_replies.reply(
        anthropic_replies.thinking_block(0, "Hm."), *calls, stop_reason="tool_use"
    )


def think_with_responses() -> Any:
    calls = [
        responses_replies.function_call(name, arguments, f"call_{number}")
        for number, (name, arguments) in enumerate(CALLS)
    ]
    return responses_replies.response_reply(responses_replies.reasoning("Hm."), *calls)


def think_with_chat() -> Any:
    return chat_completions_replies.chat_tools(*CALLS)


def think_with_ollama() -> Any:
    lines = ollama_replies.tools_reply(*CALLS)
    return [ollama_replies.line(thinking="Hm."), *lines]


def think_with_gemini() -> Any:
    thought = gemini_replies.chunk(gemini_replies.text("Hm.", thought=True))
    return [thought, *gemini_replies.tools_reply(*CALLS)]


@dataclass
class Speaker:
    """A provider before its strict server; `think` calls tools, `call` does so without reasoning,
    `say` answers, `cut` breaks off.
    """

    row: str
    model: str
    produce: Callable[[], Any]
    think: Callable[[], Any]
    call: Callable[[], Any]
    say: Callable[[str], Any]
    cut: Callable[[str], Any]
    path: str = ""
    server: Any = field(default=None)

    @property
    def address(self) -> str:
        return f"{self.row}/{self.model}"

    @property
    def settings(self) -> Mapping[str, str]:
        return {"base-url": f"{self.server.url}{self.path}"}


@dataclass
class LocalSpeaker(Speaker):
    """llama.cpp in this process: its model is a file, its server the package."""

    folder: Path = Path()

    @property
    def address(self) -> str:
        return f"{self.row}/{write_model(self.folder / self.model)}"

    @property
    def settings(self) -> Mapping[str, str]:
        return {}


class LocalServer:
    """What `Speaker` wants of a server, as arguments of the package."""

    key = ""

    def __init__(self, package: FakePackage) -> None:
        self._package = package
        self.refusals: list[str] = []

    @property
    def replies(self) -> list[Any]:
        return self._package.replies

    @replies.setter
    def replies(self, replies: list[Any]) -> None:
        self._package.replies = replies


def think_with_llamacpp() -> str:
    calls = (llamacpp.call_text(name, arguments) for name, arguments in CALLS)
    return f"<think>Hm.</think>{''.join(calls)}"


def cut_of(module: Any, encode: Callable[[Any], bytes], events: Sequence[Any]) -> Any:
    whole = [encode(event) for event in events]
    return module.stream_bytes(whole, cut=len(b"".join(whole)) - len(whole[-1]) - 5, end="close")


def speakers() -> list[Speaker]:
    return [
        Speaker(
            "anthropic",
            "claude-opus-5",
            anthropic.FakeAnthropic,
            think_with_anthropic,
            lambda: anthropic_replies.reply(
                anthropic_replies.tool_block(0, "tell", CALLS[0][1]), stop_reason="tool_use"
            ),
            anthropic_replies.text_reply,
            lambda text: cut_of(anthropic, strict.encode_event, anthropic_replies.text_reply(text)),
        ),
        Speaker(
            "openai",
            "gpt-6.1-sol",
            openai.FakeOpenAI,
            think_with_responses,
            lambda: responses_replies.response_reply(
                responses_replies.function_call("tell", CALLS[0][1], "call_1")
            ),
            lambda text: responses_replies.response_reply(responses_replies.message(text)),
            lambda text: cut_of(
                openai,
                strict.encode_event,
                responses_replies.response_reply(responses_replies.message(text)),
            ),
        ),
        Speaker(
            "openai-chat",
            "gpt-5.5",
            openai.FakeOpenAI,
            think_with_chat,
            lambda: chat_completions_replies.chat_tools(("tell", CALLS[0][1])),
            chat_completions_replies.chat_reply,
            lambda text: cut_of(
                openai, strict.encode_event, chat_completions_replies.chat_reply(text)[:-1]
            ),
        ),
        Speaker(
            "ollama",
            ollama_replies.MODEL,
            ollama.FakeOllama,
            think_with_ollama,
            lambda: ollama_replies.tools_reply(("tell", CALLS[0][1])),
            ollama_replies.text_reply,
            lambda text: cut_of(ollama, ollama.encode_line, ollama_replies.text_reply(text)),
        ),
        Speaker(
            "bedrock",
            bedrock_clients.MODEL,
            bedrock.FakeBedrock,
            lambda: bedrock_replies.tools_reply(*CALLS),
            lambda: bedrock_replies.reply(
                bedrock_replies.tool_block(0, "tell", CALLS[0][1]), reason="tool_use"
            ),
            bedrock_replies.text_reply,
            lambda text: cut_of(
                bedrock, bedrock.encode_event, bedrock_replies.text_reply(text)[:-1]
            ),
        ),
        Speaker(
            "gemini",
            gemini_replies.MODEL,
            gemini.FakeGemini,
            think_with_gemini,
            lambda: gemini_replies.reply(
                gemini_replies.chunk(gemini_replies.call("tell", json.loads(CALLS[0][1])))
            ),
            gemini_replies.text_reply,
            lambda text: cut_of(gemini, strict.encode_event, gemini_replies.text_reply(text)),
        ),
    ]


ROWS = [*(speaker.row for speaker in speakers()), "llamacpp"]


@pytest.fixture
def served(fake_llamacpp: FakePackage, tmp_path: Path) -> Iterator[dict[str, Speaker]]:
    """All providers, each before a server of its own."""
    with ExitStack() as stack:
        found = {speaker.row: speaker for speaker in speakers()}
        for speaker in found.values():
            server: FakeServer = speaker.produce()
            speaker.server = stack.enter_context(server)
        found["llamacpp"] = LocalSpeaker(
            "llamacpp",
            "model.gguf",
            lambda: None,
            think_with_llamacpp,
            lambda: llamacpp.call_text("tell", CALLS[0][1]),
            str,
            # An error of `llama_decode`.
            lambda text: -3,
            server=LocalServer(fake_llamacpp),
            folder=tmp_path,
        )
        yield found


async def hold_first_half(conversation: Conversation, speaker: Speaker) -> None:
    """A turn with tools, system text, a document, and a turn that breaks off."""
    speaker.server.replies = [speaker.think(), speaker.say("Mild."), speaker.cut("It wa")]
    await conversation.converse("How is the weather?", invokers=[weather])
    await conversation.add(SupervisorCanister.from_text("Be brief from here on."))
    contents = (TextualContent("Rain is wet."), FileContent(PDF, "application/pdf", "rain.pdf"))
    report = DocumentCanister(contents, title="Report")
    await conversation.add([report])
    with pytest.raises(ProviderError):
        await conversation.converse("And tomorrow?", invokers=[weather])


def lines_of(conversation: Conversation) -> list[bytes]:
    return [encode_canister(canister) for canister in conversation.canisters]


async def check_switch(session: Session, first: Speaker, second: Speaker) -> list[Event]:
    events: list[Event] = []
    conversation = await session.begin(
        first.address, supervisor="You know the weather.", event_handler=events.append
    )
    await hold_first_half(conversation, first)
    before = lines_of(conversation)
    kinds = {type(canister) for canister in conversation.canisters}
    assert kinds >= {InvocationCanister, ResultCanister, DocumentCanister, AssistantCanister}
    for speaker, text in ((second, "Go on."), (first, "And back?"), (second, "And once more?")):
        await conversation.switch(speaker.address)
        speaker.server.replies = [speaker.say("Yes.")]
        turn = await conversation.converse([UserCanister.from_text(text)], invokers=[weather])
        assert turn.text == "Yes.", f"{first.row} to {second.row}"
        assert speaker.server.refusals == []
    assert lines_of(conversation)[: len(before)] == before, "what was stored has changed"
    again = await session.archive.restore(conversation.identity)
    assert [one.identity for one in again.canisters] == [
        one.identity for one in conversation.canisters
    ]
    return events


@pytest.mark.parametrize(("first", "second"), [*itertools.product(ROWS, ROWS)])
async def test_a_conversation_goes_on_with_any_other_provider(
    first: str, second: str, served: dict[str, Speaker]
) -> None:
    keys = {row: speaker.server.key for row, speaker in served.items() if speaker.server.key}
    rows = {row: dict(speaker.settings, retries=0) for row, speaker in served.items()}
    async with open_session(keys=keys, configuration={"providers": rows}) as session:
        events = await check_switch(session, served[first], served[second])
    assert any(isinstance(event, MessageProgressEvent) for event in events)
    reported = [event.notice.text for event in events if isinstance(event, NoticeEvent)]
    if first != second and first in ("anthropic", "openai", "bedrock", "gemini"):
        # Reasoning goes back to none but its issuer, and that is said.
        assert any("reasoning" in text for text in reported), reported


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(ROWS, 2)])
async def test_words_and_calls_alone_lose_nothing_and_no_notice_says_so(
    first: str, second: str, served: dict[str, Speaker]
) -> None:
    keys = {row: speaker.server.key for row, speaker in served.items() if speaker.server.key}
    rows = {row: dict(speaker.settings, retries=0) for row, speaker in served.items()}
    events: list[Event] = []
    speaker, other = served[first], served[second]
    async with open_session(
        keys=keys, configuration={"providers": rows}, event_handler=events.append
    ) as session:
        conversation = await session.begin(speaker.address, invokers=[tell])
        speaker.server.replies = [speaker.call(), speaker.say("Mild.")]
        await conversation.converse("How is the weather?")
        await conversation.switch(other.address)
        other.server.replies = [other.say("Yes.")]
        await conversation.converse("Really?")
    reported = [event.notice for event in events if isinstance(event, NoticeEvent)]
    assert [notice.text for notice in reported if notice.subject == "conversion"] == []


async def test_sending_what_another_provider_issued_would_be_detected(
    served: dict[str, Speaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversion, "issued", lambda self, native: True)
    keys = {row: speaker.server.key for row, speaker in served.items() if speaker.server.key}
    rows = {row: dict(speaker.settings, retries=0) for row, speaker in served.items()}
    async with open_session(keys=keys, configuration={"providers": rows}) as session:
        with pytest.raises((ProviderError, AssertionError)):
            await check_switch(session, served["openai"], served["anthropic"])
