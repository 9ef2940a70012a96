"""Conversations of llm before 0.36: a prompt and a response in each row of `responses`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from vibe_llms.importing.fields import read_time, speak, think, write_arguments
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedDocument,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
    keep_contents,
)
from vibe_llms.importing.readers.llm_database import LlmDatabase, read_tokens
from vibe_llms.messages.contents import TextualContent


def convert_responses(store: LlmDatabase, conversation: str) -> tuple[ExportedMessage, ...]:
    """Return the messages of a conversation that are not in the newer tables."""
    rows = store.select("responses", order="datetime_utc, id", conversation_id=conversation)
    # A response without a conversation has its own id.
    rows = rows or store.select("responses", id=conversation)
    found: list[ExportedMessage] = []
    system = ""
    for row in rows:
        if store.find("turns", id=row["id"]):
            continue
        for message in _convert_row(store, row, system):
            parent = found[-1].id if found else ""
            found.append(msgspec.structs.replace(message, parent=parent))
        system = row["system"] or system
    return tuple(found)


def _convert_row(
    store: LlmDatabase, row: Mapping[str, Any], system: str
) -> Iterator[ExportedMessage]:
    identity, created = str(row["id"]), read_time(row["datetime_utc"])
    instructions: list[ExportedPart] = [*_fragments(store, "system_fragments", identity)]
    if row["system"] and row["system"] != system:
        instructions += speak(row["system"])
    yield ExportedMessage(
        id=f"{identity} system",
        speaker="supervisor",
        parts=keep_contents(instructions),
        created=created,
    )
    results = tuple(_convert_results(store, identity))
    yield ExportedMessage(id=f"{identity} results", speaker="tool", parts=results, created=created)
    asked: list[ExportedPart] = [
        ExportedDocument(keep_contents([one]))
        for one in _fragments(store, "prompt_fragments", identity)
    ]
    asked += speak(row["prompt"])
    for one in store.select("prompt_attachments", order='"order"', response_id=identity):
        asked.append(store.load_attachment(one["attachment_id"]))
    yield ExportedMessage(
        id=f"{identity} prompt", speaker="user", parts=tuple(asked), created=created
    )
    replied: list[ExportedPart] = [*think(row["reasoning"]), *speak(row["response"])]
    for call in store.select("tool_calls", response_id=identity):
        replied.append(
            ExportedCall(
                call["name"] or "tool",
                write_arguments(call["arguments"]),
                call["tool_call_id"] or "",
            )
        )
    yield ExportedMessage(
        id=identity,
        speaker="assistant",
        parts=tuple(replied),
        created=created,
        model=row["resolved_model"] or row["model"] or "",
        usage=read_tokens(row),
    )


def _convert_results(store: LlmDatabase, response: str) -> Iterator[ExportedResult]:
    for row in store.select("tool_results", response_id=response):
        attached = store.select("tool_results_attachments", tool_result_id=row["id"])
        contents = [*speak(row["output"])]
        contents += [store.load_attachment(one["attachment_id"]) for one in attached]
        yield ExportedResult(
            keep_contents(contents),
            row["tool_call_id"] or "",
            row["name"] or "",
            failed=bool(row["exception"]),
        )


def _fragments(store: LlmDatabase, table: str, response: str) -> Iterator[TextualContent]:
    for row in store.select(table, order='"order"', response_id=response):
        if text := store.find_fragment(row["fragment_id"]):
            yield TextualContent(text)
