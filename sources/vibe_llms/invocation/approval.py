"""Who decides whether a call runs: the tool's own rule, and a person or a policy where it says ask.

What is approved is one call with its arguments, never the tool as such.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.invocation.asking import ask
from vibe_llms.invocation.invokers import Approval, Invoker
from vibe_llms.messages.canisters import InvocationCanister


class Decision(StrEnum):
    """What an approver says; `ALWAYS` also allows the same call with the same arguments later."""

    ALLOW = "allow"
    ALWAYS = "always"
    DENY = "deny"


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that waits to be allowed; `reason` says why it is asked for, in words."""

    invocation: InvocationCanister
    invoker: Invoker
    reason: str
    conversation: str = ""


#: Decides on a call; a function that is not async runs in a thread, since a person may be slow.
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Decision] | Decision]

ASKS = "the tool asks before it runs"
SENDS = "text from outside has come into this turn, and the tool sends data out"
_NOBODY = (
    "The call was not allowed: {reason}, and there is nobody to ask. The person can allow it: "
    "{remedy}."
)


class Gatekeeper:
    """Lets calls pass or not, and remembers what was allowed for good; a session has one."""

    def __init__(self, approver: Approver | None = None) -> None:
        self._approver = approver
        self._allowed: dict[tuple[str, bytes], InvocationCanister] = {}
        self._rules: dict[str, Approval] = {}

    @property
    def allowed(self) -> Sequence[InvocationCanister]:
        """The calls that were allowed for good, with the arguments that they are allowed with."""
        return tuple(self._allowed.values())

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
            self._allowed = {key: call for key, call in self._allowed.items() if key[0] != tool}

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
            return "The call was not allowed: the person has denied this tool."
        each_time = invoker.must_ask(invocation.parsed or {})
        rule = SENDS if tainted and invoker.sends else ASKS if invoker.approval == "ask" else ""
        if not (reason := each_time or rule):
            return ""
        call = (invoker.name, _canonical(invocation))
        if call in self._allowed and not each_time:
            return ""
        if self._approver is None:
            remedy = "by saying so at a terminal" if each_time else _remedy(invoker)
            return _NOBODY.format(reason=reason, remedy=remedy)
        told = "; ".join(filter(None, (reason, invoker.caution)))
        request = ApprovalRequest(
            invocation=invocation, invoker=invoker, reason=told, conversation=conversation
        )
        decision = Decision(await ask(self._approver, request))
        if decision == Decision.ALWAYS:
            self._allowed[call] = invocation
        if decision in (Decision.ALLOW, Decision.ALWAYS):
            return ""
        return "The call was not allowed: the person said no."


def _canonical(invocation: InvocationCanister) -> bytes:
    """The arguments so that equal ones are equal bytes."""
    parsed = invocation.parsed
    if parsed is None:
        return invocation.arguments.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(parsed, order="sorted")


def _remedy(invoker: Invoker) -> str:
    if invoker.ensemble:
        return f'[ensembles.{invoker.ensemble}] approval = "allow"'
    return "with an approver, or approval='allow' of the invoker"
