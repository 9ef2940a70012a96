"""Runs the calls of a turn concurrently, within limits, each with exactly one result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from msgspec import Struct

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import ArgumentsInvalid
from vibe_llms.base.redaction import redact
from vibe_llms.invocation.approval import Gatekeeper, canonical_arguments
from vibe_llms.invocation.checks import check_arguments
from vibe_llms.invocation.invokers import InvocationContext, Invoker, find_invoker
from vibe_llms.invocation.limits import Limit
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.invocation.results import ResultTooLarge, bound_contents
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.codecs import repair_canister
from vibe_llms.messages.contents import Content, TextualContent, repair_text
from vibe_llms.messages.events import (
    EventHandler,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
)
from vibe_llms.messages.tracing import Tracer

_LOGGER = get_logger("vibe_llms.invocation")

INTERRUPTED = "The call was interrupted before it returned; its outcome is unknown."
_NOT_BEGUN = "The call did not run: the turn ended before it began."


class CallSuspended(Exception):
    """A call and its turn must wait for a decision, without keeping resources."""


async def _begin(_: InvocationCanister, __: Invoker) -> str:
    return ""


class Execution(Struct, frozen=True, kw_only=True):
    """The tools, limits, and callbacks for the calls of a turn.

    `keep` is awaited for every result when it arrives, and once at the end for all missing ones.
    `admit` is awaited before a call runs and returns why it may not, as a message for the model; it
    raises `CallSuspended` for a call without a decision yet. `reuse` returns the result of a call
    that need not run. `is_tainted` returns True if the model has read untrusted text. `begin` is
    awaited right before a call runs and returns why it cannot. `ask` asks the user on behalf of a
    running call. The limits apply to tools without limits of their own.
    """

    invokers: Mapping[str, Invoker]
    event_handler: EventHandler
    keep: Callable[[Sequence[ResultCanister]], Awaitable[None]]
    admit: Callable[[InvocationCanister, Invoker], Awaitable[str]] = Gatekeeper().admit
    reuse: Callable[[InvocationCanister, Invoker], ResultCanister | None] = lambda *_: None
    is_tainted: Callable[[], bool] = lambda: False
    begin: Callable[[InvocationCanister, Invoker], Awaitable[str]] = _begin
    ask: Callable[[InvocationCanister, ElicitationRequest], Awaitable[ElicitationAnswer]] | None = (
        None
    )
    conversation: str = ""
    timeout_seconds: float = 60.0
    parallel: int = 16
    shown_bytes: int = 32 * 1024
    kept_bytes: int = 16 * 1024 * 1024
    tracer: Tracer = Tracer()


async def execute(
    invocations: Sequence[InvocationCanister], execution: Execution
) -> Sequence[InvocationCanister]:
    """Run all calls and keep each result when it arrives; return the suspended calls.

    A failing tool does not affect the others. If the task is cancelled, so are the tools, and a
    call without a result gets one that says if it began. Exceptions from `admit`, `keep` or the
    event handler stop all calls and are raised. Every call that started also sends an end event.
    """
    unanswered = {invocation.identity: invocation for invocation in invocations}
    suspended: list[InvocationCanister] = []
    begun: dict[str, ResultCanister | None] = {}
    gate = asyncio.Semaphore(execution.parallel)
    locks: dict[tuple[str, bytes], asyncio.Lock] = {}
    checking = asyncio.Lock()
    progress = _Progress(execution)

    async def run(invocation: InvocationCanister) -> None:
        meant = _translate(invocation, execution)
        try:
            invoker, refusal = await _admit(meant, execution, checking)
        except CallSuspended:
            suspended.append(unanswered.pop(invocation.identity))
            return
        async with alone(meant, invoker):
            async with gate:
                event = InvocationStartedEvent(
                    invocation=invocation, conversation=execution.conversation
                )
                execution.event_handler(event)
                begun[invocation.identity] = None
                if invoker is None:
                    result = _failure(invocation, refusal)
                elif (earlier := execution.reuse(meant, invoker)) is not None:
                    result = earlier
                elif problem := await execution.begin(meant, invoker):
                    result = _failure(invocation, problem)
                else:
                    result = await _invoke(meant, invoker, execution, progress)
            # From here on the result is kept, even if this task is cancelled.
            del unanswered[invocation.identity]
            begun[invocation.identity] = result
            await execution.keep((result,))
            progress.close(invocation)
            end(invocation, result)

    def alone(
        invocation: InvocationCanister, invoker: Invoker | None
    ) -> AbstractAsyncContextManager[None]:
        """Serialize equal calls of a pure tool, so that later ones reuse the result."""
        if invoker is None or not invoker.pure:
            return nullcontext()
        call = (invoker.name, canonical_arguments(invocation))
        return locks.setdefault(call, asyncio.Lock())

    def end(invocation: InvocationCanister, result: ResultCanister) -> None:
        del begun[invocation.identity]
        kind = InvocationFailedEvent if result.failed else InvocationCompletedEvent
        execution.event_handler(
            kind(result=result, invocation=invocation, conversation=execution.conversation)
        )

    try:
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(progress.pump())
            async with asyncio.TaskGroup() as calls:
                for invocation in invocations:
                    calls.create_task(run(invocation))
            pump.cancel()
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        missing = {
            name: _failure(call, INTERRUPTED if name in begun else _NOT_BEGUN)
            for name, call in unanswered.items()
        }
        try:
            if missing:
                await execution.keep(tuple(missing.values()))
        finally:
            for invocation in invocations:
                if invocation.identity in begun:
                    end(invocation, begun[invocation.identity] or missing[invocation.identity])
    return suspended


class _Progress:
    """A queue of progress reports of tools, from any thread, for the event handler."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._closed: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._queue: asyncio.Queue[InvocationProgressEvent] = asyncio.Queue()

    def reporter(self, invocation: InvocationCanister) -> Callable[..., None]:
        def report_progress(
            text: str = "", done: float | None = None, total: float | None = None
        ) -> None:
            event = InvocationProgressEvent(
                repair_text(text),
                done,
                total,
                invocation=invocation,
                conversation=self._execution.conversation,
            )
            if threading.get_ident() == self._thread:
                self._queue.put_nowait(event)
            else:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

        return report_progress

    async def pump(self) -> None:
        while True:
            self._deliver(await self._queue.get())

    def close(self, invocation: InvocationCanister) -> None:
        """Deliver the reports so far; later ones of this call are dropped."""
        while not self._queue.empty():
            self._deliver(self._queue.get_nowait())
        self._closed.add(invocation.identity)

    def _deliver(self, event: InvocationProgressEvent) -> None:
        if event.invocation.identity not in self._closed:
            self._execution.event_handler(event)


def _translate(invocation: InvocationCanister, execution: Execution) -> InvocationCanister:
    """Return the call as its tool understands it, for rules, questions, and the tool itself."""
    invoker = find_invoker(execution.invokers, invocation.name)
    if invoker is None:
        return invocation
    properties = invoker.arguments_schema.get("properties") or {}
    return invoker.other_names.translate(invocation, properties)


async def _admit(
    invocation: InvocationCanister, execution: Execution, checking: asyncio.Lock
) -> tuple[Invoker | None, str]:
    """Return the tool of a call, or why it does not run; waiting for a person has no time limit."""
    invoker = find_invoker(execution.invokers, invocation.name)
    if invoker is None:
        offered = ", ".join(sorted(execution.invokers))
        tools = f"Available tools: {offered}." if offered else "No tools are available."
        return None, f"Tool {invocation.name!r} not found. {tools}"
    if not invocation.arguments.strip() and invoker.arguments_schema.get("required"):
        return None, "The arguments of this call did not arrive. Call the tool again with them."
    if invoker.approval != "allow" or invoker.sends or invoker.question is not None:
        # Never ask about a call that cannot run; ask in the order of the calls.
        try:
            async with checking:
                await check_arguments(invoker.check, invocation.arguments)
        except ArgumentsInvalid as error:
            return None, f"The arguments are not valid:\n{error}"
    refusal = await execution.admit(invocation, invoker)
    return (None, refusal) if refusal else (invoker, "")


async def _invoke(
    invocation: InvocationCanister, invoker: Invoker, execution: Execution, progress: _Progress
) -> ResultCanister:
    seconds = invoker.timeout_seconds or execution.timeout_seconds
    limit = Limit(seconds)
    ask = None if execution.ask is None else partial(execution.ask, invocation)
    report = progress.reporter(invocation)
    context = InvocationContext(
        execution.conversation,
        invocation,
        report,
        limit.pause,
        ask,
        execution.is_tainted(),
    )
    try:
        with execution.tracer.call(invocation) as span:
            async with limit:
                output = await invoker.invoke(invocation.arguments, context)
            contents = bound_contents(
                output.contents,
                shown_bytes=invoker.shown_bytes or execution.shown_bytes,
                kept_bytes=invoker.kept_bytes or execution.kept_bytes,
            )
            result = ResultCanister(
                contents,
                invocation=invocation.identity,
                failed=output.failed,
                display=output.display,
                trusted=output.trusted or not invoker.outside,
            )
            span.record((result,))
    except ArgumentsInvalid as error:
        text = f"The arguments are not valid:\n{error}"
        return _failure(invocation, text, trusted=not invoker.outside)
    except ResultTooLarge as error:
        return _failure(invocation, str(error))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failure(invocation, "The tool cancelled itself.")
    except (
        Exception,
        SystemExit,
        BaseExceptionGroup,
    ) as error:  # Other people's code: a tool's call.
        if limit.expired:
            return _failure(invocation, f"The tool did not return within {seconds:g} seconds.")
        _LOGGER.warning("the tool %s failed", invocation.name, exc_info=error)
        text = f"The tool failed: {type(error).__name__}: {error}"
        return _failure(invocation, text, trusted=not invoker.outside)
    return repair_canister(result)


def _failure(invocation: InvocationCanister, text: str, *, trusted: bool = True) -> ResultCanister:
    contents: tuple[Content, ...] = (TextualContent(repair_text(redact(text))),)
    return ResultCanister(contents, invocation=invocation.identity, failed=True, trusted=trusted)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
