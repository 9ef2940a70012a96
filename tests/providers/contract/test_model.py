"""A model with tools by the contract: replies, repairs, terms, caches, and the choice of modes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.contract import BROKEN, CALL, CALLING, FINAL, PROSE, SAID, SAYING, improvise
from tests.fakes.embedded import Contracted
from tests.providers.contract.rig import HELLO, TOOLS, Bench, look, reply_of, script_of, shown
from vibe_llms import open_session
from vibe_llms.base.exceptions import (
    ControlInvalid,
    ProviderError,
    ReplyCut,
    ReplyMalformed,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Ending,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    ResultCanister,
    StopReason,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import (
    Citation,
    ImageContent,
    Issuer,
    NativePayload,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import (
    InvocationChunk,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.contract import model as model_module
from vibe_llms.providers.contract.filter import ReplyFilter
from vibe_llms.providers.contract.model import ContractModel
from vibe_llms.providers.contract.selection import settle_tools
from vibe_llms.providers.interfaces import Loader, TokenCount, TurnContext, refuse_loading
from vibe_llms.providers.scripted.client import ScriptedModel, ScriptedProvider
from vibe_llms.testing import Part, ScriptedReply, check_provider, scripted_model

REASONED = ScriptedReply(parts=(Part(reasoning=("Let ", "me see.")), Part(text=(CALL,))))
SPENT = Usage(1, 2, 3, 4, 5)


def said(reply: Sequence[ReplyCanister]) -> list[object]:
    """What a reply says, without what differs between two of the same."""
    words: list[object] = [
        (one.name, one.arguments)
        if isinstance(one, InvocationCanister)
        else [(type(content).__name__, getattr(content, "data", "")) for content in one.contents]
        for one in reply
    ]
    return [*words, reply[-1].ending]


async def test_a_call_comes_out_like_any_other() -> None:
    bench = Bench(*[reply_of(*CALL)])
    (call,) = await bench.ask()
    assert isinstance(call, InvocationCanister)
    assert (call.name, call.arguments) == ("look", '{"where":"up"}')
    assert call.provenance is not None
    assert call.provenance.module == "vibe_llms.providers.scripted"
    assert (call.provenance.row, call.provenance.response) == ("scripted", "scripted")
    assert call.ending is not None
    assert (call.ending.reason, call.ending.native_reason) == (StopReason.INVOCATIONS, "script")
    started, progress, *_, completed = bench.events
    assert isinstance(started, MessageStartedEvent)
    assert (started.role, started.name) == ("invocation", "look")
    assert isinstance(progress, MessageProgressEvent)
    assert progress.chunk == InvocationChunk('{"where":"up"}')
    assert isinstance(completed, MessageCompletedEvent)
    assert completed.canister == call
    assert not bench.inner.requests[0]["tools"]


async def test_an_answer_streams_as_it_comes() -> None:
    bench = Bench(reply_of('{"type":"final","con', 'tent":"It is', " blu", 'e."', "}"))
    (reply,) = await bench.ask()
    assert isinstance(reply, AssistantCanister)
    assert reply.text == "It is blue."
    chunks = [one.chunk for one in bench.events if isinstance(one, MessageProgressEvent)]
    assert chunks == [TextChunk("It is"), TextChunk(" blu"), TextChunk("e.")]
    bench = Bench(reply_of("It ", "is."))
    await bench.ask()
    chunks = [one.chunk for one in bench.events if isinstance(one, MessageProgressEvent)]
    assert chunks == [TextChunk("It "), TextChunk("is.")]


EVERY = {
    **CALLING,
    # An empty reply is an error before the contract sees it.
    **{name: text for name, (text, _, _) in SAYING.items() if text},
    **PROSE,
    **{name: text for name, text in BROKEN.items() if len(text) < 1000},
}


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY)
async def test_streamed_and_unstreamed_are_the_same(text: str) -> None:
    replies = []
    for chunks, streaming in (((text,), False), (tuple(text), True), ((text,), True)):
        bench = Bench(*[reply_of(*chunks, usage=SPENT)] * 3)
        reply = await bench.ask(streaming=streaming)
        replies.append((said(reply), bench.reported))
        completed = [e.canister for e in bench.events if isinstance(e, MessageCompletedEvent)]
        assert completed == list(reply)
        words = [one.text for one in reply if isinstance(one, AssistantCanister)]
        assert shown(bench.events) == "".join(words)
    assert replies[0] == replies[1] == replies[2]


@pytest.mark.parametrize("text", [CALL, FINAL, f"{FINAL}\n{CALL}", f"```json\n{CALL}\n```"])
async def test_a_reply_cut_anywhere_fails_and_calls_nothing(text: str) -> None:
    await check_cuts(text)


async def check_cuts(text: str) -> None:
    """Cut behind every character: failed once, a part of the words is kept, no call is whole."""
    for place in range(len(text) + 1):
        bench = Bench(ScriptedReply(parts=(Part(text=tuple(text[:place])), Part(cut=True))))
        with pytest.raises(ReplyCut):
            await bench.ask()
        failed = [one for one in bench.events if isinstance(one, MessageFailedEvent)]
        assert len(failed) == 1
        assert bench.events[-1] is failed[0]
        partial = failed[0].partial
        assert isinstance(partial, AssistantCanister)
        assert partial.ending is not None
        assert partial.ending.interrupted
        assert SAID.startswith(shown(bench.events))
        whole = [one.canister for one in bench.events if isinstance(one, MessageCompletedEvent)]
        assert not any(isinstance(one, InvocationCanister) for one in whole)
        kept = "".join(one.text for one in [*whole, partial] if isinstance(one, AssistantCanister))
        assert kept == shown(bench.events)
        if '"name":"look"' in text[:place]:
            assert partial.ending.severed == ("look",)


async def test_calls_that_do_not_wait_for_the_end_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave = ReplyFilter.__exit__

    def finish_anyway(self: Any, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and (received := self._received) and not self._ending:
            self.finish(received, self.conclude())
        leave(self, kind, error, trace)

    monkeypatch.setattr(ReplyFilter, "__exit__", finish_anyway)
    with pytest.raises(AssertionError):
        await check_cuts(CALL)


async def test_an_unreported_failure_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReplyFilter, "__exit__", lambda *_: None)
    with pytest.raises(AssertionError):
        await check_cuts(FINAL)


async def test_a_reply_at_its_length_limit_calls_nothing_that_is_not_whole() -> None:
    bench = Bench(reply_of(CALL[:-3], stop_reason="length"))
    (reply,) = await bench.ask()
    assert isinstance(reply, AssistantCanister)
    assert reply.ending is not None
    assert (reply.ending.reason, reply.ending.severed) == ("length", ("look",))
    assert len(bench.inner.requests) == 1
    assert bench.reported == []
    bench = Bench(reply_of(FINAL[:30], stop_reason="length"))
    (reply,) = await bench.ask()
    assert isinstance(reply, AssistantCanister)
    assert SAID.startswith(reply.text)
    assert reply.text
    bench = Bench(reply_of(f"{CALL}\n{CALL}", stop_reason="length"))
    first, last = await bench.ask()
    assert isinstance(first, InvocationCanister)
    assert isinstance(last, AssistantCanister)


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
async def test_a_broken_reply_is_asked_for_again_and_costs_what_it_cost(text: str) -> None:
    await check_repair(text)


async def check_repair(text: str) -> None:
    """Twice at most; nothing of the tries is shown, and all that they used is reported."""
    bench = Bench(reply_of(text, usage=SPENT), reply_of(text, usage=SPENT), reply_of(CALL))
    (call,) = await bench.ask()
    assert isinstance(call, InvocationCanister)
    assert shown(bench.events) == ""
    assert call.ending is not None
    assert call.ending.usage == SPENT + SPENT + Usage(output_tokens=1)
    assert [notice.subject for notice in bench.notices] == ["contract", "contract"]
    assert "(2 of 2)" in bench.reported[1]
    assert [len(bench.sent(number)) for number in range(3)] == [2, 4, 6]
    *_, (role, words), (other, asked) = bench.sent(1)
    assert (role, words, other) == ("assistant", text, "user")
    assert "not have the required form" in asked
    bench = Bench(*[reply_of(text, usage=SPENT)] * 3, reply_of(CALL))
    (reply,) = await bench.ask()
    assert len(bench.inner.requests) == 3
    assert isinstance(reply, AssistantCanister)
    assert reply.text == text == shown(bench.events)
    assert reply.ending is not None
    assert reply.ending.usage == SPENT + SPENT + SPENT
    assert "plain text" in bench.reported[-1]


async def test_another_number_of_repairs_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for attempts in (2, 4):
        monkeypatch.setattr(model_module, "ATTEMPTS", attempts)
        with pytest.raises(AssertionError):
            await check_repair(CALL[:-1])


async def test_losing_what_a_try_used_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplyFilter, "abandon", lambda self, reply: self._renew())
    with pytest.raises(AssertionError):
        await check_repair(CALL[:-1])


async def test_the_failure_of_a_second_try_keeps_what_the_first_used() -> None:
    limited = ScriptedReply(parts=(Part(error="refused"),))
    bench = Bench(reply_of(CALL[:-1], usage=SPENT), limited)
    with pytest.raises(ProviderError):
        await bench.ask()
    (failed,) = (one for one in bench.events if isinstance(one, MessageFailedEvent))
    assert failed.partial.ending is not None
    assert failed.partial.ending.usage == SPENT


async def test_nothing_is_asked_again_once_words_were_shown() -> None:
    bench = Bench(f"{FINAL}\n{CALL} and words", FINAL)
    (reply,) = await bench.ask()
    assert isinstance(reply, AssistantCanister)
    assert reply.text == SAID
    assert len(bench.inner.requests) == 1
    assert "left out" in bench.reported[0]


async def test_reasoning_passes_through_and_stays_where_a_reply_is_asked_for_again() -> None:
    bench = Bench(REASONED)
    thought, call = await bench.ask()
    assert isinstance(thought, AssistantCanister)
    assert thought.contents == (ReasoningContent("Let me see."),)
    assert isinstance(call, InvocationCanister)
    assert [e.chunk for e in bench.events if isinstance(e, MessageProgressEvent)][:2] == [
        ReasoningChunk("Let "),
        ReasoningChunk("me see."),
    ]
    broken = ScriptedReply(parts=(Part(reasoning="Hm. "), Part(text=CALL[:-1])))
    again = ScriptedReply(parts=(Part(reasoning="Oh."), Part(text=FINAL)))
    bench = Bench(broken, again)
    (reply,) = await bench.ask()
    assert isinstance(reply, AssistantCanister)
    assert reply.contents == (
        ReasoningContent("Hm. "),
        ReasoningContent("Oh."),
        TextualContent(SAID),
    )


def thoughts_of(reply: Sequence[Canister]) -> list[str]:
    """The reasoning of a reply that has nothing else."""
    contents = [content for canister in reply for content in canister.contents]
    thoughts = [str(one.data) for one in contents if isinstance(one, ReasoningContent)]
    assert len(thoughts) == len(contents)
    return thoughts


@pytest.mark.parametrize("text", CALLING.values(), ids=CALLING)
@pytest.mark.parametrize("tag", ["think", "thinking"])
async def test_reasoning_in_the_text_before_a_call_is_reasoning(tag: str, text: str) -> None:
    written = f"<{tag}>\nLook up?\n</{tag}>\n\n{text}"
    for pieces in ((written,), tuple(written), (written[:9], written[9:])):
        bench = Bench(reply_of(*pieces))
        *said, call = await bench.ask()
        assert isinstance(call, InvocationCanister)
        assert (call.name, call.parsed) == ("look", {"where": "up"})
        assert shown(bench.events) == ""
        assert [thought.strip() for thought in thoughts_of(said)] == ["Look up?"]
        assert bench.reported == []


async def test_reasoning_in_the_text_before_words_is_reasoning() -> None:
    bench = Bench("<think>Hm.</think>\n\nThe sky.")
    (said,) = await bench.ask()
    assert isinstance(said, AssistantCanister)
    assert [type(one) for one in said.contents] == [ReasoningContent, TextualContent]
    assert said.text == shown(bench.events) == "The sky."


async def test_reasoning_that_does_not_end_calls_nothing_and_is_not_shown() -> None:
    bench = Bench(f"<think>I could write {CALL}")
    (said,) = await bench.ask()
    assert isinstance(said, AssistantCanister)
    assert said.text == shown(bench.events) == ""


async def test_reasoning_in_the_text_stays_where_a_reply_is_asked_for_again() -> None:
    bench = Bench(f"<think>One.</think>{CALL} I wait.", f"<think>Two.</think>{CALL}")
    *said, call = await bench.ask()
    assert isinstance(call, InvocationCanister)
    assert thoughts_of(said) == ["One.", "Two."]
    assert shown(bench.events) == ""


async def test_what_the_model_within_refuses_to_send_has_no_events() -> None:
    bench = Bench(CALL)

    async def refuse(*_: object) -> tuple[ReplyCanister, ...]:
        raise ControlInvalid("no", control="seed")

    setattr(bench.inner, "converse", refuse)  # noqa: B010
    with pytest.raises(ControlInvalid):
        await bench.ask()
    assert bench.events == []


async def test_without_tools_it_is_the_model_within() -> None:
    bench = Bench(CALL)
    (reply,) = await bench.ask(tools=())
    assert isinstance(reply, AssistantCanister)
    assert reply.text == CALL
    assert bench.sent() == [("user", "What is above?")]
    context = TurnContext(cache=bench.model.produce_cache())
    assert b"tool" not in (await bench.model.preview(HELLO, (), Controls(), context))[:-40]
    plain = await bench.model.count_tokens(HELLO)
    assert plain.tokens < (await bench.model.count_tokens(HELLO, TOOLS)).tokens


async def test_a_model_that_says_nothing_at_all_is_reported() -> None:
    bench = Bench(CALL)

    async def say_nothing(*_: object) -> tuple[ReplyCanister, ...]:
        return ()

    setattr(bench.inner, "converse", say_nothing)  # noqa: B010
    with pytest.raises(ReplyMalformed, match="no reply"):
        await bench.ask()


async def test_a_tool_has_to_be_called_where_that_is_asked_for() -> None:
    bench = Bench(FINAL, "Words.", CALL)
    (call,) = await bench.ask(controls=Controls(tool_choice="any"))
    assert isinstance(call, InvocationCanister)
    assert shown(bench.events) == ""
    assert "must call one of the tools" in bench.sent()[0][1]
    bench = Bench(FINAL, FINAL, FINAL)
    (reply,) = await bench.ask(controls=Controls(tool_choice="any"))
    assert isinstance(reply, AssistantCanister)
    assert reply.text == SAID
    assert "it must call a tool" in bench.reported[-1]


async def test_a_certain_tool_has_to_be_called_where_that_is_asked_for() -> None:
    other = CALL.replace("look", "listen")
    bench = Bench(other, "Words.", CALL)
    (call,) = await bench.ask(controls=Controls(tool_choice="look"))
    assert isinstance(call, InvocationCanister)
    assert call.name == "look"
    assert 'must call the tool "look"' in bench.sent()[0][1]
    bench = Bench(other, other, other)
    (reply,) = await bench.ask(controls=Controls(tool_choice="look"))
    assert isinstance(reply, AssistantCanister)


async def test_no_tool_is_called_where_none_may_be() -> None:
    bench = Bench(CALL, FINAL)
    (reply,) = await bench.ask(controls=Controls(tool_choice="none"))
    assert isinstance(reply, AssistantCanister)
    assert reply.text == SAID
    assert "Do not call a tool" in bench.sent()[0][1]
    bench = Bench(f"{FINAL}{CALL}")
    (reply,) = await bench.ask(controls=Controls(tool_choice="none"))
    assert isinstance(reply, AssistantCanister)
    assert reply.text == SAID


async def test_one_call_at_a_time_is_made_where_that_is_asked_for() -> None:
    bench = Bench(f"{CALL}\n{CALL}")
    (call,) = await bench.ask(controls=Controls(parallel_invocations=False))
    assert isinstance(call, InvocationCanister)
    assert "only the first" in bench.reported[0]
    assert "one tool at a time" in bench.sent()[0][1]


async def test_words_end_where_they_are_to_stop() -> None:
    for text in ('{"type":"final","content":"One\\nTWO\\nthree"}' + CALL, "One\nTWO\nthree"):
        for chunks in ((text,), tuple(text)):
            bench = Bench(reply_of(*chunks))
            (reply,) = await bench.ask(controls=Controls(stop=("\nTWO", "three", "")))
            assert isinstance(reply, AssistantCanister)
            assert reply.text == "One" == shown(bench.events)
            assert reply.ending is not None
            assert (reply.ending.reason, reply.ending.detail) == ("finished", "\nTWO")
            assert "stop" not in bench.inner.requests[0]["controls"]
    bench = Bench(reply_of(*"On\nTW"))
    (reply,) = await bench.ask(controls=Controls(stop=("\nTWO",)))
    assert isinstance(reply, AssistantCanister)
    assert reply.text == "On\nTW"


async def test_the_form_of_an_answer_is_said_in_words() -> None:
    bench = Bench('{"type":"final","content":{"sky": "blue"}}')
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}}
    controls = Controls(temperature=0.5, response_schema=schema, stop=("x",))
    (reply,) = await bench.ask(default_controls=controls)
    assert isinstance(reply, AssistantCanister)
    assert reply.text == '{"sky":"blue"}'
    assert '"properties":{"sky"' in bench.sent()[0][1]
    assert bench.inner.requests[0]["controls"] == {"temperature": 0.5}


async def test_calls_that_a_model_makes_by_itself_are_calls_too() -> None:
    part = Part(invocation="look", arguments={"where": "down"})
    bench = Bench(ScriptedReply(parts=(Part(text="I look. "), part)))
    before, call = await bench.ask()
    assert isinstance(before, AssistantCanister)
    assert before.text == "I look. "
    assert isinstance(call, InvocationCanister)
    assert call.parsed == {"where": "down"}


class Foreign:
    """A model of a third party's, which is_known the public protocol and no more."""

    provider, name, attributes = "foreign", "one", ModelAttributes(tools="contract")

    def __init__(self, *contents: Any) -> None:
        issuer = Issuer("foreign.module", "foreign", "one")
        self.payload = NativePayload(issuer, msgspec.Raw(b'{"signature":"S"}'))
        self.contents = contents or (
            ReasoningContent("Hm.", native=self.payload),
            TextualContent(FINAL[:20], native=self.payload),
            ImageContent(b"png", "image/png"),
            TextualContent(FINAL[20:], citations=(Citation("Book"),)),
        )
        self.heard: list[Sequence[Canister]] = []

    def produce_cache(self) -> object:
        return object()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        pass

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        self.heard.append(canisters)
        handle = context.event_handler
        assert handle is not None
        assert not invokers
        handle(MessageStartedEvent("assistant", message="m", reply="r"))
        for content in self.contents:
            if not isinstance(content, ImageContent):
                kind = TextChunk if isinstance(content, TextualContent) else ReasoningChunk
                handle(MessageProgressEvent(kind(str(content.data)), message="m", reply="r"))
        reply = AssistantCanister(
            self.contents,
            reply="r",
            provenance=Provenance("foreign.module", "foreign", "one", "its-id"),
            ending=Ending("finished", usage=SPENT),
        )
        handle(MessageCompletedEvent(reply, message="m", reply="r"))
        return (reply,)

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        return TokenCount(1, estimated=True)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        return b"{}"


async def test_a_model_of_a_third_party_works_and_loses_nothing() -> None:
    model = Foreign()
    bench = Bench()
    bench.model = ContractModel(model)
    (reply,) = await bench.ask()
    assert isinstance(reply, AssistantCanister)
    thought, words, picture = reply.contents
    assert thought == model.contents[0]
    assert isinstance(thought, ReasoningContent)
    assert thought.native == model.payload
    assert isinstance(words, TextualContent)
    assert (words.data, words.native, words.citations) == (SAID, None, (Citation("Book"),))
    assert isinstance(picture, ImageContent)
    assert reply.provenance is not None
    assert (reply.provenance.module, reply.provenance.response) == ("foreign.module", "its-id")
    assert reply.ending is not None
    assert reply.ending.usage == SPENT
    prose = Foreign(TextualContent("It is", native=model.payload), TextualContent(" so."))
    bench.model = ContractModel(prose)
    (reply,) = await bench.ask()
    assert reply.contents == prose.contents


async def test_a_growing_conversation_hands_the_same_objects_down() -> None:
    model = Foreign(TextualContent(CALL))
    contract = ContractModel(model)
    cache = contract.produce_cache()
    said: list[Canister] = list(HELLO)
    for number in range(3):
        context = TurnContext(cache=cache)
        (call,) = await contract.converse(said, TOOLS, Controls(), context)
        result = ResultCanister((TextualContent(f"r{number}"),), invocation=call.identity)
        said += [call, result, AssistantCanister.from_text("So."), UserCanister.from_text("And?")]
    for earlier, later in zip(model.heard, model.heard[1:], strict=False):
        assert all(one is other for one, other in zip(earlier, later, strict=False))
    kept = cache.inner
    await contract.converse(said, TOOLS, Controls(), TurnContext(cache=cache))
    assert cache.inner is kept
    # Other tools or terms, or another history, are another beginning.
    for tools, terms, history in (
        (TOOLS[:1], Controls(), said),
        (TOOLS[:1], Controls(parallel_invocations=False), said),
        (TOOLS[:1], Controls(parallel_invocations=False), said[:2]),
    ):
        kept, first = cache.inner, model.heard[-1][0]
        await contract.converse(history, tools, terms, TurnContext(cache=cache))
        assert cache.inner is not kept
        assert (model.heard[-1][0] is first) == (history is not said)


class WrappingClient:
    """The client of the scripted provider, with the contract around its models."""

    def __init__(self, inner: Any, event_handler: Any) -> None:
        self.inner, self.event_handler = inner, event_handler

    async def access_model(self, name: str) -> ContractModel:
        return Contracted(ScriptedModel(self.inner, name, improvise), self.event_handler)

    async def survey_models(self) -> Sequence[ContractModel]:
        return [await self.access_model("demo")]

    async def close(self) -> None:
        await self.inner.close()


class WrappingProvider(ScriptedProvider):
    def produce_client(self) -> Any:
        return WrappingClient(super().produce_client(), self.event_handler)


async def test_it_keeps_to_what_every_provider_keeps_to() -> None:
    await check_provider(WrappingProvider, "demo", calls=True)


def test_how_tools_are_offered_follows_the_mode_and_the_model() -> None:
    model = Foreign()

    def settle(own: Any, mode: Any, *, asked: bool = True) -> tuple[object, int]:
        model.attributes = ModelAttributes(tools=own)
        chosen, tools = settle_tools(model, TOOLS, mode, asked=asked)
        return type(chosen), len(tools)

    assert settle("native", "auto") == (Foreign, 2)
    assert settle("none", "auto") == (Foreign, 2)
    assert settle("contract", "auto") == (ContractModel, 2)
    for own in ("native", "contract", "none"):
        assert settle(own, "contract") == (ContractModel, 2)
        assert settle(own, "off") == (Foreign, 0)
    assert settle("native", "native") == (Foreign, 2)
    assert settle("contract", "native", asked=False) == (Foreign, 2)
    with pytest.raises(ControlInvalid, match="does not support native tool calls"):
        settle("contract", "native")
    assert settle_tools(model, (), "contract") == (model, ())


async def test_a_conversation_calls_tools_by_the_contract(tmp_path: Path) -> None:
    model = scripted_model(improvise)
    async with open_session(home=tmp_path) as session:
        conversation = await session.begin(
            model, invokers=[look], tool_mode="contract", supervisor="Be brief."
        )
        turn = await conversation.converse("Look!")
        assert turn.text == "It returned: the sky, up"
        kinds = [type(one).__name__ for one in turn.canisters]
        assert kinds == ["UserCanister", "InvocationCanister", "ResultCanister",
                         "AssistantCanister"]  # fmt: skip
        twin = await conversation.fork()
        assert (await twin.converse("Look again!")).text == "It returned: the sky, up"
        assert "The tools, one per line" in await conversation.preview("And?")
        offered = await conversation.count_tokens()
        quiet = await session.resume(conversation.identity, model=model, tool_mode="off")
        assert (await quiet.count_tokens()).tokens < offered.tokens
    configuration = {"tools": {"mode": "contract"}}
    async with open_session(home=tmp_path, configuration=configuration) as session:
        conversation = await session.begin(model, invokers=[look])
        assert (await conversation.converse("Look!")).text == "It returned: the sky, up"
        native = await session.begin(scripted_model(["Hm."]), invokers=[look], tool_mode="native")
        assert (await native.converse("Look!")).text == "Hm."
        off = await session.begin(model, invokers=[look], tool_mode="off")
        assert (await off.converse("Look!")).text == "I have no tools."
        with pytest.raises(ControlInvalid, match="no tools are offered"):
            await off.converse("Look!", controls=Controls(tool_choice="look"))


async def test_typed_output_comes_with_tools(tmp_path: Path) -> None:
    replies = (CALL, '{"type":"final","content":{"sky":"blue"}}')
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
    for sure in (True, False):
        model = scripted_model(script_of(*replies))
        controls: dict[str, Any] = {"response-schema": {}} if sure else {}
        model.attributes = msgspec.convert({"controls": controls}, ModelAttributes)
        async with open_session(home=tmp_path) as session:
            conversation = await session.begin(model, invokers=[look], tool_mode="contract")
            turn = await conversation.converse("What is above?", output=schema)
        assert turn.output == {"sky": "blue"}
        assert json.dumps(schema, separators=(",", ":"))[:20] in str(model.requests[-1])


async def test_native_calls_are_refused_before_anything_is_kept(tmp_path: Path) -> None:
    async with open_session(home=tmp_path) as session:
        model: Any = Foreign()
        conversation = await session.begin(model, invokers=[look], tool_mode="native")
        with pytest.raises(ControlInvalid, match="set the tool mode to auto or contract"):
            await conversation.converse("Look!")
        assert conversation.canisters == ()
