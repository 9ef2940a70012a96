"""A model that speaks Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from vibe_llms.base.exceptions import ProviderError, RequestRefused
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.models import HttpProvider, ModelConnection
from vibe_llms.providers.openai.chat_completions.controls import nativize_controls
from vibe_llms.providers.openai.chat_completions.messages import (
    MODULE,
    PLACES,
    ChatCompletionsHistory,
)
from vibe_llms.providers.openai.chat_completions.streams import ChatCompletionsAssimilator
from vibe_llms.providers.openai.client import OpenAIClient
from vibe_llms.providers.openai.model import OpenAIModel, OpenaiSettings, PreparedRequest, describe
from vibe_llms.providers.reasoning_tags import TagSplitter
from vibe_llms.providers.requests import Request


class ChatCompletionsSettings(OpenaiSettings, frozen=True):
    """Settings of a provider row.

    `stream-usage` asks for the usage at the end of a stream; a few servers refuse that. With `end =
    "close"`, a reply ends with its body, for servers that send no other mark. `reasoning-tags` and
    `replays-reasoning` override the model's attributes.
    """

    stream_usage: bool = True
    end: Literal["mark", "close"] = "mark"
    reasoning_tags: bool | None = None
    replays_reasoning: bool | None = None


class ChatCompletionsModel(OpenAIModel[ChatCompletionsSettings]):
    """A model that speaks Chat Completions."""

    module = MODULE
    path = "/chat/completions"
    assimilator = ChatCompletionsAssimilator
    places = PLACES
    reserved = ("stream", "messages", "n", "audio", "modalities", "functions")

    def __init__(
        self,
        client: ModelConnection[ChatCompletionsSettings],
        name: str,
        attributes: ModelAttributes,
    ) -> None:
        row = {
            key: given
            for key in ("reasoning_tags", "replays_reasoning")
            if (given := getattr(client.settings, key)) is not None
        }
        if row:
            native = {**attributes.native, **{key.replace("_", "-"): row[key] for key in row}}
            attributes = msgspec.structs.replace(attributes, native=native)
        super().__init__(client, name, attributes)

    def build(
        self, prepared: PreparedRequest, context: TurnContext, *, later: bool = False
    ) -> Request:
        """Return the request, with a fallback without a schema if not all servers take one.

        Callers that ask such a server for a schema also describe it in words.
        """
        request = super().build(prepared, context, later=later)
        attributes = self.attributes
        sure = attributes.controls is None or attributes.surely_takes("response-schema")
        if sure or "response_format" not in prepared.members:
            return request

        def ask_in_words(error: ProviderError) -> Request | None:
            if not isinstance(error, RequestRefused):
                return None
            members = {**prepared.members}
            del members["response_format"]
            return self.build(msgspec.structs.replace(prepared, members=members), context)

        return msgspec.structs.replace(request, otherwise=ask_in_words)

    def produce_history(self) -> ChatCompletionsHistory:
        """Return an empty history for this model."""
        return ChatCompletionsHistory(self)

    def produce_assimilator(
        self, names: Mapping[str, str], request: Request
    ) -> ChatCompletionsAssimilator:
        """Return the assimilator of one reply."""
        made = super().produce_assimilator(names, request)
        assert isinstance(made, ChatCompletionsAssimilator)
        made.ends_by_close = self.settings.end == "close"
        made.tags = TagSplitter() if self.native.reasoning_tags else None
        return made

    def nativize_controls(self, controls: Controls, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the members for the controls."""
        return nativize_controls(controls, self, names)

    def nativize_invoker(self, invoker: Invoker) -> Mapping[str, Any]:
        """Return the declaration of a tool."""
        return {"type": "function", "function": describe(invoker)}

    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """Return the members for streaming, and for the usage at the end of a stream."""
        if not streaming:
            return {"stream": False}
        usage = {"stream_options": {"include_usage": True}} if self.settings.stream_usage else {}
        return {"stream": True, **usage}


ChatCompletionsProvider = HttpProvider.of(
    ChatCompletionsModel,
    ChatCompletionsSettings,
    OpenAIClient[ChatCompletionsModel, ChatCompletionsSettings],
)
