"""The text of a document, and the place of each character in it."""

from __future__ import annotations

import pytest

from vibe_llms.conversations.document_texts import DocumentText, Part, Place, join_parts


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(), ""),
        (Place(3), "page 3"),
        (Place(3, heading="Methods > Data"), "page 3, Methods > Data"),
        (Place(sheet="Sales"), "sheet Sales"),
    ],
)
def test_a_place_describes_itself(place: Place, text: str) -> None:
    assert str(place) == text


def test_each_character_has_the_place_of_its_part() -> None:
    parts = [Part("one", Place(1)), Part("\nmore\n", Place(1)), Part("two", Place(2))]
    text, marks = join_parts(parts)
    document = DocumentText("a.pdf", text, marks=marks)
    assert text == "one\n\nmore\n\ntwo"
    assert [document.place_at(text.index(word)).page for word in ("one", "more", "two")] == [
        1,
        1,
        2,
    ]


def test_parts_without_text_leave_no_trace() -> None:
    assert join_parts([Part("\n", Place(1)), Part("a", Place(2)), Part("", Place(3))]) == (
        "a",
        ((0, Place(2)),),
    )


def test_a_text_without_marks_has_no_places() -> None:
    assert DocumentText("a.txt", "hello").place_at(3) == Place()
