"""Messages that the user adds while a turn runs: in order, exactly once, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import KEY, FakeAnthropic
from tests.pictures import make_png
from vibe_llms.base.exceptions import (
    AttachmentUnreadable,
    ContextOverflow,
    OutputInvalid,
    ProviderError,
    RequestError,
    SteeringRefused,
)
from vibe_llms.conversations.context_window import measure_size
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import start_of_turn
from vibe_llms.conversations.hooks import HookContext, HookRequest, TurnHook
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.memory.transcript import read_turn
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    StopReason,
    Turn,
    UserCanister,
    role_of,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import FileContent, ImageContent, TextualContent
from vibe_llms.messages.events import (
    Event,
    MessageCompletedEvent,
    MessageProgressEvent,
    NoticeEvent,
    SteeringDeliveredEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
    TurnEndedEvent,
)
from vibe_llms.opening import open_session
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TokenCount
from vibe_llms.testing import (
    Part,
    Script,
    ScriptedModel,
    ScriptedReply,
    check_events,
    scripted_model,
)


def says(text: str, **options: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=text),), **options)


CALLS = ScriptedReply(parts=(Part(invocation="work", arguments={}),))


class Rig:
    """A conversation whose tool `work` calls `during`, and all that it shows."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.events: list[Event] = []
        self.during: Callable[[], Any] = lambda: None
        self.conversation: Conversation

    async def work(self) -> str:
        """Work."""
        result = self.during()
        if result is not None:
            await result
        return "done"

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def steers(self, *texts: str) -> Callable[[], Any]:
        """A tool's work that adds messages."""

        async def add() -> None:
            for text in texts:
                await self.conversation.steer(text)

        return add

    def told(self) -> list[list[str]]:
        """The roles and the texts of all messages in each request."""
        return [[str(one) for one in request["messages"]] for request in self.model.requests]

    def said(self) -> list[tuple[str, str]]:
        return shape(self.conversation.canisters)

    def notices(self) -> list[str]:
        return [one.notice.text for one in self.events if isinstance(one, NoticeEvent)]


def shape(canisters: Sequence[Canister]) -> list[tuple[str, str]]:
    return [
        (
            f"steered {role_of(one)}" if getattr(one, "steered", False) else role_of(one),
            getattr(one, "text", ""),
        )
        for one in canisters
    ]


@asynccontextmanager
async def begun(
    *replies: ScriptedReply, tools: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Rig]:
    rig = Rig(scripted_model(Script(replies)))
    options.setdefault("save", True)
    async with open_session(configuration={"tools": tools or {}}) as session:
        rig.conversation = await session.begin(
            rig.model, invokers=[rig.work], event_handler=rig.handle, **options
        )
        yield rig
    check_events(rig.events)


async def test_a_message_reaches_the_model_after_the_results() -> None:
    async with begun(CALLS, says("Yes.")) as rig:
        rig.during = rig.steers("In French.")
        turn = await rig.conversation.converse("Go")
        assert rig.said() == [
            ("user", "Go"), ("invocation", ""), ("result", "done"),
            ("steered user", "In French."), ("assistant", "Yes."),
        ]  # fmt: skip
        assert shape(turn.canisters) == rig.said()
        assert turn.text == "Yes."
        assert "In French." in rig.told()[1][-1]
        assert rig.conversation.queued == ()
        kinds = [type(one) for one in rig.events]
        assert kinds.count(SteeringQueuedEvent) == kinds.count(SteeringDeliveredEvent) == 1


async def test_two_messages_keep_their_order() -> None:
    async with begun(CALLS, says("Yes.")) as rig:
        rig.during = rig.steers("One.", "Two.")
        await rig.conversation.converse("Go")
        assert rig.said()[3:5] == [("steered user", "One."), ("steered user", "Two.")]
        assert len(rig.model.requests) == 2


async def test_a_message_during_the_last_reply_continues_the_turn() -> None:
    async with begun(says("First."), says("Second.")) as rig:
        added: list[asyncio.Task[str]] = []

        def handle(event: Event) -> None:
            rig.handle(event)
            if isinstance(event, MessageProgressEvent) and not added:
                added.append(asyncio.ensure_future(rig.conversation.steer("Wait.")))

        turn = await rig.conversation.converse("Go", event_handler=handle)
        assert await added[0] == turn.canisters[2].identity
        assert shape(turn.canisters) == [
            ("user", "Go"), ("assistant", "First."),
            ("steered user", "Wait."), ("assistant", "Second."),
        ]  # fmt: skip
        assert turn.text == "Second."
        assert sum(isinstance(one, TurnEndedEvent) for one in rig.events) == 1


async def test_a_message_can_be_taken_back_until_it_is_sent() -> None:
    async with begun(CALLS, says("Yes.")) as rig:
        identities: list[str] = []

        async def work() -> None:
            identities.append(await rig.conversation.steer("One."))
            identities.append(await rig.conversation.steer("Two."))
            assert [one.text for one in rig.conversation.queued] == ["One.", "Two."]
            assert (await rig.conversation.take_back(identities[0])).text == "One."
            assert [one.text for one in rig.conversation.queued] == ["Two."]

        rig.during = work
        await rig.conversation.converse("Go")
        assert ("steered user", "One.") not in rig.said()
        assert ("steered user", "Two.") in rig.said()
        for identity in identities:
            with pytest.raises(SteeringRefused, match="sent or taken back"):
                await rig.conversation.take_back(identity)
        assert [type(one) for one in rig.events if "Steering" in type(one).__name__] == [
            SteeringQueuedEvent, SteeringQueuedEvent,
            SteeringWithdrawnEvent, SteeringDeliveredEvent,
        ]  # fmt: skip


async def test_without_a_turn_a_message_is_refused() -> None:
    async with begun(says("Yes.")) as rig:
        with pytest.raises(SteeringRefused, match="converse"):
            await rig.conversation.steer("Hello")
        await rig.conversation.converse("Go")
        with pytest.raises(SteeringRefused, match="converse"):
            await rig.conversation.steer("Hello")
        assert rig.conversation.queued == ()


@pytest.mark.parametrize(
    "prompt", ["", " ", DocumentCanister.from_text("x"), [UserCanister.from_text("a")] * 2]
)
async def test_only_one_message_of_the_user_is_added(prompt: Any) -> None:
    async with begun(CALLS, says("Yes.")) as rig:

        async def work() -> None:
            with pytest.raises(RequestError, match=r"empty|one message"):
                await rig.conversation.steer(prompt)

        rig.during = work
        await rig.conversation.converse("Go")
        assert len(rig.conversation.canisters) == 4


async def test_what_the_model_does_not_accept_is_refused_at_once() -> None:
    damaged = ImageContent(make_png()[:40], "image/png")
    async with begun(CALLS, says("Yes.")) as rig:

        async def work() -> None:
            with pytest.raises(AttachmentUnreadable):
                await rig.conversation.steer([damaged, "See?"])

        rig.during = work
        turn = await rig.conversation.converse("Go")
        assert turn.stop_reason == StopReason.FINISHED
        assert rig.conversation.queued == ()


async def test_a_message_that_became_too_long_is_withdrawn_and_the_turn_goes_on() -> None:
    async with begun(CALLS, says("Yes.")) as rig:

        async def count(canisters: Sequence[Canister], *_: object) -> TokenCount:
            return TokenCount(measure_size(canisters), estimated=False)

        model: Any = rig.model
        model.attributes, model.count_tokens = ModelAttributes(context_tokens=2000), count
        rig.during = rig.steers("word " * 20_000, "Short.")
        turn = await rig.conversation.converse("Go")
        assert turn.text == "Yes."
        withdrawn = [one for one in rig.events if isinstance(one, SteeringWithdrawnEvent)]
        assert len(withdrawn) == 1
        assert "tokens" in withdrawn[0].reason
        assert ("steered user", "Short.") in rig.said()


async def test_messages_remain_queued_after_a_cancelled_turn_and_go_before_the_next_prompt() -> (
    None
):
    async with begun(CALLS, says("Yes."), says("More.")) as rig:
        waits = asyncio.Event()

        async def work() -> None:
            await rig.conversation.steer("One.")
            await rig.conversation.steer("Two.")
            waits.set()
            await asyncio.Event().wait()

        rig.during = work
        task = asyncio.ensure_future(rig.conversation.converse("Go"))
        await waits.wait()
        await rig.conversation.cancel()
        assert (await task).stop_reason == StopReason.INTERRUPTED
        assert [one.text for one in rig.conversation.queued] == ["One.", "Two."]
        assert any("2 queued messages were not sent" in one for one in rig.notices())
        assert isinstance(rig.events[-1], TurnEndedEvent)
        await rig.conversation.take_back(rig.conversation.queued[0].identity)
        before = len(rig.conversation.canisters)
        turn = await rig.conversation.converse("Next")
        assert shape(turn.canisters) == [("user", "Two."), ("user", "Next"), ("assistant", "Yes.")]
        assert rig.conversation.queued == ()
        assert start_of_turn(rig.conversation.canisters) == before


async def test_messages_remain_queued_after_a_failed_turn() -> None:
    fails = ScriptedReply(parts=(Part(error="refused"),))
    async with begun(CALLS, fails, says("Yes.")) as rig:
        begins = asyncio.Event()

        async def converse(*arguments: Any, **options: Any) -> Any:
            if len(rig.model.requests) == 1:
                await rig.conversation.steer("Late.")
            return await original(*arguments, **options)

        model: Any = rig.model
        original, model.converse = rig.model.converse, converse
        begins.set()
        with pytest.raises(ProviderError):
            await rig.conversation.converse("Go")
        assert [one.text for one in rig.conversation.queued] == ["Late."]
        turn = await rig.conversation.converse()
        assert shape(turn.canisters) == [("user", "Late."), ("assistant", "Yes.")]


async def test_a_queued_message_moves_to_the_conversation_after_an_undo() -> None:
    async with begun(CALLS, says("Yes.")) as rig:
        waits = asyncio.Event()

        async def work() -> None:
            await rig.conversation.steer("One.")
            waits.set()
            await asyncio.Event().wait()

        rig.during = work
        task = asyncio.ensure_future(rig.conversation.converse("Go"))
        await waits.wait()
        await rig.conversation.cancel()
        await task
        undone = await rig.conversation.undo()
        assert [one.text for one in undone.queued] == ["One."]
        assert rig.conversation.queued == ()
        assert undone.canisters == ()


@pytest.mark.parametrize("reason", ["length", "refused", "something-new"])
async def test_a_message_continues_a_turn_whatever_the_reason_of_its_reply(reason: str) -> None:
    async with begun(CALLS, says("Cut", stop_reason=reason), says("Yes.")) as rig:
        model: Any = rig.model
        original = rig.model.converse

        async def converse(*arguments: Any, **options: Any) -> Any:
            if len(rig.model.requests) == 1:
                await rig.conversation.steer("Go on.")
            return await original(*arguments, **options)

        model.converse = converse
        turn = await rig.conversation.converse("Go")
        assert (turn.text, turn.stop_reason) == ("Yes.", "finished")


async def test_nothing_comes_between_a_paused_reply_and_its_continuation() -> None:
    paused = says("Half", stop_reason="paused")
    async with begun(paused, says("Whole."), says("Yes.")) as rig:
        model: Any = rig.model
        original = rig.model.converse

        async def converse(*arguments: Any, **options: Any) -> Any:
            if not rig.model.requests:
                await rig.conversation.steer("And?")
            return await original(*arguments, **options)

        model.converse = converse
        turn = await rig.conversation.converse("Go")
        assert [one for one, _ in shape(turn.canisters)] == [
            "user", "assistant", "assistant", "steered user", "assistant"
        ]  # fmt: skip


async def test_a_limit_ends_the_turn_and_the_message_stays_queued() -> None:
    async with begun(CALLS, CALLS, says("Yes."), tools={"max-rounds": 1}) as rig:
        count = 0

        async def converse(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == 2:
                await rig.conversation.steer("Late.")
            return await original(*arguments, **options)

        model: Any = rig.model
        original, model.converse = rig.model.converse, converse
        turn = await rig.conversation.converse("Go")
        assert turn.stop_reason == StopReason.LIMIT
        assert [one.text for one in rig.conversation.queued] == ["Late."]
        assert len(rig.model.requests) == 2


async def test_undo_undoes_the_whole_turn_and_regenerate_keeps_the_prompt() -> None:
    async with begun(says("Hello."), CALLS, says("First."), says("Second."), says("Again.")) as rig:
        await rig.conversation.converse("Hi")
        rig.during = rig.steers("In French.")
        await rig.conversation.converse("Go")
        start = start_of_turn(rig.conversation.canisters)
        assert start == 2
        again = await rig.conversation.regenerate()
        assert shape(again.canisters)[2:] == [("user", "Go")]
        undone = await again.undo()
        assert shape(undone.canisters) == [("user", "Hi"), ("assistant", "Hello.")]


async def test_a_turn_after_one_that_ended_with_a_steered_message_is_undone_alone() -> None:
    prompt, steered = UserCanister.from_text("a"), UserCanister.from_text("b")
    history = [prompt, UserCanister(steered.contents, steered=True), UserCanister.from_text("c")]
    assert start_of_turn(history) == 2
    assert start_of_turn(history[:2]) == 0


async def test_memory_learns_what_the_user_added() -> None:
    async with begun(CALLS, says("Yes.")) as rig:
        rig.during = rig.steers("My cat is Tom.")
        turn = await rig.conversation.converse("Go")
    spoken = read_turn(turn.canisters)
    assert [one.text for one in spoken.user] == ["Go", "My cat is Tom."]


async def test_a_typed_output_is_that_of_the_last_reply() -> None:
    async with begun(says('{"value": 1}'), says('{"value": 2}')) as rig:
        added: list[Any] = []

        def handle(event: Event) -> None:
            rig.handle(event)
            if isinstance(event, MessageCompletedEvent) and not added:
                added.append(asyncio.ensure_future(rig.conversation.steer("More.")))

        turn = await rig.conversation.converse("Go", output=int, event_handler=handle)
        assert turn.output == 2


async def test_a_message_while_the_output_is_read_continues_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vibe_llms.conversations.outputs import OutputForm

    async with begun(says('{"value": 1}'), says('{"value": 2}')) as rig:
        original = OutputForm.run

        async def run(self: OutputForm, text: str) -> object:
            if "1" in text:
                await rig.conversation.steer("More.")
            return await original(self, text)

        monkeypatch.setattr(OutputForm, "run", run)
        turn = await rig.conversation.converse("Go", output=int)
        assert turn.output == 2


async def test_corrections_are_still_limited() -> None:
    async with begun(*(says("x") for _ in range(4))) as rig:
        added: list[Any] = []

        def handle(event: Event) -> None:
            rig.handle(event)
            if isinstance(event, MessageCompletedEvent) and not added:
                added.append(asyncio.ensure_future(rig.conversation.steer("More.")))

        with pytest.raises(OutputInvalid, match="3 attempts"):
            await rig.conversation.converse("Go", output=int, event_handler=handle)
        roles = [one for one, _ in rig.said()]
        assert roles.count("steered user") == 1
        assert roles.count("assistant") == 3


@pytest.mark.parametrize("tainted", [False, True])
async def test_a_file_that_the_user_adds_taints_the_turn(tainted: bool) -> None:
    asked: list[ApprovalRequest] = []
    sends = ScriptedReply(parts=(Part(invocation="send"),))
    model = scripted_model(Script((CALLS, sends, says("Yes."))))

    def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return Decision.DENY

    async def work() -> str:
        file = [FileContent(b"Text of others.", "text/plain", "notes.txt")] if tainted else []
        await conversation.steer([*file, "See."])
        return "done"

    tools = [
        Invoker.from_function(work),
        Invoker.from_function(lambda: "sent", name="send", sends=True, approval="allow"),
    ]
    async with open_session(approver=approve) as session:
        conversation = await session.begin(model, invokers=tools)
        await conversation.converse("Go")
    assert bool(asked) == tainted


class SlowHook(TurnHook):
    """A hook that adds messages before the turn and after it."""

    name = "slow"

    def __init__(self) -> None:
        self.conversation: Conversation
        self.refused: list[str] = []

    async def before_turn(self, request: HookRequest) -> HookContext:
        await self.conversation.steer("Early.")
        return HookContext()

    async def record_turn(self, request: HookRequest, turn: Turn) -> None:
        try:
            await self.conversation.steer("Late.")
        except SteeringRefused as error:
            self.refused.append(str(error))


async def test_a_message_before_the_first_request_goes_with_it_and_after_the_last_is_refused() -> (
    None
):
    hook = SlowHook()
    async with begun(says("Yes."), hooks=[hook]) as rig:
        hook.conversation = rig.conversation
        turn = await rig.conversation.converse("Go")
        assert shape(turn.canisters) == [
            ("user", "Go"), ("steered user", "Early."), ("assistant", "Yes.")
        ]  # fmt: skip
        assert len(hook.refused) == 1
        assert rig.conversation.queued == ()


async def test_an_anthropic_server_accepts_the_history(
    home: Path, fake_anthropic: FakeAnthropic
) -> None:
    configuration = {"providers": {"anthropic": {"base-url": fake_anthropic.url}}}
    async with open_session(
        home=home, configuration=configuration, keys={"anthropic": KEY}
    ) as session:
        model = scripted_model(Script((CALLS, says("Yes."))))
        rig = Rig(model)
        rig.conversation = await session.begin(model, invokers=[rig.work])
        rig.during = rig.steers("One.", "Two.")
        await rig.conversation.converse("Go")
        await rig.conversation.switch("anthropic/claude-sonnet-4-5")
        turn = await rig.conversation.converse("And now?")
        assert turn.text == "Hello."
    assert fake_anthropic.refusals == []


def test_the_mark_is_stored_and_older_lines_have_none() -> None:
    message = UserCanister((TextualContent("x"),), steered=True)
    line = encode_canister(message)
    assert b'"steered":true' in line
    assert decode_canister(line) == message
    assert b"steered" not in encode_canister(UserCanister.from_text("x"))


async def test_a_tool_of_another_thread_can_steer_through_the_synchronous_face() -> None:
    from vibe_llms import synchronous

    def hold() -> list[tuple[str, str]]:
        with synchronous.open_session() as session:

            def work() -> str:
                """Work."""
                identity = conversation.steer("One.")
                conversation.steer("Two.")
                assert [one.text for one in conversation.queued] == ["One.", "Two."]
                conversation.take_back(identity)
                return "done"

            conversation = session.begin(
                scripted_model(Script((CALLS, says("Yes.")))), invokers=[work]
            )
            conversation.converse("Go")
            return shape(conversation.canisters)

    assert ("steered user", "Two.") in await asyncio.to_thread(hold)


class Steps:
    """Counts the rounds of the event loop that a turn takes, and makes a call in one of them."""

    def __init__(self, step: int, call: Callable[[], Any]) -> None:
        self.step, self.call, self.count = step, call, 0
        self.pending: list[asyncio.Task[Any]] = []

    async def follow(self, task: asyncio.Task[Any]) -> None:
        while not task.done():
            if self.count == self.step:
                self.pending.append(asyncio.ensure_future(self.call()))
            self.count += 1
            await asyncio.sleep(0)


async def check_step(folder: Path, step: int, *, cancels: bool) -> tuple[bool, str]:
    """Add a message at a step of a turn, which may be cancelled soon after; return its fate."""
    replies = (CALLS, says("First."), says("Second."), says("Third."))
    events: list[Event] = []
    rig = Rig(scripted_model(Script(replies)))
    fast = {"storage": {"durability": "fast"}}
    async with open_session(home=folder, configuration=fast) as session:
        conversation = rig.conversation = await session.begin(
            rig.model, invokers=[rig.work], event_handler=events.append
        )
        task = asyncio.ensure_future(conversation.converse("Go"))
        steps = Steps(step, lambda: conversation.steer("Added."))
        await steps.follow(task) if not cancels else await asyncio.wait(
            [asyncio.ensure_future(steps.follow(task)), asyncio.ensure_future(_cancel(steps, task))]
        )
        with suppress(asyncio.CancelledError):
            await task
        accepted = refused = ""
        for one in steps.pending:
            try:
                accepted = await one
            except SteeringRefused as error:
                refused = str(error)
        stored = await session.archive.restore(conversation.identity)
        kept = [one.identity for one in stored.canisters]
        queued = [one.identity for one in conversation.queued]
        if accepted:
            # Exactly one of the two, once.
            assert [*kept, *queued].count(accepted) == 1, (step, shape(stored.canisters), queued)
            if queued:
                assert any(
                    isinstance(one, NoticeEvent) and one.notice.subject == "steering"
                    for one in events
                )
                await conversation.converse("Next")
                again = [one.identity for one in conversation.canisters]
                assert again.count(accepted) == 1
        else:
            assert refused or not steps.pending
        check_events(events)
        return bool(
            steps.pending
        ), "sent" if accepted in kept else "queued" if queued else "refused"


async def _cancel(steps: Steps, task: asyncio.Task[Any]) -> None:
    while not steps.pending and not task.done():
        await asyncio.sleep(0)
    for _ in range((steps.step % 10) ** 3):
        await asyncio.sleep(0)
    task.cancel()


@pytest.mark.storm
@pytest.mark.parametrize("cancels", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_at_every_step_of_a_turn_a_message_is_sent_once_or_stays_or_is_refused(
    tmp_path: Path, rounds: Callable[[int, int], int], cancels: bool
) -> None:
    fates: set[str] = set()
    step, missing = 0, 0
    stride = rounds(3, 1)
    while missing < 3:
        began, fate = await check_step(tmp_path / str(step), step, cancels=cancels)
        missing = 0 if began else missing + 1
        fates.add(fate)
        step += stride
    assert step > 20
    assert fates >= ({"sent", "queued", "refused"} if cancels else {"sent", "refused"})


async def test_that_check_sees_a_message_that_is_settled_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vibe_llms.conversations.steering import Delivery

    async def deliver(self: Any, added: Any, prepare: Any, keep: Any) -> bool:
        messages = await self._source.take()
        for message in messages:
            await self._source.settle(message.identity)
            await asyncio.sleep(0)
            await prepare(message)
            await keep([message])
        return bool(messages)

    monkeypatch.setattr(Delivery, "deliver", deliver)

    async def check_all() -> None:
        for step in range(400):
            await check_step(tmp_path / str(step), step, cancels=True)

    with pytest.raises(AssertionError):
        await check_all()


async def test_messages_are_queued_again_if_their_turn_is_removed_from_the_history() -> None:
    overflow = ScriptedReply(parts=(Part(error="context-overflow"),))
    async with begun(CALLS, overflow, says("Yes."), context_mode="off") as rig:
        rig.during = rig.steers("One.", "Two.")
        with pytest.raises(ContextOverflow):
            await rig.conversation.converse("Go")
        assert rig.conversation.canisters == ()
        assert [one.text for one in rig.conversation.queued] == ["One.", "Two."]
        turn = await rig.conversation.converse()
        assert shape(turn.canisters)[:2] == [("user", "One."), ("user", "Two.")]


async def test_a_message_that_was_sent_with_a_prompt_is_queued_again_with_the_prompt_gone() -> None:
    overflow = ScriptedReply(parts=(Part(error="context-overflow"),), when="much")
    async with begun(overflow, CALLS, context_mode="off") as rig:
        waits = asyncio.Event()

        async def work() -> None:
            await rig.conversation.steer("One.")
            waits.set()
            await asyncio.Event().wait()

        rig.during = work
        turn = asyncio.ensure_future(rig.conversation.converse("Go"))
        await waits.wait()
        await rig.conversation.cancel()
        await turn
        with pytest.raises(ContextOverflow):
            await rig.conversation.converse("far too much")
        assert [one.text for one in rig.conversation.queued] == ["One."]


async def test_a_message_that_cannot_be_reported_as_taken_back_remains_queued() -> None:
    async with begun(CALLS, says("Yes.")) as rig:
        events: list[Event] = []

        def handle(event: Event) -> None:
            if isinstance(event, SteeringWithdrawnEvent):
                raise OSError("the terminal is gone")
            events.append(event)

        async def work() -> None:
            identity = await rig.conversation.steer("One.")
            with pytest.raises(OSError, match="terminal"):
                await rig.conversation.take_back(identity)

        rig.during = work
        await rig.conversation.converse("Go", event_handler=handle)
        assert ("steered user", "One.") in rig.said()
