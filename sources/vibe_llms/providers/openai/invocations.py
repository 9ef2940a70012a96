"""Tools for both interfaces: their names to the wire and back; declarations differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.names import assimilate_names, nativize_name


class OpenAIInvocationsProcessor:
    """Names of tools, and what a declaration of a function says."""

    def nativize_name(self, name: str) -> str:
        """The name on the wire of a tool's canonical name."""
        return nativize_name(name)

    def assimilate_names(self, invokers: Iterable[Invoker]) -> dict[str, str]:
        """Names on the wire to canonical names, for the tools that are offered."""
        return assimilate_names(invokers)

    def describe(self, invoker: Invoker) -> dict[str, Any]:
        """The members that a declaration has in both interfaces."""
        described: dict[str, Any] = {"name": self.nativize_name(invoker.name)}
        if invoker.description:
            described["description"] = invoker.description
        described["parameters"] = invoker.arguments_schema
        return described

    def collect_names(
        self, invokers: Iterable[Invoker], native: Iterable[Any]
    ) -> Mapping[str, str]:
        """The names on the wire of all tools that are offered, by those that users write."""
        names: dict[str, str] = {}
        for tool in native:
            function = tool.get("function", tool) if isinstance(tool, dict) else {}
            if isinstance(name := function.get("name"), str):
                names[name] = name
        return {**names, **{one.name: self.nativize_name(one.name) for one in invokers}}
