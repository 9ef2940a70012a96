"""The contract of providers: kept by all of ours, and every breach of it is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.fakes import anthropic, openai
from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.ollama import FakeOllama
from tests.fakes.openai import FakeOpenAI
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.plugins.parrot import ParrotProvider
from vibe_llms.base.exceptions import (
    ContentUnsupported,
    ControlInvalid,
    CredentialRefused,
    ProviderOverloaded,
    RateLimited,
    RequestError,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Provenance,
    ReplyCanister,
    ResultCanister,
    Usage,
)
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageStartedEvent
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.anthropic.client import AnthropicProvider
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.ollama.client import OllamaProvider
from vibe_llms.providers.openai.chat_completions.model import ChatCompletionsProvider
from vibe_llms.providers.openai.responses.model import ResponsesProvider
from vibe_llms.providers.scripted.client import ScriptedModel, ScriptedProvider
from vibe_llms.providers.scripted.demo import improvise as demonstrate
from vibe_llms.testing import Part, ScriptedReply, check_provider, fake_server
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    ollama_replies,
    responses_replies,
)


async def test_the_scripted_provider_keeps_it() -> None:
    await check_provider(ScriptedProvider, "demo", calls=True)


async def test_a_third_party_provider_keeps_it() -> None:
    await check_provider(ParrotProvider, "green", settings={"loud": True})


class Calling:
    """Has a strict fake call both tools of the contract when they are offered and not yet run."""

    replies: list[Any]

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        body = request.json if request.body else {}
        said = body.get("messages") or body.get("input") or [{}]
        answered = (
            said[-1].get("role") == "tool" or "result" in str(said[-1]) or "output" in said[-1]
        )
        if body.get("tools") and not answered:
            self.replies = [self.call(request)]
        answer: HttpAnswer = super().respond(request)  # type: ignore[misc]
        return answer

    def call(self, request: ReceivedRequest) -> Any:
        raise NotImplementedError


CALLS = (("alpha", "{}"), ("greek__beta", "{}"))


class CallingAnthropic(Calling, FakeAnthropic):
    def call(self, request: ReceivedRequest) -> Any:
        return anthropic_replies.tools_reply(*CALLS)


class CallingOpenAI(Calling, FakeOpenAI):
    def call(self, request: ReceivedRequest) -> Any:
        if request.path == openai.CHAT:
            return chat_completions_replies.chat_tools(*CALLS)
        calls = [responses_replies.function_call(*call, f"call_{call[0]}") for call in CALLS]
        return responses_replies.response_reply(*calls)


class CallingOllama(Calling, FakeOllama):
    def call(self, request: ReceivedRequest) -> Any:
        return ollama_replies.tools_reply(*CALLS)


#: Each provider with a model of its own, and the strict fake behind it.
KEEPING: dict[str, tuple[Any, str, Callable[[], Any], str, str]] = {
    "anthropic": (AnthropicProvider, "claude-opus-5", CallingAnthropic, anthropic.KEY, ""),
    "openai": (ResponsesProvider, "gpt-6.1-sol", CallingOpenAI, openai.KEY, ""),
    "openai-chat": (ChatCompletionsProvider, "gpt-5.5", CallingOpenAI, openai.KEY, ""),
    "ollama": (OllamaProvider, "qwen3:8b", CallingOllama, "", ""),
}


@pytest.mark.parametrize("name", KEEPING)
async def test_each_of_ours_keeps_it_before_its_strict_fake(name: str) -> None:
    factory, model, produce, key, path = KEEPING[name]
    with produce() as server:
        settings = {"base-url": server.url + path}
        await check_provider(factory, model, name=name, settings=settings, key=key, calls=True)
        assert server.refusals == []
        assert len(server.requests) > 20


@pytest.mark.parametrize("name", KEEPING)
async def test_each_of_ours_keeps_it_before_the_fake_server(name: str) -> None:
    factory, model, _, key, _ = KEEPING[name]
    with fake_server(demonstrate) as server:
        row = server.configuration["providers"][name]
        settings = {"base-url": row["base-url"]}
        given = server.key if key else ""
        await check_provider(factory, model, name=name, settings=settings, key=given, calls=True)
        assert server.refusals == []


def improvise(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
    return ScriptedReply.from_chunks("It ", "is.")


class Careless(ScriptedModel):
    """A model that breaks the contract in one way."""

    breach: Callable[..., Any]

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        result: tuple[ReplyCanister, ...] = await type(self).breach(
            self, super().converse, canisters, context
        )
        return result


class Gossip(ScriptedModel):
    """A model whose requests say where a document lies."""

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        sources = [one.source for one in canisters if isinstance(one, DocumentCanister)]
        return json.dumps(["syzygy", *sources]).encode()


Speak = Callable[..., Any]


async def forget_the_default(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    handler = context.event_handler or (lambda event: None)
    return await speak(
        said, (), Controls(), msgspec.structs.replace(context, event_handler=handler)
    )


async def report_both(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    def both(event: Event) -> None:
        self.client.event_handler(event)
        if context.event_handler is not None:
            context.event_handler(event)

    return await speak(said, (), Controls(), msgspec.structs.replace(context, event_handler=both))


async def forget_the_conversation(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    return await speak(said, (), Controls(), msgspec.structs.replace(context, conversation=""))


async def return_something_else(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    reply = await speak(said, (), Controls(), context)
    return (msgspec.structs.replace(reply[0], contents=(TextualContent("other"),)),)


async def return_nothing(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    await speak(said, (), Controls(), context)
    return ()


async def end_without_a_word(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    handler = context.event_handler or self.client.event_handler

    def hide(event: Event) -> None:
        if not isinstance(event, MessageStartedEvent):
            handler(event)

    return await speak(said, (), Controls(), msgspec.structs.replace(context, event_handler=hide))


async def swallow_what_the_handler_raises(
    self: Any, speak: Speak, said: Any, context: TurnContext
) -> Any:
    try:
        return await speak(said, (), Controls(), context)
    except Exception:  # noqa: BLE001  (the bug)
        return (AssistantCanister(()),)


async def swallow_a_cancel(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    try:
        return await speak(said, (), Controls(), context)
    except asyncio.CancelledError:
        return (AssistantCanister(()),)


async def answer_otherwise_when_streamed(
    self: Any, speak: Speak, said: Any, context: TurnContext
) -> Any:
    self._script = lambda *_: ScriptedReply.from_chunks("It ", "is" if context.streaming else "no")
    return await speak(said, (), Controls(), context)


async def count_otherwise_when_streamed(
    self: Any, speak: Speak, said: Any, context: TurnContext
) -> Any:
    usage = Usage(output_tokens=1 + context.streaming)
    self._script = lambda *_: ScriptedReply(parts=(Part(text="It is."),), usage=usage)
    return await speak(said, (), Controls(), context)


async def change_the_history(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    reply = await speak(said, (), Controls(), context)
    if len(said) > 3:
        del said[0]
    return reply


@pytest.mark.parametrize(
    ("breach", "complaint"),
    [
        (forget_the_default, "default event handler was not called"),
        (report_both, "although the call has its own"),
        (forget_the_conversation, "identity of its conversation"),
        (return_something_else, "the canisters of the events differ"),
        (return_nothing, "has no canisters"),
        (end_without_a_word, "event 0"),
        (swallow_what_the_handler_raises, "did not reach the caller"),
        (swallow_a_cancel, "a cancel was suppressed"),
        (change_the_history, "changed the history"),
        (answer_otherwise_when_streamed, "streamed it is .*'It is'"),
        (count_otherwise_when_streamed, r"streamed the usage is \(0, 2, 0\)"),
    ],
)
async def test_every_breach_is_seen(breach: Callable[..., Any], complaint: str) -> None:
    class CarelessProvider(ScriptedProvider):
        def produce_client(self) -> Any:
            client = super().produce_client()
            kind = type("Breach", (Careless,), {"breach": staticmethod(breach)})

            async def access_model(name: str) -> ScriptedModel:
                model: ScriptedModel = kind(client, name, improvise)
                return model

            client.access_model = access_model  # type: ignore[method-assign]
            return client

    with pytest.raises(AssertionError, match=complaint):
        await check_provider(CarelessProvider, "demo")


async def test_a_folder_that_is_sent_is_seen() -> None:
    class GossipProvider(ScriptedProvider):
        def produce_client(self) -> Any:
            client = super().produce_client()

            async def access_model(name: str) -> ScriptedModel:
                return Gossip(client, name, improvise)

            client.access_model = access_model  # type: ignore[method-assign]
            return client

    with pytest.raises(AssertionError, match="a folder of the user's machine is sent"):
        await check_provider(GossipProvider, "demo")


class Narrow(ScriptedModel):
    """A model that is known to take neither pictures nor controls, and may say so."""

    refuses: type[RequestError] | None = None
    late = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.attributes = ModelAttributes(controls={})

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        if self.late:
            return
        pictures = any(isinstance(c, ImageContent) for one in canisters for c in one.contents)
        if pictures and self.refuses is ContentUnsupported:
            raise ContentUnsupported("blind")
        if controls.given() and self.refuses is ControlInvalid:
            raise ControlInvalid("rigid", control="seed")

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        fresh = [canister for canister in canisters if canister.identity in context.fresh]
        self.check(fresh, controls)
        return await super().converse(canisters, invokers, controls, context)


class Blind(Narrow):
    """Refuses pictures, but takes whatever control."""

    refuses = ContentUnsupported


class Rigid(Narrow):
    """Refuses controls in `converse` alone, when something of the turn was kept already."""

    refuses = ControlInvalid

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.attributes = ModelAttributes(accepts=("image",), controls={})

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        return None


class Hasty(Narrow):
    """Refuses pictures when it has begun already."""

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        reply = await super().converse(canisters, invokers, controls, context)
        if any(isinstance(c, ImageContent) for c in canisters[-1].contents):
            raise ContentUnsupported("too late")
        return reply


def produce_with(model: type[ScriptedModel], **members: Any) -> Any:
    """A provider of such models; `members` replace methods of its client."""

    class Other(ScriptedProvider):
        def produce_client(self) -> Any:
            client = super().produce_client()

            async def access_model(name: str) -> ScriptedModel:
                return model(client, name, demonstrate)

            client.access_model = access_model  # type: ignore[method-assign]
            for name, member in members.items():
                setattr(client, name, partial(member, client))
            return client

    return Other


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (Narrow, "unsupported input did not raise ContentUnsupported"),
        (Hasty, "a request that was refused before sending had events"),
        (Blind, "`check` did not raise ControlInvalid"),
        (Rigid, "`check` did not raise ControlInvalid"),
    ],
)
async def test_a_provider_that_breaks_a_rule_fails_the_check(
    model: type[ScriptedModel], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await check_provider(produce_with(model), "demo")


async def list_twice(client: Any) -> Any:
    return [await client.access_model("demo")] * 2


async def list_a_stranger(client: Any) -> Any:
    model = await client.access_model("demo")
    model.provider = "stranger"
    return [model]


async def list_one_without_a_name(client: Any) -> Any:
    return [await client.access_model("")]


async def list_nothing(client: Any) -> Any:
    raise ProviderOverloaded("not now", provider="x")


async def close_once(client: Any) -> None:
    if hasattr(client, "closed"):
        raise LookupError("it is closed already")
    client.closed = True


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"survey_models": list_twice}, "a model is listed twice"),
        ({"survey_models": list_a_stranger}, "listed as one of 'stranger'"),
        ({"survey_models": list_one_without_a_name}, "has no name"),
    ],
)
async def test_a_wrong_list_of_models_is_seen(members: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await check_provider(produce_with(ScriptedModel, **members), "demo")


async def test_a_control_that_gets_lost_is_seen() -> None:
    class Forgetful(ScriptedModel):
        async def preview(
            self,
            canisters: Sequence[Canister],
            invokers: Sequence[Invoker],
            controls: Controls,
            context: TurnContext,
        ) -> bytes:
            return await super().preview(canisters, invokers, Controls(), context)

    with pytest.raises(AssertionError, match="'temperature' is neither sent nor rejected"):
        await check_provider(produce_with(Forgetful), "demo")


async def test_a_server_need_not_list_its_models() -> None:
    await check_provider(produce_with(ScriptedModel, survey_models=list_nothing), "demo")


async def test_a_client_that_can_be_closed_but_once_is_seen() -> None:
    with pytest.raises(LookupError, match="closed already"):
        await check_provider(produce_with(ScriptedModel, close=close_once), "demo")


class Caller(ScriptedModel):
    """Calls tools, and does it wrongly."""

    wrong = ""

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        if invokers and not isinstance(canisters[-1], ResultCanister):
            parts = [Part(invocation=name) for name in ("alpha", "greek/beta")]
            match self.wrong:
                case "one":
                    parts = parts[:1]
                case "name":
                    parts[1] = Part(invocation="greek__beta")
                case "arguments":
                    parts[1] = Part(invocation="greek/beta", arguments="{")
            self._script = lambda *_: ScriptedReply(parts=tuple(parts))
        return await super().converse(canisters, invokers, controls, context)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("one", r"and called \['alpha'\]"),
        ("name", "greek__beta"),
        ("arguments", "the arguments of its calls are"),
    ],
)
async def test_wrong_calls_are_seen(wrong: str, complaint: str) -> None:
    model = type("WrongCaller", (Caller,), {"wrong": wrong})
    with pytest.raises(AssertionError, match=complaint):
        await check_provider(produce_with(model), "demo", calls=True)


class Failing(ScriptedModel):
    """Fails where its row says so, but not as it should."""

    way: Callable[..., Any]

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        if self.client.pace_seconds:
            result: tuple[ReplyCanister, ...] = await type(self).way(self, context)
            return result
        return await super().converse(canisters, invokers, controls, context)


def refuse(**changes: Any) -> CredentialRefused:
    return CredentialRefused(
        changes.get("words", "no"), provider=changes.get("provider", "tested"), status=401
    )


async def fail_otherwise(self: Any, context: TurnContext) -> Any:
    with Accumulator(Provenance("m", "tested", "demo"), self.client.event_handler):
        raise RateLimited("later", provider="tested")


async def fail_without_a_name(self: Any, context: TurnContext) -> Any:
    with Accumulator(Provenance("m", "tested", "demo"), self.client.event_handler):
        raise refuse(provider="elsewhere")


async def fail_in_silence(self: Any, context: TurnContext) -> Any:
    raise refuse()


async def not_fail(self: Any, context: TurnContext) -> Any:
    return ()


@pytest.mark.parametrize(
    ("way", "complaint"),
    [
        (fail_otherwise, "expected CredentialRefused, got RateLimited"),
        (not_fail, "expected CredentialRefused, got None"),
        (fail_without_a_name, "does not name its row"),
        (fail_in_silence, "the events report a failure as None"),
    ],
)
async def test_a_wrong_error_is_seen(way: Callable[..., Any], complaint: str) -> None:
    model = type("WrongFailing", (Failing,), {"way": staticmethod(way)})

    class Picky(produce_with(model)):  # type: ignore[misc]
        def __init__(self, name: str, configuration: Any, event_handler: Any) -> None:
            super().__init__(name, configuration, event_handler)
            self.pace_seconds = float(configuration.credential.find().reveal() != "sk-right-1")

    with pytest.raises(AssertionError, match=complaint):
        await check_provider(Picky, "demo", key="sk-right-1")


async def test_a_model_by_another_name_is_seen() -> None:
    class Renamed(ScriptedProvider):
        def produce_client(self) -> Any:
            client = super().produce_client()
            access = client.access_model

            async def access_model(name: str) -> ScriptedModel:
                model = await access("demo")
                model.name = "other"
                return model

            client.access_model = access_model  # type: ignore[method-assign]
            return client

    with pytest.raises(AssertionError, match="is called 'other'"):
        await check_provider(Renamed, "demo")
