"""Tools for Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.invocations import OpenAIInvocationsProcessor


class ResponsesInvocationsProcessor(OpenAIInvocationsProcessor):
    """Invokers to tool declarations."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[dict[str, Any]]:
        """The `tools` of a request.

        The member `strict` is demanded; a schema that is not made for it would be rewritten, and
        arguments are checked by us anyway.
        """
        return [{"type": "function", **self.describe(one), "strict": False} for one in invokers]
