"""Reuses results of pure tools from earlier in the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vibe_llms.invocation.approval import canonical_arguments
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.messages.canisters import Canister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import TextualContent

NOTE = "(The result of an earlier call with the same arguments; the tool did not run again.)"


def reuse_result(
    invocation: InvocationCanister,
    invoker: Invoker,
    history: Sequence[Canister],
    invokers: Mapping[str, Invoker],
) -> ResultCanister | None:
    """Return the result of a pure tool's call if the same call succeeded earlier in the history.

    The history is the cache, so reuse also works in resumed and forked conversations.
    """
    if not invoker.pure:
        return None
    arguments = canonical_arguments(invocation)
    calls = {
        canister.identity
        for canister in history
        if isinstance(canister, InvocationCanister)
        and canister.identity != invocation.identity
        and find_invoker(invokers, canister.name) is invoker
        and canonical_arguments(canister) == arguments
    }
    for canister in history:
        if not isinstance(canister, ResultCanister) or canister.invocation not in calls:
            continue
        if not canister.failed and not canister.reused:
            return ResultCanister(
                (*canister.contents, TextualContent(NOTE)),
                invocation=invocation.identity,
                display=canister.display,
                reused=canister.identity,
                trusted=canister.trusted,
            )
    return None
