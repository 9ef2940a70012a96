"""A model of Ollama's: its requests put together, sent, and compared with what the server read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from vibe_llms.configuration import merge
from vibe_llms.controls import Controls
from vibe_llms.events import Notice
from vibe_llms.exceptions import ContextOverflow, ControlInvalid, ModelUnavailable, RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Provenance, ReplyCanister
from vibe_llms.messages.contents import Reference
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, settle_controls
from vibe_llms.providers.exchanges import JSON_HEADERS, Exchange, hold
from vibe_llms.providers.interfaces import (
    Loader,
    Notifier,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.measures import Measure, measure_text
from vibe_llms.providers.ollama.context import (
    REASONED_REPLY_TOKENS,
    REPLY_TOKENS,
    Anchor,
    choose_window,
    exceeds,
    judge,
)
from vibe_llms.providers.ollama.framing import History
from vibe_llms.providers.ollama.messages import MODULE, list_references
from vibe_llms.providers.ollama.streams import Examiner, OllamaAssimilator
from vibe_llms.providers.pieces import Fragment, Slot, load_texts
from vibe_llms.providers.requests import HistoryCache, Request, nativize_controls, tell
from vibe_llms.providers.transport import Outgoing

if TYPE_CHECKING:
    from vibe_llms.providers.ollama.client import OllamaClient

_CHAT = "/api/chat"
_DOUBT = (
    "the server may not have read the beginning of the conversation: it reports fewer tokens than "
    "were sent, or the context is nearly full; a larger num-ctx in the row makes room"
)


class Cache(HistoryCache[History]):
    """What a conversation keeps for a model: besides the encoded, what the server has shown."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: ModelAttributes | None = None
        self.tools = Tools()
        self.anchor: Anchor | None = None
        self.window: int | None = None
        # What was told once is not told again when the history is encoded anew.
        self.told: set[Notice] = set()
        # Whether the server has shown that it does not keep to the window.
        self.unbounded = False


class Tools(Struct, frozen=True):
    """Tools as they are declared, and how large that is."""

    encoded: Sequence[Fragment] = ()
    measure: Measure = Measure()


class OllamaModel:
    """One of a server's models."""

    def __init__(self, client: OllamaClient, name: str) -> None:
        self.client = client
        self.name = name

    @property
    def provider(self) -> str:
        """The name of the row."""
        return self.client.provider

    @property
    def attributes(self) -> ModelAttributes:
        """What is known of the model; more, once its server has been asked."""
        return self.client.access_attributes(self.name)

    def produce_cache(self) -> Cache:
        """A fresh cache of encoded history."""
        return Cache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take, or what is missing, before anything is kept."""
        self.client.transport.prepare()
        known = self.client.knows(self.name)
        for canister in canisters:
            self.client.messages.check(canister, self, known=known)
        settled, _ = settle_controls(controls, Controls(), self.attributes, self.name)
        self.client.controls.nativize(settled, self)

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Ask the server what the model can do, so that a picture for a blind one is not kept."""
        await self.client.describe(self.name)
        self.check(canisters, controls)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip; see `vibe_llms.providers.interfaces.Model`.

        `ContextOverflow` also where the server answers, but says that it has read less than was
        sent: then it has cut the beginning of the conversation.
        """
        client = self.client
        await client.describe(self.name)
        request = await self.encode(canisters, invokers, controls, context)
        names = client.invocations.assimilate_names(invokers)
        body = await request.produce_body()
        outgoing = Outgoing("POST", _CHAT, body, JSON_HEADERS)
        exchange = Exchange(
            provider=self.provider,
            transport=client.transport,
            settings=client.stream,
            produce_assimilator=lambda: self._produce_assimilator(names, request.examine),
            read_error=partial(client.read_error, model=self.name, size=outgoing.size),
            notify=context.notify,
            throttle=context.throttle,
            streaming=context.streaming,
        )
        accumulator = Accumulator(
            Provenance(MODULE, self.provider, self.name),
            context.event_handler or client.event_handler,
            context.conversation,
        )
        try:
            return await hold(exchange, outgoing, accumulator)
        except ModelUnavailable:
            client.forget(self.name)
            raise

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """About how many tokens the model would read; always an estimate."""
        return await self.client.tokenizer.count(canisters, invokers, self, load)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """The body of the request that `converse` would send; the server is not asked."""
        request = await self.encode(canisters, invokers, controls, context)
        return b"".join(await request.produce_body())

    async def measure(
        self, canisters: Sequence[Canister], invokers: Sequence[Invoker], load: Loader
    ) -> Measure:
        """How large a conversation is on the wire."""
        cache = Cache()
        history = await self._extend(cache, canisters, TurnContext(load=load))
        return history.measure + self._encode_tools(cache, invokers).measure

    async def encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> ExaminedRequest:
        """The request, its history taken from the cache as far as that goes."""
        cache = context.cache if isinstance(context.cache, Cache) else Cache()
        context = msgspec.structs.replace(
            context, cache=cache, notify=partial(_notify_once, cache.told, context.notify)
        )
        return await self._encode(canisters, invokers, controls, context, cache)

    async def _encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
        cache: Cache,
    ) -> ExaminedRequest:
        settled, native, extras = self._nativize_controls(controls, context)
        history = await self._extend(cache, canisters, context)
        offered = self._choose_tools(invokers, settled, context)
        if (tools := self._encode_tools(cache, offered)) is not cache.tools:
            # What the server counted before was with other tools.
            cache.tools, cache.anchor = tools, None
        measure = self._measure(cache, history, tools)
        members = self._produce_members(settled, native, measure, cache)
        members = {**merge(members, extras), "stream": context.streaming}
        window = None if cache.unbounded else members["options"].get("num_ctx")
        if window is not None and measure.least > window:
            raise self._overflow(
                f"the history has at least {measure.least} tokens, and the context that is asked "
                f"for has {window}",
                measure.least,
                window,
            )
        fragments = history.messages()
        if tools.encoded:
            fragments += [b',"tools":[', *tools.encoded, b"]"]
        if (dropped := self._find_excess(fragments, context)) - history.without:
            cache.begin(History(self.client.messages, self, history.without | dropped))
            cache.anchor = None
            return await self._encode(canisters, invokers, controls, context, cache)
        examination = Examination(self, cache, history, tools, measure, window, context)
        return ExaminedRequest(
            fragments,
            members,
            context.load,
            None if members["truncate"] else examination.examine,
        )

    def _produce_assimilator(
        self, names: Mapping[str, str], examine: Examiner | None
    ) -> OllamaAssimilator:
        return OllamaAssimilator(
            self.provider, lambda name: names.get(name, name), examine, self.name
        )

    def _nativize_controls(
        self, controls: Controls, context: TurnContext
    ) -> tuple[Controls, Mapping[str, Any], Mapping[str, Any]]:
        """The controls to send, their members, and the members that are given as they are."""
        (settled, members), extras = nativize_controls(
            self,
            controls,
            context,
            lambda settled: (settled, self.client.controls.nativize(settled, self)),
        )
        for name in ("messages", "tools"):
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be given as it is; say it with canisters and tools",
                    control="extras",
                    model=self.name,
                )
        return settled, members, extras

    def _choose_tools(
        self, invokers: Sequence[Invoker], controls: Controls, context: TurnContext
    ) -> tuple[Invoker, ...]:
        if not invokers or controls.tool_choice == "none":
            return ()
        if self.attributes.tools != "native":
            tell(self, context, "the model cannot call tools, so none are offered to it")
            return ()
        return tuple(invokers)

    def _produce_members(
        self,
        controls: Controls,
        native: Mapping[str, Any],
        measure: Measure,
        cache: Cache,
    ) -> dict[str, Any]:
        settings, attributes = self.client.settings, self.attributes
        # Newer servers refuse what is too long, instead of cutting it, if they are told to.
        members: dict[str, Any] = {
            "model": self.name,
            "truncate": False,
            "shift": False,
            **native,
        }
        reply = REASONED_REPLY_TOKENS if attributes.reasoning else REPLY_TOKENS
        reply = max(reply, controls.output_tokens or 0)
        cache.window = window = choose_window(
            measure, attributes.context_tokens, reply, settings.num_ctx, cache.window
        )
        if window is not None:
            members["options"]["num_ctx"] = window
        if settings.keep_alive is not None:
            members["keep_alive"] = settings.keep_alive
        return members

    def _measure(self, cache: Cache, history: History, tools: Tools) -> Measure:
        measure = history.measure + tools.measure
        if cache.anchor is not None:
            return cache.anchor.raise_by(measure, history.hidden)
        return measure + Measure(ample=history.hidden.ample)

    def _find_excess(self, fragments: Sequence[Fragment], context: TurnContext) -> frozenset[str]:
        """The canisters whose pictures have to give way, the oldest first."""
        limit = self.attributes.request_bytes
        size = sum(part.encoded_size if isinstance(part, Slot) else len(part) for part in fragments)
        dropped: set[str] = set()
        slots = [part for part in fragments if isinstance(part, Slot)]
        for slot in slots:
            if limit is None or size <= limit:
                break
            if slot.origin not in context.fresh:
                size -= slot.encoded_size
                dropped.add(slot.origin)
        if limit is not None and size > limit:
            raise RequestTooLarge(
                f"the request would have {size} bytes, {self.name} takes {limit}; go on in a fork "
                "of an earlier point, or leave pictures out",
                provider=self.provider,
            )
        for slot in slots:
            if slot.origin in dropped:
                reason = f"the request would have more than {limit} bytes"
                tell(self, context, f"{slot.label} is left out: {reason}", slot.origin)
        return frozenset(dropped)

    def _overflow(self, what: str, tokens: int, limit: int | None) -> ContextOverflow:
        error = ContextOverflow(
            f"{what}; go on in a fork of an earlier point, with a larger num-ctx in the row, or "
            "with a model that has a larger context",
            provider=self.provider,
            code="context_overflow",
        )
        error.tokens, error.limit = tokens, limit
        return error

    async def _extend(
        self, cache: Cache, canisters: Sequence[Canister], context: TurnContext
    ) -> History:
        if cache.attributes is not self.attributes:
            cache.history, cache.attributes = None, self.attributes

        def produce() -> History:
            cache.anchor = None
            return History(self.client.messages, self)

        return await cache.extend(
            canisters,
            context,
            produce,
            lambda canister: self.client.messages.check(canister, self),
            _read,
        )

    def _encode_tools(self, cache: Cache, invokers: Sequence[Invoker]) -> Tools:
        if not invokers:
            return Tools() if cache.tools.encoded else cache.tools
        encoded = cache.encode_tools(
            invokers, (), lambda new: self.client.invocations.nativize(new, self)
        )
        if encoded is cache.tools.encoded:
            return cache.tools
        whole = measure_text(b"".join(part for part in encoded if isinstance(part, bytes)).decode())
        # A template may render them in a shorter form.
        return Tools(encoded, msgspec.structs.replace(whole, least=whole.least // 2))


class ExaminedRequest(Request, frozen=True):
    """A request, and what to do at the end of its reply."""

    examine: Examiner | None = None


class Examination(Struct, frozen=True):
    """What was sent, to be compared with what the server says that it has read."""

    model: OllamaModel
    cache: Cache
    history: History
    tools: Tools
    measure: Measure
    window: int | None
    context: TurnContext

    def examine(self, told: int | None, cached: int | None) -> None:
        """Raise `ContextOverflow` where the prompt was cut, notify where it may have been."""
        verdict = judge(self.measure, self.window, told, cached)
        if verdict == "cut":
            raise self.model._overflow(
                f"the server has read {told} tokens of about {self.measure.likely}: it has cut the "
                "beginning of the conversation, and answered without it",
                self.measure.likely,
                self.window or told,
            )
        if verdict == "doubtful":
            tell(self.model, self.context, _DOUBT)
        elif told and told >= self.measure.least:
            self.cache.unbounded = self.cache.unbounded or exceeds(self.window, told)
            measure = self.history.measure + self.tools.measure
            self.cache.anchor = Anchor(told, measure, self.history.hidden)


def _notify_once(told: set[Notice], notify: Notifier, notice: Notice) -> None:
    if notice not in told:
        told.add(notice)
        notify(notice)


async def _read(canisters: Sequence[Canister], load: Loader) -> Mapping[str, bytes]:
    """The texts of canisters, and the files that are text."""
    texts = await load_texts(canisters, load)
    references: list[Reference] = [
        reference for canister in canisters for reference in list_references(canister)
    ]
    return {**texts, **await load(references)} if references else texts
