"""A model of Ollama, and how its requests are assembled and compared with the prompt read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.configuration import Number, merge
from vibe_llms.base.exceptions import (
    ContextOverflow,
    ControlInvalid,
    ModelUnavailable,
    RequestTooLarge,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister
from vibe_llms.messages.contents import MediaContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.conversions import check_contents, load_words
from vibe_llms.providers.interfaces import (
    Loader,
    Notifier,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.models import HttpModel, HttpSettings, ModelConnection
from vibe_llms.providers.ollama.address import BASE_URL, read_host
from vibe_llms.providers.ollama.catalogue import TAGS
from vibe_llms.providers.ollama.context import (
    REASONED_REPLY_TOKENS,
    REPLY_TOKENS,
    Anchor,
    choose_window,
    exceeds,
    judge,
)
from vibe_llms.providers.ollama.controls import nativize_controls, read_native
from vibe_llms.providers.ollama.errors import ERRORS
from vibe_llms.providers.ollama.history import OllamaHistory
from vibe_llms.providers.ollama.messages import MODULE, may_be_taken, unsupported
from vibe_llms.providers.ollama.streams import Examiner, OllamaAssimilator
from vibe_llms.providers.pieces import Fragment, Slot
from vibe_llms.providers.requests import (
    HistoryCache,
    Request,
    apply_controls,
    offer_tools,
    send_notice,
)
from vibe_llms.providers.token_estimates import Measure, measure_text
from vibe_llms.providers.tool_names import nativize_name
from vibe_llms.providers.tool_schemas import OLLAMA, fit_tools

if TYPE_CHECKING:
    from vibe_llms.providers.ollama.package import OllamaLibrary

_DOUBT = (
    "the server may not have read the beginning of the conversation: it reports fewer tokens than "
    "were sent, or the context is nearly full; set a larger num-ctx in the row"
)


class OllamaSettings(HttpSettings, frozen=True):
    """Settings of a provider row.

    `num_ctx` is the size of the context in tokens; 0 leaves it to the server, and None lets it grow
    with the conversation. `keep_alive` is the time for which the model stays loaded after a reply,
    in seconds or with a unit; a negative one keeps it loaded forever.
    """

    base_url: str = BASE_URL
    num_ctx: Number | None = None
    keep_alive: (
        float | Annotated[str, Meta(pattern=r"^-?(\d+(\.\d+)?(ns|us|ms|s|m|h))+$")] | None
    ) = None


class OllamaConnection(ModelConnection[OllamaSettings], Protocol):
    """The members of a client that its models use."""

    def is_described(self, name: str) -> bool:
        """Return True if the server has described the model."""
        ...

    async def describe(self, name: str) -> None:
        """Ask the server once to describe a model."""
        ...

    def forget(self, name: str) -> None:
        """Ask for the description again at the next use."""
        ...

    def produce_library(self) -> OllamaLibrary:
        """Return the library of the server's models, an async context manager."""
        ...


class OllamaCache(HistoryCache[OllamaHistory]):
    """Encoded history of a conversation, with facts about the server's context."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: ModelAttributes | None = None
        self.tools = Tools()
        self.anchor: Anchor | None = None
        self.window: int | None = None
        # A notice is not repeated when the history is encoded again.
        self.reported: set[Notice] = set()
        # True if the server has read more than the requested context holds.
        self.unbounded = False


class Tools(Struct, frozen=True):
    """Encoded declarations of tools, and their size in tokens."""

    encoded: Sequence[Fragment] = ()
    measure: Measure = Measure()


class OllamaModel(HttpModel[OllamaSettings]):
    """One model of a server; its attributes grow when the server describes it."""

    client: OllamaConnection
    module = MODULE
    path = "/api/chat"
    assimilator = OllamaAssimilator
    errors = ERRORS
    attributes_files = ("families", "ollama")
    controls = None
    models_path = "/api/tags"

    def __init__(self, client: OllamaConnection, name: str, attributes: ModelAttributes) -> None:
        super().__init__(client, name, attributes)
        read_native(self)

    @classmethod
    def read_address(cls, text: str) -> str:
        """Return the address in `OLLAMA_HOST`, in any form that Ollama accepts."""
        return read_host(text)

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Return the models in the server's list, with their reported attributes."""
        entries = TAGS.decode(body).models or ()
        return {entry.title: entry.attributes for entry in entries if entry.title}

    def produce_cache(self) -> OllamaCache:
        """Return an empty cache of encoded history."""
        return OllamaCache()

    def unsupported(self, content: MediaContent) -> str:
        """Return why the model does not accept a content, or an empty text if it does.

        Pictures are accepted until the server has described the model.
        """
        reason = unsupported(content, self)
        known = self.client.is_described(self.name)
        return reason if known or not may_be_taken(content) else ""

    def check_controls(self, controls: Controls) -> None:
        """Raise `ControlInvalid` for controls that the interface does not take."""
        nativize_controls(controls, self)

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Get the model's description, so that pictures that it cannot see are refused early."""
        await self.client.describe(self.name)
        self.check(canisters, controls)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """Run one round trip; see `vibe_llms.providers.interfaces.Model`.

        It also raises `ContextOverflow` if the server answers but reports fewer tokens than were
        sent: then it has cut the beginning of the conversation.
        """
        await self.client.describe(self.name)
        try:
            return await super().converse(canisters, invokers, controls, context)
        except ModelUnavailable:
            self.client.forget(self.name)
            raise

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Return an estimate of the prompt's tokens, since the interface cannot count."""
        cache = OllamaCache()
        history = await self._extend(cache, canisters, TurnContext(load=load))
        fitted = fit_tools(self, invokers, OLLAMA, TurnContext())
        measure = history.measure + self._encode_tools(cache, fitted).measure
        return TokenCount(measure.likely, estimated=True)

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> ExaminedRequest:
        """Assemble the request of a round trip, with history from the cache where possible."""
        cache = context.cache if isinstance(context.cache, OllamaCache) else OllamaCache()
        context = msgspec.structs.replace(
            context, cache=cache, notify=partial(_notify_once, cache.reported, context.notify)
        )
        return await self._encode(canisters, invokers, controls, context, cache)

    async def _encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
        cache: OllamaCache,
    ) -> ExaminedRequest:
        settled, native, extras = self._nativize_controls(controls, context)
        history = await self._extend(cache, canisters, context)
        offered = await cache.fit_tools(
            offer_tools(self, invokers, settled.tool_choice, context),
            lambda new: fit_tools(self, new, OLLAMA, context),
        )
        if (tools := self._encode_tools(cache, offered)) is not cache.tools:
            # The earlier count of the server included other tools.
            cache.tools, cache.anchor = tools, None
        measure = self._measure(cache, history, tools)
        members = self._produce_members(settled, native, measure, cache)
        members = {**merge(members, extras), "stream": context.streaming}
        window = None if cache.unbounded else members["options"].get("num_ctx")
        if window is not None and measure.least > window:
            raise self._overflow(
                f"the history has at least {measure.least} tokens, but the requested context "
                f"has {window}",
                measure.least,
                window,
            )
        fragments = history.messages()
        if tools.encoded:
            fragments += [b',"tools":[', *tools.encoded, b"]"]
        if (dropped := self._find_excess(fragments, context)) - history.without:
            cache.begin(OllamaHistory(self, history.without | dropped))
            cache.anchor = None
            return await self._encode(canisters, invokers, controls, context, cache)
        examination = Examination(self, cache, history, tools, measure, window, context)
        return ExaminedRequest(
            fragments,
            members,
            context.load,
            examine=None if members["truncate"] else examination.examine,
        )

    def produce_assimilator(self, names: Mapping[str, str], request: Request) -> OllamaAssimilator:
        """Return the assimilator of one reply, which checks the reported size of the prompt."""
        examine = request.examine if isinstance(request, ExaminedRequest) else None
        name_of = lambda name: names.get(name, name)  # noqa: E731
        return OllamaAssimilator(self.provider, name_of, examine, self.name)

    def _nativize_controls(
        self, controls: Controls, context: TurnContext
    ) -> tuple[Controls, Mapping[str, Any], Mapping[str, Any]]:
        """Return the controls to send, their members, and the extras that are sent unchanged."""
        (settled, members), extras = apply_controls(
            self,
            controls,
            context,
            lambda settled: (settled, nativize_controls(settled, self)),
        )
        for name in ("messages", "tools"):
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be set in extras; use canisters and tools",
                    control="extras",
                    model=self.name,
                )
        return settled, members, extras

    def _produce_members(
        self,
        controls: Controls,
        native: Mapping[str, Any],
        measure: Measure,
        cache: OllamaCache,
    ) -> dict[str, Any]:
        settings, attributes = self.settings, self.attributes
        # Newer servers can refuse a prompt that is too long, instead of cutting it.
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

    def _measure(self, cache: OllamaCache, history: OllamaHistory, tools: Tools) -> Measure:
        measure = history.measure + tools.measure
        if cache.anchor is not None:
            return cache.anchor.raise_by(measure, history.hidden)
        return measure + Measure(ample=history.hidden.ample)

    def _find_excess(self, fragments: Sequence[Fragment], context: TurnContext) -> frozenset[str]:
        """Return the canisters whose pictures are left out to fit the limit, the oldest first."""
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
                f"the request would have {size} bytes, {self.name} takes {limit}; compact the "
                "conversation, or leave images out",
                provider=self.provider,
            )
        for slot in slots:
            if slot.origin in dropped:
                reason = f"the request would have more than {limit} bytes"
                send_notice(self, context, f"{slot.label} is left out: {reason}", slot.origin)
        return frozenset(dropped)

    def _overflow(self, what: str, tokens: int, limit: int | None) -> ContextOverflow:
        error = ContextOverflow(
            f"{what}; compact the conversation, or continue with a larger num-ctx in the "
            "row, or with a model that has a larger context",
            provider=self.provider,
            code="context_overflow",
        )
        error.tokens, error.limit = tokens, limit
        return error

    def _check_sent(self, canister: Canister) -> None:
        # The server has been asked by now.
        check_contents(canister, self, lambda content: unsupported(content, self))

    async def _extend(
        self, cache: OllamaCache, canisters: Sequence[Canister], context: TurnContext
    ) -> OllamaHistory:
        if cache.attributes is not self.attributes:
            cache.history, cache.attributes = None, self.attributes

        def produce() -> OllamaHistory:
            cache.anchor = None
            return OllamaHistory(self)

        return await cache.extend(
            canisters,
            context,
            produce,
            self._check_sent,
            load_words,
        )

    def _encode_tools(self, cache: OllamaCache, invokers: Sequence[Invoker]) -> Tools:
        if not invokers:
            return Tools() if cache.tools.encoded else cache.tools
        encoded = cache.encode_tools(
            invokers, (), lambda new: [nativize_invoker(one) for one in new]
        )
        if encoded is cache.tools.encoded:
            return cache.tools
        whole = measure_text(b"".join(part for part in encoded if isinstance(part, bytes)).decode())
        # A template may render them in a shorter form.
        return Tools(encoded, msgspec.structs.replace(whole, least=whole.least // 2))


class ExaminedRequest(Request, frozen=True):
    """A request, with an examiner for the end of its reply."""

    examine: Examiner | None = None


class Examination(Struct, frozen=True):
    """Facts about a sent request, to compare with the size that the server reports."""

    model: OllamaModel
    cache: OllamaCache
    history: OllamaHistory
    tools: Tools
    measure: Measure
    window: int | None
    context: TurnContext

    def examine(self, reported: int | None, cached: int | None) -> None:
        """Raise `ContextOverflow` if the prompt was cut, or notify if it may have been."""
        verdict = judge(self.measure, self.window, reported, cached)
        if verdict == "cut":
            raise self.model._overflow(
                f"the server read only {reported} of about {self.measure.likely} tokens: it "
                "dropped the beginning of the conversation",
                self.measure.likely,
                self.window or reported,
            )
        if verdict == "doubtful":
            send_notice(self.model, self.context, _DOUBT)
        elif reported and reported >= self.measure.least:
            self.cache.unbounded = self.cache.unbounded or exceeds(self.window, reported)
            measure = self.history.measure + self.tools.measure
            self.cache.anchor = Anchor(reported, measure, self.history.hidden)


def _notify_once(reported: set[Notice], notify: Notifier, notice: Notice) -> None:
    if notice not in reported:
        reported.add(notice)
        notify(notice)


def nativize_invoker(invoker: Invoker) -> dict[str, Any]:
    """Return the declaration of a tool.

    The server takes any name, but the templates and parsers of its models expect names that hosted
    interfaces take.
    """
    return {
        "type": "function",
        "function": {
            "name": nativize_name(invoker.name),
            "description": invoker.description or "",
            "parameters": invoker.arguments_schema,
        },
    }
