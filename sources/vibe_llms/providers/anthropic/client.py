"""Provider, client and model of Anthropic's Messages interface: requests put together and sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import is_
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from vibe_llms.configuration import merge
from vibe_llms.controls import Controls
from vibe_llms.credentials import Credential
from vibe_llms.events import EventHandler, Notice
from vibe_llms.exceptions import (
    ControlInvalid,
    ModelNotFound,
    ProviderError,
    ReplyMalformed,
    RequestTooLarge,
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
from vibe_llms.providers.anthropic.framing import History
from vibe_llms.providers.anthropic.invocations import AnthropicInvocationsProcessor
from vibe_llms.providers.anthropic.messages import MODULE, PDF, AnthropicMessagesProcessor
from vibe_llms.providers.anthropic.package import PackageTransport
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.anthropic.tokenizer import AnthropicConversationTokenizer
from vibe_llms.providers.attributes import ModelAttributes, load_attributes, settle_controls
from vibe_llms.providers.exchanges import Exchange, fetch, hold
from vibe_llms.providers.interfaces import (
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.pieces import (
    Block,
    Fragment,
    append_member,
    encode_json,
    fill,
    fit,
    interleave,
    load_texts,
)
from vibe_llms.providers.transport import HttpTransport, Outgoing, Transport

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
Beta: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$")]


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module.

    `cache` is how long Anthropic shall keep the prefix of a conversation for the next turn,
    `citations` whether documents are sent so that the model can cite them, `beta` the names of
    experimental features.
    """

    base_url: str = BASE_URL
    cache: Literal["5m", "1h", "off"] = "5m"
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
        self.settings = settings
        self.transport = _produce_transport(provider.name, configuration, settings)
        self.controls = AnthropicControlsProcessor()
        self.invocations = AnthropicInvocationsProcessor()
        self.messages = AnthropicMessagesProcessor(self.invocations, citations=settings.citations)
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

    def mark(self) -> bytes:
        """The member that marks the end of what shall be cached; empty where nothing shall."""
        match self.settings.cache:
            case "off":
                return b""
            case "5m":
                return b'"cache_control":{"type":"ephemeral"}'
            case ttl:
                return b'"cache_control":{"type":"ephemeral","ttl":"' + ttl.encode() + b'"}'

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
        model: Any,
        load: Loader,
    ) -> bytes:
        request = await model.encode(canisters, invokers, Controls(), TurnContext(load=load))
        body = await request.produce_body(_COUNTED)
        return await fetch(
            self.transport,
            Outgoing("POST", _COUNT, body, {"content-type": "application/json"}),
            provider=self.provider,
            settings=self.stream,
            read_error=self.read_error,
        )


class HistoryCache:
    """What a conversation keeps for a model: its history and its tools, encoded once."""

    def __init__(self) -> None:
        self.history: History | None = None
        self.added = 0
        self.last: Canister | None = None
        self.tools: tuple[Sequence[Invoker], Sequence[Any], list[Fragment]] = ((), (), [])


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

    def produce_cache(self) -> HistoryCache:
        """A fresh cache of encoded history."""
        return HistoryCache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take of a call's own contents and controls."""
        for canister in canisters:
            self.client.messages.check(canister, self)
        settled, _ = settle_controls(controls, Controls(), self.attributes, self.name)
        self.client.controls.nativize(settled, self)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip; see `vibe_llms.providers.interfaces.Model`."""
        request = await self.encode(canisters, invokers, controls, context)
        names = self.client.invocations.assimilate_names(invokers)
        body = await request.produce_body()
        outgoing = Outgoing("POST", _MESSAGES, body, {"content-type": "application/json"})
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
        request = await self.encode(canisters, invokers, controls, context)
        return b"".join(await request.produce_body())

    async def encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> _Request:
        """The request, its history taken from the cache as far as that goes."""
        client = self.client
        members, extras = self._nativize_controls(controls, invokers, context)
        tools = extras.pop("tools", ())
        members = {"model": self.name, **merge(members, extras), "stream": context.streaming}
        cache = context.cache if isinstance(context.cache, HistoryCache) else HistoryCache()
        history = await self._extend(cache, canisters, context)
        if members.get("thinking", {}).get("type") == "enabled" and history.forbids_thinking:
            del members["thinking"]
            self._notify(
                context,
                "reasoning-tokens is not sent while calls go on that began without reasoning",
            )
        mark = client.mark()
        fragments = history.messages(mark)
        if system := history.system(mark):
            fragments += [b',"system":[', *system, b"]"]
        if invokers or tools:
            encoded = self._encode_tools(cache, invokers, tools, mark)
            fragments += [b',"tools":[', *encoded, b"]"]
        return _Request(self._fit(fragments, context), members, context.load)

    def _nativize_controls(
        self, controls: Controls, invokers: Sequence[Invoker], context: TurnContext
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The members that the controls become, and those that are given as they are."""
        processor = self.client.controls
        settled, left_out = settle_controls(
            controls, context.default_controls, self.attributes, self.name
        )
        extras = dict(settled.extras.get(self.provider, {}))
        for name in ("messages", "system"):
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be given as it is; say it with canisters",
                    control="extras",
                    model=self.name,
                )
        names = {tool["name"]: tool["name"] for tool in extras.get("tools", ()) if "name" in tool}
        for invoker in invokers:
            names[invoker.name] = self.client.invocations.nativize_name(invoker.name)
        told = list(left_out)
        while True:
            try:
                members = dict(processor.nativize(settled, self, streaming=context.streaming))
                choice = processor.nativize_choice(settled, names)
                break
            except ControlInvalid as error:
                if error.control in controls.given():
                    raise
                told.append(f"the configured control {error.control} is not sent: {error}")
                open_ = {error.control.replace("-", "_"): None}
                settled = msgspec.structs.replace(settled, **open_)
        for text in told:
            self._notify(context, text)
        if choice is not None:
            members["tool_choice"] = choice
        return members, extras

    def _fit(self, fragments: Sequence[Fragment], context: TurnContext) -> Sequence[Fragment]:
        limit = self.attributes.request_bytes
        fitted, dropped, size = fit(fragments, limit, context.fresh)
        if limit is not None and size > limit:
            raise RequestTooLarge(
                f"the request would have {size} bytes, {self.name} takes {limit}; go on in a fork "
                "of an earlier point, or leave pictures and files out",
                provider=self.provider,
            )
        for slot in dropped:
            reason = f"the request would have more than {limit} bytes"
            self._notify(context, f"{slot.label} is left out: {reason}", slot.origin)
        return fitted

    def _notify(self, context: TurnContext, text: str, canister: str = "") -> None:
        context.notify(Notice("conversion", f"{self.provider}/{self.name}: {text}", canister))

    async def _extend(
        self, cache: HistoryCache, canisters: Sequence[Canister], context: TurnContext
    ) -> History:
        grown = cache.added and len(canisters) >= cache.added
        if cache.history is None or not (grown and canisters[cache.added - 1] is cache.last):
            cache.history, cache.added = History(self.client.messages, self), 0
        new = canisters[cache.added :]
        for canister in new:
            if canister.identity in context.fresh:
                self.client.messages.check(canister, self)
        texts = await load_texts(new, context.load)
        notices: list[Notice] = []
        for canister in new:
            notices += cache.history.add(canister, texts)
            cache.added += 1
            cache.last = canister
        for notice in notices:
            context.notify(notice)
        return cache.history

    def _encode_tools(
        self,
        cache: HistoryCache,
        invokers: Sequence[Invoker],
        native: Sequence[Any],
        mark: bytes,
    ) -> list[Fragment]:
        known, known_native, fragments = cache.tools
        same = len(known) == len(invokers) and all(map(is_, known, invokers))
        if not fragments or not same or known_native != native:
            tools = [*native, *self.client.invocations.nativize(invokers, self)]
            blocks: list[Block] = [(encode_json(tool),) for tool in tools]
            if mark:
                blocks[-1] = append_member(blocks[-1], mark)
            fragments = interleave(blocks)
            cache.tools = (tuple(invokers), native, fragments)
        return fragments


class _Request(Struct, frozen=True):
    """A request: what is encoded already, and the members after it."""

    fragments: Sequence[Fragment]
    members: Mapping[str, Any]
    load: Loader

    async def produce_body(self, names: Sequence[str] | None = None) -> Sequence[bytes]:
        """The body in parts; of the members only those that are named, if any are."""
        kept = {name: value for name, value in self.members.items() if not names or name in names}
        return await fill([*self.fragments, b",", encode_json(kept)[1:]], self.load)


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
            types = (capabilities.get("thinking") or {}).get("types") or {}
            thinking = [name for name in get_args(ThinkingType) if _supported(types, name)]
            if thinking:
                told["native"] = {"thinking": thinking}
                controls["reasoning-tokens"] = self._bound_budget(thinking)
            effort = capabilities.get("effort") or {}
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


def _supported(capabilities: Mapping[str, Any], name: str) -> bool:
    entry = capabilities.get(name)
    return isinstance(entry, dict) and entry.get("supported") is True


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
        )
    return HttpTransport(
        provider,
        settings.base_url,
        lambda: {**headers, **_authorize(credential)},
        connect_seconds=configuration.stream.connect_seconds,
        idle_seconds=configuration.stream.idle_seconds,
    )


def _authorize(credential: Credential) -> Mapping[str, str]:
    if credential.kind == "none":
        return {}
    return {"authorization": f"Bearer {credential.find().reveal()}"}
