"""Repeatable turns: each is a run, which a request with the same key finds again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress

from vibe_llms.base.exceptions import DecisionRefused
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.messages.canisters import is_large
from vibe_llms.messages.events import Event
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    MessageDelta,
    MessageStarted,
    RunContinued,
    RunEnded,
)
from vibe_llms.runs.interfaces import RequestKey, RunStatus
from vibe_llms.runs.replay import Replay
from vibe_llms.runs.run import Run
from vibe_llms.server.context_orders import ManagedContext
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import ClientFailure, Rejected, describe_kind
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import RecordedTurn, ReplyWriter, ServedTurn, TurnOrder

_NO_USER = Decision(False, reason="no user can be asked now")


async def answer_once(
    exchange: HttpExchange,
    space: UserSpace,
    order: TurnOrder,
    produce_writer: Callable[[ServedTurn | RecordedTurn], ReplyWriter],
    request: RequestKey,
    *,
    stream: bool,
) -> None:
    """Answer a request with the turn that has its key; a disconnect does not end the turn."""
    if not order.store:
        raise Rejected("a turn that is not stored cannot be repeated; omit Idempotency-Key")
    if order.context.only:
        raise Rejected("a compaction alone cannot be repeated; omit Idempotency-Key")
    run = await space.session.access_runs().find(request)
    if run is None:
        served = await ServedTurn.begin(space, order, recorded=True)
        await served.prepare()
        origin = await offload(is_large(order.said), served.managed.write)
        run = await served.start([], origin, request, awaited=True)
    exchange.conversation = run.record.conversation
    origin = run.record.origin
    managed = await offload(len(origin) > LOOP_BYTES, ManagedContext.read, origin)
    if managed.compaction is not None and order.context.signer is not None:
        managed.compaction = await managed.compaction.sign(order.context.signer)
    turn = RecordedTurn(space, order, run, managed)
    writer = produce_writer(turn)
    if stream:
        async with aclosing(_write_events(turn, writer)) as parts:
            await exchange.stream(parts, writer.fail)
        return
    async for _ in follow(run):
        pass
    await _require_success(turn)
    await exchange.reply(writer.encode(await turn.conclude()))


async def _write_events(turn: RecordedTurn, writer: ReplyWriter) -> AsyncGenerator[bytes, None]:
    async for event in follow(turn.run):
        if chunk := writer.write(event):
            yield chunk
    await _require_success(turn)
    yield writer.finish(await turn.conclude())


async def _require_success(turn: RecordedTurn) -> None:
    """Raise the failure of a turn, after freeing its key if the model has not replied."""
    if failure := await find_run_failure(turn.run):
        await turn.withdraw()
        raise Rejected.from_failure(failure)


async def find_run_failure(run: Run) -> ClientFailure | None:
    """Return the failure of a failed run, or None."""
    record = await run.access()
    if record.status is not RunStatus.FAILED:
        return None
    waits = [one.retry_after for one in await run.survey_events() if isinstance(one, RunEnded)]
    return describe_kind(record.kind, record.error, *waits)


async def follow(run: Run) -> AsyncIterator[Event]:
    """Yield the events of a turn from its run, while denying approvals and declining questions.

    A message that starts again because a worker died is skipped if its replacement is already
    known; otherwise `Rejected` asks to repeat the request.
    """
    known = await run.survey_events() if run.record.epoch > 1 else ()
    replaced = {one.message for one in known if isinstance(one, RunContinued)}
    replay = Replay(run)
    async for _, event in run.events():
        match event:
            case MessageStarted(message=message) | MessageDelta(message=message) if (
                message in replaced
            ):
                continue
            case RunContinued(message=message) if message in replay.shown:
                raise Rejected(
                    "the reply starts again; repeat the request with the same key",
                    status=503,
                    code="reply_restarted",
                )
            case ApprovalRequested(invocation=invocation):
                # Another client may have decided already.
                with suppress(DecisionRefused):
                    await run.decide(invocation, _NO_USER)
            case AnswerRequested(question=question):
                with suppress(DecisionRefused):
                    await run.answer(question, ElicitationAnswer("decline"))
        if (translated := await replay.read(event)) is not None:
            yield translated
