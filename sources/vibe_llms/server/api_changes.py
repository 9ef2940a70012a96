"""The endpoint `/api/changes`: one stream of all changes of a user."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from vibe_llms.server.changes import ChangeFeed
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace


async def follow_changes(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Stream the changes of all conversations and runs, also by other processes.

    The events name what has changed, and do not show it. `Last-Event-ID` continues after an event.
    If the server does not know it any more, or it is missing, the first event is `all`: load the
    lists again.
    """
    last = exchange.headers.get(b"last-event-id", b"").decode("latin-1")
    with space.following():
        async with (
            exchange.until_disconnect(),
            aclosing(_write_events(core, space.changes, last)) as parts,
        ):
            await exchange.stream(parts)


async def _write_events(
    core: ServerCore, feed: ChangeFeed, last: str
) -> AsyncGenerator[bytes, None]:
    # Sends the head at once.
    yield b": changes\n\n"
    async with aclosing(feed.follow(last, lambda: core.ending)) as changes:
        async for cursor, change in changes:
            data = msgspec.json.encode(change)
            yield b"id: %b\ndata: %b\n\n" % (cursor.encode(), data)
