"""Conversations with a real server, by both interfaces, with the library and the command.

The environment names the server and its model, which calls tools and reasons where the prompts of
these tests ask for it. The test that needs it says what not every server can do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.command import run
from tests.cli.terminal import PROMPT, Terminal
from tests.fakes.relay import Relay
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ControlInvalid,
    ModelUnavailable,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    Turn,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageFailedEvent, MessageProgressEvent, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import check_events

pytestmark = pytest.mark.server

#: Read before the home of a test is made, which has no such variables.
SERVER = os.environ.get("TEST_SERVER_URL", "")
MODEL = os.environ.get("TEST_SERVER_MODEL", "")
MODULES = {
    "chat": "vibe_llms.providers.openai.chat_completions",
    "responses": "vibe_llms.providers.openai.responses",
}
INTERFACES = tuple(MODULES)
CALM = Controls(temperature=0.0)
HELLO, STORY = "Say hello.", "Tell a long story."
PATIENCE_SECONDS = 120


@pytest.fixture(autouse=True)
def named() -> None:
    """The server and the model have names."""
    assert SERVER, "TEST_SERVER_URL is not set: the base-url of a server"
    assert MODEL, "TEST_SERVER_MODEL is not set: the name of its model"


def configure(url: str = "", **settings: Any) -> dict[str, Any]:
    row = {"base-url": url or SERVER, "credential": "none", "retries": 0, **settings}
    return {
        "providers": {name: {"module": module, **row} for name, module in MODULES.items()},
        "storage": {"durability": "fast"},
    }


@asynccontextmanager
async def opened(home: Path, url: str = "", **settings: Any) -> AsyncIterator[Session]:
    archive = DirectoryArchive(home / "archive", StorageSettings(durability="fast"))
    async with open_session(configuration=configure(url, **settings), archive=archive) as session:
        yield session


async def begin(session: Session, interface: str, **options: Any) -> Conversation:
    return await session.begin(f"{interface}/{MODEL}", controls=CALM, **options)


async def ask(
    home: Path, interface: str, prompt: str, *, streaming: bool = True, **options: Any
) -> tuple[Turn, list[Event]]:
    """A turn of a new conversation, and its events, which follow the grammar."""
    events: list[Event] = []
    controls = options.pop("controls", None)
    async with opened(home) as session:
        conversation = await begin(session, interface, event_handler=events.append, **options)
        async with asyncio.timeout(PATIENCE_SECONDS):
            turn = await conversation.converse(prompt, streaming=streaming, controls=controls)
    check_events(events)
    return turn, events


def weather_of(asked: list[str], words: str = "It is fine.") -> Callable[[str], str]:
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return words

    return get_weather


def shape(turn: Turn) -> list[Any]:
    """What was said, without identities and the cuts of a stream."""
    return [
        (one.name, one.parsed) if isinstance(one, InvocationCanister) else one.text
        for one in turn.canisters
        if isinstance(one, InvocationCanister | AssistantCanister)
    ]


@pytest.mark.parametrize("prompt", [HELLO, "Answer in French.", "Give me JSON."])
@pytest.mark.parametrize("interface", INTERFACES)
async def test_text_is_the_same_streamed_and_whole(
    interface: str, prompt: str, tmp_path: Path
) -> None:
    streamed, events = await ask(tmp_path, interface, prompt)
    whole, _ = await ask(tmp_path, interface, prompt, streaming=False)
    assert streamed.text == whole.text != ""
    assert "\ufffd" not in streamed.text
    assert streamed.stop_reason == whole.stop_reason == StopReason.FINISHED
    assert streamed.usage == whole.usage
    assert min(streamed.usage.input_tokens, streamed.usage.output_tokens) > 0
    assert sum(isinstance(event, MessageProgressEvent) for event in events) > 1
    if "French" in prompt:
        assert not streamed.text.isascii()
    if "JSON" in prompt:
        assert isinstance(json.loads(streamed.text), dict)


@pytest.mark.parametrize("interface", INTERFACES)
async def test_reasoning_comes_apart_from_the_answer_and_may_go_back(
    interface: str, tmp_path: Path
) -> None:
    reported: list[Event] = []
    async with opened(tmp_path) as session:
        conversation = await begin(session, interface, event_handler=reported.append)
        for streaming in (True, False):
            turn = await conversation.converse("Think, then answer.", streaming=streaming)
            contents = [content for one in turn.canisters for content in one.contents]
            thoughts = [one for one in contents if isinstance(one, ReasoningContent)]
            assert any(thought.data for thought in thoughts)
            assert turn.text
    check_events(reported)
    assert not any(isinstance(event, NoticeEvent) for event in reported)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_tool_is_called_and_its_result_answered(
    interface: str, streaming: bool, tmp_path: Path
) -> None:
    asked: list[str] = []
    turn, _ = await ask(
        tmp_path,
        interface,
        "What is the weather in Paris?",
        streaming=streaming,
        invokers=[weather_of(asked)],
    )
    assert asked == ["Paris"]
    kinds = [type(one) for one in turn.canisters]
    assert kinds[1:] == [InvocationCanister, ResultCanister, AssistantCanister]
    assert "Paris" in turn.text
    assert turn.stop_reason == StopReason.FINISHED


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", INTERFACES)
async def test_two_tools_are_called_at_once(
    interface: str, streaming: bool, tmp_path: Path
) -> None:
    asked: list[str] = []
    turn, _ = await ask(
        tmp_path,
        interface,
        "What is the weather in Paris and in Lima?",
        streaming=streaming,
        invokers=[weather_of(asked)],
    )
    calls = turn.canisters[1:3]
    assert [getattr(call, "parsed", None) for call in calls] == [
        {"city": "Paris"},
        {"city": "Lima"},
    ]
    results = turn.canisters[3:5]
    # However the model goes on, each call was answered in its order.
    assert [getattr(one, "invocation", "") for one in results] == [one.identity for one in calls]
    assert sorted(asked[:2]) == ["Lima", "Paris"]


@pytest.mark.parametrize("interface", INTERFACES)
async def test_text_and_a_call_in_one_reply_are_reported_in_order_and_once(
    interface: str, tmp_path: Path
) -> None:
    added: list[int] = []

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        added.append(a + b)
        return str(a + b)

    shapes = []
    for streaming in (True, False):
        turn, _ = await ask(
            tmp_path, interface, "Add 2 and 3.", streaming=streaming, invokers=[add]
        )
        text, call = shape(turn)[:2]
        assert text
        assert call == ("add", {"a": 2, "b": 3})
        shapes.append((text, call))
    assert shapes[0] == shapes[1]
    assert added[0] == 5


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_tool_that_fails_is_reported_to_the_model(interface: str, tmp_path: Path) -> None:
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        raise LookupError("Error: there is no such city")

    turn, _ = await ask(
        tmp_path, interface, "What is the weather in Paris?", invokers=[get_weather]
    )
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert results
    assert results[0].failed
    assert turn.text


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_limit_of_the_length_ends_a_reply(
    interface: str, streaming: bool, tmp_path: Path
) -> None:
    whole, _ = await ask(tmp_path, interface, STORY)
    controls = Controls(output_tokens=16)
    turn, _ = await ask(tmp_path, interface, STORY, streaming=streaming, controls=controls)
    assert whole.text.startswith(turn.text)
    assert 0 < len(turn.text) < len(whole.text)
    assert turn.usage.output_tokens <= 16
    # Some servers call such a reply of Responses complete.
    expected = (
        {StopReason.LENGTH} if interface == "chat" else {StopReason.LENGTH, StopReason.FINISHED}
    )
    assert turn.stop_reason in expected


async def test_a_word_to_stop_at_ends_a_reply_and_responses_has_none(tmp_path: Path) -> None:
    whole, _ = await ask(tmp_path, "chat", HELLO)
    word = whole.text.split()[1]
    for streaming in (True, False):
        turn, _ = await ask(
            tmp_path, "chat", HELLO, streaming=streaming, controls=Controls(stop=(word,))
        )
        # Some servers leave the word itself in the reply.
        assert whole.text.startswith(turn.text)
        assert len(turn.text) < len(whole.text)
    with pytest.raises(ControlInvalid, match="stop"):
        await ask(tmp_path, "responses", HELLO, controls=Controls(stop=(word,)))


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_cancelled_reply_is_kept_and_the_next_turn_works(
    interface: str, tmp_path: Path
) -> None:
    events: list[Event] = []
    async with opened(tmp_path) as session:
        conversation = await begin(session, interface, event_handler=events.append)
        turn = asyncio.ensure_future(conversation.converse(STORY))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum(isinstance(event, MessageProgressEvent) for event in events) < 3:
                await asyncio.sleep(0.001)
            await conversation.cancel()
            assert (await turn).stop_reason == StopReason.INTERRUPTED
            kept = conversation.canisters[-1]
            assert isinstance(kept, AssistantCanister)
            assert kept.text
            assert (await conversation.converse(HELLO)).text
    check_events(events)


async def test_one_conversation_goes_from_one_interface_to_the_other_and_back(
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    tools = [weather_of(asked)]
    prompts = ("What is the weather in Paris?", "Think, then answer.", HELLO, "Answer in French.")
    events: list[Event] = []
    async with opened(tmp_path) as session:
        conversation = await begin(session, "chat", event_handler=events.append)
        identity = conversation.identity
        for number, prompt in enumerate((*prompts, *prompts)):
            await conversation.switch(f"{INTERFACES[number % 2]}/{MODEL}")
            async with asyncio.timeout(PATIENCE_SECONDS):
                await conversation.converse(prompt, invokers=tools)
        said = conversation.canisters
    check_events(events)
    async with opened(tmp_path) as session:
        again = await session.resume(identity)
        assert again.canisters == said
        assert again.model.provider == "responses"
        assert (await again.converse(HELLO)).stop_reason == StopReason.FINISHED


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_model_that_is_not_there_is_reported(interface: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        conversation = await session.begin(f"{interface}/no/such-model")
        with pytest.raises((ModelUnavailable, RequestRefused), match="no/such-model"):
            await conversation.converse(HELLO)
        # What was refused is kept, and another model answers it.
        await conversation.switch(f"{interface}/{MODEL}")
        assert (await conversation.converse(HELLO)).text


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_wrong_path_asks_whether_the_address_is_right(
    interface: str, streaming: bool, tmp_path: Path
) -> None:
    async with opened(tmp_path, f"{SERVER}/nowhere") as session:
        conversation = await begin(session, interface)
        with pytest.raises(ReplyMalformed, match="is base-url right"):
            await conversation.converse(HELLO, streaming=streaming)
        with pytest.raises(ReplyMalformed, match="is base-url right"):
            await session.survey_models(interface)


@pytest.mark.parametrize("interface", INTERFACES)
async def test_what_the_server_does_not_take_is_refused_and_the_next_turn_works(
    interface: str, tmp_path: Path
) -> None:
    # It closes its connection with such an error, perhaps only once the next request is sent.
    async with opened(tmp_path, retries=1) as session:
        conversation = await begin(session, interface)
        wrong = Controls(extras={interface: {"temperature": "hot"}})
        with pytest.raises(VibeLlmsError) as caught:
            await conversation.converse(HELLO, controls=wrong)
        assert "\n" not in str(caught.value)
        assert (await conversation.converse(HELLO)).text


async def test_the_models_are_listed(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        for interface in INTERFACES:
            # A server may list none but those that it has downloaded.
            names = [model.name for model in await session.survey_models(interface)]
            assert len(set(names)) == len(names)


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A server that can be stopped: the real one, behind a relay."""
    address = urlsplit(SERVER)
    with Relay(address.hostname or "", address.port or 80) as relay:
        yield relay


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_server_that_stops_in_the_middle_is_reported_and_works_when_it_is_back(
    interface: str, relay: Relay, tmp_path: Path
) -> None:
    events: list[Event] = []

    def stop(event: Event) -> None:
        events.append(event)
        progress = sum(isinstance(one, MessageProgressEvent) for one in events)
        if isinstance(event, MessageProgressEvent) and progress == 3:
            relay.stop()

    path = urlsplit(SERVER).path
    async with opened(tmp_path, f"http://127.0.0.1:{relay.port}{path}") as session:
        conversation = await begin(session, interface, event_handler=stop)
        with pytest.raises(ReplyCut):
            await conversation.converse(STORY)
        (failed,) = (event for event in events if isinstance(event, MessageFailedEvent))
        assert conversation.canisters[-1] == failed.partial
        with pytest.raises(ProviderUnreachable):
            await conversation.converse(HELLO)
        relay.start()
        assert (await conversation.converse(HELLO)).text
    check_events(events)


# The command.


def write_configuration(home: Path, interface: str) -> Path:
    """A file with the row, as a user writes it, and the model of the server as the default."""
    lines = [
        f"[providers.{interface}]",
        f'module = "{MODULES[interface]}"',
        f'base-url = "{SERVER}"',
        'credential = "none"',
        f"default-model = {json.dumps(MODEL)}",
    ]
    home.mkdir(parents=True, exist_ok=True)
    path = home / "config.toml"
    path.write_text("\n".join(lines))
    return path


def flags(interface: str) -> Sequence[str]:
    return ("-m", f"{interface}/{MODEL}", "-o", "temperature", "0")


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_command_answers_and_goes_on(interface: str, home: Path) -> None:
    write_configuration(home, interface)
    first = run(*flags(interface), "Answer in French.")
    assert (first.status, first.errors) == (0, "")
    assert not first.output.isascii()
    piped = run(*flags(interface), "--json", "--no-stream", HELLO)
    assert piped.status == 0
    assert piped.json["text"]
    again = run("-c", "Think, then answer.")
    assert again.status == 0
    assert again.output.strip()


@pytest.mark.parametrize("interface", INTERFACES)
def test_control_c_in_the_middle_of_a_reply_keeps_what_came(interface: str, home: Path) -> None:
    write_configuration(home, interface)
    with Terminal("chat", *flags(interface)) as terminal:
        terminal.expect(PROMPT)
        terminal.enter(STORY)
        terminal.expect(r"\x1b\[\?2004l(?s:.*?)[A-Z][a-z]+( [a-z]+){3}")
        terminal.press("c-c")
        terminal.expect(PROMPT)
        terminal.enter(HELLO)
        terminal.expect("Hello")
        terminal.expect(PROMPT)
        assert terminal.press_until_the_end("c-d") == 0
    with Terminal(*flags(interface), STORY) as terminal:
        terminal.expect("[A-Z][a-z]+ [a-z]+ [a-z]+")
        terminal.signal(signal.SIGINT)
        # A quick server may have said all by then.
        assert terminal.wait() in (0, 130)


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_command_reports_an_error_in_one_line(interface: str, home: Path) -> None:
    path = write_configuration(home, interface)
    assert "no/such-model" in run("-m", f"{interface}/no/such-model", HELLO).error
    path.write_text(path.read_text().replace(SERVER, f"{SERVER}/nowhere"))
    assert "base-url" in run(*flags(interface), HELLO).error
