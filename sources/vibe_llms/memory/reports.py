"""Values of ingestion: settings, refusals, and reports."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.memory.entries import Entry
from vibe_llms.messages.canisters import Usage


class IngestionSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The table `[memory.ingestion]`: how turns become memory.

    `model` is asked; if empty, the model of the conversation. At most `facts` facts are kept per
    message, each compared with up to `neighbours` stored ones; 0 turns either off. Each scope keeps
    at most `max_entries`. `timeout_seconds` and `output_tokens` limit each answer of the model.
    """

    model: str = ""
    facts: Annotated[int, Meta(ge=0, le=20)] = 3
    neighbours: Annotated[int, Meta(ge=0, le=50)] = 5
    summaries: bool = True
    max_entries: Annotated[int, Meta(ge=1)] = 500
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    output_tokens: Annotated[int, Meta(ge=1)] = 2000


class Why(StrEnum):
    """Reason that something is not remembered."""

    EMPTY = "empty"
    QUESTION = "question"
    SECRET = "secret"  # noqa: S105  (the word, not one)
    INSTRUCTION = "instruction"
    QUOTED = "quoted"
    RECALLED = "recalled"
    SHORT = "short"
    LONG = "long"
    UNSUPPORTED = "unsupported"
    SURPLUS = "surplus"
    FORGOTTEN = "forgotten"


#: Descriptions of the reasons, to end a sentence with.
REASONS = {
    Why.EMPTY: "it has no text",
    Why.QUESTION: "it is a question that says nothing about the user",
    Why.SECRET: "it seems to contain a password, a key, or a card number",
    Why.INSTRUCTION: "it gives the model instructions",
    Why.QUOTED: "it is a quotation, code, or a document, perhaps by another person",
    Why.RECALLED: "it was recalled in this turn, so it is already remembered",
    Why.SHORT: "it is too short to be understood on its own",
    Why.LONG: "it is too long (it stays in the archive of conversations)",
    Why.UNSUPPORTED: "the user did not say so",
    Why.SURPLUS: "the model returned more facts than requested",
    Why.FORGOTTEN: "its source was forgotten in the meantime",
}
_SHOWN = 60


class Refusal(Struct, frozen=True):
    """A refused text with its secrets masked, and the reason; `of` is `turn`, `part`, or `fact`."""

    text: str
    why: Why
    of: str = "fact"

    def __str__(self) -> str:
        line = " ".join(self.text.split())
        shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
        return f"not remembered: {shown!r}: {REASONS[self.why]}"


class Update(Struct, frozen=True):
    """An entry that was deleted, and the newer one that replaces it."""

    old: Entry
    new: Entry


class IngestionReport(Struct, frozen=True, kw_only=True):
    """Result of `Ingestion.take_in`.

    `turns` were stored as they were said. `added` facts are new, `updated` ones replaced others,
    `removed` ones were contradicted by a new one, `known` ones were already stored. `kept` ones had
    changed before they could be deleted. `failures` describe work that failed and left its entries
    unchanged.
    """

    conversation: str = ""
    turns: tuple[Entry, ...] = ()
    added: tuple[Entry, ...] = ()
    updated: tuple[Update, ...] = ()
    removed: tuple[Update, ...] = ()
    known: tuple[Entry, ...] = ()
    kept: tuple[Entry, ...] = ()
    refused: tuple[Refusal, ...] = ()
    summaries: tuple[Entry, ...] = ()
    evicted: tuple[Entry, ...] = ()
    failures: tuple[str, ...] = ()
    usage: Usage = Usage()

    @property
    def changed(self) -> bool:
        """True if the facts about the user have changed."""
        return bool(self.added or self.updated or self.removed)

    def describe(self) -> Iterator[str]:
        """Yield lines to print: first the remembered entries, then the refused ones."""
        for entry in self.added:
            yield f"remembered: {entry.content}"
        for update in self.updated:
            yield f"remembered: {update.new.content} (instead of: {update.old.content})"
        for update in self.removed:
            yield f"deleted: {update.old.content} (because of: {update.new.content})"
        for entry in self.known:
            yield f"already known: {entry.content}"
        for entry in self.kept:
            yield f"not changed, because it was edited at the same time: {entry.content}"
        if self.summaries:
            yield "the summary of the conversation was updated"
        if self.evicted:
            count = len(self.evicted)
            yield f"deleted because of their age: {count} {'entry' if count == 1 else 'entries'}"
        yield from map(str, self.refused)
        yield from self.failures
