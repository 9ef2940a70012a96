"""Decides whether a call runs: by the tool's rule, or by a person or policy if the rule is ask.

An approval is for one call with its arguments, unless the user approves the tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.invocation.asking import ask
from vibe_llms.invocation.invokers import Approval, Invoker
from vibe_llms.messages.canisters import InvocationCanister


class Decision(Struct, frozen=True):
    """An approver's decision on a call, how long it lasts, and a reason that the model reads.

    `remember="call"` also allows later calls with the same arguments, or in the same scope if the
    request has one; `"tool"` allows every call of the tool. Both hold until the session ends or the
    tool is set to ask or deny.
    """

    allowed: bool
    remember: Literal["", "call", "tool"] = ""
    reason: str = ""

    ALLOW: ClassVar[Decision]
    #: Allows the same tool with the same arguments, or in the same scope, for this session.
    ALWAYS: ClassVar[Decision]
    #: Allows the tool for the rest of the session, with any arguments.
    ALWAYS_TOOL: ClassVar[Decision]
    DENY: ClassVar[Decision]


Decision.ALLOW = Decision(True)
Decision.ALWAYS = Decision(True, "call")
Decision.ALWAYS_TOOL = Decision(True, "tool")
Decision.DENY = Decision(False)


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that needs approval; `reason` says why.

    If `each_time` is true, no answer is remembered: a call like this asks again. `scope` is what
    `Decision.ALWAYS` covers, such as a host; empty if that is a call with the same arguments.
    """

    invocation: InvocationCanister
    invoker: Invoker
    reason: str
    conversation: str = ""
    each_time: bool = False
    scope: str = ""


#: Decides on a call. A function that is not async runs in a thread, because a person may be slow.
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Decision] | Decision]

ASKS = "the tool asks before it runs"
SENDS = "untrusted text is in this conversation, and the tool may send data out"
_CANNOT_ASK = (
    "The call was not allowed: {reason}, and no user can be asked now. The user can allow it: "
    "{remedy}."
)


class Gatekeeper:
    """Allows or denies calls, and remembers what was allowed for the session; a session has one."""

    def __init__(self, approver: Approver | None = None) -> None:
        self._approver = approver
        self._allowed: dict[tuple[str, bytes], InvocationCanister] = {}
        #: By tool name and scope.
        self._scopes: dict[tuple[str, str], None] = {}
        self._rules: dict[str, Approval] = {}
        #: By tool name: the reason of the question that was answered with ALWAYS_TOOL.
        self._tools: dict[str, str] = {}
        #: Questions without an answer yet, each with whether what was allowed covers its call.
        self._open: dict[asyncio.Task[Decision], Callable[[], bool]] = {}

    @property
    def allowed(self) -> Sequence[InvocationCanister]:
        """The calls that were allowed for the session, with their arguments."""
        return tuple(self._allowed.values())

    @property
    def allowed_scopes(self) -> Sequence[tuple[str, str]]:
        """The tools that were allowed for the session within a scope, such as a host."""
        return tuple(self._scopes)

    @property
    def allowed_tools(self) -> Sequence[str]:
        """The tools that were allowed for the session, with any arguments."""
        return tuple(self._tools)

    @property
    def rules(self) -> Mapping[str, Approval]:
        """The decisions on tools since the session was opened, by tool name."""
        return dict(self._rules)

    def decide(self, tool: str, rule: Approval) -> None:
        """From the next turn on, a tool is allowed, asks, or is denied, whatever its own rule.

        With `always`, it does not ask either while untrusted text is in the conversation. Setting
        it to ask or deny cancels what was allowed for the session.
        """
        self._rules[tool] = rule
        if rule not in ("always", "allow"):
            self._tools.pop(tool, None)
            self._allowed = {key: call for key, call in self._allowed.items() if key[0] != tool}
            self._scopes = {key: None for key in self._scopes if key[0] != tool}

    def describe(self, invoker: Invoker) -> str:
        """The rule for a tool: allow, ask, deny or blocked; always, if the user allowed it."""
        if invoker.blocked:
            return "blocked"
        rule = self._rules.get(invoker.name, invoker.approval)
        return "always" if rule == "ask" and invoker.name in self._tools else rule

    def settle(self, invokers: Mapping[str, Invoker]) -> Mapping[str, Invoker]:
        """Tools with the decided rules."""
        if not self._rules:
            return invokers
        return {name: self._settle(name, one) for name, one in invokers.items()}

    def _settle(self, name: str, invoker: Invoker) -> Invoker:
        match self._rules.get(name):
            case None:
                return invoker
            case "always" | "allow" as rule:
                return msgspec.structs.replace(invoker, approval=rule)
            case rule:
                return msgspec.structs.replace(invoker, approval=rule, allowed_scopes=())

    async def admit(
        self,
        invocation: InvocationCanister,
        invoker: Invoker,
        *,
        tainted: bool = False,
        conversation: str = "",
        approver: Approver | None = None,
    ) -> str:
        """Why a call may not run, as a message for the model; empty if it may.

        `tainted` is true if untrusted text is in the conversation. `approver` is asked in place of
        the session's.
        """
        if invoker.blocked:
            return f"The call was not allowed: {invoker.blocked}."
        if invoker.approval == "deny":
            return "The call was not allowed: the user has denied this tool."
        each_time = invoker.must_ask(invocation.parsed or {})
        scope = invoker.scope_of(invocation.parsed or {})
        sends = tainted and invoker.sends and invoker.approval != "always"
        rule = SENDS if sends else ASKS if invoker.approval == "ask" else ""
        if not (reason := each_time or rule):
            return ""
        call = (invoker.name, canonical_arguments(invocation))

        def covered() -> bool:
            # If the user allowed a tool that may send data out, untrusted text changes nothing.
            return not each_time and bool(
                call in self._allowed
                or self._tools.get(invoker.name) in (reason, SENDS)
                or (scope and scope in invoker.allowed_scopes)
                or (scope and (invoker.name, scope) in self._scopes)
            )

        if covered():
            return ""
        asked = approver or self._approver
        if asked is None:
            remedy = (
                "by saying so at a terminal"
                if each_time
                else _remedy(invoker, "always" if sends else "allow")
            )
            return _CANNOT_ASK.format(reason=reason, remedy=remedy)
        reported = "; ".join(filter(None, (reason, invoker.caution)))
        request = ApprovalRequest(
            invocation=invocation,
            invoker=invoker,
            reason=reported,
            conversation=conversation,
            each_time=bool(each_time),
            scope=scope,
        )

        async def decide() -> Decision:
            decision = await ask(asked, request)
            if not isinstance(decision, Decision):
                raise TypeError(f"an approver must return a Decision, not {decision!r}")
            if decision.allowed and not each_time:
                if decision.remember == "call" and scope:
                    self._scopes[invoker.name, scope] = None
                elif decision.remember == "call":
                    self._allowed[call] = invocation
                elif decision.remember == "tool":
                    self._tools[invoker.name] = reason
                # Before the next question is asked.
                self._withdraw()
            return decision

        decision = await self._decide(decide(), covered)
        if decision is None or decision.allowed:
            return ""
        because = f" Their reason: {decision.reason}" if decision.reason else ""
        return f"The call was not allowed: the user said no.{because}"

    async def _decide(
        self, deciding: Coroutine[Any, Any, Decision], covered: Callable[[], bool]
    ) -> Decision | None:
        """The decision; `None` if the answer to another question covers the call meanwhile."""
        asking = asyncio.create_task(deciding, name="approval")
        self._open[asking] = covered
        try:
            return await asking
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if waiting is not None and waiting.cancelling() == 0 and covered():
                return None
            raise
        finally:
            del self._open[asking]

    def _withdraw(self) -> None:
        """Cancel the questions about calls that are allowed now."""
        for asking, covered in self._open.items():
            if asking is not asyncio.current_task() and covered():
                asking.cancel()


def canonical_arguments(invocation: InvocationCanister) -> bytes:
    """The arguments in canonical form: equal ones are equal bytes."""
    parsed = invocation.parsed
    if parsed is None:
        return invocation.arguments.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(parsed, order="sorted")


def _remedy(invoker: Invoker, rule: Approval) -> str:
    if invoker.ensemble:
        return f'[ensembles.{invoker.ensemble}] approval = "{rule}"'
    return f"with an approver, or approval={rule!r} of the invoker"
