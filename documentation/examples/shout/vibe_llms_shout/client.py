"""Provider, client and model: a row, its connection, and one round trip."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms import Canister, Controls, EventHandler, Invoker, Provenance
from vibe_llms.exceptions import (
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
)
from vibe_llms.messages.canisters import ReplyCanister
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, load_attributes, settle_controls
from vibe_llms.providers.exchanges import Exchange, fetch, hold
from vibe_llms.providers.interfaces import (
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.pieces import encode_json, load_texts
from vibe_llms.providers.refusals import read_retry_after
from vibe_llms.providers.requests import nativize_controls
from vibe_llms.providers.transport import HttpTransport, Outgoing
from vibe_llms_shout.controls import ShoutControlsProcessor
from vibe_llms_shout.invocations import ShoutInvocationsProcessor
from vibe_llms_shout.messages import ShoutMessagesProcessor
from vibe_llms_shout.streams import ShoutAssimilator
from vibe_llms_shout.tokenizer import ShoutConversationTokenizer


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module, besides those that every row has."""

    base_url: str
    ending: str = "!"


class ShoutProvider:
    """A row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self.stream = configuration.stream
        self.credential = configuration.credential
        whole = configuration.configuration
        self.offline = whole.offline
        # What does not fit becomes an error that names the file and the key.
        self.settings = whole.read(Settings, configuration.settings, "providers", name)
        # The user's own word on a model goes over this file.
        self.attributes = load_attributes(whole, name, Path(__file__).with_name("models.toml"))

    def produce_client(self) -> "ShoutClient":
        return ShoutClient(self)

    def authorize(self) -> Mapping[str, str]:
        """The headers with the key; asked for when something is first sent."""
        if self.credential.kind == "none":
            return {}
        return {"authorization": f"Bearer {self.credential.find().reveal()}"}


class ShoutClient:
    """A connection, and the four processors."""

    def __init__(self, provider: ShoutProvider) -> None:
        self.provider = provider
        self.transport = HttpTransport(
            provider.name,
            provider.settings.base_url,
            provider.authorize,
            connect_seconds=provider.stream.connect_seconds,
            idle_seconds=provider.stream.idle_seconds,
            offline=provider.offline,
        )
        self.controls = ShoutControlsProcessor()
        self.invocations = ShoutInvocationsProcessor()
        self.messages = ShoutMessagesProcessor()
        self.tokenizer = ShoutConversationTokenizer()

    async def access_model(self, name: str) -> "ShoutModel":
        return ShoutModel(self, name)

    async def survey_models(self) -> Sequence["ShoutModel"]:
        body = await fetch(
            self.transport,
            Outgoing("GET", "/models"),
            provider=self.provider.name,
            settings=self.provider.stream,
            read_error=self.read_error,
        )
        try:
            names = msgspec.json.decode(body, type=list[str])
        except ValueError as error:
            raise ReplyMalformed("no list of models came", provider=self.provider.name) from error
        return [ShoutModel(self, name) for name in names]

    async def close(self) -> None:
        await self.transport.close()

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """The error of an answer whose status is not 200, by what one does next."""
        words = body.decode("utf-8", "replace").strip() or f"status {status}"
        kinds = {404: ModelUnavailable, 429: RateLimited}
        otherwise = ProviderOverloaded if status >= 500 else RequestRefused
        error = kinds.get(status, otherwise)(words, provider=self.provider.name, status=status)
        if isinstance(error, RateLimited | ProviderOverloaded):
            error.retry_after = read_retry_after(headers)
        return error


class ShoutModel:
    """One model."""

    def __init__(self, client: ShoutClient, name: str) -> None:
        self.client = client
        self.provider = client.provider.name
        self.name = name
        self.attributes: ModelAttributes = client.provider.attributes.integrate(name)

    def produce_cache(self) -> None:
        """The history is short; `vibe_llms.providers.requests.HistoryCache` is for long ones."""

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take, before anything is kept or sent."""
        self.client.transport.prepare()
        self.client.messages.check(canisters, self)
        settle_controls(controls, Controls(), self.attributes, self.name)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        body = await self.preview(canisters, invokers, controls, context)
        row = self.client.provider
        names = self.client.invocations.assimilate_names(invokers)
        exchange = Exchange(
            provider=row.name,
            transport=self.client.transport,
            settings=row.stream,
            produce_assimilator=lambda: ShoutAssimilator(row.name, names),
            read_error=self.client.read_error,
            notify=context.notify,
            throttle=context.throttle,
            streaming=context.streaming,
        )
        accumulator = Accumulator(
            Provenance("vibe_llms_shout", row.name, self.name),
            context.event_handler or row.event_handler,
            context.conversation,
        )
        outgoing = Outgoing("POST", "/shout", [body], {"content-type": "application/json"})
        # Sends, watches the time limits, retries while nothing was seen, tells the events.
        return await hold(exchange, outgoing, accumulator)

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        return await self.client.tokenizer.count(canisters, invokers, self, load)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        texts = await load_texts(canisters, context.load)
        said: list[Mapping[str, Any]] = []
        for canister in canisters:
            if canister.identity in context.fresh:
                self.client.messages.check([canister], self)
            piece, notices = self.client.messages.nativize(canister, self, texts)
            said += piece
            for notice in notices:
                context.notify(notice)
        members, extras = nativize_controls(
            self,
            controls,
            context,
            lambda settled: self.client.controls.nativize(settled, self),
        )
        tools = self.client.invocations.nativize(invokers, self)
        own = {"model": self.name, "ending": self.client.provider.settings.ending}
        return encode_json({**own, "said": said, "tools": tools, **members, **extras})
