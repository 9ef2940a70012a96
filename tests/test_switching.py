"""Every ordered pair of providers, switched in mid-conversation, before strict servers.

The history has parallel calls, results with pictures, reasoning of the first provider's own, a
picture and a file of the user's, a document with a file, system text in mid-conversation, and a
turn that was interrupted. What the next model is not sent of it is told in notices.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.documents.making import make_pdf
from tests.fakes import (
    anthropic,
    azure,
    azure_clients,
    bedrock,
    bedrock_clients,
    bedrock_replies,
    gemini,
    llamacpp,
    ollama,
    openai,
    strict,
    vertex,
    vertex_clients,
)
from tests.fakes.interfaces import MAKERS
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
PDF = make_pdf(["The plan is to walk."])
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
    calls = [
        chat_completions_replies.call_chunks(number, name, arguments)
        for number, (name, arguments) in enumerate(CALLS)
    ]
    thought = chat_completions_replies.text_chunks("Hm.", member="reasoning_content")
    return chat_completions_replies.chat_reply(thought, *calls, finish="tool_calls")


def think_with_ollama() -> Any:
    lines = ollama_replies.tools_reply(*CALLS)
    return [ollama_replies.line(thinking="Hm."), *lines]


def think_with_gemini() -> Any:
    thought = gemini_replies.chunk(gemini_replies.text("Hm.", thought=True))
    return [thought, *gemini_replies.tools_reply(*CALLS)]


@dataclass
class Speaker:
    """A provider before its strict server; `think` calls tools, `call` does so without reasoning,
    `say` answers, `cut` breaks off. `hides` is whether answers have reasoning that nobody can read.
    """

    row: str
    model: str
    produce: Callable[[], Any]
    think: Callable[[], Any]
    call: Callable[[], Any]
    say: Callable[[str], Any]
    cut: Callable[[str], Any]
    hides: bool = False
    server: Any = field(default=None)

    @property
    def address(self) -> str:
        return f"{self.row}/{self.model}"

    @property
    def settings(self) -> Mapping[str, Any]:
        more = {"project": vertex.PROJECT} if self.row.startswith("vertex") else {}
        return {"base-url": self.server.url, **more}

    @property
    def sent(self) -> str:
        """The last request."""
        body: bytes = self.server.requests[-1].body
        return body.decode()


@dataclass
class LocalSpeaker(Speaker):
    """llama.cpp in this process: its model is a file, its server the package."""

    folder: Path = Path()

    @property
    def address(self) -> str:
        return f"{self.row}/{write_model(self.folder / self.model)}"

    @property
    def settings(self) -> Mapping[str, Any]:
        # Room for the whole history: nothing is summarized.
        return {"context-tokens": 32768}

    @property
    def sent(self) -> str:
        return str(self.server.prompts[-1])


class LocalServer:
    """What `Speaker` wants of a server, as arguments of the package."""

    key = ""

    def __init__(self, package: FakePackage) -> None:
        self._package = package
        self.refusals: list[str] = []

    @property
    def prompts(self) -> list[str]:
        return self._package.prompts

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
    makers = _speakers()
    known = {speaker.row: speaker for speaker in makers}
    return [
        *makers,
        *(
            replace(known[MAKERS[row]], row=row, model=model, produce=_CLOUDS[row])
            for row, model in (azure_clients.MODELS | vertex_clients.MODELS).items()
        ),
    ]


def _speakers() -> list[Speaker]:
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
                openai, strict.encode_event, chat_completions_replies.chat_reply(text, "s")[:-1]
            ),
        ),
        Speaker(
            "ollama",
            ollama_replies.MODEL,
            ollama.FakeOllama,
            think_with_ollama,
            lambda: ollama_replies.tools_reply(("tell", CALLS[0][1])),
            ollama_replies.text_reply,
            lambda text: cut_of(ollama, ollama.encode_line, ollama_replies.text_reply(text, "s")),
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
            lambda text: cut_of(gemini, strict.encode_event, gemini_replies.text_reply(text, "s")),
            hides=True,
        ),
    ]


_CLOUDS: Mapping[str, Callable[[], Any]] = {
    "azure": azure.FakeAzure,
    "azure-chat": azure.FakeAzure,
    "azure-anthropic": azure.FakeFoundry,
    "vertex": vertex.FakeVertex,
    "vertex-anthropic": vertex.FakeVertexAnthropic,
}
ROWS = [*(speaker.row for speaker in speakers()), "llamacpp"]


def _repeats(first: str, second: str) -> bool:
    """Return True for a row of a cloud with another maker's: its maker's row shows the same."""
    if first in MAKERS or second in MAKERS:
        return MAKERS.get(first) != second and MAKERS.get(second) != first
    return False


def pairs(found: Iterable[tuple[str, str]]) -> pytest.MarkDecorator:
    """Each pair; those that repeat what others show are left to the slow tests."""
    marked = [
        pytest.param(*pair, marks=pytest.mark.slow if _repeats(*pair) else ()) for pair in found
    ]
    return pytest.mark.parametrize(("first", "second"), marked)


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
    """A turn with tools, system text, a document, media, and a turn that breaks off."""
    speaker.server.replies = [speaker.think(), speaker.say("Mild."), speaker.cut("It wa")]
    await conversation.converse("How is the weather?", invokers=[weather])
    await conversation.add(SupervisorCanister.from_text("Be brief from here on."))
    contents = (TextualContent("Rain is wet."), FileContent(PDF, "application/pdf", "rain.pdf"))
    report = DocumentCanister(contents, title="Report")
    await conversation.add([report])
    shown = (
        TextualContent("See these."),
        ImageContent(PIXEL, "image/png"),
        FileContent(PDF, "application/pdf", "plan.pdf"),
    )
    await conversation.add([UserCanister(shown)])
    with pytest.raises(ProviderError):
        await conversation.converse("And tomorrow?", invokers=[weather])


def lines_of(conversation: Conversation) -> list[bytes]:
    return [encode_canister(canister) for canister in conversation.canisters]


def notices_of(events: Sequence[Event]) -> list[str]:
    return [event.notice.text for event in events if isinstance(event, NoticeEvent)]


def check_losses(sent: str, notices: Sequence[str], *, cut: bool) -> None:
    """What a request does not have of a history was told, and words and calls are never lost."""
    for words in ("Oslo", "Rome", "mild in Oslo", "mild in Rome", "Mild.", "Rain is wet."):
        assert words in sent, words
    if cut:
        assert "It wa" in sent
    # Files are read where a model does not take them.
    assert base64.b64encode(PDF).decode() in sent or sent.count("The plan is to walk.") == 2
    # An image is described to such a model.
    told = [text for text in notices if "an image image/png is described" in text]
    assert bool(told) != (base64.b64encode(PIXEL).decode() in sent), notices
    assert len(told) == sent.count("[an image image/png, not shown")
    assert any("reasoning" in text for text in notices), notices


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
        begun = len(events)
        turn = await conversation.converse([UserCanister.from_text(text)], invokers=[weather])
        assert turn.text == "Yes.", f"{first.row} to {second.row}"
        assert speaker.server.refusals == []
        if text == "Go on." and first is not second:
            check_losses(second.sent, notices_of(events[begun:]), cut=first.row != "llamacpp")
    assert lines_of(conversation)[: len(before)] == before, "what was stored has changed"
    again = await session.archive.restore(conversation.identity)
    assert [one.identity for one in again.canisters] == [
        one.identity for one in conversation.canisters
    ]
    return events


@pairs(itertools.product(ROWS, ROWS))
async def test_a_conversation_goes_on_with_any_other_provider(
    first: str, second: str, served: dict[str, Speaker]
) -> None:
    keys = {row: speaker.server.key for row, speaker in served.items() if speaker.server.key}
    rows = {row: dict(speaker.settings, retries=0) for row, speaker in served.items()}
    async with open_session(keys=keys, configuration={"providers": rows}) as session:
        events = await check_switch(session, served[first], served[second])
    assert any(isinstance(event, MessageProgressEvent) for event in events)


@pairs(itertools.permutations(ROWS, 2))
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
    lost = [notice.text for notice in reported if notice.subject == "conversion"]
    # Google's models sign the end of each answer, with their reasoning.
    reasoning = f"the reasoning of another model is left out for {other.address}"
    assert lost == ([reasoning] if speaker.hides else [])


async def test_sending_what_another_provider_issued_would_be_detected(
    served: dict[str, Speaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversion, "issued", lambda self, native: True)
    keys = {row: speaker.server.key for row, speaker in served.items() if speaker.server.key}
    rows = {row: dict(speaker.settings, retries=0) for row, speaker in served.items()}
    async with open_session(keys=keys, configuration={"providers": rows}) as session:
        with pytest.raises((ProviderError, AssertionError)):
            await check_switch(session, served["openai"], served["anthropic"])
