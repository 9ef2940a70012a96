"""`Conversation`: what is said, to whom, with which tools; asked, streamed, forked, switched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.attendants import Attendance, Attendant, Occasion
from vibe_llms.configuration import ToolMode, ToolSettings
from vibe_llms.controls import Controls
from vibe_llms.ensembles.interfaces import Ensemble, InstructingEnsemble
from vibe_llms.events import (
    EventHandler,
    Notice,
    NoticeEvent,
)
from vibe_llms.exceptions import (
    ControlInvalid,
    ConversationBusy,
    ForkPointInvalid,
    RequestError,
    SessionClosed,
)
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.invokers import Invoker, gather_invokers
from vibe_llms.ledger import Ledger, finish, locate, start_of_turn
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    Turn,
)
from vibe_llms.outputs import OutputForm, OutputType, produce_form
from vibe_llms.prompts import Prompt, read_prompt
from vibe_llms.providers.contract.settling import settle_tools
from vibe_llms.providers.interfaces import (
    InquiringModel,
    Loader,
    Model,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.limits import Limiter
from vibe_llms.running import EventStream, RunningTurn
from vibe_llms.toolbox import Survey, Tool, Toolbox
from vibe_llms.turns import TurnRun, TurnSettings


async def _open_none(_: Iterable[str]) -> Sequence[Ensemble]:
    return ()


class ConversationDefaults(Struct, frozen=True, kw_only=True):
    """What a conversation takes from its session; forks share it."""

    event_handler: EventHandler
    access_model: Callable[[str], Awaitable[Model]]
    access_controls: Callable[[Model], Controls]
    enter: Callable[[Conversation], None]
    tools: ToolSettings = ToolSettings()
    access_limiter: Callable[[Model], Limiter | None] = lambda _: None
    gatekeeper: Gatekeeper = Gatekeeper()
    open_ensembles: Callable[[Iterable[str]], Awaitable[Sequence[Ensemble]]] = _open_none
    survey_invokers: Survey = lambda ensemble: ensemble.invokers
    attendance: Attendance = msgspec.field(default_factory=Attendance)


class Conversation:
    """One conversation. Made by a session: `await session.begin(...)`.

    One turn at a time; a second one raises `ConversationBusy`. Forks are independent of it.
    """

    def __init__(
        self,
        ledger: Ledger,
        model: Model,
        defaults: ConversationDefaults,
        *,
        invokers: Iterable[Tool] = (),
        ensembles: Sequence[Ensemble] = (),
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        tool_mode: ToolMode | None = None,
        attendants: Iterable[Attendant] = (),
    ) -> None:
        self._ledger = ledger
        self._model = model
        self._defaults = defaults
        self._toolbox = Toolbox(invokers, ensembles, survey=defaults.survey_invokers)
        self._controls = controls or Controls()
        self._event_handler = event_handler
        self._tool_mode: ToolMode | None = tool_mode
        self._attendants = tuple(dict.fromkeys(attendants))
        self._instructions: tuple[SupervisorCanister, ...] = ()
        self._running: RunningTurn | None = None
        self._closed = False
        self._caches: dict[tuple[str, str, type], object] = {}
        self._told: set[tuple[str, str]] = set()
        defaults.enter(self)

    @property
    def identity(self) -> str:
        """The identity in the archive. It changes only where a notice says so."""
        return self._ledger.identity

    @property
    def name(self) -> str:
        """The name that a person gave; empty if none did."""
        return self._ledger.details.name

    @property
    def model(self) -> Model:
        """The model that the next turn speaks with."""
        return self._model

    @property
    def canisters(self) -> tuple[Canister, ...]:
        """All that was said."""
        return tuple(self._ledger.canisters)

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""
        return self._running is not None and not self._running.task.done()

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by their names: its own, and those of ensembles."""
        return self._defaults.gatekeeper.settle(self._toolbox.offered)

    @property
    def ensembles(self) -> Sequence[Ensemble]:
        """The ensembles that its tools come from, beside those of its own."""
        return self._toolbox.ensembles

    @property
    def withheld(self) -> Sequence[str]:
        """The names of the tools that are there and not offered."""
        return [name for name in self._toolbox.every if name not in self._toolbox.offered]

    async def offer(self, name: str) -> None:
        """Offer a tool or an ensemble that was withheld, or open a row of `[ensembles]` for it."""
        self._require_free()

        async def open_row(row: str) -> Sequence[Ensemble]:
            return await self._defaults.open_ensembles([row])

        await self._toolbox.offer(name, open_row)

    def withhold(self, name: str) -> None:
        """From the next turn on, do not offer a tool, or any tool of an ensemble."""
        self._toolbox.withhold(name)

    @property
    def attendants(self) -> Sequence[Attendant]:
        """Who attends its turns; see `vibe_llms.attendants`."""
        return self._attendants

    def invite(self, attendant: Attendant) -> None:
        """Let somebody attend from the next turn on."""
        self._attendants = tuple(dict.fromkeys((*self._attendants, attendant)))

    def dismiss(self, name: str) -> None:
        """From the next turn on, let the attendant of this name attend no more.

        Work that earlier turns have left is done all the same.
        """
        if name not in (known := [one.name for one in self._attendants]):
            raise RequestError(f"nobody called {name!r} attends; there are {known}")
        self._attendants = tuple(one for one in self._attendants if one.name != name)

    async def converse(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        output: OutputType | None = None,
        streaming: bool = True,
    ) -> Turn:
        """Say something and hold the turn to its end, calls of tools included.

        Without a prompt the model goes on from where the history stands. `invokers`, `controls` and
        `event_handler` are for this turn, in place of, over and in place of the conversation's own.
        With `output`, a type or a JSON Schema, the reply is a value of it, as the turn's `output`;
        a reply that is none is asked for again, twice at most, before `OutputInvalid` is raised.
        When this returns, everything is durable. If it raises, or is cancelled, what had arrived is
        kept, marked as interrupted, and the next turn works.
        """
        form = None if output is None else produce_form(output)
        running = self._start(prompt, invokers, controls, event_handler, streaming, form)
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            # The caller was cancelled, so the turn is; its end is waited for.
            await running.end()
            raise

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: OutputType | None = None,
        streaming: bool = True,
    ) -> EventStream:
        """The same turn as a loop over its events::

            async with conversation.stream("Why?") as events:
                async for event in events:
                    ...

        Leaving it early cancels the turn. A slow loop holds the stream back. With `output`,
        `events.partial` is what there is of it so far.
        """
        stream = EventStream()
        form = None if output is None else produce_form(output)
        handler, throttle = stream.channel.put, stream.throttle
        stream.begin(self._start(prompt, invokers, controls, handler, streaming, form, throttle))
        return stream

    async def add(self, said: Prompt) -> None:
        """Keep what was said without asking the model: instructions, documents, an example."""
        self._require_free()
        await self._ledger.append(read_prompt(said), self._notify)

    async def cancel(self) -> None:
        """End the running turn, if there is one, and wait until it has ended.

        What had arrived is kept; `converse` returns a turn whose stop reason is `interrupted`.
        """
        running = self._running
        if running is not None and not running.task.done():
            running.interrupt(quietly=True)
            # Not to the end if the task is cancelled: it may be a tool of this very turn.
            await asyncio.wait([running.task])

    async def fork(self, at: str | int | None = None, *, name: str = "") -> Conversation:
        """An independent conversation that keeps everything up to and including `at`.

        `at` is the identity or the index of a canister; without it everything is kept. No content
        is copied. `ForkPointInvalid` names the nearest points where a history can be cut.
        """
        self._require_free()
        ledger = await finish(self._ledger.fork(locate(self._ledger.canisters, at), name=name))
        return self._twin(ledger)

    async def undo(self, turns: int = 1) -> Conversation:
        """A fork without the last turns; it takes over the name, and this one gives it up."""
        return await self._rewind(turns, keep_prompt=False)

    async def regenerate(self) -> Conversation:
        """A fork that ends with the last prompt; `await it.converse()` answers it anew."""
        return await self._rewind(1, keep_prompt=True)

    async def switch(self, model: str | Model) -> None:
        """Go on with another model, of any provider; the history stays as it is."""
        self._require_free()
        chosen = await self._defaults.access_model(model) if isinstance(model, str) else model
        self._model = chosen
        await self._ledger.revise(model=f"{chosen.provider}/{chosen.name}")

    async def rename(self, name: str) -> None:
        """Give the conversation a name."""
        await self._ledger.revise(name=name)

    async def count_tokens(self) -> TokenCount:
        """How many tokens the model would read for this history."""
        model, tools = self._settle_tools(self.invokers)
        history = [*self._instruct(tools), *self._ledger.canisters]
        return await model.count_tokens(history, tools, self._load)

    async def preview(
        self, prompt: Prompt | None = None, *, controls: Controls | None = None
    ) -> str:
        """The request that `converse` would send, as its provider writes it; nothing is sent.

        Attendants are asked what they bring; nothing of it is kept.
        """
        said: Sequence[Canister] = read_prompt(prompt)
        place = start_of_turn(said)
        if self._attendants and place is not None:
            occasion = Occasion(
                conversation=self.identity,
                model=self._model,
                history=self.canisters,
                said=said,
                kept=self._ledger.archive is not None,
                load=self._load,
                notify=self._notify,
            )
            briefings = await self._defaults.attendance.brief(self._attendants, occasion)
            brought = [canister for one in briefings for canister in one.canisters]
            said = [*said[:place], *brought, *said[place:]]
        context = TurnContext(default_controls=self._default_controls(), load=self._load)
        model, tools = self._settle_tools(self.invokers)
        body = await model.preview(
            [*self._instruct(tools), *self._ledger.canisters, *said],
            tools,
            controls or Controls(),
            context,
        )
        return body.decode("utf-8", "replace")

    async def close(self) -> None:
        """End a running turn, and accept no further one."""
        self._closed = True
        await self.cancel()

    def _start(
        self,
        prompt: Prompt | None,
        invokers: Iterable[Tool] | None,
        controls: Controls | None,
        event_handler: EventHandler | None,
        streaming: bool,
        form: OutputForm | None = None,
        throttle: Callable[[], Awaitable[object]] | None = None,
    ) -> RunningTurn:
        self._require_free()
        said = read_prompt(prompt)
        if not said and not self._ledger.canisters:
            raise RequestError("there is nothing to answer yet; say something")
        controls = controls or Controls()
        model = self._model
        if form is not None:
            if model.attributes.surely_takes("response-schema"):
                controls = Controls(response_schema=form.schema).over(controls)
            else:
                said = (SupervisorCanister.from_text(form.instruction), *said)
        tools = self.invokers if invokers is None else gather_invokers(invokers)
        off = (self._tool_mode or self._defaults.tools.mode) == "off"
        _check_choice(controls, {} if off else tools, model)
        # A model that is to be asked what it can do is checked once it was.
        known = not isinstance(model, InquiringModel)
        checked = self._settle_tools(tools)[0] if known else model
        checked.check(said, controls if known else _leave_choice(controls))
        run = TurnRun(
            self._ledger,
            TurnSettings(
                model=model,
                invokers=tools,
                controls=controls,
                default_controls=self._default_controls(),
                tools=self._defaults.tools,
                event_handler=event_handler or self._event_handler or self._defaults.event_handler,
                streaming=streaming,
                access_cache=self._access_cache,
                told=self._told,
                throttle=throttle,
                form=form,
                limiter=self._defaults.access_limiter(model),
                gatekeeper=self._defaults.gatekeeper,
                tool_mode=self._tool_mode,
                instructions=self._instruct(tools.values()),
                attendants=self._attendants,
                attendance=self._defaults.attendance,
            ),
        )
        self._running = RunningTurn(run, said, name=f"turn of {self.identity}")
        return self._running

    def _instruct(self, tools: Iterable[Invoker]) -> tuple[SupervisorCanister, ...]:
        """What the ensembles of some tools tell the model; the same canisters as long as it is."""
        offered = {tool.ensemble for tool in tools}
        texts = [
            one.instructions
            for one in self._toolbox.ensembles
            if one.name in offered and isinstance(one, InstructingEnsemble) and one.instructions
        ]
        if texts != [canister.text for canister in self._instructions]:
            self._instructions = tuple(SupervisorCanister.from_text(text) for text in texts)
            # What was encoded begins otherwise.
            self._caches.clear()
        return self._instructions

    @property
    def _load(self) -> Loader:
        archive = self._ledger.archive
        return refuse_loading if archive is None else archive.load_all

    def _settle_tools(self, tools: Mapping[str, Invoker]) -> tuple[Model, Sequence[Invoker]]:
        """The model and the tools that it is offered, as far as is known of it now."""
        mode = self._tool_mode or self._defaults.tools.mode
        asked = self._tool_mode is not None
        return settle_tools(self._model, tuple(tools.values()), mode, asked=asked)

    def _access_cache(self, model: Model) -> object:
        """What is kept for a model, apart from what is kept for it under the contract."""
        address = (model.provider, model.name, type(model))
        if address not in self._caches:
            self._caches[address] = model.produce_cache()
        return self._caches[address]

    def _default_controls(self) -> Controls:
        return self._controls.over(self._defaults.access_controls(self._model))

    def _notify(self, notice: Notice) -> None:
        handler = self._event_handler or self._defaults.event_handler
        handler(NoticeEvent(notice=notice, conversation=self.identity))

    def _require_free(self) -> None:
        if self._closed:
            raise SessionClosed("the session of this conversation is closed; open another one")
        if self.busy:
            raise ConversationBusy(
                "a turn of this conversation is running; wait for it, cancel it, or fork"
            )

    async def _rewind(self, turns: int, *, keep_prompt: bool) -> Conversation:
        self._require_free()
        if turns < 1:
            raise RequestError(f"{turns} turns cannot be taken back; give a number from 1 on")
        canisters = self._ledger.canisters
        end = len(canisters)
        for _ in range(turns):
            start = start_of_turn(canisters[:end])
            if start is None:
                raise ForkPointInvalid(f"there are not {turns} turns to take back", nearest=())
            end = start
        if keep_prompt:
            while end < len(canisters) and not _is_reply(canisters[end]):
                end += 1
        name = self.name
        ledger = await finish(self._ledger.fork(end, name=name))
        if name:
            await self.rename(f"{name} (until {_stamp(canisters)})")
        return self._twin(ledger)

    def _twin(self, ledger: Ledger) -> Conversation:
        twin = Conversation(
            ledger,
            self._model,
            self._defaults,
            controls=self._controls,
            event_handler=self._event_handler,
            tool_mode=self._tool_mode,
            attendants=self._attendants,
        )
        twin._toolbox = self._toolbox.copy()
        return twin


def _leave_choice(controls: Controls) -> Controls:
    """The controls without the choice of a tool, which depends on how tools are offered."""
    return msgspec.structs.replace(controls, tool_choice=None)


def _check_choice(controls: Controls, tools: Mapping[str, Invoker], model: Model) -> None:
    """Raise `ControlInvalid` where a tool is to be called that is not offered."""
    choice = controls.tool_choice
    if choice is None or choice in ("auto", "any", "none") or choice in tools:
        return
    raise ControlInvalid(
        f"there is no tool {choice!r} to choose; the tools are {', '.join(tools) or 'none'}",
        control="tool-choice",
        model=model.name,
    )


def _is_reply(canister: Canister) -> bool:
    return isinstance(canister, AssistantCanister | InvocationCanister | ResultCanister)


def _stamp(canisters: Sequence[Canister]) -> str:
    return f"{canisters[-1].created:%Y-%m-%d %H:%M:%S}"
