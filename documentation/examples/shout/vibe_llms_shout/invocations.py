"""Tools to their declarations, and their names to the wire and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms import Invoker
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.names import assimilate_names, nativize_name


class ShoutInvocationsProcessor:
    """The server takes the names that all others take too."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[Any]:
        """The declarations of these tools."""
        return [
            {
                "name": nativize_name(invoker.name),
                "about": invoker.description,
                "takes": invoker.arguments_schema,
            }
            for invoker in invokers
        ]

    def nativize_name(self, name: str) -> str:
        """The name on the wire."""
        return nativize_name(name)

    def assimilate_names(self, invokers: Sequence[Invoker]) -> Mapping[str, str]:
        """Canonical names, by those on the wire."""
        return assimilate_names(invokers)
