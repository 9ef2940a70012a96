"""What tools return becomes contents, no larger than a model can bear."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from vibe_llms.invocation.results import (
    InvocationOutput,
    Rendering,
    ResultTooLarge,
    bound_contents,
    contents_from,
    produce_excerpt,
    produce_output,
    render,
)
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Reference,
    TextualContent,
)


class Point(BaseModel):
    x: int
    y: float = 0.5


@dataclass
class Pair:
    one: int
    other: str


class Record(msgspec.Struct):
    when: str


class Strange:
    def __str__(self) -> str:
        return "strange"


PICTURE = ImageContent(b"\x89PNG", "image/png")


@pytest.mark.parametrize(
    ("value", "contents"),
    [
        ("text", (TextualContent("text"),)),
        ("a\ud800", (TextualContent("a\ufffd"),)),
        ("", (TextualContent(""),)),
        (None, (TextualContent("null"),)),
        (True, (TextualContent("true"),)),
        (1.5, (TextualContent("1.5"),)),
        ({"a": [1, None]}, (TextualContent('{"a":[1,null]}'),)),
        ([], (TextualContent("[]"),)),
        ((1, 2), (TextualContent("[1,2]"),)),
        (Pair(1, "a"), (TextualContent('{"one":1,"other":"a"}'),)),
        (Point(x=1), (TextualContent('{"x":1,"y":0.5}'),)),
        ([Point(x=1)], (TextualContent('[{"x":1,"y":0.5}]'),)),
        (Record("now"), (TextualContent('{"when":"now"}'),)),
        ({"odd": Strange()}, (TextualContent('{"odd":"strange"}'),)),
        (b"\0\xff", (FileContent(b"\0\xff", "application/octet-stream"),)),
        (PICTURE, (PICTURE,)),
        ([TextualContent("see"), PICTURE], (TextualContent("see"), PICTURE)),
        ((PICTURE,), (PICTURE,)),
    ],
)
def test_what_a_tool_returns_becomes_contents(value: object, contents: tuple[Content, ...]) -> None:
    assert contents_from(value) == contents


def test_structures_with_lone_surrogates_become_text_that_can_be_kept() -> None:
    value = {"a\udfff": ["x\ud800", 1, {"b": Point(x=1)}, {date(2026, 1, 2): 3, math.inf: 4}]}
    assert contents_from(value) == (
        TextualContent('{"a\ufffd":["x\ufffd",1,{"b":{"x":1,"y":0.5}},{"2026-01-02":3,"inf":4}]}'),
    )


def bound(*contents: Content, shown: int = 10, kept: int = 100) -> tuple[Any, ...]:
    return bound_contents(contents, shown_bytes=shown, kept_bytes=kept)


def test_what_is_short_enough_stays_as_it_is() -> None:
    contents = (TextualContent("0123456"), PICTURE, TextualContent("789"))
    assert bound(*contents) == contents


def test_a_long_text_is_shown_in_part_and_kept_whole() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    (content,) = bound(TextualContent(text))
    assert isinstance(content, TextualContent)
    assert content.whole == text
    assert content.text == "abcdefg\n[… 16 of 26 bytes left out …]\nxyz"


def test_several_texts_share_the_room() -> None:
    first, second, third = bound(
        TextualContent("01234567"), TextualContent("abcdef"), TextualContent("x" * 5)
    )
    assert first == TextualContent("01234567")
    assert second.text == "a\n[… 4 of 6 bytes left out …]\nf"
    assert third.text == "\n[… 5 of 5 bytes left out …]\n"
    assert third.whole == "x" * 5


@given(st.text(alphabet="aé東😀\n", max_size=60), st.integers(0, 60))
def test_an_excerpt_is_a_beginning_and_an_end_within_its_size(text: str, size: int) -> None:
    if len(text.encode()) <= size:
        return
    head, _, rest = produce_excerpt(text, size).partition("\n[… ")
    missing, _, tail = rest.partition(" bytes left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    whole = len(text.encode())
    shown = len(head.encode()) + len(tail.encode())
    assert size - 6 <= shown <= size
    assert missing == f"{whole - shown:,} of {whole:,}"


def test_as_much_as_may_be_kept_is_kept_and_what_is_stored_already_counts_as_nothing() -> None:
    picture, stored = ImageContent(b"x" * 100), ImageContent(Reference("0" * 64, 10_000))
    assert bound(picture, stored) == (picture, stored)


@pytest.mark.parametrize(
    "contents",
    [
        (TextualContent("x" * 101),),
        (TextualContent("é" * 51),),
        (ImageContent(b"x" * 60), FileContent(b"x" * 41)),
    ],
)
def test_what_is_too_much_to_be_kept_is_refused(contents: tuple[Content, ...]) -> None:
    with pytest.raises(ResultTooLarge, match=r"returned 10\d bytes; at most 100 are kept"):
        bound(*contents)


@pytest.mark.parametrize(
    ("value", "rendering", "text"),
    [
        ({"city": "Oslo", "degrees": -4}, "{city}: {degrees}°", "Oslo: -4°"),
        (Pair(1, "a"), "{other}{one}", "a1"),
        (Point(x=2), "{x:03d}", "002"),
        ([1, 2], lambda value: f"{len(value)} things", "2 things"),
        (3, str, "3"),
        (None, lambda value: "\ud800", "\ufffd"),
    ],
)
def test_values_are_rendered(value: object, rendering: Rendering, text: str) -> None:
    assert render(value, rendering) == text


def test_models_and_people_are_shown_what_is_for_them() -> None:
    value = {"city": "Oslo", "degrees": -4}
    output = produce_output(value, "{city} {degrees}", "It is {degrees}° in {city}.")
    assert output == InvocationOutput((TextualContent("Oslo -4"),), "It is -4° in Oslo.")
    assert produce_output(value) == InvocationOutput(contents_from(value))
    assert produce_output(output, "never", "never") is output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({True: 1}, '{"true":1}'),
        ({None: 1}, '{"None":1}'),
        ([{(1, 2): {False: 3}}], '[{"1,2":{"false":3}}]'),
    ],
)
def test_keys_that_json_lacks_are_written_as_texts(value: object, text: str) -> None:
    (content,) = contents_from(value)
    assert isinstance(content, TextualContent)
    assert content.data == text
