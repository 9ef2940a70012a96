"""The official client as a transport: its credentials and identities, our bytes.

This is the only module that imports the package `openai`.
"""

from __future__ import annotations

from typing import Any

from vibe_llms.providers.sdk_transport import OfficialTransport


class PackageTransport(OfficialTransport):
    """Sends through `openai.AsyncOpenAI`."""

    package = "openai"

    def load(self) -> Any:
        """The package; `ImportError` where it is not installed."""
        import openai

        return openai

    def list_complaints(self) -> tuple[type[Exception], ...]:
        """What the package raises, while it sends, where it has no credentials."""
        from openai import OpenAIError

        return (OpenAIError,)

    def produce_client(self, **options: Any) -> Any:
        """The official client, with these options of ours."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(**options)
