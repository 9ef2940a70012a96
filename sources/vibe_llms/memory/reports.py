"""The values of ingestion: its settings, what it took into memory, what it refused and why."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.memory.entries import Entry
from vibe_llms.messages.canisters import Usage


class IngestionSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory.ingestion]`: how turns become memory.

    `model` is asked, or that of the conversation where it is empty. Of one message at most so many
    `facts` are kept, each compared with so many `neighbours`; 0 looks for none. `max_entries` are
    kept in each scope, and `timeout_seconds` and `output_tokens` bound each answer of the model.
    """

    model: str = ""
    facts: Annotated[int, Meta(ge=0, le=20)] = 3
    neighbours: Annotated[int, Meta(ge=0, le=50)] = 5
    summaries: bool = True
    max_entries: Annotated[int, Meta(ge=1)] = 500
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    output_tokens: Annotated[int, Meta(ge=1)] = 2000


class Why(StrEnum):
    """Why something is not remembered."""

    EMPTY = "empty"
    GREETING = "greeting"
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


#: The reasons in words that end a sentence about what was refused.
REASONS = {
    Why.EMPTY: "there is no text in it",
    Why.GREETING: "it is a greeting, thanks or a yes or no",
    Why.QUESTION: "it asks for something, and tells nothing",
    Why.SECRET: "it is, or holds, what looks like a password, a key or the number of a card",
    Why.INSTRUCTION: "it tells the model what to do in place of its instructions",
    Why.QUOTED: "it is quoted, code or a document, and so perhaps of somebody else",
    Why.RECALLED: "it was recalled in this turn, and so is remembered already",
    Why.SHORT: "it is too short to be understood by itself",
    Why.LONG: "it is too long; the archive of conversations has it",
    Why.UNSUPPORTED: "the user did not say so, or said the opposite",
    Why.SURPLUS: "the model gave more facts than were asked for",
    Why.FORGOTTEN: "what it was taken from was forgotten meanwhile",
}
_SHOWN = 60


class Refusal(Struct, frozen=True):
    """A text that was refused, without its secrets, and why; `of` is `turn`, `part` or `fact`."""

    text: str
    why: Why
    of: str = "fact"

    def __str__(self) -> str:
        line = " ".join(self.text.split())
        shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
        return f"not remembered: {shown!r}: {REASONS[self.why]}"


class Update(Struct, frozen=True):
    """An entry that was given up, and the newer one that stands for it."""

    old: Entry
    new: Entry


class IngestionReport(Struct, frozen=True, kw_only=True):
    """What `Ingestion.take_in` did.

    `turns` were stored as they were said, `added` are new facts, `updated` those that took the
    place of others, `removed` were contradicted by a new one, `known` were there already. `kept`
    are facts that the model wanted gone and that others had changed meanwhile. `failures` say what
    could not be done; what they are about is as it was before.
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
        """Whether what is known about the user is another than before."""
        return bool(self.added or self.updated or self.removed)

    def describe(self) -> Iterator[str]:
        """Lines for a person: first what is remembered now, then what is not."""
        for entry in self.added:
            yield f"remembered: {entry.content}"
        for update in self.updated:
            yield f"remembered: {update.new.content} (in place of: {update.old.content})"
        for update in self.removed:
            yield f"deleted: {update.old.content} (because of: {update.new.content})"
        for entry in self.known:
            yield f"known already: {entry.content}"
        for entry in self.kept:
            yield f"left as it is, since it was changed meanwhile: {entry.content}"
        if self.summaries:
            yield "the summary of the conversation is new"
        if self.evicted:
            count = len(self.evicted)
            yield f"deleted for their age: {count} {'entry' if count == 1 else 'entries'}"
        yield from map(str, self.refused)
        yield from self.failures
