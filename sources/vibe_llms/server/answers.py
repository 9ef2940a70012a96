"""Answers a request with a turn, streamed or whole, whatever the dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.failures import describe_failure
from vibe_llms.server.recorded import answer_once
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import RecordedTurn, ReplyWriter, ServedTurn, TurnOrder


async def answer(
    core: ServerCore,
    exchange: Exchange,
    space: UserSpace,
    order: TurnOrder,
    produce_writer: Callable[[ServedTurn | RecordedTurn], ReplyWriter],
    *,
    stream: bool,
) -> None:
    """Answer a request with a turn; a disconnect cancels the turn, unless it may be repeated."""
    if exchange.request_key is not None:
        async with exchange.until_disconnect(), core.turn_limit():
            given = (exchange, space, order, produce_writer, exchange.request_key)
            await answer_once(*given, stream=stream)
        return
    async with exchange.until_disconnect(), core.turn_limit():
        with space.turn():
            served = await ServedTurn.begin(space, order)
            writer = produce_writer(served)
            try:
                if stream:
                    parts = _write_events(exchange, served, writer)
                    async with aclosing(parts):
                        await exchange.stream(parts)
                    return
                turn = await served.converse()
            except VibeLlmsError:
                await served.withdraw()
                raise
            outcome = await served.conclude(turn)
        await exchange.reply(writer.encode(outcome))


async def _write_events(
    exchange: Exchange, served: ServedTurn, writer: ReplyWriter
) -> AsyncGenerator[bytes, None]:
    """The events of a turn; an error before the first is raised, a later one is the last event."""
    begun = False
    try:
        async with served.stream() as events:
            while arrived := await events.take():
                if chunk := b"".join(map(writer.write, arrived)):
                    begun = True
                    yield chunk
            assert events.turn is not None
            turn = events.turn
        yield writer.finish(await served.conclude(turn))
    except VibeLlmsError as error:
        if not begun:
            raise
        failure = describe_failure(error)
        yield writer.fail(failure) or exchange.write_failure(failure)
