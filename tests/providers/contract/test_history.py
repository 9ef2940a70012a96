"""A conversation as it is sent to a model without calls of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.interfaces import ANTHROPIC
from tests.providers.contract.rig import TOOLS
from tests.providers.laws.test_histories import recall_reply
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    ImageContent,
    ReasoningContent,
    Reference,
    TextualContent,
)
from vibe_llms.providers.contract.history import RewrittenHistory, read_texts
from vibe_llms.providers.contract.objects import FinalAnswer, WrittenCall, read_items
from vibe_llms.providers.contract.prompt import Terms, write_instructions

INSTRUCTIONS = SupervisorCanister.from_text("You have tools.")
HELLO = UserCanister.from_text("Hello")
CLEAN = st.text(st.characters(exclude_categories=["Cs"]))


def rewrite(*canisters: Canister, texts: Mapping[str, bytes] | None = None) -> Sequence[Canister]:
    history = RewrittenHistory(INSTRUCTIONS)
    for canister in canisters:
        assert history.add(canister, texts or {}) == ()
    return history.canisters()


def reported(canisters: Sequence[Canister]) -> list[Any]:
    """Roles and texts; of a result the object."""
    return [
        (type(one).__name__.removesuffix("Canister"), "".join(c.text for c in one.contents
                                                          if isinstance(c, TextualContent)))
        for one in canisters
    ]  # fmt: skip


def result(call: InvocationCanister, text: str = "ok", **more: Any) -> ResultCanister:
    return ResultCanister((TextualContent(text),), invocation=call.identity, **more)


def test_the_schema_follows_the_instructions_of_the_conversation() -> None:
    brief, polite = (SupervisorCanister.from_text(text) for text in ("Brief.", "Polite."))
    assert list(rewrite(brief, HELLO, polite)) == [brief, INSTRUCTIONS, HELLO, polite]
    assert list(rewrite(HELLO)) == [INSTRUCTIONS, HELLO]
    assert list(rewrite(brief)) == [brief, INSTRUCTIONS]
    assert list(rewrite()) == [INSTRUCTIONS]


def test_calls_and_results_are_sent_in_the_order_of_the_calls() -> None:
    one, two = (
        InvocationCanister(name="look", arguments=f'{{"n": {n}}}', reply="r") for n in (1, 2)
    )
    before = AssistantCanister.from_text('I "look".')
    said = rewrite(HELLO, before, one, two, result(two, "b"), result(one, "a", failed=True))
    assert reported(said)[2:] == [
        ("Assistant", '{"type":"final","content":"I \\"look\\"."}'),
        ("Assistant", '{"type":"tool_call","name":"look","arguments":{"n":1}}'),
        ("Assistant", '{"type":"tool_call","name":"look","arguments":{"n":2}}'),
        ("User", '{"type":"tool_result","name":"look","failed":true,"content":"a"}'),
        ("User", '{"type":"tool_result","name":"look","content":"b"}'),
    ]


def test_a_call_without_a_result_was_interrupted() -> None:
    call = InvocationCanister(name="look", reply="r")
    expected = f'{{"type":"tool_result","name":"look","failed":true,"content":"{INTERRUPTED}"}}'
    assert reported(rewrite(HELLO, call))[-1] == ("User", expected)
    assert reported(rewrite(HELLO, call, HELLO))[-2:] == [("User", expected), ("User", "Hello")]
    again = InvocationCanister(name="look", reply="s")
    said = reported(rewrite(HELLO, call, again, result(again)))
    assert [role for role, _ in said] == ["Supervisor", "User", "Assistant", "User", "Assistant",
                                          "User"]  # fmt: skip
    late = reported(rewrite(HELLO, call, HELLO, result(call)))
    assert late[-1] == ("User", '{"type":"tool_result","content":"ok"}')


def test_arguments_that_are_no_object_are_reported_as_text() -> None:
    call = InvocationCanister(name="look\ud800", arguments='{"n": \ud800')
    ((_, text),) = reported(rewrite(call))[1:2]
    assert text == '{"type":"tool_call","name":"look\ufffd","arguments":"{\\"n\\": \ufffd"}'


def test_what_a_result_holds_besides_text_stays_what_it_is() -> None:
    call = InvocationCanister(name="draw")
    picture = ImageContent(b"png", "image/png")
    said = rewrite(call, ResultCanister((picture,), invocation=call.identity))
    assert said[-1].contents == (
        TextualContent('{"type":"tool_result","name":"draw","content":""}'),
        picture,
    )
    empty = rewrite(call, ResultCanister((), invocation=call.identity))
    assert "It returned nothing" in reported(empty)[-1][1]


async def test_only_what_is_rewritten_is_loaded() -> None:
    reference, other = Reference.from_bytes(b"long"), Reference.from_bytes(b"other")
    canisters: list[Canister] = [
        UserCanister((TextualContent(other),)),
        AssistantCanister((TextualContent(reference), ReasoningContent("Hm."))),
        ResultCanister((TextualContent(reference),), invocation="gone"),
        DocumentCanister((TextualContent(other),)),
    ]
    asked: list[Reference] = []

    async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
        asked.extend(references)
        return {one.hash: b"lo\xffng" for one in references}

    texts = await read_texts(canisters, load)
    assert set(asked) == {reference}
    _, asking, answer, returned, document = rewrite(*canisters, texts=texts)
    assert (asking, document) == (canisters[0], canisters[3])
    assert answer.contents == (
        TextualContent('{"type":"final","content":"lo\ufffdng"}'),
        ReasoningContent("Hm."),
    )
    assert "lo\ufffdng" in reported([returned])[0][1]


def test_what_says_nothing_or_is_paused_stays_as_it_is() -> None:
    for canister in (
        AssistantCanister(),
        AssistantCanister((ReasoningContent("Hm."),)),
        AssistantCanister((TextualContent("So"),), ending=Ending("paused")),
    ):
        assert rewrite(HELLO, canister)[-1] is canister
    assert rewrite(AssistantCanister((TextualContent(""),)))[-1].contents == ()


def test_what_was_rewritten_stays_the_same_object() -> None:
    history = RewrittenHistory(INSTRUCTIONS)
    call = InvocationCanister(name="look")
    earlier: Sequence[Canister] = ()
    for canister in (HELLO, call, result(call), AssistantCanister.from_text("So."), HELLO):
        history.add(canister, {})
        if not isinstance(canister, InvocationCanister):
            later = history.canisters()
            assert all(one is other for one, other in zip(earlier, later, strict=False))
            assert len(later) > len(earlier)
            earlier = later


@pytest.mark.parametrize("seed", range(100))
def test_any_history_is_sent_with_every_call_answered_and_nothing_lost(seed: int) -> None:
    history = recall_reply(ANTHROPIC, seed)
    contents = [content for canister in history for content in canister.contents]
    data = [content.data for content in contents if isinstance(content, TextualContent)]
    references = {one.hash: b"text" for one in data if isinstance(one, Reference)}
    said = rewrite(*history, texts=references)
    assert not any(isinstance(one, InvocationCanister | ResultCanister) for one in said)
    results = "".join(text for role, text in report_safely(said) if role == "User")
    calls = {one.identity for one in history if isinstance(one, InvocationCanister)}
    assert results.count('"type":"tool_result"') >= len(calls)
    identities = [one.identity for one in said]
    assert {one.identity for one in history} <= {*identities}


def report_safely(canisters: Sequence[Canister]) -> list[tuple[str, str]]:
    return reported([one for one in canisters if not any(
        isinstance(c, TextualContent) and isinstance(c.data, Reference) for c in one.contents)
    ])  # fmt: skip


@given(CLEAN, st.dictionaries(CLEAN, st.integers(-(2**53), 2**53) | st.none()))
def test_the_description_of_a_reply_reads_back_as_it_was(text: str, arguments: Any) -> None:
    call = InvocationCanister(name="look", arguments=msgspec.json.encode(arguments).decode())
    said = [words for _, words in reported(rewrite(AssistantCanister.from_text(text), call))[1:-1]]
    *answer, again = (item for words in said for item in read_items(words, bool))
    assert answer == ([FinalAnswer(text)] if text else [])
    assert isinstance(again, WrittenCall)
    assert msgspec.json.decode(again.arguments) == arguments


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (Terms(), "write one such object per line"),
        (Terms(several=False), "Call one tool at a time"),
        (Terms(choice="any"), "This reply must call one of the tools"),
        (Terms(choice="none"), "Do not call a tool in this reply"),
        (Terms(choice="look"), 'must call the tool "look"'),
        (Terms(schema={"type": "object"}), 'this JSON Schema: {"type":"object"}'),
    ],
)
def test_the_terms_are_shown_in_words(terms: Terms, words: str) -> None:
    text = write_instructions(TOOLS, terms)
    assert words in text
    assert '{"type":"tool_call","name":"NAME"' in text
    for name in ("look", "listen"):
        assert f'\n{{"name":"{name}","description":"' in text


def test_aliases_are_sent() -> None:
    (tool, _) = TOOLS
    named = msgspec.structs.replace(tool, aliases=("peek",))
    assert '"aliases":["peek"]' in write_instructions([named], Terms())
