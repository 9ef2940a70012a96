"""The contents of ChatGPT's messages, by their `content_type`, and the files that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.importing.exports import Export
from vibe_llms.importing.fields import (
    NativeParts,
    read_list,
    read_object,
    read_objects,
    read_string,
    speak,
    think,
    write_json,
)
from vibe_llms.importing.json_values import parse_json
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedContent,
    ExportedMedia,
    ExportedPart,
    ExportedResult,
    keep_contents,
)
from vibe_llms.messages.contents import Citation, TextualContent

_ASSET_NAMES = "conversation_asset_file_names.json"
#: Marks of citations that nothing explains: private-use characters around words.
_MARK = re.compile("\ue200[^\ue200\ue201]{0,2000}\ue201")


class ChatgptContents:
    """Converter of contents. `missing` counts files that the export does not contain."""

    def __init__(self, export: Export, native: NativeParts) -> None:
        self._export = export
        self._native = native
        self.missing = 0

    def convert(
        self, content: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> tuple[ExportedPart, ...]:
        """Return the parts of a message that is neither a call nor a result."""
        parts: list[ExportedPart] = []
        for part in self._convert(content):
            if isinstance(part, TextualContent) and isinstance(part.data, str):
                parts.extend(_cite(part.data, metadata))
            else:
                parts.append(part)
        return tuple(parts)

    def convert_call(self, content: Mapping[str, Any], tool: str) -> tuple[ExportedPart, ...]:
        """Return a call; text that is not a JSON object is its argument `input`."""
        text = read_string(content, "text") or "".join(
            part for part in read_list(content, "parts") if isinstance(part, str)
        )
        if not text and read_string(content, "content_type") not in ("text", "code"):
            text = write_json(content)
        parsed = parse_json(text)
        arguments = text if isinstance(parsed, dict) else write_json({"input": text})
        return (ExportedCall(tool, arguments),)

    def convert_result(self, content: Mapping[str, Any], tool: str) -> tuple[ExportedPart, ...]:
        """Return a result."""
        contents = keep_contents(self._convert(content))
        failed = read_string(content, "content_type") == "system_error"
        return (ExportedResult(contents, name=tool, failed=failed),)

    def find(self, identity: str, name: str = "", mimetype: str = "") -> ExportedContent:
        """Return a file of the export by its id, or words that it is missing."""
        file = self._find_file(identity) if identity else None
        if file is None:
            self.missing += 1
            return TextualContent(f"[file {name or identity}, not in the export]")
        return ExportedMedia(file.read, mimetype, name or file.name.rpartition("/")[2])

    def _find_file(self, identity: str) -> Any:
        found = self._export.find(identity) or self._export.find_prefixed(identity)
        if found is None:
            # Both directions, because exports of different months differ.
            names = self._read_names()
            for other in (names.get(identity), names.get(f"{identity}.dat")):
                found = found or (self._export.find(other) if other else None)
        return found

    def _read_names(self) -> Mapping[str, str]:
        names = self._export.cache.get(_ASSET_NAMES)
        if names is None:
            names = {}
            if (file := self._export.find(_ASSET_NAMES)) is not None:
                try:
                    parsed = read_object(parse_json(file.read().decode("utf-8-sig", "replace")))
                except ImportUnreadable:
                    parsed = {}
                texts = {key: name for key, name in parsed.items() if isinstance(name, str)}
                names = {**{name: key for key, name in texts.items()}, **texts}
            self._export.cache[_ASSET_NAMES] = names
        return names

    def _convert(self, content: Mapping[str, Any]) -> Iterator[ExportedPart]:
        kind = read_string(content, "content_type")
        match kind:
            case "text" | "multimodal_text":
                for part in read_list(content, "parts"):
                    yield from self._convert_part(part)
                yield from speak(content.get("text"))
            case "code":
                if text := read_string(content, "text"):
                    language = read_string(content, "language").replace("unknown", "")
                    yield TextualContent(f"```{language}\n{text}\n```")
            case "execution_output" | "system_error":
                yield from speak(content.get("text"))
            case "thoughts":
                for one in read_objects(content, "thoughts"):
                    words = [read_string(one, "summary"), read_string(one, "content")]
                    yield from think("\n\n".join(filter(None, words)))
            case "reasoning_recap":
                yield from think(content.get("content"))
            case "tether_browsing_display":
                yield from speak(read_string(content, "result", "summary"))
            case "tether_quote" | "sonic_webpage":
                text = read_string(content, "text", "snippet")
                cited = Citation(
                    title=read_string(content, "title"), source=read_string(content, "url")
                )
                if text or cited.source:
                    yield TextualContent(text or cited.source, citations=(cited,))
            case _ if content:
                yield from self._native.keep(content, kind)

    def _convert_part(self, part: object) -> Iterator[ExportedPart]:
        if isinstance(part, str):
            yield from speak(part)
            return
        value = read_object(part)
        match read_string(value, "content_type"):
            case "image_asset_pointer" | "audio_asset_pointer" | "video_container_asset_pointer":
                yield self._find_pointer(value)
            case "audio_transcription":
                yield from speak(value.get("text"))
            case "real_time_user_audio_video_asset_pointer":
                for inner in (value.get("audio_asset_pointer"), value.get("video_container")):
                    yield from self._convert_part(inner)
                for frame in read_list(value, "frames_asset_pointers"):
                    yield self._find_pointer({"asset_pointer": frame})
            case kind if value:
                text = read_string(value, "text")
                yield from speak(text) if text and not kind else self._native.keep(value, kind)

    def _find_pointer(self, value: Mapping[str, Any]) -> ExportedContent:
        pointer = read_string(value, "asset_pointer").rpartition("://")[2]
        return self.find(re.split(r"[#?]", pointer, maxsplit=1)[0])


def _cite(text: str, metadata: Mapping[str, Any]) -> tuple[ExportedPart, ...]:
    """Return a text with the targets of its marks as citations, and readable marks."""
    found: dict[tuple[str, str], Citation] = {}
    marks: dict[str, str] = {}
    for one in read_objects(metadata, "content_references"):
        mark = read_string(one, "matched_text")
        if "\ue200" in mark:
            marks[mark] = read_string(one, "alt")
        for source in (one, *read_objects(one, "items"), *read_objects(one, "sources")):
            _add_citation(found, source)
    for one in read_objects(metadata, "citations"):
        _add_citation(found, read_object(one, "metadata"))
    # The longest first, because one mark may be the beginning of another.
    for mark in sorted(marks, key=len, reverse=True):
        text = text.replace(mark, marks[mark])
    if "\ue200" in text:
        text = _MARK.sub("", text)
    return (TextualContent(text, citations=tuple(found.values())),) if text.strip() else ()


def _add_citation(found: dict[tuple[str, str], Citation], value: Mapping[str, Any]) -> None:
    title, address = read_string(value, "title"), read_string(value, "url")
    if title or address:
        found[title, address] = Citation(
            title=title, source=address, quote=read_string(value, "snippet")
        )
