"""The endpoint `/api/conversations/{conversation}/messages`: messages in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.messages.canisters import Canister
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.descriptions import encode_page


class MessagePageQuery(Struct):
    """A page of at most `limit` messages: the last ones, or those near one message.

    At most one of the others may be given: `before` and `after` are the ids of the messages next to
    the page, `around` is the id of a message in its middle, and `start` the index of its first one.
    """

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    before: str = ""
    after: str = ""
    around: str = ""
    start: Annotated[int, Meta(ge=0)] | None = None


async def list_messages(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show some messages of a conversation in order: the last ones, or those near a message.

    Unreadable lines are left out, and `gaps` names them.
    """
    query = read_query(MessagePageQuery, exchange.query)
    restored = await space.archive.restore(exchange.argument, lenient=True)
    exchange.conversation = exchange.argument
    await exchange.reply(encode_page(restored, _choose_places(restored.canisters, query)))


def _choose_places(canisters: Sequence[Canister], query: MessagePageQuery) -> range:
    """Return the places of the messages on a page."""
    anchors = {"before": query.before, "after": query.after, "around": query.around}
    given = [(param, identity) for param, identity in anchors.items() if identity]
    total = len(canisters)
    if query.start is not None:
        if given:
            raise Rejected(f"use only one of {given[0][0]} and start", param="start")
        return range(min(query.start, total), min(query.start + query.limit, total))
    if not given:
        return range(max(total - query.limit, 0), total)
    if len(given) > 1:
        raise Rejected("use only one of before, after and around", param=given[1][0])
    ((param, identity),) = given
    place = next((i for i in range(total) if canisters[i].identity == identity), None)
    if place is None:
        raise Rejected(
            f"message {identity!r} not found in this conversation",
            status=404,
            code="not_found",
            param=param,
        )
    if param == "before":
        return range(max(place - query.limit, 0), place)
    if param == "after":
        return range(place + 1, min(place + 1 + query.limit, total))
    end = min(max(place + 1 + query.limit // 2, query.limit), total)
    return range(max(end - query.limit, 0), end)
