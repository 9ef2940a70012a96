"""The server under the strict fakes: that of `vibe_llms.testing`, of which this keeps the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from vibe_llms.testing.listening import End, HttpAnswer, Listener, ReceivedRequest

__all__ = ["End", "FakeServer", "HttpAnswer", "ReceivedRequest"]


class FakeServer(Listener):
    """Wants the length of every body, as servers of providers do."""

    async def settled(self) -> None:
        """Wait until no connection is open any more; fails after some seconds."""
        async with asyncio.timeout(10):
            while self.open_connections:
                await asyncio.sleep(0.005)

    async def _read_body(
        self, reader: asyncio.StreamReader, method: str, headers: Mapping[str, str]
    ) -> bytes:
        assert "content-length" in headers or method == "GET", "a body without its length"
        return await super()._read_body(reader, method, headers)
