"""Messages that the user adds to a run: the queue that its turn takes them from."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    MutableSequence,
    Sequence,
)
from typing import Protocol, TypeVar

from vibe_llms.conversations.prompts import rewrite_message
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.runs.events import RunEnded, RunNotice, encode_event
from vibe_llms.runs.interfaces import Lease, RunStatus, RunWriter

T = TypeVar("T")


class Guard(Protocol):
    """Awaits work of the store, and stops recording if it fails."""

    def __call__(self, work: Awaitable[T], /) -> Awaitable[T]: ...  # noqa: D102


class RunSteering:
    """A `SteeringSource` in the store of runs, for the worker that has the run.

    The agent's `template` formats the messages when they are taken, as the process in which they
    were added may not know it. Messages that were sent, and then removed with the turn, are added
    to `removed`.
    """

    def __init__(
        self,
        store: RunWriter,
        lease: Lease,
        guard: Guard,
        template: Callable[[str], str] | None,
        removed: MutableSequence[UserCanister],
    ) -> None:
        self._store = store
        self._lease = lease
        self._guard = guard
        self._template = template
        self._removed = removed

    async def take(self) -> Sequence[UserCanister]:
        """Return the queued messages; see `SteeringSource`."""
        taken = await self._guard(self._store.take_steering(self._lease))
        if self._template is None:
            return taken
        return [rewrite_message(one, self._template) for one in taken]

    async def settle(self, identity: str) -> None:
        """Remove a message; see `SteeringSource`."""
        await self._guard(self._store.settle_steering(self._lease, identity))

    def restore(self, messages: Iterable[UserCanister]) -> bool:
        """Let the job report the messages: a run ends with its only turn."""
        self._removed.extend(messages)
        return False

    async def close(self, reason: str, *, anyway: bool) -> bool:
        """Accept no more messages; see `SteeringSource`."""
        return await self._guard(self._store.close_steering(self._lease, reason, anyway=anyway))

    def end(self, stored: Collection[str]) -> Sequence[UserCanister]:
        """Do nothing: the job reports the messages that remain when the run ends."""
        del stored
        return ()


def write_end(ended: RunEnded, left: Sequence[UserCanister]) -> Sequence[bytes]:
    """Return the last events of a run, of whose messages those that are `left` were not sent."""
    return [encode_event(one) for one in (*([notice_left(left)] if left else ()), ended)]


def end_cancelled(left: Sequence[UserCanister]) -> Sequence[bytes]:
    """Return the last events of a run that is cancelled while no worker has it; see `RunEnding`."""
    return write_end(RunEnded(RunStatus.CANCELLED), left)


def notice_left(messages: Sequence[UserCanister]) -> RunNotice:
    """Return the notice about messages that were not sent before the end of a run."""
    count = len(messages)
    what = "a queued message was" if count == 1 else f"{count} queued messages were"
    return RunNotice(
        "steering", f"{what} not sent before the run ended; send it again", messages[0].identity
    )
