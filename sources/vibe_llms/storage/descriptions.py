"""JSON representations of conversations, stable and shared by the command line and HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from vibe_llms.messages.codecs import encode_canister
from vibe_llms.storage.interfaces import Details, Finding, Gap, Origin, Restored, Summary, Time


class ConversationSummary(Struct, kw_only=True):
    """A conversation in a list. `problem` is the reason if it cannot be read."""

    id: str
    name: str
    title: str
    created: Time
    updated: Time
    model: str
    tags: list[str]
    forked_from: str | None
    messages: int
    problem: str
    superseded_by: str | None

    @classmethod
    def of(cls, summary: Summary) -> ConversationSummary:
        """Return the representation of a summary."""
        return cls(
            id=summary.identity,
            name=summary.name,
            title=summary.title,
            created=summary.created.isoformat(),
            updated=summary.updated.isoformat(),
            model=summary.model,
            tags=[*summary.tags],
            forked_from=_name_origin(summary.forked_from),
            messages=summary.messages,
            problem=summary.problem,
            superseded_by=summary.superseded_by or None,
        )


class FoundMessage(Struct, kw_only=True):
    """A message found by a search. `excerpt` marks the words with `[` and `]`."""

    conversation: str
    name: str
    title: str
    message: str
    role: str
    created: Time
    excerpt: str

    @classmethod
    def of(cls, finding: Finding) -> FoundMessage:
        """Return the representation of a finding."""
        return cls(
            conversation=finding.conversation,
            name=finding.name,
            title=finding.title,
            message=finding.canister,
            role=finding.role,
            created=finding.created.isoformat(),
            excerpt=finding.excerpt,
        )


class ConversationHead(Struct, kw_only=True):
    """Details of a conversation without its messages."""

    id: str
    name: str
    created: Time
    model: str
    agent: str
    tags: list[str]
    forked_from: str | None


class ConversationView(ConversationHead, kw_only=True):
    """A conversation with its messages in stored form, in which long texts are hashes."""

    gaps: list[Gap]
    messages: list[dict[str, Any]]


class MessagePage(ConversationHead, kw_only=True):
    """A conversation with some of its messages in order, in stored form.

    `start` is the number of earlier messages, `has_more` is true if there are any, and `total` is
    the number of all messages.
    """

    total: int
    start: int
    has_more: bool
    gaps: list[Gap]
    messages: list[dict[str, Any]]


class Fork(Struct, kw_only=True):
    """A new conversation with the first messages of another."""

    id: str
    forked_from: str
    messages: int


class _EncodedView(ConversationHead, kw_only=True):
    gaps: tuple[Gap, ...]
    messages: list[Raw]


class _EncodedPage(_EncodedView, kw_only=True):
    total: int
    start: int
    has_more: bool


def describe_head(identity: str, details: Details) -> ConversationHead:
    """Return the details of a conversation in their JSON form."""
    return ConversationHead(
        id=identity,
        name=details.name,
        created=details.created.isoformat(),
        model=details.model,
        agent=details.agent,
        tags=[*details.tags],
        forked_from=_name_origin(details.forked_from),
    )


def encode_conversation(restored: Restored) -> bytes:
    """Return a conversation as the JSON of a `ConversationView`."""
    view = _EncodedView(
        **asdict(describe_head(restored.identity, restored.details)),
        gaps=restored.gaps,
        messages=[Raw(encode_canister(one)) for one in restored.canisters],
    )
    return msgspec.json.encode(view)


def encode_page(restored: Restored, places: range) -> bytes:
    """Return the messages at these places as the JSON of a `MessagePage`."""
    page = _EncodedPage(
        **asdict(describe_head(restored.identity, restored.details)),
        gaps=restored.gaps,
        messages=[Raw(encode_canister(restored.canisters[place])) for place in places],
        total=len(restored.canisters),
        start=places.start,
        has_more=places.start > 0,
    )
    return msgspec.json.encode(page)


def _name_origin(origin: Origin | None) -> str | None:
    return None if origin is None else origin.conversation
