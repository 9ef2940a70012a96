"""Tools for Anthropic: their declarations, and their names to the wire and back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model

# Anthropic takes names that match ^[a-zA-Z0-9_-]{1,64}$; ours have a slash after the ensemble.
_LONGEST_NAME = 64
_SEPARATOR = "__"
_UNCHANGED = re.compile(r"[a-zA-Z0-9_-]+(?:(?<!_)/(?!_)[a-zA-Z0-9_-]+)?")


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
        """The name on the wire: `ensemble__tool`, with a hash where it is too long or not unique.

        No two names become one: what the wire does not allow is replaced, and then the hash of the
        whole name tells them apart.
        """
        native = re.sub(r"[^a-zA-Z0-9_-]", "_", name.replace("/", _SEPARATOR))
        if len(native) <= _LONGEST_NAME and _UNCHANGED.fullmatch(name) and _SEPARATOR not in name:
            return native
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{native[: _LONGEST_NAME - 13]}_{digest}"

    def assimilate_names(self, invokers: Iterable[Invoker]) -> dict[str, str]:
        """Names on the wire to canonical names, for the tools that are offered."""
        return {self.nativize_name(invoker.name): invoker.name for invoker in invokers}
