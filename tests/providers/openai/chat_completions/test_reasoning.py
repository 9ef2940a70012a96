"""Reasoning in the text of a reply, and reasoning in parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from vibe_llms.providers.openai.chat_completions import reasoning_details
from vibe_llms.providers.openai.chat_completions.reasoning_details import merge_details, read_text
from vibe_llms.providers.reasoning_tags import TAGS, TagSplitter


def split(pieces: Iterable[str]) -> tuple[str, str]:
    """The reasoning and the text of a whole reply."""
    splitter = TagSplitter()
    found = [*map(splitter.feed, pieces), splitter.conclude()]
    return "".join(one for one, _ in found), "".join(one for _, one in found)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>\nhm\n</think>\n\nHi!", "\nhm\n", "Hi!"),
        (" \n<reasoning>hm</reasoning>Hi!", "hm", "Hi!"),
        ("<think></think>Hi!", "", "Hi!"),
        ("<think>a </thin b</think>c <think>d</think>", "a </thin b", "c <think>d</think>"),
        ("<think>never closed </thi", "never closed </thi", ""),
        ("<think>only</think>\n", "only", ""),
        ("Hi <think>no</think>", "", "Hi <think>no</think>"),
        ("<thin air", "", "<thin air"),
        ("<thi", "", "<thi"),
        ("  plain", "", "  plain"),
        ("<thinker>", "", "<thinker>"),
        ("", "", ""),
    ],
)
def test_only_a_span_at_the_beginning_is_reasoning_however_it_is_cut(
    text: str, thought: str, said: str
) -> None:
    assert split([text]) == (thought, said)
    assert split(text) == (thought, said)
    for cut in range(len(text)):
        assert split([text[:cut], text[cut:]]) == (thought, said)


@pytest.mark.parametrize("tag", TAGS)
def test_each_tag_is_closed_by_its_own(tag: str) -> None:
    assert split(f"<{tag}>a</other>b</{tag}>c") == ("a</other>b", "c")


def test_plain_text_is_passed_on_at_once() -> None:
    splitter = TagSplitter()
    assert [splitter.feed(text) for text in ("H", "i")] == [("", "H"), ("", "i")]
    assert splitter.feed("<think>") == ("", "<think>")


def test_pieces_of_one_index_are_one_part_and_others_stay_as_they_are() -> None:
    pieces = [
        {"type": "reasoning.text", "text": "a", "index": 0, "format": "f"},
        {"type": "reasoning.text", "text": "b", "index": 0, "signature": None},
        {"type": "reasoning.encrypted", "data": "x", "index": 1, "id": "c1"},
        {"type": "reasoning.text", "index": 0, "signature": "s"},
        {"type": "reasoning.encrypted", "data": "y", "index": 1, "id": "c2"},
        {"type": "reasoning.summary", "summary": "z"},
        {"type": "reasoning.summary", "summary": "w"},
        7,
    ]
    assert merge_details(pieces) == [
        {"type": "reasoning.text", "text": "ab", "index": 0, "format": "f", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "x", "index": 1, "id": "c1"},
        {"type": "reasoning.encrypted", "data": "y", "index": 1, "id": "c2"},
        {"type": "reasoning.summary", "summary": "z"},
        {"type": "reasoning.summary", "summary": "w"},
    ]
    assert read_text(pieces) == "abzw"


def test_each_piece_is_compared_with_parts_of_its_own_index_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[object] = []
    takes = reasoning_details._Part.takes

    def note(part: reasoning_details._Part, piece: dict[str, Any]) -> bool:
        compared.append(piece)
        return takes(part, piece)

    monkeypatch.setattr(reasoning_details._Part, "takes", note)
    pieces = [{"index": n, "text": "a"} for n in range(100)]
    assert merge_details([*pieces, *pieces]) == [{**one, "text": "aa"} for one in pieces]
    assert len(compared) == 100
