"""Texts found by their words, and the passages that a search returns."""

from __future__ import annotations

import stat
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibe_llms.conversations.document_texts import DocumentText, Part, Place, join_parts
from vibe_llms.documents.index import DocumentIndex, hash_document
from vibe_llms.documents.passages import Passage

FILLER = "The committee met again and discussed the usual matters at length. "


def make_document(*facts: str, title: str = "minutes.txt") -> DocumentText:
    """A document with facts on pages of their own, between much of nothing."""
    parts = [Part(FILLER * 10 + fact, Place(page)) for page, fact in enumerate(facts, 1)]
    text, marks = join_parts(parts)
    return DocumentText(title, text, marks=marks, pages=len(facts))


GARDEN = make_document(*(["Nothing."] * 12), "Ada planted two quinces.", *(["Nothing."] * 12))


def test_a_passage_says_where_it_is_from() -> None:
    index = DocumentIndex()
    index.add("garden", GARDEN)
    best = index.search("Which quince did Ada plant?", ["garden"], characters=2_000)[0]
    assert "Ada planted two quinces." in best.text
    assert (best.hash, best.title) == ("garden", "minutes.txt")
    assert best.text == GARDEN.text[best.start : best.end]
    assert best.place == GARDEN.place_at(best.start)
    assert GARDEN.place_at(best.end - 1).page in (13, 14)
    assert 0 < best.score <= 1


def test_a_text_that_fits_is_returned_whole() -> None:
    index = DocumentIndex()
    small = DocumentText("a.txt", "Nothing of what is asked.")
    index.add("small", small)
    (found,) = index.search("quinces", ["small"])
    assert found == Passage("small", 0, len(small.text), small.text, title="a.txt")


def test_texts_that_fit_are_in_the_order_of_the_request_and_not_of_their_reading() -> None:
    index = DocumentIndex()
    for name in ("c", "a", "b"):
        index.add(name, DocumentText(name, f"This is {name}."))
    assert [one.hash for one in index.search("quinces", ["a", "b", "c"])] == ["a", "b", "c"]


def test_only_the_documents_that_are_asked_for_are_searched() -> None:
    index = DocumentIndex()
    other = make_document(*(["Quinces, quinces."] * 20), title="other.txt")
    for name, document in (("a", other), ("garden", GARDEN), ("b", other)):
        index.add(name, document)
    alone = DocumentIndex()
    alone.add("garden", GARDEN)
    found = index.search("quinces", ["garden"])
    assert {one.hash for one in found} == {"garden"}
    assert found == alone.search("quinces", ["garden"])
    both = index.search("quinces", ["a", "b", "unknown"])
    assert {one.hash for one in both} == {"a", "b"}


def test_results_do_not_depend_on_other_documents() -> None:
    fig = make_document(*(["Nothing."] * 9), "Bob dried a quince and ten figs.", title="fig.txt")
    other = make_document(*(["Ada planted quinces and figs."] * 30), title="other.txt")
    mixed, alone = DocumentIndex(), DocumentIndex()
    for name, document in (("garden", GARDEN), ("x", other), ("fig", fig), ("y", other)):
        mixed.add(name, document)
    alone.add("garden", GARDEN)
    alone.add("fig", fig)
    request = "Who planted quinces, and who dried figs?"
    found = alone.search(request, ["garden", "fig"], characters=1_000)
    assert {one.hash for one in found} == {"garden", "fig"}
    assert mixed.search(request, ["fig", "garden"], characters=1_000) == found
    mixed.drop(["x"])
    assert mixed.search(request, ["garden", "fig"], characters=1_000) == found


#: A document is lines of words, some of which fill a chunk by themselves; it may be empty.
LINES = st.lists(
    st.sampled_from(["apple.", "quince and apple.", "pear.", FILLER * 4, FILLER * 9]), max_size=9
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(LINES, st.booleans()), min_size=2, max_size=6), st.data())
def test_some_documents_give_what_a_store_of_only_these_gives(
    drawn: list[tuple[list[str], bool]], data: st.DataObject
) -> None:
    mixed, alone = DocumentIndex(), DocumentIndex()
    wanted = []
    for place, (lines, is_wanted) in enumerate(drawn):
        name, document = str(place), DocumentText("a", "\n".join(lines))
        mixed.add(name, document)
        vectors = {
            number: array("f", [1.0, data.draw(st.sampled_from([-3.0, 0.0, 0.5, 2.0]))])
            for number, _ in enumerate(mixed.split(name))
        }
        mixed.put_vectors(name, "model", vectors)
        if is_wanted:
            wanted.append(name)
            alone.add(name, document)
            alone.put_vectors(name, "model", vectors)
    for question in (None, array("f", [0.6, 0.8])):
        for characters in (60, 1_200):
            found, expected = (
                index.search(
                    *("apple or quince", wanted),
                    characters=characters,
                    question=question,
                    model="model",
                )
                for index in (mixed, alone)
            )
            assert found == expected


@given(
    st.lists(st.sampled_from(["apple", "pear", "quince", "the", "\n\n", ". "]), max_size=600),
    st.integers(1, 2_000),
)
def test_passages_are_apart_in_order_and_within_the_budget(words: list[str], most: int) -> None:
    document = DocumentText("a", " ".join(words) + "x" * 1_000 + " apple pear")
    index = DocumentIndex()
    index.add("a", document)
    found = index.search("apple quince", ["a"], characters=most)
    assert sum(one.end - one.start for one in found) <= most
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert one.text == document.text[one.start : one.end]
    places = sorted((one.start, one.end) for one in found)
    assert all(end < start for (_, end), (start, _) in pairwise(places))


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    first = DocumentIndex(tmp_path / "documents")
    first.add("garden", GARDEN)
    found = first.search("quinces", ["garden"])
    second = DocumentIndex(tmp_path / "documents")
    assert second.search("quinces", ["garden"]) == found
    assert second.access("garden") == GARDEN
    assert second.access("other") is None
    for path in (tmp_path / "documents").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.close()
    second.close()
    second.close()


@pytest.mark.parametrize("data", [b"no database at all" * 100, b""])
def test_a_damaged_file_is_rebuilt(tmp_path: Path, data: bytes) -> None:
    index = DocumentIndex(tmp_path)
    index.add("garden", GARDEN)
    index.close()
    (tmp_path / "index.sqlite").write_bytes(data)
    notices: list[str] = []
    again = DocumentIndex(tmp_path, notify=notices.append)
    assert again.access("garden") is None
    again.add("garden", GARDEN)
    assert again.access("garden") == GARDEN
    again.close()
    assert DocumentIndex(tmp_path).access("garden") == GARDEN
    assert notices == []


def test_a_folder_that_cannot_be_written_is_reported_once() -> None:
    notices: list[str] = []
    # There, not even root can make a folder.
    index = DocumentIndex(Path("/proc/documents"), notify=notices.append)
    index.add("garden", GARDEN)
    assert index.access("garden") == GARDEN
    assert len(notices) == 1


def test_documents_that_are_not_used_are_dropped_with_their_words() -> None:
    index = DocumentIndex()
    index.add("old", GARDEN, now=1_000.0)
    index.add("new", make_document(*["Quinces."] * 20), now=5_000.0)
    index.touch(["new"], now=9_000.0)
    index.drop(index.survey_unused(8_000.0))
    assert index.access("old") is None
    assert index.access("new") is not None
    assert {one.hash for one in index.search("quinces", ["old", "new"])} == {"new"}


def test_the_hash_depends_on_the_bytes_and_on_the_reader() -> None:
    hashes = {hash_document(data, version) for data in ("00", "aa") for version in ("1", "2")}
    assert len(hashes) == 4


def test_characters_that_no_encoding_has_keep_their_place() -> None:
    index = DocumentIndex()
    index.add("odd", DocumentText("odd", "a\ud800b"))
    found = index.access("odd")
    assert found is not None
    assert (found.text[0], len(found.text), found.text[2]) == ("a", 3, "b")


def test_no_word_of_a_dropped_document_stays_in_a_file(tmp_path: Path) -> None:
    index = DocumentIndex(tmp_path)
    index.add("garden", GARDEN)
    index.add("other", make_document(*["Figs."] * 20))
    index.drop(["garden"])
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"Figs." in data
    assert b"quince" not in data
    assert b"planted" not in data
    index.close()
