"""Provider, client and model of Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.openai.chat_completions.controls import ChatCompletionsControlsProcessor
from vibe_llms.providers.openai.chat_completions.invocations import (
    ChatCompletionsInvocationsProcessor,
)
from vibe_llms.providers.openai.chat_completions.messages import (
    MODULE,
    ChatCompletionsFramer,
    ChatCompletionsMessagesProcessor,
)
from vibe_llms.providers.openai.chat_completions.streams import ChatCompletionsAssimilator
from vibe_llms.providers.openai.chat_completions.tokenizer import (
    ChatCompletionsConversationTokenizer,
)
from vibe_llms.providers.openai.client import OpenAIClient, Settings
from vibe_llms.providers.openai.framing import History
from vibe_llms.providers.openai.model import OpenAIModel


class ChatCompletionsSettings(Settings, frozen=True):
    """The keys of a row of this module.

    `stream-usage` asks for the usage at the end of a stream; a few servers refuse to be asked.
    """

    stream_usage: bool = True


class ChatCompletionsProvider:
    """A row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self._configuration = configuration
        self._settings = configuration.configuration.read(
            ChatCompletionsSettings, configuration.settings, "providers", name
        )

    def produce_client(self) -> ChatCompletionsClient:
        """A new client; whoever asks for it closes it."""
        return ChatCompletionsClient(
            self.name, self._configuration, self.event_handler, self._settings
        )


class ChatCompletionsClient(OpenAIClient):
    """A connection, and the four processors."""

    module = MODULE
    path = "/chat/completions"
    reserved = ("stream", "messages", "n", "audio", "modalities", "functions")

    def __init__(
        self,
        provider: str,
        configuration: ProviderConfiguration,
        event_handler: EventHandler,
        settings: ChatCompletionsSettings,
    ) -> None:
        super().__init__(provider, configuration, event_handler, settings)
        self._stream_usage = settings.stream_usage
        self.controls = ChatCompletionsControlsProcessor()
        self._invocations = ChatCompletionsInvocationsProcessor()
        self.messages = ChatCompletionsMessagesProcessor(self._invocations)
        self.tokenizer = ChatCompletionsConversationTokenizer(self.encode)

    @property
    def invocations(self) -> ChatCompletionsInvocationsProcessor:
        """The processor of tools."""
        return self._invocations

    def produce_model(self, name: str, attributes: ModelAttributes) -> OpenAIModel:
        """A model of this client."""
        return ChatCompletionsModel(self, name, attributes)

    def produce_history(self, model: OpenAIModel) -> History[Any]:
        """An empty history for a model."""
        framer = ChatCompletionsFramer(model)
        return History(b'{"messages":[', model, self.messages.nativize, framer)

    def produce_assimilator(self, names: Mapping[str, str]) -> ChatCompletionsAssimilator:
        """The translator of one reply; `names` are canonical names by those on the wire."""
        return ChatCompletionsAssimilator(self.provider, lambda name: names.get(name, name))

    def check(self, canister: Canister, model: OpenAIModel) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""
        self.messages.check(canister, model)

    def nativize_controls(
        self, controls: Controls, model: OpenAIModel, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """The members that controls become."""
        return self.controls.nativize(controls, model, names)

    def nativize_tools(self, invokers: Sequence[Invoker], model: OpenAIModel) -> Sequence[Any]:
        """The declarations of tools."""
        return self.invocations.nativize(invokers, model)

    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """Whether to stream, and with the usage."""
        if not streaming:
            return {"stream": False}
        usage = {"stream_options": {"include_usage": True}} if self._stream_usage else {}
        return {"stream": True, **usage}


class ChatCompletionsModel(OpenAIModel):
    """A model that is spoken with by Chat Completions."""

    def __init__(
        self, client: ChatCompletionsClient, name: str, attributes: ModelAttributes
    ) -> None:
        self.client = client
        super().__init__(name, attributes)
