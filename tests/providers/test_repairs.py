"""JSON and text made fit: lone surrogates, halves of pairs, what is nested too deeply."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.repairs import TextJoiner, escape, keep_json, parse_object, repair

TEXTS = st.text(st.characters(), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=6))
def test_text_in_pieces_is_the_text_as_a_whole(pieces: list[str]) -> None:
    joiner = TextJoiner()
    joined = "".join([*(joiner.join(piece) for piece in pieces), joiner.conclude()])
    assert joined == repair_text("".join(pieces))
    assert not joiner.waiting
    joined.encode()


def test_half_a_pair_waits_for_its_other_half() -> None:
    joiner = TextJoiner()
    assert joiner.join("a\ud83d") == "a"
    assert joiner.waiting
    assert joiner.join("\ude00b") == "😀b"
    assert not joiner.waiting
    assert joiner.join("\ud83d") == ""
    assert joiner.conclude() == "\ufffd"


@settings(deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=3))
def test_an_object_is_read_and_repaired(value: dict[str, object]) -> None:
    read = parse_object(json.dumps(value).encode())
    escaped = json.loads(bytes(escape(read)).decode())
    assert escaped == repair(read)
    json.dumps(repair(read), ensure_ascii=False).encode()


def test_sound_values_stay_as_they_are() -> None:
    value = {"a": [1, 1.5, None, True, "é"], "b": {"c": []}}
    assert repair(value) == value
    assert bytes(escape(value)) == '{"a":[1,1.5,null,true,"é"],"b":{"c":[]}}'.encode()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b'{"a":NaN}', b'{"a":\xff}', b"null"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_object(data)


@pytest.mark.parametrize("depth", [250, 600, 900, 990, 5_000])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_nested_too_deeply_is_refused(begin: bytes, end: bytes, depth: int) -> None:
    data = b'{"s":"\\ud83d","x":' + begin * depth + b"1" + end * depth + b"}"
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_object(data)


def test_what_is_nested_is_read_and_repaired() -> None:
    data = b'{"x":' + b"[" * 150 + b'"\\ud83d"' + b"]" * 150 + b"}"
    assert bytes(escape(parse_object(data))).count("\ufffd".encode()) == 1


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (b'{ "a" : 1.50 ,\n"b" : "\\u00e9" }', b'{"a":1.50,"b":"\\u00e9"}'),
        (b' "x" ', b'"x"'),
    ],
)
def test_what_is_kept_is_compact_and_otherwise_as_it_was(raw: bytes, kept: bytes) -> None:
    assert bytes(keep_json(raw)) == kept


@pytest.mark.parametrize("raw", [b"", b"{", b'"\xff"', b"[" * 5_000 + b"]" * 5_000])
def test_what_cannot_be_kept_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        keep_json(raw)
