"""The official client as a transport: its credentials, profiles and federation, our bytes.

This is the only module that imports the package `anthropic`.
"""

from __future__ import annotations

from typing import Any

from vibe_llms.providers.sdk_transport import OfficialTransport


class PackageTransport(OfficialTransport):
    """Sends through `anthropic.AsyncAnthropic`."""

    package = "anthropic"

    def load(self) -> Any:
        """The package; `ImportError` where it is not installed."""
        import anthropic

        return anthropic

    def list_complaints(self) -> tuple[type[Exception], ...]:
        """What the package raises, while it sends, where it has no credentials."""
        from anthropic import AnthropicError

        return (AnthropicError, TypeError)

    def produce_client(self, **options: Any) -> Any:
        """The official client, with these options of ours."""
        from anthropic import AsyncAnthropic

        # Spans are ours to make; two of one call would be counted twice.
        return AsyncAnthropic(**options, open_telemetry=False)
