"""Plain front matter is read as YAML reads it, or left to YAML."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.memory import entries
from vibe_llms.memory.entries import GLOBAL, Entry, Role, decode_entry, encode_entry
from vibe_llms.memory.front_matter import read_plain
from vibe_llms.messages.identities import produce_identity

KNOWN = ("id", "role", "topics", "importance")
VALUES = st.sampled_from(
    (
        *("Ada", "Ada Lovelace", "user-me", "null", "Yes", "on", "1.5", "0.7", "12", "1e3", "~"),
        *("2026-01-01", "'2026-01-01'", "'it''s'", "''", "' a '", "'#'", "a: b", "a #b", "a  b"),
        *("Zoë", "'Zoë'", "李", "0x1f", "1_0.5", "01a21ab6-9070-78f4-ae06-521eed9ade0d", "*a"),
        *("- x", "[]", '"a\\nb"', "! a", "a\tb", "", "a ", "1:30", "=", "é\u2028", "'\x85'"),
    )
) | st.text(st.sampled_from("aZ0é '#:-,.~_"), max_size=8)
LINES = st.builds(
    lambda name, value: f"{name}:{value and ' '}{value}",
    st.sampled_from((*KNOWN, "mine", "other", "no", "y", "Big", "a b")),
    VALUES,
) | st.builds(lambda value: f"- {value}", VALUES)


def load(head: str) -> Any:
    return yaml.load(head, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@given(st.lists(LINES, max_size=5).map("\n".join))
def test_what_is_read_without_yaml_is_what_yaml_reads(head: str) -> None:
    if (found := read_plain(head, KNOWN)) is not None:
        front, foreign = found
        assert front == load(head)
        further = {name: value for name, value in front.items() if name not in KNOWN}
        assert (load(foreign) or {}) == further
        if further:
            assert foreign == "\n".join(keep_foreign(head)) + "\n"


def keep_foreign(head: str) -> list[str]:
    kept: list[str] = []
    foreign = False
    for line in head.split("\n"):
        if not line.startswith("- "):
            foreign = line.partition(":")[0] not in KNOWN
        if foreign:
            kept.append(line)
    return kept


@pytest.mark.parametrize(
    "head",
    ["", "id: yes", "id: a\nid: b", "topics:", "topics:\nid: a", "- a", "no: a", "id: [a]", "# a"],
)
def test_what_is_not_plain_is_left_to_yaml(head: str) -> None:
    assert read_plain(head, KNOWN) is None


def test_what_we_write_is_read_without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    written = [
        Entry(content="Tea", identity=produce_identity(), created=datetime(2026, 5, 4, tzinfo=UTC)),
        Entry(
            content="Tea",
            identity="fact-1",
            role=Role.USER,
            created=datetime(2026, 5, 4, 10, 30, 1, 5, tzinfo=UTC),
            importance=0.75,
            category="drinks",
            topics=("green tea", "Zoë"),
            speaker="Ada",
            conversation=produce_identity(),
            turn=produce_identity(),
            further={"ingestion": "pending"},
            lines="ingestion: pending\n",
        ),
    ]
    texts = [encode_entry(entry) for entry in written]
    monkeypatch.setattr(entries, "_load", None)
    assert [decode_entry(text, GLOBAL, "x.md") for text in texts] == written
