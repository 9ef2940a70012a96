"""The endpoint `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.messages.canisters import Turn
from vibe_llms.server.chat_replies import ChunkWriter, encode_reply, write_failure
from vibe_llms.server.chat_requests import ChatRequest, read_order, read_request
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.failures import describe_failure
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import ServedTurn


async def complete_chat(core: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """Answer a request with a turn, streamed or whole; a disconnect cancels the turn."""
    request = read_request(await exchange.read(core.settings))
    order = read_order(request)
    async with exchange.until_disconnect(), core.turn_limit():
        with space.turn():
            served = await ServedTurn.begin(space, order)
            try:
                if request.stream:
                    async with aclosing(_write_chunks(core, request, served)) as chunks:
                        await exchange.stream(chunks)
                    return
                turn = await served.converse()
            except VibeLlmsError:
                await served.withdraw()
                raise
            _conclude(core, request, served, turn)
        text, calls = served.read(turn)
        await exchange.reply(encode_reply(request.model, text, calls, turn))


async def _write_chunks(
    core: ServerCore, request: ChatRequest, served: ServedTurn
) -> AsyncGenerator[bytes, None]:
    """The chunks of a turn; an error before the first is raised, a later one is the last chunk."""
    tools = {tool.function.name for tool in request.tools or ()}
    writer = ChunkWriter(request.model, tools, usage=request.includes_usage)
    begun = False
    try:
        async with served.stream() as events:
            async for event in events:
                if chunk := writer.write(event):
                    begun = True
                    yield chunk
            assert events.turn is not None
            turn = events.turn
        _conclude(core, request, served, turn)
        yield writer.finish(turn)
    except VibeLlmsError as error:
        if not begun:
            raise
        yield write_failure(describe_failure(error))


def _conclude(core: ServerCore, request: ChatRequest, served: ServedTurn, turn: Turn[None]) -> None:
    served.conclude(turn)
    core.metrics.count_tokens(request.model, turn.usage)
