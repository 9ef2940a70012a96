"""T7: what is too long is said, before the call or after it, and the conversation stays usable.

Three shapes: long text, many pictures, and many results of tools, each with every interface, whose
server refuses them in its own words. Anthropic's also counts beforehand. See
`anthropic/test_overflow.py` for pictures that give way and `ollama/test_context.py` for a server
that cuts what is too long and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import anthropic, openai
from tests.fakes.backends import Interface
from tests.fakes.embedded import LLAMACPP, ScriptedInterface
from tests.fakes.interfaces import ANTHROPIC, BEDROCK, OLLAMA, SHOUT, every
from tests.fakes.ollama import FakeModel
from tests.fakes.server import HttpAnswer, ReceivedRequest
from vibe_llms.base.exceptions import ContentUnsupported, ContextOverflow
from vibe_llms.conversations import context_window
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.conversations.prompts import Prompt
from vibe_llms.messages.canisters import DigestCanister, ResultCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.messages.events import Event
from vibe_llms.session.core import Session
from vibe_llms.testing import check_events

LIMIT_TOKENS = 4_000
PICTURE_TOKENS = 300
_PICTURE = re.compile(rb'"type":"(?:input_)?image(?:_url)?"|"image":\{|"inlineData"')


def picture(number: int, size: int = 30) -> ImageContent:
    return ImageContent(number.to_bytes(2, "big") * (size // 2), "image/png")


def read(page: int) -> str:
    """Read a page."""
    return f"page {page} " * 300


LONG_TEXT: Prompt = "word " * 9_000
MANY_PICTURES: Prompt = ["Look:", *(picture(number) for number in range(30))]
MANY_RESULTS: Prompt = "Read it all"
#: What is said, and how many round trips it has before it overflows.
SHAPES: dict[str, tuple[Prompt, int]] = {
    "long text": (LONG_TEXT, 0),
    "many pictures": (MANY_PICTURES, 0),
    "many results": (MANY_RESULTS, 1),
}


def measure(body: bytes) -> int:
    """The tokens of a request, by rule of thumb."""
    return len(body) // 4 + PICTURE_TOKENS * len(_PICTURE.findall(body))


def refuse(interface: Interface, tokens: int) -> HttpAnswer:
    """What the server says of a request with too many tokens."""
    if interface is ANTHROPIC:
        words = f"prompt is too long: {tokens} tokens > {LIMIT_TOKENS} maximum"
        return anthropic.failure(400, "invalid_request_error", words)
    words = (
        f"This model's maximum context length is {LIMIT_TOKENS} tokens. However, your messages "
        f"resulted in {tokens} tokens. Please reduce the length of the messages."
    )
    return openai.failure(400, "invalid_request_error", words, "context_length_exceeded")


@contextmanager
def limited_server(interface: Interface, *, counts: bool) -> Iterator[Any]:
    """The strict fake with a small context; that of Ollama counts by itself."""
    with interface.serve() as server:
        server.overflows = 0
        if isinstance(interface, ScriptedInterface):
            server.limit = LIMIT_TOKENS * 4
        elif interface is OLLAMA:
            server.models[interface.model] = FakeModel(trained=4_096)
        elif interface is not LLAMACPP:
            respond = server.respond

            def refuse_long(request: ReceivedRequest) -> HttpAnswer:
                tokens = measure(request.body)
                if request.path.endswith("count_tokens"):
                    server.count = tokens if counts else anthropic.failure(404, "not_found_error")
                elif tokens > LIMIT_TOKENS:
                    server.overflows += 1
                    return refuse(interface, tokens)
                answer: HttpAnswer = respond(request)
                return answer

            server.respond = refuse_long
        yield server


async def check_overflow(
    interface: Interface, home: Path, shape: str, *, counts: bool = True
) -> tuple[ContextOverflow, int]:
    """The error of an overflow, after which the conversation continues as if it had not been.

    And how many requests the server refused.
    """
    prompt, round_trips = SHAPES[shape]
    events: list[Event] = []
    with limited_server(interface, counts=counts) as server:
        settings: dict[str, Any] = {}
        if interface is ANTHROPIC:
            settings["models"] = {interface.model: {"context-tokens": LIMIT_TOKENS}}
        if interface is BEDROCK:
            settings["models"] = {interface.model: {"native": {"images": 100}}}
        if interface is LLAMACPP:
            settings["context_tokens"] = LIMIT_TOKENS
        async with interface.open_session(server, home, **settings) as session:
            conversation = await session.begin(
                interface.address,
                invokers=[read],
                event_handler=events.append,
                name="talk",
                context_mode="off",
            )
            await conversation.converse("Hello")
            before = conversation.canisters
            if round_trips:
                calls = (("read", f'{{"page":{number}}}') for number in range(12))
                server.replies = [interface.tools(*calls)]
            with pytest.raises(ContextOverflow) as caught:
                await conversation.converse(prompt)
            server.replies = []
            assert conversation.canisters == before
            await check_usable(session, conversation)
            check_events(events)
        assert not server.refusals
        return caught.value, server.overflows


async def check_usable(session: Session, conversation: Conversation) -> None:
    """A shorter turn works, now and after a restart; nothing of the long one is sent."""
    assert (await conversation.converse("Something shorter")).text == "Hello."
    again = await session.resume(conversation.identity)
    assert (await again.converse("And now?")).text == "Hello."
    assert conversation.name == "talk"


#: The example plugin does not know an overflow from another refusal.
every_window = every(lambda one: one is not SHOUT)


@pytest.mark.parametrize("shape", SHAPES)
@every_window
async def test_an_overflow_is_reported_and_the_conversation_stays_usable(
    interface: Interface, shape: str, tmp_path: Path
) -> None:
    if shape == "many pictures" and not interface.sees:
        # It is refused before it could be too long.
        with pytest.raises(ContentUnsupported):
            await check_overflow(interface, tmp_path, shape)
        return
    error, _ = await check_overflow(interface, tmp_path, shape)
    assert error.limit is None or error.limit <= 4_096
    # A server of Ollama's and a script say no number; only what we count ourselves has one.
    if interface is not OLLAMA and not isinstance(interface, ScriptedInterface):
        assert "compact the conversation" in str(error)
        assert error.tokens is not None
        assert error.tokens > LIMIT_TOKENS == error.limit
        assert str(error.tokens) in str(error)


@every(lambda one: one is not SHOUT and not isinstance(one, ScriptedInterface))
async def test_results_that_are_too_long_become_shorter_and_the_turn_goes_on(
    interface: Interface, tmp_path: Path
) -> None:
    """The same turn that overflows without a digest, in the words of every server."""
    with limited_server(interface, counts=True) as server:
        settings: dict[str, Any] = {}
        if interface is ANTHROPIC:
            settings["models"] = {interface.model: {"context-tokens": LIMIT_TOKENS}}
        if interface is LLAMACPP:
            settings["context_tokens"] = LIMIT_TOKENS
        async with interface.open_session(server, tmp_path, **settings) as session:
            conversation = await session.begin(interface.address, invokers=[read], name="talk")
            await conversation.converse("Hello")
            calls = (("read", f'{{"page":{number}}}') for number in range(12))
            server.replies = [interface.tools(*calls)]
            turn = await conversation.converse(MANY_RESULTS)
            assert turn.text == "Hello."
            assert any(isinstance(one, DigestCanister) for one in turn.canisters)
            results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
            assert len(results) == 12
            await check_usable(session, conversation)
        assert not server.refusals


@pytest.mark.parametrize("counts", [True, False], ids=["counting", "not counting"])
async def test_long_text_is_counted_before_it_is_sent_where_that_can_be(
    counts: bool, tmp_path: Path
) -> None:
    _, overflows = await check_overflow(ANTHROPIC, tmp_path, "long text", counts=counts)
    assert overflows == (0 if counts else 1)


async def test_a_count_that_is_not_made_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_window, "estimate_tokens", lambda backwards: 0)
    with pytest.raises(AssertionError):
        await test_long_text_is_counted_before_it_is_sent_where_that_can_be(True, tmp_path)


def keep_what_overflowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def withdraw(*arguments: Any) -> None:
        pass

    monkeypatch.setattr(History, "withdraw", withdraw)


@pytest.mark.parametrize("seed", [keep_what_overflowed])
@every_window
async def test_an_overflow_that_is_kept_would_be_detected(
    interface: Interface,
    seed: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with pytest.raises(AssertionError):
        await check_overflow(interface, tmp_path, "many results")
