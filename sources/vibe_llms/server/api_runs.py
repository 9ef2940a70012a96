"""The endpoints below `/api/runs`: the runs of a user, their events, and decisions on calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import RunNotFound
from vibe_llms.invocation.approval import Decision
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.runs.events import encode_event
from vibe_llms.runs.interfaces import RunRecord, RunStatus
from vibe_llms.runs.run import Run
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.reading import read_body
from vibe_llms.server.spaces import UserSpace

_LARGEST_PAGE = 1000


class _RunDecision(Struct, forbid_unknown_fields=True):
    """Whether a call may run; the model reads the reason of a denial."""

    invocation: str
    allowed: bool
    reason: str = ""


_DECISION = msgspec.json.Decoder(_RunDecision)


async def list_runs(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """The runs, the newest first; `status` and `limit` choose among them."""
    status, limit = exchange.query.get("status"), exchange.query.get("limit", "50")
    if status is not None and status not in {*RunStatus}:
        raise Rejected(f"a status is one of {', '.join(RunStatus)}", param="status")
    if not limit.isdecimal() or not 1 <= int(limit) <= _LARGEST_PAGE:
        raise Rejected(f"limit is from 1 to {_LARGEST_PAGE}", param="limit")
    found = await space.session.survey_runs(
        status=None if status is None else RunStatus(status), limit=int(limit)
    )
    await _reply(exchange, {"runs": [_describe(record) for record in found]})


async def show_run(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """A run, with the calls that wait for a decision."""
    run = await _access(space, exchange.argument)
    calls = {
        one.identity: one.arguments
        for one in (await run.read()).canisters
        if isinstance(one, InvocationCanister)
    }
    approvals = [
        {
            "invocation": one.invocation,
            "name": one.name,
            "arguments": calls.get(one.invocation, ""),
            "reason": one.reason,
            "allowed": one.allowed,
        }
        for one in await run.survey_approvals()
    ]
    await _reply(exchange, {**_describe(run.record), "approvals": approvals})


async def follow_run(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """The events of a run as they come, after the cursor in `Last-Event-ID` or `after`."""
    run = await _access(space, exchange.argument)
    header = exchange.headers.get(b"last-event-id", b"").decode("latin-1")
    after = header or exchange.query.get("after", "0")
    if not after.isdecimal():
        raise Rejected("a cursor is a number", param="after")
    async with exchange.until_disconnect(), aclosing(_write_events(run, int(after))) as parts:
        await exchange.stream(parts)


async def cancel_run(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """Ask for the end of a run."""
    run = await _access(space, exchange.argument)
    await run.cancel()
    await _reply(exchange, _describe(await run.access()))


async def decide_call(core: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """Decide on a call that a run waits for; the same decision again changes nothing."""
    run = await _access(space, exchange.argument)
    wanted = read_body(_DECISION, await exchange.read(core.settings))
    made = await run.decide(wanted.invocation, Decision(wanted.allowed, reason=wanted.reason))
    await _reply(exchange, {"invocation": made.invocation, "allowed": made.allowed})


async def _access(space: UserSpace, identity: str) -> Run:
    run = await space.session.access_run(identity)
    if run.identity != identity:
        raise RunNotFound(f"there is no run {identity!r}")
    return run


async def _write_events(run: Run, after: int) -> AsyncGenerator[bytes, None]:
    # The head is sent at once, also if the run has nothing to say for long.
    yield b": events\n\n"
    async for cursor, event in run.events(after=after):
        yield b"id: %d\ndata: %b\n\n" % (cursor, encode_event(event))


def _describe(record: RunRecord) -> Mapping[str, Any]:
    return {
        "id": record.identity,
        "status": record.status,
        "conversation": record.conversation,
        "model": record.recipe.model,
        "created": record.created,
        "updated": record.updated,
        "error": record.error,
    }


async def _reply(exchange: Exchange, body: Mapping[str, Any]) -> None:
    await exchange.reply(msgspec.json.encode(body))
