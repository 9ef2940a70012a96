"""Conversations exported by LibreChat as JSON: a list of messages, or a tree of them.

Source: github.com/danny-avila/LibreChat, `client/src/hooks/Conversations/useExportConversation.ts`
and `api/server/utils/import/importers.js`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vibe_llms.importing.exports import Export
from vibe_llms.importing.fields import (
    read_identity,
    read_list,
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
from vibe_llms.importing.media import read_data_address
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedConversation,
    ExportedDocument,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
    keep_contents,
)
from vibe_llms.importing.trees import count
from vibe_llms.messages.contents import ImageContent, Location, TextualContent

#: Parent of the first message.
_NO_PARENT = "00000000-0000-0000-0000-000000000000"


class LibrechatImporter(JsonImporter):
    """Reader of LibreChat's exports."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize messages of a `conversationId`."""
        value = read_object(sample.value)
        lists = [value.get(key) for key in ("messages", "messagesTree")]
        return "conversationId" in value and any(isinstance(one, list) for one in lists)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        value = require_object(record.value)
        lists = [value.get(key) for key in ("messages", "messagesTree")]
        if not any(isinstance(one, list) for one in lists):
            raise ValueError("it has no list of messages")
        found = [*_flatten(value)]
        files = [file for _, one in found for file in read_objects(one, "files")]
        missing = sum(not read_string(file, "text") for file in files)
        messages = [self._convert(parent, one) for parent, one in found]
        return ExportedConversation(
            id=read_identity(value, "conversationId"),
            title=read_string(value, "title"),
            tags=tuple(one for one in read_list(value, "tags") if isinstance(one, str)),
            messages=tuple(messages),
            losses=(count(missing, "file that the export does not contain"),) if missing else (),
            fallback=record.file.changed,
        )

    def _convert(self, parent: str, value: Mapping[str, Any]) -> ExportedMessage:
        user = value.get("isCreatedByUser") is True or (
            "isCreatedByUser" not in value and read_string(value, "sender").lower() == "user"
        )
        parts: list[ExportedPart] = [*_convert_files(value)]
        if value.get("error") is True:
            parts += self.native.keep(read_string(value, "text") or value, "error")
        else:
            said = [part for one in read_objects(value, "content") for part in self._block(one)]
            parts += said or speak(value.get("text"))
        return ExportedMessage(
            id=read_identity(value, "messageId"),
            parent=parent,
            speaker="user" if user else "assistant",
            parts=tuple(parts),
            created=read_time(value.get("createdAt")),
            model="" if user else read_string(value, "model"),
            interrupted=not user and value.get("unfinished") is True,
        )

    def _block(self, block: Mapping[str, Any]) -> Iterator[ExportedPart]:
        match block.get("type"):
            case "text":
                text = block.get("text")
                yield from speak(text if isinstance(text, str) else read_string(text, "value"))
            case "think":
                thought = block.get("think")
                yield from think(
                    thought if isinstance(thought, str) else read_string(thought, "value")
                )
            case "tool_call":
                yield from _convert_call(read_object(block, "tool_call"))
            case "image_url":
                image = block.get("image_url")
                address = image if isinstance(image, str) else read_string(image, "url")
                media = read_data_address(address)
                if media is not None:
                    yield media
                elif address.startswith(("http://", "https://")):
                    yield ImageContent(Location(address))
                else:
                    yield from self.native.keep(block, "image_url")
            case kind:
                yield from self.native.keep(block, read_string(kind))


def _convert_call(call: Mapping[str, Any]) -> Iterator[ExportedPart]:
    function = read_object(call, "function")
    identity = read_identity(call, "id")
    name = read_string(call, "name") or read_string(function, "name") or "tool"
    yield ExportedCall(name, write_arguments(call.get("args", function.get("arguments"))), identity)
    output = call.get("output", function.get("output"))
    if output is not None:
        text = output if isinstance(output, str) else write_arguments(output)
        yield ExportedResult(keep_contents(speak(text)), identity, name)


def _flatten(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all messages with the ids of their parents, of a list or a tree."""
    first = [*read_objects(value, "messages"), *read_objects(value, "messagesTree")]
    waiting = [("", one) for one in reversed(first)]
    seen: set[str] = set()
    while waiting:
        parent, one = waiting.pop()
        identity = read_identity(one, "messageId")
        named = read_string(one, "parentMessageId")
        parent = "" if (named or parent) == _NO_PARENT else named or parent
        if identity not in seen:
            seen.add(identity)
            yield parent, one
        children = [*read_objects(one, "children")]
        waiting += [(identity, child) for child in reversed(children)]


def _convert_files(message: Mapping[str, Any]) -> list[ExportedPart]:
    """Return documents with the texts of files, whose bytes are not in the export."""
    found: list[ExportedPart] = []
    for file in read_objects(message, "files"):
        name = read_string(file, "filename") or read_string(file, "filepath") or "without a name"
        text = read_string(file, "text") or f"[file {name}, not in the export]"
        found.append(ExportedDocument((TextualContent(text),), name))
    return found


register("librechat", LibrechatImporter)
