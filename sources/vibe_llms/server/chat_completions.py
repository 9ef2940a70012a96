"""The endpoint `POST /v1/chat/completions`."""

from __future__ import annotations

from vibe_llms.server.answers import answer
from vibe_llms.server.chat_replies import ChunkWriter
from vibe_llms.server.chat_requests import read_order, read_request
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.spaces import UserSpace


async def complete_chat(core: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """Answer a request with a turn, streamed or whole; a disconnect cancels the turn."""
    request = read_request(await exchange.read(core.settings))
    tools = {tool.function.name for tool in request.tools or ()}
    await answer(
        *(core, exchange, space, read_order(request)),
        lambda served: ChunkWriter(
            request.model,
            tools,
            usage=request.includes_usage,
            stages=bool(request.stages),
            hidden=served.hidden if request.stages else (),
        ),
        stream=bool(request.stream),
    )
