"""Metadata holds what decisions need, and can be kept whatever a person wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from vibe_llms.memory.entries import Entry, Role, decode_entry, encode_entry
from vibe_llms.memory.metadata import (
    MARK,
    PENDING,
    Metadata,
    count_tokens,
    digest_of_sentence,
    metadata_of,
    produce_mark,
    read_mark,
    remove_mark,
)

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
COVERAGE = {
    "covers_from": "2026-01-01T00:00:00Z",
    "covers_until": "2026-01-02T00:00:00+02:00",
    "source_tokens": 7,
}


def entry(role: Role, content: str = "Hello there", **members: Any) -> Entry:
    return Entry(content=content, identity="one", created=WHEN, role=role, **members)


def stored(metadata: Metadata) -> Metadata:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(metadata), type=Metadata)


def test_a_turn_is_pending_where_its_mark_says_so() -> None:
    assert metadata_of(entry(Role.USER)) == Metadata(3)
    marked = entry(Role.USER, further={MARK: PENDING})
    assert stored(metadata_of(marked)) == Metadata(3, pending=True)
    assert not metadata_of(entry(Role.USER, further={MARK: "done"})).pending
    assert not metadata_of(entry(Role.ASSISTANT, further={MARK: PENDING})).pending
    assert count_tokens("日本") == 2


def test_a_summary_has_its_level_and_what_it_covers() -> None:
    metadata = metadata_of(entry(Role.SUMMARY, category="L2", further=COVERAGE))
    assert stored(metadata) == metadata
    assert metadata.level == "L2"
    assert metadata.coverage is not None
    assert metadata.coverage.source_tokens == 7
    assert metadata.coverage.covers(WHEN + timedelta(hours=22))
    assert not metadata.coverage.covers(WHEN + timedelta(hours=23))


@pytest.mark.parametrize(
    ("category", "changed"),
    [
        ("L2", {"source_tokens": 10**30}),
        ("L2", {"source_tokens": -1}),
        ("L2", {"covers_from": "yesterday"}),
        ("L2", {"covers_until": "2026-01-02"}),
        ("L4", {}),
        ("x" * 10_000, {}),
    ],
)
def test_what_a_person_wrote_is_no_coverage_but_can_be_kept(
    category: str, changed: dict[str, Any]
) -> None:
    metadata = metadata_of(entry(Role.SUMMARY, category=category, further=COVERAGE | changed))
    assert metadata.coverage is None
    assert len(metadata.level) <= 2
    assert stored(metadata) == metadata


def test_a_mark_knows_what_was_recalled_and_goes_without_a_trace() -> None:
    mark = produce_mark(f"Your aunt lives in town {number}." for number in range(50))
    assert not any(map(str.isspace, mark))
    marked = entry(Role.USER, further={"mood": "good", MARK: mark})
    read = decode_entry(encode_entry(marked), marked.scope, "here")
    assert read_mark(read) == frozenset(
        digest_of_sentence(f"your aunt lives in TOWN {number}") for number in range(50)
    )
    plain = decode_entry(encode_entry(remove_mark(read)), marked.scope, "here")
    assert dict(plain.further) == {"mood": "good"}
    assert PENDING not in plain.lines
    assert read_mark(plain) is None
    assert read_mark(entry(Role.USER, further={MARK: PENDING})) == frozenset()
    assert read_mark(entry(Role.USER, further={MARK: 7})) is None
