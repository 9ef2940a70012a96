"""Recorded streams of Azure: OpenAI's, with the results of content filters among them."""

from __future__ import annotations

from typing import Any

from tests.fakes.recordings import AnthropicRecordings, ChatRecordings, ResponsesRecordings
from vibe_llms.testing.wires.chat_completions_replies import complete

_PROMPTS = ("prompt_filter_results", "prompt_annotations")
_RESULTS = ("content_filter_results", "content_filter_result")


class AzureChatRecordings(ChatRecordings):
    """Streams of Chat Completions; results come with text, after it, and in chunks without it."""

    row, folder = "azure-chat", "azure/chat"

    def decode_officially(self, name: str) -> list[Any]:
        # The package fails on chunks without a delta: openai-python#1677.
        return [event for event in super().decode_officially(name) if event["id"]]

    def body(self, name: str) -> dict[str, Any]:
        events = self.events(name)
        # What only tells results has no id.
        whole = complete([event for event in events if event["id"]])
        results: dict[str, Any] = {}
        for event in events:
            whole |= {member: event[member] for member in _PROMPTS if member in event}
            for choice in event["choices"]:
                for member in _RESULTS:
                    results |= choice.get(member, {})
        whole["choices"][0]["content_filter_results"] = results
        return whole


class AzureResponsesRecordings(ResponsesRecordings):
    """Streams of Responses; results come with the end."""

    row, folder = "azure", "azure/responses"


class FoundryRecordings(AnthropicRecordings):
    """Streams of Anthropic's Messages, which are the same on Azure."""

    row = "azure-anthropic"


CHAT, RESPONSES = AzureChatRecordings(), AzureResponsesRecordings()
FOUNDRY = FoundryRecordings()
