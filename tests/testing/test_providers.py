"""The contract of providers: kept by all of ours, and every breach of it is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.fakes.anthropic import KEY, FakeAnthropic
from tests.plugins.parrot import ParrotProvider
from vibe_llms.controls import Controls
from vibe_llms.events import Event, MessageStartedEvent
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import AssistantCanister, Canister, ReplyCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.providers.anthropic.client import AnthropicProvider
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.scripted.client import ScriptedModel, ScriptedProvider
from vibe_llms.testing import ScriptedReply, check_provider


async def test_the_scripted_provider_keeps_it() -> None:
    await check_provider(ScriptedProvider, "demo")


async def test_a_third_party_provider_keeps_it() -> None:
    await check_provider(ParrotProvider, "green", settings={"loud": True})


async def test_anthropic_keeps_it(fake_anthropic: FakeAnthropic) -> None:
    await check_provider(
        AnthropicProvider, "claude-opus-5", settings={"base-url": fake_anthropic.url}, key=KEY
    )
    assert fake_anthropic.refusals == []
    assert len(fake_anthropic.requests) > 15


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


Speak = Callable[..., Any]


async def forget_the_default(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    handler = context.event_handler or (lambda event: None)
    return await speak(
        said, (), Controls(), msgspec.structs.replace(context, event_handler=handler)
    )


async def tell_both(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
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


async def change_the_history(self: Any, speak: Speak, said: Any, context: TurnContext) -> Any:
    reply = await speak(said, (), Controls(), context)
    if len(said) > 3:
        del said[0]
    return reply


@pytest.mark.parametrize(
    ("breach", "complaint"),
    [
        (forget_the_default, "default event handler was not called"),
        (tell_both, "beside that of the call"),
        (forget_the_conversation, "identity of its conversation"),
        (return_something_else, "other canisters than the reply has"),
        (return_nothing, "has no canisters"),
        (end_without_a_word, "event 0"),
        (swallow_what_the_handler_raises, "did not reach the caller"),
        (swallow_a_cancel, "a cancel was swallowed"),
        (change_the_history, "changed the history"),
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
