"""What a digest leaves out, over histories of any shape: pairs, order, and what must stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from vibe_llms.conversations.context_plans import ContextPlan, ContextSize, plan
from vibe_llms.conversations.context_view import ContextView, present
from vibe_llms.conversations.context_window import measure_tokens
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent

SIZES = st.sampled_from([10, 300, 3_000, 30_000])


def write(size: int, what: str) -> tuple[TextualContent, ...]:
    return (TextualContent(f"{what} {'x' * size}"),)


@st.composite
def histories(draw: st.DrawFn) -> list[Canister]:
    """Turns with documents, calls in parallel, failures, and repeated results."""
    made: list[Canister] = []
    if draw(st.booleans()):
        made.append(SupervisorCanister(write(50, "Be brief.")))
    for turn in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 4)) == 0:
            made.append(DocumentCanister(write(draw(SIZES), f"page {turn}"), title=f"{turn}.txt"))
        if draw(st.integers(0, 5)) == 0:
            made.append(SupervisorCanister(write(30, f"rule {turn}")))
        made.append(UserCanister(write(draw(SIZES), f"question {turn}")))
        for number in range(draw(st.integers(0, 4))):
            reply = f"{turn}/{number}"
            if draw(st.booleans()):
                made.append(AssistantCanister(write(20, "let me see"), reply=reply))
            calls = [
                InvocationCanister(name="look", arguments="{}", reply=reply)
                for _ in range(draw(st.integers(1, 3)))
            ]
            made += calls
            for call in draw(st.permutations(calls)):
                text = write(draw(SIZES), draw(st.sampled_from(["same", f"sea {len(made)}"])))
                failed = draw(st.integers(0, 3)) == 0
                made.append(ResultCanister(text, invocation=call.identity, failed=failed))
        if draw(st.booleans()):
            made.append(AssistantCanister(write(draw(SIZES), "answer"), reply=f"{turn}/end"))
    return made


def measure(messages: Sequence[Canister], target: int) -> ContextSize:
    total = sum(map(measure_tokens, messages))
    return ContextSize(
        tokens=total, overhead=0, estimated=total, target=target, summary=200, limit=2 * target
    )


def as_digest(messages: Sequence[Canister], made: ContextPlan) -> DigestCanister:
    return DigestCanister(
        write(10, "summary") if made.end else (),
        first=messages[0].identity if made.end else "",
        last=messages[made.end - 1].identity if made.end else "",
        kept=made.kept,
        shortened={name: "x" * (length or 60) for name, length in made.shortened.items()},
    )


def check_pairs(shown: Sequence[Canister]) -> None:
    """Raise if a call has lost its result, or the reverse, or a result comes first."""
    calls = {one.identity for one in shown if isinstance(one, InvocationCanister)}
    answered: set[str] = set()
    seen: set[str] = set()
    for one in shown:
        if isinstance(one, InvocationCanister):
            seen.add(one.identity)
        if isinstance(one, ResultCanister):
            assert one.invocation in seen
            answered.add(one.invocation)
    assert answered == calls


@given(histories(), st.integers(0, 30_000), st.data())
@settings(deadline=None, max_examples=80)
def test_every_plan_keeps_pairs_order_and_what_must_stay(
    messages: list[Canister], target: int, data: Any
) -> None:
    pinned = frozenset(
        one.identity
        for one in messages
        if not isinstance(one, SupervisorCanister) and data.draw(st.integers(0, 9)) == 0
    )
    made = plan(messages, measure(messages, target), pinned=pinned)
    digest = as_digest(messages, made)
    shown = present(messages, digest)
    assert shown is not None
    check_pairs(shown)
    places = {one.identity: place for place, one in enumerate(messages)}
    order = [places[one.identity] for one in shown if one.identity in places]
    assert order == sorted(order)
    here = {one.identity: one for one in shown}
    said = [one for one in messages if isinstance(one, UserCanister)]
    for one in messages:
        if isinstance(one, SupervisorCanister) or one.identity in pinned:
            assert here[one.identity] == one
    for one in (said[0], *said[-3:]):
        assert one.identity in here
    # Only what cannot fit otherwise is cut, and never the message to answer.
    assert here[said[-1].identity] == said[-1]
    if made.after <= target:
        assert sum(map(measure_tokens, shown)) <= target + 60 * len(made.shortened) + 200
    whole = sum(map(measure_tokens, messages))
    assert made.after <= whole + 200


@given(histories(), st.integers(100, 5_000))
@settings(deadline=None, max_examples=50)
def test_a_second_plan_covers_at_least_as_much(messages: list[Canister], target: int) -> None:
    first = plan(messages, measure(messages, target))
    later = [*messages, UserCanister(write(300, "more")), AssistantCanister(write(3_000, "answer"))]
    digest = as_digest(messages, first)
    made = plan(later, measure(later, target), covered=first.end, shortened=digest.shortened)
    assert made.end >= first.end
    again = plan(later, measure(later, target), covered=first.end, shortened=digest.shortened)
    assert again == made


def test_what_fits_stays_as_it_is() -> None:
    messages: list[Canister] = [UserCanister(write(300, "question"))]
    messages.append(AssistantCanister(write(300, "answer")))
    made = plan(messages, measure(messages, 10_000))
    assert (made.end, made.kept, made.shortened) == (0, (), {})


def test_repeated_results_come_first_then_old_ones_and_then_a_summary() -> None:
    messages: list[Canister] = [UserCanister(write(100, "question"))]
    for number in range(8):
        call = InvocationCanister(name="look", reply=str(number))
        text = "same" if number in (2, 5) else f"sea {number}"
        messages += [call, ResultCanister(write(3_000, text), invocation=call.identity)]
    results = [one for one in messages if isinstance(one, ResultCanister)]
    whole = sum(map(measure_tokens, messages))
    made = plan(messages, measure(messages, whole - 500))
    assert made.end == 0
    assert made.shortened[results[2].identity] == 0
    assert [one.identity in made.shortened for one in results[-3:]] == [False, False, False]
    assert plan(messages, measure(messages, 1_500)).end > 0


def test_an_error_of_the_last_turn_stays() -> None:
    messages: list[Canister] = [UserCanister(write(100, "question"))]
    for number in range(8):
        call = InvocationCanister(name="look", reply=str(number))
        text = write(3_000, f"sea {number}")
        failed = number == 1
        messages += [call, ResultCanister(text, invocation=call.identity, failed=failed)]
    results = [one for one in messages if isinstance(one, ResultCanister)]
    made = plan(messages, measure(messages, 5_500))
    assert results[0].identity in made.shortened
    assert results[1].identity not in made.shortened


def test_a_plan_without_a_summary_only_shortens() -> None:
    messages: list[Canister] = []
    for number in range(20):
        messages += [UserCanister(write(100, "q")), AssistantCanister(write(900, f"{number}"))]
    assert plan(messages, measure(messages, 1_000)).end > 0
    assert plan(messages, measure(messages, 1_000), summarizes=False).end == 0


@given(histories(), st.lists(st.integers(0, 3), max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_view_that_grows_is_the_view_of_the_whole_history(
    messages: list[Canister], steps: list[int]
) -> None:
    made = plan(messages, measure(messages, 500))
    history = [*messages]
    view = ContextView()
    view.apply(history)
    history.append(as_digest(messages, made))
    for step in steps:
        view.apply(history)
        history += [UserCanister(write(10, "later")) for _ in range(step)]
    assert [*view.apply(history)] == [*ContextView().apply(history)]
    for one, after in pairwise(view.apply(history)):
        assert one is not after


def test_messages_that_must_stay_are_whole_unless_they_are_far_beyond_the_target() -> None:
    messages: list[Canister] = [UserCanister(write(1_500, "first"))]
    for number in range(30):
        messages += [UserCanister(write(60, "q")), AssistantCanister(write(600, f"{number}"))]
    messages += [UserCanister(write(1_500, f"long {number}")) for number in range(3)]
    kept = {messages[0].identity, *(one.identity for one in messages[-3:])}
    # They have 2,000 tokens, and a summary of 200 is added.
    assert not kept & plan(messages, measure(messages, 1_800)).shortened.keys()
    made = plan(messages, measure(messages, 1_000))
    assert kept & made.shortened.keys()
    assert messages[-1].identity not in made.shortened
    # Without a summary they are never cut.
    made = plan(messages, measure(messages, 1_000), summarizes=False)
    assert not kept & made.shortened.keys()


def test_a_pinned_result_keeps_its_call_and_the_other_results_as_a_line() -> None:
    messages: list[Canister] = [UserCanister(write(10, "question"))]
    calls = [InvocationCanister(name="look", reply="r") for _ in range(2)]
    results = [ResultCanister(write(900, one.identity), invocation=one.identity) for one in calls]
    messages += [*calls, *results]
    for number in range(20):
        messages += [UserCanister(write(60, "q")), AssistantCanister(write(600, f"{number}"))]
    pinned = frozenset({results[0].identity})
    made = plan(messages, measure(messages, 1_500), pinned=pinned)
    assert {one.identity for one in (*calls, *results)} <= {*made.kept}
    assert results[0].identity not in made.shortened
