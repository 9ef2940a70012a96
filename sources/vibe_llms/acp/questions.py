"""Questions to the user, which the client asks: approval of calls, and forms of servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.acp.calls import find_kind, raw_input
from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.rpc import RpcError
from vibe_llms.acp.updates import (
    AskedCall,
    FormParams,
    LinkParams,
    PermissionChoice,
    PermissionParams,
    SentText,
    ToolContent,
)
from vibe_llms.invocation.approval import ApprovalRequest, Approver, Decision
from vibe_llms.invocation.questions import (
    ElicitationAnswer,
    ElicitationRequest,
    Elicitor,
    decline,
    write_form,
)
from vibe_llms.messages.events import Notice
from vibe_llms.messages.identities import produce_identity

_ALLOW, _ALWAYS, _TOOL, _REJECT = "allow", "always", "always-tool", "reject"
_DECISIONS = {
    _ALLOW: Decision.ALLOW,
    _ALWAYS: Decision.ALWAYS,
    _TOOL: Decision.ALWAYS_TOOL,
    _REJECT: Decision.DENY,
}
_UNANSWERED = Decision(False, reason="the editor could not ask the user")


class _Outcome(Struct, frozen=True, rename="camel"):
    outcome: str
    option_id: str = ""


class _PermissionResult(Struct, frozen=True):
    outcome: _Outcome


class _ElicitationResult(Struct, frozen=True):
    action: str
    content: dict[str, Any] | None = None


# msgspec 0.22 crashes if two threads are the first to use a type, so use it here first.
_PERMISSION = msgspec.json.Decoder(_PermissionResult)
_ELICITATION = msgspec.json.Decoder(_ElicitationResult)


def produce_approver(client: SessionClient) -> Approver:
    """Return an approver that lets the client ask the user about a call, with all arguments."""

    async def approve(request: ApprovalRequest) -> Decision:
        invocation, tool = request.invocation, request.invoker
        call = AskedCall(
            tool_call_id=invocation.identity,
            title=tool.name,
            kind=find_kind(tool.name, {tool.name: tool}),
            status="pending",
            content=[ToolContent(SentText(request.reason))],
            raw_input=raw_input(invocation),
        )
        chosen = await ask_permission(client, call, _offer_choices(request))
        return _UNANSWERED if chosen is None else _DECISIONS[chosen]

    return approve


async def ask_permission(
    client: SessionClient, call: AskedCall, choices: Sequence[PermissionChoice]
) -> str | None:
    """Let the client ask the user, and return the id of the chosen answer.

    A client that cancels the question chooses the last answer. None if the client cannot ask.
    """
    params = PermissionParams(client.session, call, choices)
    try:
        answer = await client.ask("session/request_permission", params)
        outcome = _PERMISSION.decode(answer).outcome
    except (RpcError, ValueError) as error:
        client.show(Notice("run", f"{call.title}: the editor did not ask the user: {error}"))
        return None
    if outcome.outcome != "selected":
        return choices[-1].option_id
    offered = {choice.option_id for choice in choices}
    return outcome.option_id if outcome.option_id in offered else None


def _offer_choices(request: ApprovalRequest) -> list[PermissionChoice]:
    choices = [PermissionChoice(_ALLOW, "Allow", "allow_once")]
    if not request.each_time:
        scope = request.scope or "this call"
        choices += [
            PermissionChoice(_ALWAYS, f"Always allow {scope} in this session", "allow_always"),
            PermissionChoice(_TOOL, "Always allow this tool in this session", "allow_always"),
        ]
    return [*choices, PermissionChoice(_REJECT, "Reject", "reject_once")]


def produce_elicitor(client: SessionClient) -> Elicitor:
    """Return an elicitor that lets the client ask; questions that it cannot ask are declined."""
    abilities = client.abilities.elicitation
    if abilities is None or (abilities.form is None and abilities.url is None):
        return decline

    async def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        params: Struct
        message = f"{request.ensemble} asks: {request.message}"
        if request.url:
            able = abilities.url is not None
            params = LinkParams(client.session, message, produce_identity(), request.url)
        else:
            able = abilities.form is not None
            params = FormParams(client.session, message, write_form(request.fields))
        if not able:
            what = f"you to open {request.url}" if request.url else "you to fill in a form"
            text = (
                f"{request.ensemble} asks {what} ({request.message}); declined: the editor cannot"
            )
            client.show(Notice("ensemble", text))
            return ElicitationAnswer("decline")
        try:
            answer = _ELICITATION.decode(await client.ask("elicitation/create", params))
        except (RpcError, ValueError) as error:
            text = f"the question of {request.ensemble} was not answered: {error}"
            client.show(Notice("ensemble", text))
            return ElicitationAnswer("cancel")
        match answer.action:
            case "accept":
                return ElicitationAnswer("accept", answer.content or {})
            case "decline":
                return ElicitationAnswer("decline")
            case _:
                return ElicitationAnswer("cancel")

    return elicit
