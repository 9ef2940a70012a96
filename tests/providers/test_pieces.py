"""Encoded history: slots, runs of bytes, and what gives way where there is no room."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

import pytest

from vibe_llms.base.exceptions import ContentNotLoaded
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    ImageContent,
    ReasoningContent,
    Reference,
    TextualContent,
)
from vibe_llms.providers.interfaces import refuse_loading
from vibe_llms.providers.pieces import (
    Baked,
    Fragment,
    Slot,
    append_member,
    compact,
    encode_json,
    fill,
    fit,
    interleave,
    load_texts,
    with_texts,
)


def slot(data: bytes | Reference, label: str = "an image", origin: str = "") -> Slot:
    return Slot(data, "base64", b'{"data":', b"}", b'{"gone":1}', label, origin)


async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
    return {reference.hash: b"text of it" for reference in references}


async def test_a_slot_is_filled_with_base64_or_with_a_string() -> None:
    assert json.loads(await slot(b"abc").fill(refuse_loading)) == {
        "data": base64.b64encode(b"abc").decode()
    }
    text = Slot("ü\n".encode() + b"\xff", "text", b'{"data":', b"}", b"{}", "a file")
    assert json.loads(await text.fill(refuse_loading)) == {"data": "ü\n\ufffd"}


async def test_a_slot_of_a_reference_is_loaded_only_when_it_is_filled() -> None:
    reference = Reference.from_bytes(b"text of it")
    assert base64.b64encode(b"text of it") in await slot(reference).fill(load)
    with pytest.raises(ContentNotLoaded):
        await slot(reference).fill(refuse_loading)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 1000])
async def test_the_size_of_a_filled_slot_is_known_before(size: int) -> None:
    for data in (b"x" * size, Reference("0" * 64, size)):
        filled = await slot(b"x" * size).fill(refuse_loading)
        assert slot(data).encoded_size == len(filled)
    text = Slot(b"x" * size, "text", b'{"data":', b"}", b"{}", "a file")
    assert text.encoded_size == len(await text.fill(refuse_loading))


def test_a_member_is_added_to_bytes_and_to_slots() -> None:
    assert append_member((b'{"a":1}',), b'"b":2') == (b'{"a":1,"b":2}',)
    (marked,) = append_member((slot(b"x"),), b'"b":2')
    assert isinstance(marked, Slot)
    assert (marked.after, marked.instead) == (b',"b":2}', b'{"gone":1,"b":2}')


@pytest.mark.parametrize("size", [10, 5_000])
async def test_what_is_baked_is_an_array_of_all_that_was_added(size: int) -> None:
    baked = Baked(b"[")
    expected: list[object] = []
    for number in range(60):
        if number % 30 == 3:
            baked.append([slot(b"abc")])
            expected.append({"data": "YWJj"})
        else:
            baked.append([b'{"n":', encode_json("x" * size), b"}"])
            expected.append({"n": "x" * size})
        # Looking does not change anything.
        body = b"".join(await fill([*baked.fragments(), b"]"], refuse_loading))
        assert json.loads(body) == expected
    assert baked.count == 60


async def test_large_runs_are_sent_as_they_are() -> None:
    run = b"x" * 70_000
    parts = await fill([b"a", run, b"b", slot(b""), b""], refuse_loading)
    assert parts == [b"a", run, b"b", b'{"data":""}']
    assert parts[1] is run


def test_media_give_way_the_oldest_first() -> None:
    fragments: list[Fragment] = [b"[", slot(b"x" * 300, "old"), b",", slot(b"y" * 300, "new"), b"]"]
    fitted, gone, size = fit(fragments, 600)
    assert [one.label for one in gone] == ["old"]
    assert fitted[1] == b'{"gone":1}'
    assert size == sum(
        part.encoded_size if isinstance(part, Slot) else len(part) for part in fitted
    )


def test_media_that_must_stay_do_not_give_way() -> None:
    fragments: list[Fragment] = [slot(b"x" * 300, "old", "a"), slot(b"y" * 300, "new", "b")]
    fitted, gone, size = fit(fragments, 10, frozenset({"a"}))
    assert [one.label for one in gone] == ["new"]
    assert isinstance(fitted[0], Slot)
    assert size > 10


def test_nothing_gives_way_where_there_is_room_or_no_limit() -> None:
    fragments: list[Fragment] = [slot(b"x" * 300)]
    assert fit(fragments, None)[:2] == (fragments, [])
    assert fit(fragments, 1000)[:2] == (fragments, [])


async def test_the_texts_of_references_are_loaded_and_nothing_else() -> None:
    text, thought = Reference.from_bytes(b"1"), Reference.from_bytes(b"2")
    canisters: list[Canister] = [
        UserCanister((TextualContent(text), ImageContent(Reference.from_bytes(b"3")))),
        AssistantCanister((ReasoningContent(thought), TextualContent("here"))),
    ]
    assert set(await load_texts(canisters, load)) == {text.hash, thought.hash}
    assert await load_texts([UserCanister.from_text("here")], refuse_loading) == {}


def test_lone_surrogates_are_replaced_anywhere_in_json() -> None:
    value = {"a": ["x\ud83d", "\ud83d\ude00"], "b\udc00": None}
    assert json.loads(encode_json(value)) == {"a": ["x\ufffd", "😀"], "b\ufffd": None}


def test_compact_json_keeps_numbers_and_escapes() -> None:
    assert compact(b'{ "a" : 1.50e3 , "b" : "\\u00e9 \\n" }') == b'{"a":1.50e3,"b":"\\u00e9 \\n"}'
    with pytest.raises(ValueError, match="truncated"):
        compact(b'{"a":')


def test_blocks_are_put_in_a_row() -> None:
    assert interleave([]) == []
    assert interleave([(b"1",), (b"2", b"3")]) == [b"1", b",", b"2", b"3"]


async def test_texts_come_back_among_calls_which_have_none() -> None:
    stored = UserCanister((TextualContent(Reference.from_bytes(b"text of it")),))
    call = InvocationCanister(name="find")
    spoken, same = await with_texts([stored, call], load)
    assert spoken.contents == (TextualContent("text of it"),)
    assert same is call
