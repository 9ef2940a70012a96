"""Tools for a script: declared as they are, names unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker, describe
from vibe_llms.providers.interfaces import Model


class ScriptedInvocationsProcessor:
    """Invokers to the declarations in a recorded request."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[Any]:
        """Name, description and schema of each."""
        return [describe(invoker) for invoker in invokers]

    def nativize_name(self, name: str) -> str:
        """The name itself."""
        return name
