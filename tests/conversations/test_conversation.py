"""A conversation: asked, streamed, cancelled, forked, and always fit for the next turn."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.models import endless, last_of, model_of, progressed, says
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ConversationBusy,
    ConversationNotFound,
    CredentialMissing,
    ForkPointInvalid,
    InvokerInvalid,
    RequestError,
    SessionClosed,
    StorageError,
)
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.streams import RunningTurn
from vibe_llms.messages.canisters import (
    AssistantCanister,
    DocumentCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import (
    Event,
    InvocationStartedEvent,
    Notice,
    NoticeEvent,
    TurnEndedEvent,
)
from vibe_llms.opening import open_session
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import (
    Part,
    Script,
    ScriptedModel,
    ScriptedReply,
    check_events,
    scripted_model,
)


class Watcher:
    """Keeps the events, and wakes who waits for one of them."""

    def __init__(self, until: Callable[[Event], bool]) -> None:
        self.events: list[Event] = []
        self.seen = asyncio.Event()
        self._until = until

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self._until(event):
            self.seen.set()


def turns_running() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("turn ")]


# Turns.


async def test_a_turn_is_kept_before_it_returns(session: Session) -> None:
    conversation = await session.begin(model_of(says("Hi.")), supervisor="Be brief.", name="talk")
    turn = await conversation.converse("Hello")
    stored = await session.archive.restore(conversation.identity)
    assert stored.canisters[1:] == conversation.canisters[1:] == turn.canisters
    assert isinstance(conversation.canisters[0], SupervisorCanister)
    assert (stored.details.name, stored.details.model) == ("talk", "scripted/script")
    assert (conversation.name, conversation.busy) == ("talk", False)


async def test_without_a_prompt_the_model_continues_the_history(
    session: Session,
) -> None:
    conversation = await session.begin(model_of(says("One."), says("Two.")))
    with pytest.raises(RequestError, match="no message to answer"):
        await conversation.converse()
    await conversation.converse("Count")
    assert (await conversation.converse()).text == "Two."
    assert [type(canister) for canister in conversation.canisters] == [
        UserCanister, AssistantCanister, AssistantCanister
    ]  # fmt: skip


async def test_tools_controls_and_handler_of_one_turn_are_its_own(session: Session) -> None:
    def mine() -> str:
        """Mine."""
        return "mine"

    def other() -> str:
        """Other."""
        return "other"

    always: list[Event] = []
    once: list[Event] = []
    model = model_of(says("1"), says("2"), says("3"))
    conversation = await session.begin(
        model, invokers=[mine], controls=Controls(seed=1, top_k=1), event_handler=always.append
    )
    await conversation.converse("a")
    await conversation.converse(
        "b", invokers=[other], controls=Controls(seed=2), event_handler=once.append
    )
    await conversation.converse("c", invokers=[], streaming=False)
    tools = [[tool["name"] for tool in request["tools"]] for request in model.requests]
    assert tools == [["mine"], ["other"], []]
    assert [request["controls"] for request in model.requests] == [
        {"seed": 1, "top-k": 1}, {"seed": 2, "top-k": 1}, {"seed": 1, "top-k": 1}
    ]  # fmt: skip
    assert [request["streaming"] for request in model.requests] == [True, True, False]
    check_events(once)
    check_events(always)
    assert sum(isinstance(event, TurnEndedEvent) for event in always) == 2


async def test_an_invalid_tool_is_refused_before_anything_is_said(session: Session) -> None:
    conversation = await session.begin(model_of(says("1")))
    with pytest.raises(InvokerInvalid):
        await conversation.converse("a", invokers=[print])
    assert conversation.canisters == ()
    assert not conversation.busy


async def test_a_second_turn_while_one_runs_is_refused(session: Session) -> None:
    watcher = Watcher(progressed("is "))
    conversation = await session.begin(endless(), event_handler=watcher)
    turn = asyncio.ensure_future(conversation.converse("wait"))
    await watcher.seen.wait()
    assert conversation.busy
    acts: list[Callable[[], Any]] = [
        lambda: conversation.converse("b"),
        lambda: conversation.add("b"),
        conversation.fork,
        conversation.undo,
        conversation.regenerate,
        lambda: conversation.switch("scripted/demo"),
    ]
    for act in acts:
        with pytest.raises(ConversationBusy):
            await act()
    with pytest.raises(ConversationBusy):
        conversation.stream("b")
    await conversation.cancel()
    await turn
    assert (await conversation.converse("b")).text == "Works."


# Cancelling.


async def test_cancelling_keeps_what_had_arrived_and_returns_a_turn_that_says_so(
    session: Session,
) -> None:
    watcher = Watcher(progressed("is "))
    conversation = await session.begin(endless(), event_handler=watcher)
    running = asyncio.ensure_future(conversation.converse("wait"))
    await watcher.seen.wait()
    await conversation.cancel()
    turn = await running
    assert (turn.text, turn.stop_reason) == ("It is ", StopReason.INTERRUPTED)
    check_events(watcher.events)
    assert watcher.events[-1] == TurnEndedEvent(
        turn=turn, reason=StopReason.INTERRUPTED, conversation=conversation.identity
    )
    stored = (await session.archive.restore(conversation.identity)).canisters
    assert stored == conversation.canisters
    ending = last_of(conversation).ending
    assert ending is not None
    assert (ending.interrupted, ending.reason) == (True, StopReason.INTERRUPTED)
    await conversation.cancel()
    assert (await conversation.converse("b")).text == "Works."


async def test_cancelling_the_task_cancels_the_turn_and_waits_for_its_end(session: Session) -> None:
    watcher = Watcher(progressed("is "))
    conversation = await session.begin(endless(), event_handler=watcher)
    running = asyncio.ensure_future(conversation.converse("wait"))
    await watcher.seen.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not conversation.busy
    assert last_of(conversation).text == "It is "
    check_events(watcher.events)
    assert (await conversation.converse("b")).text == "Works."


async def test_a_time_limit_of_the_callers_ends_the_turn_as_well(session: Session) -> None:
    limit = asyncio.timeout(None)

    def expire(event: Event) -> None:
        if progressed("is ")(event):
            limit.reschedule(asyncio.get_running_loop().time())

    conversation = await session.begin(endless(), event_handler=expire)
    with pytest.raises(TimeoutError):
        async with limit:
            await conversation.converse("wait")
    assert not conversation.busy
    assert last_of(conversation).text == "It is "


@pytest.mark.parametrize("quietly", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_a_turn_that_is_cancelled_before_it_began_is_reported_and_kept_too(
    session: Session, steps: int, quietly: bool
) -> None:
    events: list[Event] = []
    conversation = await session.begin(endless(), event_handler=events.append)
    running = asyncio.ensure_future(conversation.converse("wait"))
    await asyncio.sleep(0)
    assert conversation.busy
    for _ in range(steps):
        await asyncio.sleep(0)
    if quietly:
        await conversation.cancel()
        assert (await running).stop_reason == StopReason.INTERRUPTED
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    check_events(events)
    assert isinstance(events[-1], TurnEndedEvent)
    assert isinstance(conversation.canisters[0], UserCanister)
    assert (await session.archive.restore(conversation.identity)).canisters == (
        conversation.canisters
    )
    assert (await conversation.converse("b")).text == "Works."


async def test_cancelling_twice_does_not_hurry_the_end(session: Session) -> None:
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cleaned.set()

    watcher = Watcher(lambda event: isinstance(event, InvocationStartedEvent))
    model = model_of(ScriptedReply(parts=(Part(invocation="stubborn"),)), says("Works."))
    conversation = await session.begin(model, invokers=[stubborn], event_handler=watcher)
    running = asyncio.ensure_future(conversation.converse("a"))
    await watcher.seen.wait()
    running.cancel()
    await cleaning.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()
    assert not conversation.busy
    results = [one for one in conversation.canisters if isinstance(one, ResultCanister)]
    assert [one.failed for one in results] == [True]
    assert (await conversation.converse("b")).text == "Works."


async def test_cancelling_at_the_very_end_loses_nothing(session: Session) -> None:
    def cancel_at_the_end(event: Event) -> None:
        if isinstance(event, TurnEndedEvent) and not running.done():
            running.cancel()

    conversation = await session.begin(endless(), event_handler=cancel_at_the_end)
    running = asyncio.ensure_future(conversation.converse("a"))
    with pytest.raises(asyncio.CancelledError):
        await running
    ending = last_of(conversation).ending
    assert ending is not None
    assert not ending.interrupted
    assert (await conversation.converse("b")).text == "Works."


async def test_a_tool_may_cancel_the_turn_that_it_is_part_of(session: Session) -> None:
    model = model_of(ScriptedReply(parts=(Part(invocation="stop"),)), says("Works."))

    async def stop() -> None:
        await conversation.cancel()

    conversation = await session.begin(model, invokers=[stop])
    async with asyncio.timeout(30):
        turn = await conversation.converse("a")
    assert turn.stop_reason == StopReason.INTERRUPTED
    assert (await conversation.converse("b")).text == "Works."


async def test_a_tool_that_speaks_with_its_own_conversation_fails(session: Session) -> None:
    model = model_of(ScriptedReply(parts=(Part(invocation="ask"),)), says("Works."))

    async def ask() -> str:
        return (await conversation.converse("psst")).text

    conversation = await session.begin(model, invokers=[ask])
    turn = await conversation.converse("a")
    assert turn.text == "Works."
    (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert "ConversationBusy" in result.text


class Broken(DirectoryArchive):
    """An archive whose disk is full from some moment on."""

    full = False

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        if self.full:
            raise StorageError("the disk is full", path="x")
        return await super().append(*args, **kwargs)


async def leave_early(conversation: Conversation, archive: Broken) -> None:
    async with conversation.stream("wait") as events:
        async for event in events:
            if progressed("is ")(event):
                archive.full = True
                break


@pytest.mark.parametrize("way", ["cancel", "task", "stream"])
async def test_what_cannot_be_kept_of_a_cancelled_turn_is_reported(home: Path, way: str) -> None:
    archive = Broken(home, StorageSettings(durability="fast"))
    async with open_session(archive=archive) as session:
        watcher = Watcher(progressed("is "))
        conversation = await session.begin(endless(), event_handler=watcher)
        await conversation.converse("a")
        if way == "stream":
            with pytest.raises(StorageError, match="disk is full"):
                await leave_early(conversation, archive)
        else:
            running = asyncio.ensure_future(conversation.converse("wait"))
            await watcher.seen.wait()
            archive.full = True
            if way == "cancel":
                await conversation.cancel()
            else:
                running.cancel()
            with pytest.raises(StorageError, match="disk is full"):
                await running
        archive.full = False
        assert (await conversation.converse("b")).text == "Works."


# The storm of cancels (as T4, with the scripted model).

STORMY = Script(
    (
        ScriptedReply(parts=(Part(text="Works."),), when="again"),
        ScriptedReply(
            parts=(
                Part(reasoning=("Let ", "me ")),
                Part(delay_seconds=0.001),
                Part(text=tuple("abcdefgh")),
                Part(invocation="pause", arguments={}),
                Part(invocation="pause", arguments={}),
            ),
            when="^a$",
        ),
        ScriptedReply(parts=(Part(text=tuple("done")), Part(delay_seconds=0.001)), when="."),
    )
)


async def check_cancel(session: Session, chance: random.Random) -> None:
    """Cancelled at a random moment: no task is left, reported text is kept, the next turn works."""
    before = asyncio.all_tasks()
    events: list[Event] = []

    async def pause() -> str:
        await asyncio.sleep(chance.choice([0, 0.001]))
        return "paused"

    conversation = await session.begin(
        scripted_model(STORMY), invokers=[pause], event_handler=events.append
    )
    way = chance.randrange(3)
    if way == 2:
        async with conversation.stream("a") as stream:
            for _ in range(chance.randrange(1, 30)):
                await anext(stream, None)
    else:
        running = asyncio.ensure_future(conversation.converse("a"))
        for _ in range(chance.randrange(0, 40)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice([0, chance.random() * 0.01]))
        if way == 1:
            await conversation.cancel()
            await running
        else:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if conversation.canisters:
            check_events(events)
    assert not conversation.busy
    # Clients of other packages close themselves in tasks when they are collected as garbage.
    assert asyncio.all_tasks() <= before
    answered = [one.invocation for one in conversation.canisters if isinstance(one, ResultCanister)]
    assert len(answered) == len(set(answered))
    turn = await conversation.converse("again")
    assert turn.text == "Works."
    stored = (await session.archive.restore(conversation.identity)).canisters
    assert stored == conversation.canisters


@pytest.mark.parametrize(
    "model", ["anthropic/claude-opus-5", "openai/gpt-6.1-sol", "openai-chat/gpt-5.5"]
)
async def test_nothing_is_kept_of_what_could_not_be_sent_for_want_of_a_key(
    session: Session, model: str
) -> None:
    conversation = await session.begin(model)
    with pytest.raises(CredentialMissing):
        await conversation.converse("Hello?")
    assert conversation.canisters == ()
    assert await session.survey_conversations() == []


async def check_storm(session: Session, number: int) -> None:
    chance = random.Random(10)
    # What earlier tests left to the collector of garbage would be closed in the meantime.
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(number):
        await check_cancel(session, chance)
    # What the archive holds open between two appends has a bound of its own.
    await session.archive.close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.storm
async def test_a_storm_of_cancels_leaves_nothing_behind(
    session: Session, rounds: Callable[[int, int], int]
) -> None:
    await session.begin("scripted/demo")
    await check_storm(session, rounds(200, 2000))


async def test_that_storm_sees_a_turn_that_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end_carelessly(self: RunningTurn) -> None:
        self.interrupt()

    monkeypatch.setattr(RunningTurn, "end", end_carelessly)
    with pytest.raises(AssertionError):
        await check_storm(session, 50)


# Adding, tokens, previews.


async def test_what_is_added_is_kept_without_asking_the_model(session: Session) -> None:
    model = model_of(says("Well."))
    conversation = await session.begin(model)
    document = DocumentCanister.from_text("long")
    await conversation.add([SupervisorCanister.from_text("Be brief."), document])
    await conversation.add("And?")
    assert model.requests == []
    assert len((await session.archive.restore(conversation.identity)).canisters) == 3
    assert (await conversation.converse()).text == "Well."
    assert [message["role"] for message in model.requests[0]["messages"]] == [
        "supervisor", "document", "user"
    ]  # fmt: skip


async def test_adding_while_a_turn_begins_keeps_both(session: Session) -> None:
    conversation = await session.begin(model_of(says("Well.")))
    await conversation.add("first")
    added, turn = await asyncio.gather(conversation.add("second"), conversation.converse("third"))
    assert added is None
    assert turn.text == "Well."
    stored = (await session.archive.restore(conversation.identity)).canisters
    assert stored == conversation.canisters
    texts = {one.text for one in stored if isinstance(one, UserCanister)}
    assert texts == {"first", "second", "third"}


async def test_notices_of_adding_go_to_the_handler(session: Session) -> None:
    events: list[Event] = []
    conversation = await session.begin(model_of(says("1")), event_handler=events.append)
    await conversation.add("a")
    lines = session.archive.folder / "conversations" / conversation.identity / "messages.jsonl"  # type: ignore[attr-defined]
    lines.write_bytes(lines.read_bytes() + b'{"role":"us')
    await conversation.add("b")
    (event,) = events
    assert isinstance(event, NoticeEvent)
    assert event.notice.subject == "repair"
    assert event.conversation == conversation.identity


async def test_tokens_are_counted_with_the_tools_that_are_offered(session: Session) -> None:
    conversation = await session.begin("scripted/demo", history="a" * 4000)
    count = await conversation.count_tokens()
    assert count.estimated
    assert count.tokens > 1000
    unsaved = await session.begin("scripted/demo", history="a" * 400, save=False)
    assert (await unsaved.count_tokens()).tokens < count.tokens


async def test_a_preview_is_the_request_and_sends_nothing(session: Session) -> None:
    model = model_of(says("1"))
    conversation = await session.begin(model, controls=Controls(seed=1))
    body = msgspec.json.decode(await conversation.preview("Hello", controls=Controls(top_k=2)))
    assert body["messages"] == [{"role": "user", "contents": [{"kind": "text", "text": "Hello"}]}]
    assert body["controls"] == {"seed": 1, "top-k": 2}
    assert model.requests == []
    assert conversation.canisters == ()
    unsaved = await session.begin(model, save=False)
    assert "Hello" in await unsaved.preview("Hello")


async def test_a_preview_reports_that_only_the_server_can_count(session: Session) -> None:
    events: list[Event] = []
    model = model_of(says("1"))
    model.attributes = ModelAttributes(context_tokens=100)
    conversation = await session.begin(model, event_handler=events.append)
    await conversation.preview("short")
    assert events == []
    await conversation.preview("long " * 200)
    (event,) = events
    assert isinstance(event, NoticeEvent)
    assert event.notice.subject == "preview"
    assert "this may be too long for" in event.notice.text


# Notices.


class Noticing(ScriptedModel):
    """Says of the same message twice that it cannot be carried."""

    async def converse(self, *args: Any, **kwargs: Any) -> Any:
        context = kwargs.get("context", args[-1])
        context.notify(Notice("conversion", "left out", "c"))
        context.notify(Notice("retry", "again"))
        return await super().converse(*args, **kwargs)


async def test_what_a_conversion_leaves_out_is_reported_once(session: Session) -> None:
    events: list[Event] = []
    plain = endless()
    model = Noticing(plain.client, "noticing", plain._script)
    conversation = await session.begin(model, event_handler=events.append)
    await conversation.converse("a")
    await conversation.converse("b")
    reported = [event.notice.subject for event in events if isinstance(event, NoticeEvent)]
    assert reported == ["conversion", "retry", "retry"]
    check_events(events)


# Forks.


async def held(session: Session, name: str = "") -> Conversation:
    """A conversation with a supervisor, a turn with two calls, and a plain one."""

    def look() -> str:
        """Look."""
        return "seen"

    calls = ScriptedReply(
        parts=(Part(text="I look."), Part(invocation="look"), Part(invocation="look"))
    )
    model = scripted_model(
        Script(
            (
                ScriptedReply(parts=calls.parts, when="^look$"),
                ScriptedReply(parts=(Part(text="Works."),), when="."),
            )
        )
    )
    conversation = await session.begin(
        model, supervisor="Be brief.", name=name, invokers=[look], controls=Controls(seed=1)
    )
    await conversation.converse([DocumentCanister.from_text("d"), "look"])
    await conversation.converse("again")
    return conversation


#: supervisor, document, user, assistant, call, call, result, result, assistant, user, assistant
POINTS = (0, 1, 2, 7, 8, 9, 10)


async def test_a_fork_keeps_all_and_goes_its_own_way(session: Session) -> None:
    conversation = await held(session)
    fork = await conversation.fork(name="other")
    assert fork.canisters == conversation.canisters
    assert fork.identity != conversation.identity
    assert (fork.name, conversation.name) == ("other", "")
    assert fork.model is conversation.model
    await fork.converse("c")
    assert len(conversation.canisters) == 11
    assert len(fork.canisters) == 13
    await session.remove(conversation.identity)
    assert (await fork.converse("d")).text == "Works."
    stored = await session.archive.restore(fork.identity)
    assert stored.canisters == fork.canisters
    assert stored.details.forked_from is not None
    assert stored.details.forked_from.conversation == conversation.identity


async def test_every_valid_point_forks_to_an_equal_prefix_and_the_next_turn_works(
    session: Session,
) -> None:
    conversation = await held(session)
    canisters = conversation.canisters
    assert len(canisters) == 11
    for index, canister in enumerate(canisters):
        for at in (index, index - len(canisters), canister.identity):
            if index in POINTS:
                fork = await conversation.fork(at)
                assert fork.canisters == canisters[: index + 1]
                assert (await session.archive.restore(fork.identity)).canisters == fork.canisters
                assert (await fork.converse("c")).text == "Works."
            else:
                with pytest.raises(ForkPointInvalid) as caught:
                    await conversation.fork(at)
                nearest = [canisters[i].identity for i in (2, 7)]
                assert list(caught.value.nearest) == nearest
                assert all(identity in str(caught.value) for identity in nearest)
    assert conversation.canisters == canisters


@pytest.mark.parametrize("at", [11, -12, 100, "nothing"])
async def test_a_point_that_is_not_there_is_reported(session: Session, at: str | int) -> None:
    conversation = await held(session)
    with pytest.raises(ConversationNotFound):
        await conversation.fork(at)


async def test_a_random_tree_of_forks_keeps_every_branch_apart(session: Session) -> None:
    chance = random.Random(11)
    root = await session.begin(
        endless(),
    )
    await root.converse("0")
    branches = {root: root.canisters}
    for number in range(40):
        parent = chance.choice(list(branches))
        at = chance.randrange(len(parent.canisters))
        child = await parent.fork(at)
        assert child.canisters == branches[parent][: at + 1]
        await child.converse(str(number))
        branches[child] = child.canisters
    for branch, canisters in branches.items():
        assert branch.canisters == canisters
        assert (await session.archive.restore(branch.identity)).canisters == canisters


async def test_an_empty_and_an_unsaved_conversation_can_be_forked(session: Session) -> None:
    empty = await session.begin(endless())
    assert (await empty.fork()).canisters == ()
    unsaved = await session.begin(endless(), save=False)
    await unsaved.converse("a")
    fork = await unsaved.fork(0)
    assert len(fork.canisters) == 1
    assert (await fork.converse("b")).text == "Works."
    assert await session.survey_conversations() == []


async def test_forks_at_once_do_not_disturb_each_other(session: Session) -> None:
    conversation = await held(session)
    forks = await asyncio.gather(*(conversation.fork() for _ in range(5)))
    turns = await asyncio.gather(*(fork.converse("c") for fork in forks))
    assert {turn.text for turn in turns} == {"Works."}
    assert len({fork.identity for fork in forks}) == 5


async def test_undoing_goes_on_in_a_fork_that_takes_over_the_name(session: Session) -> None:
    conversation = await held(session, "talk")
    undone = await conversation.undo()
    assert undone.canisters == conversation.canisters[:9]
    assert undone.name == "talk"
    assert conversation.name.startswith("talk (until ")
    assert await session.archive.resolve("talk") == undone.identity
    both = await conversation.undo(2)
    assert both.canisters == conversation.canisters[:1]
    with pytest.raises(ForkPointInvalid, match="only 2 of 3 turns can be undone"):
        await conversation.undo(3)
    for turns in (0, -1):
        with pytest.raises(RequestError, match="cannot be undone"):
            await conversation.undo(turns)


async def test_regenerating_answers_the_last_prompt_anew(session: Session) -> None:
    conversation = await held(session)
    anew = await conversation.regenerate()
    assert anew.canisters == conversation.canisters[:10]
    assert (await anew.converse()).text == "Works."
    first = await (await conversation.undo()).regenerate()
    assert first.canisters == conversation.canisters[:3]
    assert (await first.converse()).text == "Works."
    empty = await session.begin(endless())
    with pytest.raises(ForkPointInvalid):
        await empty.regenerate()


async def test_a_prompt_without_an_answer_is_regenerated_whole(session: Session) -> None:
    conversation = await session.begin(endless())
    await conversation.add("a")
    assert (await conversation.regenerate()).canisters == conversation.canisters


async def test_a_fork_that_fails_takes_no_name_away(home: Path) -> None:
    class Full(DirectoryArchive):
        async def fork(self, *args: Any, **kwargs: Any) -> None:
            raise StorageError("the disk is full")

    archive = Full(home, StorageSettings(durability="fast"))
    async with open_session(archive=archive) as session:
        conversation = await session.begin(endless(), name="talk")
        await conversation.converse("a")
        await conversation.converse("b")
        with pytest.raises(StorageError):
            await conversation.undo()
        assert conversation.name == "talk"
        assert (await archive.restore(conversation.identity)).details.name == "talk"


async def test_forks_take_the_tools_controls_and_handler_along(session: Session) -> None:
    events: list[Event] = []
    model = endless()

    def look() -> str:
        """Look."""
        return ""

    conversation = await session.begin(
        model, invokers=[look], controls=Controls(seed=3), event_handler=events.append
    )
    await conversation.converse("a")
    events.clear()
    fork = await conversation.fork()
    await fork.converse("b")
    check_events(events)
    assert {event.conversation for event in events} == {fork.identity}
    assert model.requests[-1]["controls"] == {"seed": 3}
    assert len(model.requests[-1]["tools"]) == 1


# Switching and renaming.


async def test_the_model_is_switched_by_name_or_given_and_kept(session: Session) -> None:
    conversation = await session.begin(endless("one"))
    await conversation.converse("a")
    await conversation.switch(endless("two"))
    assert conversation.model.name == "two"
    turn = await conversation.converse("b")
    assert turn.text == "Works."
    await conversation.switch("scripted:demo")
    assert (await session.archive.restore(conversation.identity)).details.model == "scripted/demo"
    assert (await conversation.converse("Hello!")).text.startswith("Hello!")
    assert len(conversation.canisters) == 6
    with pytest.raises(RequestError):
        await conversation.switch("scripted/none")
    assert conversation.model.name == "demo"


async def test_a_name_is_kept(session: Session) -> None:
    conversation = await session.begin(endless())
    await conversation.rename("early")
    await conversation.converse("a")
    await conversation.rename("late")
    assert (await session.archive.restore(conversation.identity)).details.name == "late"


async def test_a_closed_conversation_says_that_its_session_is(home: Path) -> None:
    async with open_session() as session:
        watcher = Watcher(progressed("is "))
        conversation = await session.begin(endless(), event_handler=watcher)
        running = asyncio.ensure_future(conversation.converse("wait"))
        await watcher.seen.wait()
    assert (await running).stop_reason == StopReason.INTERRUPTED
    assert turns_running() == []
    with pytest.raises(SessionClosed):
        await conversation.converse("b")
    with pytest.raises(SessionClosed):
        await conversation.fork()
    with pytest.raises(SessionClosed):
        conversation.stream("b")


# Long sessions (promise L1).


async def check_flat(session: Session, turns: int, *, hoard: list[object] | None = None) -> None:
    """Memory and descriptors do not grow with the number of turns."""
    model = scripted_model(lambda canisters, invokers: says("Works."))

    async def hold_some(number: int) -> None:
        for _ in range(number):
            conversation = await session.begin(model)
            turn = await conversation.converse("a")
            if hoard is not None:
                hoard.append((turn, bytes(2000)))
            model.requests.clear()

    await hold_some(50)
    gc.collect()
    tracemalloc.start()
    try:
        descriptors = len(os.listdir("/proc/self/fd"))
        before = tracemalloc.get_traced_memory()[0]
        await hold_some(turns)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / turns < 1024 * 1024 / 1000, f"{grown} bytes in {turns} turns"
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert turns_running() == []


async def check_long(session: Session, turns: int) -> None:
    """A turn of a long conversation leaves behind what was said and no more."""
    model = scripted_model(lambda canisters, invokers: says("Works."))
    conversation = await session.begin(model)
    await conversation.converse("a")
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(turns):
            await conversation.converse("a")
            model.requests.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # What was said counts too: two canisters with their provenance.
    assert grown / turns < 4096, f"{grown} bytes in {turns} turns"


@pytest.mark.storm
async def test_a_long_session_stays_flat(
    session: Session, rounds: Callable[[int, int], int]
) -> None:
    await check_flat(session, rounds(300, 10_000))


@pytest.mark.storm
async def test_a_long_conversation_grows_by_what_is_said(
    session: Session, rounds: Callable[[int, int], int]
) -> None:
    await check_long(session, rounds(60, 2_000))


async def test_that_check_sees_turns_that_are_hoarded(session: Session) -> None:
    with pytest.raises(AssertionError, match="bytes in"):
        await check_flat(session, 50, hoard=[])
