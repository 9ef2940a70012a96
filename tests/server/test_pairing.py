"""Results of a client's tools after their calls, wherever the client has put them."""

from __future__ import annotations

import pytest

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.server.pairing import OpenCalls, order_results

CALLS = {
    name: InvocationCanister(name="look", arguments="{}", call=name, identity=name)
    for name in ("A", "B")
}
KNOWN: dict[str, Canister] = {
    **CALLS,
    **{name.lower(): ResultCanister((), invocation=name) for name in CALLS},
    "u": UserCanister.from_text("Hurry."),
    "t": AssistantCanister((TextualContent("I look."),)),
    "o": ResultCanister((), invocation="of an earlier response"),
}


@pytest.mark.parametrize(
    ("said", "ordered"),
    [
        ("uAat", "uAat"),
        ("ABab", "ABab"),
        ("ABba", "ABba"),
        ("AaBb", "AaBb"),
        ("Aua", "Aau"),
        ("ABaub", "ABabu"),
        ("aA", "Aa"),
        # Text of the assistant belongs to the reply with its calls.
        ("Ata", "tAa"),
        ("AaBtb", "AatBb"),
        ("ABatb", "tABab"),
        ("Au", "Au"),
        ("ou", "ou"),
    ],
)
def test_a_result_follows_its_call(said: str, ordered: str) -> None:
    names = {one.identity: name for name, one in KNOWN.items()}
    found = order_results([KNOWN[name] for name in said])
    assert "".join(names[one.identity] for one in found) == ordered


def test_calls_of_the_same_name_are_answered_in_their_order() -> None:
    calls = OpenCalls({"earlier": "0"})
    for identity, name in (("1", "call"), ("2", "call"), ("3", "other")):
        calls.add(InvocationCanister(name="look", arguments="{}", call=name, identity=identity))
    assert [calls.take("call"), calls.take("call"), calls.take("call")] == ["1", "2", None]
    assert [calls.take(None), calls.take(None), calls.take(None)] == ["0", "3", None]
