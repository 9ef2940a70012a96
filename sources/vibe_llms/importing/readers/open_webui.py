"""Conversations exported by Open WebUI, all of them or one.

`history` is the tree; `messages` is only its present branch. A reply's `output` is exact; earlier
versions have reasoning and calls as HTML in its text.

Source: github.com/open-webui/open-webui, `backend/open_webui/utils/middleware.py` and
`models/chats.py`, and its issues 8752 and 9171.
"""

from __future__ import annotations

import html
import re
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
from vibe_llms.importing.json_values import parse_json
from vibe_llms.importing.media import read_data_address
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedConversation,
    ExportedDocument,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
    Speaker,
    keep_contents,
)
from vibe_llms.importing.trees import count
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Citation, ImageContent, Location, TextualContent

_OPEN, _CLOSE = '<details type="', "</details>"
_ATTRIBUTE = re.compile(r'(\w{1,40})="([^"]*)"')
_SUMMARY = re.compile(r"\A\s*<summary>.*?</summary>", re.DOTALL)
_SPEAKERS: Mapping[str, Speaker] = {
    "user": "user",
    "assistant": "assistant",
    "system": "supervisor",
    "tool": "tool",
}


class OpenWebuiImporter(JsonImporter):
    """Reader of Open WebUI's exports."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize a `history` of messages in a `chat`."""
        value = read_object(sample.value)
        chat = read_object(value, "chat") or value
        return isinstance(read_object(chat, "history").get("messages"), dict)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        value = require_object(record.value)
        chat = read_object(value, "chat") or value
        history = read_object(chat, "history")
        given = read_object(history, "messages")
        if not given and not isinstance(history.get("messages"), dict):
            raise ValueError("it has no messages (history)")
        identity = read_identity(value, "id") or read_identity(chat, "id")
        title = read_string(value, "title") or read_string(chat, "title")
        created = read_time(value.get("created_at")) or read_time(chat.get("timestamp"))
        messages = [self._convert(key, one) for key, one in given.items() if isinstance(one, dict)]
        missing = sum(len(_survey_missing(one)) for one in given.values())
        models = {one.model for one in messages if one.model}
        marks = [mark for mark in ("archived", "pinned") if value.get(mark) is True]
        tags = [one for one in read_list(value, "meta", "tags") if isinstance(one, str)]
        return ExportedConversation(
            id=identity or f"{title}\0{created}",
            title=title,
            created=created,
            updated=read_time(value.get("updated_at")),
            tags=(*marks, *tags),
            messages=tuple(messages),
            current=read_string(history, "currentId"),
            losses=(count(missing, "file that the export does not contain"),) if missing else (),
            parallel=len(models) > 1 and len(read_list(chat, "models")) > 1,
            fallback=record.file.changed,
        )

    def _convert(self, key: str, value: Mapping[str, Any]) -> ExportedMessage:
        speaker = _SPEAKERS.get(read_string(value, "role"), "tool")
        parts: list[ExportedPart] = []
        for file in read_objects(value, "files"):
            parts += _convert_file(file)
        if speaker == "assistant":
            outputs = [*read_objects(value, "output")]
            if outputs:
                for one in outputs:
                    parts += self._convert_output(one)
            else:
                parts += _convert_text(read_string(value, "content"))
            if error := value.get("error"):
                parts += self.native.keep(error, "error")
        else:
            parts += _convert_content(value.get("content"))
        usage = read_object(value, "usage") or read_object(value, "info", "usage")
        return ExportedMessage(
            id=key,
            parent=read_string(value, "parentId"),
            speaker=speaker,
            parts=tuple(_cite(parts, value)),
            created=read_time(value.get("timestamp")),
            model=read_string(value, "model") if speaker == "assistant" else "",
            usage=_read_usage(usage),
            interrupted=speaker == "assistant" and value.get("done") is False,
        )

    def _convert_output(self, item: Mapping[str, Any]) -> tuple[ExportedPart, ...]:
        match item.get("type"):
            case "message":
                return tuple(
                    part for one in read_objects(item, "content") for part in speak(one.get("text"))
                )
            case "reasoning":
                texts = [
                    read_string(one, "text")
                    for key in ("content", "summary")
                    for one in read_objects(item, key)
                ]
                return think("\n\n".join(filter(None, texts)))
            case "function_call":
                return (
                    ExportedCall(
                        read_string(item, "name") or "tool",
                        write_arguments(item.get("arguments")),
                        read_identity(item, "call_id", "id"),
                    ),
                )
            case "function_call_output":
                return (
                    ExportedResult(
                        keep_contents(_convert_content(item.get("output"))),
                        read_identity(item, "call_id"),
                        failed=item.get("status") in ("failed", "incomplete"),
                    ),
                )
            case kind:
                return self.native.keep(item, read_string(kind))


def _convert_content(content: object) -> tuple[ExportedPart, ...]:
    """Return a text, or a list of texts and pictures."""
    if isinstance(content, str):
        return speak(content)
    found: list[ExportedPart] = []
    for one in read_objects({"content": content}, "content"):
        found += speak(one.get("text"))
        image = one.get("image_url")
        address = image if isinstance(image, str) else read_string(image, "url")
        if address:
            found.append(_convert_image(address))
    return tuple(found)


def _convert_image(address: str) -> ExportedPart:
    media = read_data_address(address)
    if media is not None:
        return media
    if address.startswith(("http://", "https://")):
        return ImageContent(Location(address))
    return TextualContent(f"[file {address}, not in the export]")


def _convert_file(file: Mapping[str, Any]) -> tuple[ExportedPart, ...]:
    """Return an attached picture, or a document with the text that was read from it."""
    inner = read_object(file, "file")
    text = read_string(read_object(inner, "data"), "content") or read_string(file, "content")
    name = read_string(file, "name") or read_string(inner, "filename")
    if text:
        return (ExportedDocument((TextualContent(text),), name),)
    address = read_string(file, "url")
    if file.get("type") == "image" and address:
        return (_convert_image(address),)
    return (TextualContent(f"[file {name or address}, not in the export]"),)


def _survey_missing(value: object) -> list[str]:
    found = [part for one in read_objects(value, "files") for part in _convert_file(one)]
    texts = [one.data for one in found if isinstance(one, TextualContent)]
    return [text for text in texts if isinstance(text, str)]


def _convert_text(text: str) -> Iterator[ExportedPart]:
    """Yield the parts of a reply with reasoning and calls in its text, in linear time."""
    place = 0
    while (start := text.find(_OPEN, place)) >= 0:
        head = text.find(">", start)
        end = text.find(_CLOSE, head) if head >= 0 else -1
        if end < 0:
            break
        yield from speak(text[place:start].strip())
        attributes = {key: html.unescape(one) for key, one in _ATTRIBUTE.findall(text[start:head])}
        inner = _SUMMARY.sub("", text[head + 1 : end])
        yield from _convert_details(attributes, html.unescape(inner).strip())
        place = end + len(_CLOSE)
    yield from speak(text[place:].strip() if place else text)


def _convert_details(attributes: Mapping[str, str], inner: str) -> Iterator[ExportedPart]:
    match attributes.get("type"):
        case "reasoning":
            lines = (line.removeprefix(">").removeprefix(" ") for line in inner.splitlines())
            yield from think("\n".join(lines).strip())
        case "tool_calls":
            name, call = attributes.get("name", ""), attributes.get("id", "")
            arguments = parse_json(attributes.get("arguments", ""))
            yield ExportedCall(name or "tool", write_arguments(arguments), call)
            result = attributes.get("result") or inner
            parsed = parse_json(result)
            contents = speak(parsed if isinstance(parsed, str) else result)
            if contents or attributes.get("done") == "true":
                yield ExportedResult(keep_contents(contents), call, name)
        case _:
            yield from speak(inner)


def _cite(parts: list[ExportedPart], value: Mapping[str, Any]) -> Iterator[ExportedPart]:
    """Add the sources of a reply to its last text."""
    cited = []
    for one in (*read_objects(value, "sources"), *read_objects(value, "citations")):
        source = read_object(one, "source")
        title, address = read_string(source, "name"), read_string(source, "url")
        if title or address:
            cited.append(Citation(title=title, source=address))
    places = [place for place, part in enumerate(parts) if isinstance(part, TextualContent)]
    for place, part in enumerate(parts):
        if cited and isinstance(part, TextualContent) and place == places[-1]:
            yield TextualContent(part.data, citations=tuple(dict.fromkeys(cited)))
        else:
            yield part


def _read_usage(value: Mapping[str, Any]) -> Usage | None:
    """Return the tokens of a reply, in the words of OpenAI's or Ollama's interface."""
    received = [value.get(key) for key in ("prompt_tokens", "input_tokens", "prompt_eval_count")]
    sent = [value.get(key) for key in ("completion_tokens", "output_tokens", "eval_count")]
    counts = [
        next((one for one in found if isinstance(one, int) and one > 0), 0)
        for found in (received, sent)
    ]
    if not any(counts):
        return None
    return Usage(uncached_input_tokens=counts[0], output_tokens=counts[1])


register("open-webui", OpenWebuiImporter)
