"""Messages that the user adds to a running turn: the queue of a conversation, and its rules.

The turn stores a queued message before its next request, after the results of the calls, and marks
it as `steered`. A message that is still queued when the model has given its last reply continues
the turn. See adr/0116.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from vibe_llms.base.exceptions import ContextOverflow, RequestError, SteeringRefused
from vibe_llms.base.futures import finish
from vibe_llms.conversations.dispatcher import Dispatcher
from vibe_llms.conversations.history import History
from vibe_llms.conversations.prompts import Prompt, read_prompt, rewrite_message
from vibe_llms.messages.canisters import Canister, StopReason, UserCanister
from vibe_llms.messages.events import (
    Notice,
    SteeringDeliveredEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
)

#: Reasons for which a turn ends even if messages are queued.
FINAL_REASONS = frozenset(
    [StopReason.LIMIT, StopReason.INVOCATIONS, StopReason.INTERRUPTED, StopReason.FAILED]
)


class SteeringSource(Protocol):
    """The queue that a turn takes messages from."""

    async def take(self) -> Sequence[UserCanister]:
        """Return the queued messages, which cannot be taken back from now on.

        A message that was taken and not settled is returned again.
        """
        ...

    async def settle(self, identity: str) -> None:
        """Remove a message that is stored in the history, or that the model cannot read."""
        ...

    def restore(self, messages: Iterable[UserCanister]) -> bool:
        """Queue settled messages again, because they were removed from the history.

        Returns False if no turn follows that could send them.
        """
        ...

    async def close(self, reason: str, *, anyway: bool) -> bool:
        """Accept no more messages and return True, unless some are queued.

        The turn ends for the `reason`. With `anyway`, the messages remain queued.
        """
        ...

    def end(self, stored: Collection[str]) -> Sequence[UserCanister]:
        """Accept no more messages; return those that remain queued after the turn."""
        ...


class SteeringQueue:
    """The queued messages of a conversation, in memory."""

    def __init__(self, waiting: Iterable[UserCanister] = ()) -> None:
        self._waiting = {one.identity: one for one in waiting}
        self._taken: dict[str, UserCanister] = {}
        #: True while a turn accepts messages.
        self.open = False

    @property
    def messages(self) -> Sequence[UserCanister]:
        """The messages that can be taken back, in order."""
        return tuple(self._waiting.values())

    def begin(self) -> None:
        """Accept messages for a turn that sends the queued ones with its prompt."""
        self.open = True
        self._take()

    def add(self, message: UserCanister) -> None:
        """Queue a message."""
        self._waiting[message.identity] = message

    def find(self, identity: str) -> UserCanister:
        """Return a queued message; raises `SteeringRefused` if it is not queued."""
        if identity not in self._waiting:
            raise SteeringRefused(
                f"message {identity!r} is not queued; it was sent or taken back before"
            )
        return self._waiting[identity]

    def remove(self, identity: str) -> None:
        """Take a queued message back."""
        del self._waiting[identity]

    def move(self) -> Sequence[UserCanister]:
        """Remove all messages, for another queue."""
        waiting, self._waiting = self._waiting, {}
        return tuple(waiting.values())

    def put_back(self, messages: Iterable[UserCanister]) -> None:
        """Queue messages that were moved before the others."""
        self._waiting = {**{one.identity: one for one in messages}, **self._waiting}

    async def take(self) -> Sequence[UserCanister]:
        """Return the queued messages; see `SteeringSource`."""
        self._take()
        return tuple(self._taken.values())

    async def settle(self, identity: str) -> None:
        """Remove a message; see `SteeringSource`."""
        self._taken.pop(identity, None)

    def restore(self, messages: Iterable[UserCanister]) -> bool:
        """Queue settled messages again; see `SteeringSource`."""
        self._taken = {**{one.identity: one for one in messages}, **self._taken}
        return True

    async def close(self, reason: str, *, anyway: bool) -> bool:
        """Accept no more messages; see `SteeringSource`."""
        del reason
        self.open = bool(self._waiting) and not anyway
        return not self.open

    def end(self, stored: Collection[str]) -> Sequence[UserCanister]:
        """Keep the messages that were not stored for the next turn, and return them."""
        self.open = False
        taken, self._taken = self._taken, {}
        left = {name: one for name, one in taken.items() if name not in stored}
        self._waiting = {**left, **self._waiting}
        return self.messages

    def _take(self) -> None:
        self._taken |= self._waiting
        self._waiting = {}


class Delivery:
    """The delivery of queued messages to one turn.

    If the turn is `resumed`, its run has already reported the messages that are in the history.
    """

    def __init__(
        self,
        source: SteeringSource,
        history: History,
        dispatcher: Dispatcher,
        *,
        resumed: bool,
    ) -> None:
        self._resumed = resumed
        self._source = source
        self._history = history
        self._dispatcher = dispatcher
        #: The messages sent in this turn, by identity.
        self._sent: dict[str, UserCanister] = {}

    async def deliver(
        self,
        added: Collection[Canister],
        prepare: Callable[[UserCanister], Awaitable[None]],
        keep: Callable[[Sequence[Canister]], Awaitable[None]],
    ) -> None:
        """Store the queued messages.

        `added` are the messages of the turn so far. `prepare` raises an error for a message that
        the model cannot read, which is then withdrawn, and `keep` stores a message.
        """
        for message in await self._source.take():
            try:
                await prepare(message)
            except (RequestError, ContextOverflow) as error:
                await self._source.settle(message.identity)
                self._dispatcher(
                    SteeringWithdrawnEvent(
                        canister=message,
                        conversation=self._history.identity,
                        reason=str(error),
                    )
                )
                continue
            known = any(one.identity == message.identity for one in added)
            await finish(self._send(message, None if known else keep))

    async def _send(
        self, message: UserCanister, keep: Callable[[Sequence[Canister]], Awaitable[None]] | None
    ) -> None:
        if keep is not None:
            await keep([message])
        await self._source.settle(message.identity)
        self._sent[message.identity] = message
        if keep is not None or not self._resumed:
            self._dispatcher(
                SteeringDeliveredEvent(canister=message, conversation=self._history.identity)
            )

    async def close(self, reason: str) -> bool:
        """Accept no more messages and return True, unless some are queued that can be sent.

        After a limit, a reply that broke off, or calls of tools that run elsewhere, the turn ends
        in any case.
        """
        return await self._source.close(reason, anyway=reason in FINAL_REASONS)

    def restore(self) -> None:
        """Queue the messages of the turn again, because it was removed from the history."""
        if self._source.restore(self._sent.values()):
            for message in self._sent.values():
                self._dispatcher(
                    SteeringQueuedEvent(canister=message, conversation=self._history.identity)
                )

    def end(self, start: int) -> Sequence[UserCanister]:
        """Accept no more messages; return those that remain queued.

        The turn began at `start` of the history.
        """
        return self._source.end({one.identity for one in self._history.canisters[start:]})


def read_steering(prompt: Prompt, template: Callable[[str], str] | None) -> UserCanister:
    """Convert a prompt to one message of the user, marked as `steered`.

    Raises `RequestError` for other messages.
    """
    said = read_prompt(prompt)
    match said:
        case [UserCanister() as message]:
            given = message if template is None else rewrite_message(message, template)
            return replace(given, steered=True)
        case _:
            raise RequestError(
                "only one message of the user can be added to a running turn; pass text or contents"
            )


def as_prompt(messages: Iterable[UserCanister]) -> Sequence[UserCanister]:
    """Return messages that were queued in an earlier turn, to be sent before the next prompt."""
    return [replace(one, steered=False) for one in messages]


def describe_left(messages: Sequence[UserCanister]) -> Notice:
    """Return the notice about messages that remain queued after a turn."""
    count = len(messages)
    what = "a queued message was" if count == 1 else f"{count} queued messages were"
    it = "it is" if count == 1 else "they are"
    after = (
        f"{it} sent before the next prompt unless you take {'it' if count == 1 else 'them'} back"
    )
    return Notice("steering", f"{what} not sent; {after}", messages[0].identity)
