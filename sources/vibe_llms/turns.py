"""One turn: ask, hear, invoke, ask again, until the model is done or a limit ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.attendants import Attendance, Attendant, Occasion
from vibe_llms.configuration import ToolMode, ToolSettings
from vibe_llms.controls import Controls, leave_choice
from vibe_llms.events import (
    Event,
    EventHandler,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    Notice,
    NoticeEvent,
    TurnEndedEvent,
)
from vibe_llms.exceptions import (
    ContextOverflow,
    OutputCut,
    OutputInvalid,
    ReplyMalformed,
)
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.invocation.reuse import reuse_result
from vibe_llms.ledger import Ledger, start_of_turn
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Turn,
    UserCanister,
    usage_of,
)
from vibe_llms.messages.contents import TextualContent, text_of
from vibe_llms.outputs import OutputForm, OutputMismatch
from vibe_llms.providers.contract.settling import settle_tools
from vibe_llms.providers.interfaces import (
    InquiringModel,
    Loader,
    Model,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.limits import Limiter, limited
from vibe_llms.room import check_room, estimate_tokens, is_near_limit, is_near_size

#: How often a typed output is asked for.
OUTPUT_ATTEMPTS = 3


class Dispatcher:
    """The events of one turn: to the handler until it raises, and a record of what was received.

    A call by an alias, or in another spelling, becomes one by the canonical name of the tool.
    """

    def __init__(self, handler: EventHandler, invokers: Mapping[str, Invoker]) -> None:
        self._handler: EventHandler | None = handler
        self._invokers = invokers
        self.received: list[ReplyCanister] = []

    def __call__(self, event: Event) -> None:
        """Pass an event on; raises what the handler raises, which is not called again then."""
        kind = type(event)
        if kind is not MessageProgressEvent:
            match event:
                case MessageStartedEvent(role="invocation", name=name):
                    event = replace(event, name=self._name(name))
                case MessageCompletedEvent(canister=canister):
                    event = replace(event, canister=self.settle(canister))
                    self.received.append(event.canister)
                case MessageFailedEvent(partial=partial):
                    event = replace(event, partial=self.settle(partial))
                    self.received.append(event.partial)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler(event)
            self._handler = handler

    def settle(self, canister: ReplyCanister) -> ReplyCanister:
        """The canister; a call has the canonical name of its tool."""
        ending = canister.ending
        if ending is not None and ending.severed:
            severed = tuple(map(self._name, ending.severed))
            canister = replace(canister, ending=replace(ending, severed=severed))
        if isinstance(canister, InvocationCanister) and canister.name not in self._invokers:
            # Under another name it is not word for word what its provider sent.
            name = self._name(canister.name)
            if name != canister.name:
                return replace(canister, name=name, native=None)
        return canister

    def _name(self, name: str) -> str:
        meant = find_invoker(self._invokers, name)
        return name if meant is None else meant.name


class TurnSettings(Struct, frozen=True, kw_only=True):
    """What a turn is held with; `tool_mode` is of the caller, in place of the configured one.

    `instructions` stand before the history while they hold, and are not kept in it.
    """

    model: Model
    invokers: Mapping[str, Invoker]
    controls: Controls
    default_controls: Controls
    tools: ToolSettings
    event_handler: EventHandler
    streaming: bool
    access_cache: Callable[[Model], object]
    told: set[tuple[str, str]]
    throttle: Callable[[], Awaitable[object]] | None = None
    form: OutputForm | None = None
    limiter: Limiter | None = None
    gatekeeper: Gatekeeper = Gatekeeper()
    tool_mode: ToolMode | None = None
    instructions: Sequence[SupervisorCanister] = ()
    attendants: Sequence[Attendant] = ()
    attendance: Attendance | None = None


class TurnRun:
    """A turn while it runs."""

    def __init__(self, ledger: Ledger, settings: TurnSettings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._model = settings.model
        self._offered: Sequence[Invoker] = ()
        self._dispatcher = Dispatcher(settings.event_handler, settings.invokers)
        self._added: list[Canister] = []
        self._said = 0
        self._rounds = 0
        self._calls = 0
        self._previous: tuple[str, str] = ("", "")
        self._repeats = 0
        self._output: object = None
        self._vouched: set[str] = set()
        self._counts = True

    async def run(self, prompt: Sequence[Canister]) -> Turn:
        """Hold the turn. Whatever ends it, what was received is kept, and the end is told last."""
        reason: str = StopReason.FAILED
        start = len(self._ledger.canisters)
        withdrawn = False
        self._said = len(prompt)
        try:
            await self._settle(prompt)
            await self._check_room(prompt)
            self._tell_blocked()
            try:
                said = await self._brief(prompt)
            except asyncio.CancelledError:
                # What the person said is not lost with what was looked up for it.
                await self._keep(prompt)
                raise
            self._said = len(said)
            await self._keep(said)
            reason = await self._hold(frozenset(canister.identity for canister in prompt))
            if self._settings.form is not None:
                reason = await self._require(self._settings.form, reason)
        except asyncio.CancelledError:
            reason = StopReason.INTERRUPTED
            raise
        except ContextOverflow:
            withdrawn = True
            if len(self._ledger.canisters) > start:
                await self._ledger.withdraw(
                    start, self._notify, "the history has become too long for the model"
                )
            raise
        finally:
            try:
                if self._added and not withdrawn:
                    self._conclude(prompt, start, reason)
            finally:
                self._dispatcher(
                    TurnEndedEvent(
                        turn=self.result(reason), reason=reason, conversation=self._ledger.identity
                    )
                )
        return self.result(reason)

    async def preview(self, prompt: Sequence[Canister]) -> bytes:
        """The body of the first request of the turn, after the checks that `run` makes.

        Nothing is kept, and no content is sent: where only the server can count the tokens of what
        may be too long, a notice says so.
        """
        await self._settle(prompt)
        self._counts = False
        await self._check_room(prompt)
        self._tell_blocked()
        said = await self._brief(prompt)
        context = self._produce_context(frozenset(canister.identity for canister in prompt))
        history = [*self._history, *said]
        return await self._model.preview(history, self._offered, self._settings.controls, context)

    def result(self, reason: str) -> Turn:
        """What the turn gave so far."""
        received = self._added[self._said :]
        replies = [c for c in received if isinstance(c, AssistantCanister | InvocationCanister)]
        text = "".join(
            text_of(canister.contents)
            for canister in replies
            if isinstance(canister, AssistantCanister) and canister.reply == replies[-1].reply
        )
        return Turn(tuple(self._added), text, self._output, usage_of(self._added), reason)

    async def _settle(self, prompt: Sequence[Canister]) -> None:
        """Choose how tools are offered, once it is known what the model can do."""
        settings = self._settings
        if inquired := isinstance(settings.model, InquiringModel):
            # Which choices of tools it can be given depends on how they are offered.
            await settings.model.inquire(prompt, leave_choice(settings.controls))
        self._model, self._offered = settle_tools(
            settings.model,
            tuple(settings.invokers.values()),
            settings.tool_mode or settings.tools.mode,
            asked=settings.tool_mode is not None,
        )
        if inquired:
            self._model.check(prompt, settings.controls)

    async def _brief(self, prompt: Sequence[Canister]) -> Sequence[Canister]:
        """What is said, with what attendants bring right before the person's words."""
        settings = self._settings
        place = start_of_turn(prompt)
        if not settings.attendants or settings.attendance is None or place is None:
            return prompt
        occasion = self._describe(prompt, len(self._ledger.canisters))
        try:
            briefings = await settings.attendance.brief(settings.attendants, occasion)
            brought = [canister for one in briefings for canister in one.canisters]
            said = [*prompt[:place], *brought, *prompt[place:]]
            if brought:
                await self._check_room(said)
        except ContextOverflow:
            self._notify(Notice("attendant", "there is no room for what was to be recalled"))
            return prompt
        self._vouched = {c.identity for one in briefings if not one.outside for c in one.canisters}
        return said

    def _conclude(self, prompt: Sequence[Canister], start: int, reason: str) -> None:
        """Tell the attendants that the turn has ended."""
        settings = self._settings
        if settings.attendants and settings.attendance is not None:
            occasion = self._describe(prompt, start)
            settings.attendance.conclude(settings.attendants, occasion, self.result(reason))

    def _describe(self, prompt: Sequence[Canister], start: int) -> Occasion:
        return Occasion(
            conversation=self._ledger.identity,
            model=self._settings.model,
            history=tuple(self._ledger.canisters[:start]),
            said=prompt,
            kept=self._ledger.archive is not None,
            load=self._load,
            notify=self._notify,
        )

    @property
    def _load(self) -> Loader:
        archive = self._ledger.archive
        return refuse_loading if archive is None else archive.load_all

    async def _hold(self, fresh: frozenset[str]) -> str:
        while True:
            reply = await self._ask(fresh)
            ending = reply[-1].ending
            reason = ending.reason if ending is not None else StopReason.FINISHED
            calls = [canister for canister in reply if isinstance(canister, InvocationCanister)]
            runs = calls and reason in (StopReason.INVOCATIONS, StopReason.FINISHED)
            if not runs and reason != StopReason.PAUSED:
                return reason
            self._rounds += 1
            if limit := self._limit(calls):
                await self._refuse(calls, limit)
                return StopReason.LIMIT
            if calls:
                await self._invoke(calls)

    async def _require(self, form: OutputForm, reason: str) -> str:
        """Read the typed output of the last reply; where it does not fit, ask for it again."""
        provider, problems = self._settings.model.provider, ""
        for attempt in range(OUTPUT_ATTEMPTS):
            if reason == StopReason.LENGTH:
                raise OutputCut(
                    "the reply ended before its output was complete; allow more: output-tokens",
                    provider=provider,
                )
            if reason != StopReason.FINISHED:
                raise OutputInvalid(
                    f"there is no output: the reply ended as {reason}", provider=provider
                )
            try:
                self._output = form.read(self.result(reason).text)
                return reason
            except OutputMismatch as mismatch:
                problems = str(mismatch)
            if attempt + 1 < OUTPUT_ATTEMPTS:
                self._notify(Notice("output", f"the output is asked for again: {problems}"))
                said = UserCanister.from_text(
                    f"This is no valid answer:\n{problems}\nAnswer again, with JSON only."
                )
                await self._keep([said])
                reason = await self._hold(frozenset({said.identity}))
        raise OutputInvalid(
            f"the output is not what was asked for, {OUTPUT_ATTEMPTS} times: {problems}",
            provider=provider,
            attempts=OUTPUT_ATTEMPTS,
        )

    async def _ask(self, fresh: frozenset[str]) -> Sequence[ReplyCanister]:
        settings = self._settings
        context = self._produce_context(fresh)
        received = self._dispatcher.received
        received.clear()
        try:
            with self._limited():
                reply = await self._model.converse(
                    self._history,
                    self._offered,
                    settings.controls,
                    context,
                )
            if not reply:
                raise ReplyMalformed(
                    "the model returned no reply", provider=settings.model.provider
                )
            reply = tuple(map(self._dispatcher.settle, reply))
            received[:] = reply
        finally:
            # However it ended: what had arrived is kept, before any of its calls runs.
            if any(_is_worth_keeping(canister) for canister in received):
                await self._keep(tuple(received))
        return reply

    def _produce_context(self, fresh: frozenset[str]) -> TurnContext:
        settings = self._settings
        return TurnContext(
            conversation=self._ledger.identity,
            event_handler=self._dispatcher,
            notify=self._notify,
            load=self._load,
            streaming=settings.streaming,
            fresh=fresh,
            default_controls=settings.default_controls,
            cache=settings.access_cache(self._model),
            throttle=settings.throttle,
        )

    def _limited(self) -> AbstractContextManager[None]:
        limiter = self._settings.limiter
        if limiter is None:
            return limited(None)
        return limited(limiter, estimate_tokens(reversed(self._ledger.canisters)))

    async def _invoke(self, calls: Sequence[InvocationCanister]) -> None:
        await execute(
            calls,
            Execution(
                invokers=self._settings.invokers,
                event_handler=self._dispatcher,
                keep=self._keep,
                admit=self._admit,
                reuse=self._reuse,
                conversation=self._ledger.identity,
                timeout_seconds=self._settings.tools.timeout_seconds,
                parallel=self._settings.tools.parallel,
                shown_bytes=self._settings.tools.shown_bytes,
                kept_bytes=self._settings.tools.kept_bytes,
            ),
        )

    async def _admit(self, invocation: InvocationCanister, invoker: Invoker) -> str:
        return await self._settings.gatekeeper.admit(
            invocation,
            invoker,
            tainted=self._is_tainted(),
            conversation=self._ledger.identity,
        )

    def _reuse(self, invocation: InvocationCanister, invoker: Invoker) -> ResultCanister | None:
        history = self._ledger.canisters
        return reuse_result(invocation, invoker, history, self._settings.invokers)

    def _is_tainted(self) -> bool:
        """Whether text without authority has come into this turn: a document, or from outside."""
        outside = {
            canister.identity
            for canister in self._added
            if isinstance(canister, InvocationCanister)
            and (tool := find_invoker(self._settings.invokers, canister.name)) is not None
            and tool.outside
        }
        return any(
            (isinstance(canister, DocumentCanister) and canister.identity not in self._vouched)
            or (isinstance(canister, ResultCanister) and canister.invocation in outside)
            for canister in self._added
        )

    def _tell_blocked(self) -> None:
        """Tell the person once of tools that do not run before they were looked at."""
        blocked: dict[str, list[str]] = {}
        for invoker in self._settings.invokers.values():
            if invoker.blocked:
                blocked.setdefault(invoker.blocked, []).append(invoker.name)
        for why, names in blocked.items():
            text = f"{', '.join(names)}: {why}"
            if ("", text) not in self._settings.told:
                self._settings.told.add(("", text))
                self._notify(Notice("ensemble", text))

    def _limit(self, calls: Sequence[InvocationCanister]) -> str:
        """Which limit forbids another round, in words; empty if none does."""
        tools = self._settings.tools
        if self._rounds > tools.max_rounds:
            return f"the turn has had {tools.max_rounds} rounds of tool calls (max-rounds)"
        self._calls += len(calls)
        if self._calls > tools.max_calls:
            return f"the turn has had {tools.max_calls} tool calls (max-calls)"
        for call in calls:
            this = (call.name, call.arguments)
            self._repeats = self._repeats + 1 if this == self._previous else 1
            self._previous = this
            if self._repeats >= tools.identical_calls:
                return f"{call.name!r} was called {self._repeats} times alike (identical-calls)"
        return ""

    async def _refuse(self, calls: Sequence[InvocationCanister], limit: str) -> None:
        self._notify(Notice("limit", f"the turn ends here: {limit}"))
        contents = (TextualContent(f"The call was not run: {limit}."),)
        await self._keep(
            [ResultCanister(contents, invocation=call.identity, failed=True) for call in calls]
        )

    async def _keep(self, canisters: Sequence[Canister]) -> None:
        await self._ledger.append(canisters, self._notify)
        self._added += canisters

    def _notify(self, notice: Notice) -> None:
        told = (notice.canister, notice.text)
        if notice.subject == "conversion":
            if told in self._settings.told:
                return
            self._settings.told.add(told)
        self._dispatcher(NoticeEvent(notice=notice, conversation=self._ledger.identity))

    async def _check_room(self, said: Sequence[Canister]) -> None:
        """Refuse what is surely too long before anything is kept or sent."""
        if self._counts:
            await check_room(self._model, self._history, said, self._offered, self._load)
            if is_near_size(self._model, self._history, said):
                # The provider's own bound on bytes: it is known once the request is made.
                fresh = frozenset(canister.identity for canister in said)
                context = TurnContext(
                    load=self._load,
                    fresh=fresh,
                    default_controls=self._settings.default_controls,
                )
                history = [*self._history, *said]
                await self._model.preview(history, self._offered, self._settings.controls, context)
        elif is_near_limit(self._model, self._history, said):
            text = f"this may be too long for {self._model.name}; a real request is counted first"
            self._notify(Notice("preview", text))

    @property
    def _history(self) -> Sequence[Canister]:
        """What the model reads: instructions on tools for those who are offered some."""
        if not self._offered or not self._settings.instructions:
            return self._ledger.canisters
        return [*self._settings.instructions, *self._ledger.canisters]


def _is_worth_keeping(canister: ReplyCanister) -> bool:
    """Whether anything of a reply arrived: nothing is kept of one that was refused."""
    if isinstance(canister, InvocationCanister) or canister.contents:
        return True
    ending = canister.ending
    begun = canister.provenance is not None and bool(canister.provenance.response)
    return begun or (ending is not None and (not ending.interrupted or bool(ending.severed)))
