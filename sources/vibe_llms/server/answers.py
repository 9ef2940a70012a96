"""Answers to requests: one turn each, streamed or whole, in any dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.recorded import answer_once
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import RecordedTurn, ReplyWriter, ServedTurn, TurnOrder


async def answer(
    core: ServerCore,
    exchange: HttpExchange,
    space: UserSpace,
    order: TurnOrder,
    produce_writer: Callable[[ServedTurn | RecordedTurn], ReplyWriter],
    *,
    stream: bool,
) -> None:
    """Answer a request with a turn; a disconnect cancels the turn unless it is repeatable."""
    served: ServedTurn | None = None
    async with exchange.until_disconnect():
        try:
            async with core.turn_limit():
                if (key := exchange.request_key) is not None:
                    await answer_once(exchange, space, order, produce_writer, key, stream=stream)
                    return
                with space.turn():
                    served = await ServedTurn.begin(space, order)
                    writer = produce_writer(served)
                    if stream:
                        async with aclosing(_write_events(served, writer)) as parts:
                            await exchange.stream(parts, writer.fail)
                        return
                    await served.manage_context()
                    if served.managed.ends:
                        outcome = await served.conclude_context()
                    else:
                        outcome = await served.conclude(await served.converse())
        except (VibeLlmsError, Rejected):
            if served is not None:
                await served.withdraw()
            raise
        await exchange.reply(writer.encode(outcome))


async def _write_events(served: ServedTurn, writer: ReplyWriter) -> AsyncGenerator[bytes, None]:
    await served.manage_context()
    if served.managed.ends:
        yield writer.finish(await served.conclude_context())
        return
    async with served.stream() as events:
        while arrived := await events.take():
            if chunk := b"".join(map(writer.write, arrived)):
                yield chunk
        assert events.turn is not None
        turn = events.turn
    yield writer.finish(await served.conclude(turn))
