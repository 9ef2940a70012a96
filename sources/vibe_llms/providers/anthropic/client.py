"""Provider, client and model of Anthropic's Messages interface: requests sent, models listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias, get_args
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler
from vibe_llms.exceptions import (
    ModelNotFound,
    ProviderError,
    ReplyMalformed,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Provenance, ReplyCanister
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.anthropic.controls import (
    SMALLEST_BUDGET_TOKENS,
    AnthropicControlsProcessor,
    ThinkingType,
    read_native,
)
from vibe_llms.providers.anthropic.errors import read_error
from vibe_llms.providers.anthropic.invocations import AnthropicInvocationsProcessor
from vibe_llms.providers.anthropic.messages import MODULE, PDF, AnthropicMessagesProcessor
from vibe_llms.providers.anthropic.package import PackageTransport
from vibe_llms.providers.anthropic.requests import Cache, CacheDuration, RequestsAssembler
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.anthropic.tokenizer import AnthropicConversationTokenizer
from vibe_llms.providers.attributes import ModelAttributes, load_attributes
from vibe_llms.providers.exchanges import JSON_HEADERS, Exchange, fetch, hold
from vibe_llms.providers.interfaces import (
    Loader,
    Model,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.transport import Outgoing, Transport, produce_http_transport

#: The version of the interface that this code speaks.
VERSION = "2026-10-21"
BASE_URL = "https://api.anthropic.com"
_MESSAGES = "/v1/messages"
_COUNT = "/v1/messages/count_tokens"
_MODELS = "/v1/models"
#: What the counting endpoint takes besides the messages.
_COUNTED = ("model", "output_config", "thinking", "tool_choice")
_PICTURES = ("image", "image/png", "image/jpeg", "image/gif", "image/webp")

#: The name of an experimental feature, as it may stand in a header.
Beta: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+\Z")]


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module.

    `cache` is how long Anthropic shall keep the prefix of a conversation for the next turn,
    `citations` whether documents are sent so that the model can cite them, `beta` the names of
    experimental features.
    """

    base_url: str = BASE_URL
    cache: CacheDuration = "5m"
    citations: bool = True
    beta: tuple[Beta, ...] = ()


class AnthropicProvider:
    """A row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self._configuration = configuration
        self._settings = configuration.configuration.read(
            Settings, configuration.settings, "providers", name
        )

    def produce_client(self) -> AnthropicClient:
        """A new client; whoever asks for it closes it."""
        return AnthropicClient(self, self._configuration, self._settings)


class AnthropicClient:
    """A connection, and the four processors."""

    def __init__(
        self, provider: AnthropicProvider, configuration: ProviderConfiguration, settings: Settings
    ) -> None:
        self.provider = provider.name
        self.event_handler = provider.event_handler
        self.stream = configuration.stream
        self.transport = _produce_transport(provider.name, configuration, settings)
        self.controls = AnthropicControlsProcessor()
        self.invocations = AnthropicInvocationsProcessor()
        self.messages = AnthropicMessagesProcessor(self.invocations)
        self.requests = RequestsAssembler(
            self.controls,
            self.messages,
            self.invocations,
            cache=settings.cache,
            citations=settings.citations,
        )
        self.tokenizer = AnthropicConversationTokenizer(self._ask_count)
        self._attributes = load_attributes(configuration.configuration, provider.name, "anthropic")

    async def access_model(self, name: str) -> AnthropicModel:
        """The model of this name; whether Anthropic has it shows when it is spoken with."""
        if not name:
            raise ModelNotFound(f"which model of {self.provider!r}? See: vibe-llms models")
        return AnthropicModel(self, name, self._attributes.integrate(name))

    async def survey_models(self) -> Sequence[AnthropicModel]:
        """The models that the key may use, with what Anthropic says of them."""
        models: list[AnthropicModel] = []
        after = ""
        while True:
            path = f"{_MODELS}?limit=1000" + (f"&after_id={quote(after)}" if after else "")
            page = await self._fetch_page(path)
            for entry in page.data:
                attributes = self._attributes.integrate(entry.id, further=entry.attributes())
                models.append(AnthropicModel(self, entry.id, attributes))
            if not page.has_more or not page.last_id or page.last_id == after:
                return models
            after = page.last_id

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self.transport.close()

    def produce_assimilator(self, names: Mapping[str, str]) -> AnthropicAssimilator:
        """The translator of one reply; `names` are canonical names by those on the wire."""
        return AnthropicAssimilator(self.provider, lambda name: names.get(name, name))

    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, *, size: int = 0
    ) -> ProviderError:
        """The error of an answer whose status is not success; `size` is the request's."""
        return read_error(self.provider, status, headers, body, size=size)

    async def _fetch_page(self, path: str) -> _ModelPage:
        body = await fetch(
            self.transport,
            Outgoing("GET", path),
            provider=self.provider,
            settings=self.stream,
            read_error=self.read_error,
        )
        try:
            return msgspec.json.decode(body, type=_ModelPage)
        except ValueError as error:
            raise ReplyMalformed(
                f"the list of models is not in {body[:80]!r}", provider=self.provider
            ) from error

    async def _ask_count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader,
    ) -> bytes:
        context = TurnContext(load=load)
        request = await self.requests.assemble(canisters, invokers, Controls(), context, model)
        body = await request.produce_body(_COUNTED)
        return await fetch(
            self.transport,
            Outgoing("POST", _COUNT, body, JSON_HEADERS),
            provider=self.provider,
            settings=self.stream,
            read_error=self.read_error,
        )


class AnthropicModel:
    """One of Anthropic's models."""

    def __init__(self, client: AnthropicClient, name: str, attributes: ModelAttributes) -> None:
        self.client = client
        self.name = name
        self.attributes = attributes
        read_native(self)

    @property
    def provider(self) -> str:
        """The name of the row."""
        return self.client.provider

    def produce_cache(self) -> Cache:
        """A fresh cache of encoded history."""
        return Cache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take, or what is missing, before anything is kept."""
        self.client.transport.prepare()
        self.client.requests.check(canisters, controls, self)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip; see `vibe_llms.providers.interfaces.Model`."""
        requests = self.client.requests
        request = await requests.assemble(canisters, invokers, controls, context, self)
        names = self.client.invocations.assimilate_names(invokers)
        body = await request.produce_body()
        outgoing = Outgoing("POST", _MESSAGES, body, JSON_HEADERS)
        exchange = Exchange(
            provider=self.provider,
            transport=self.client.transport,
            settings=self.client.stream,
            produce_assimilator=lambda: self.client.produce_assimilator(names),
            read_error=partial(self.client.read_error, size=outgoing.size),
            notify=context.notify,
            throttle=context.throttle,
            streaming=context.streaming,
        )
        accumulator = Accumulator(
            Provenance(MODULE, self.provider, self.name),
            context.event_handler or self.client.event_handler,
            context.conversation,
        )
        return await hold(exchange, outgoing, accumulator)

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read, as Anthropic counts them."""
        return await self.client.tokenizer.count(canisters, invokers, self, load)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """The body of the request that `converse` would send."""
        requests = self.client.requests
        request = await requests.assemble(canisters, invokers, controls, context, self)
        return b"".join(await request.produce_body())


class _ModelEntry(Struct):
    """An item of the list of models. Source: `types/model_info.py` of anthropic 2.12.0."""

    id: str
    display_name: str = ""
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    retires_at: str | None = None
    capabilities: dict[str, Any] | None = None

    def attributes(self) -> Mapping[str, Any]:
        """What the server says of the model, in the terms of our attributes."""
        controls: dict[str, Any] = {}
        told: dict[str, Any] = {"title": self.display_name, "retires": self.retires_at or ""}
        if self.max_input_tokens:
            told["context-tokens"] = self.max_input_tokens
        if self.max_tokens:
            told["output-tokens"] = self.max_tokens
            controls["output-tokens"] = {"minimum": 1, "maximum": self.max_tokens}
        capabilities = self.capabilities
        if capabilities is not None:
            accepts = [*_PICTURES] if _supported(capabilities, "image_input") else []
            accepts += [PDF] if _supported(capabilities, "pdf_input") else []
            told["accepts"] = accepts
            told["reasoning"] = _supported(capabilities, "thinking")
            types = _table(_table(capabilities, "thinking"), "types")
            thinking = [name for name in get_args(ThinkingType) if _supported(types, name)]
            if thinking:
                told["native"] = {"thinking": thinking}
                controls["reasoning-tokens"] = self._bound_budget(thinking)
            effort = _table(capabilities, "effort")
            levels = [name for name in effort if name != "supported" and _supported(effort, name)]
            if effort:
                controls["effort"] = {"choices": levels} if levels else False
        return {**told, "controls": controls}

    def _bound_budget(self, thinking: Sequence[str]) -> Mapping[str, int] | bool:
        if "enabled" in thinking:
            bounds = {"minimum": 0 if "disabled" in thinking else SMALLEST_BUDGET_TOKENS}
            return {**bounds, "maximum": self.max_tokens - 1} if self.max_tokens else bounds
        return {"minimum": 0, "maximum": 0} if "disabled" in thinking else False


class _ModelPage(Struct):
    data: list[_ModelEntry]
    has_more: bool = False
    last_id: str | None = None


def _table(capabilities: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of what the server says; empty where it says something else."""
    entry = capabilities.get(name)
    return entry if isinstance(entry, dict) else {}


def _supported(capabilities: Mapping[str, Any], name: str) -> bool:
    return _table(capabilities, name).get("supported") is True


def _produce_transport(
    provider: str, configuration: ProviderConfiguration, settings: Settings
) -> Transport:
    credential = configuration.credential
    headers = {"anthropic-version": VERSION}
    if settings.beta:
        headers["anthropic-beta"] = ",".join(settings.beta)
    if credential.kind == "package":
        return PackageTransport(
            provider,
            # What the row does not say is left to the package, which knows profiles.
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
