"""A transport that sends our bytes with the official client and its credentials.

This is the only module that imports the package `anthropic`.
"""

from __future__ import annotations

from typing import Any

from vibe_llms.providers.sdk_transport import OfficialTransport


class AnthropicTransport(OfficialTransport):
    """Transport that sends through `anthropic.AsyncAnthropic`."""

    package = "anthropic"

    def load(self) -> Any:
        """Import the package; raise `ImportError` if it is not installed."""
        import anthropic

        return anthropic

    def list_complaints(self) -> tuple[type[Exception], ...]:
        """Return the errors that the package raises on sending without credentials."""
        from anthropic import AnthropicError

        return (AnthropicError, TypeError)

    def produce_client(self, **options: Any) -> Any:
        """Return the official client with the given options."""
        from anthropic import AsyncAnthropic

        # We make the spans ourselves; a second span for one call would be counted twice.
        return AsyncAnthropic(**options, open_telemetry=False)
