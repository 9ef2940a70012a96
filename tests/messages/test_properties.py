"""Properties of messages, with texts that Hypothesis chooses."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.messages.test_codecs import check_hostile
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.codecs import decode_canister, encode_canister, repair_canister
from vibe_llms.messages.contents import repair_text

CREATED = datetime(2026, 1, 2, tzinfo=UTC)


@settings(deadline=None, database=None)
@given(st.text(), st.text())
@example("\ud800", "\udfff\ud800")
def test_any_text_comes_back_with_its_lone_surrogates_replaced(said: str, name: str) -> None:
    canister = InvocationCanister(name=name, arguments=said)
    decoded = decode_canister(encode_canister(canister))
    assert decoded == repair_canister(canister)
    assert isinstance(decoded, InvocationCanister)
    decoded.arguments.encode()
    assert len(decoded.arguments) in (
        len(said),
        len(said.encode("utf-16", "surrogatepass")) // 2 - 1,
    )


@settings(max_examples=50, deadline=None, database=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert check_hostile(decode_canister, [data]) == 1


@settings(deadline=None, database=None)
@given(st.text())
def test_repaired_text_can_be_encoded_and_keeps_whatever_could_be(text: str) -> None:
    repaired = repair_text(text)
    repaired.encode()
    assert repair_text(repaired) is repaired
    expected = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    if not any("\ud800" <= c <= "\udbff" for c in text):
        assert repaired == expected
