"""The history of one conversation: what is appended is kept, wherever it has to go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import workers
from tests.faults.archives import FAST, identities_of, lines_of, open_all, produce_details, say
from tests.faults.calls import SystemCalls
from tests.faults.processes import Worker
from vibe_llms.base.exceptions import (
    ContentMissing,
    ConversationNotFound,
    ForkPointInvalid,
    RequestError,
    StorageError,
)
from vibe_llms.base.futures import ShieldedFuture
from vibe_llms.conversations.history import History, locate
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent
from vibe_llms.messages.events import Notice
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.conversations import ConversationFolder
from vibe_llms.storage.interfaces import Origin


def ignore(notice: Notice) -> None:
    raise AssertionError(f"nothing was to be reported: {notice.text}")


async def begin(folder: Path, *texts: str, name: str = "") -> History:
    history = History.begin(DirectoryArchive(folder, FAST), name=name, model="m", tags=["t"])
    await history.append(say(*(texts or ("first",))), ignore)
    return history


def kept(history: History) -> list[str]:
    """The identities of what the archive has."""
    assert isinstance(history.archive, DirectoryArchive)
    other = DirectoryArchive(history.archive.folder, FAST)
    return identities_of(other.restore_now(history.identity))


def remembered(history: History) -> list[str]:
    return [canister.identity for canister in history.canisters]


async def test_a_history_without_an_archive_is_kept_in_memory() -> None:
    history = History.begin(None, name="a name", canisters=say("given"))
    await history.append(say("one", "two"), ignore)
    assert len(history.canisters) == 3
    assert not history.stored
    twin = await history.fork(2, name="fork")
    assert twin.canisters == history.canisters[:2]
    assert twin.details.forked_from == Origin(history.identity, history.canisters[1].identity)
    await history.withdraw(1, ignore, "why")
    assert len(history.canisters) == 1
    await history.revise(name="new", model="other")
    assert (history.details.name, history.details.model) == ("new", "other")
    await history.revise()
    assert len(twin.canisters) == 2


async def test_a_history_is_stored_with_its_first_message(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    history = History.begin(archive, name="a name", canisters=say("supervisor"))
    await history.append((), ignore)
    await history.revise(model="m")
    assert not history.stored
    assert archive.survey_now() == []
    await history.append(say("first"), ignore)
    assert history.stored
    assert kept(history) == remembered(history)
    again, notices = await History.restore(archive, history.identity)
    assert again.canisters == history.canisters
    assert again.details == history.details
    assert (again.stored, notices) == (True, ())


async def test_details_are_changed_where_they_are_kept(tmp_path: Path) -> None:
    history = await begin(tmp_path)
    await history.revise(name="new")
    assert history.details.name == "new"
    assert isinstance(history.archive, DirectoryArchive)
    assert (await history.archive.restore(history.identity)).details == history.details


async def test_a_change_that_could_not_be_kept_is_not_remembered(tmp_path: Path) -> None:
    history = await begin(tmp_path, name="old")
    with SystemCalls(fail_at=2), pytest.raises(StorageError):
        await history.revise(name="new")
    assert history.details.name == "old"


async def test_a_fork_is_independent(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one", "two", "three")
    twin = await history.fork(2, name="fork")
    assert twin.details.forked_from == Origin(history.identity, history.canisters[1].identity)
    assert (twin.details.name, twin.details.model, twin.details.tags) == ("fork", "m", ("t",))
    await twin.append(say("on"), ignore)
    await history.append(say("on"), ignore)
    assert kept(twin) == remembered(twin)
    assert kept(history) == remembered(history)
    assert (len(twin.canisters), len(history.canisters)) == (3, 4)
    empty = await history.fork(0)
    assert not empty.stored
    await empty.append(say("from the beginning"), ignore)
    assert kept(empty) == remembered(empty)


# Two hold one conversation.


async def check_two_holders(folder: Path) -> None:
    """The one that is behind goes on in a fork, says so, and neither loses a word."""
    archive = DirectoryArchive(folder, FAST)
    ahead = await begin(folder, name="river")
    behind, _ = await History.restore(archive, ahead.identity)
    before = ahead.identity
    await ahead.append(say("ahead"), ignore)
    reported: list[Notice] = []
    late = say("late", "and later")
    await behind.append(late, reported.append)
    assert [notice.subject for notice in reported] == ["fork"]
    assert "another process has continued this conversation" in reported[0].text
    assert behind.identity in reported[0].text
    assert (ahead.identity, behind.identity == before) == (before, False)
    assert remembered(behind) == [remembered(ahead)[0], *(one.identity for one in late)]
    for history in (ahead, behind):
        await history.append(say("on"), ignore)
        assert kept(history) == remembered(history)
    assert behind.details.forked_from == Origin(before, remembered(ahead)[0])
    assert len(archive.survey_now()) == 2
    # The name stays with the one that was not left.
    assert await archive.resolve("river") == before


async def test_a_stale_conversation_continues_in_a_fork(tmp_path: Path) -> None:
    await check_two_holders(tmp_path)


async def test_that_check_sees_an_append_to_any_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = ConversationFolder.append

    def append_anyhow(self: ConversationFolder, canisters: Sequence[Canister], **_: Any) -> Any:
        return append(self, canisters, after=None)

    monkeypatch.setattr(ConversationFolder, "append", append_anyhow)
    with pytest.raises(AssertionError):
        await check_two_holders(tmp_path)


async def test_two_processes_hold_one_conversation(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path)
    archive.create_now(workers.SHARED, produce_details(), say("first"))
    history, _ = await History.restore(archive, workers.SHARED)
    other = Worker(workers.append_messages, tmp_path, 1)
    reported: list[Notice] = []
    said: list[str] = []
    for number in range(20):
        other.wait_until_reported(number)
        (canister,) = say(f"mine {number}")
        await history.append([canister], reported.append)
        said.append(canister.identity)
    theirs = other.kill()
    assert len(reported) == 1
    assert set(said) <= set(kept(history))
    opened = open_all(archive)
    assert set(opened) == {workers.SHARED, history.identity}
    assert set(theirs) <= set(identities_of(opened[workers.SHARED]))


async def test_results_of_parallel_calls_come_at_once_and_need_no_fork(tmp_path: Path) -> None:
    history = await begin(tmp_path)
    await asyncio.gather(*(history.append(say(f"result {n}"), ignore) for n in range(16)))
    assert len(history.canisters) == 17
    assert kept(history) == remembered(history)


async def test_a_first_message_that_comes_twice_at_once_makes_one_conversation(
    tmp_path: Path,
) -> None:
    history = History.begin(DirectoryArchive(tmp_path, FAST))
    await asyncio.gather(*(history.append(say(f"{n}"), ignore) for n in range(4)))
    await history.revise(name="new")
    assert kept(history) == remembered(history)
    assert len(history.canisters) == 4


# The conversation that one holds goes, or is damaged: what was received is still kept.


async def test_a_conversation_that_another_process_begins_first_continues_in_a_fork(
    tmp_path: Path,
) -> None:
    first = await begin(tmp_path)
    second = History(first.archive, first.details, identity=first.identity)
    await first.append([UserCanister.from_text("one")], ignore)
    reported: list[Notice] = []
    await second.append([UserCanister.from_text("two")], reported.append)
    assert [notice.subject for notice in reported] == ["fork"]
    assert second.identity != first.identity
    assert kept(second) == remembered(second)
    assert kept(first) == remembered(first)


async def check_rescue(history: History, reason: str) -> None:
    before = history.identity
    reported: list[Notice] = []
    (said,) = say("a paid reply")
    await history.append([said], reported.append)
    assert [notice.subject for notice in reported] == ["fork"]
    assert reason in reported[0].text
    assert history.identity != before
    assert kept(history) == remembered(history)
    assert remembered(history)[-1] == said.identity
    assert history.details.forked_from == Origin(before, remembered(history)[-2])
    await history.append(say("on"), ignore)
    assert kept(history) == remembered(history)


async def test_what_is_said_in_a_removed_conversation_is_kept(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one", "x" * 2_000)
    assert isinstance(history.archive, DirectoryArchive)
    await DirectoryArchive(tmp_path, FAST).remove(history.identity)
    history.archive.collect_now(grace_seconds=-1)
    await check_rescue(history, "not found")
    assert len(history.canisters) == 4


async def test_an_empty_conversation_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    archive.create_now("abcd", produce_details(), ())
    history, _ = await History.restore(archive, "abcd")
    archive.remove_now("abcd")
    reported: list[Notice] = []
    await history.append(say("first"), reported.append)
    assert len(reported) == 1
    assert kept(history) == remembered(history)


async def test_what_is_said_after_the_last_line_was_taken_out_is_kept(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one", "two")
    assert isinstance(history.archive, DirectoryArchive)
    path = lines_of(history.archive, history.identity)
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    await check_rescue(history, "another process has continued")
    assert len(history.canisters) == 4


async def test_what_is_said_after_the_last_line_was_damaged_is_kept(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one", "two")
    assert isinstance(history.archive, DirectoryArchive)
    path = lines_of(history.archive, history.identity)
    path.write_bytes(path.read_bytes().replace(b'"data":"two"', b'"data":two'))
    await check_rescue(history, "the last line cannot be read")


async def test_what_is_said_in_a_conversation_of_a_newer_format_is_kept(tmp_path: Path) -> None:
    history = await begin(tmp_path)
    assert isinstance(history.archive, DirectoryArchive)
    path = history.archive.conversations / history.identity / "metadata.toml"
    path.write_text("format = 2\n")
    lines_of(history.archive, history.identity).touch()
    other, _ = (
        History(
            DirectoryArchive(tmp_path, FAST),
            history.details,
            identity=history.identity,
            canisters=history.canisters,
            stored=True,
        ),
        None,
    )
    await check_rescue(other, "written by a newer version of vibe-llms")
    assert path.read_text() == "format = 2\n"


async def test_a_picture_that_has_gone_with_its_conversation_is_reported(tmp_path: Path) -> None:
    history = History.begin(DirectoryArchive(tmp_path, FAST))
    await history.append([UserCanister((ImageContent(b"picture"),))], ignore)
    assert isinstance(history.archive, DirectoryArchive)
    other = DirectoryArchive(tmp_path, FAST)
    other.remove_now(history.identity)
    other.collect_now(grace_seconds=-1)
    reported: list[Notice] = []
    with pytest.raises(ContentMissing):
        await history.append(say("on"), reported.append)
    assert len(reported) == 1
    assert len(history.canisters) == 1


async def test_a_disk_that_fails_in_the_middle_of_leaving_loses_nothing(tmp_path: Path) -> None:
    """Whatever call fails while the fork is made, the same append works the next time."""
    counted = 0
    at = 0
    while at <= counted:
        folder = tmp_path / str(at)
        ahead = await begin(folder)
        behind, _ = await History.restore(DirectoryArchive(folder), ahead.identity)
        await ahead.append(say("ahead"), ignore)
        reported: list[Notice] = []
        late = say("late")
        with SystemCalls(fail_at=at or None, syncing=False) as calls:
            try:
                await behind.append(late, reported.append)
            except StorageError:
                await behind.append(late, reported.append)
        counted = max(counted, len(calls.names) if not at else 0)
        assert remembered(behind) == [remembered(ahead)[0], late[0].identity]
        assert kept(behind) == remembered(behind)
        assert reported
        at += 1
    assert counted > 40


async def test_a_listener_that_raises_loses_nothing(tmp_path: Path) -> None:
    ahead = await begin(tmp_path)
    behind, _ = await History.restore(DirectoryArchive(tmp_path, FAST), ahead.identity)
    await ahead.append(say("ahead"), ignore)

    def refuse(_: Notice) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await behind.append(say("late"), refuse)
    assert kept(behind) == remembered(behind)
    assert len(behind.canisters) == 2


async def test_repairs_are_reported(tmp_path: Path) -> None:
    history = await begin(tmp_path)
    assert isinstance(history.archive, DirectoryArchive)
    with lines_of(history.archive, history.identity).open("ab") as lines:
        lines.write(b"torn")
    reported: list[Notice] = []
    await history.append(say("on"), reported.append)
    assert [notice.subject for notice in reported] == ["repair"]
    with lines_of(history.archive, history.identity).open("ab") as lines:
        lines.write(b"torn")
    _, notices = await History.restore(history.archive, history.identity)
    assert [notice.subject for notice in notices] == ["repair"]


# Cancelling.


class Gate:
    """Holds the disk until it is opened; reports when a task waits for it."""

    def __init__(self, call: str) -> None:
        self._call = call
        self.reached = threading.Event()
        self.opened = threading.Event()

    def before(self, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        if name == self._call:
            self.reached.set()
            assert self.opened.wait(60)

    def after(self, *_: object) -> None:
        return None


async def check_cancelling(folder: Path) -> None:
    """An append that has begun is carried out, however often the task is cancelled."""
    history = await begin(folder)
    gate = Gate("write")
    with SystemCalls(observer=gate):
        task = asyncio.create_task(history.append(say("on"), ignore))
        await asyncio.to_thread(gate.reached.wait, 60)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(history.canisters) == 2
    assert kept(history) == remembered(history)


async def test_an_append_is_carried_out_although_the_task_is_cancelled(tmp_path: Path) -> None:
    await check_cancelling(tmp_path)


async def test_that_check_sees_an_append_that_ends_with_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShieldedFuture, "cancel", asyncio.Future.cancel)
    gates: list[Gate] = []
    making = Gate.__init__

    def remember(self: Gate, call: str) -> None:
        making(self, call)
        gates.append(self)

    monkeypatch.setattr(Gate, "__init__", remember)
    try:
        with pytest.raises(AssertionError):
            await check_cancelling(tmp_path)
    finally:
        gates[0].opened.set()


async def test_a_cancelled_append_that_has_to_go_elsewhere_is_carried_out_first(
    tmp_path: Path,
) -> None:
    ahead = await begin(tmp_path)
    behind, _ = await History.restore(DirectoryArchive(tmp_path, FAST), ahead.identity)
    await ahead.append(say("ahead"), ignore)
    gate = Gate("stat")
    notices: list[Notice] = []
    with SystemCalls(observer=gate):
        task = asyncio.create_task(behind.append(say("late"), notices.append))
        await asyncio.to_thread(gate.reached.wait, 60)
        task.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [notice.subject for notice in notices] == ["fork"]
    assert kept(behind) == remembered(behind)
    assert len(behind.canisters) == 2


# Work for an append.


class Rounds:
    """Counts the rounds of the event loop, the tasks, and what other threads ask it to call."""

    def __init__(self) -> None:
        self.rounds = self.tasks = self.calls = 0

    async def count(self, work: Callable[[], Awaitable[object]]) -> None:
        """Count from the first step of some work to its last."""
        loop: Any = asyncio.get_running_loop()
        select, call = loop._selector.select, loop.call_soon_threadsafe

        def selected(*values: Any) -> Any:
            self.rounds += 1
            return select(*values)

        def called(*values: Any, **named: Any) -> Any:
            self.calls += 1
            return call(*values, **named)

        def begun(loop: Any, work: Any, **named: Any) -> Any:
            self.tasks += 1
            return asyncio.Task(work, loop=loop, **named)

        loop._selector.select, loop.call_soon_threadsafe = selected, called
        loop.set_task_factory(begun)
        try:
            await work()
        finally:
            loop._selector.select, loop.call_soon_threadsafe = select, call
            loop.set_task_factory(None)


async def test_a_durable_append_wakes_the_loop_once_and_takes_no_task(tmp_path: Path) -> None:
    history = History.begin(DirectoryArchive(tmp_path))
    for text in ("first", "second"):
        await history.append(say(text), ignore)
    rounds = Rounds()
    await rounds.count(lambda: history.append(say("third"), ignore))
    assert (rounds.calls, rounds.tasks) == (1, 0)
    # It sleeps, is woken, and goes on with the task that waits.
    assert rounds.rounds == 2
    assert len(kept(history)) == 3


async def test_an_append_that_is_not_synced_takes_no_round_of_the_loop(tmp_path: Path) -> None:
    history = await begin(tmp_path)
    # It opens the file.
    await history.append(say("second"), ignore)
    rounds = Rounds()
    await rounds.count(lambda: history.append(say("third"), ignore))
    assert (rounds.calls, rounds.tasks, rounds.rounds) == (0, 0, 0)
    assert kept(history) == remembered(history)
    assert len(kept(history)) == 3


# Taking back.


async def test_turns_are_taken_back_in_a_fork_that_takes_the_name(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one", name="river")
    reply = AssistantCanister.from_text("1")
    await history.append([reply, *say("two", "and more")], ignore)
    created = history.canisters[-1].created
    whole = kept(history)
    for turns, keep_prompt, left in ((1, False, 2), (1, True, 4), (2, False, 0), (2, True, 1)):
        await history.revise(name="river")
        twin = await history.rewind(turns, keep_prompt=keep_prompt)
        assert remembered(twin) == whole[:left]
        assert not left or kept(twin) == whole[:left]
        assert (twin.details.name, kept(history)) == ("river", whole)
        assert history.details.name == f"river (until {created:%Y-%m-%d %H:%M:%S})"
    with pytest.raises(ForkPointInvalid, match="only 2 of 3 turns can be undone"):
        await history.rewind(3, keep_prompt=False)
    with pytest.raises(RequestError, match="0 turns cannot be undone"):
        await history.rewind(0, keep_prompt=False)


async def test_a_history_without_a_name_keeps_none_when_it_is_taken_back(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one")
    twin = await history.rewind(1, keep_prompt=True)
    assert (history.details.name, twin.details.name) == ("", "")
    assert remembered(twin) == kept(history)


# Withdrawing.


async def test_a_withdrawn_message_stays_stored_and_the_fork_takes_the_name(
    tmp_path: Path,
) -> None:
    history = await begin(tmp_path, "one", "two", "too much", name="river")
    assert isinstance(history.archive, DirectoryArchive)
    old, created = history.identity, history.canisters[-1].created
    before = kept(history)
    reported: list[Notice] = []
    await history.withdraw(2, reported.append, "it was too long")
    assert [notice.subject for notice in reported] == ["fork"]
    assert reported[0].text == f"it was too long; this one continues as {history.identity}, a fork"
    assert len(history.canisters) == 2
    assert kept(history) == remembered(history) == before[:2]
    restored = await history.archive.restore(old)
    assert identities_of(restored) == before
    assert restored.details.name == f"river (until {created:%Y-%m-%d %H:%M:%S})"
    assert await history.archive.resolve("river") == history.identity
    await history.append(say("on"), ignore)
    assert kept(history) == remembered(history)


async def test_everything_can_be_withdrawn(tmp_path: Path) -> None:
    history = await begin(tmp_path, "too much")
    reported: list[Notice] = []
    await history.withdraw(0, reported.append, "it was too long")
    assert (history.canisters, history.stored) == ([], False)
    await history.append(say("shorter"), ignore)
    assert kept(history) == remembered(history)


async def test_a_withdrawal_is_carried_out_although_the_task_is_cancelled(tmp_path: Path) -> None:
    history = await begin(tmp_path, "one", "too much", name="river")
    gate = Gate("rename")
    reported: list[Notice] = []
    with SystemCalls(observer=gate):
        task = asyncio.create_task(history.withdraw(1, reported.append, "it was too long"))
        await asyncio.to_thread(gate.reached.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(reported) == 1
    assert kept(history) == remembered(history)
    assert len(history.canisters) == 1


# Where a history can be cut.


def produce_history() -> list[Canister]:
    """A question, a reply of text and two calls, their results, an answer of two canisters."""
    calls = [InvocationCanister(name="tool", reply="r1") for _ in range(2)]
    return [
        UserCanister.from_text("question"),
        AssistantCanister(reply="r1"),
        *calls,
        *(ResultCanister(invocation=call.identity) for call in calls),
        AssistantCanister(reply="r2"),
        AssistantCanister(reply="r2"),
        UserCanister.from_text("further"),
    ]


@pytest.mark.parametrize(
    ("at", "count"), [(None, 9), (0, 1), (5, 6), (7, 8), (8, 9), (-1, 9), (-9, 1), (-2, 8)]
)
def test_a_history_is_cut_after_a_message(at: int | None, count: int) -> None:
    history = produce_history()
    assert locate(history, at) == count
    if at is not None:
        assert locate(history, history[at].identity) == count


@pytest.mark.parametrize(
    ("at", "nearest"),
    [(1, (0, 5)), (2, (0, 5)), (3, (0, 5)), (4, (0, 5)), (6, (5, 7)), (-3, (5, 7))],
)
def test_a_point_within_a_reply_names_the_nearest_valid_ones(
    at: int, nearest: tuple[int, int]
) -> None:
    history = produce_history()
    with pytest.raises(ForkPointInvalid) as raised:
        locate(history, at)
    assert raised.value.nearest == tuple(history[index].identity for index in nearest)
    assert f"{history[nearest[0]].identity} and {history[nearest[1]].identity}" in str(raised.value)


def test_within_the_first_reply_there_is_no_point_before() -> None:
    history: list[Canister] = [AssistantCanister(reply="r"), AssistantCanister(reply="r")]
    with pytest.raises(ForkPointInvalid) as raised:
        locate(history, 0)
    assert raised.value.nearest == (history[1].identity,)


def test_canisters_that_a_program_made_are_no_reply() -> None:
    history: list[Canister] = [AssistantCanister(), AssistantCanister()]
    assert locate(history, 0) == 1


@pytest.mark.parametrize("at", [9, -10, 1_000])
def test_an_index_beyond_the_history_is_not_found(at: int) -> None:
    with pytest.raises(
        ConversationNotFound, match=f"message {at} not found: this conversation has 9 messages"
    ):
        locate(produce_history(), at)


def test_an_unknown_identity_is_not_found() -> None:
    with pytest.raises(ConversationNotFound, match="message 'unknown' not found"):
        locate(produce_history(), "unknown")
