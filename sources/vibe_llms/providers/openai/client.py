"""What the providers, clients and models of both interfaces have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.configuration import StreamSettings, merge
from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler
from vibe_llms.exceptions import ControlInvalid, ModelNotFound, ProviderError, ReplyMalformed
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Provenance, ReplyCanister
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, load_attributes, settle_controls
from vibe_llms.providers.exchanges import Assimilator, Exchange, fetch, hold
from vibe_llms.providers.interfaces import (
    ConversationTokenizer,
    Embeddings,
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.limits import Passage
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.openai.embeddings import embed
from vibe_llms.providers.openai.errors import read_error
from vibe_llms.providers.openai.framing import History, read_tools
from vibe_llms.providers.openai.invocations import OpenAIInvocationsProcessor
from vibe_llms.providers.openai.package import PackageTransport
from vibe_llms.providers.pieces import Fragment
from vibe_llms.providers.requests import HistoryCache, Request, fit_request, nativize_controls
from vibe_llms.providers.transport import Outgoing, Transport, produce_http_transport

BASE_URL = "https://api.openai.com/v1"
JSON_HEADERS = {"content-type": "application/json"}
_MODELS = "/models"


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that the rows of both modules have.

    `organization` and `project` are sent with each request, where a key serves several.
    """

    base_url: str = BASE_URL
    organization: str = ""
    project: str = ""


class OpenAIClient(ABC):
    """A connection, and the processors; one subclass for each interface."""

    module: str
    path: str
    #: Members of a request that `extras` must not hold, since canisters or controls say them.
    reserved: tuple[str, ...] = ("stream",)
    tokenizer: ConversationTokenizer

    def __init__(
        self,
        provider: str,
        configuration: ProviderConfiguration,
        event_handler: EventHandler,
        settings: Settings,
    ) -> None:
        self.provider = provider
        self.event_handler = event_handler
        self.stream = configuration.stream
        self.transport = _produce_transport(provider, configuration, settings)
        self._keyless = configuration.credential.kind == "none"
        self._attributes = load_attributes(
            configuration.configuration, provider, "families", "openai"
        )

    @property
    @abstractmethod
    def invocations(self) -> OpenAIInvocationsProcessor:
        """The processor of tools."""

    @abstractmethod
    def produce_model(self, name: str, attributes: ModelAttributes) -> OpenAIModel:
        """A model of this client."""

    @abstractmethod
    def produce_history(self, model: OpenAIModel) -> History[Any]:
        """An empty history for a model."""

    @abstractmethod
    def produce_assimilator(self, names: Mapping[str, str]) -> Assimilator:
        """The translator of one reply; `names` are canonical names by those on the wire."""

    @abstractmethod
    def check(self, canister: Canister, model: OpenAIModel) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""

    @abstractmethod
    def nativize_controls(
        self, controls: Controls, model: OpenAIModel, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """The members that controls become; `names` are the names on the wire of the tools."""

    @abstractmethod
    def nativize_tools(self, invokers: Sequence[Invoker], model: OpenAIModel) -> Sequence[Any]:
        """The declarations of tools."""

    @abstractmethod
    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """The members that every request of this interface has."""

    async def access_model(self, name: str) -> OpenAIModel:
        """The model of this name; whether the server has it shows when it is spoken with."""
        if not name:
            raise ModelNotFound(f"which model of {self.provider!r}? See: vibe-llms models")
        return self.produce_model(name, self._attributes.integrate(name))

    async def survey_models(self) -> Sequence[OpenAIModel]:
        """The models that the server offers, with what it says of them."""
        settings = self.stream
        if self._keyless:
            # A server of one's own that does not run is not worth waiting for.
            settings = msgspec.structs.replace(settings, retries=0)
        body = await self.fetch(Outgoing("GET", _MODELS), settings)
        models = [
            self.produce_model(entry.id, self._attributes.integrate(entry.id, further=further))
            for entry in _decode_models(body, self.provider)
            for further in (entry.attributes(),)
        ]
        return sorted(models, key=lambda model: model.name)

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """A vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`."""
        return await embed(self, model, texts, dimensions)

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self.transport.close()

    async def fetch(
        self,
        outgoing: Outgoing,
        settings: StreamSettings | None = None,
        *,
        passage: Passage | None = None,
    ) -> bytes:
        """The whole body of an answer that is no reply."""
        return await fetch(
            self.transport,
            outgoing,
            provider=self.provider,
            settings=settings or self.stream,
            read_error=partial(self.read_error, size=outgoing.size),
            passage=passage,
        )

    async def encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Any,
        load: Loader,
    ) -> Request:
        """The request of a conversation, for those who count it."""
        request: Request = await model.encode(
            canisters, invokers, Controls(), TurnContext(load=load)
        )
        return request

    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, *, size: int = 0
    ) -> ProviderError:
        """The error of an answer whose status is not success; `size` is the request's."""
        return read_error(self.provider, status, headers, body, size=size)


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
        self.client.nativize_controls(msgspec.structs.replace(settled, tool_choice=None), self, {})

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


class _ModelEntry(Struct):
    """An item of a list of models.

    OpenAI's has a name and a date; the other members are those of OpenRouter, vLLM, Groq, Mistral.
    """

    id: str
    name: Any = None
    shutdown_date: Any = None
    context_length: Any = None
    context_window: Any = None
    max_model_len: Any = None
    max_context_length: Any = None
    architecture: Any = None

    def attributes(self) -> Mapping[str, Any]:
        """What the server says of the model, in the terms of our attributes."""
        told: dict[str, Any] = {}
        sizes = (
            self.context_length,
            self.context_window,
            self.max_model_len,
            self.max_context_length,
        )
        for size in sizes:
            if isinstance(size, int) and size > 0:
                told["context-tokens"] = size
                told["context-varies"] = False
                break
        if isinstance(self.name, str) and self.name != self.id:
            told["title"] = self.name
        if isinstance(self.shutdown_date, str):
            told["retires"] = self.shutdown_date
        modalities = (self.architecture or {}).get("input_modalities", ())
        if isinstance(self.architecture, dict) and isinstance(modalities, list):
            told["accepts"] = [
                kind for name in modalities for kind in _MODALITIES.get(str(name), ())
            ]
        return told


_MODALITIES = {
    "image": ("image", "image/png", "image/jpeg", "image/gif", "image/webp"),
    "audio": ("audio", "audio/wav", "audio/x-wav", "audio/mpeg"),
    "file": ("application/pdf",),
}


class _ModelPage(Struct):
    data: list[_ModelEntry]


def _decode_models(body: bytes, provider: str) -> Sequence[_ModelEntry]:
    try:
        if body.lstrip()[:1] == b"[":
            return msgspec.json.decode(body, type=list[_ModelEntry])
        return msgspec.json.decode(body, type=_ModelPage).data
    except (ValueError, RecursionError) as error:
        raise ReplyMalformed(
            f"the list of models is not in {body[:80]!r}", provider=provider
        ) from error


def _produce_transport(
    provider: str, configuration: ProviderConfiguration, settings: Settings
) -> Transport:
    credential = configuration.credential
    headers: dict[str, str] = {}
    if settings.organization:
        headers["openai-organization"] = settings.organization
    if settings.project:
        headers["openai-project"] = settings.project
    if credential.kind == "package":
        return PackageTransport(
            provider,
            # What the row does not say is left to the package, which knows its environment.
            settings.base_url if settings.base_url != BASE_URL else None,
            configuration.stream,
            headers,
            offline=configuration.configuration.offline,
        )
    return produce_http_transport(
        provider,
        settings.base_url,
        configuration.stream,
        credential,
        headers,
        offline=configuration.configuration.offline,
    )
