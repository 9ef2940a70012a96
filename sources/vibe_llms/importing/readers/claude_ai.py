"""Conversations exported by Claude.ai: `conversations.json`, alone or in a ZIP file.

A reply contains its calls and their results, so it becomes several messages. The export does not
say which branch was shown, so the one that was written last is. Neither does it name models.

Source: github.com/anima-research/connectome-host, scripts/import-claudeai-export.ts, and the
documentation of github.com/Sinity/polylogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vibe_llms.importing.exports import Export
from vibe_llms.importing.fields import (
    read_identity,
    read_object,
    read_objects,
    read_string,
    read_time,
    speak,
    think,
    write_arguments,
)
from vibe_llms.importing.interfaces import ExportedRecord, Sample, register
from vibe_llms.importing.json_importers import JsonImporter, require_object
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedContent,
    ExportedConversation,
    ExportedDocument,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
    keep_contents,
)
from vibe_llms.importing.trees import count
from vibe_llms.messages.contents import Citation, TextualContent

#: Parent of the first message.
_ROOT = "00000000-0000-4000-8000-000000000000"
#: Blocks that say nothing.
_SILENT = frozenset({"token_budget", "flag"})


class ClaudeAiImporter(JsonImporter):
    """Reader of Claude.ai's exports."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize a list of `chat_messages`."""
        return isinstance(read_object(sample.value).get("chat_messages"), list)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        value = require_object(record.value)
        if not isinstance(value.get("chat_messages"), list):
            raise ValueError("it has no list of messages (chat_messages)")  # noqa: TRY004
        files = 0
        messages: list[ExportedMessage] = []
        linked = any(one.get("parent_message_uuid") for one in read_objects(value, "chat_messages"))
        for message in read_objects(value, "chat_messages"):
            files += len(_survey_missing(message))
            before = messages[-1].id if messages else ""
            messages.append(self._convert_message(message, before, linked=linked))
        return ExportedConversation(
            id=read_identity(value, "uuid"),
            title=read_string(value, "name"),
            created=read_time(value.get("created_at")),
            updated=read_time(value.get("updated_at")),
            messages=tuple(messages),
            losses=(count(files, "file that the export does not contain"),) if files else (),
        )

    def _convert_message(
        self, value: Mapping[str, Any], before: str, *, linked: bool
    ) -> ExportedMessage:
        parent = read_string(value, "parent_message_uuid") if linked else before
        parts: list[ExportedPart] = [*self._convert_blocks(value)]
        for one in read_objects(value, "attachments"):
            if text := read_string(one, "extracted_content"):
                title = read_string(one, "file_name")
                parts.insert(0, ExportedDocument((TextualContent(text),), title))
        parts += [
            TextualContent(f"[file {name}, not in the export]") for name in _survey_missing(value)
        ]
        return ExportedMessage(
            id=read_identity(value, "uuid") or f"after {before}",
            parent="" if parent == _ROOT else parent,
            speaker="user" if value.get("sender") == "human" else "assistant",
            parts=tuple(parts),
            created=read_time(value.get("created_at")),
        )

    def _convert_blocks(self, value: Mapping[str, Any]) -> Iterator[ExportedPart]:
        said = False
        for block in read_objects(value, "content"):
            for part in self._convert_block(block):
                said = said or isinstance(part, TextualContent)
                yield part
        if not said:
            # Earlier exports have no blocks.
            yield from speak(value.get("text"))

    def _convert_block(self, block: Mapping[str, Any]) -> Iterator[ExportedPart]:
        match block.get("type"):
            case "text":
                for part in speak(block.get("text")):
                    assert isinstance(part, TextualContent)
                    yield TextualContent(part.data, citations=_read_citations(block))
            case "thinking":
                yield from think(block.get("thinking"))
            case "tool_use":
                yield ExportedCall(
                    name=read_string(block, "name") or "tool",
                    arguments=write_arguments(block.get("input")),
                    call=read_identity(block, "id"),
                )
            case "tool_result":
                yield ExportedResult(
                    contents=self._convert_result(block.get("content")),
                    call=read_identity(block, "tool_use_id"),
                    name=read_string(block, "name"),
                    failed=block.get("is_error") is True,
                )
            case kind if kind not in _SILENT:
                yield from self.native.keep(block, read_string(kind))

    def _convert_result(self, content: object) -> tuple[ExportedContent, ...]:
        if isinstance(content, str):
            return keep_contents(speak(content))
        found: list[ExportedPart] = []
        for block in read_objects({"content": content}, "content"):
            if block.get("type") == "text":
                found += speak(block.get("text"))
            else:
                found += self.native.keep(block, read_string(block, "type"))
        return keep_contents(found)


def _survey_missing(message: Mapping[str, Any]) -> list[str]:
    """Return the names of files whose bytes are not in the export."""
    extracted = {
        read_string(one, "file_name")
        for one in read_objects(message, "attachments")
        if read_string(one, "extracted_content")
    }
    found = [*read_objects(message, "files"), *read_objects(message, "attachments")]
    names = dict.fromkeys(read_string(one, "file_name") or "without a name" for one in found)
    return [name for name in names if name not in extracted]


def _read_citations(block: Mapping[str, Any]) -> tuple[Citation, ...]:
    found = []
    for one in read_objects(block, "citations"):
        source = read_string(one, "url") or read_string(one.get("details"), "url")
        title = read_string(one, "title")
        if source or title:
            found.append(Citation(title=title, source=source))
    return tuple(found)


register("claude-ai", ClaudeAiImporter)
