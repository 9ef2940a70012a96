"""`Converser`: what the tools need from the process that serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from vibe_llms.conversations.conversation import Conversation
    from vibe_llms.memory.hook import MemoryHook
    from vibe_llms.runs.interfaces import RunRecord
    from vibe_llms.session.core import Session


class Converser(Protocol):
    """The session of one user, with the rules of the process for it."""

    @property
    def session(self) -> Session:
        """The session."""
        ...

    @property
    def memory(self) -> MemoryHook:
        """The user's memory."""
        ...

    @property
    def agents(self) -> Sequence[str]:
        """Names of the agents that the user may name."""
        ...

    @property
    def prompts(self) -> Sequence[str]:
        """Names of the agents whose prompts the user may see."""
        ...

    async def begin(self, name: str) -> Conversation:
        """Begin a conversation with the agent or model of this name; with the default if empty."""
        ...

    async def resume(self, conversation: str, name: str) -> Conversation:
        """Resume a conversation by its whole id, with its own agent and model if `name` is empty.

        Raises `ConversationNotFound`.
        """
        ...

    def check_message(self, text: str) -> None:
        """Raise an error if a message is too long."""
        ...

    def describe_run_error(self, record: RunRecord) -> str:
        """Return the error of a failed run in words for the client."""
        ...

    def following(self) -> AbstractContextManager[None]:
        """Count a client that waits for a run."""
        ...

    def asking(self) -> AbstractAsyncContextManager[None]:
        """Count requests to providers without a conversation."""
        ...


#: Returns the converser, which is opened with the first call.
ConverserOpener: TypeAlias = Callable[[], Awaitable[Converser]]
