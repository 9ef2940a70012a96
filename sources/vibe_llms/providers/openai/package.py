"""A transport that sends our bytes with the official client and its credentials.

This is the only module that imports the package `openai`.
"""

from __future__ import annotations

from typing import Any

from vibe_llms.providers.sdk_transport import OfficialTransport


class OpenaiTransport(OfficialTransport):
    """Transport that sends through `openai.AsyncOpenAI`."""

    package = "openai"

    def load(self) -> Any:
        """Import the package; raise `ImportError` if it is not installed."""
        import openai

        return openai

    def list_complaints(self) -> tuple[type[Exception], ...]:
        """Return the errors that the package raises on sending without credentials."""
        from openai import OpenAIError

        return (OpenAIError,)

    def produce_client(self, **options: Any) -> Any:
        """Return the official client with the given options."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(**options)
