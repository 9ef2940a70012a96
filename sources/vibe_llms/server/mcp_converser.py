"""`SpaceConverser`: a user's session for the tools of MCP, with the rules of the server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from vibe_llms.agents.definitions import survey_names
from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.memory.hook import MemoryHook
from vibe_llms.runs.interfaces import RunRecord
from vibe_llms.server.api_conversations import reopen_conversation
from vibe_llms.server.failures import Rejected, describe_failure, describe_kind
from vibe_llms.server.request_limits import check_characters
from vibe_llms.server.spaces import UserSpace
from vibe_llms.session.core import Session

_LOGGER = get_logger("vibe_llms.server")


class SpaceConverser:
    """The session of one user of the server."""

    def __init__(self, space: UserSpace) -> None:
        self._space = space

    @property
    def session(self) -> Session:
        """The user's session."""
        return self._space.session

    @property
    def memory(self) -> MemoryHook:
        """The user's memory."""
        return self._space.memory

    @property
    def agents(self) -> Sequence[str]:
        """Names of the agents that the user may name."""
        return self._space.agents

    @property
    def prompts(self) -> Sequence[str]:
        """Names of all agents: clients can give the variables of their prompts."""
        return survey_names(self._space.session.configuration)

    async def begin(self, name: str) -> Conversation:
        """Begin a conversation with an agent or a model."""
        session = self._space.session
        agent, model = await self._space.resolve_model(name or (await session.find_model())[0])
        memory = self._space.uses_memory(agent, model)
        skills = session.choose_skills(agent)
        return await session.begin(model, agent=agent, memory=memory, skills=skills)

    async def resume(self, conversation: str, name: str) -> Conversation:
        """Resume a conversation of the user."""
        return await reopen_conversation(self._space, conversation, name or None)

    def check_message(self, text: str) -> None:
        """Raise `Rejected` if a message is too long."""
        check_characters(len(text), self._space.settings)

    def describe_run_error(self, record: RunRecord) -> str:
        """Return the error of a failed run in words for clients."""
        return describe_kind(record.kind, record.error).message

    def following(self) -> AbstractContextManager[None]:
        """Count a waiting call like an event stream."""
        return self._space.following()

    def asking(self) -> AbstractAsyncContextManager[None]:
        """Count provider requests without a conversation as a turn."""
        return self._space.asking()


def describe_error(error: Exception) -> str:
    """Return an error in words for clients; foreign errors reveal no details, and are logged."""
    if not isinstance(error, VibeLlmsError | Rejected):
        _LOGGER.error("a tool failed", exc_info=error)
    return describe_failure(error).message
