"""Threads of llm 0.36: chains in a tree of messages, each named by a hash of all up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.importing.fields import (
    read_list,
    read_object,
    read_objects,
    read_string,
    read_time,
    speak,
    think,
    write_arguments,
)
from vibe_llms.importing.json_values import parse_json
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
    Speaker,
    keep_contents,
)
from vibe_llms.importing.readers.llm_database import LlmDatabase, read_tokens
from vibe_llms.messages.contents import TextualContent

_SPEAKERS: Mapping[str, Speaker] = {
    "system": "supervisor",
    "user": "user",
    "assistant": "assistant",
}


class ThreadMessages(Struct, frozen=True):
    """The messages of a conversation, the last one of its first thread, and its name."""

    messages: tuple[ExportedMessage, ...]
    current: str
    name: str


def convert_threads(
    store: LlmDatabase, root: str, threads: Sequence[str], old: tuple[ExportedMessage, ...]
) -> ThreadMessages:
    """Return the messages of threads, after those of earlier versions unless they repeat them."""
    names = dict.fromkeys((root, *threads))
    rows = [row for one in names if (row := store.find("threads", id=one))]
    turns = [
        turn
        for one in rows
        for turn in store.select("turns", order="datetime_utc, id", thread_id=one["id"])
    ]
    found: dict[str, Mapping[str, Any]] = {}
    tips = [one["tip_message_hash"] for one in rows]
    for tip in (*tips, *(turn["tip_message_hash"] for turn in turns)):
        _climb(store, tip, found)
    written = _date(found, turns)
    messages = [
        _convert(store, row, *written.get(identity, (None, False)))
        for identity, row in found.items()
    ]
    begun = next((one for one in messages if one.speaker == "user"), None)
    said = next((one for one in old if one.speaker == "user" and one.parts), None)
    repeated = bool(begun and said and begun.parts == said.parts)
    if old and messages and not repeated:
        # The thread continues the earlier responses without their messages.
        last = old[-1].id
        messages = [_follow(one, last) if not one.parent else one for one in messages]
    kept = messages if repeated else [*old, *messages]
    current = str(tips[0] or "") if tips else ""
    name = str(rows[0].get("name") or "") if rows else ""
    name = name or str(store.find("conversations", id=root).get("name") or "")
    return ThreadMessages(tuple(kept), current if current in found else "", name)


def _climb(store: LlmDatabase, tip: str | None, found: dict[str, Mapping[str, Any]]) -> None:
    """Add a message and all before it, the first one first."""
    line = []
    seen = set[str]()
    while tip and tip not in found and tip not in seen:
        row = store.find("messages", hash=tip)
        if not row:
            break
        seen.add(tip)
        line.append(row)
        tip = row["parent_hash"]
    found.update((row["hash"], row) for row in reversed(line))


def _date(
    found: Mapping[str, Mapping[str, Any]], turns: Sequence[Mapping[str, Any]]
) -> Mapping[str, tuple[Mapping[str, Any], bool]]:
    """Return the first turn of each message; True if it is the last one that the turn wrote."""
    written: dict[str, tuple[Mapping[str, Any], bool]] = {}
    for turn in turns:
        identity = turn["tip_message_hash"]
        while identity in found and identity not in written:
            written[identity] = (turn, identity == turn["tip_message_hash"])
            identity = found[identity]["parent_hash"]
    return written


def _follow(message: ExportedMessage, parent: str) -> ExportedMessage:
    return msgspec.structs.replace(message, parent=parent)


def _convert(
    store: LlmDatabase, row: Mapping[str, Any], turn: Mapping[str, Any] | None, last: bool
) -> ExportedMessage:
    speaker = _SPEAKERS.get(row["role"], "tool")
    parts: list[ExportedPart] = []
    for one in store.select("parts", order="position", message_hash=row["hash"]):
        parts += _convert_part(store, one)
    turn = turn or {}
    spoken = speaker == "assistant"
    return ExportedMessage(
        id=row["hash"],
        parent=row["parent_hash"] or "",
        speaker=speaker,
        parts=tuple(parts),
        created=read_time(turn.get("datetime_utc")),
        model=(turn.get("resolved_model") or turn.get("model") or "") if spoken else "",
        usage=read_tokens(turn) if spoken and last else None,
    )


def _convert_part(store: LlmDatabase, row: Mapping[str, Any]) -> Sequence[ExportedPart]:
    payload = read_object(parse_json(row["payload"] or "{}"))
    text = row["text"] if row["text"] is not None else _join(store, payload)
    attached = [read_string(one, "id") for one in read_objects(payload, "attachments")]
    match row["type"]:
        case "text":
            return speak(text)
        case "reasoning":
            return think(text)
        case "tool_call":
            arguments = write_arguments(payload.get("arguments"))
            name = read_string(payload, "name") or "tool"
            return (ExportedCall(name, arguments, read_string(payload, "tool_call_id")),)
        case "tool_result":
            contents = [*speak(payload.get("output") or text)]
            contents += [store.load_attachment(one) for one in attached]
            failed = bool(payload.get("exception"))
            call, name = read_string(payload, "tool_call_id"), read_string(payload, "name")
            return (ExportedResult(keep_contents(contents), call, name, failed=failed),)
        case "attachment":
            identity = read_string(payload.get("attachment"), "id")
            return (store.load_attachment(identity),)
        case kind:
            return (TextualContent(f"[{kind}]"),)


def _join(store: LlmDatabase, payload: Mapping[str, Any]) -> str:
    """Return a text whose fragments are stored once for all messages."""
    return "".join(
        store.find_fragment(one["fragment"])
        if isinstance(one.get("fragment"), int)
        else read_string(one, "literal")
        for one in map(read_object, read_list(payload, "text_ref"))
    )
