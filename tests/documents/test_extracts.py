"""What a model is given of a document."""

from __future__ import annotations

import pytest

from vibe_llms.conversations.document_texts import DocumentText, Part, Place, join_parts
from vibe_llms.documents.extracts import (
    PAGE,
    count_pages,
    describe_range,
    describe_size,
    write_beginning,
    write_outline,
    write_page,
)


def produce_document(pages: int = 30) -> DocumentText:
    parts = [
        Part(f"page {number} " + "word " * 200, Place(number, heading=f"Chapter {number // 10}"))
        for number in range(1, pages + 1)
    ]
    text, marks = join_parts(parts)
    return DocumentText("report.pdf", text, "PDF", marks, pages)


def test_pages_together_are_the_text() -> None:
    document = produce_document()
    shown = [
        write_page("report.pdf", document, page) for page in range(1, count_pages(document) + 1)
    ]
    bodies = [one.split("\n\n", 1)[1].rpartition("\n\n**Page #")[0] for one in shown]
    assert "".join(bodies) == document.text
    assert shown[1].startswith("report.pdf (pages 10-")
    assert shown[-1].endswith(f"**Page #{len(shown)}. Total pages: {len(shown)}**")


@pytest.mark.parametrize("page", [0, -1, 5])
def test_a_page_that_does_not_exist_is_an_error_with_the_number_of_pages(page: int) -> None:
    with pytest.raises(ValueError, match="it has 4"):
        write_page("report.pdf", produce_document(), page)


def test_an_empty_document_has_one_page() -> None:
    assert write_page("a.txt", DocumentText("a.txt", ""), 1).endswith("**Page #1. Total pages: 1**")


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ((), ""),
        (((0, Place(3)),), "page 3"),
        (((0, Place(3)), (5, Place(4))), "pages 3-4"),
        (((0, Place(sheet="Sales")),), "sheet Sales"),
        (((0, Place(heading="One")), (5, Place(heading="Two"))), "One"),
    ],
)
def test_a_range_says_where_it_is(marks: tuple[tuple[int, Place], ...], words: str) -> None:
    assert describe_range(DocumentText("a", "0123456789", marks=marks), 0, 10) == words


def test_an_outline_has_each_heading_once_with_its_depth_and_page() -> None:
    places = [Place(1, heading="Intro"), Place(2, heading="Intro > Aim"), Place(3, heading="Intro")]
    marks = tuple(enumerate(places))
    assert write_outline(DocumentText("a", "abc", marks=marks)) == [
        "- Intro (page 1)",
        "  - Aim (page 2)",
    ]
    many = tuple((number, Place(heading=f"h{number}")) for number in range(100))
    assert write_outline(DocumentText("a", "a" * 100, marks=many))[-1] == "… and 40 more"


def test_the_beginning_of_a_long_document_keeps_to_its_room() -> None:
    document = produce_document(300)
    text = write_beginning("report.pdf", document, 4000, "Search it.")
    assert len(text) < 4200
    assert "300 pages" in text
    assert "beginning follow. Search it.\n" in text
    assert "- Chapter 0 (page 1)" in text
    assert "page 1 word" in text
    assert len(text) < len(write_beginning("report.pdf", document, 40_000, "")) < 2 * PAGE


def test_without_room_a_document_is_one_line() -> None:
    text = write_beginning("report.pdf", produce_document(300), 0, "Search it.")
    assert text == ("report.pdf (300 pages, 303,190 characters) is not included: no room is left.")


def test_a_size_is_described() -> None:
    assert describe_size(DocumentText("a.pdf", "x" * 1200, "PDF", pages=12)) == (
        "PDF, 12 pages, 1,200 characters"
    )
    assert describe_size(DocumentText("a.txt", "x")) == "1 characters"
