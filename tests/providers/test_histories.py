"""A history for a wire that has no form of its own for calls without results, and the reverse."""

from __future__ import annotations

from typing import Any

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.providers.histories import pair_calls


def call(identity: str, reply: str = "r") -> InvocationCanister:
    return InvocationCanister(name="clock", identity=identity, reply=reply)


def result(invocation: str) -> ResultCanister:
    return ResultCanister(
        (TextualContent("noon"),), identity=f"of-{invocation}", invocation=invocation
    )


def said(identity: str, reply: str = "r") -> AssistantCanister:
    return AssistantCanister((TextualContent("Hm."),), identity=identity, reply=reply)


def user(identity: str) -> UserCanister:
    return UserCanister((TextualContent("Go on."),), identity=identity)


def pair(*canisters: Canister) -> list[Any]:
    """The identities; of a result that of its call, with `=`, or `!` if it failed."""
    marks = {True: "!", False: "="}
    return [
        f"{one.invocation}{marks[one.failed]}" if isinstance(one, ResultCanister) else one.identity
        for one in pair_calls(canisters)
    ]


def test_a_history_whose_calls_have_results_stays_as_it_is() -> None:
    history: list[Canister] = [
        user("u"),
        said("s"),
        call("a"),
        call("b"),
        said("t"),
        result("b"),
        result("a"),
    ]
    assert list(pair_calls(history)) == history


def test_a_call_without_a_result_gets_one_before_the_conversation_goes_on() -> None:
    assert pair(call("a"), call("b"), result("a"), user("u")) == ["a", "b", "a=", "b!", "u"]
    assert pair(call("a"), said("s"), said("t", "next")) == ["a", "s", "a!", "t"]
    assert pair(call("a"), call("b", "next"), result("b")) == ["a", "a!", "b", "b="]
    assert pair(user("u"), call("a")) == ["u", "a", "a!"]


def test_a_result_of_no_call_becomes_words_of_the_user() -> None:
    late = (call("a"), user("u"), result("a"))
    assert pair(*late) == ["a", "a!", "u", "of-a"]
    *_, last = pair_calls(late)
    assert isinstance(last, UserCanister)
    assert [getattr(one, "data", "") for one in last.contents] == ["A tool returned:", "noon"]
    assert pair(call("a"), result("a"), result("a")) == ["a", "a=", "of-a"]
