"""One turn: ask, hear, invoke, ask again, until the model is done or a limit ends it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.documents.making import make_pdf
from tests.fakes.anthropic import KEY, FakeAnthropic
from tests.fakes.interfaces import VENDORS, RecordedInterface, asked
from tests.faults import turning
from tests.pictures import make_png
from vibe_llms.base.configuration import StorageSettings, StreamSettings, ToolMode
from vibe_llms.base.exceptions import (
    AttachmentUnreadable,
    ContextOverflow,
    ProviderError,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.conversations.calls import CallLimits
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.invocation.invokers import Invoker, invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    Turn,
    Usage,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Reference,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import (
    Event,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageStartedEvent,
    Notice,
    NoticeEvent,
    TurnEndedEvent,
)
from vibe_llms.opening import open_session
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TokenCount, TurnContext
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import (
    Part,
    Script,
    ScriptedModel,
    ScriptedReply,
    check_events,
    scripted_model,
)

QUICK = StreamSettings(retries=0)


def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


def calls_of(*arguments: dict[str, Any], **options: Any) -> ScriptedReply:
    """A reply that calls `add` with each of the arguments."""
    return ScriptedReply(
        parts=tuple(Part(invocation="add", arguments=one) for one in arguments), **options
    )


def says(text: str, **options: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=text),), **options)


async def hold(
    *replies: ScriptedReply, tools: dict[str, Any] | None = None, **options: Any
) -> tuple[Turn, list[Event], ScriptedModel]:
    """One turn with a script, and `[tools]` of the configuration."""
    events: list[Event] = []
    model = scripted_model(Script(replies), stream=QUICK)
    async with open_session(configuration={"tools": tools or {}}) as session:
        conversation = await session.begin(
            model, invokers=[add], event_handler=events.append, save=False
        )
        turn = await conversation.converse("Go", **options)
    check_events(events)
    return turn, events, model


def roles(turn: Turn) -> list[str]:
    return [role_of(canister) for canister in turn.canisters]


def ended(events: Sequence[Event]) -> list[ResultCanister]:
    """The results that the end events of calls have."""
    ends = (InvocationCompletedEvent, InvocationFailedEvent)
    return [one.result for one in events if isinstance(one, ends)]


async def test_a_turn_goes_on_until_the_model_is_done() -> None:
    turn, events, model = await hold(
        calls_of({"a": 1, "b": 2}, usage=Usage(1, output_tokens=1)),
        ScriptedReply(
            parts=(Part(text="More. "), Part(invocation="add", arguments={"a": 5})),
            usage=Usage(2, output_tokens=2),
        ),
        ScriptedReply(parts=(Part(text="It is "), Part(text="8.")), usage=Usage(4, 8)),
    )
    assert roles(turn) == [
        "user", "invocation", "result", "assistant", "invocation", "result", "assistant"
    ]  # fmt: skip
    assert turn.text == "It is 8."
    assert turn.usage == Usage(7, 8, output_tokens=3)
    assert turn.stop_reason == StopReason.FINISHED
    assert [one.text for one in turn.canisters if isinstance(one, ResultCanister)] == ["3", "5"]
    assert len(model.requests) == 3
    assert len(model.requests[2]["messages"]) == 6
    assert events[-1] == TurnEndedEvent(
        turn=turn, reason="finished", conversation=events[0].conversation
    )


async def test_a_turn_without_tools_is_one_round_trip() -> None:
    turn, _, model = await hold(says("Hi."))
    assert (turn.text, roles(turn), len(model.requests)) == ("Hi.", ["user", "assistant"], 1)


async def test_results_are_sent_in_the_order_of_the_calls_whatever_their_order_was() -> None:
    first_may_end = asyncio.Event()

    async def slow(number: int) -> str:
        await first_may_end.wait()
        return f"slow {number}"

    async def quick(number: int) -> str:
        first_may_end.set()
        return f"quick {number}"

    parts = tuple(
        Part(invocation=name, arguments={"number": number})
        for number, name in enumerate(["slow", "quick"])
    )
    model = scripted_model(Script((ScriptedReply(parts=parts), says("Done."))))
    async with open_session() as session:
        conversation = await session.begin(model, invokers=[slow, quick], save=False)
        turn = await conversation.converse("Go")
    landed = [one.text for one in turn.canisters if isinstance(one, ResultCanister)]
    assert landed == ["quick 1", "slow 0"]


@pytest.mark.parametrize("limit", [0, 1, 3, 10])
async def test_the_rounds_of_a_turn_are_bounded(limit: int) -> None:
    replies = [calls_of({"a": number}) for number in range(12)]
    # Ten are what the shipped settings allow.
    turn, events, model = await hold(*replies, tools={} if limit == 10 else {"max-rounds": limit})
    assert turn.stop_reason == StopReason.LIMIT
    assert len(model.requests) == limit + 1
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert [one.failed for one in results] == [False] * limit + [True]
    assert f"has had {limit} rounds of tool calls (max-rounds)" in results[-1].text
    assert [one.notice.subject for one in events if isinstance(one, NoticeEvent)] == ["limit"]
    assert [one.failed for one in ended(events)] == [False] * limit + [True]


async def test_the_calls_of_a_turn_are_bounded_and_none_of_a_reply_beyond_runs() -> None:
    turn, events, model = await hold(
        calls_of({"a": 1}, {"a": 2}), calls_of({"a": 3}, {"a": 4}), tools={"max-calls": 3}
    )
    assert turn.stop_reason == StopReason.LIMIT
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert [one.failed for one in results] == [False, False, True, True]
    assert results[-1].text == "The call was not run: the turn has had 3 tool calls (max-calls)."
    assert len(model.requests) == 2
    assert [one.failed for one in ended(events)] == [False, False, True, True]


@pytest.mark.parametrize("together", [True, False])
async def test_identical_calls_in_a_row_end_the_turn(together: bool) -> None:
    same = {"a": 1}
    replies = [calls_of(same, same, same)] if together else [calls_of(same) for _ in range(3)]
    turn, events, _ = await hold(*replies)
    assert turn.stop_reason == StopReason.LIMIT
    assert [one.failed for one in ended(events)] == [together, together, True]
    assert isinstance(turn.canisters[-1], ResultCanister)
    assert (
        "'add' was called 3 times with the same arguments (identical-calls)"
        in turn.canisters[-1].text
    )


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"timeout-seconds": 0.01}, "within 0.01 seconds"),
        ({"shown-bytes": 4}, "9 of 13 bytes left out"),
        ({"kept-bytes": 4}, "returned 13 bytes; at most 4 are kept"),
        ({"parallel": 2}, "2 ran at once"),
        ({}, "3 ran at once"),
    ],
)
async def test_calls_run_within_the_bounds_of_the_configuration(
    tools: dict[str, Any], said: str
) -> None:
    running: list[int] = []

    async def count(a: int) -> str:
        running.append(a)
        await asyncio.sleep(0.02)
        most = len(running)
        await asyncio.sleep(0)
        running.remove(a)
        return f"{most} ran at once"

    turn, _, _ = await hold(
        calls_of({"a": 1}, {"a": 2}, {"a": 3}),
        says("Done."),
        tools=tools,
        invokers=[Invoker.from_function(count, name="add")],
    )
    assert said in next(one.text for one in turn.canisters if isinstance(one, ResultCanister))


async def test_a_blocked_tool_is_reported_once_and_does_not_run() -> None:
    events: list[Event] = []
    tool = structs.replace(Invoker.from_function(add), blocked="look at it first")
    model = scripted_model(Script((calls_of({"a": 1}), says("A."), says("B."))), stream=QUICK)
    async with open_session() as session:
        conversation = await session.begin(
            model, invokers=[tool], event_handler=events.append, save=False
        )
        turn = await conversation.converse("Go")
        await conversation.converse("Again")
    (result,) = [one.text for one in turn.canisters if isinstance(one, ResultCanister)]
    assert result == "The call was not allowed: look at it first."
    reported = [event.notice for event in events if isinstance(event, NoticeEvent)]
    assert reported == [Notice("ensemble", "add: look at it first")]
    check_events(events)


async def test_calls_that_differ_do_not_count_as_identical() -> None:
    replies = [calls_of({"a": number % 2}) for number in range(6)]
    turn, _, _ = await hold(*replies, says("Done."))
    assert (turn.text, turn.stop_reason) == ("Done.", StopReason.FINISHED)


async def check_loop(chance: random.Random) -> None:
    """No random loop of calls goes beyond any limit."""
    limits = {
        "max-rounds": chance.randrange(1, 5),
        "max-calls": chance.randrange(1, 8),
        "identical-calls": chance.randrange(1, 4),
    }
    replies = [
        calls_of(*({"a": chance.randrange(2)} for _ in range(chance.randrange(1, 4))))
        for _ in range(20)
    ]
    turn, events, model = await hold(*replies, tools=limits)
    ran = [one.invocation for one in events if isinstance(one, InvocationCompletedEvent)]
    assert turn.stop_reason == StopReason.LIMIT
    assert len(model.requests) <= limits["max-rounds"] + 1
    assert len(ran) <= limits["max-calls"]
    repeats, previous = 0, ""
    for call in ran:
        repeats = repeats + 1 if call.arguments == previous else 1
        previous = call.arguments
        assert repeats < limits["identical-calls"]


async def check_loops(number: int) -> None:
    chance = random.Random(9)
    for _ in range(number):
        await check_loop(chance)


@pytest.mark.storm
async def test_no_loop_goes_beyond_a_limit(rounds: Callable[[int, int], int]) -> None:
    await check_loops(rounds(60, 100))


async def test_that_check_sees_a_limit_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CallLimits.count

    def forget(self: Any, calls: Sequence[InvocationCanister]) -> str:
        limit = whole(self, calls)
        return limit if "max-rounds" in limit else ""

    monkeypatch.setattr(CallLimits, "count", forget)
    with pytest.raises(AssertionError):
        await check_loops(60)


ELSEWHERE = Invoker.from_declaration("look_up", {"type": "object"}, description="Look it up.")


async def test_a_call_of_a_tool_that_runs_elsewhere_ends_the_turn_and_its_result_continues() -> (
    None
):
    both = (Part(invocation="add", arguments={"a": 1}), Part(invocation="look_up"))
    model = scripted_model(Script((ScriptedReply(parts=both), says("done"))))
    async with open_session() as session:
        conversation = await session.begin(model, invokers=[add, ELSEWHERE])
        turn = await conversation.converse("Go.")
        assert turn.stop_reason == StopReason.INVOCATIONS
        # The call of the tool that runs here has its result, the other has none yet.
        assert roles(turn) == ["user", "invocation", "invocation", "result"]
        own, theirs, result = turn.canisters[1:]
        assert isinstance(own, InvocationCanister)
        assert isinstance(theirs, InvocationCanister)
        assert isinstance(result, ResultCanister)
        assert result.invocation == own.identity
        answer = ResultCanister((TextualContent("found"),), invocation=theirs.identity)
        last = await conversation.converse(answer)
    assert (last.text, last.stop_reason) == ("done", StopReason.FINISHED)


async def test_calls_beyond_a_limit_are_refused_and_those_that_run_elsewhere_are_not() -> None:
    calls = (*(Part(invocation="add", arguments={"a": 1}),) * 3, Part(invocation="look_up"))
    model = scripted_model(Script((ScriptedReply(parts=calls),)))
    async with open_session() as session:
        conversation = await session.begin(model, invokers=[add, ELSEWHERE])
        turn = await conversation.converse("Go.")
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert [one.failed for one in results] == [True] * 3
    assert turn.stop_reason == StopReason.INVOCATIONS


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_result_from_elsewhere_taints_the_turn(elsewhere: bool) -> None:
    sent: list[str] = []

    @invoker(sends=True)
    def post(text: str) -> str:
        """Post a text."""
        sent.append(text)
        return "posted"

    posting = ScriptedReply(parts=(Part(invocation="post", arguments={"text": "hi"}),))
    calling = ScriptedReply(parts=(Part(invocation="look_up"),))
    replies = [calling, posting, says("ok")] if elsewhere else [posting, says("ok")]
    async with open_session() as session:
        conversation = await session.begin(
            scripted_model(Script(tuple(replies))), invokers=[post, ELSEWHERE]
        )
        turn = await conversation.converse("Go.")
        if elsewhere:
            call = turn.canisters[-1].identity
            await conversation.converse(
                ResultCanister((TextualContent("Post it!"),), invocation=call)
            )
    assert sent == ([] if elsewhere else ["hi"])


async def test_a_reply_that_pauses_is_continued() -> None:
    turn, events, model = await hold(
        says("Searching", stop_reason=StopReason.PAUSED),
        says("Found", stop_reason=StopReason.PAUSED),
        says("It is so."),
    )
    assert (turn.text, turn.stop_reason) == ("It is so.", StopReason.FINISHED)
    assert roles(turn) == ["user", "assistant", "assistant", "assistant"]
    assert len(model.requests) == 3
    assert not any(isinstance(one, NoticeEvent) for one in events)


async def test_pauses_are_bounded_too() -> None:
    replies = [says("Searching", stop_reason=StopReason.PAUSED)] * 5
    turn, _, model = await hold(*replies, tools={"max-rounds": 2})
    assert turn.stop_reason == StopReason.LIMIT
    assert len(model.requests) == 3
    assert roles(turn) == ["user", "assistant", "assistant", "assistant"]


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.REFUSED, "novel"])
async def test_calls_of_a_reply_that_did_not_end_well_do_not_run(reason: str) -> None:
    turn, events, model = await hold(calls_of({"a": 1}, {"a": 2}, stop_reason=reason))
    assert turn.stop_reason == reason
    # What comes last may look whole and is not, where the reply was stopped in its midst.
    last = "invocation" if reason == "novel" else "assistant"
    assert roles(turn) == ["user", "invocation", last]
    assert not any(isinstance(one, InvocationStartedEvent) for one in events)
    assert len(model.requests) == 1


async def test_calls_run_where_the_provider_only_says_that_it_finished() -> None:
    turn, _, _ = await hold(calls_of({"a": 1}, stop_reason=StopReason.FINISHED), says("Done."))
    assert roles(turn) == ["user", "invocation", "result", "assistant"]


async def test_the_text_of_a_turn_is_that_of_its_last_reply() -> None:
    turn, _, _ = await hold(
        says("First."), says("Never."), tools={"max-rounds": 0}, controls=Controls()
    )
    assert turn.text == "First."
    turn, _, _ = await hold(
        ScriptedReply(parts=(Part(text="I call."), Part(invocation="add", arguments={"a": 1}))),
        calls_of({"a": 2}),
        tools={"max-rounds": 1},
    )
    assert (turn.text, turn.stop_reason) == ("", StopReason.LIMIT)


# What ends a turn early.


@pytest.fixture
def archive(home: Path) -> DirectoryArchive:
    """An archive that does not wait for the disk."""
    return DirectoryArchive(home, StorageSettings(durability="fast"))


async def fail_with(
    archive: DirectoryArchive, *replies: ScriptedReply
) -> tuple[BaseException, Sequence[Canister], list[Event]]:
    """What a failing turn raises, what it left in the archive, and its events."""
    events: list[Event] = []
    async with open_session(archive=archive) as session:
        model = scripted_model(Script((*replies, says("Works."))), stream=QUICK)
        conversation = await session.begin(model, invokers=[add], event_handler=events.append)
        with pytest.raises(ProviderError) as caught:
            await conversation.converse("Go")
        check_events(events)
        assert isinstance(events[-1], TurnEndedEvent)
        assert events[-1].reason == StopReason.FAILED
        stored = (await archive.restore(conversation.identity)).canisters
        assert stored == conversation.canisters
        assert (await conversation.converse("Again")).text == "Works."
    return caught.value, stored, events


async def test_what_had_arrived_of_a_reply_that_was_cut_is_kept_and_marked(
    archive: DirectoryArchive,
) -> None:
    error, stored, _ = await fail_with(
        archive,
        ScriptedReply(parts=(Part(reasoning="Hm."), Part(text="It is bl"), Part(cut=True))),
    )
    assert isinstance(error, ReplyCut)
    _, partial = stored
    assert isinstance(partial, AssistantCanister)
    assert partial.text == "It is bl"
    assert partial.ending is not None
    assert partial.ending.interrupted
    assert partial.ending.reason == StopReason.FAILED
    assert "cuts the reply" in partial.ending.detail


async def test_calls_of_a_reply_that_was_cut_never_run(archive: DirectoryArchive) -> None:
    _, stored, events = await fail_with(
        archive,
        ScriptedReply(
            parts=(
                Part(text="I call."),
                Part(invocation="add", arguments={"a": 1}),
                Part(invocation="add", arguments={"a": 2}),
                Part(cut=True),
            )
        ),
    )
    assert [role_of(canister) for canister in stored] == [
        "user", "assistant", "invocation", "invocation"
    ]  # fmt: skip
    assert not any(isinstance(one, InvocationStartedEvent) for one in events)
    assert sum(isinstance(one, MessageFailedEvent) for one in events) == 1


async def test_nothing_is_kept_of_a_reply_that_was_refused(archive: DirectoryArchive) -> None:
    error, stored, _ = await fail_with(archive, ScriptedReply(parts=(Part(error="refused"),)))
    assert isinstance(error, RequestRefused)
    assert [role_of(canister) for canister in stored] == ["user"]


async def test_what_went_before_the_failing_reply_is_kept(archive: DirectoryArchive) -> None:
    _, stored, _ = await fail_with(
        archive, calls_of({"a": 1}), ScriptedReply(parts=(Part(text="It"), Part(cut=True)))
    )
    assert [role_of(one) for one in stored] == ["user", "invocation", "result", "assistant"]


class Odd:
    """A model that is none, for what no sound one does."""

    def __init__(self, **ways: Any) -> None:
        self.provider, self.name = "odd", "odd"
        self.attributes = ways.pop("attributes", ModelAttributes())
        self.ways = ways
        self.counted = 0

    def produce_cache(self) -> None:
        return None

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        return None

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> Any:
        return self.ways.get("reply", (AssistantCanister.from_text("Odd."),))

    async def count_tokens(self, *args: Any) -> TokenCount:
        self.counted += 1
        count: TokenCount | Exception = self.ways["count"]
        if isinstance(count, Exception):
            raise count
        return count


async def test_a_model_that_returns_no_reply_is_reported() -> None:
    async with open_session() as session:
        conversation = await session.begin(Odd(reply=()), save=False)  # type: ignore[arg-type]
        with pytest.raises(ReplyMalformed, match="odd: the model returned no reply"):
            await conversation.converse("Go")


async def test_a_reply_without_an_ending_counts_as_finished() -> None:
    async with open_session() as session:
        conversation = await session.begin(Odd(), save=False)  # type: ignore[arg-type]
        turn = await conversation.converse("Go")
    assert turn.stop_reason == StopReason.FINISHED


# What is too long.

SMALL = ModelAttributes(context_tokens=100)
LONG = "x" * 1000


@pytest.mark.parametrize(
    ("prompt", "count", "refused", "counted"),
    [
        ("short", TokenCount(500, estimated=False), False, 0),
        (LONG, TokenCount(101, estimated=False), True, 1),
        (LONG, TokenCount(100, estimated=False), False, 1),
        (LONG, TokenCount(500, estimated=True), False, 1),
        (LONG, TokenCount(500, estimated=True, at_least=100), False, 1),
        (LONG, TokenCount(500, estimated=True, at_least=101), True, 1),
        (LONG, RequestRefused("no counting here", provider="odd"), False, 1),
        (LONG, ContextOverflow("too long", provider="odd"), True, 1),
        ([ImageContent(b"x", "image/png")], TokenCount(500, estimated=False), True, 1),
    ],
)
async def test_what_is_surely_too_long_is_refused_before_it_is_kept(
    prompt: Any, count: Any, refused: bool, counted: int
) -> None:
    model = Odd(attributes=SMALL, count=count)
    events: list[Event] = []
    async with open_session() as session:
        conversation = await session.begin(model, event_handler=events.append, save=False)  # type: ignore[arg-type]
        if refused:
            with pytest.raises(ContextOverflow) as caught:
                await conversation.converse(prompt)
            assert conversation.canisters == ()
            if isinstance(count, TokenCount):
                surely = count.at_least or count.tokens
                assert (caught.value.tokens, caught.value.limit) == (surely, 100)
        else:
            assert (await conversation.converse(prompt)).text == "Odd."
        assert model.counted == counted
        assert isinstance(events[-1], TurnEndedEvent)


async def test_what_is_refused_before_it_is_kept_needs_no_fork(archive: DirectoryArchive) -> None:
    events: list[Event] = []
    model = Odd(attributes=SMALL, count=TokenCount(101, estimated=False))
    async with open_session(archive=archive) as session:
        conversation = await session.begin(model, name="talk", event_handler=events.append)  # type: ignore[arg-type]
        await conversation.converse("Hello")
        before, said = conversation.identity, conversation.canisters
        with pytest.raises(ContextOverflow):
            await conversation.converse(LONG)
        assert (conversation.identity, conversation.name) == (before, "talk")
        assert conversation.canisters == said
        assert (await archive.restore(before)).canisters == said
    notices = [event.notice.subject for event in events if isinstance(event, NoticeEvent)]
    assert notices == ["context"]


async def test_the_last_count_of_a_provider_is_the_base_of_the_estimate() -> None:
    from vibe_llms.messages.canisters import Ending

    reply = AssistantCanister.from_text("Odd.")
    big = AssistantCanister(
        (TextualContent("Big."),), ending=Ending("finished", Usage(70, output_tokens=10))
    )
    model = Odd(attributes=SMALL, count=TokenCount(1, estimated=False), reply=(reply,))
    async with open_session() as session:
        history = [UserCanister.from_text(LONG), big, AssistantCanister.from_text("more")]
        conversation = await session.begin(model, history=history, save=False)  # type: ignore[arg-type]
        await conversation.converse("Go")
        assert model.counted == 1, "80 tokens that were counted are more than the share"
        small = [UserCanister.from_text(LONG), *history[1:]]
        small[1] = AssistantCanister((TextualContent("s"),), ending=Ending("finished", Usage(5)))
        other = await session.begin(model, history=small, save=False)  # type: ignore[arg-type]
        await other.converse("Go")
        assert model.counted == 1


async def test_texts_and_arguments_count_towards_the_estimate(archive: DirectoryArchive) -> None:
    model = Odd(attributes=SMALL, count=TokenCount(1, estimated=False))
    async with open_session(archive=archive) as session:
        call = InvocationCanister(name="f", arguments=LONG)
        history: list[Canister] = [UserCanister.from_text("a"), call]
        conversation = await session.begin(model, history=history, save=False)  # type: ignore[arg-type]
        await conversation.converse("Go")
        assert model.counted == 1
        reference = await archive.put(b"x" * 5000)
        referred = UserCanister((TextualContent(Reference(reference.hash, 5000)),))
        conversation = await session.begin(model, history=[referred])  # type: ignore[arg-type]
        await conversation.converse("Go")
        assert model.counted == 2


async def test_a_request_with_too_many_bytes_is_refused_before_it_is_kept(
    home: Path, fake_anthropic: FakeAnthropic
) -> None:
    rows = {"providers": {"anthropic": {"base-url": fake_anthropic.url}}}
    keys = {"anthropic": KEY}
    async with open_session(home=home, configuration=rows, keys=keys) as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5", name="talk")
        await conversation.converse("Hello")
        before, said = conversation.identity, conversation.canisters
        picture = ImageContent(make_png(30_000_000), "image/png")
        with pytest.raises(RequestTooLarge, match="the request would have"):
            await conversation.converse(UserCanister((picture,)))
        assert (conversation.identity, conversation.name) == (before, "talk")
        assert conversation.canisters == said
        listed = await session.survey_conversations(superseded=True)
        assert [(one.identity, one.name, one.messages) for one in listed] == [(before, "talk", 2)]
        assert len(fake_anthropic.requests) == 1


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (ImageContent(make_png(400_000)[:-20], "image/png"), "the image is damaged: it ends early"),
        (
            FileContent(make_pdf(["words"])[:200], "application/pdf", "plan.pdf"),
            "plan.pdf: it is not a valid PDF file, or it is damaged; copy or export it again",
        ),
    ],
    ids=["image", "pdf"],
)
async def test_a_damaged_image_or_pdf_is_refused_before_it_is_sent_or_kept(
    home: Path, fake_anthropic: FakeAnthropic, damaged: Content, words: str
) -> None:
    rows = {"providers": {"anthropic": {"base-url": fake_anthropic.url}}}
    async with open_session(home=home, configuration=rows, keys={"anthropic": KEY}) as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5")
        await conversation.converse("Hello")
        said = conversation.canisters
        with pytest.raises(AttachmentUnreadable, match=words):
            await conversation.converse([damaged, "What is this?"])
        assert conversation.canisters == said
        assert len(fake_anthropic.requests) == 1
        whole = ImageContent(make_png(), "image/png")
        await conversation.converse([whole, "And this?"])
        assert len(fake_anthropic.requests) == 2


async def test_of_several_images_the_damaged_one_is_named(
    home: Path, fake_anthropic: FakeAnthropic
) -> None:
    images = [ImageContent(data, "image/png") for data in (make_png(), make_png()[:-1])]
    rows = {"providers": {"anthropic": {"base-url": fake_anthropic.url}}}
    async with open_session(home=home, configuration=rows, keys={"anthropic": KEY}) as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5")
        with pytest.raises(AttachmentUnreadable, match="image 2 of 2: the image is damaged"):
            await conversation.converse([*images, "What are these?"])
        assert fake_anthropic.requests == []


async def test_a_history_that_the_provider_finds_too_long_is_withdrawn_into_a_fork(
    archive: DirectoryArchive,
) -> None:
    overflow = ScriptedReply(parts=(Part(error="context-overflow"),), when="much")
    events: list[Event] = []
    async with open_session(archive=archive) as session:
        model = scripted_model(Script((overflow, *[says("Works.")] * 3)), stream=QUICK)
        conversation = await session.begin(model, name="talk", event_handler=events.append)
        await conversation.converse("Hello")
        before = conversation.identity
        with pytest.raises(ContextOverflow):
            await conversation.converse("far too much")
        assert conversation.identity != before
        assert [one.text for one in conversation.canisters if isinstance(one, UserCanister)] == [
            "Hello"
        ]
        notices = [one.notice for one in events if isinstance(one, NoticeEvent)]
        assert [notice.subject for notice in notices] == ["fork", "context"]
        assert (await conversation.converse("less")).text == "Works."
        check_events(events)
        assert [one.name for one in await session.survey_conversations()] == ["talk"]
        old = (await archive.restore(before)).canisters
        assert old[:2] == conversation.canisters[:2]


# A crash of the process in the middle of a turn (promise U7, lightly).


async def check_crashes(
    home: Path, server: FakeAnthropic, kills: int, *, careless: bool = False
) -> None:
    """However often the process is killed, no call has an effect twice, and all goes on."""
    async with open_session(home=home, configuration=turning.CONFIGURATION) as session:
        conversation = await session.begin("scripted/demo")
        await conversation.converse("Hello!")
    identity = conversation.identity
    for seed in range(kills):
        turning.kill_in_turn(home, identity, seed, careless=careless)
    journal = home / turning.JOURNAL
    effects = journal.read_text().split() if journal.exists() else []
    assert len(effects) > kills, "the kills came too early to prove anything"
    assert len(set(effects)) == len(effects)
    configuration = {"providers": {"anthropic": {"base-url": server.url}}}
    async with open_session(
        home=home, configuration=configuration, keys={"anthropic": KEY}
    ) as session:
        conversation = await session.resume(identity, model="anthropic/claude-sonnet-4-5")
        before = conversation.canisters
        calls = {one.identity for one in before if isinstance(one, InvocationCanister)}
        answered = [one.invocation for one in before if isinstance(one, ResultCanister)]
        assert len(answered) == len(set(answered))
        assert set(answered) < calls, "no call was interrupted by a kill"
        turn = await conversation.converse("And now?")
        assert turn.text == "Hello."
    # The server refuses calls that are not answered; what is stored is not answered for that.
    assert server.refusals == []
    assert INTERRUPTED.encode() in server.requests[-1].body
    assert conversation.canisters[: len(before)] == before
    assert journal.read_text().split() == effects


@pytest.mark.storm
async def test_no_call_has_its_effect_twice_across_crashes(
    home: Path, fake_anthropic: FakeAnthropic, rounds: Callable[[int, int], int]
) -> None:
    await check_crashes(home, fake_anthropic, rounds(10, 300))


async def test_that_check_sees_calls_that_run_before_they_are_kept(
    home: Path, fake_anthropic: FakeAnthropic
) -> None:
    with pytest.raises(AssertionError, match="assert"):
        await check_crashes(home, fake_anthropic, 10, careless=True)


# Calls by other names of a tool.


@pytest.mark.parametrize("mode", ["native", "contract"])
@pytest.mark.parametrize("called", ["plus", "ADD-UP"])
@pytest.mark.parametrize("interface", VENDORS.values(), ids=list(VENDORS))
async def test_a_call_by_another_name_is_stored_under_the_canonical_one(
    interface: RecordedInterface, called: str, mode: ToolMode, tmp_path: Path
) -> None:
    tool = Invoker.from_function(add, name="sums/add_up", aliases=["plus", "add up"])
    events: list[Event] = []
    said = f'{{"type":"tool_call","name":"{called}","arguments":{{"a":1}}}}'
    with interface.serve() as server:
        async with open_session(
            home=tmp_path,
            configuration=interface.configure(server),
            keys=interface.keys(server),
            event_handler=events.append,
        ) as session:
            conversation = await session.begin(interface.address, invokers=[tool], tool_mode=mode)
            call = interface.tools((called, '{"a":1}'))
            done = interface.texts('{"type":"final","content":"One."}')
            server.replies = [call if mode == "native" else interface.texts(said), done]
            turn = await conversation.converse("Go")
            stored = await session.archive.restore(conversation.identity)
        sent = asked(server)[-1].body
    for canisters in (turn.canisters, stored.canisters):
        (kept,) = [one for one in canisters if isinstance(one, InvocationCanister)]
        assert kept.name == "sums/add_up"
    assert [one.text for one in turn.canisters if isinstance(one, ResultCanister)] == ["1"]
    for event in events:
        match event:
            case MessageStartedEvent(role="invocation", name=name):
                assert name == "sums/add_up"
            case MessageCompletedEvent(canister=InvocationCanister(name=name)):
                assert name == "sums/add_up"
            case InvocationStartedEvent(invocation=invocation):
                assert invocation.name == "sums/add_up"
    check_events(events)
    if mode == "native":
        # The model sees its call under the name that it was offered.
        assert (b"sums__add_up" in sent, called.encode() in sent) == (True, False)


async def test_a_call_by_an_alias_that_is_cut_has_the_canonical_name(tmp_path: Path) -> None:
    tool = Invoker.from_function(add, aliases=["plus"])
    reply = ScriptedReply(parts=(Part(invocation="plus", arguments="{"), Part(cut=True)))
    events: list[Event] = []
    async with open_session(home=tmp_path, event_handler=events.append) as session:
        model = scripted_model(reply, stream=QUICK)
        conversation = await session.begin(model, invokers=[tool])
        with pytest.raises(ReplyCut):
            await conversation.converse("Go")
    started = [event.name for event in events if isinstance(event, MessageStartedEvent)]
    assert started == ["add"]
    check_events(events)


async def test_a_call_of_no_tool_keeps_its_name() -> None:
    reply = ScriptedReply(parts=(Part(invocation="minus"),))
    turn, _, _ = await hold(reply, says("Well."))
    assert [one.name for one in turn.canisters if isinstance(one, InvocationCanister)] == ["minus"]
