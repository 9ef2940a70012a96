"""Approvals and questions of a run, asked through the client: its user answers, not its model.

Up to 2025-11-25, the server sends the client a form during the call. From 2026-07-28 on, the
result says what is asked, and the client repeats the call with the answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from vibe_llms.base.exceptions import AnswerInvalid, DecisionRefused
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.questions import ElicitationAnswer, write_form
from vibe_llms.mcp_server.calls import ClientRequest, McpCall
from vibe_llms.mcp_server.run_reports import RunFollower
from vibe_llms.messages.hidden import visible
from vibe_llms.runs.interfaces import CallApproval, RunQuestion, RunStatus

_ALLOW, _REASON = "allow", "reason"
_ELICIT, _CAPABILITY = "elicitation/create", "elicitation"
_APPROVAL = {
    "type": "object",
    "properties": {
        _ALLOW: {
            "type": "boolean",
            "title": "Allow this call",
            "description": "Yes runs the tool with these arguments, once.",
        },
        _REASON: {
            "type": "string",
            "title": "Reason",
            "description": "If you deny it, the model reads the reason.",
        },
    },
    "required": [_ALLOW],
}
_RUNNING = "the run goes on; call wait with its id"
_WAITING = "the run waits for the user, who must decide; then call wait with its id"
#: No command is named: the calling model must not decide.
_UNABLE = (
    "the run waits for the user, and this client cannot ask them: tell them to decide it in "
    "vibe-llms themselves, and then call wait with its id"
)


def can_ask(call: McpCall, question: RunQuestion | None = None) -> bool:
    """Return True if the client can show its user an approval, or a question."""
    part = "url" if question is not None and question.request.url else "form"
    return call.client.supports(_CAPABILITY, part)


async def attend(
    follower: RunFollower, call: McpCall, seconds: float, state: Mapping[str, Any]
) -> str:
    """Wait for a run, asking the user what it needs, at most some seconds.

    Returns a note on how to go on if it has not ended. From 2026-07-28 on, it may raise
    `InputRequired` with the `state`.
    """
    deadline = time.monotonic() + seconds
    eager = can_ask(call)
    while True:
        await follower.wait(max(deadline - time.monotonic(), 0.0), eager=eager)
        approvals, questions = await follower.survey_open()
        record = await follower.run.access()
        if record.status.ended:
            return ""
        if not (approvals or questions):
            if time.monotonic() >= deadline:
                return _RUNNING
            continue
        answerable = [one for one in questions if can_ask(call, one)]
        asked = [*(approvals if can_ask(call) else ()), *answerable]
        remaining = deadline - time.monotonic()
        if not asked:
            if record.status is RunStatus.WAITING:
                return _UNABLE
            if remaining <= 0:
                return _RUNNING
            eager = False
            continue
        if remaining <= 0 and not call.client.stateless:
            return _WAITING
        if not await _ask(follower, call, asked, state, remaining):
            return _WAITING
        follower.resume()


async def _ask(
    follower: RunFollower,
    call: McpCall,
    asked: list[CallApproval | RunQuestion],
    state: Mapping[str, Any],
    seconds: float,
) -> bool:
    """Ask the user, and pass the answers on; return True if nothing was left undecided."""
    calls = await follower.run.survey_calls() if isinstance(asked[0], CallApproval) else {}
    requests: dict[str, ClientRequest] = {}
    for one in asked:
        if isinstance(one, CallApproval):
            found = calls.get(one.invocation)
            arguments = found.arguments if found is not None else ""
            requests[one.invocation] = _request_approval(one, arguments)
        else:
            requests[one.identity] = _request_answer(one)
    answers = await call.ask(requests, state, seconds=seconds)
    decided = True
    for one in asked:
        key = one.invocation if isinstance(one, CallApproval) else one.identity
        answer = answers.get(key, {})
        # Somebody else may have answered meanwhile, for example on the web page.
        with suppress(DecisionRefused):
            if isinstance(one, CallApproval):
                decided &= await _decide(follower, one, answer)
            else:
                decided &= await _answer(follower, call, one, answer)
    return decided


async def _decide(follower: RunFollower, one: CallApproval, answer: Mapping[str, Any]) -> bool:
    action, content = answer.get("action"), answer.get("content")
    values = content if isinstance(content, Mapping) else {}
    reason = values.get(_REASON)
    reason = reason if isinstance(reason, str) else ""
    if action == "accept" and values.get(_ALLOW) is True:
        decision = Decision.ALLOW
    elif action == "decline" or (action == "accept" and values.get(_ALLOW) is False):
        decision = Decision(allowed=False, reason=reason)
    else:
        # A dialog that was closed decides nothing.
        return False
    await follower.run.decide(one.invocation, decision)
    return True


async def _answer(
    follower: RunFollower, call: McpCall, one: RunQuestion, answer: Mapping[str, Any]
) -> bool:
    content = answer.get("content")
    match answer.get("action"):
        case "accept":
            values = content if isinstance(content, Mapping) else {}
            given = ElicitationAnswer("accept", {} if one.request.url else values)
        case "decline":
            given = ElicitationAnswer("decline")
        case _:
            return False
    try:
        await follower.run.answer(one.identity, given)
    except AnswerInvalid as error:
        # It is asked again with the next call: programs that answer would repeat themselves.
        await call.log("warning", f"the answer does not fit the form: {error}")
        return False
    return True


def _request_approval(one: CallApproval, arguments: str) -> ClientRequest:
    of = f" of {one.ensemble}" if one.ensemble else ""
    lines = [f"Allow the call of the tool {one.name}{of}?", *([one.reason] if one.reason else [])]
    message = visible("\n".join([*lines, "Arguments:", _indent(arguments)]))
    return ClientRequest(_ELICIT, {"message": message, "requestedSchema": _APPROVAL})


def _indent(arguments: str) -> str:
    try:
        return msgspec.json.format(arguments, indent=2)
    except (ValueError, RecursionError):
        return arguments


def _request_answer(one: RunQuestion) -> ClientRequest:
    request = one.request
    message = visible(f"{request.ensemble} asks: {request.message}")
    if request.url:
        params = {"mode": "url", "url": request.url, "message": message}
        return ClientRequest(_ELICIT, {**params, "elicitationId": one.identity})
    return ClientRequest(
        _ELICIT, {"message": message, "requestedSchema": write_form(request.fields)}
    )
