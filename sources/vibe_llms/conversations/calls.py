"""The tool calls of one turn: their limits, permissions, and results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from vibe_llms.base.configuration import ToolSettings
from vibe_llms.conversations.dispatcher import Dispatcher
from vibe_llms.conversations.history import History
from vibe_llms.conversations.settings import ConversationSettings, TurnMemo, TurnRecord
from vibe_llms.invocation.asking import ask
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.invocation.questions import answer_call, decline
from vibe_llms.invocation.reuse import reuse_result
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    is_untrusted,
)


class TurnCalls:
    """A runner for the calls of one turn, with the current tools of the `dispatcher`.

    `running` is True while calls run.
    """

    def __init__(
        self,
        history: History,
        settings: ConversationSettings,
        memo: TurnMemo,
        dispatcher: Dispatcher,
        record: TurnRecord | None,
    ) -> None:
        self._history = history
        self._settings = settings
        self._memo = memo
        self._dispatcher = dispatcher
        self._record = record
        self.limits = CallLimits(settings.services.tools)
        self.running = False
        #: Results of calls that asked the user, by call identity.
        self._answers: dict[str, ResultCanister] = {}

    async def run(
        self,
        calls: Sequence[InvocationCanister],
        *,
        is_tainted: Callable[[], bool],
        keep: Callable[[Sequence[Canister]], Awaitable[None]],
    ) -> Sequence[InvocationCanister]:
        """Run calls; return those that have to wait for a decision.

        `is_tainted` returns True if the request has untrusted text; `keep` stores results.
        """
        tools = self._settings.services.tools
        from vibe_llms.invocation.execution import Execution, execute

        execution = Execution(
            invokers=self._dispatcher.invokers,
            event_handler=self._dispatcher,
            keep=keep,
            admit=partial(self._admit, is_tainted),
            reuse=self._reuse,
            is_tainted=is_tainted,
            conversation=self._history.identity,
            timeout_seconds=tools.timeout_seconds,
            parallel=tools.parallel,
            shown_bytes=tools.shown_bytes,
            kept_bytes=tools.kept_bytes,
            tracer=self._settings.tracer,
        )
        if (record := self._record) is not None:
            ask = partial(record.ask, holds=True)
            execution = replace(execution, begin=record.begin_call, ask=ask)
        self.running = True
        try:
            with self._offered_documents():
                return await execute(calls, execution)
        finally:
            self.running = False

    @contextmanager
    def _offered_documents(self) -> Iterator[None]:
        """Make the documents of this conversation available to document tools while calls run."""
        settings, identity = self._settings, self._history.identity
        attached, access = self._memo.documents.attached, settings.services.access_documents
        if access is None or not (attached or settings.collections):
            yield
            return
        service = access()
        service.offer(identity, attached, settings.collections, self._history.load)
        try:
            yield
        finally:
            service.withdraw(identity)

    async def _admit(
        self, is_tainted: Callable[[], bool], invocation: InvocationCanister, invoker: Invoker
    ) -> str:
        refusal = await self._settings.services.gatekeeper.admit(
            invocation,
            invoker,
            tainted=is_tainted(),
            conversation=self._history.identity,
            approver=None if self._record is None else self._record.decide,
        )
        if refusal or invoker.question is None:
            return refusal
        request = invoker.question(invocation.parsed or {})
        elicitor = self._settings.services.elicitor
        if self._record is not None:
            answer = await self._record.ask(invocation, request, holds=False)
        elif elicitor is not None and elicitor is not decline:
            answer = await ask(elicitor, request)
        else:
            return "No user can be asked now."
        self._answers[invocation.identity] = answer_call(invocation, answer)
        return ""

    def _reuse(self, invocation: InvocationCanister, invoker: Invoker) -> ResultCanister | None:
        if invoker.question is not None:
            return self._answers[invocation.identity]
        return reuse_result(invocation, invoker, self._history.canisters, self._dispatcher.invokers)


class CallLimits:
    """A counter of one turn's tool calls that enforces the limits."""

    def __init__(self, tools: ToolSettings) -> None:
        self._tools = tools
        self._rounds = 0
        self._calls = 0
        self._repeats = 0
        self._previous = ("", "")

    def count(self, calls: Sequence[InvocationCanister]) -> str:
        """Count a round of calls; return the exceeded limit in words, or an empty string."""
        self._rounds += 1
        self._calls += len(calls)
        if self._rounds > self._tools.max_rounds:
            return f"the turn has had {self._tools.max_rounds} rounds of tool calls (max-rounds)"
        if self._calls > self._tools.max_calls:
            return f"the turn has had {self._tools.max_calls} tool calls (max-calls)"
        for call in calls:
            this = (call.name, call.arguments)
            self._repeats = self._repeats + 1 if this == self._previous else 1
            self._previous = this
            if self._repeats >= self._tools.identical_calls:
                times = f"{self._repeats} times with the same arguments (identical-calls)"
                return f"{call.name!r} was called {times}"
        return ""


def runs_elsewhere(call: InvocationCanister, tools: Mapping[str, Invoker]) -> bool:
    """Return True if the caller's program, rather than this library, runs a call."""
    tool = find_invoker(tools, call.name)
    return tool is not None and tool.elsewhere


def is_tainted(canisters: Iterable[Canister], *, vouched: Collection[str], claims: bool) -> bool:
    """Return True if messages have untrusted text, except those that are `vouched` for.

    With `claims`, replies that no model has made are untrusted.
    """
    return any(
        one.identity not in vouched
        if is_untrusted(one)
        else claims and isinstance(one, ReplyCanister) and one.provenance is None
        for one in canisters
    )
