"""The sources of an answer, for people to check."""

from __future__ import annotations

import pytest

from vibe_llms.messages.contents import Citation, Content, ReasoningContent, TextualContent
from vibe_llms.transcripts.citations import list_citations


@pytest.mark.parametrize(
    ("citation", "line"),
    [
        (
            Citation("Sales fell.", "report.pdf", place="page 3"),
            'report.pdf, page 3: "Sales fell."',
        ),
        (Citation("", "report.pdf", start=3, end=4, unit="page"), "report.pdf, page 3"),
        (Citation("", "report.pdf", start=3, end=6, unit="page"), "report.pdf, pages 3-5"),
        (Citation("", "report.pdf", start=3, end=None, unit="page"), "report.pdf, page 3"),
        (Citation("", "a.txt", start=30, end=60, unit="character"), "a.txt"),
        (
            Citation("", "Ducks", "https://example.org/duck"),
            "Ducks <https://example.org/duck>",
        ),
        (Citation("", "", "https://example.org/duck"), "https://example.org/duck"),
        (Citation("one\ntwo \x1b[2J", "a.txt"), 'a.txt: "one two'),
        (Citation("word " * 100, "a.txt"), 'a.txt: "word word'),
    ],
)
def test_a_citation_is_one_short_line(citation: Citation, line: str) -> None:
    (drawn,) = list_citations([TextualContent("It fell.", citations=(citation,))])
    assert drawn.startswith(line)
    assert len(drawn) < 160
    assert drawn.isprintable()


def test_each_source_is_listed_once_in_the_order_of_the_answer() -> None:
    first, second = Citation(title="a.pdf"), Citation(title="b.pdf")
    contents: list[Content] = [
        ReasoningContent("hm"),
        TextualContent("One.", citations=(first, second)),
        TextualContent("Two.", citations=(first, Citation())),
    ]
    assert list_citations(contents) == ["a.pdf", "b.pdf"]
