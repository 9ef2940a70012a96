"""What a conversation holds its turns with: model, tools, controls, who attends.

It is checked and put together here for each turn, and a fork begins with a copy of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.attendants import Attendance, Attendant
from vibe_llms.configuration import ToolMode, ToolSettings
from vibe_llms.controls import Controls, leave_choice
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.events import EventHandler
from vibe_llms.exceptions import ControlInvalid, RequestError
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.invokers import Invoker, gather_invokers
from vibe_llms.messages.canisters import Canister, SupervisorCanister
from vibe_llms.outputs import OutputForm
from vibe_llms.providers.contract.settling import settle_tools
from vibe_llms.providers.interfaces import InquiringModel, Model
from vibe_llms.providers.limits import Limiter
from vibe_llms.toolbox import Survey, Tool, Toolbox
from vibe_llms.turns import TurnSettings


async def _open_none(_: Iterable[str]) -> Sequence[Ensemble]:
    return ()


class ConversationDefaults(Struct, frozen=True, kw_only=True):
    """What a conversation takes from its session; forks share it."""

    event_handler: EventHandler
    access_model: Callable[[str], Awaitable[Model]]
    access_controls: Callable[[Model], Controls]
    tools: ToolSettings = ToolSettings()
    access_limiter: Callable[[Model], Limiter | None] = lambda _: None
    gatekeeper: Gatekeeper = Gatekeeper()
    open_ensembles: Callable[[Iterable[str]], Awaitable[Sequence[Ensemble]]] = _open_none
    survey_invokers: Survey = lambda ensemble: ensemble.invokers
    attendance: Attendance = msgspec.field(default_factory=Attendance)


class Outfit:
    """What the next turn of one conversation is held with."""

    def __init__(
        self,
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
        self.model = model
        self.toolbox = Toolbox(invokers, ensembles, survey=defaults.survey_invokers)
        self.attendants = tuple(dict.fromkeys(attendants))
        self._defaults = defaults
        self._controls = controls or Controls()
        self._event_handler = event_handler
        self._tool_mode: ToolMode | None = tool_mode
        self._instructions: Sequence[SupervisorCanister] = ()
        self._caches: dict[tuple[str, str, type], object] = {}
        self._told: set[tuple[str, str]] = set()

    def copy(self) -> Outfit:
        """The same for another conversation, with which nothing was told or encoded yet."""
        twin = Outfit(
            self.model,
            self._defaults,
            controls=self._controls,
            event_handler=self._event_handler,
            tool_mode=self._tool_mode,
            attendants=self.attendants,
        )
        twin.toolbox = self.toolbox.copy()
        return twin

    @property
    def event_handler(self) -> EventHandler:
        """Who hears of what happens, unless a turn names another."""
        return self._event_handler or self._defaults.event_handler

    @property
    def attendance(self) -> Attendance:
        """Who asks the attendants."""
        return self._defaults.attendance

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by their names."""
        return self._defaults.gatekeeper.settle(self.toolbox.offered)

    @property
    def default_controls(self) -> Controls:
        """The controls of the conversation, and of the configuration where these leave some."""
        return self._controls.over(self._defaults.access_controls(self.model))

    async def offer(self, name: str) -> None:
        """Offer a tool or an ensemble that was withheld, or open a row of `[ensembles]` for it."""

        async def open_row(row: str) -> Sequence[Ensemble]:
            return await self._defaults.open_ensembles([row])

        await self.toolbox.offer(name, open_row)

    def invite(self, attendant: Attendant) -> None:
        """Let somebody attend from the next turn on."""
        self.attendants = tuple(dict.fromkeys((*self.attendants, attendant)))

    def dismiss(self, name: str) -> None:
        """Let the attendant of this name attend no more; `RequestError` where there is none."""
        if name not in (known := [one.name for one in self.attendants]):
            raise RequestError(f"nobody called {name!r} attends; there are {known}")
        self.attendants = tuple(one for one in self.attendants if one.name != name)

    async def switch(self, model: str | Model) -> str:
        """Go on with another model; its address."""
        chosen = await self._defaults.access_model(model) if isinstance(model, str) else model
        self.model = chosen
        return f"{chosen.provider}/{chosen.name}"

    def prepare(
        self,
        said: Sequence[Canister],
        *,
        invokers: Iterable[Tool] | None,
        controls: Controls | None,
        event_handler: EventHandler | None,
        streaming: bool,
        form: OutputForm | None,
        throttle: Callable[[], Awaitable[object]] | None,
    ) -> tuple[Sequence[Canister], TurnSettings]:
        """What is said in a turn, and what it is held with; raises for what surely cannot be."""
        controls = controls or Controls()
        if form is not None:
            if self.model.attributes.surely_takes("response-schema"):
                controls = Controls(response_schema=form.schema).over(controls)
            else:
                said = (SupervisorCanister.from_text(form.instruction), *said)
        tools = self.invokers if invokers is None else gather_invokers(invokers)
        self._check(said, tools, controls)
        settings = TurnSettings(
            model=self.model,
            invokers=tools,
            controls=controls,
            default_controls=self.default_controls,
            tools=self._defaults.tools,
            event_handler=event_handler or self.event_handler,
            streaming=streaming,
            access_cache=self._access_cache,
            told=self._told,
            throttle=throttle,
            form=form,
            limiter=self._defaults.access_limiter(self.model),
            gatekeeper=self._defaults.gatekeeper,
            tool_mode=self._tool_mode,
            instructions=self._instruct(tools.values()),
            attendants=self.attendants,
            attendance=self.attendance,
        )
        return said, settings

    def settle(self) -> tuple[Model, Sequence[Invoker], Sequence[SupervisorCanister]]:
        """The model, the tools that it is offered, and what it is told of them, as known now."""
        model, tools = self._settle_tools(self.invokers)
        return model, tools, self._instruct(tools)

    def _check(
        self, said: Sequence[Canister], tools: Mapping[str, Invoker], controls: Controls
    ) -> None:
        off = (self._tool_mode or self._defaults.tools.mode) == "off"
        _check_choice(controls, {} if off else tools, self.model)
        # A model that is to be asked what it can do is checked once it was.
        known = not isinstance(self.model, InquiringModel)
        checked = self._settle_tools(tools)[0] if known else self.model
        checked.check(said, controls if known else leave_choice(controls))

    def _settle_tools(self, tools: Mapping[str, Invoker]) -> tuple[Model, Sequence[Invoker]]:
        mode = self._tool_mode or self._defaults.tools.mode
        asked = self._tool_mode is not None
        return settle_tools(self.model, tuple(tools.values()), mode, asked=asked)

    def _instruct(self, tools: Iterable[Invoker]) -> Sequence[SupervisorCanister]:
        """What the ensembles of some tools tell the model; the same canisters as long as it is."""
        texts = self.toolbox.instruct(tools)
        if texts != [canister.text for canister in self._instructions]:
            self._instructions = tuple(SupervisorCanister.from_text(text) for text in texts)
            # What was encoded begins otherwise.
            self._caches.clear()
        return self._instructions

    def _access_cache(self, model: Model) -> object:
        """What is kept for a model, apart from what is kept for it under the contract."""
        address = (model.provider, model.name, type(model))
        if address not in self._caches:
            self._caches[address] = model.produce_cache()
        return self._caches[address]


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
