"""The endpoint `/api/waiting`: all calls and questions of a user that wait for an answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from vibe_llms.base.exceptions import ConversationNotFound, RunNotFound
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.runs.descriptions import AskedQuestion, RunCall, RunView, view_run
from vibe_llms.runs.interfaces import RunStatus
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace

_MCP = "vibe_llms.ensembles.mcp"
#: Runs of each status that are read.
_MOST_RUNS = 1000


class WaitingCall(RunCall, kw_only=True):
    """A call that waits for a decision, with all of its arguments.

    `source` is `mcp` for a tool of the MCP server `ensemble`, `ensemble` for a tool of another one,
    and `function` for a function of the server. A call with `each_time` cannot be allowed always.
    `title` is that of the conversation, and `since` is when the run began to wait.
    """

    run: str
    conversation: str
    title: str
    since: datetime
    source: Literal["function", "ensemble", "mcp"]


class WaitingQuestion(AskedQuestion, kw_only=True):
    """A question that waits for an answer."""

    run: str
    conversation: str
    title: str
    since: datetime


class WaitingList(Struct):
    """Calls and questions that wait, those of the newest run first."""

    calls: list[WaitingCall]
    questions: list[WaitingQuestion]


async def list_waiting(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List all calls that wait for a decision, and all questions that wait for an answer."""
    listed = WaitingList([], [])
    for view in await _survey(space):
        calls = [one for one in view.approvals if one.allowed is None]
        questions = [one for one in view.questions if one.answered is None]
        if not calls and not questions:
            continue
        place: dict[str, Any] = {
            "run": view.id,
            "conversation": view.conversation,
            "title": await _find_title(space, view.conversation),
            "since": view.updated,
        }
        listed.calls += [
            WaitingCall(**asdict(one), **place, source=_find_source(space, one)) for one in calls
        ]
        listed.questions += [WaitingQuestion(**asdict(one), **place) for one in questions]
    await exchange.reply(msgspec.json.encode(listed))


async def _survey(space: UserSpace) -> Sequence[RunView]:
    """Return the runs that wait, and those whose calls may hold them with a question."""
    views: list[RunView] = []
    active = (RunStatus.RUNNING, RunStatus.WAITING)
    for record in await space.session.survey_runs(statuses=active, limit=_MOST_RUNS):
        # It may have been removed since, with its conversation.
        with suppress(RunNotFound, ConversationNotFound):
            run = await space.session.access_run(record.identity)
            if run.record.status is RunStatus.WAITING or await run.survey_questions():
                views.append(await view_run(run))
    return views


async def _find_title(space: UserSpace, conversation: str) -> str:
    try:
        family = await space.archive.survey_family(conversation)
    except ConversationNotFound:
        return ""
    return next(one.summary.title for one in family if one.summary.identity == conversation)


def _find_source(space: UserSpace, call: RunCall) -> Literal["function", "ensemble", "mcp"]:
    rows = space.session.configuration.tree.get(ENSEMBLES, {})
    if not call.ensemble:
        return "function"
    return "mcp" if rows.get(call.ensemble, {}).get("module") == _MCP else "ensemble"
