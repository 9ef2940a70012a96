"""`Conversation`: what is said, to whom, with which tools; asked, streamed, forked, switched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from vibe_llms.attendants import Attendant
from vibe_llms.controls import Controls
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.events import EventHandler, Notice, NoticeEvent
from vibe_llms.exceptions import ConversationBusy, RequestError, SessionClosed
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.ledger import Ledger, finish, has_reply, locate, start_of_turn
from vibe_llms.messages.canisters import Canister, Turn
from vibe_llms.outfit import Outfit
from vibe_llms.outputs import OutputForm, OutputType, produce_form
from vibe_llms.prompts import Prompt, read_prompt
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading
from vibe_llms.running import EventStream, RunningTurn
from vibe_llms.toolbox import Tool
from vibe_llms.turns import TurnRun, TurnSettings


class Conversation:
    """One conversation. Made by a session: `await session.begin(...)`.

    One turn at a time; a second one raises `ConversationBusy`. Forks are independent of it.
    """

    def __init__(
        self, ledger: Ledger, outfit: Outfit, enter: Callable[[Conversation], object]
    ) -> None:
        """A conversation on a ledger; `enter` is told of it, and of each fork."""
        self._ledger = ledger
        self._outfit = outfit
        self._enter = enter
        self._running: RunningTurn | None = None
        self._closed = False
        enter(self)

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
        return self._outfit.model

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
        return self._outfit.invokers

    @property
    def ensembles(self) -> Sequence[Ensemble]:
        """The ensembles that its tools come from, beside those of its own."""
        return self._outfit.toolbox.ensembles

    @property
    def withheld(self) -> Sequence[str]:
        """The names of the tools that are there and not offered."""
        toolbox = self._outfit.toolbox
        return [name for name in toolbox.every if name not in toolbox.offered]

    async def offer(self, name: str) -> None:
        """Offer a tool or an ensemble that was withheld, or open a row of `[ensembles]` for it."""
        self._require_free()
        await self._outfit.offer(name)

    def withhold(self, name: str) -> None:
        """From the next turn on, do not offer a tool, or any tool of an ensemble."""
        self._outfit.toolbox.withhold(name)

    @property
    def attendants(self) -> Sequence[Attendant]:
        """Who attends its turns; see `vibe_llms.attendants`."""
        return self._outfit.attendants

    def invite(self, attendant: Attendant) -> None:
        """Let somebody attend from the next turn on."""
        self._outfit.invite(attendant)

    def dismiss(self, name: str) -> None:
        """From the next turn on, let the attendant of this name attend no more.

        Work that earlier turns have left is done all the same.
        """
        self._outfit.dismiss(name)

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
        """A fork without the last turns. It takes over the name and the place in lists.

        This one stays in the archive, where `superseded=True` lists it.
        """
        return await self._rewind(turns, keep_prompt=False)

    async def regenerate(self) -> Conversation:
        """A fork that ends with the last prompt; `await it.converse()` answers it again.

        It is this conversation itself where the last prompt has no reply yet, after an error say.
        """
        self._require_free()
        start = start_of_turn(self._ledger.canisters)
        if start is not None and not has_reply(self._ledger.canisters[start:]):
            return self
        return await self._rewind(1, keep_prompt=True)

    async def switch(self, model: str | Model) -> None:
        """Go on with another model, of any provider; the history stays as it is."""
        self._require_free()
        await self._ledger.revise(model=await self._outfit.switch(model))

    async def rename(self, name: str) -> None:
        """Give the conversation a name."""
        await self._ledger.revise(name=name)

    async def count_tokens(self) -> TokenCount:
        """How many tokens the model would read for this history."""
        model, tools, instructions = self._outfit.settle()
        history = [*instructions, *self._ledger.canisters]
        return await model.count_tokens(history, tools, self._load)

    async def preview(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: OutputType | None = None,
        streaming: bool = True,
    ) -> str:
        """The first request that `converse` would send, as its provider writes it.

        What `converse` refuses is refused. Nothing is kept, and nothing of it is sent; attendants
        are asked what they bring, and a server may be asked what its model can do.
        """
        form = None if output is None else produce_form(output)
        said, settings = self._prepare(prompt, invokers, controls, None, streaming, form)
        settings = msgspec.structs.replace(settings, told=set(), access_cache=lambda _: None)
        return (await TurnRun(self._ledger, settings).preview(said)).decode("utf-8", "replace")

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
        said, settings = self._prepare(
            prompt, invokers, controls, event_handler, streaming, form, throttle
        )
        run = TurnRun(self._ledger, settings)
        self._running = RunningTurn(run, said, name=f"turn of {self.identity}")
        return self._running

    def _prepare(
        self,
        prompt: Prompt | None,
        invokers: Iterable[Tool] | None,
        controls: Controls | None,
        event_handler: EventHandler | None,
        streaming: bool,
        form: OutputForm | None = None,
        throttle: Callable[[], Awaitable[object]] | None = None,
    ) -> tuple[Sequence[Canister], TurnSettings]:
        """What is said in a turn, and what it is held with; raises for what surely cannot be."""
        self._require_free()
        said: Sequence[Canister] = read_prompt(prompt)
        if not said and not self._ledger.canisters:
            raise RequestError("there is nothing to answer yet; say something")
        return self._outfit.prepare(
            said,
            invokers=invokers,
            controls=controls,
            event_handler=event_handler,
            streaming=streaming,
            form=form,
            throttle=throttle,
        )

    @property
    def _load(self) -> Loader:
        archive = self._ledger.archive
        return refuse_loading if archive is None else archive.load_all

    def _notify(self, notice: Notice) -> None:
        self._outfit.event_handler(NoticeEvent(notice=notice, conversation=self.identity))

    def _require_free(self) -> None:
        if self._closed:
            raise SessionClosed("the session of this conversation is closed; open another one")
        if self.busy:
            raise ConversationBusy(
                "a turn of this conversation is running; wait for it, cancel it, or fork"
            )

    async def _rewind(self, turns: int, *, keep_prompt: bool) -> Conversation:
        self._require_free()
        return self._twin(await self._ledger.rewind(turns, keep_prompt=keep_prompt))

    def _twin(self, ledger: Ledger) -> Conversation:
        return Conversation(ledger, self._outfit.copy(), self._enter)
