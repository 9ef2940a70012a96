"""The endpoints `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from vibe_llms.server.answers import answer
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.files import gather_files
from vibe_llms.server.messages_replies import EventWriter
from vibe_llms.server.messages_requests import read_count, read_order, read_request
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import count_tokens, estimate_tokens


class TokensCounted(Struct):
    """Number of tokens that the model would read."""

    input_tokens: int


async def create_message(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Answer a request with a turn, streamed or whole; a disconnect cancels the turn."""
    request = await exchange.decode(read_request, core.settings)
    files = await gather_files(exchange, space, request)
    order = await exchange.offload(lambda: read_order(request, exchange.omissions, files))
    estimate = await exchange.offload(lambda: estimate_tokens(order.said, order.tools))
    await answer(
        core,
        exchange,
        space,
        order,
        lambda _: EventWriter(
            request.model,
            {tool.name for tool in order.tools},
            input_tokens=estimate,
            thinking=request.thinking is None or request.thinking.display != "omitted",
        ),
        stream=bool(request.stream),
    )


async def count_message_tokens(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Count the tokens that the model would read, without calling it or storing anything."""
    request = await exchange.decode(read_count, core.settings)
    files = await gather_files(exchange, space, request)
    order = await exchange.offload(lambda: read_order(request, exchange.omissions, files))
    async with exchange.until_disconnect(), core.turn_limit():
        counted = await count_tokens(space, order)
        await exchange.reply(msgspec.json.encode(TokensCounted(counted.tokens)))
