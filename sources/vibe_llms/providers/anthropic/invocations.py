"""Tools for Anthropic: their declarations, and their names to the wire and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.names import assimilate_names, nativize_name


class AnthropicInvocationsProcessor:
    """Invokers to tool declarations; names by a rule that needs no table for names in history."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[dict[str, Any]]:
        """The `tools` of a request."""
        return [
            {
                "name": self.nativize_name(invoker.name),
                **({"description": invoker.description} if invoker.description else {}),
                # The type has to be said, which a foreign schema need not do.
                "input_schema": {"type": "object", **invoker.arguments_schema},
            }
            for invoker in invokers
        ]

    def nativize_name(self, name: str) -> str:
        """The name on the wire; no two names become one."""
        return nativize_name(name)

    def assimilate_names(self, invokers: Iterable[Invoker]) -> dict[str, str]:
        """Names on the wire to canonical names, for the tools that are offered."""
        return assimilate_names(invokers)
