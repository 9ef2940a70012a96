"""Parameters of the methods and results that this agent sends, as they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

#: Name under which values of our own are in `_meta`.
OWN = "vibe-llms"
ToolKind: TypeAlias = Literal["read", "search", "execute", "fetch", "other"]
ToolStatus: TypeAlias = Literal["pending", "in_progress", "completed", "failed"]
#: Values of our own: `{"vibe-llms": {...}}`.
Meta: TypeAlias = Mapping[str, Mapping[str, Any]]


class _Sent(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of what is sent; members with their default are left out."""


class SentText(_Sent, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class SentImage(_Sent, frozen=True, tag_field="type", tag="image"):
    """An image; msgspec writes bytes in base64."""

    data: bytes
    mime_type: str


class SentAudio(_Sent, frozen=True, tag_field="type", tag="audio"):
    """A recording; msgspec writes bytes in base64."""

    data: bytes
    mime_type: str


class SentFile(_Sent, frozen=True):
    """A file with its text."""

    uri: str
    text: str
    mime_type: str | None = None


class SentResource(_Sent, frozen=True, tag_field="type", tag="resource"):
    """A file within a message."""

    resource: SentFile


Block: TypeAlias = SentText | SentImage | SentAudio | SentResource


class _Update(_Sent, frozen=True, tag_field="sessionUpdate", kw_only=True):
    """Base of the updates of a session."""

    meta: Meta | None = msgspec.field(default=None, name="_meta")


class _ChunkUpdate(_Update, frozen=True, kw_only=True):
    message_id: str
    content: Block


class UserChunk(_ChunkUpdate, frozen=True, tag="user_message_chunk"):
    """A part of a message of the user."""


class AgentChunk(_ChunkUpdate, frozen=True, tag="agent_message_chunk"):
    """A part of a message of the model."""


class ThoughtChunk(_ChunkUpdate, frozen=True, tag="agent_thought_chunk"):
    """A part of the model's reasoning, or a notice."""


class ToolContent(_Sent, frozen=True, tag_field="type", tag="content"):
    """A part of a result."""

    content: Block


class _ToolCallMembers(_Update, frozen=True, kw_only=True):
    tool_call_id: str
    title: str | None = None
    kind: ToolKind | None = None
    status: ToolStatus | None = None
    content: Sequence[ToolContent] | None = None
    raw_input: Raw | None = None
    raw_output: Any = None


class NewToolCall(_ToolCallMembers, frozen=True, tag="tool_call"):
    """A call that was not reported before; it has a title."""


class ChangedToolCall(_ToolCallMembers, frozen=True, tag="tool_call_update"):
    """The members of a call that have changed."""


class OptionValue(_Sent, frozen=True):
    """A value that an option can have."""

    value: str
    name: str
    description: str | None = None


class SelectOption(_Sent, frozen=True, kw_only=True, tag_field="type", tag="select"):
    """A setting of a session with its values."""

    id: str
    name: str
    description: str
    category: str
    current_value: str
    options: Sequence[OptionValue]


class OptionsUpdate(_Update, frozen=True, tag="config_option_update"):
    """All settings of the session."""

    config_options: Sequence[SelectOption]


class InfoUpdate(_Update, frozen=True, tag="session_info_update"):
    """The title and the last change of the session."""

    title: str | None = None
    updated_at: str | None = None


class CostAmount(_Sent, frozen=True):
    """An amount of money."""

    amount: float
    currency: str


class TokensUpdate(_Update, frozen=True, tag="usage_update"):
    """Tokens in the context window, its size, and the cost of the session so far."""

    used: int
    size: int
    cost: CostAmount | None = None


SessionUpdate: TypeAlias = (
    UserChunk
    | AgentChunk
    | ThoughtChunk
    | NewToolCall
    | ChangedToolCall
    | OptionsUpdate
    | InfoUpdate
    | TokensUpdate
)


class UpdateParams(_Sent, frozen=True):
    """Parameters of `session/update`."""

    session_id: str
    update: SessionUpdate


class AskedCall(_Sent, frozen=True, kw_only=True):
    """A call that the user is asked about."""

    tool_call_id: str
    title: str
    kind: ToolKind
    status: ToolStatus
    content: Sequence[ToolContent]
    raw_input: Raw


class PermissionChoice(_Sent, frozen=True):
    """An answer that the user can choose."""

    option_id: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once"]


class PermissionParams(_Sent, frozen=True):
    """Parameters of `session/request_permission`."""

    session_id: str
    tool_call: AskedCall
    options: Sequence[PermissionChoice]


class FormParams(_Sent, frozen=True, tag_field="mode", tag="form"):
    """Parameters of `elicitation/create` for a form."""

    session_id: str
    message: str
    requested_schema: Mapping[str, Any]


class LinkParams(_Sent, frozen=True, tag_field="mode", tag="url"):
    """Parameters of `elicitation/create` for a page to open."""

    session_id: str
    message: str
    elicitation_id: str
    url: str


class AgentInfo(_Sent, frozen=True):
    """The name and version of this agent."""

    name: str
    title: str
    version: str


class InitializeResult(_Sent, frozen=True, kw_only=True):
    """Result of `initialize`."""

    protocol_version: int
    agent_capabilities: Mapping[str, Any]
    agent_info: AgentInfo
    auth_methods: Sequence[Any]


class SessionResult(_Sent, frozen=True, kw_only=True):
    """Result of the methods that open a session or change its settings."""

    session_id: str | None = None
    config_options: Sequence[SelectOption]


class SessionRow(_Sent, frozen=True):
    """A session in a list."""

    session_id: str
    cwd: str
    title: str | None = None
    updated_at: str | None = None


class ListResult(_Sent, frozen=True):
    """Result of `session/list`."""

    sessions: Sequence[SessionRow]
    next_cursor: str | None = None


class PromptResult(_Sent, frozen=True):
    """Result of `session/prompt`."""

    stop_reason: Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
