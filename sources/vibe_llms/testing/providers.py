"""Contract checks for implementations of `Provider`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import msgspec

from vibe_llms.base.exceptions import ControlInvalid, ProviderError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    ImageContent,
    Issuer,
    NativePayload,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.controls import Controls, read_controls
from vibe_llms.messages.events import (
    Event,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    ignore_events,
)
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import (
    Client,
    Model,
    ProviderFactory,
    TurnContext,
)
from vibe_llms.testing.events import check_events
from vibe_llms.testing.limits import (
    PIXEL,
    WAIT_SECONDS,
    Bench,
    check_errors,
    check_limits,
    require,
)

#: Tools by their canonical names, one of them from an ensemble.
_TOOLS = ("alpha", "greek/beta")
#: Controls that change every request of a model that takes them. A client may handle others.
_CONTROLS = Controls(temperature=0.5, top_p=0.5, top_k=5, output_tokens=77, seed=7).given()


async def check_provider(
    factory: ProviderFactory,
    model: str,
    *,
    name: str = "tested",
    settings: Mapping[str, Any] = MappingProxyType({}),
    key: str = "",
    calls: bool = False,
) -> None:
    """Raise `AssertionError` if a provider breaks its contract with conversations.

    The factory is called with a configuration that has this name, these settings and this key. The
    model must stream some text for any input, and the same text for the same input. The checks send
    about thirty requests, so use a fake server. To check errors, they replace the key, and
    `base-url` if the settings have one, by wrong values. The server must refuse a wrong key, and
    its message must not contain the right one.

    With `calls`, the input may also be "Call alpha and greek beta.", with the tools `alpha` and
    `greek/beta`. The model must call both in one reply, with no arguments, and answer the results.
    """
    bench = Bench(factory, name, settings, key)
    default: list[Event] = []
    async with bench.open(default.append) as (provider, client):
        require(provider.name == name, f"the provider is called {provider.name!r}, not {name!r}")
        chosen = await client.access_model(model)
        require(chosen.name == model, f"the model is called {chosen.name!r}, not {model!r}")
        require(chosen.provider == provider.name, f"its provider is {chosen.provider!r}")
        require(isinstance(chosen.attributes, ModelAttributes), "it has no ModelAttributes")
        await _check_survey(client, provider.name)
        await _check_reply(chosen, default)
        await _check_unstreamed(chosen)
        await _check_histories(chosen)
        await _check_cache(chosen)
        await _check_handler(chosen)
        await _check_cancel(chosen)
        await _check_preview(chosen)
        await _check_controls(chosen)
        if calls:
            await _check_calls(chosen)
        count = await chosen.count_tokens(_hello())
        require(count.tokens > 0, f"a greeting has {count.tokens} tokens")
        # The bench closes it too, so this checks a second `close`.
        await client.close()
    await check_limits(bench, model)
    await check_errors(bench, model)


async def _check_survey(client: Client, row: str) -> None:
    """Check that listed models belong to this row and can be accessed by their names."""
    try:
        models = await client.survey_models()
    except ProviderError:
        # Some servers cannot list their models.
        return
    names = [model.name for model in models]
    require(all(names), "a model that is listed has no name")
    require(len(names) == len(set(names)), f"a model is listed twice: {sorted(names)}")
    for model in models:
        require(model.provider == row, f"a model is listed as one of {model.provider!r}")
    for name in names[:3]:
        accessed = await client.access_model(name)
        require(accessed.name == name, f"the listed model {name!r} is {accessed.name!r}")


async def _check_reply(model: Model, default: list[Event]) -> None:
    """Check a reply with the default handler, then with the handler of the call."""
    default.clear()
    reply = await _converse(model, _hello(), TurnContext())
    require(bool(default), "the default event handler was not called")
    _check_canisters(model, reply, default)
    default.clear()
    events: list[Event] = []
    context = TurnContext(conversation="talk", event_handler=events.append)
    reply = await _converse(model, _hello(), context)
    require(not default, "the default event handler was called although the call has its own")
    require(
        all(event.conversation == "talk" for event in events),
        "an event does not carry the identity of its conversation",
    )
    _check_canisters(model, reply, events)


async def _check_unstreamed(model: Model) -> None:
    """Check that an unstreamed reply has the same contents and usage."""
    replies: list[Sequence[ReplyCanister]] = []
    for streaming in (True, False):
        events: list[Event] = []
        context = TurnContext(event_handler=events.append, streaming=streaming)
        replies.append(await _converse(model, _hello(), context))
        _check_canisters(model, replies[-1], events)
    streamed, whole = (_said(reply) for reply in replies)
    require(streamed == whole, f"streamed it is {streamed!r}, and unstreamed {whole!r}")
    one, other = (_usage(reply) for reply in replies)
    require(one == other, f"streamed the usage is {one!r}, and unstreamed {other!r}")


async def _check_calls(model: Model) -> None:
    """Check that several calls in one reply are whole, name their tools, and can be answered."""
    tools = [Invoker.from_function(_nothing, name=name) for name in _TOOLS]
    question = _hello(f"Call {' and '.join(_TOOLS).replace('/', ' ')}.")
    for streaming in (True, False):
        events: list[Event] = []
        context = TurnContext(event_handler=events.append, streaming=streaming)
        reply = await _converse(model, question, context, tools)
        _check_canisters(model, reply, events)
        made = [canister for canister in reply if isinstance(canister, InvocationCanister)]
        names = [call.name for call in made]
        require(sorted(names) == list(_TOOLS), f"it was asked to call {_TOOLS}, and called {names}")
        require(
            len({call.identity for call in made}) == len(made), "two calls have the same identity"
        )
        require(
            all(call.parsed is not None for call in made),
            f"the arguments of its calls are {[call.arguments for call in made]}",
        )
        results = [
            ResultCanister((TextualContent("done"),), invocation=call.identity) for call in made
        ]
        events.clear()
        further = await _converse(model, [*question, *reply, *results], context, tools)
        _check_canisters(model, further, events)


async def _check_histories(model: Model) -> None:
    """Check that foreign and interrupted messages in a history are accepted."""
    for history in _histories():
        events: list[Event] = []
        fresh = UserCanister.from_text("Go on.")
        context = TurnContext(event_handler=events.append, fresh=frozenset({fresh.identity}))
        said: list[Canister] = [*history, fresh]
        reply = await _converse(model, said, context)
        _check_canisters(model, reply, events)
        require(said == [*history, fresh], "it has changed the history")


async def _check_cache(model: Model) -> None:
    """Check that a conversation with a cache sends the same requests as without."""
    cache = model.produce_cache()
    said: list[Canister] = []
    for number in range(3):
        said.append(UserCanister.from_text(f"Question {number}"))
        context = TurnContext(event_handler=ignore_events, cache=cache)
        with_cache = await model.preview(said, (), Controls(), context)
        without = await model.preview(said, (), Controls(), TurnContext())
        require(
            json.loads(with_cache) == json.loads(without),
            f"the cache changes the request: {with_cache!r} instead of {without!r}",
        )
        said += await _converse(model, said, context)


async def _check_handler(model: Model) -> None:
    """Check that an exception in a handler reaches the caller."""

    class Stop(Exception):
        pass

    calls = 0

    def stop(_: Event) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Stop

    reported: Exception | None = None
    try:
        await _converse(model, _hello(), TurnContext(event_handler=stop))
    except Stop as error:
        reported = error
    require(reported is not None, "an exception of the event handler did not reach the caller")


async def _check_cancel(model: Model) -> None:
    """Check that a cancelled reply fails once and keeps its partial content, and the next works."""
    events: list[Event] = []
    begun = asyncio.Event()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, MessageProgressEvent):
            begun.set()

    async def hold_back() -> None:
        if begun.is_set():
            await asyncio.sleep(WAIT_SECONDS)

    context = TurnContext(event_handler=listen, throttle=hold_back)
    task = asyncio.ensure_future(model.converse(_hello(), (), Controls(), context))
    waiting = asyncio.ensure_future(begun.wait())
    await asyncio.wait([task, waiting], timeout=WAIT_SECONDS, return_when="FIRST_COMPLETED")
    waiting.cancel()
    require(begun.is_set(), "the reply does not stream")
    if not task.done():
        # A reply in one piece is complete by now; the cancel hits only the work after it.
        whole = any(isinstance(event, MessageCompletedEvent) for event in events)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        require(task.cancelled(), "a cancel was suppressed")
        check_events(events, turn=False)
        last = events[-1]
        require(whole or isinstance(last, MessageFailedEvent), f"a cancel ended with {last!r}")
        partial = last.partial if isinstance(last, MessageFailedEvent) else None
        ending = partial.ending if partial is not None else None
        marked = ending is not None and ending.interrupted
        require(whole or marked, "the partial reply is not marked as cut")
    events.clear()
    again = TurnContext(event_handler=events.append)
    _check_canisters(model, await _converse(model, _hello(), again), events)


async def _check_preview(model: Model) -> None:
    folder = "/home/ada/zugzwang"
    document = DocumentCanister(
        (TextualContent("Notes."),), title=f"{folder}/n.txt", source=f"{folder}/n.txt"
    )
    said = [document, *_hello("a rare word: syzygy")]
    body = await model.preview(said, (), Controls(), TurnContext())
    require(b"syzygy" in body, "the preview does not contain the message")
    require(
        b"zugzwang" not in body,
        "a folder of the user's machine is sent; see vibe_llms.providers.conversions.name_document",
    )
    json.loads(body)


async def _check_controls(model: Model) -> None:
    """Check that each control is either sent or refused."""
    plain = await model.preview(_hello(), (), Controls(), TurnContext())
    for name, value in _CONTROLS.items():
        try:
            body = await model.preview(_hello(), (), read_controls({name: value}), TurnContext())
        except ControlInvalid:
            continue
        require(
            json.loads(body) != json.loads(plain),
            f"the control {name!r} is neither sent nor rejected",
        )


def _check_canisters(model: Model, reply: Sequence[ReplyCanister], events: Sequence[Event]) -> None:
    """Check that a reply matches its events and has an ending."""
    check_events(events, turn=False)
    require(bool(reply), "the reply has no canisters; an empty one is one without contents")
    completed = [event.canister for event in events if isinstance(event, MessageCompletedEvent)]
    require(completed == list(reply), "the canisters of the events differ from those of the reply")
    require(len({one.reply for one in reply}) == 1, "its canisters are of several replies")
    for canister in reply:
        made_by = canister.provenance
        require(
            made_by is not None and (made_by.row, made_by.model) == (model.provider, model.name),
            f"the provenance is {made_by!r}",
        )
    for number, canister in enumerate(reply):
        ended = canister.ending is not None
        require(ended == (number == len(reply) - 1), "a canister before the last one has an ending")
    ending = reply[-1].ending
    require(
        ending is not None and ending.reason in list(StopReason) and not ending.interrupted,
        f"the reply ended as {ending!r}",
    )


def _said(reply: Sequence[ReplyCanister]) -> Sequence[object]:
    """Return the contents of a reply without the members that vary between equal replies."""
    return [
        (canister.name, canister.arguments)
        if isinstance(canister, InvocationCanister)
        else [
            (type(content).__name__, getattr(content, "data", None))
            for content in canister.contents
        ]
        for canister in reply
    ]


def _usage(reply: Sequence[ReplyCanister]) -> tuple[int, int, int] | None:
    """Return the token counts of a reply, without cache details."""
    usage = reply[-1].ending.usage if reply[-1].ending is not None else None
    if usage is None:
        return None
    return usage.input_tokens, usage.output_tokens, usage.reasoning_tokens


def _nothing() -> str:
    """Do nothing."""
    return "done"


async def _converse(
    model: Model,
    said: Sequence[Canister],
    context: TurnContext,
    invokers: Sequence[Invoker] = (),
) -> tuple[ReplyCanister, ...]:
    async with asyncio.timeout(WAIT_SECONDS):
        return await model.converse(said, invokers, Controls(), context)


def _hello(text: str = "Hello!") -> list[Canister]:
    return [UserCanister.from_text(text)]


def _histories() -> list[list[Canister]]:
    """Return histories with messages that the provider did not produce."""
    foreign = Provenance("elsewhere.provider", "elsewhere", "another-model", "reply-1")
    issuer = Issuer("elsewhere.provider", "elsewhere", "another-model")
    payload = NativePayload(issuer, msgspec.Raw(b'{"signature":"foreign"}'))
    thought = ReasoningContent("I think so.", native=payload)
    calls = [
        InvocationCanister(
            name="weather", arguments=f'{{"city":"{city}"}}', call="same", provenance=foreign
        )
        for city in ("Oslo", "Rome")
    ]
    results = [
        ResultCanister((TextualContent("cold"),), invocation=calls[0].identity),
        ResultCanister((), invocation=calls[1].identity, failed=True),
    ]
    said = AssistantCanister(
        (thought, TextualContent("It is."), TextualContent("")), reply="a", provenance=foreign
    )
    cut = AssistantCanister(
        (TextualContent("It wa"),),
        reply="b",
        provenance=foreign,
        ending=Ending("interrupted", interrupted=True, severed=("weather",)),
    )
    hello = UserCanister.from_text("Hello!")
    return [
        [SupervisorCanister.from_text("Be brief."), hello, said],
        [hello, *calls, *results, said],
        [hello, *calls],
        [hello, calls[0], results[0], calls[1]],
        [hello, cut, SupervisorCanister.from_text("Be polite."), hello, hello],
        [AssistantCanister(()), hello, AssistantCanister(())],
        [UserCanister((ImageContent(PIXEL, "image/png"), TextualContent("What is it?"))), said],
        [
            DocumentCanister((TextualContent("A report."),), title="Report"),
            hello,
            AssistantCanister.from_text("\ud800 \u2028 \0"),
        ],
    ]
