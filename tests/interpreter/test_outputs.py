"""What a kernel sends, gathered within a bound; what is no message of Jupyter's does no harm."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from vibe_llms.interpreter.inside import FULL
from vibe_llms.interpreter.outputs import Outputs


def gather(*messages: tuple[str, dict[str, Any]], limit: int = 1000) -> Outputs:
    outputs = Outputs(limit)
    for kind, content in messages:
        outputs.take(kind, content)
    return outputs


def test_neighbours_of_one_stream_become_one_text() -> None:
    outputs = gather(
        ("stream", {"name": "stdout", "text": "a"}),
        ("stream", {"name": "stdout", "text": "b"}),
        ("stream", {"name": "stderr", "text": "c"}),
        ("execute_result", {"data": {"text/plain": "1"}}),
        ("execute_result", {"data": {"text/plain": "2"}}),
    )
    reported = [(piece.kind, piece.text) for piece in outputs.pieces]
    assert reported == [("stdout", "ab"), ("stderr", "c"), ("value", "1"), ("value", "2")]
    assert not outputs.failed


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        ({"text/html": "<b>", "text/plain": "b"}, "b"),
        ({"text/html": "<b>"}, "<b>"),
        ({"text/plain": "Figure", "image/svg+xml": "<svg/>"}, "<svg/>"),
        ({"application/x-unknown": 1}, None),
        ("nothing", None),
    ],
)
def test_a_value_is_shown_in_the_form_that_says_most(bundle: Any, text: str | None) -> None:
    outputs = gather(("display_data", {"data": bundle}))
    assert [piece.text for piece in outputs.pieces] == ([] if text is None else [text])


def test_a_picture_goes_before_its_text() -> None:
    data = base64.b64encode(b"PNG").decode()
    (piece,) = gather(
        ("display_data", {"data": {"text/plain": "Figure", "image/png": data}})
    ).pieces
    assert (piece.kind, piece.data, piece.mimetype) == ("picture", b"PNG", "image/png")


def test_an_error_is_reported_without_colours() -> None:
    outputs = gather(("error", {"traceback": ["\x1b[0;31mNameError\x1b[0m", "line 1"]}))
    assert outputs.failed
    assert outputs.pieces[0].text == "NameError\nline 1"
    bare = gather(("error", {"ename": "E", "evalue": "v"}))
    assert bare.pieces[0].text == "E: v"


@pytest.mark.parametrize("text", ["x" * 60, "é" * 30])
def test_what_is_beyond_the_bound_is_cut_and_reported_once(text: str) -> None:
    # Each message counts 100 bytes besides its text.
    outputs = gather(*[("stream", {"text": text})] * 3, limit=311)
    assert outputs.full
    first, reported = outputs.pieces
    assert len(first.text.encode()) in (110, 111)
    assert reported.text == "[the output reached its limit of 311 bytes]"


def test_output_too_long_to_be_sent_fills_the_bound() -> None:
    outputs = gather(("display_data", {"data": {FULL: ""}}))
    assert [piece.kind for piece in outputs.pieces] == ["note"]
    assert outputs.full


def test_a_picture_that_is_too_large_fills_the_bound() -> None:
    data = base64.b64encode(bytes(100)).decode()
    outputs = gather(("display_data", {"data": {"image/png": data}}), limit=50)
    assert outputs.full
    assert [piece.kind for piece in outputs.pieces] == ["note"]


@pytest.mark.parametrize(
    "message",
    [
        ("stream", {"name": {}, "text": None}),
        ("display_data", {"data": {"image/png": "ü"}}),
        ("display_data", {"data": {"image/png": "AAA"}}),
        ("display_data", {}),
        ("unheard-of", {"text": "x"}),
    ],
)
def test_other_values_than_messages_are_ignored(message: tuple[str, dict[str, Any]]) -> None:
    assert gather(message).pieces == []


def test_lone_surrogates_and_other_values_become_text() -> None:
    (piece,) = gather(("stream", {"text": "a\ud800"})).pieces
    assert piece.text == "a?"
    (number,) = gather(("stream", {"text": 7})).pieces
    assert number.text == "7"
