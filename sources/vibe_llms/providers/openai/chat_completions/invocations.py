"""Tools for Chat Completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.invocations import OpenAIInvocationsProcessor


class ChatCompletionsInvocationsProcessor(OpenAIInvocationsProcessor):
    """Invokers to tool declarations."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[dict[str, Any]]:
        """The `tools` of a request."""
        return [{"type": "function", "function": self.describe(one)} for one in invokers]
