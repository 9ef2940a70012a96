"""Decides whether a call runs: by the tool's rule, or by asking a person or policy.

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
    """An approver's decision on a call, its duration, and a reason that the model reads.

    `remember="call"` also allows later calls with the same arguments, or in the same scope if the
    request has one; `"tool"` allows every call of the tool. Both last until the session ends or the
    tool is set to ask or deny.
    """

    allowed: bool
    remember: Literal["", "call", "tool"] = ""
    reason: str = ""

    ALLOW: ClassVar[Decision]
    #: Allow this tool with the same arguments, or in the same scope, for this session.
    ALWAYS: ClassVar[Decision]
    #: Allow this tool with any arguments for the rest of the session.
    ALWAYS_TOOL: ClassVar[Decision]
    DENY: ClassVar[Decision]


Decision.ALLOW = Decision(True)
Decision.ALWAYS = Decision(True, "call")
Decision.ALWAYS_TOOL = Decision(True, "tool")
Decision.DENY = Decision(False)


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that needs approval, for the given `reason`.

    If `each_time` is True, the answer is not remembered: a call like this asks again. `scope` is
    the extent of `Decision.ALWAYS`, such as a host; if empty, it is a call with the same arguments.
    """

    invocation: InvocationCanister
    invoker: Invoker
    reason: str
    conversation: str = ""
    each_time: bool = False
    scope: str = ""


#: Decides on a call. A function that is not async runs in a thread, because a person may be slow.
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Decision] | Decision]

ASKS = "the tool needs approval"
SENDS = "untrusted text is in this conversation, and the tool may send data out"
_CANNOT_ASK = (
    "The call was not allowed: {reason}, and no user can be asked now. The user can allow it: "
    "{remedy}."
)


class Gatekeeper:
    """The rules and approvals of a session, which allow or deny its calls.

    `is_row` returns True if the configuration can set the approval of an ensemble's tools.
    """

    def __init__(
        self, approver: Approver | None = None, is_row: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._approver = approver
        self._is_row = is_row
        self._allowed: dict[tuple[str, bytes], InvocationCanister] = {}
        #: Allowed pairs of tool name and scope.
        self._scopes: dict[tuple[str, str], None] = {}
        self._rules: dict[str, Approval] = {}
        #: Reasons of the requests that were answered with ALWAYS_TOOL, by tool name.
        self._tools: dict[str, str] = {}
        #: Unanswered requests, each with a function that tells if an approval covers its call.
        self._open: dict[asyncio.Task[Decision], Callable[[], bool]] = {}

    @property
    def allowed(self) -> Sequence[InvocationCanister]:
        """Calls that are allowed for the session, with their arguments."""
        return tuple(self._allowed.values())

    @property
    def allowed_scopes(self) -> Sequence[tuple[str, str]]:
        """Tools that are allowed for the session within a scope, such as a host."""
        return tuple(self._scopes)

    @property
    def allowed_tools(self) -> Sequence[str]:
        """Tools that are allowed for the session, with any arguments."""
        return tuple(self._tools)

    @property
    def rules(self) -> Mapping[str, Approval]:
        """Decisions on tools since the session was opened, by tool name."""
        return dict(self._rules)

    def decide(self, tool: str, rule: Approval) -> None:
        """Set the rule for a tool from the next turn on, overriding its own.

        With `always`, it does not ask even while untrusted text is in the conversation. Setting it
        to ask or deny cancels its approvals for the session.
        """
        self._rules[tool] = rule
        if rule not in ("always", "allow"):
            self._tools.pop(tool, None)
            self._allowed = {key: call for key, call in self._allowed.items() if key[0] != tool}
            self._scopes = {key: None for key in self._scopes if key[0] != tool}

    def describe(self, invoker: Invoker) -> str:
        """Return a tool's rule: always (if the user allowed it), allow, ask, deny, or blocked."""
        if invoker.blocked:
            return "blocked"
        rule = self._rules.get(invoker.name, invoker.approval)
        return "always" if rule == "ask" and invoker.name in self._tools else rule

    def apply_rules(self, invokers: Mapping[str, Invoker]) -> Mapping[str, Invoker]:
        """Return the tools with the decided rules."""
        if not self._rules:
            return invokers
        return {name: self._apply_rule(name, one) for name, one in invokers.items()}

    def _apply_rule(self, name: str, invoker: Invoker) -> Invoker:
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
        """Return why a call may not run, as a message for the model; empty if it may.

        `tainted` is True if untrusted text is in the conversation. `approver` is asked instead of
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
            # If the user allowed a tool that may send data out, new untrusted text changes nothing.
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
                "by approving the call at a terminal"
                if each_time
                else self._find_remedy(invoker, "always" if sends else "allow")
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
                # Must happen before the next request is shown.
                self._withdraw()
            return decision

        decision = await self._decide(decide(), covered)
        if decision is None or decision.allowed:
            return ""
        because = f" Their reason: {decision.reason}" if decision.reason else ""
        return f"The call was not allowed: the user said no.{because}"

    def _find_remedy(self, invoker: Invoker, rule: Approval) -> str:
        if invoker.ensemble and self._is_row(invoker.ensemble):
            return f'[ensembles.{invoker.ensemble}] approval = "{rule}"'
        return f"with an approver, or approval={rule!r} of the invoker"

    async def _decide(
        self, deciding: Coroutine[Any, Any, Decision], covered: Callable[[], bool]
    ) -> Decision | None:
        """Return the decision, or None if the answer to another request covers the call."""
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
        """Cancel the requests for calls that are now allowed."""
        for asking, covered in self._open.items():
            if asking is not asyncio.current_task() and covered():
                asking.cancel()


def canonical_arguments(invocation: InvocationCanister) -> bytes:
    """Return the arguments in canonical form: equal arguments give equal bytes."""
    parsed = invocation.parsed
    if parsed is None:
        return invocation.arguments.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(parsed, order="sorted")
