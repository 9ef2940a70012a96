"""A canister is one line, whatever is in it, and comes back from it as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.fakes.canisters import produce_canisters
from vibe_llms.messages import codecs
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    UnknownCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.codecs import (
    LineUnreadable,
    decode_canister,
    encode_canister,
    repair_canister,
)
from vibe_llms.messages.contents import (
    Issuer,
    NativePayload,
    ReasoningContent,
    TextualContent,
    UnknownContent,
)

CREATED = datetime(2026, 1, 2, tzinfo=UTC)
IDENTITY = '"identity":"01890a5d-ac96-774b-bcce-b302099a8057","created":"2026-01-02T03:04:05Z"'


def line_of(members: str) -> bytes:
    """A line with an identity and a time, and what else is given as JSON."""
    return f"{{{IDENTITY},{members}}}".encode()


def with_payload(raw: bytes) -> AssistantCanister:
    payload = NativePayload(Issuer("module", "row", "model"), msgspec.Raw(raw))
    return AssistantCanister((ReasoningContent("", native=payload),), identity="a", created=CREATED)


def check_round_trip(canisters: Iterable[Canister]) -> None:
    for canister in canisters:
        line = codecs.encode_canister(canister)
        assert b"\n" not in line
        assert codecs.decode_canister(line) == canister
        assert codecs.encode_canister(codecs.decode_canister(line)) == line


def test_ten_thousand_generated_canisters_come_back_equal_from_one_line_each() -> None:
    check_round_trip(produce_canisters(1, 10_000))


def test_that_check_sees_texts_that_lose_their_awkward_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = encode_canister

    def encode_carelessly(canister: Canister) -> bytes:
        return "".join(whole(canister).decode().splitlines()).encode()

    monkeypatch.setattr(codecs, "encode_canister", encode_carelessly)
    with pytest.raises(AssertionError):
        check_round_trip(produce_canisters(1, 1000))


def test_a_canister_without_lone_surrogates_is_repaired_to_itself() -> None:
    for canister in produce_canisters(2, 200):
        assert repair_canister(canister) is canister


def test_repairing_reaches_every_depth_and_nothing_else() -> None:
    canister = UserCanister((TextualContent("a\ud800"), TextualContent("b")))
    repaired = repair_canister(canister)
    assert repaired == UserCanister(
        (TextualContent("a\ufffd"), TextualContent("b")),
        identity=canister.identity,
        created=canister.created,
    )


@pytest.mark.parametrize(
    "raw",
    [
        b'{"signature":"EqQB\\/+==","n":1.0,"e":1E5,"big":123456789012345678901234567890}',
        b'{"a":"\\u00e9\\ud83d\\ude00","a":"twice"}',
        b'{"escaped backslash":"\\\\ud83d"}',
        b"[]",
        b'"\\u2028"',
    ],
)
def test_a_payload_is_kept_byte_for_byte(raw: bytes) -> None:
    canister = with_payload(raw)
    line = encode_canister(canister)
    assert raw in line
    assert decode_canister(line) == canister


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (b'{\n "a":\r\n [1,\n2] }', b'{  "a":\r  [1, 2] }'),
        (b'{"a":"\\ud83d","b":"\\udE00!"}', b'{"a":"\\ufffd","b":"\\ufffd!"}'),
        (b'{"a":"\\ud83d\\ud83d\\ude00\\\\\\uDEAD"}', b'{"a":"\\ufffd\\ud83d\\ude00\\\\\\ufffd"}'),
    ],
)
def test_a_payload_that_no_line_can_hold_changes_as_little_as_can_be(
    raw: bytes, kept: bytes
) -> None:
    line = encode_canister(with_payload(raw))
    assert b"\n" not in line.replace(b"\r ", b"")
    assert decode_canister(line) == decode_canister(encode_canister(with_payload(kept)))


NEWER = [
    '"role":"robot"',
    '"role":"robot","contents":5,"anything":{"at":[null,1.50,"all"]}',
    '"role":"?","label":"x"',
    '"role":"user","mood":"good"',
    '"role":"user","contents":[{"kind":"smell","of":"roses"},{"kind":"text","data":"a"}]',
    '"role":"user","contents":[{"kind":"?","label":"a","source":5}]',
    '"role":"user","contents":[{"kind":"\\u003f"}]',
    '"role":"user","contents":[{"kind":"text","data":"a","colour":"red"}]',
    '"role":"user","contents":[{"kind":"image","data":{"by":"hash","hash":"a","size":1,"at":2}}]',
    '"role":"user","contents":[{"kind":"image","data":{"by":"pigeon","ring":7}}]',
    '"role":"user","contents":[{"kind":"text","data":"a","citations":[{"quote":"q","page":3}]}]',
    '"role":"invocation","name":"f","native":{"issuer":{"module":"m","row":"r","model":"o","at":1},"data":{},"b":2}',
    '"role":"assistant","ending":{"reason":"bored","usage":{"output_tokens":1,"joules":2}}',
    '"role":"assistant","provenance":{"module":"m","row":"r","model":"o","host":"h"}',
    '"role":"user","source_line":"aGVsbG8="',
]


@pytest.mark.parametrize("members", NEWER)
def test_what_a_newer_version_wrote_is_encoded_as_it_was(members: str) -> None:
    line = line_of(members)
    canister = decode_canister(line)
    assert canister.identity == "01890a5d-ac96-774b-bcce-b302099a8057"
    assert encode_canister(canister) == line
    assert encode_canister(decode_canister(encode_canister(canister))) == line


def test_an_unknown_role_is_reported_by_its_own_name() -> None:
    canister = decode_canister(line_of('"role":"robot"'))
    assert isinstance(canister, UnknownCanister)
    assert role_of(canister) == "robot"


def test_known_contents_next_to_unknown_ones_can_be_read() -> None:
    canister = decode_canister(line_of(NEWER[4]))
    assert isinstance(canister, UserCanister)
    unknown, text = canister.contents
    assert isinstance(unknown, UnknownContent)
    assert unknown.label == "smell"
    assert text == TextualContent("a")


def test_data_in_a_place_that_only_a_newer_version_knows_makes_the_content_unknown() -> None:
    canister = decode_canister(line_of(NEWER[9]))
    assert isinstance(canister, UserCanister)
    assert [type(content) for content in canister.contents] == [UnknownContent]


def test_an_unknown_content_can_be_said_in_a_canister_of_ones_own() -> None:
    old = decode_canister(line_of(NEWER[4]))
    assert isinstance(old, UserCanister)
    new = UserCanister((TextualContent("see:"), *old.contents))
    again = decode_canister(encode_canister(new))
    assert isinstance(again, UserCanister)
    assert b'{"kind":"smell","of":"roses"}' in encode_canister(again)
    assert again.contents == new.contents


def test_a_newer_line_with_white_space_stays_one_line() -> None:
    canister = decode_canister(line_of('"role":\n"robot"'))
    assert encode_canister(canister) == line_of('"role": "robot"')


def enrich(raw: msgspec.Raw, chance: random.Random, *, often: float = 0.5) -> msgspec.Raw:
    """JSON of a canister, with unknown attributes at every depth."""
    text = bytes(raw)
    if text.startswith(b"["):
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
        return msgspec.Raw(b"[" + b", ".join(bytes(enrich(item, chance)) for item in items) + b"]")
    if not text.startswith(b"{"):
        return raw
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    # What is within a payload is its issuer's affair.
    opaque = {"data"} if "issuer" in members else set()
    enriched = [
        (name, value if name in opaque else enrich(value, chance))
        for name, value in members.items()
    ]
    if chance.random() < often:
        place = chance.randrange(len(enriched) + 1)
        enriched.insert(place, ("later", msgspec.Raw(b'{"kind" : "x", "n": 1.50}')))
    pairs = (msgspec.json.encode(name) + b" : " + bytes(value) for name, value in enriched)
    return msgspec.Raw(b"{ " + b" , ".join(pairs) + b" }")


def check_newer(number: int) -> None:
    chance = random.Random(3)
    for canister in produce_canisters(3, number):
        line = bytes(enrich(msgspec.Raw(encode_canister(canister)), chance, often=1))
        decoded = codecs.decode_canister(line)
        assert codecs.encode_canister(decoded) == line
        assert msgspec.structs.replace(decoded, source_line=None) == canister


def test_attributes_of_a_newer_version_survive_at_any_depth() -> None:
    check_newer(1000)


def test_that_check_sees_attributes_that_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decode_canister

    def decode_carelessly(line: bytes) -> Canister:
        return msgspec.structs.replace(whole(line), source_line=None)

    monkeypatch.setattr(codecs, "decode_canister", decode_carelessly)
    with pytest.raises(AssertionError):
        check_newer(50)


DEEP = 100_000
HOSTILE = {
    "nothing": b"",
    "blank": b"   ",
    "torn": line_of('"role":"user","contents":[{"kind":"text"')[:-1],
    "glued": line_of('"role":"user"') * 2,
    "nul bytes": b"\0" * 100,
    "no object": b"[1,2]",
    "null": b"null",
    "number": b"5",
    "byte order mark": b"\xef\xbb\xbf" + line_of('"role":"user"'),
    "carriage return only": b"\r",
    "invalid utf-8": line_of('"role":"document","title":"%"').replace(b"%", b"\xff"),
    "invalid utf-8 in an unknown name": b'{"\xc3":1,' + line_of('"role":"x"')[1:],
    "deep arrays": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "deep and unknown": line_of('"role":"user","x":' + "[" * DEEP + "]" * DEEP),
    "deep in a content": line_of(
        '"role":"user","contents":[{"kind":"text","data":"a","x":' + "[" * DEEP + "]" * DEEP + "}]"
    ),
    "deep in a payload": line_of(
        '"role":"invocation","name":"f","native":{"issuer":{"module":"","row":"","model":""},'
        '"data":' + "[" * DEEP + "]" * DEEP + "}"
    ),
    "huge integer": line_of(
        '"role":"user","contents":[{"kind":"text","data":{"by":"hash","hash":"a","size":'
        + "9" * 6000
        + "}}]"
    ),
    "huge float": line_of('"role":"user","contents":1e999999'),
    "not a number": line_of('"role":"user","failed":NaN'),
    "infinity": line_of('"role":"result","invocation":"a","failed":Infinity'),
    "lone surrogate": line_of('"role":"user","contents":[{"kind":"text","data":"\\ud800"}]'),
    "lone surrogate in a name": line_of('"role":"user","\\udc00":1'),
    "lone surrogate in a role": line_of('"role":"\\ud800"'),
    "no role": line_of('"name":"x"'),
    "empty role": line_of('"role":""'),
    "role that is no text": line_of('"role":["user"]'),
    "no identity": b'{"role":"user","mood":1,"created":"2026-01-02T03:04:05Z"}',
    "no time": b'{"role":"user","mood":1,"identity":"a"}',
    "identity that is no text": b'{"role":"robot","identity":5,"created":"2026-01-02T03:04:05Z"}',
    "no such time": b'{"role":"user","identity":"a","created":"2026-13-45T99:99:99Z"}',
    "contents that are none": line_of('"role":"user","contents":{"kind":"text"}'),
    "content that is none": line_of('"role":"user","contents":["text"]'),
    "content without a kind": line_of('"role":"user","contents":[{"data":"a"}]'),
    "content whose kind is no text": line_of('"role":"user","contents":[{"kind":7}]'),
    "content without data": line_of('"role":"user","contents":[{"kind":"text"}]'),
    "content with wrong data": line_of('"role":"user","contents":[{"kind":"text","data":7}]'),
    "place without a name": line_of('"role":"user","contents":[{"kind":"image","data":{"x":1}}]'),
    "call without a name": line_of('"role":"invocation"'),
    "result without a call": line_of('"role":"result"'),
    "native without issuer": line_of('"role":"invocation","name":"f","native":{"data":1}'),
    "wrong base64": line_of('"role":"user","contents":[{"kind":"image","data":"%%%"}]'),
}


def check_hostile(decode: Callable[[bytes], object], lines: Iterable[bytes]) -> int:
    """How many lines were refused; any error but `LineUnreadable` gets out."""
    refused = 0
    for line in lines:
        try:
            decode(line)
        except LineUnreadable:
            refused += 1
    return refused


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_unreadable_and_nothing_worse(name: str) -> None:
    assert check_hostile(decode_canister, [HOSTILE[name]]) == 1
    with pytest.raises(LineUnreadable, match=r"\w"):
        decode_canister(HOSTILE[name])


def test_that_check_sees_an_error_of_another_kind() -> None:
    def decode_carelessly(line: bytes) -> Any:
        try:
            return msgspec.json.decode(line, type=Canister)
        except msgspec.DecodeError as error:
            raise LineUnreadable(str(error)) from error

    with pytest.raises((RecursionError, ValueError)):
        check_hostile(decode_carelessly, HOSTILE.values())


def test_duplicate_names_do_no_harm() -> None:
    line = line_of('"role":"user","role":"user","contents":[],"contents":[]')
    assert decode_canister(line) == decode_canister(line_of('"role":"user"'))


def test_mutated_lines_are_read_or_refused(rounds: Callable[[int, int], int]) -> None:
    chance = random.Random(4)
    lines = [encode_canister(canister) for canister in produce_canisters(4, 200)]
    mutated = []
    for _ in range(rounds(5000, 200_000)):
        line = bytearray(chance.choice(lines)[:4000])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(line) + 1)
            match chance.randrange(4):
                case 0:
                    del line[place : place + chance.randrange(1, 20)]
                case 1:
                    line[place:place] = chance.randbytes(chance.randrange(1, 5))
                case 2 if place < len(line):
                    line[place] ^= 1 << chance.randrange(8)
                case _:
                    line[place:place] = chance.choice([b'"', b"{", b"}", b"[", b"]", b"\0", b"?"])
        mutated.append(bytes(line))
    refused = check_hostile(decode_canister, mutated)
    assert 0 < refused < len(mutated)
