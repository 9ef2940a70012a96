"""Sessions of aichat: YAML files, without times. `compressed_messages` come first.

Source: github.com/sigoden/aichat, src/config/session.rs and src/client/message.rs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from vibe_llms.base.yaml_values import read_yaml
from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.fields import (
    read_identity,
    read_object,
    read_objects,
    read_string,
    speak,
    write_arguments,
)
from vibe_llms.importing.interfaces import ExportedRecord, Sample, register
from vibe_llms.importing.line_importers import LineImporter, chain
from vibe_llms.importing.media import read_data_address
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedConversation,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
    Speaker,
    keep_contents,
)
from vibe_llms.importing.trees import count
from vibe_llms.messages.contents import ImageContent, Location, TextualContent

_LARGEST = 64 * 1024**2
_MODEL = re.compile(rb"^model:\s*\S", re.MULTILINE)
_MESSAGES = re.compile(rb"^(?:compressed_)?messages:", re.MULTILINE)
_SPEAKERS: Mapping[str, Speaker] = {
    "system": "supervisor",
    "user": "user",
    "assistant": "assistant",
}


class AichatImporter(LineImporter):
    """Reader of aichat's sessions."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize YAML with a model and messages."""
        return bool(_MODEL.search(sample.head) and _MESSAGES.search(sample.head))

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield the conversation of a session."""
        del export
        yield ExportedRecord(file, consumed=file.size)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        value = read_yaml(record.file.read(_LARGEST))
        compressed = [*read_objects(value, "compressed_messages")]
        recent = [*read_objects(value, "messages")]
        hidden = 0
        if compressed and recent and recent[0].get("role") == "system":
            # The summary in place of the earlier messages.
            hidden, recent = 1, recent[1:]
        messages: list[ExportedMessage] = []
        for one in (*compressed, *recent):
            before = messages[-1].id if messages else ""
            messages.append(self._convert(one, before, read_string(value, "model")))
        name = PurePosixPath(record.file.name).stem
        return ExportedConversation(
            id=name,
            title=name,
            messages=tuple(messages),
            notes=(count(hidden, "message that aichat wrote itself"),) if hidden else (),
            fallback=record.file.changed,
        )

    def _convert(self, value: Mapping[str, Any], before: str, model: str) -> ExportedMessage:
        speaker = _SPEAKERS.get(read_string(value, "role"), "tool")
        parts = tuple(self._convert_content(value.get("content")))
        calls = any(isinstance(part, ExportedCall) for part in parts)
        return ExportedMessage(
            id=chain(before, value),
            parent=before,
            speaker="assistant" if calls else speaker,
            parts=parts,
            model=model if calls or speaker == "assistant" else "",
        )

    def _convert_content(self, content: object) -> Iterator[ExportedPart]:
        if isinstance(content, str):
            yield from speak(content)
        elif isinstance(content, list):
            for part in read_objects({"content": content}, "content"):
                yield from self._convert_part(part)
        elif isinstance(content, dict):
            yield from speak(content.get("text"))
            results = [*read_objects(content, "tool_results")]
            for one in results:
                call = read_object(one, "call")
                yield ExportedCall(
                    read_string(call, "name") or "tool",
                    write_arguments(call.get("arguments")),
                    read_identity(call, "id"),
                )
            for one in results:
                output = one.get("output")
                text = output if isinstance(output, str) else write_arguments(output)
                call = read_object(one, "call")
                yield ExportedResult(
                    keep_contents(speak(text)), read_identity(call, "id"), read_string(call, "name")
                )

    def _convert_part(self, part: Mapping[str, Any]) -> Iterator[ExportedPart]:
        address = read_string(part.get("image_url"), "url")
        if part.get("type") == "text":
            yield from speak(part.get("text"))
        elif (media := read_data_address(address)) is not None:
            yield media
        elif address.startswith(("http://", "https://")):
            yield ImageContent(Location(address))
        elif address:
            yield TextualContent(f"[file {address}, not in the export]")
        else:
            yield from self.native.keep(part, read_string(part, "type"))


register("aichat", AichatImporter)
