"""Tools for llama.cpp: declarations as the templates of models know them, and names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.names import assimilate_names, nativize_name


class LlamacppInvocationsProcessor:
    """Invokers to the `tools` of a template, in the form that all templates share."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[dict[str, Any]]:
        """The declarations of these tools."""
        return [
            {
                "type": "function",
                "function": {
                    "name": self.nativize_name(invoker.name),
                    "description": invoker.description or "",
                    "parameters": dict(invoker.arguments_schema),
                },
            }
            for invoker in invokers
        ]

    def nativize_name(self, name: str) -> str:
        """The name that the model is told of a tool's canonical name."""
        return nativize_name(name)

    def assimilate_names(self, invokers: Iterable[Invoker]) -> dict[str, str]:
        """Names that the model was told to canonical names, for the tools that are offered."""
        return assimilate_names(invokers)
