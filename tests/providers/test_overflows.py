"""T7: what is too long is said, before the call or after it, and the conversation stays usable.

Three shapes: long text, many pictures, and many results of tools, each with every interface, whose
server refuses them in its own words. See `anthropic/test_overflow.py` for counting beforehand and
`ollama/test_context.py` for a server that cuts what is too long and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import anthropic, openai
from tests.fakes.interfaces import ANTHROPIC, INTERFACES, OLLAMA, Interface
from tests.fakes.ollama import FakeModel
from tests.fakes.server import Answer, Request
from vibe_llms.configuration import StorageSettings
from vibe_llms.conversation import Conversation
from vibe_llms.events import Event
from vibe_llms.exceptions import ContextOverflow
from vibe_llms.ledger import Ledger
from vibe_llms.messages.contents import ImageContent
from vibe_llms.prompts import Prompt
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import check_events

LIMIT_TOKENS = 4_000
PICTURE_TOKENS = 300
_PICTURE = re.compile(rb'"type":"(?:input_)?image(?:_url)?"')

every_interface = pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES)


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


def refuse(interface: Interface, tokens: int) -> Answer:
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
def limited_server(interface: Interface) -> Iterator[Any]:
    """The strict fake with a small context; that of Ollama counts by itself."""
    with interface.produce_server() as server:
        if interface is OLLAMA:
            server.models[interface.model] = FakeModel(trained=4_096)
        else:
            respond = server.respond

            def refuse_long(request: Request) -> Answer:
                tokens = measure(request.body)
                return refuse(interface, tokens) if tokens > LIMIT_TOKENS else respond(request)

            server.respond = refuse_long
        yield server


async def check_overflow(interface: Interface, home: Path, shape: str) -> ContextOverflow:
    """The error of an overflow; the conversation goes on as if it had not been."""
    prompt, round_trips = SHAPES[shape]
    events: list[Event] = []
    with limited_server(interface) as server:
        async with open_session(
            configuration=interface.configure(server.url),
            archive=DirectoryArchive(home, StorageSettings(durability="fast")),
            keys=interface.keys(server),
        ) as session:
            conversation = await session.begin(
                interface.address, invokers=[read], event_handler=events.append, name="talk"
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
        assert server.refusals == []
    return caught.value


async def check_usable(session: Session, conversation: Conversation) -> None:
    """A shorter turn works, now and after a restart; nothing of the long one is sent."""
    assert (await conversation.converse("Something shorter")).text == "Hello."
    again = await session.resume(conversation.identity)
    assert (await again.converse("And now?")).text == "Hello."
    assert conversation.name == "talk"


@pytest.mark.parametrize("shape", SHAPES)
@every_interface
async def test_an_overflow_is_told_and_the_conversation_stays_usable(
    interface: Interface, shape: str, tmp_path: Path
) -> None:
    error = await check_overflow(interface, tmp_path, shape)
    assert "fork" in str(error)
    assert error.limit is None or error.limit <= 4_096
    # A server of Ollama's says no number, so that only what we count ourselves has one.
    if interface is not OLLAMA:
        assert error.tokens is not None
        assert error.tokens > LIMIT_TOKENS == error.limit


def keep_what_overflowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def withdraw(*arguments: Any) -> None:
        pass

    monkeypatch.setattr(Ledger, "withdraw", withdraw)


@pytest.mark.parametrize("seed", [keep_what_overflowed])
@every_interface
async def test_an_overflow_that_is_kept_would_be_found_out(
    interface: Interface,
    seed: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with pytest.raises(AssertionError):
        await check_overflow(interface, tmp_path, "many results")
