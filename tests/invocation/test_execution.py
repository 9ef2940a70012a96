"""The calls of one turn: each has one result, however it ends, and none disturbs another."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.redaction import remember
from vibe_llms.invocation import execution as executions
from vibe_llms.invocation.execution import INTERRUPTED, Execution, execute
from vibe_llms.invocation.invokers import Approval, InvocationContext, Invoker, gather_invokers
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import (
    Event,
    EventHandler,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    ignore_events,
)

FOREVER = 3600.0


def check_ended(events: Sequence[Event]) -> None:
    """Every call that has begun has ended, once and after that."""
    running: set[str] = set()
    for event in events:
        match event:
            case InvocationStartedEvent(invocation=invocation):
                assert invocation.identity not in running
                running.add(invocation.identity)
            case InvocationCompletedEvent() | InvocationFailedEvent():
                running.remove(event.invocation.identity)
                assert event.result.invocation == event.invocation.identity
    assert not running


class Desk:
    """Tools that end in every way, and a record of what was kept."""

    def __init__(self) -> None:
        self.kept: list[ResultCanister] = []
        self.events: list[Event] = []
        self.running = 0
        self.most = 0
        self.cleaned = 0
        self.writes = 0

    async def keep(self, results: Sequence[ResultCanister]) -> None:
        await asyncio.sleep(0)
        self.kept += results
        self.writes += 1

    async def ok(self, number: int) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            return f"ok {number}"
        finally:
            self.running -= 1

    def blocking(self, number: int) -> str:
        return f"blocking {number}"

    async def failing(self, number: int) -> str:
        raise LookupError(f"no {number}")

    async def leaving(self, number: int) -> str:
        raise SystemExit(number)

    async def cancelling(self, number: int) -> str:
        raise asyncio.CancelledError

    async def grouped(self, number: int) -> str:
        raise BaseExceptionGroup("group", [SystemExit(number), LookupError()])

    async def hanging(self, number: int) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned += 1
        return "never"

    def invokers(self) -> dict[str, Invoker]:
        tools: list[Callable[..., object]] = [self.ok, self.blocking, self.failing, self.leaving]
        return gather_invokers([*tools, self.cancelling, self.grouped, self.hanging])

    def execution(
        self,
        *,
        event_handler: EventHandler | None = None,
        keep: Callable[[Sequence[ResultCanister]], Awaitable[None]] | None = None,
        timeout_seconds: float = FOREVER,
        parallel: int = 16,
    ) -> Execution:
        return Execution(
            invokers=self.invokers(),
            event_handler=event_handler or self.events.append,
            keep=keep or self.keep,
            conversation="talk",
            timeout_seconds=timeout_seconds,
            parallel=parallel,
        )

    @property
    def texts(self) -> dict[str, str]:
        return {result.invocation: result.text for result in self.kept}


def call(name: str, number: int = 0, arguments: str | None = None) -> InvocationCanister:
    text = f'{{"number": {number}}}' if arguments is None else arguments
    return InvocationCanister(name=name, arguments=text)


def tasks() -> set[asyncio.Task[Any]]:
    """All tasks but those of the test runner."""
    return {task for task in asyncio.all_tasks() if "TestRunner" not in repr(task.get_coro())}


ENDINGS = {
    "ok": (False, "ok 1"),
    "blocking": (False, "blocking 1"),
    "failing": (True, "The tool failed: LookupError: no 1"),
    "leaving": (True, "The tool failed: SystemExit: 1"),
    "cancelling": (True, "The tool cancelled itself."),
    "grouped": (True, "The tool failed: BaseExceptionGroup"),
    "hanging": (True, "The tool did not return within 0.01 seconds."),
    "nothing": (True, "Tool 'nothing' not found. Available tools: blocking, cancelling"),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_call_ends_with_a_result_in_every_way_that_a_tool_can(name: str) -> None:
    desk = Desk()
    failed, text = ENDINGS[name]
    invocation = call(name, 1)
    await execute([invocation], desk.execution(timeout_seconds=0.01 if failed else FOREVER))
    (result,) = desk.kept
    assert result.invocation == invocation.identity
    assert result.failed is failed
    assert result.text.startswith(text)
    started, ended = desk.events
    assert started == InvocationStartedEvent(invocation=invocation, conversation="talk")
    kind = InvocationFailedEvent if failed else InvocationCompletedEvent
    assert ended == kind(result=result, invocation=invocation, conversation="talk")


WIDE = {"timeout_seconds": FOREVER, "shown_bytes": 100, "kept_bytes": 100}


@pytest.mark.parametrize(
    ("narrow", "said"),
    [
        ({"timeout_seconds": 0.01}, "The tool did not return within 0.01 seconds."),
        ({"shown_bytes": 4}, "012\n[… 6 of 10 bytes left out …]\n9"),
        ({"kept_bytes": 4}, "The tool returned 10 bytes; at most 4 are kept."),
    ],
)
async def test_limits_of_a_tool_go_before_those_of_the_turn(
    narrow: dict[str, Any], said: str
) -> None:
    async def produce() -> str:
        await asyncio.sleep(0.02)
        return "0123456789"

    for own, common in ((narrow, WIDE), (WIDE, narrow), ({}, narrow)):
        desk = Desk()
        invokers = {"produce": Invoker.from_function(produce, **own)}
        execution = structs.replace(desk.execution(), invokers=invokers, **common)
        await execute([call("produce", arguments="{}")], execution)
        assert desk.kept[0].text.startswith("0123456789" if own is WIDE else said)


async def test_wrong_arguments_are_reported_to_the_model() -> None:
    desk = Desk()
    calls = [call("ok", arguments=text) for text in ('{"number": "x"}', '{"number": 1', "")]
    await execute(calls, desk.execution())
    assert desk.texts[calls[0].identity] == (
        "The arguments are not valid:\nnumber: Input should be a valid integer"
    )
    assert "not valid JSON" in desk.texts[calls[1].identity]
    assert "did not arrive" in desk.texts[calls[2].identity]


async def test_a_tool_whose_parameters_are_all_optional_runs_without_arguments() -> None:
    def look(place: str = "here") -> str:
        return place

    desk = Desk()
    execution = structs.replace(desk.execution(), invokers=gather_invokers([look]))
    await execute([call("look", arguments="")], execution)
    assert [one.text for one in desk.kept] == ["here"]


async def test_without_any_tool_the_prompt_says_that_there_is_none() -> None:
    desk = Desk()
    execution = Execution(invokers={}, event_handler=ignore_events, keep=desk.keep)
    await execute([call("ok")], execution)
    assert desk.kept[0].text == "Tool 'ok' not found. No tools are available."


async def test_the_error_of_a_tool_goes_to_the_log_and_its_keys_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "canary-0123456789"
    remember(secret)

    def leak() -> None:
        raise LookupError(f"refused: {secret} \ud800")

    desk = Desk()
    execution = Execution(
        invokers=gather_invokers([leak]), event_handler=ignore_events, keep=desk.keep
    )
    with caplog.at_level(logging.DEBUG):
        await execute([call("leak", arguments="{}")], execution)
    assert desk.kept[0].text == "The tool failed: LookupError: refused: [secret] \ufffd"
    assert "the tool leak failed" in caplog.text
    assert "LookupError: refused: [secret]" in caplog.text
    assert secret not in caplog.text
    assert caplog.text.isascii()


@pytest.mark.parametrize(
    ("approval", "sends", "asked"), [("ask", False, 0), ("allow", True, 0), ("allow", False, 1)]
)
async def test_a_call_that_may_need_approval_is_checked_before(
    approval: Approval, sends: bool, asked: int
) -> None:
    desk, admitted = Desk(), list[str]()

    async def admit(invocation: InvocationCanister, _: Invoker) -> str:
        admitted.append(invocation.name)
        return ""

    invoker = Invoker.from_function(desk.ok, approval=approval, sends=sends)
    execution = structs.replace(desk.execution(), invokers={"ok": invoker}, admit=admit)
    await execute([call("ok", arguments='{"number": "x"}')], execution)
    assert len(admitted) == asked
    (result,) = desk.kept
    assert result.failed
    assert result.text.startswith("The arguments are not valid:")


async def test_contents_of_a_tool_that_hold_lone_surrogates_are_repaired() -> None:
    def speak() -> TextualContent:
        return TextualContent("a\ud800")

    desk = Desk()
    execution = Execution(
        invokers=gather_invokers([speak]), event_handler=ignore_events, keep=desk.keep
    )
    await execute([call("speak", arguments="{}")], execution)
    assert desk.kept[0].text == "a\ufffd"


async def check_mix(chance: random.Random) -> None:
    """A random mix of calls: one result each, no more at once than allowed, nothing left over."""
    desk = Desk()
    parallel = chance.choice([1, 2, 16])
    names = chance.choices(list(ENDINGS), k=chance.randrange(1, 17))
    calls = [call(name, number) for number, name in enumerate(names)]
    before = tasks()
    await executions.execute(calls, desk.execution(timeout_seconds=0.005, parallel=parallel))
    assert sorted(result.invocation for result in desk.kept) == sorted(c.identity for c in calls)
    for invocation in calls:
        failed, _ = ENDINGS[invocation.name]
        (result,) = [one for one in desk.kept if one.invocation == invocation.identity]
        # On a busy machine any tool may be the one that took too long.
        assert result.failed is failed or "did not return within" in result.text
    assert desk.most <= parallel
    assert tasks() == before
    kinds = [type(event) for event in desk.events]
    assert kinds.count(InvocationStartedEvent) == len(calls) == len(kinds) / 2


async def check_mixes(chance: random.Random, number: int) -> None:
    for _ in range(number):
        await check_mix(chance)


async def invoke_at_once(invocation: InvocationCanister, execution: Execution) -> ResultCanister:
    invoker, refusal = await executions._admit(invocation, execution, asyncio.Lock())
    if invoker is None:
        return executions._failure(invocation, refusal)
    progress = executions._Progress(execution)
    return await executions._invoke(invocation, invoker, execution, progress)


@pytest.mark.storm
async def test_any_mix_of_calls_has_one_result_each(rounds: Callable[[int, int], int]) -> None:
    await check_mixes(random.Random(6), rounds(60, 1000))


async def test_that_check_sees_a_call_that_takes_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def execute_carelessly(calls: Sequence[InvocationCanister], execution: Execution) -> None:
        async def run(invocation: InvocationCanister) -> None:
            result = await invoke_at_once(invocation, execution)
            if result.failed:
                raise RuntimeError(result.text)
            await execution.keep((result,))

        await asyncio.gather(*(run(invocation) for invocation in calls), return_exceptions=True)

    monkeypatch.setattr(executions, "execute", execute_carelessly)
    chance = random.Random(6)
    with pytest.raises(AssertionError):
        await check_mixes(chance, 20)


async def test_no_more_tools_than_allowed_run_at_once() -> None:
    desk = Desk()
    await execute([call("ok", number) for number in range(12)], desk.execution(parallel=3))
    assert desk.most == 3


async def test_results_are_kept_as_they_land() -> None:
    desk = Desk()
    landed = asyncio.Event()

    async def slow() -> str:
        await landed.wait()
        return "slow"

    async def quick() -> str:
        return "quick"

    async def keep(results: Sequence[ResultCanister]) -> None:
        await desk.keep(results)
        landed.set()

    execution = Execution(
        invokers=gather_invokers([slow, quick]), event_handler=ignore_events, keep=keep
    )
    await execute([call("slow", arguments="{}"), call("quick", arguments="{}")], execution)
    assert [result.text for result in desk.kept] == ["quick", "slow"]


async def test_cancelling_cancels_the_tools_and_answers_for_them() -> None:
    desk = Desk()
    calls = [call("ok", 1), call("hanging"), call("hanging")]
    task = asyncio.ensure_future(execute(calls, desk.execution()))
    while not desk.kept:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.cleaned == 2
    assert [desk.texts[c.identity] for c in calls] == ["ok 1", INTERRUPTED, INTERRUPTED]
    assert [result.failed for result in desk.kept] == [False, True, True]
    assert desk.writes == 2
    assert tasks() == set()
    check_ended(desk.events)


async def check_cancels(moment: int) -> bool:
    """Cancelled at any moment, each call has one result; returns whether it was still running."""
    desk = Desk()
    calls = [call("ok", 1), call("blocking", 2), call("failing", 3), call("ok", 4)]

    async def keep(results: Sequence[ResultCanister]) -> None:
        # As the history does: once begun, it is carried out.
        work = asyncio.ensure_future(desk.keep(results))
        cancelled = False
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    task = asyncio.ensure_future(executions.execute(calls, desk.execution(keep=keep, parallel=2)))
    for _ in range(moment):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        if not desk.kept and moment == 0:
            # It never began.
            return True
        assert sorted(one.invocation for one in desk.kept) == sorted(c.identity for c in calls)
        check_ended(desk.events)
        return True
    return False


async def check_all_cancels() -> int:
    moment = 0
    while await check_cancels(moment):
        moment += 1
    return moment


async def test_cancelled_at_any_moment_each_call_has_one_result() -> None:
    assert await check_all_cancels() > 10


async def test_that_check_sees_a_result_that_is_kept_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def execute_carelessly(calls: Sequence[InvocationCanister], execution: Execution) -> None:
        pending = {invocation.identity: invocation for invocation in calls}
        try:
            for invocation in calls:
                await execution.keep((await invoke_at_once(invocation, execution),))
                del pending[invocation.identity]
        finally:
            for invocation in pending.values():
                await execution.keep((executions._failure(invocation, INTERRUPTED),))

    monkeypatch.setattr(executions, "execute", execute_carelessly)
    with pytest.raises(AssertionError):
        await check_all_cancels()


@pytest.mark.parametrize("kind", [InvocationStartedEvent, InvocationCompletedEvent])
async def test_a_handler_that_raises_stops_all_calls_and_is_reported(kind: type[Event]) -> None:
    desk = Desk()
    calls = [call("hanging"), call("ok", 1), call("hanging")]

    def refuse(event: Event) -> None:
        if isinstance(event, kind) and event.invocation is calls[1]:  # type: ignore[union-attr]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await execute(calls, desk.execution(event_handler=refuse))
    assert sorted(desk.texts) == sorted(c.identity for c in calls)
    assert desk.texts[calls[0].identity] == INTERRUPTED
    assert (desk.texts[calls[1].identity] == "ok 1") is (kind is InvocationCompletedEvent)
    assert tasks() == set()


async def test_a_handler_that_raises_at_progress_stops_all_calls_too() -> None:
    desk = Desk()

    async def report(context: InvocationContext) -> None:
        context.report_progress("half")
        await asyncio.Event().wait()

    def refuse(event: Event) -> None:
        if isinstance(event, InvocationProgressEvent):
            raise ZeroDivisionError

    execution = Execution(invokers=gather_invokers([report]), event_handler=refuse, keep=desk.keep)
    with pytest.raises(ZeroDivisionError):
        await execute([call("report", arguments="{}")], execution)
    assert [result.text for result in desk.kept] == [INTERRUPTED]


async def test_a_keep_that_fails_stops_all_calls_and_is_reported() -> None:
    desk = Desk()

    async def keep(results: Sequence[ResultCanister]) -> None:
        if any(not result.failed for result in results):
            raise StorageError("the disk is full")
        await desk.keep(results)

    calls = [call("hanging"), call("ok", 1)]
    with pytest.raises(StorageError, match="disk is full"):
        await execute(calls, desk.execution(keep=keep))
    check_ended(desk.events)
    assert [result.invocation for result in desk.kept] == [calls[0].identity]
    assert tasks() == set()


async def test_progress_is_reported_in_order_from_threads_and_from_the_loop() -> None:
    desk = Desk()

    def from_thread(context: InvocationContext) -> None:
        for number in range(3):
            context.report_progress(f"thread {number}\ud800", number, 3.0)

    async def from_loop(context: InvocationContext) -> None:
        context.report_progress("loop")

    async def keep(results: Sequence[ResultCanister]) -> None:
        desk.kept += results

    for tool in (from_thread, from_loop):
        execution = Execution(
            invokers=gather_invokers([tool]), event_handler=desk.events.append, keep=keep
        )
        await execute([call(tool.__name__, arguments="{}")], execution)
    progress = [event for event in desk.events if isinstance(event, InvocationProgressEvent)]
    assert [(event.text, event.done, event.total) for event in progress] == [
        ("thread 0\ufffd", 0, 3.0), ("thread 1\ufffd", 1, 3.0), ("thread 2\ufffd", 2, 3.0),
        ("loop", None, None),
    ]  # fmt: skip


async def test_progress_is_reported_while_a_tool_runs() -> None:
    desk = Desk()
    seen = asyncio.Event()

    async def report(context: InvocationContext) -> str:
        context.report_progress("half")
        await seen.wait()
        return "done"

    def notice(event: Event) -> None:
        if isinstance(event, InvocationProgressEvent):
            seen.set()

    execution = Execution(invokers=gather_invokers([report]), event_handler=notice, keep=desk.keep)
    await execute([call("report", arguments="{}")], execution)
    assert desk.kept[0].text == "done"


async def test_progress_that_comes_too_late_is_dropped() -> None:
    desk = Desk()
    late: list[Callable[..., None]] = []
    returned = asyncio.Event()

    async def quick(context: InvocationContext) -> None:
        late.append(context.report_progress)

    async def slow() -> None:
        await returned.wait()
        late[0]("too late")
        await asyncio.sleep(0)

    def note(event: Event) -> None:
        desk.events.append(event)
        if isinstance(event, InvocationCompletedEvent):
            returned.set()

    execution = Execution(
        invokers=gather_invokers([quick, slow]), event_handler=note, keep=desk.keep
    )
    await execute([call("quick", arguments="{}"), call("slow", arguments="{}")], execution)
    late[0]("later still")
    await asyncio.sleep(0)
    assert not any(isinstance(event, InvocationProgressEvent) for event in desk.events)


def test_a_thread_that_reports_after_its_loop_has_ended_gets_an_error() -> None:
    reported: list[BaseException] = []
    go = threading.Event()
    threads: list[threading.Thread] = []

    def linger(context: InvocationContext) -> None:
        threads.append(threading.current_thread())
        go.wait(10)
        try:
            context.report_progress("this is not shown")
        except RuntimeError as error:
            reported.append(error)

    async def main() -> None:
        desk = Desk()
        execution = Execution(
            invokers=gather_invokers([linger]),
            event_handler=ignore_events,
            keep=desk.keep,
            timeout_seconds=0.5,
        )
        await execute([call("linger", arguments="{}")], execution)
        assert desk.kept[0].text == "The tool did not return within 0.5 seconds."

    asyncio.run(main())
    go.set()
    threads[0].join(10)
    assert len(reported) == 1


async def test_calls_end_even_if_their_interruption_cannot_be_kept() -> None:
    desk = Desk()

    async def keep(results: Sequence[ResultCanister]) -> None:
        raise StorageError("the disk is full")

    task = asyncio.ensure_future(execute([call("hanging")], desk.execution(keep=keep)))
    while not desk.events:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(StorageError):
        await task
    check_ended(desk.events)
