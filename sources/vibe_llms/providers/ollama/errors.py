"""The errors of Ollama, by status, or by their text.

Errors have no type or code, only a message, and in the middle of a stream not even a status.

Source: `server/routes.go` and `llm/llama_server.go` of the server; the classes of the package
ollama 0.6.3, which `tests/providers/ollama/test_errors.py` compares with this table.
"""

from __future__ import annotations

import re

from vibe_llms.base.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RequestRefused,
)
from vibe_llms.base.redaction import redact
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject

# Retrying does not help, although the status is that of a server error.
_MEMORY = re.compile(
    r"more system memory|out of memory|cudaMalloc failed|insufficient memory", re.I
)


class OllamaErrors(ErrorMap, frozen=True):
    """The errors of Ollama's server, which consist of a message."""

    def is_misplaced(self, status: int, error: ErrorObject, body: bytes) -> bool:
        """Return True if the server at the address is not Ollama."""
        absent = status == 405 and not error.message
        return absent or super().is_misplaced(status, error, body)

    def refine(
        self, kind: type[ProviderError], message: str, provider: str, model: str
    ) -> tuple[type[ProviderError], str]:
        """Refine an error by its message, and add advice."""
        unclear = kind in (ModelUnavailable, ProviderOverloaded, RequestRefused)
        if unclear and _misses_model(message):
            return ModelUnavailable, f" (pull it: ollama pull {model or 'NAME'})"
        if kind is ModelUnavailable:
            return RequestRefused, ""
        if kind is CredentialRefused:
            set_key = f"set a key: vibe-llms keys set {provider}"
            return kind, f" (sign in with `ollama signin`, or {set_key})"
        if kind is ProviderOverloaded and _MEMORY.search(message):
            return RequestRefused, " (take a smaller model, or a smaller num-ctx in the row)"
        return kind, ""


ERRORS = OllamaErrors(remedy="with a larger num-ctx or another model")


def _misses_model(message: str) -> bool:
    small = message.lower()
    return "try pulling it first" in small or "not found" in small.partition("model ")[2]


def advise_unreachable(error: ProviderUnreachable, address: str) -> ProviderUnreachable:
    """Return an error that says how to start a server that does not answer."""
    return ProviderUnreachable(
        f"no server answers at {redact(address)}; is it running? Start it: ollama serve",
        provider=error.provider,
        code="not_running",
    )
