"""Conversations of gptme: `conversation.jsonl` in a folder of its own, with `branches/*.jsonl`.

`views/*.jsonl` are compacted copies and are not read. Tools are called in the text. Their output is
in system messages, which become documents here, because it must not have authority.

Source: github.com/gptme/gptme, gptme/logmanager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.fields import (
    read_count,
    read_list,
    read_object,
    read_string,
    read_time,
    speak,
)
from vibe_llms.importing.interfaces import ExportedRecord, Sample, register
from vibe_llms.importing.line_importers import LineImporter, SessionLines, chain
from vibe_llms.importing.messages import (
    ExportedConversation,
    ExportedMessage,
    ExportedPart,
    Speaker,
)
from vibe_llms.importing.trees import count
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import TextualContent

_MAIN = "conversation.jsonl"
_ROLES = frozenset({"system", "user", "assistant"})
#: Keys of every line, and those of other programs.
_KEYS = frozenset({"role", "content", "timestamp"})
_FOREIGN = frozenset({"type", "uuid", "payload"})


class GptmeImporter(LineImporter):
    """Reader of gptme's conversations."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize lines with a role, a content and a timestamp."""
        return bool(sample.lines) and all(
            one.keys() >= _KEYS and one["role"] in _ROLES and not _FOREIGN & one.keys()
            for one in sample.lines
        )

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield a conversation with its branches; branches and views alone are part of it."""
        path = PurePosixPath(file.name)
        beside = {one.name for one in export.files}
        if path.parent.name in ("branches", "views") and f"{path.parents[1] / _MAIN}" in beside:
            return
        branches = [
            one
            for one in export.files
            if PurePosixPath(one.name).parent == path.parent / "branches"
        ]
        yield ExportedRecord(file, branches, consumed=file.size)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        messages: dict[str, ExportedMessage] = {}
        losses: list[str] = []
        hidden = 0
        current = ""
        files = 0
        for file in (record.file, *record.value):
            lines = SessionLines(file)
            before, spoken = "", False
            for line in lines:
                spoken = spoken or line.get("role") == "user"
                message = _convert(line, before, spoken=spoken)
                before = message.id
                if message.id not in messages:
                    messages[message.id] = message
                    hidden += line.get("hide") is True
                    files += len(read_list(line, "files"))
            current = current or before
            losses += lines.losses
        losses += [count(files, "file that the export does not contain")] if files else []
        name = _find_name(record.file)
        first = next(iter(messages.values()), None)
        return ExportedConversation(
            id=name or (first.id if first else record.file.name),
            title=name,
            created=first.created if first else None,
            updated=messages[current].created if current else None,
            messages=tuple(messages.values()),
            current=current,
            losses=tuple(losses),
            notes=(count(hidden, "message that gptme hides"),) if hidden else (),
            fallback=record.file.changed,
        )


def _convert(line: Mapping[str, Any], before: str, *, spoken: bool) -> ExportedMessage:
    role = read_string(line, "role")
    parts: list[ExportedPart] = []
    if line.get("hide") is not True:
        parts += speak(line.get("content"))
        names = [one for one in read_list(line, "files") if isinstance(one, str)]
        parts += [TextualContent(f"[file {name}, not in the export]") for name in names]
    speaker: Speaker = "tool" if spoken else "supervisor"
    if role in ("user", "assistant"):
        speaker = "user" if role == "user" else "assistant"
    metadata = read_object(line, "metadata")
    stable = {key: line.get(key) for key in ("role", "content", "timestamp")}
    return ExportedMessage(
        id=chain(before, stable),
        parent=before,
        speaker=speaker,
        parts=tuple(parts),
        created=read_time(line.get("timestamp")),
        model=read_string(metadata, "model") if role == "assistant" else "",
        usage=_read_usage(read_object(metadata, "usage")),
    )


def _find_name(file: ExportFile) -> str:
    """Return the name of the folder, which is that of the conversation."""
    path = file.path or PurePosixPath(file.name)
    return path.parent.name if path.name == _MAIN else path.stem


def _read_usage(value: Mapping[str, Any]) -> Usage | None:
    if not value:
        return None
    return Usage(
        uncached_input_tokens=read_count(value, "input_tokens"),
        cache_read_tokens=read_count(value, "cache_read_tokens"),
        cache_write_tokens=read_count(value, "cache_creation_tokens"),
        output_tokens=read_count(value, "output_tokens"),
    )


register("gptme", GptmeImporter)
