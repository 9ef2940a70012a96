"""Pairing of the results of a client's tools with their calls, by identity."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
)


class OpenCalls:
    """Calls without a result, by the client's names for them, which may repeat."""

    def __init__(self, known: Mapping[str, str] = {}) -> None:
        """Start with the identities of earlier calls, by name."""
        self._open = OrderedDict((name, deque([one])) for name, one in known.items())

    def add(self, call: InvocationCanister, name: str | None = None) -> None:
        """Add a call, under the client's name for it or another name."""
        self._open.setdefault(call.call if name is None else name, deque()).append(call.identity)

    def take(self, name: str | None) -> str | None:
        """Remove and return the first open call of a name, or of any name if None."""
        if name is None:
            name = next(iter(self._open), "")
        waiting = self._open.get(name)
        if waiting is None:
            return None
        call = waiting.popleft()
        if not waiting:
            del self._open[name]
        return call


def order_results(said: Iterable[Canister]) -> Sequence[Canister]:
    """Return messages with each result directly after its call.

    Clients put messages between a call and its result, such as a reminder to the model, but models
    and providers expect results first. Text of the assistant after its calls is part of the same
    reply.
    """
    said = [*said]
    calls = {one.identity for one in said if isinstance(one, InvocationCanister)}
    results = {one.invocation: one for one in said if isinstance(one, ResultCanister)}
    ordered: list[Canister] = []
    #: Calls and results of the last reply, not yet in `ordered`.
    reply: list[Canister] = []
    waiting: dict[str, None] = {}

    def close_reply() -> None:
        ordered.extend([*reply, *(results[call] for call in waiting)])
        reply.clear()
        waiting.clear()

    for canister in said:
        match canister:
            case InvocationCanister(identity=identity):
                if not waiting and reply and isinstance(reply[-1], ResultCanister):
                    close_reply()
                reply.append(canister)
                if identity in results:
                    waiting[identity] = None
            case ResultCanister(invocation=call) if call in calls:
                # Otherwise the result precedes its call, or has already been moved.
                if call in waiting:
                    del waiting[call]
                    reply.append(canister)
            case AssistantCanister() if waiting:
                ordered.append(canister)
            case _:
                close_reply()
                ordered.append(canister)
    close_reply()
    return ordered
