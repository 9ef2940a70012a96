"""What the models of both interfaces have in common: a request put together, and sent."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vibe_llms.configuration import merge
from vibe_llms.controls import Controls, leave_choice
from vibe_llms.exceptions import ControlInvalid, ProviderError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Provenance, ReplyCanister
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, settle_controls
from vibe_llms.providers.exchanges import JSON_HEADERS, Exchange, hold
from vibe_llms.providers.interfaces import Loader, TokenCount, TurnContext, refuse_loading
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.openai.framing import History, read_tools
from vibe_llms.providers.pieces import Fragment
from vibe_llms.providers.requests import HistoryCache, Request, fit_request, nativize_controls
from vibe_llms.providers.transport import Outgoing

if TYPE_CHECKING:
    from vibe_llms.providers.openai.client import OpenAIClient


class Prepared(Struct, frozen=True):
    """What a request is made of: the history, the member `tools`, and the other members."""

    history: History[Any]
    tools: Sequence[Fragment]
    members: Mapping[str, Any]


class OpenAIModel(ABC):
    """A model of either interface; subclasses say how it is asked."""

    client: OpenAIClient

    def __init__(self, name: str, attributes: ModelAttributes) -> None:
        self.name = name
        self.attributes = attributes
        self.native = read_native(self)

    @property
    def provider(self) -> str:
        """The name of the row."""
        return self.client.provider

    def produce_cache(self) -> HistoryCache[History[Any]]:
        """A fresh cache of encoded history."""
        return HistoryCache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take, or what is missing, before anything is kept."""
        self.client.transport.prepare()
        for canister in canisters:
            self.client.check(canister, self)
        settled, _ = settle_controls(controls, Controls(), self.attributes, self.name)
        # Which tools there will be is not known yet.
        self.client.nativize_controls(leave_choice(settled), self, {})

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip; see `vibe_llms.providers.interfaces.Model`."""
        request = await self.encode(canisters, invokers, controls, context)
        return await self.send(request, invokers, context)

    async def send(
        self,
        request: Request,
        invokers: Sequence[Invoker],
        context: TurnContext,
        *,
        instead: Callable[[], Request] | None = None,
    ) -> tuple[ReplyCanister, ...]:
        """The reply to a request; `instead` makes that for a server which lost what it kept."""
        client = self.client
        names = client.invocations.assimilate_names(invokers)
        outgoing = Outgoing("POST", client.path, await request.produce_body(), JSON_HEADERS)

        async def produce_other(error: ProviderError) -> Outgoing | None:
            if instead is None or not client_forgot(error):
                return None
            return Outgoing("POST", client.path, await instead().produce_body(), JSON_HEADERS)

        exchange = Exchange(
            provider=self.provider,
            transport=client.transport,
            settings=client.stream,
            produce_assimilator=lambda: client.produce_assimilator(names),
            read_error=partial(client.read_error, size=outgoing.size),
            notify=context.notify,
            throttle=context.throttle,
            streaming=context.streaming,
        )
        accumulator = Accumulator(
            Provenance(client.module, self.provider, self.name),
            context.event_handler or client.event_handler,
            context.conversation,
        )
        return await hold(exchange, outgoing, accumulator, otherwise=produce_other)

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read."""
        return await self.client.tokenizer.count(canisters, invokers, self, load)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """The body of the request that `converse` would send."""
        request = await self.encode(canisters, invokers, controls, context)
        return b"".join(await request.produce_body())

    async def encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """The request, its history taken from the cache as far as that goes."""
        return self.build(await self.prepare(canisters, invokers, controls, context), context)

    async def prepare(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Prepared:
        """What a request is made of."""
        client = self.client
        members, tools = self.frame_controls(controls, invokers, context)
        cache: HistoryCache[History[Any]] = (
            context.cache if isinstance(context.cache, HistoryCache) else HistoryCache()
        )
        history = await cache.extend(
            canisters,
            context,
            lambda: client.produce_history(self),
            lambda canister: client.check(canister, self),
        )
        return Prepared(history, self.encode_tools(cache, invokers, tools), members)

    def build(self, prepared: Prepared, context: TurnContext, *, later: bool = False) -> Request:
        """The request; with `later` without the part of the history that the server keeps."""
        history = prepared.history.fragments(later=later)
        fragments = fit_request([*history, *prepared.tools], self, context)
        return Request(fragments, prepared.members, context.load)

    def frame_controls(
        self, controls: Controls, invokers: Sequence[Invoker], context: TurnContext
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        """The members besides the history, and the tools that are given as they are."""
        client = self.client
        rows = (controls.extras, context.default_controls.extras)
        found = (row[self.provider] for row in rows if "tools" in row.get(self.provider, ()))
        tools = read_tools(next(found, {}))
        names = client.invocations.collect_names(invokers, tools)
        members, extras = nativize_controls(
            self,
            controls,
            context,
            lambda settled: client.nativize_controls(settled, self, names),
        )
        for name in client.reserved:
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be given as it is", control="extras", model=self.name
                )
        given = {name: value for name, value in extras.items() if name != "tools"}
        fixed = client.frame_members(streaming=context.streaming)
        return {"model": self.name, **merge({**fixed, **members}, given)}, tools

    def encode_tools(
        self,
        cache: HistoryCache[History[Any]],
        invokers: Sequence[Invoker],
        native: Sequence[Any],
    ) -> Sequence[Fragment]:
        """The member `tools`, if there are any."""
        if not invokers and not native:
            return []
        encoded = cache.encode_tools(
            invokers, native, lambda new: self.client.nativize_tools(new, self)
        )
        return [b',"tools":[', *encoded, b"]"]


def client_forgot(error: ProviderError) -> bool:
    """Whether a server does not have the response on which a request builds."""
    return error.code == "previous_response_not_found"
