"""Messages of another program, as every reader gives them: one tree for each conversation.

A reader translates what it understands, and keeps the rest natively: `ExportedMessage.parts` are in
their order, and each is one of our contents, a call, a result, a document or a file of the export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Content

Speaker: TypeAlias = Literal["user", "assistant", "supervisor", "tool"]


class ExportedMedia(Struct, frozen=True):
    """An image, a recording, or another file of an export, which is read when it is stored.

    The type of its bytes decides what it becomes; `mimetype` is used if they do not show it.
    """

    load: Callable[[], bytes]
    mimetype: str = ""
    name: str = ""


ExportedContent: TypeAlias = Content | ExportedMedia


class ExportedCall(Struct, frozen=True):
    """A call of a tool. `call` is the source's id, empty if it has none."""

    name: str
    arguments: str = "{}"
    call: str = ""


class ExportedResult(Struct, frozen=True):
    """The result of a call.

    Without an id in `call`, it belongs to the nearest call before it that has no result, first of
    those to the tool `name`.
    """

    contents: tuple[ExportedContent, ...]
    call: str = ""
    name: str = ""
    failed: bool = False


class ExportedDocument(Struct, frozen=True):
    """A document that the user attached, such as the extracted text of a file."""

    contents: tuple[ExportedContent, ...]
    title: str = ""


ExportedPart: TypeAlias = ExportedContent | ExportedCall | ExportedResult | ExportedDocument


def keep_contents(parts: Iterable[ExportedPart]) -> tuple[ExportedContent, ...]:
    """Return the parts that can be contents of a result or a document."""
    others = (ExportedCall, ExportedResult, ExportedDocument)
    return tuple(part for part in parts if not isinstance(part, others))


class ExportedMessage(Struct, frozen=True, kw_only=True):
    """A message, which is a node of its conversation's tree.

    A message without parts only connects others. `model` is empty if the source does not name it.
    """

    id: str
    parent: str = ""
    speaker: Speaker = "user"
    parts: tuple[ExportedPart, ...] = ()
    created: datetime | None = None
    model: str = ""
    usage: Usage | None = None
    reason: str = ""
    interrupted: bool = False


class ExportedConversation(Struct, frozen=True, kw_only=True):
    """A conversation of another program.

    `current` is the last message of the branch that the source shows, empty if it does not say.
    `losses` describes what could not be imported, with counts, and `notes` what was left out or
    changed without a loss. If `parallel`, messages with the same parent are answers of several
    models rather than versions of one. `fallback` is a time for messages if nothing else is known;
    identities never depend on it. Unless `dated`, they do not depend on the times of messages
    either, because copies of a message have other times.
    """

    id: str
    title: str = ""
    created: datetime | None = None
    updated: datetime | None = None
    tags: tuple[str, ...] = ()
    messages: tuple[ExportedMessage, ...] = ()
    current: str = ""
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parallel: bool = False
    fallback: datetime | None = None
    dated: bool = True

    def find_updated(self) -> datetime | None:
        """Return the time of the last change, or the best time that is known for it."""
        times = [one.created for one in self.messages if one.created]
        return self.updated or max(times, default=self.created) or self.fallback
