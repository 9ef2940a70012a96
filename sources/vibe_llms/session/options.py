"""Keyword arguments of `begin` and `resume`, which travel as one value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypedDict

from vibe_llms.agents.definitions import Agent
from vibe_llms.base.configuration import ContextMode, ToolMode
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.conversations.prompts import Prompt
from vibe_llms.conversations.tools import Tool
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler


class ConversationOptions(TypedDict, total=False):
    """Options of a conversation, new or resumed. Each may be left out.

    An `agent` is a row of `[agents]`, or a value. Your own options take precedence over its
    settings; your ensembles and collections are added to its own.
    """

    #: Tools: functions or invokers.
    invokers: Iterable[Tool]
    #: Names of rows in `[ensembles]`, or ensembles.
    ensembles: Iterable[str | Ensemble]
    #: Names of collections of documents that the model may search.
    collections: Iterable[str]
    #: Names of skills that the model may use, `*` for all; by default those of the agent.
    skills: Iterable[str] | None
    controls: Controls | None
    #: Gets the events of this conversation in place of the session's handler.
    event_handler: EventHandler | None
    #: How tools are offered: with the model's own calls (`native`), a text protocol (`contract`),
    #: as the model can (`auto`), or not at all (`off`); by default as in `[tools]`.
    tool_mode: ToolMode | None
    #: Recall and remember, in the mode of `[memory]`.
    memory: bool | None
    #: Called before and after each turn.
    hooks: Iterable[TurnHook]
    agent: str | Agent | None
    #: Addresses of models that answer a turn, in order, if the model fails before its reply
    #: begins; by default those of the agent, or of the model's row.
    fallback: Sequence[str] | None
    #: Whether the conversation is compacted automatically when it nearly fills the context window
    #: (`auto`), after asking the user (`ask`), or only on request (`off`); by default as in
    #: `[context]`.
    context_mode: ContextMode | None
    #: Values of the variables in the agent's prompt.
    variables: Mapping[str, str] | None


class NewConversationOptions(ConversationOptions, total=False):
    """Options of a new conversation. Each may be left out."""

    #: The system prompt.
    supervisor: str | None
    name: str
    tags: Sequence[str]
    #: Earlier messages.
    history: Prompt | None
    #: If False, nothing is stored or remembered.
    save: bool


def check_options(method: str, options: Collection[str], kind: type[ConversationOptions]) -> None:
    """Raise `TypeError` for an unknown keyword argument, as Python does for written parameters."""
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
