"""Sessions of Codex: `~/.codex/sessions/…/rollout-*.jsonl`, also compressed as `.jsonl.zst`.

Three generations are read: wrapped lines, bare items as lines, and one object with `items`.
`event_msg` repeats what `response_item` says, except the usage. A fork copies the history of its
parent, with other times, so messages are identified by their contents and those before them.

Source: github.com/openai/codex, codex-rs/protocol and issues 30779 and 35458.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.fields import (
    NativeParts,
    read_count,
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
from vibe_llms.importing.json_values import parse_json
from vibe_llms.importing.line_importers import LineImporter, SessionLines, chain
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
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import ImageContent, Location, TextualContent

_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output"})
#: Beginnings of texts that the program writes in the user's name.
_WRITTEN = (
    *("<environment_context>", "<user_instructions>", "# AGENTS.md instructions for "),
    *("<turn_aborted>", "<permissions instructions>", "<subagent_notification>", "<skill>"),
    "<user_shell_command>",
)
#: Items that say nothing, or repeat others.
_SILENT = frozenset({"ghost_snapshot", "compaction", "compaction_trigger", "other"})


class CodexImporter(LineImporter):
    """Reader of Codex' sessions."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize a `session_meta`, or items of the Responses interface after a session."""
        value = read_object(sample.value)
        if isinstance(value.get("session"), dict) and isinstance(value.get("items"), list):
            return True
        if not sample.lines:
            return False
        if any(one.get("type") == "session_meta" and "payload" in one for one in sample.lines):
            return True
        first = sample.lines[0]
        return {"id", "timestamp"} <= first.keys() and any(
            one.get("type") in _ITEMS or "record_type" in one for one in sample.lines[1:]
        )

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield the conversation of a session."""
        del export
        yield ExportedRecord(file, consumed=file.size)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        lines = SessionLines(record.file)
        session = _Session(self.native)
        found: Iterable[Mapping[str, Any]] = lines
        if (whole := _read_object(record.file)) is not None:
            found = [{"type": "session_meta", "payload": whole.get("session")}]
            found += [*read_objects(whole, "items")]
        for line in found:
            session.add(line)
        hidden = session.hidden
        times = [one.created for one in session.messages if one.created]
        return ExportedConversation(
            id=session.root or PurePosixPath(record.file.name).stem,
            title=session.title,
            created=session.created or (times[0] if times else None),
            updated=max(times, default=None),
            tags=("sub-agent",) if session.is_agent else (),
            messages=tuple(session.messages),
            current=session.messages[-1].id if session.messages else "",
            losses=tuple(lines.losses),
            notes=(count(hidden, "message that Codex wrote itself"),) if hidden else (),
            fallback=record.file.changed,
            dated=False,
            # A fork is a session like any other.
            parallel=True,
        )


class _Session:
    """The messages of a session, line by line."""

    def __init__(self, native: NativeParts) -> None:
        self._native = native
        self._model = ""
        self._id = ""
        self._parents: dict[str, str] = {}
        self._drafts: list[dict[str, Any]] = []
        self.hidden = 0
        self.title = ""
        self.is_agent = False
        self.created: datetime | None = None

    @property
    def root(self) -> str:
        """The id of the session, or of the first one that it was forked from."""
        identity, seen = self._id, {self._id}
        while (parent := self._parents.get(identity, "")) and parent not in seen:
            seen.add(parent)
            identity = parent
        return identity

    @property
    def messages(self) -> list[ExportedMessage]:
        """The messages so far."""
        return [ExportedMessage(**{**one, "parts": tuple(one["parts"])}) for one in self._drafts]

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        payload, moment = read_object(line, "payload"), read_time(line.get("timestamp"))
        match line.get("type"):
            case "session_meta":
                self._add_meta(payload)
            case "turn_context":
                self._model = read_string(payload, "model") or self._model
            case "response_item":
                self._add_item(payload, moment)
            case "event_msg":
                self._add_event(payload)
            case "compacted":
                # The lines before it remain the truth.
                pass
            case None if "id" in line and not self._id:
                self._add_meta(line)
            case str() as kind if kind in _ITEMS or kind.endswith(("_call", "_call_output")):
                self._add_item(line, moment)

    def _add_meta(self, meta: Mapping[str, Any]) -> None:
        identity = read_identity(meta, "id")
        parent = read_identity(meta, "forked_from_id")
        # In a fork, the metadata of its parents comes after its own.
        if identity and parent:
            self._parents[identity] = parent
        if not self._id:
            self._id = identity
            self.created = read_time(meta.get("timestamp"))
            source = read_object(meta, "source")
            self.is_agent = "subagent" in source or bool(read_identity(meta, "parent_thread_id"))

    def _add_event(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "thread_name_updated":
                self.title = read_string(event, "thread_name") or self.title
            case "token_count":
                used = read_object(event, "info", "last_token_usage")
                if used and self._drafts and self._drafts[-1]["speaker"] == "assistant":
                    self._drafts[-1]["usage"] = _read_usage(used)

    def _add_item(self, item: Mapping[str, Any], moment: datetime | None) -> None:
        kind = read_string(item, "type")
        if kind == "message":
            self._add_message(item, moment)
        elif kind == "reasoning":
            texts = [
                read_string(one, "text")
                for key in ("summary", "content")
                for one in read_objects(item, key)
            ]
            native = self._native.encode(item) if item.get("encrypted_content") else None
            parts = think("\n\n".join(filter(None, texts)), native)
            self._append("assistant", item, moment, parts)
        elif kind.endswith("_call_output") or kind == "function_call_output":
            self._append("tool", item, moment, [self._convert_output(item)])
        elif kind.endswith("_call") and read_identity(item, "call_id"):
            self._append("assistant", item, moment, [_convert_call(item)])
        elif kind not in _SILENT:
            self._append("assistant", item, moment, self._native.keep(item, kind))

    def _add_message(self, item: Mapping[str, Any], moment: datetime | None) -> None:
        parts = self._convert_content(item.get("content"))
        match read_string(item, "role"):
            case "assistant":
                self._append("assistant", item, moment, parts)
            case "user":
                said = [one for one in parts if not _is_written(one)]
                self.hidden += bool(parts) and not said
                self._append("user", item, moment, said)
            case _:
                # Instructions of the program: they are sent again by the program only.
                self.hidden += bool(parts)

    def _append(
        self,
        speaker: Speaker,
        item: Mapping[str, Any],
        moment: datetime | None,
        parts: Iterable[ExportedPart],
    ) -> None:
        """Add parts to the reply, or begin another message."""
        if speaker == "assistant" and self._drafts and self._drafts[-1]["speaker"] == speaker:
            self._drafts[-1]["parts"] += parts
            return
        before = self._drafts[-1]["id"] if self._drafts else ""
        stable = {key: one for key, one in item.items() if key not in ("id", "timestamp")}
        draft = {
            "id": chain(before, stable),
            "parent": before,
            "speaker": speaker,
            "parts": [*parts],
            "created": moment,
            "model": self._model if speaker == "assistant" else "",
        }
        self._drafts.append(draft)

    def _convert_content(self, content: object) -> list[ExportedPart]:
        if isinstance(content, str):
            return [*speak(content)]
        found: list[ExportedPart] = []
        for one in read_objects({"content": content}, "content"):
            match one.get("type"):
                case "input_text" | "output_text" | "text" | "refusal":
                    found += speak(read_string(one, "text", "refusal"))
                case "input_image":
                    address = read_string(one, "image_url")
                    media = read_data_address(address)
                    if media is not None:
                        found.append(media)
                    elif address.startswith(("http://", "https://")):
                        found.append(ImageContent(Location(address)))
                    else:
                        found += self._native.keep(one, "input_image")
                case kind:
                    found += self._native.keep(one, read_string(kind))
        return found

    def _convert_output(self, item: Mapping[str, Any]) -> ExportedResult:
        output = item.get("output")
        failed = read_object(output).get("success") is False
        if isinstance(output, dict):
            output = output.get("content") or output.get("body")
        parsed = parse_json(output) if isinstance(output, str) else None
        if isinstance(parsed, dict) and isinstance(parsed.get("output"), str):
            failed = failed or read_object(parsed, "metadata").get("exit_code") not in (0, None)
            output = parsed["output"]
        contents = keep_contents(self._convert_content(output))
        return ExportedResult(contents, read_identity(item, "call_id"), failed=failed)


def _convert_call(item: Mapping[str, Any]) -> ExportedCall:
    name = read_string(item, "name") or read_string(item, "type").removesuffix("_call")
    arguments = item.get("arguments")
    if arguments is None:
        given = item.get("input")
        arguments = {"input": given} if given is not None else item.get("action")
    return ExportedCall(name, write_arguments(arguments), read_identity(item, "call_id"))


def _is_written(part: ExportedPart) -> bool:
    text = part.data if isinstance(part, TextualContent) else ""
    return isinstance(text, str) and text.lstrip().startswith(_WRITTEN)


def _read_object(file: ExportFile) -> Mapping[str, Any] | None:
    """Return the object of the first generation, or None for lines."""
    with file.opened() as opened:
        head = opened.read(256).lstrip()
    if not head.startswith(b"{") or b'"session"' not in head:
        return None
    value = parse_json(file.read().decode("utf-8", "replace"))
    return value if isinstance(value, dict) and read_list(value, "items") else None


def _read_usage(value: Mapping[str, Any]) -> Usage:
    cached = read_count(value, "cached_input_tokens")
    reasoning = read_count(value, "reasoning_output_tokens")
    return Usage(
        uncached_input_tokens=max(0, read_count(value, "input_tokens") - cached),
        cache_read_tokens=cached,
        output_tokens=max(0, read_count(value, "output_tokens") - reasoning),
        reasoning_tokens=reasoning,
    )


register("codex", CodexImporter)
