"""Provider, client and model of Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.exchanges import JSON_HEADERS
from vibe_llms.providers.interfaces import Loader, ProviderConfiguration, TurnContext
from vibe_llms.providers.openai.client import OpenAIClient, Settings
from vibe_llms.providers.openai.framing import History
from vibe_llms.providers.openai.model import OpenAIModel, Prepared
from vibe_llms.providers.openai.responses.controls import ResponsesControlsProcessor
from vibe_llms.providers.openai.responses.invocations import ResponsesInvocationsProcessor
from vibe_llms.providers.openai.responses.messages import (
    MODULE,
    ResponsesHistory,
    ResponsesMessagesProcessor,
)
from vibe_llms.providers.openai.responses.streams import ResponsesAssimilator
from vibe_llms.providers.openai.responses.tokenizer import ResponsesConversationTokenizer
from vibe_llms.providers.requests import Request
from vibe_llms.providers.transport import Outgoing

#: What the counting endpoint takes besides the messages.
_COUNTED = (
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "text",
    "tool_choice",
    "truncation",
)
_ENCRYPTED = ["reasoning.encrypted_content"]


class ResponsesSettings(Settings, frozen=True):
    """The keys of a row of this module.

    `state` says who keeps the conversation: with `none` it is sent with every request and OpenAI
    stores nothing; with `server` OpenAI stores the replies, and only what is new is sent.
    `summary` asks for summaries of the reasoning of models that give them.
    """

    state: Literal["none", "server"] = "none"
    summary: Literal["auto", "concise", "detailed", "off"] = "auto"


class ResponsesProvider:
    """A row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self._configuration = configuration
        self._settings = configuration.configuration.read(
            ResponsesSettings, configuration.settings, "providers", name
        )

    def produce_client(self) -> ResponsesClient:
        """A new client; whoever asks for it closes it."""
        return ResponsesClient(self.name, self._configuration, self.event_handler, self._settings)


class ResponsesClient(OpenAIClient):
    """A connection, and the four processors."""

    module = MODULE
    path = "/responses"
    reserved = ("stream", "input", "instructions", "previous_response_id", "conversation", "store")

    def __init__(
        self,
        provider: str,
        configuration: ProviderConfiguration,
        event_handler: EventHandler,
        settings: ResponsesSettings,
    ) -> None:
        super().__init__(provider, configuration, event_handler, settings)
        self.stateful = settings.state == "server"
        self.controls = ResponsesControlsProcessor(settings.summary)
        self._invocations = ResponsesInvocationsProcessor()
        self.messages = ResponsesMessagesProcessor(self._invocations)
        self.tokenizer = ResponsesConversationTokenizer(self._ask_count)

    @property
    def invocations(self) -> ResponsesInvocationsProcessor:
        """The processor of tools."""
        return self._invocations

    def produce_model(self, name: str, attributes: ModelAttributes) -> OpenAIModel:
        """A model of this client."""
        return ResponsesModel(self, name, attributes)

    def produce_history(self, model: OpenAIModel) -> History[Any]:
        """An empty history for a model."""
        return ResponsesHistory(model, self.messages.nativize, stateful=self.stateful)

    def produce_assimilator(self, names: Mapping[str, str]) -> ResponsesAssimilator:
        """The translator of one reply; `names` are canonical names by those on the wire."""
        return ResponsesAssimilator(self.provider, lambda name: names.get(name, name))

    def check(self, canister: Canister, model: OpenAIModel) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""
        self.messages.check(canister, model)

    def nativize_controls(
        self, controls: Controls, model: OpenAIModel, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """The members that controls become, and what a model that reasons is asked for."""
        members = self.controls.nativize(controls, model, names)
        if model.attributes.reasoning and not self.stateful:
            members["include"] = _ENCRYPTED
        return members

    def nativize_tools(self, invokers: Sequence[Invoker], model: OpenAIModel) -> Sequence[Any]:
        """The declarations of tools."""
        return self.invocations.nativize(invokers, model)

    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """Whether to stream, and whether OpenAI shall keep the reply."""
        return {"stream": streaming, "store": self.stateful}

    async def _ask_count(
        self, canisters: Sequence[Canister], invokers: Sequence[Invoker], model: Any, load: Loader
    ) -> bytes:
        request = await self.encode(canisters, invokers, model, load)
        body = await request.produce_body(_COUNTED)
        return await self.fetch(Outgoing("POST", f"{self.path}/input_tokens", body, JSON_HEADERS))


class ResponsesModel(OpenAIModel):
    """A model that is spoken with by Responses."""

    def __init__(self, client: ResponsesClient, name: str, attributes: ModelAttributes) -> None:
        self.client = client
        super().__init__(name, attributes)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip; see `vibe_llms.providers.interfaces.Model`."""
        prepared = await self.prepare(canisters, invokers, controls, context)
        if not prepared.history.kept:
            return await self.send(self.build(prepared, context), invokers, context)
        brief = self._build_later(prepared, context)
        # Responses are not kept for ever; then the whole history is sent again.
        return await self.send(
            brief, invokers, context, instead=lambda: self.build(prepared, context)
        )

    async def encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """The request, its history taken from the cache as far as that goes."""
        prepared = await self.prepare(canisters, invokers, controls, context)
        if prepared.history.kept:
            return self._build_later(prepared, context)
        return self.build(prepared, context)

    def _build_later(self, prepared: Prepared, context: TurnContext) -> Request:
        members = {**prepared.members, "previous_response_id": prepared.history.kept}
        later = msgspec.structs.replace(prepared, members=members)
        return self.build(later, context, later=True)
