"""Conversations of the program `llm`: its database `logs.db`, of both generations.

Responses of earlier versions are in `responses`. Since version 0.36, `threads` point into a tree of
`messages`, and forks share it: a thread and its forks are one conversation with branches. A thread
may begin with responses that are in the earlier tables only.

Source: llm 0.36, llm/logs.py and llm/migrations.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.interfaces import ExportedRecord, Sample, register
from vibe_llms.importing.line_importers import LineImporter
from vibe_llms.importing.messages import ExportedConversation
from vibe_llms.importing.readers.llm_database import LlmDatabase
from vibe_llms.importing.readers.llm_responses import convert_responses
from vibe_llms.importing.readers.llm_threads import convert_threads
from vibe_llms.importing.sqlite import opened_database
from vibe_llms.importing.trees import count

_THREADS = frozenset({"id", "tip_message_hash", "forked_from"})
_RESPONSES = frozenset({"id", "prompt", "response", "conversation_id"})


class LlmImporter(LineImporter):
    """Reader of llm's database."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize the table of responses, or that of threads."""
        tables = sample.tables
        old = tables.get("responses", frozenset()) >= _RESPONSES
        return old or tables.get("threads", frozenset()) >= _THREADS

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield the conversations and threads, oldest first."""
        del export
        with opened_database(file) as database:
            families = _survey_families(LlmDatabase(database))
        for number, (root, threads) in enumerate(families, 1):
            consumed = file.size * number // len(families)
            yield ExportedRecord(file, (root, threads), consumed=consumed)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        root, threads = record.value
        with opened_database(record.file) as database:
            store = LlmDatabase(database)
            old = convert_responses(store, root)
            found = convert_threads(store, root, threads, old)
        times = [one.created for one in found.messages if one.created]
        missing = store.missing
        return ExportedConversation(
            id=root,
            title=found.name,
            created=min(times, default=None),
            updated=max(times, default=None),
            messages=found.messages,
            current=found.current,
            losses=(count(missing, "file that the export does not contain"),) if missing else (),
            # Forks are threads like any other.
            parallel=True,
            fallback=record.file.changed,
        )


def _survey_families(store: LlmDatabase) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the conversations, oldest first: the id of the first thread, and of all its forks.

    A conversation of the earlier tables only has no threads.
    """
    threads = store.select("threads", order="rowid")
    parents = {one["id"]: one["forked_from"] for one in threads}
    families: dict[str, list[str]] = defaultdict(list)
    for row in store.select("responses", order="rowid"):
        # A response without a conversation is one of its own.
        families.setdefault(row["conversation_id"] or row["id"], [])
    for identity in parents:
        root, seen = identity, {identity}
        while (parent := parents[root]) is not None and parent in parents and parent not in seen:
            seen.add(parent)
            root = parent
        families[root].append(identity)
    return [*families.items()]


register("llm", LlmImporter)
