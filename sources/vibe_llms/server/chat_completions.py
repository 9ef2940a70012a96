"""The endpoint `POST /v1/chat/completions`."""

from __future__ import annotations

from vibe_llms.server.answers import answer
from vibe_llms.server.chat_replies import ChunkWriter
from vibe_llms.server.chat_requests import read_forms, read_order, read_request
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.files import gather_files
from vibe_llms.server.spaces import UserSpace


async def complete_chat(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Answer a request with a turn, streamed or whole; a disconnect cancels the turn."""
    request = await exchange.decode(read_request, core.settings)
    files = await gather_files(exchange, space, request)
    order = await exchange.offload(lambda: read_order(request, exchange.omissions, files=files))
    await answer(
        core,
        exchange,
        space,
        order,
        lambda served: ChunkWriter(
            request.model,
            {tool.name for tool in order.tools},
            usage=request.includes_usage,
            stages=bool(request.stages),
            hidden=served.hidden if request.stages else (),
            forms=read_forms(request),
        ),
        stream=bool(request.stream),
    )
