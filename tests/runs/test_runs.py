"""Runs: turns that are followed, decided on, cancelled and continued by any process."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import pytest

from tests.runs.rig import SCRIPTS, TEXT, Rig, follow, text_of, wait_for
from vibe_llms import Decision
from vibe_llms.base.exceptions import (
    ContentMissing,
    ConversationBusy,
    ConversationNotFound,
    DecisionRefused,
    LeaseLost,
    RequestError,
    RunFailed,
    RunNotFound,
    StorageError,
)
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
    role_of,
)
from vibe_llms.providers import pieces
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.runs import (
    ApprovalRequested,
    CallEnded,
    MessageCompleted,
    MessageDelta,
    MessageStarted,
    Run,
    RunContinued,
    RunEnded,
    RunEvent,
    RunExpired,
    RunStatus,
    core,
)
from vibe_llms.runs.events import first_cursor
from vibe_llms.runs.interfaces import Lease
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.runs.steering import end_cancelled


async def test_a_run_is_a_turn_of_its_conversation(rig: Rig) -> None:
    session = await rig.open()
    conversation = await session.begin("scripted/talk", supervisor="Be brief.")
    run = await session.start(conversation, "Count.")
    turn = await run.result()
    assert turn.text == TEXT
    assert turn.stop_reason == StopReason.FINISHED
    assert [one.text for one in conversation.canisters[1:]] == ["Count.", TEXT]  # type: ignore[union-attr]
    await conversation.converse("Again.")
    assert (await run.result()).canisters == turn.canisters
    assert (await run.access()).status is RunStatus.COMPLETED


async def test_another_process_finds_what_the_run_added(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    run = await rig.start(one, "talk")
    found = await other.access_run(run.identity[:30])
    assert (await found.result()).text == TEXT
    (record,) = await other.survey_runs()
    assert (record.identity, record.conversation) == (run.identity, run.record.conversation)
    assert await other.survey_runs(statuses=[RunStatus.FAILED]) == []
    with pytest.raises(RunNotFound):
        await other.access_run("0000")


@pytest.mark.parametrize("removed", [True, False])
async def test_a_turn_whose_contents_go_while_it_is_read_names_the_cause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    one, other = await rig.open(), await rig.open()
    conversation = await one.begin("scripted/talk")
    run = await one.start(conversation, "A long prompt, kept as a content. " * 1000)
    await run.result()
    found = await other.access_run(run.identity)
    load = pieces.with_texts

    async def lose(*arguments: Any) -> Any:
        if removed:
            await one.remove(conversation.identity)
        shutil.rmtree(rig.home / "content")
        return await load(*arguments)

    monkeypatch.setattr(core, "with_texts", lose)
    with pytest.raises(RunNotFound if removed else ContentMissing):
        await found.read()


async def test_every_cursor_gives_the_rest_exactly_once_live_and_replayed(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    run = await rig.start(one, "talk")
    elsewhere = await other.access_run(run.identity)
    live, polled = await asyncio.gather(follow(run), follow(elsewhere))
    whole = await follow(run)
    for events in (live, polled):
        assert text_of(events) == TEXT
        assert events[-1] == whole[-1]
        assert isinstance(events[-1][1], RunEnded)
    first, last = whole[0][0], whole[-1][0]
    assert last - first == len(TEXT) + 2
    for cursor in range(first, last):
        events = await follow(elsewhere, cursor)
        assert text_of(events) == TEXT[cursor - first :]
        assert len(events) == len([one for one, _ in whole if one > cursor])
    assert await follow(run, last) == []


async def test_a_run_whose_events_were_deleted_says_once_how_it_ended(rig: Rig) -> None:
    session = await rig.open()
    run = await rig.start(session, "talk")
    (began, _), *_ = await follow(run)
    runs = session.access_runs()
    store = SqliteRunStore(rig.home / "server" / "runs.sqlite", events_days=0)
    await store.create(msgspec.structs.replace(run.record, identity="another"))
    await store.close()
    ((cursor, event),) = await follow(await runs.access(run.identity), began)
    assert event == RunExpired("completed")
    assert await follow(run, cursor) == []


async def test_runs_of_an_earlier_file_are_listed_and_purged(rig: Rig) -> None:
    path = rig.home / "server" / "runs.sqlite"
    session = await rig.open()
    run = await rig.start(session, "talk")
    await follow(run)
    earlier = SqliteRunStore(path)
    begun = msgspec.structs.replace(run.record, identity="earlier", conversation="c", outline=None)
    await earlier.create(begun)
    await earlier.cancel(begun.user, "earlier", end_cancelled)
    await earlier.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("drop table bodies")
        database.execute("drop index ended")
        database.execute("drop index by_conversation")
        database.execute("pragma user_version = 3")
    store = SqliteRunStore(path, events_days=0)
    listed, _ = await store.survey(begun.user)
    assert (listed.prompt, listed.recipe) == (begun.prompt, begun.recipe)
    await store.create(msgspec.structs.replace(begun, identity="later"))
    await store.close()
    found = await (await session.access_runs().access("earlier")).access()
    assert (found.prompt, found.opening) == (begun.prompt, begun.opening)
    assert not await session.access_runs().store.read_events(begun.user, "earlier")


async def test_a_new_conversation_is_found_by_its_run_until_a_worker_stores_it(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    one.access_runs().worker.pause()
    conversation = await one.begin("scripted/talk", name="talk")
    run = await one.start(conversation, "Count.")
    # A run that is refused, or cancelled before a worker has it, leaves no empty conversation.
    with pytest.raises(ConversationNotFound):
        await other.resume("talk")
    (record,) = await other.survey_runs(conversation=conversation.identity)
    assert record.identity == run.identity
    other.access_runs().resume()
    await (await other.access_run(run.identity)).result()
    assert (await other.resume("talk")).identity == conversation.identity
    # What `add` stores is there at once, and the run continues it.
    added = await one.begin("scripted/talk", name="added")
    await added.add(SupervisorCanister.from_text("Be brief."))
    run = await one.start(added, "Count.")
    assert (await other.resume("added")).identity == run.record.conversation
    await (await other.access_run(run.identity)).result()
    assert [role_of(said) for said in (await other.resume("added")).canisters] == [
        *("supervisor", "user", "assistant")
    ]


async def test_one_run_at_a_time_in_a_conversation(rig: Rig) -> None:
    session = await rig.open()
    conversation = await session.begin("scripted/slow")
    run = await session.start(conversation, "Hello")
    with pytest.raises(ConversationBusy, match=run.identity):
        await session.start(conversation, "Hello again")
    await wait_for(run, MessageDelta)
    with pytest.raises(ConversationBusy):
        await conversation.converse("Hello again")
    await run.cancel()
    await run.result()
    assert await (await session.start(conversation, "And now?")).cancel()


@pytest.mark.parametrize("script", ["slow", "call"])
async def test_any_process_ends_a_run_within_a_second(rig: Rig, script: str) -> None:
    rig.bank.hangs = True
    one, other = await rig.open(), await rig.open()
    run = await rig.start(one, script)
    await (wait_for(run, MessageDelta) if script == "slow" else rig.bank.began.wait())
    begun = time.monotonic()
    assert await (await other.access_run(run.identity)).cancel() is RunStatus.RUNNING
    turn = await run.result()
    assert time.monotonic() - begun < 1
    assert turn.stop_reason == StopReason.INTERRUPTED
    assert (await run.access()).status is RunStatus.CANCELLED
    assert await run.cancel() is RunStatus.CANCELLED


async def test_a_failed_run_says_why(rig: Rig) -> None:
    run = await rig.start(await rig.open(), "fail")
    with pytest.raises(RunFailed, match="as the script says") as caught:
        await run.result()
    assert caught.value.error == "ProviderOverloaded"
    assert (await follow(run))[-1][1] == RunEnded("failed", str(caught.value))


async def test_waiting_for_a_decision_holds_nothing_and_any_process_decides(rig: Rig) -> None:
    one, other = await rig.open(approval="ask"), await rig.open(approval="ask")
    run = await rig.start(one, "twice")
    _, asked = await wait_for(run, ApprovalRequested)
    while one.access_runs().worker.busy:
        await asyncio.sleep(0)
    # The call that needs no decision has its result.
    assert (rig.bank.transfers, rig.bank.looks) == (0, 1)
    elsewhere = await other.access_run(run.identity)
    with pytest.raises(DecisionRefused, match="is not waiting for the call"):
        await elsewhere.decide("another", Decision.ALLOW)
    assert (await elsewhere.decide(asked.invocation, Decision.ALLOW)).allowed
    assert (await run.decide(asked.invocation, Decision.ALLOW)).allowed
    with pytest.raises(DecisionRefused, match="transfer was already allowed"):
        await run.decide(asked.invocation, Decision.DENY)
    turn = await elsewhere.result()
    assert turn.text == "Both are done."
    assert (rig.bank.transfers, rig.bank.looks) == (1, 1)
    assert len([one for one in turn.canisters if isinstance(one, ResultCanister)]) == 2


async def test_who_decides_reads_the_arguments_of_the_call_in_any_process(rig: Rig) -> None:
    one, other = await rig.open(approval="ask"), await rig.open(approval="ask")
    run = await rig.start(one, "twice")
    _, asked = await wait_for(run, ApprovalRequested)
    elsewhere = await other.access_run(run.identity)
    (approval,) = await elsewhere.survey_approvals()
    calls = await elsewhere.survey_calls()
    assert calls[approval.invocation].parsed == {"sum": 3}
    assert [call.name for call in calls.values()] == ["transfer", "look"]
    await elsewhere.decide(calls[asked.invocation], Decision.DENY)
    await elsewhere.result()
    # An earlier turn's calls are not those of this run.
    conversation = await other.resume(run.record.conversation, model="scripted/talk")
    later = await other.start(conversation, "Count.")
    await later.result()
    assert await later.survey_calls() == {}


async def test_a_follower_of_a_run_that_says_nothing_yet_reads_the_store_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    store, reads = session.access_runs().store, 0
    read_events = store.read_events

    async def count(*given: Any, **options: Any) -> Sequence[tuple[int, bytes]]:
        nonlocal reads
        reads += 1
        return await read_events(*given, **options)

    monkeypatch.setattr(store, "read_events", count)
    run = await rig.start(session, "silent")
    while not session.access_runs().worker.busy:
        await asyncio.sleep(0.01)
    following = asyncio.create_task(follow(run))
    await asyncio.sleep(0.3)
    assert reads <= 3
    await run.cancel()
    assert (await following)[-1][1] == RunEnded(RunStatus.CANCELLED)


async def test_a_follower_of_a_run_that_begins_here_reads_only_its_end_from_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    reads: list[int] = []
    read_events = SqliteRunStore.read_events

    async def count(store: SqliteRunStore, user: str, run: str, **which: Any) -> Any:
        reads.append(which["after"])
        return await read_events(store, user, run, **which)

    monkeypatch.setattr(SqliteRunStore, "read_events", count)
    run = await rig.start(session, "slow")
    cursors = []
    async for cursor, event in run.events():
        cursors.append(cursor)
        if isinstance(event, MessageDelta):
            assert reads == []
            await run.cancel()
    # Nor is the beginning read again for the end.
    assert reads
    assert min(reads) >= cursors[-2]


async def test_a_late_follower_gets_what_is_only_in_the_store_and_the_rest(rig: Rig) -> None:
    text = "word " * 1000
    (rig.home / "slow.toml").write_text(SCRIPTS["slow"].replace("first ", text))
    session = await rig.open()
    run = await rig.start(session, "slow")
    shown = ""
    async for _, event in run.events():
        shown += event.text if isinstance(event, MessageDelta) else ""
        if len(shown) == len(text):
            break
    # Each begins elsewhere: before what is kept in memory, and within it.
    first = first_cursor(1) + 1
    for place in (0, 1, 2500, len(text) - 1025, len(text) - 100, len(text) - 1):
        rest = ""
        async for _, event in run.events(after=first + place):
            rest += event.text if isinstance(event, MessageDelta) else ""
            if len(rest) >= len(text) - place:
                break
        assert rest == text[place:]
    assert isinstance((await follow_some(run, 1))[0][1], MessageStarted)
    await run.cancel()


async def test_a_follower_stays_while_a_run_waits(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    following = asyncio.create_task(follow(run))
    _, asked = await wait_for(run, ApprovalRequested)
    await run.decide(asked.invocation, Decision.ALLOW)
    events = await following
    assert len([one for _, one in events if isinstance(one, ApprovalRequested)]) == 1
    assert text_of(events) == '{"sum":3}It is done.'


async def test_a_denial_gives_the_model_the_reason(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    _, asked = await wait_for(run, ApprovalRequested)
    await run.decide(asked.invocation, Decision(False, reason="not today"))
    turn = await run.result()
    (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert result.failed
    assert "not today" in result.text
    assert rig.bank.transfers == 0


async def test_a_waiting_run_is_cancelled_at_once(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    _, asked = await wait_for(run, ApprovalRequested)
    assert await run.cancel() is RunStatus.CANCELLED
    assert (await run.result()).stop_reason == StopReason.INTERRUPTED
    with pytest.raises(DecisionRefused, match="has already ended"):
        await run.decide(asked.invocation, Decision.ALLOW)
    conversation = await session.resume(run.record.conversation, model="scripted/talk")
    assert (await conversation.converse("And now?")).text == TEXT


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_that_may_have_run_runs_again_only_if_that_does_no_harm(
    rig: Rig, idempotent: bool
) -> None:
    rig.bank.hangs = True
    session = await rig.open(idempotent=idempotent)
    run = await rig.start(session, "call")
    await rig.bank.began.wait()
    await session.close()
    rig.bank.hangs = False
    other = await rig.open(idempotent=idempotent)
    other.access_runs().worker.poke()
    found = await other.access_run(run.identity)
    turn = await found.result()
    assert rig.bank.transfers == 1 + idempotent
    (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert result.text == ("sent 3" if idempotent else INTERRUPTED)
    assert turn.text == "It is done."


async def test_a_reply_that_was_cut_starts_again_and_followers_learn_which(rig: Rig) -> None:
    one = await rig.open()
    run = await rig.start(one, "slow")
    await wait_for(run, MessageDelta)
    before = (await follow_some(run, 2))[-1]
    await one.close()
    (rig.home / "slow.toml").write_text(SCRIPTS["talk"])
    other = await rig.open()
    other.access_runs().worker.poke()
    found = await other.access_run(run.identity)
    turn = await found.result()
    assert turn.text == TEXT
    events = await follow(found, before[0])
    cut, begun = (e for _, e in events if isinstance(e, RunContinued | MessageStarted))
    assert isinstance(before[1], MessageDelta)
    assert cut == RunContinued(before[1].message)
    assert isinstance(begun, MessageStarted)
    assert begun.message != before[1].message
    assert text_of(events) == TEXT


@pytest.mark.parametrize(("rounds", "text"), [(2, "Three."), (3, "Four.")])
async def test_pauses_before_another_worker_took_over_count(
    rig: Rig, rounds: int, text: str
) -> None:
    one = await rig.open(rounds=rounds)
    run = await rig.start(one, "pauses")
    async for _, event in run.events():
        if isinstance(event, MessageDelta) and event.text == "Three":
            break
    await one.close()
    pauses = SCRIPTS["pauses"].partition('[[replies]]\n[[replies.parts]]\ntext = "Three"')[0]
    (rig.home / "pauses.toml").write_text(
        f'{pauses}[[replies]]\nstop-reason = "paused"\n[[replies.parts]]\ntext = "Three."\n'
        '[[replies]]\n[[replies.parts]]\ntext = "Four."\n'
    )
    other = await rig.open(rounds=rounds)
    other.access_runs().worker.poke()
    turn = await (await other.access_run(run.identity)).result()
    assert turn.text == text
    assert turn.stop_reason == ("limit" if rounds == 2 else "finished")


async def test_events_that_died_with_their_worker_are_written_from_the_history(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.bank.hangs = True
    one = await rig.open(idempotent=True)

    async def lose(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(one.access_runs().store, "append_events", lose)
    run = await rig.start(one, "call")
    await rig.bank.began.wait()
    await one.close()
    rig.bank.hangs = False
    other = await rig.open(idempotent=True)
    other.access_runs().worker.poke()
    found = await other.access_run(run.identity)
    turn = await found.result()
    events = [event for _, event in await follow(found)]
    ended = [event.message for event in events if isinstance(event, MessageCompleted)]
    replies = (AssistantCanister, InvocationCanister)
    assert ended == [one.identity for one in turn.canisters if isinstance(one, replies)]
    assert text_of(await follow(found)) == '{"sum":3}It is done.'


@pytest.mark.parametrize("name", ["append_events", "begin_call"])
async def test_a_disk_that_is_full_for_a_moment_only_delays_a_run(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    work, failures = getattr(SqliteRunStore, name), 1

    async def fail_once(*given: Any, **options: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StorageError("runs: database or disk is full")
        return await work(*given, **options)

    monkeypatch.setattr(SqliteRunStore, name, fail_once)
    run = await rig.start(session, "call")
    events = await follow(run)
    assert failures < 0
    assert events[-1][1] == RunEnded(RunStatus.COMPLETED)
    assert rig.bank.transfers == sum(isinstance(one, CallEnded) for _, one in events)
    begun = [one.message for _, one in events if isinstance(one, MessageStarted)]
    ended = [one.message for _, one in events if isinstance(one, MessageCompleted)]
    again = [one.message for _, one in events if isinstance(one, RunContinued) and one.message]
    assert sorted(begun) == sorted([*ended, *again])


async def follow_some(run: Run, number: int) -> list[tuple[int, RunEvent]]:
    """The first events, once they are recorded."""
    while True:
        store, record = run._store, run.record
        found = await store.read_events(record.user, run.identity, limit=number)
        if len(found) == number:
            return [one async for one in _first(run, number)]
        await asyncio.sleep(0.01)


async def _first(run: Run, number: int) -> AsyncIterator[tuple[int, RunEvent]]:
    async for one in run.events():
        yield one
        number -= 1
        if not number:
            return


async def test_a_worker_that_lost_its_run_appends_nothing_and_runs_nothing(rig: Rig) -> None:
    rig.bank.hangs = True
    session = await rig.open()
    run = await rig.start(session, "call")
    await rig.bank.began.wait()
    runs, other = session.access_runs(), await rig.open()
    (job,) = runs.worker._jobs.values()
    # Its process was stopped for longer than the lease, so another one has the run.
    for task in (runs.worker._renewing, runs.worker._task):
        assert task is not None
        task.cancel()
    rig.bank.hangs = False
    found = await other.access_run(run.identity)
    other.access_runs().worker.poke()
    turn = await found.result()
    assert rig.bank.transfers == 1
    with pytest.raises(LeaseLost):
        await job.confirm()
    with pytest.raises(LeaseLost):
        await runs.store.append_events(Lease("local", run.identity, 1), [(1, b"{}")])
    await session.close()
    conversation = await other.resume(run.record.conversation)
    assert conversation.canisters == turn.canisters


async def test_a_run_that_moved_to_a_fork_is_continued_there(rig: Rig) -> None:
    one, other = await rig.open(approval="ask"), await rig.open(approval="ask")
    conversation = await one.begin("scripted/call", invokers=one.registered_invokers.values())
    await conversation.add("Earlier words.")
    run = await one.start(conversation, "Go on.")
    _, asked = await wait_for(run, ApprovalRequested)
    # Something else is said in the conversation while the run waits.
    await (await other.resume(conversation.identity)).add("In between.")
    one.access_runs().worker.pause()
    await run.decide(asked.invocation, Decision.ALLOW)
    other.access_runs().worker.poke()
    found = await other.access_run(run.identity)
    assert (await found.result()).text == "It is done."
    assert rig.bank.transfers == 1


async def test_a_run_begins_where_it_is_started_unless_there_is_no_room(rig: Rig) -> None:
    session = await rig.open(parallel=1)
    slow = await rig.start(session, "slow")
    assert (slow.record.epoch, slow.record.status) == (1, RunStatus.RUNNING)
    queued = await rig.start(session, "talk")
    assert (queued.record.epoch, queued.record.status) == (0, RunStatus.QUEUED)
    await slow.cancel()
    assert (await queued.result()).text == TEXT


async def test_a_conversation_of_this_process_that_another_stored_is_read_again(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    one.access_runs().worker.pause()
    conversation = await one.begin("scripted/talk")
    run = await one.start(conversation, "Go on.")
    other.access_runs().worker.poke()
    assert (await run.result()).text == TEXT
    await conversation.refresh()
    assert [type(canister) for canister in conversation.canisters] == [
        *(UserCanister, AssistantCanister)
    ]


async def test_what_moved_a_run_is_recorded_before_its_calls(rig: Rig) -> None:
    session = await rig.open()
    rig.bank.hangs = True
    conversation = await session.begin(
        "scripted/call", invokers=session.registered_invokers.values()
    )
    await conversation.add("Earlier words.")
    other = await rig.open()
    await (await other.resume(conversation.identity)).add("In between.")
    run = await session.start(conversation, "Go on.")
    await rig.bank.began.wait()
    (moved,) = [one.conversation for one in await other.survey_runs()]
    assert moved != run.record.conversation
    assert moved == conversation.identity
    await run.cancel()
    await run.result()


async def test_removing_a_conversation_removes_its_runs(rig: Rig) -> None:
    session = await rig.open()
    run = await rig.start(session, "talk")
    await run.result()
    await session.remove(run.record.conversation)
    assert await session.survey_runs() == []
    store = session.access_runs().store
    assert await store.read_events("local", run.identity) == []


async def test_a_stranger_has_no_runs_of_others(rig: Rig) -> None:
    session = await rig.open()
    run = await rig.start(session, "talk")
    await run.result()
    store = session.access_runs().store
    assert await store.survey("eve") == []
    assert await store.read_events("eve", run.identity) == []
    for work in (
        store.access("eve", run.identity),
        store.cancel("eve", run.identity, end_cancelled),
        store.decide("eve", run.identity, "x", allowed=True),
    ):
        with pytest.raises(RunNotFound):
            await work


async def test_what_no_other_process_could_rebuild_is_refused(rig: Rig) -> None:
    session = await rig.open()

    def secret() -> str:
        "Known here only."
        return ""

    conversation = await session.begin("scripted/talk", invokers=[secret])
    with pytest.raises(RequestError, match="'secret' is known to this conversation only"):
        await session.start(conversation, "Hello")
    unsaved = await session.begin("scripted/talk", save=False)
    with pytest.raises(RequestError, match="begin it with save"):
        await session.start(unsaved, "Hello")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_instructions_of_a_run_are_read_once_and_not_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    read: list[list[str]] = []
    converse = ScriptedModel.converse

    async def watch(self: ScriptedModel, canisters: Sequence[Any], *rest: Any) -> Any:
        # The system prompt is stored apart once the conversation is.
        texts = [one.contents[0].data for one in canisters]
        read.append([text if isinstance(text, str) else "Be brief." for text in texts])
        return await converse(self, canisters, *rest)

    monkeypatch.setattr(ScriptedModel, "converse", watch)
    session = await rig.open()
    if elsewhere:
        session.access_runs().worker.pause()
        (await rig.open()).access_runs().resume()
    conversation = await session.begin("scripted/talk", supervisor="Be brief.")
    said = conversation.read_prompt("Count.")
    instructed = {"instructions": ["In French."]}
    await (await session.access_runs().start(conversation, said, **instructed)).result()  # type: ignore[arg-type]
    await conversation.refresh()
    await (await session.start(conversation, "Again.")).result()
    assert read == [
        ["Be brief.", "In French.", "Count."],
        ["Be brief.", "Count.", TEXT, "Again."],
    ]


async def test_a_long_reply_is_read_in_another_process(rig: Rig) -> None:
    text = "word " * 2000
    (rig.home / "talk.toml").write_text(SCRIPTS["talk"].replace(TEXT, text))
    session = await rig.open()
    run = await rig.start(session, "talk")
    await run.result()
    other = await (await rig.open()).access_run(run.identity)
    assert (await other.result()).text == text
