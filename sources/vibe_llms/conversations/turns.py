"""One turn: ask the model and run its tool calls until it is done or a limit is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import groupby, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    AttachmentUnreadable,
    ConfigurationError,
    ContextOverflow,
    ControlInvalid,
    OutputCut,
    OutputInvalid,
    ProviderError,
    ReplyMalformed,
    RequestError,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.conversations.calls import TurnCalls, runs_elsewhere
from vibe_llms.conversations.context_keeping import ContextKeeper, notice_digest
from vibe_llms.conversations.context_requests import NextRequest
from vibe_llms.conversations.context_window import (
    check_context_window,
    estimate_tokens,
    is_near_limit,
)
from vibe_llms.conversations.corrections import (
    describe_correction,
    is_correction,
    write_correction,
)
from vibe_llms.conversations.dispatcher import Dispatcher
from vibe_llms.conversations.documents import ENSEMBLE, DocumentReading, without_documents
from vibe_llms.conversations.fallbacks import (
    address_of,
    notice_change,
    notice_omission,
    require_larger,
)
from vibe_llms.conversations.history import History, start_of_turn
from vibe_llms.conversations.hooks import HookRequest
from vibe_llms.conversations.settings import (
    ConversationSettings,
    TurnMemo,
    TurnRequest,
    TurnState,
)
from vibe_llms.conversations.steering import Delivery, describe_left
from vibe_llms.conversations.turn_storage import TurnNotices, TurnStorage
from vibe_llms.invocation.invokers import Invoker, gather_invokers, name_tools
from vibe_llms.messages.caching import RequestHead
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
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
from vibe_llms.messages.contents import ImageContent, TextualContent, text_of
from vibe_llms.messages.controls import Controls, leave_choice, leave_form
from vibe_llms.messages.events import (
    InvocationFailedEvent,
    InvocationStartedEvent,
    Notice,
    SteeringEvent,
    TurnEndedEvent,
)
from vibe_llms.messages.tracing import Requested, Span
from vibe_llms.providers.interfaces import Model, TurnContext, as_inquiring
from vibe_llms.providers.limits import limited
from vibe_llms.providers.spending import spend

if TYPE_CHECKING:
    from vibe_llms.conversations.outputs import OutputForm

#: Most attempts for a typed output.
OUTPUT_ATTEMPTS = 3
#: Tokens that the reply to the program's own request may need, including reasoning.
_ASIDE_TOKENS = 8_192


class TurnRun:
    """A running turn. Creating one raises an error for an impossible request."""

    def __init__(
        self,
        history: History,
        settings: ConversationSettings,
        request: TurnRequest,
        memo: TurnMemo,
    ) -> None:
        self._history = history
        self._settings = settings
        self._request = request
        self._memo = memo
        self._prompt: Sequence[Canister] = request.said
        self._controls = request.controls or Controls()
        given = request.invokers
        self._invokers = settings.invokers if given is None else gather_invokers(given)
        self._model: Model = settings.model
        self._inquiring = as_inquiring(settings.model)
        self._own_model = settings.model
        self._fallback = settings.produce_fallback()
        #: Error of the last request, if another model may answer in its place.
        self._replaceable: VibeLlmsError | None = None
        self._offered: Sequence[Invoker] = ()
        self._check()
        self._instructions = memo.instruct(settings.toolbox.instruct(self._invokers.values()))
        handler = request.event_handler or settings.event_handler
        self._dispatcher = Dispatcher(handler, self._invokers, memo.documents.locate)
        self._fresh = frozenset(canister.identity for canister in self._prompt)
        self._notify = TurnNotices(history, memo, self._dispatcher)
        self._record = request.record
        self._store = TurnStorage(history, settings, request.record, self._notify)
        self._said = len(self._prompt)
        self._default_controls = settings.default_controls
        self._limiter = settings.services.access_limiter(settings.model)
        self._spending = settings.services.access_spending(settings.budgets)
        self._output: object = None
        #: Replies to the program's own requests that no digest counts.
        self._asides: list[ReplyCanister] = []
        #: The turn, once its end is reported.
        self._ended: Turn | None = None
        self._counts = True
        self._suspending = False
        self._calls = TurnCalls(history, settings, memo, self._dispatcher, self._record)
        self._keeper = ContextKeeper(history, settings, memo)
        self._dispatcher.holds = bool(self._fallback) or not self._keeper.ended
        resumed = self._record is not None and self._record.resumed
        self._steering = Delivery(request.steering, history, self._dispatcher, resumed=resumed)
        if resumed:
            self._rejoin()

    async def run(self) -> Turn:
        """Run the turn. Received messages are always stored, and the last event reports the end."""
        with self._settings.tracer.turn(self._describe_request(self._prompt)) as span:
            try:
                return await self._run()
            finally:
                span.record([*self._store.digests, *self._store.added])

    async def _run(self) -> Turn:
        reason: str = StopReason.FAILED
        withdrawn = False
        try:
            if self._store.added:
                await self._rejoin_fallback()
                await self._read_documents(())
                await self._choose_tools()
            elif self._request.compacts is not None:
                reason = await self._compact_only(self._request.compacts)
                return self.result(reason)
            else:
                await self._prepare()
                try:
                    said = await self._add_context()
                except asyncio.CancelledError:
                    # Store the user's message even if the hooks' additions are missing.
                    await self._store.keep(self._prompt)
                    raise
                self._said = len(said)
                concurrently = getattr(self._model, "awaits_kept", False)
                await self._store.begin(said, concurrently=concurrently)
            reason = await self._run_to_end()
        except asyncio.CancelledError:
            reason = StopReason.SUSPENDED if self._suspending else StopReason.INTERRUPTED
            if not self._suspending:
                raise
        except ContextOverflow:
            withdrawn = True
            if len(self._history.canisters) > self._store.start:
                reported = "the history has become too long for the model"
                await self._history.withdraw(self._store.start, self._notify, reported)
                self._steering.restore()
            self._keeper.advise(self._settings.model, self._notify)
            raise
        finally:
            left = self._steering.end(self._store.start)
            if reason != StopReason.SUSPENDED and not (self._record and self._record.lost):
                await self._conclude(reason, left, withdrawn=withdrawn)
        return self._ended or self.result(reason)

    def suspend(self) -> bool:
        """Let a run continue the turn; return True if its task must be cancelled now.

        Otherwise calls are running, and the turn ends after them. An incomplete reply is not
        stored: the run requests it again.
        """
        self._suspending = True
        return not self._calls.running

    @property
    def handover(self) -> Handover:
        """The values that a run needs to continue the turn."""
        return Handover(self._request, self._store.taint(self._store.added))

    async def _conclude(
        self, reason: str, left: Sequence[UserCanister], *, withdrawn: bool
    ) -> None:
        try:
            if self._store.added and not withdrawn:
                await self._run_hooks_after(reason)
        finally:
            if left:
                self._notify(describe_left(left))
            self._ended = turn = self.result(reason)
            conversation = self._history.identity
            self._dispatcher(TurnEndedEvent(turn=turn, reason=reason, conversation=conversation))

    async def preview(self) -> bytes:
        """Return the body of the turn's first request, after the same checks as in `run`.

        Nothing is stored, and no content is sent. If the request may be too long and only the
        server can count its tokens, a notice says so.
        """
        self._counts = False
        await self._prepare()
        said = await self._add_context()
        messages = [*self._messages, *self._apply_documents(said)]
        context = self._produce_context(Span())
        return await self._model.preview(messages, self._offered, self._controls, context)

    def result(self, reason: str) -> Turn:
        """Return the turn in its current state."""
        received = self._store.added[self._said :]
        replies = [c for c in received if isinstance(c, AssistantCanister | InvocationCanister)]
        text = "".join(
            text_of(canister.contents)
            for canister in replies
            if isinstance(canister, AssistantCanister) and canister.reply == replies[-1].reply
        )
        added = (*self._store.digests, *self._store.added)
        turn = Turn(added, text, self._output, usage_of([*added, *self._asides]), reason)
        estimate = self._settings.services.estimate_cost
        if estimate is None or not self._asides:
            return turn.price(estimate)
        asides = tuple(self._asides)
        return turn.price(lambda canisters: estimate([*canisters, *asides]))

    def _check(self) -> None:
        """Raise an error for an impossible request, before the turn begins."""
        settings = self._settings
        _check_choice(
            self._controls, {} if settings.mode == "off" else self._invokers, settings.model
        )
        self._check_said(self._prompt)

    def _check_said(self, said: Sequence[Canister]) -> None:
        """Raise an error if the model does not accept new messages."""
        settings = self._settings
        # If only the server knows the model's abilities, it is checked again after asking.
        known = self._inquiring is None
        model = settings.choose_tools(self._invokers)[0] if known else settings.model
        if settings.services.access_documents is not None:
            said = without_documents(said)
        model.check(said, self._controls if known else leave_choice(self._controls))

    async def _prepare(self) -> None:
        """Determine and check the model's input; a long history is compacted first."""
        await _check_images(() if self._store.added else self._prompt)
        avoided = self._fallback.is_failing(self._settings.model) and await self._fall_back(None)
        try:
            if not avoided:
                await self._prepare_model()
        except ContextOverflow as error:
            if not (self._fallback.covers(error) and await self._fall_back(error)):
                raise
        self._report_blocked()

    async def _prepare_model(self) -> None:
        """Determine how this model reads documents and calls tools, and check the length."""
        await self._read_documents(() if self._store.added else self._prompt)
        await self._choose_tools()
        if self._counts and not self._store.added and not self._store.pending:
            try:
                await self._compact_if_due(self._prompt)
            except asyncio.CancelledError:
                # A summary takes long enough to be cancelled; the user's message must not be lost.
                await self._store.keep(self._prompt)
                raise
        await self._check_length(() if self._store.added or self._store.pending else self._prompt)

    async def _fall_back(self, error: VibeLlmsError | None) -> bool:
        """Let the next model of the fallback answer the turn; return False if none can.

        Without an error, the model is not asked, because it failed a short time ago.
        """
        fallback, services, failed = self._fallback, self._settings.services, self._settings.model
        if error is not None:
            fallback.fail(failed, error)
        while (address := fallback.take()) is not None:
            try:
                model = await services.access_model(address)
                if isinstance(error, ContextOverflow):
                    require_larger(model, failed, error)
                self._set_model(model)
                self._check()
                await self._prepare_model()
            except (ConfigurationError, ProviderError, RequestError) as reason:
                self._notify(notice_omission(address, reason))
                continue
            self._store.state = replace(self._store.state, fallback=address)
            self._notify(notice_change(failed, error, model))
            return True
        if error is not None and error is not fallback.first:
            self._notify(notice_omission(address_of(failed), error))
        self._set_model(self._own_model)
        return False

    def _set_model(self, model: Model) -> None:
        self._settings = settings = replace(self._settings, model=model)
        self._model, self._inquiring = model, as_inquiring(model)
        self._default_controls = settings.default_controls
        self._limiter = settings.services.access_limiter(model)

    async def _rejoin_fallback(self) -> None:
        """Continue with the model that answered in place of a failed one, if it still exists."""
        if self._store.state.fallback:
            with suppress(ConfigurationError, RequestError):
                address = self._store.state.fallback
                self._set_model(await self._settings.services.access_model(address))

    async def _read_documents(self, said: Sequence[Canister]) -> None:
        """Read the files that the model does not accept, and offer tools if they are needed."""
        settings, documents = self._settings, self._memo.documents
        if settings.services.access_documents is None:
            return
        reading = DocumentReading(
            model=settings.model,
            access_service=settings.services.access_documents,
            load=self._history.load,
            notify=self._notify,
            tools=self._request.invokers is None and settings.mode != "off",
        )
        await documents.read(self._history.canisters, said, reading)
        toolbox = settings.toolbox
        wanted = documents.is_cut(settings.model) or settings.collections
        if wanted and reading.tools and not any(one.name == ENSEMBLE for one in toolbox.ensembles):
            opened = await settings.services.open_ensembles([ENSEMBLE], self._dispatcher)
            toolbox = replace(toolbox, ensembles=(*toolbox.ensembles, *opened))
            self._settings = replace(settings, toolbox=toolbox)
            self._invokers = self._dispatcher.invokers = self._settings.invokers
            self._instructions = self._memo.instruct(toolbox.instruct(self._invokers.values()))

    async def _choose_tools(self) -> None:
        """Choose how tools are offered, after the model's abilities are known."""
        if self._inquiring is not None:
            # The valid choices of tools depend on how they are offered.
            said = self._apply_documents(self._prompt)
            await self._inquiring.inquire(said, leave_choice(self._controls))
        self._offer_reread()
        self._model, self._offered = self._settings.choose_tools(self._invokers)
        if self._inquiring is not None:
            self._model.check(self._apply_documents(self._prompt), self._controls)

    def _offer_reread(self) -> None:
        """Offer the tool for original messages if a digest leaves some out."""
        self._memo.show(self._history)
        for digest in self._memo.view.invalid:
            text = "a digest is not used, because the messages that it summarizes were changed"
            self._notify.once(Notice("context", text, digest.identity))
        reread = self._memo.access_reread(self._history)
        if reread is not None and reread.name not in self._invokers:
            self._invokers = {**self._invokers, reread.name: reread}
            self._dispatcher.invokers = self._invokers

    async def _add_context(self) -> Sequence[Canister]:
        """Return the prompt, with the hooks' additions right before the user's message."""
        hooks, prompt = self._settings.hooks, self._prompt
        place = start_of_turn(prompt)
        if not hooks or place is None:
            return prompt
        runner = self._settings.services.hook_runner
        try:
            contexts = await runner.before_turn(hooks, self._describe())
            added = [canister for one in contexts for canister in one.canisters]
            said = [*prompt[:place], *added, *prompt[place:]]
            if added:
                await self._check_length(said)
        except ContextOverflow:
            self._notify(
                Notice(
                    "hook",
                    "the context from hooks was dropped: it is too long for the model",
                )
            )
            return prompt
        return said

    async def _run_hooks_after(self, reason: str) -> None:
        if hooks := self._settings.hooks:
            turn, runner = self.result(reason), self._settings.services.hook_runner
            try:
                await runner.record_turn(hooks, self._describe(), turn)
            finally:
                runner.after_turn(hooks, self._describe(), turn)

    def _describe(self) -> HookRequest:
        """Return the turn for hooks; its conversation may have continued in a fork."""
        return HookRequest(
            conversation=self._history.identity,
            model=self._settings.model,
            history=tuple(self._history.canisters[: self._store.start]),
            said=self._prompt,
            kept=self._history.archive is not None,
            load=self._history.load,
            notify=self._notify,
        )

    @property
    def recorded(self) -> bool:
        """True if the turn belongs to a run."""
        return self._record is not None

    def report(self, event: SteeringEvent) -> None:
        """Pass an event to the handler of the turn; its errors are raised here, not by the turn."""
        self._dispatcher.report(event)

    async def admit(self, message: UserCanister) -> None:
        """Raise an error if the model does not accept a message that the user adds."""
        self._check_said([message])
        await _check_images([message])

    async def _prepare_steering(self, message: UserCanister) -> None:
        """Check a message as a prompt is checked, and read its documents."""
        await self._store.finish()
        if any(one.identity == message.identity for one in self._store.added):
            # It was sent with the prompt, or before its worker was killed.
            return
        await self.admit(message)
        if any(not isinstance(content, TextualContent) for content in message.contents):
            await self._read_documents([message])
            await self._choose_tools()
            self._model.check(self._apply_documents([message]), self._controls)
        await self._compact_if_due([message])
        await self._check_length([message])
        self._fresh |= {message.identity}

    async def _run_to_end(self) -> str:
        """Run round trips until the reply is final and no message of the user is queued."""
        reply: tuple[Sequence[ReplyCanister], Collection[str]] = self._find_open_reply()
        while True:
            reason = await self._run_round_trips(*reply)
            if self._request.form is not None and reason != StopReason.SUSPENDED:
                reason = await self._require(self._request.form, reason)
            if reason == StopReason.SUSPENDED or await self._steering.close(reason):
                return reason
            # The user added a message while the reply arrived.
            reply = (), ()

    async def _run_round_trips(
        self, reply: Sequence[ReplyCanister] = (), answered: Collection[str] = ()
    ) -> str:
        """Ask the model and run calls until it is done; return the stop reason.

        Begins with `reply`, if given; `answered` are the calls of it that have results.
        """
        # The reply to a paused one continues it, so that nothing may come between them.
        paused = False
        while True:
            if self._suspending:
                await self._store.finish()
                return StopReason.SUSPENDED
            if not reply:
                if not paused:
                    added, keep = self._store.added, self._store.keep
                    await self._steering.deliver(added, self._prepare_steering, keep)
                reply = await self._ask(paused=paused)
            ending = reply[-1].ending
            reason = ending.reason if ending is not None else StopReason.FINISHED
            calls = [canister for canister in reply if isinstance(canister, InvocationCanister)]
            runs = calls and reason in (StopReason.INVOCATIONS, StopReason.FINISHED)
            paused = not runs and reason == StopReason.PAUSED
            if not runs and not paused:
                return reason
            own = [call for call in calls if not runs_elsewhere(call, self._invokers)]
            limit = self._calls.limits.count(own)
            unanswered = [call for call in own if call.identity not in answered]
            if limit:
                await self._refuse(unanswered, limit)
                if len(own) == len(calls):
                    return StopReason.LIMIT
            elif unanswered and await self._calls.run(
                unanswered,
                is_tainted=lambda: self._store.taint(self._store.added).tainted,
                keep=self._store.keep,
            ):
                return StopReason.SUSPENDED
            if len(own) < len(calls):
                return StopReason.INVOCATIONS
            reply, answered = (), ()

    def _rejoin(self) -> None:
        """Continue a turn that another process began, whose prompt is in the history."""
        canisters = self._history.canisters
        first = self._prompt[0].identity
        start = next(i for i, one in enumerate(canisters) if one.identity == first)
        while start and isinstance(canisters[start - 1], DocumentCanister):
            start -= 1
        self._store.start = start
        self._store.added = canisters[start:]
        places = [i for i, one in enumerate(self._store.added) if one.identity in self._fresh]
        self._said = places[-1] + 1

    def _find_open_reply(self) -> tuple[Sequence[ReplyCanister], set[str]]:
        """Return the last reply, if it is still to be processed, and its calls that have results.

        Earlier rounds are counted.
        """
        received = self._store.added[self._said :]
        answered = {one.invocation for one in received if isinstance(one, ResultCanister)}
        replies = [one for one in received if isinstance(one, ReplyCanister)]
        rounds = [[*group] for _, group in groupby(replies, key=attrgetter("reply"))]
        *before, last = rounds or [[]]
        rest = takewhile(lambda one: not isinstance(one, ReplyCanister), reversed(received))
        if any(isinstance(one, UserCanister) for one in rest):
            # The user or a correction has continued the turn.
            before, last = rounds, []
        for reply in before:
            ending = reply[-1].ending
            calls = [one for one in reply if isinstance(one, InvocationCanister)]
            if calls or (ending is not None and ending.reason == StopReason.PAUSED):
                self._calls.limits.count(calls)
        if not last:
            return (), set()
        calls = [one for one in last if isinstance(one, InvocationCanister)]
        if calls and {one.identity for one in calls} <= answered:
            self._calls.limits.count(calls)
            return (), set()
        return last, answered

    async def _require(self, form: OutputForm, reason: str) -> str:
        """Read the typed output of the last reply; if it does not match, ask again."""
        from vibe_llms.conversations.outputs import OutputMismatch

        provider = self._settings.model.provider
        while reason != StopReason.SUSPENDED:
            if reason == StopReason.LENGTH:
                raise OutputCut(
                    "the reply reached its length limit before the output was complete; "
                    "increase output-tokens",
                    provider=provider,
                )
            if reason != StopReason.FINISHED:
                raise OutputInvalid(
                    f"the reply has no output: it ended as {reason}", provider=provider
                )
            try:
                self._output = await form.run(self.result(reason).text)
                return reason
            except OutputMismatch as mismatch:
                await self._correct(str(mismatch))
            reason = await self._run_round_trips()
        return reason

    async def _correct(self, problems: str) -> None:
        """Send the problems to the model; raises `OutputInvalid` after the last attempt."""
        added = self._store.added
        attempts = 1 + sum(is_correction(added, place) for place in range(self._said, len(added)))
        if attempts == OUTPUT_ATTEMPTS:
            raise OutputInvalid(
                f"the output was not valid in {attempts} attempts: {problems}",
                provider=self._settings.model.provider,
                attempts=attempts,
            )
        said = write_correction(added[-1].identity, problems)
        await self._store.keep([said])
        self._fresh = frozenset({said.identity})
        self._notify(Notice("output", describe_correction(said), said.identity))

    async def _ask(self, *, paused: bool) -> Sequence[ReplyCanister]:
        """Ask the model, or one of the fallback if it fails before its reply begins."""
        while True:
            if len(self._store.added) > self._said and not paused:
                await self._compact_if_due()
            try:
                reply = await self._ask_model()
            except VibeLlmsError as error:
                if error is self._replaceable:
                    if await self._may_repeat(error):
                        self._dispatcher.drop()
                        continue
                    self._dispatcher.release()
                    await self._keep_received()
                if (first := self._fallback.first) is error or first is None:
                    raise
                raise first from error
            else:
                self._fallback.succeed(self._settings.model)
                return reply

    async def _may_repeat(self, error: VibeLlmsError) -> bool:
        """Shorten the request, or let another model answer; return False if neither helps."""
        if isinstance(error, ContextOverflow):
            if await self._compact_after(error):
                return True
        elif isinstance(error, RequestRefused) and self._refuse_native(error):
            return True
        return self._fallback.covers(error) and await self._fall_back(error)

    async def _ask_model(self) -> Sequence[ReplyCanister]:
        received = self._dispatcher.received
        received.clear()
        messages = self._messages
        traced = self._settings.tracer.request(self._describe_request(messages))
        self._replaceable, whole = None, False
        try:
            with self._limited(), traced as span:
                context = self._produce_context(span)
                reply = await self._send(messages, self._offered, self._controls, context)
                self._measure_caching(messages, reply, span)
            reply = tuple(map(self._dispatcher.canonicalize, reply))
            received[:] = reply
            whole = True
        except VibeLlmsError as error:
            # Another model must not repeat what this one has begun to say.
            if not self._dispatcher.began and (
                self._fallback.covers(error) or isinstance(error, RequestRefused)
            ):
                self._replaceable = error
            raise
        finally:
            await self._store.finish()
            # In every other case, store what arrived before any of its calls runs.
            if self._replaceable is None:
                if whole or not self._suspending:
                    await self._keep_received()
                self._dispatcher.release()
        return reply

    async def _send(
        self,
        messages: Sequence[Canister],
        tools: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Sequence[ReplyCanister]:
        """Make one round trip, within the budgets."""
        given = (messages, tools, controls, context)
        if self._spending is None:
            reply = await self._model.converse(*given)
        else:
            if self._spending.bounded:
                self._require_cap()
            async with spend(self._spending):
                if not self._capped:
                    # The model itself does not reserve.
                    await self._spending.reserve(self._model, 0, 0, least=0)
                    await self._spending.send()
                reply = await self._model.converse(*given)
        if not reply:
            provider = self._settings.model.provider
            raise ReplyMalformed("the model returned no reply", provider=provider)
        return reply

    async def _ask_aside(
        self,
        messages: Sequence[Canister],
        *,
        tools: bool = True,
        natively: bool = False,
        prompt: str = "",
    ) -> Sequence[ReplyCanister]:
        """Ask the model without showing or storing its reply."""
        controls = leave_form(self._controls, _ASIDE_TOKENS)
        with self._limited(), self._settings.tracer.request(self._describe_request(messages)):
            context = TurnContext(
                conversation=self._history.identity,
                root=self._history.root,
                load=self._history.load,
                streaming=self._request.streaming and not natively,
                default_controls=leave_form(self._default_controls, _ASIDE_TOKENS),
                tracer=self._settings.tracer,
                compacts=natively,
                summary_prompt=prompt,
            )
            offered = self._offered if tools else ()
            reply = await self._send(messages, offered, controls, context)
            self._asides += reply
            return reply

    async def _compact_if_due(self, said: Sequence[Canister] = ()) -> None:
        """Append a digest if the next request would nearly fill the context window."""
        if self._keeper.ended:
            return
        if self._keeper.is_due(self._settings.model, said):
            digest = await self._keeper.compact_if_due(self._next_request(), said)
            await self._keep_digest(digest)

    async def _compact_after(self, error: ContextOverflow) -> bool:
        """Append a digest after a request was too long; return False if that does not help."""
        digest = await self._keeper.compact_after(self._next_request(), error)
        return await self._keep_digest(digest)

    def _refuse_native(self, error: RequestRefused) -> bool:
        """Send the digest as text if the provider refuses its own summary; else return False."""
        if not self._memo.refuse_native(self._settings.model):
            return False
        self._notify(Notice("context", f"the digest is sent as text, because of: {error}"))
        return True

    async def _compact_only(self, focus: str) -> StopReason:
        """Append a digest at the user's request, and nothing else."""
        await self._read_documents(())
        await self._choose_tools()
        await self._keep_digest(await self._keeper.compact_now(self._next_request(), focus))
        return StopReason.FINISHED

    def _next_request(self) -> NextRequest:
        model, tools = self._settings.model, self._offered
        return NextRequest(model, self._messages, tools, self._ask_aside, self._notify)

    async def _keep_digest(self, digest: DigestCanister | None) -> bool:
        if digest is None:
            return False
        if digest.ending is not None:
            # Its model gave these replies, also those that could not be used.
            digest = replace(digest, ending=replace(digest.ending, usage=usage_of(self._asides)))
            self._asides.clear()
        await self._store.keep_digest(digest)
        self._notify(notice_digest(digest))
        await self._choose_tools()
        return True

    def _measure_caching(
        self, messages: Sequence[Canister], reply: Sequence[ReplyCanister], span: Span
    ) -> None:
        controls = self._controls.over(self._default_controls)
        head = RequestHead.of(messages, self._offered, controls, self._memo.view.digest)
        if (measured := self._memo.measure_caching(messages, reply, head)) is not None:
            span.report_caching(measured)

    async def _keep_received(self) -> None:
        received = tuple(self._dispatcher.received)
        if any(_is_worth_keeping(canister) for canister in received):
            await self._store.keep(received)

    @property
    def _capped(self) -> bool:
        """True if the model reserves its requests and limits the length of its replies."""
        return getattr(self._settings.model, "caps_output", False)

    def _require_cap(self) -> None:
        model = self._settings.model
        if not self._capped:
            raise RequestError(
                f"{model.provider}/{model.name} cannot be used under a budget: the length of its "
                "replies cannot be limited"
            )

    def _describe_request(self, messages: Sequence[Canister]) -> Requested:
        model = self._settings.model
        return Requested(
            conversation=self._history.identity,
            provider=model.provider,
            model=model.name,
            messages=messages,
            agent=self._settings.agent,
            controls=self._controls,
            default_controls=self._default_controls,
            streaming=self._request.streaming,
        )

    def _produce_context(self, span: Span) -> TurnContext:
        return TurnContext(
            conversation=self._history.identity,
            root=self._history.root,
            event_handler=span.watch(self._dispatcher),
            notify=self._notify,
            load=self._history.load,
            streaming=self._request.streaming,
            fresh=self._fresh,
            default_controls=self._default_controls,
            cache=self._memo.access_cache(self._model),
            throttle=self._request.throttle,
            kept=self._store.await_kept if self._store.storing else None,
            tracer=self._settings.tracer,
        )

    def _limited(self) -> AbstractContextManager[None]:
        if self._limiter is None:
            return limited(None)
        return limited(self._limiter, estimate_tokens(reversed(self._messages)))

    def _report_blocked(self) -> None:
        """Report once which tools are blocked until the user reviews them."""
        blocked: dict[str, list[str]] = {}
        for invoker in self._invokers.values():
            if invoker.blocked:
                blocked.setdefault(invoker.blocked, []).append(invoker.name)
        for why, names in blocked.items():
            self._notify.once(Notice("ensemble", f"{', '.join(names)}: {why}"))

    async def _refuse(self, calls: Sequence[InvocationCanister], limit: str) -> None:
        self._notify(Notice("limit", f"the turn was stopped: {limit}"))
        contents = (TextualContent(f"The call was not run: {limit}."),)
        results = [
            ResultCanister(contents, invocation=one.identity, failed=True, trusted=True)
            for one in calls
        ]
        await self._store.keep(results)
        conversation = self._history.identity
        for call, result in zip(calls, results, strict=True):
            self._dispatcher(InvocationStartedEvent(invocation=call, conversation=conversation))
            self._dispatcher(
                InvocationFailedEvent(result, invocation=call, conversation=conversation)
            )

    async def _check_length(self, said: Sequence[Canister]) -> None:
        """Refuse a turn that is certainly too long, before anything is stored or sent."""
        messages, model, said = self._messages, self._model, self._apply_documents(said)
        limit = await self._settings.services.access_windows().window_of(model)
        if not self._counts:
            if is_near_limit(limit, messages, said):
                text = f"this may be too long for {model.name}; a real request is counted"
                self._notify(Notice("preview", text))
            return
        load = self._history.load
        await check_context_window(model, messages, said, self._offered, load, limit)
        if self._memo.meter.is_near_size(
            model, self._apply_documents(self._memo.show(self._history)), said
        ):
            # The provider's limit in bytes is checked when the request is built. Encoded messages
            # are cached, so notices about them must be shown now, unless the check fails.
            notices: list[Notice] = []
            context = TurnContext(
                notify=notices.append,
                load=self._history.load,
                fresh=frozenset(canister.identity for canister in said),
                default_controls=self._default_controls,
                cache=self._memo.access_cache(model),
            )
            await model.preview([*messages, *said], self._offered, self._controls, context)
            for notice in notices:
                if notice.subject == "conversion":
                    self._notify(notice)

    @property
    def _messages(self) -> Sequence[Canister]:
        """The model's input: the history, with the instructions of the offered tools before it."""
        instructions = self._instructions if self._offered else ()
        history = self._memo.show_to(self._settings.model, self._history)
        own = self._request.instructions
        if own:
            others = (i for i, one in enumerate(history) if not isinstance(one, SupervisorCanister))
            place = next(others, len(history))
            history = [*history[:place], *own, *history[place:]]
        if not instructions and not self._store.pending:
            return self._apply_documents(history)
        return self._apply_documents([*instructions, *history, *self._store.pending])

    def _apply_documents(self, canisters: Sequence[Canister]) -> Sequence[Canister]:
        """Return the messages with some documents replaced by text for the model."""
        if not self._memo.documents.replaces:
            return canisters
        return self._memo.apply_documents(self._settings.model, canisters)


class Handover(Struct, frozen=True):
    """A turn that a run continues: its request and its state."""

    request: TurnRequest
    state: TurnState


def _check_choice(controls: Controls, tools: Mapping[str, Invoker], model: Model) -> None:
    """Raise `ControlInvalid` if the chosen tool is not offered."""
    choice = controls.tool_choice
    if choice is None or choice in ("auto", "any", "none") or choice in tools:
        return
    raise ControlInvalid(
        f"tool {choice!r} not found; {name_tools(tools)}",
        control="tool-choice",
        model=model.name,
    )


async def _check_images(said: Sequence[Canister]) -> None:
    """Refuse a damaged image: in the history, it would make every later request fail."""
    images = [
        content.data
        for canister in said
        if isinstance(canister, UserCanister | DocumentCanister)
        for content in canister.contents
        if isinstance(content, ImageContent) and isinstance(content.data, bytes)
    ]
    if not images:
        return
    from vibe_llms.messages.images import REPAIR, find_damage

    for number, data in enumerate(images, 1):
        damage = await offload(len(data) > LOOP_BYTES, find_damage, data)
        if damage:
            which = f"image {number} of {len(images)}: " if len(images) > 1 else ""
            raise AttachmentUnreadable(f"{which}{damage}; {REPAIR}")


def _is_worth_keeping(canister: ReplyCanister) -> bool:
    """Return True if any part of a reply arrived; a refused reply is not stored."""
    if isinstance(canister, InvocationCanister) or canister.contents:
        return True
    ending = canister.ending
    begun = canister.provenance is not None and bool(canister.provenance.response)
    return begun or (ending is not None and (not ending.interrupted or bool(ending.severed)))
