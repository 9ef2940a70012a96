"""One round trip with every interface: what is sent, what is heard, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.fakes.backends import Interface
from tests.fakes.interfaces import (
    GEMINI,
    NOWHERE,
    OLLAMA,
    HttpInterface,
    asked,
    every,
    every_interface,
    every_server,
    every_vendor,
)
from tests.fakes.recordings import strip
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ControlInvalid, RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, ReasoningContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageCompletedEvent, MessageProgressEvent, Notice
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing import check_events

HI = [UserCanister.from_text("Hi")]
PNG = b"\x89PNG\r\n\x1a\n"
#: Members that say what canisters say, so that they cannot be given as they are.
RESERVED: Mapping[str, Sequence[str]] = {
    "openai": ["input"],
    "azure": ["input"],
    "ollama": ["messages", "tools"],
    "gemini": ["contents", "systemInstruction"],
    "vertex": ["contents", "systemInstruction"],
}


def speak(word: str) -> str:
    """Speak."""
    return word


SPEAK = Invoker.from_function(speak, name="tools/speak")


@every_interface
async def test_a_reply_is_the_same_streamed_and_unstreamed(interface: Interface) -> None:
    with interface.serve() as server:
        model = await interface.produce_model(server)
        heard = []
        for streaming in (True, False):
            # A server that is not asked to stream, and one that does not although it is asked to.
            events = interface.thoughts("Let me see.", "é😀", '{"word":"a"}')
            replies = [events]
            if isinstance(interface, HttpInterface):
                replies.append(interface.whole(events))
            for reply in replies:
                reported: list[Event] = []
                server.replies = [reply]
                context = TurnContext(
                    streaming=streaming, event_handler=reported.append, conversation="c1"
                )
                heard.append(await model.converse(HI, [SPEAK], context=context))
                check_events(reported, turn=False)
                assert {event.conversation for event in reported} == {"c1"}
        assert not server.refusals
        await model.client.close()
    # Only the first prompt of Ollama's was not in the server's cache.
    stripped = [[one[:-1] for one in strip(reply)] for reply in heard]
    assert all(one == stripped[0] for one in stripped)
    said, call = heard[0]
    assert isinstance(said, AssistantCanister)
    assert isinstance(call, InvocationCanister)
    assert isinstance(said.contents[0], ReasoningContent) is interface.thinks
    assert "é😀" in said.text
    assert (call.name, call.parsed) == ("speak", {"word": "a"})
    assert call.ending is not None
    assert call.ending.reason == StopReason.INVOCATIONS
    assert call.provenance is not None
    assert call.provenance.module == interface.module


@every_interface
async def test_a_turn_with_tools_is_held_and_forked(interface: Interface) -> None:
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"18 C in {city}"

    events: list[Event] = []
    with interface.serve() as server:
        calls = (("weather", '{"city":"Paris"}'), ("weather", '{"city":"Rome"}'))
        server.replies = [interface.tools(*calls), interface.texts("Mi", "ld.")]
        async with interface.open_session(server) as session:
            conversation = await session.begin(
                interface.address,
                supervisor="Be brief.",
                invokers=[weather],
                event_handler=events.append,
            )
            assert (await conversation.converse("Weather?")).text == "Mild."
            other = await conversation.fork()
            assert (await other.converse("And then?")).text == "Hello."
        sent = interface.sent(server)[1].decode()
        assert sent.index("18 C in Paris") < sent.index("18 C in Rome")
        assert not server.refusals
    check_events([one for one in events if one.conversation == conversation.identity])


@every_server
async def test_a_preview_is_what_is_sent_and_opens_no_connection(interface: HttpInterface) -> None:
    said: list[Canister] = [SupervisorCanister.from_text("Be brief."), *HI]
    controls, context = Controls(output_tokens=99), TurnContext()
    with interface.serve() as server:
        model = await interface.produce_model(server)
        model.check(said, controls)
        body = await model.preview(said, [SPEAK], controls, context)
        await model.client.close()
        assert server.connections == 0
        await model.converse(said, [SPEAK], controls, context)
        await model.client.close()
        await model.client.close()
        if interface is not OLLAMA:
            # Ollama's server is first asked what its model can do.
            assert asked(server)[0].body == body
        with pytest.raises(ControlInvalid):
            await model.converse(HI, controls=Controls(temperature=9.0))
        assert len(asked(server)) == 1


@pytest.mark.parametrize("kind", [MessageProgressEvent, MessageCompletedEvent])
@every_interface
async def test_a_handler_that_raises_stops_the_reply_and_is_not_called_again(
    interface: Interface, kind: type[Event]
) -> None:
    seen: list[Event] = []

    def handle(event: Event) -> None:
        seen.append(event)
        if isinstance(event, kind):
            raise ZeroDivisionError

    with interface.serve() as server:
        server.replies = [interface.texts("a", "b")]
        async with interface.open_session(server, retries=2) as session:
            conversation = await session.begin(interface.address, invokers=[SPEAK])
            with pytest.raises(ZeroDivisionError):
                await conversation.converse("Hi", event_handler=handle)
            assert isinstance(seen[-1], kind)
            assert len(interface.sent(server)) == 1
            assert (await conversation.converse("And now?")).text == "Hello."
        assert not server.refusals


@every_vendor
async def test_the_oldest_media_give_way_to_the_limit_of_a_request(
    interface: HttpInterface,
) -> None:
    old = UserCanister((ImageContent(PNG + b"o" * 6000, "image/png"),))
    new = UserCanister((ImageContent(PNG + b"n" * 6000, "image/png"),))
    accepts = {"accepts": ["image", "image/png"], "request-bytes": 10_000}
    # Gemini's large media are uploaded instead, unless the row says otherwise.
    settings = {"upload_bytes": 0} if interface is GEMINI else {}
    model = await interface.produce_model(NOWHERE, models={".*": accepts}, **settings)
    reported: list[Notice] = []
    context = TurnContext(notify=reported.append, fresh=frozenset({new.identity}))
    body = await model.preview([old, new], (), Controls(), context)
    assert len(body) <= 10_000
    assert b"left out to save room" in body
    assert (b"bm5u" in body, b"b29v" in body) == (True, False)
    assert [notice.canister for notice in reported] == [old.identity]
    assert "more than 10000 bytes" in reported[0].text
    both = TurnContext(fresh=frozenset({old.identity, new.identity}))
    with pytest.raises(RequestTooLarge, match="10000"):
        await model.preview([old, new], (), Controls(), both)


@every_vendor
async def test_extras_go_to_the_wire_except_what_canisters_say(interface: HttpInterface) -> None:
    model = await interface.produce_model(NOWHERE, name=interface.model)
    row = model.provider
    controls = Controls(extras={row: {"keep_alive": "1m"}, "another": {"x": "y"}})
    body = await model.preview(HI, (), controls, TurnContext())
    assert b'"keep_alive":"1m"' in body
    assert b'"y"' not in body
    for name in RESERVED.get(interface.row, ["messages"]):
        reserved = Controls(extras={row: {name: []}})
        with pytest.raises(ControlInvalid, match=f"'{name}' cannot be set in extras"):
            await model.preview(HI, (), reserved, TurnContext())


@every_server
async def test_configured_controls_that_do_not_fit_are_reported_and_left_out(
    interface: HttpInterface,
) -> None:
    reported: list[Notice] = []
    defaults = Controls(effort="herculean", output_tokens=77)
    context = TurnContext(notify=reported.append, default_controls=defaults)
    model: Any = await interface.produce_model(NOWHERE)
    body = await model.preview(HI, (), Controls(), context)
    assert b"77" in body
    assert b"herculean" not in body
    assert len(reported) == 1
    assert "effort" in reported[0].text


@every_server
async def test_requests_of_all_attempts_are_the_same(interface: HttpInterface) -> None:
    soon = {"retry-after-ms": "1", "retry-after": "0"}
    with interface.serve() as server:
        server.replies = [interface.failures["overloaded"](headers=soon) for _ in range(2)]
        model = await interface.produce_model(server, stream=StreamSettings(retries=2))
        (said,) = await model.converse(HI)
        assert getattr(said, "text", "") == "Hello."
        bodies = {request.body for request in asked(server)}
        assert (len(asked(server)), len(bodies)) == (3, 1)
        await model.client.close()


async def grow(
    interface: Interface, spoil: Callable[[Any], None] = lambda cache: None
) -> tuple[Sequence[Canister], Sequence[Canister]]:
    """The canisters that a conversation grows by, and those that are encoded for its requests."""
    with interface.serve() as backend:
        model = await interface.produce_model(backend)
        return await _grow(model, spoil)


async def _grow(
    model: Any, spoil: Callable[[Any], None]
) -> tuple[Sequence[Canister], Sequence[Canister]]:
    cache: Any = model.produce_cache()
    history: list[Canister] = [SupervisorCanister.from_text("Be brief."), *HI]
    await model.preview(history, (), Controls(), TurnContext(cache=cache))
    seen: list[Canister] = []
    nativize = cache.history.nativize

    def watch(canister: Canister, *rest: Any) -> Any:
        seen.append(canister)
        return nativize(canister, *rest)

    cache.history.nativize = watch
    begun = len(history)
    for number in range(20):
        history += [AssistantCanister.from_text(f"a{number}"), UserCanister.from_text(f"u{number}")]
        spoil(cache)
        body = await model.preview(history, (), Controls(), TurnContext(cache=cache))
        assert body == await model.preview(history, (), Controls(), TurnContext())
    return history[begun:], seen


@every(lambda one: one.caches)
async def test_a_turn_encodes_only_what_is_new_and_sends_the_same_bytes(
    interface: Interface,
) -> None:
    added, encoded = await grow(interface)
    assert encoded == added


@every(lambda one: one.caches)
async def test_a_cache_that_forgets_would_be_detected(interface: Interface) -> None:
    added, encoded = await grow(interface, lambda cache: setattr(cache, "_last", None))
    assert encoded != added
