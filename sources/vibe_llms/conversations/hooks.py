"""Turn hooks add documents to a turn before it starts, and work on it after it ends.

Memory is a hook; programs pass others to `session.begin(..., hooks=[...])`. A hook cannot make a
turn fail, and delays it by at most its own `before_seconds`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from vibe_llms.messages.canisters import Canister, DocumentCanister, Turn
from vibe_llms.providers.interfaces import Loader, Model, Notifier, ignore_notices, refuse_loading

T = TypeVar("T")
Work: TypeAlias = Coroutine[Any, Any, None]


class HookRequest(Struct, frozen=True, kw_only=True):
    """The turn that a hook is called for.

    `history` is the conversation before the turn, `said` the new messages, `model` the model that
    answers. `kept` is False if the conversation is not stored. `load` returns the bytes of
    references, and `notify` shows a notice to the user.
    """

    conversation: str
    model: Model
    history: Sequence[Canister] = ()
    said: Sequence[Canister] = ()
    kept: bool = True
    load: Loader = refuse_loading
    notify: Notifier = ignore_notices


class HookContext(Struct, frozen=True):
    """A hook's additions to a turn: documents, stored right before the user's message.

    They are data without authority. With `outside`, they contain text of other people, so tools
    that may send data out ask for approval while they are in the conversation.
    """

    canisters: Sequence[DocumentCanister] = ()
    outside: bool = True


class TurnHook:
    """Base class of hooks; override what you need. One hook may serve many conversations."""

    #: Name in notices, and for `remove_hook`.
    name: str = "hook"
    #: Most seconds that a turn waits for `before_turn`.
    before_seconds: float = 5.0
    #: Most seconds that a closing session waits for the hook's work.
    close_seconds: float = 5.0
    #: True if a later session continues cancelled work.
    resumes: bool = False

    async def before_turn(self, request: HookRequest) -> HookContext:
        """Return the additions to the turn, before anything is stored or sent.

        Not called for a turn without a new message.
        """
        return HookContext()

    async def record_turn(self, request: HookRequest, turn: Turn) -> None:
        """Record the work of `after_turn`, if necessary, so that it survives this process.

        The end of the turn, and of a run, waits for this, at most `before_seconds`.
        """

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        """Return the work to do in the background after the turn, if any.

        Called for every turn with a stored message, even if it failed or was interrupted; see
        `turn.stop_reason`. The work of one hook runs in order, one turn at a time.
        """
        return None

    async def close(self) -> None:
        """Release the hook's resources; safe to call twice."""
