"""Conversations exported by ChatGPT: `conversations.json`, or its parts, with files in a ZIP file.

Messages are a tree; a node's `parent` decides, because `children` may be missing. Calls have no
ids. Hidden messages, such as custom instructions, are counted and left out.

Source: exports of 2023 to 2026 as described in github.com/mohamed-chs/convoviz (issues 49, 61),
github.com/danny-avila/LibreChat (issues 9491, 15229; pull request 15388),
github.com/Nwflower/dsh-chat-import (issue 62) and nexus-ai-chat-importer (issue 62).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.importing.exports import Export
from vibe_llms.importing.fields import (
    read_identity,
    read_list,
    read_object,
    read_objects,
    read_string,
    read_time,
)
from vibe_llms.importing.interfaces import ExportedRecord, Sample, register
from vibe_llms.importing.json_importers import JsonImporter, require_object
from vibe_llms.importing.messages import (
    ExportedConversation,
    ExportedDocument,
    ExportedMessage,
    ExportedPart,
)
from vibe_llms.importing.readers.chatgpt_contents import ChatgptContents
from vibe_llms.importing.trees import count
from vibe_llms.messages.canisters import StopReason

_HIDDEN_TYPES = frozenset({"user_editable_context", "model_editable_context"})
#: Keys of a conversation that has lost its messages.
_KEYS = frozenset({"current_node", "conversation_template_id", "default_model_slug"})
_MARKS = {"is_archived": "archived", "is_starred": "starred"}


class ChatgptImporter(JsonImporter):
    """Reader of ChatGPT's exports."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize a `mapping` of nodes, or a conversation without one."""
        value = read_object(sample.value)
        if not isinstance(value.get("mapping"), dict):
            return bool(_KEYS & value.keys()) and "title" in value
        nodes = value["mapping"].values()
        return all(isinstance(node, dict) and "message" in node for node in nodes)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        value = require_object(record.value)
        mapping = value.get("mapping")
        if not isinstance(mapping, dict):
            raise ValueError("it has no messages (mapping)")  # noqa: TRY004
        nodes = {key: node for key, node in mapping.items() if isinstance(node, dict)}
        identity = read_identity(value, "conversation_id", "id")
        if not identity:
            raise ValueError("it has no id")
        conversion = _Conversion(value, nodes, ChatgptContents(export, self.native))
        return ExportedConversation(
            id=identity,
            title=read_string(value, "title"),
            created=read_time(value.get("create_time")),
            updated=read_time(value.get("update_time")),
            tags=tuple(tag for key, tag in _MARKS.items() if value.get(key) is True),
            messages=conversion.messages,
            current=read_string(value, "current_node"),
            losses=conversion.losses,
            notes=conversion.notes,
            fallback=record.file.changed,
        )


class _Conversion:
    """The messages of a conversation."""

    def __init__(
        self, value: Mapping[str, Any], nodes: Mapping[str, Any], contents: ChatgptContents
    ) -> None:
        self._contents = contents
        self._hidden = 0
        parents = {
            child: key
            for key, node in nodes.items()
            for child in read_list(node, "children")
            if isinstance(child, str)
        }
        messages = [read_object(node, "message") for node in nodes.values()]
        named = any(read_string(one.get("metadata"), "model_slug") for one in messages)
        self._model = "" if named else read_string(value, "default_model_slug")
        found = []
        for key, node in nodes.items():
            parent = read_string(node, "parent") or parents.get(key, "")
            found.append(self._convert(key, parent, read_object(node, "message")))
        self.messages = tuple(found)
        missing = contents.missing
        losses = [count(missing, "file that the export does not contain")] if missing else []
        self.losses = tuple(losses)
        hidden = [count(self._hidden, "message that ChatGPT hides")] if self._hidden else []
        self.notes = tuple(hidden)

    def _convert(self, key: str, parent: str, message: Mapping[str, Any]) -> ExportedMessage:
        role = read_string(message.get("author"), "role")
        metadata = read_object(message, "metadata")
        parts = self._convert_parts(message, role, metadata) if message else ()
        reason = read_string(metadata.get("finish_details"), "type")
        speaks = role == "assistant"
        return ExportedMessage(
            id=key,
            parent=parent,
            speaker=_SPEAKERS.get(role, "tool"),
            parts=parts,
            created=read_time(message.get("create_time")),
            model=(read_string(metadata, "model_slug") or self._model) if speaks else "",
            reason=StopReason.LENGTH if speaks and reason == "max_tokens" else "",
            interrupted=speaks and reason == "interrupted",
        )

    def _convert_parts(
        self, message: Mapping[str, Any], role: str, metadata: Mapping[str, Any]
    ) -> tuple[ExportedPart, ...]:
        content = read_object(message, "content")
        kind = read_string(content, "content_type")
        recipient = read_string(message, "recipient")
        is_call = role == "assistant" and recipient not in ("", "all", "assistant", "user")
        if role == "tool":
            name = read_string(message.get("author"), "name")
            return self._contents.convert_result(content, name)
        if is_call:
            return self._contents.convert_call(content, recipient)
        hidden = metadata.get("is_visually_hidden_from_conversation") is True
        if hidden or kind in _HIDDEN_TYPES or metadata.get("is_user_system_message") is True:
            self._hidden += bool(self._contents.convert(content, metadata))
            return ()
        parts: list[ExportedPart] = [*self._contents.convert(content, metadata)]
        if role == "user":
            parts[:0] = self._convert_attachments(content, metadata)
        return tuple(parts)

    def _convert_attachments(
        self, content: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> list[ExportedPart]:
        """Return the attached files that are not among the parts."""
        shown = {
            read_string(part, "asset_pointer").rpartition("://")[2]
            for part in read_objects(content, "parts")
        }
        found: list[ExportedPart] = []
        for one in read_objects(metadata, "attachments"):
            identity, name = read_identity(one, "id"), read_string(one, "name")
            if identity not in shown:
                media = self._contents.find(identity, name, read_string(one, "mimeType"))
                found.append(ExportedDocument((media,), name))
        return found


_SPEAKERS: Mapping[str, Any] = {
    "user": "user",
    "assistant": "assistant",
    "system": "supervisor",
}

register("chatgpt", ChatgptImporter)
