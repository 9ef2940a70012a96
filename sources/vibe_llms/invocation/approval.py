"""Who decides whether a call runs: the tool's own rule, and a person or a policy where it says ask.

What is approved is one call with its arguments, unless the user says that it is the tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.invocation.asking import ask
from vibe_llms.invocation.invokers import Approval, Invoker
from vibe_llms.messages.canisters import InvocationCanister


class Decision(Struct, frozen=True):
    """What an approver says of a call, for how long, and a reason that the model reads.

    `remember="call"` also allows later calls with the same arguments, and `"tool"` every call of
    the tool, both until the session ends or the tool is set to ask or to be denied.
    """

    allowed: bool
    remember: Literal["", "call", "tool"] = ""
    reason: str = ""

    ALLOW: ClassVar[Decision]
    #: Allows the same tool with the same arguments for the rest of the session.
    ALWAYS: ClassVar[Decision]
    #: Allows the tool for the rest of the session, whatever its arguments.
    ALWAYS_TOOL: ClassVar[Decision]
    DENY: ClassVar[Decision]


Decision.ALLOW = Decision(True)
Decision.ALWAYS = Decision(True, "call")
Decision.ALWAYS_TOOL = Decision(True, "tool")
Decision.DENY = Decision(False)


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that waits to be allowed; `reason` says why it is asked for, in words.

    `each_time` says that no answer is remembered: a call like this asks again.
    """

    invocation: InvocationCanister
    invoker: Invoker
    reason: str
    conversation: str = ""
    each_time: bool = False


#: Decides on a call; a function that is not async runs in a thread, since a person may be slow.
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Decision] | Decision]

ASKS = "the tool asks before it runs"
SENDS = "text from outside has come into this turn, and the tool sends data out"
_NOBODY = (
    "The call was not allowed: {reason}, and no user can be asked now. The user can allow it: "
    "{remedy}."
)


class Gatekeeper:
    """Lets calls pass or not, and remembers what was allowed for good; a session has one."""

    def __init__(self, approver: Approver | None = None) -> None:
        self._approver = approver
        self._allowed: dict[tuple[str, bytes], InvocationCanister] = {}
        self._rules: dict[str, Approval] = {}
        #: The reason of the question at which a tool was allowed for good, by its name.
        self._tools: dict[str, str] = {}

    @property
    def allowed(self) -> Sequence[InvocationCanister]:
        """The calls that were allowed for good, with the arguments that they are allowed with."""
        return tuple(self._allowed.values())

    @property
    def allowed_tools(self) -> Sequence[str]:
        """The tools that were allowed for good, whatever their arguments."""
        return tuple(self._tools)

    @property
    def rules(self) -> Mapping[str, Approval]:
        """What was decided on tools since the session was opened, by their names."""
        return dict(self._rules)

    def decide(self, tool: str, rule: Approval) -> None:
        """From the next turn on a tool is allowed, asks, or is denied, whatever its own rule says.

        What was allowed for good is forgotten where it asks or is denied.
        """
        self._rules[tool] = rule
        if rule != "allow":
            self._tools.pop(tool, None)
            self._allowed = {key: call for key, call in self._allowed.items() if key[0] != tool}

    def describe(self, invoker: Invoker) -> str:
        """The rule in force for a tool: allow, ask, deny or blocked; always if you said so."""
        if invoker.blocked:
            return "blocked"
        rule = self._rules.get(invoker.name, invoker.approval)
        return "always" if rule == "ask" and invoker.name in self._tools else rule

    def settle(self, invokers: Mapping[str, Invoker]) -> Mapping[str, Invoker]:
        """Tools with the rules that were decided on."""
        if not self._rules:
            return invokers
        return {
            name: msgspec.structs.replace(one, approval=self._rules.get(name, one.approval))
            for name, one in invokers.items()
        }

    async def admit(
        self,
        invocation: InvocationCanister,
        invoker: Invoker,
        *,
        tainted: bool = False,
        conversation: str = "",
    ) -> str:
        """Why a call may not run, in words for the model; empty if it may.

        `tainted` tells that text of an origin without authority stands in the turn.
        """
        if invoker.blocked:
            return f"The call was not allowed: {invoker.blocked}."
        if invoker.approval == "deny":
            return "The call was not allowed: the user has denied this tool."
        each_time = invoker.must_ask(invocation.parsed or {})
        rule = SENDS if tainted and invoker.sends else ASKS if invoker.approval == "ask" else ""
        if not (reason := each_time or rule):
            return ""
        call = (invoker.name, canonical_arguments(invocation))
        # Who allowed a tool even though it sends data out has allowed it in any case.
        always = call in self._allowed or self._tools.get(invoker.name) in (reason, SENDS)
        if always and not each_time:
            return ""
        if self._approver is None:
            remedy = "by saying so at a terminal" if each_time else _remedy(invoker)
            return _NOBODY.format(reason=reason, remedy=remedy)
        told = "; ".join(filter(None, (reason, invoker.caution)))
        request = ApprovalRequest(
            invocation=invocation,
            invoker=invoker,
            reason=told,
            conversation=conversation,
            each_time=bool(each_time),
        )
        decision = await ask(self._approver, request)
        if not isinstance(decision, Decision):
            raise TypeError(f"an approver gives a Decision, not {decision!r}")
        if decision.allowed:
            if each_time:
                pass
            elif decision.remember == "call":
                self._allowed[call] = invocation
            elif decision.remember == "tool":
                self._tools[invoker.name] = reason
            return ""
        because = f" Their reason: {decision.reason}" if decision.reason else ""
        return f"The call was not allowed: the user said no.{because}"


def canonical_arguments(invocation: InvocationCanister) -> bytes:
    """The arguments so that equal ones are equal bytes."""
    parsed = invocation.parsed
    if parsed is None:
        return invocation.arguments.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(parsed, order="sorted")


def _remedy(invoker: Invoker) -> str:
    if invoker.ensemble:
        return f'[ensembles.{invoker.ensemble}] approval = "allow"'
    return "with an approver, or approval='allow' of the invoker"
