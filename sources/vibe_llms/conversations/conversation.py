"""`Conversation`: messages, a model, and tools, to ask, stream, fork, and switch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    ConversationBusy,
    ConversationNotFound,
    PackageMissing,
    RequestError,
    SessionClosed,
    SteeringRefused,
)
from vibe_llms.base.futures import finish
from vibe_llms.conversations.context_view import count_covered, revise_digest, without_digests
from vibe_llms.conversations.context_window import UNKNOWN_WINDOW
from vibe_llms.conversations.history import (
    History,
    find_exchanges,
    has_reply,
    locate,
    start_of_turn,
)
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.conversations.prompts import Prompt, apply_template, is_instructed, read_prompt
from vibe_llms.conversations.settings import (
    ConversationSettings,
    TurnMemo,
    TurnRecord,
    TurnRequest,
)
from vibe_llms.conversations.steering import (
    SteeringQueue,
    SteeringSource,
    as_prompt,
    read_steering,
)
from vibe_llms.conversations.streams import EventStream, RunningTurn
from vibe_llms.conversations.tools import Tool
from vibe_llms.conversations.turns import TurnRun
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.caching import RequestCaching, measure_caching
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    Ending,
    InvocationCanister,
    Provenance,
    StopReason,
    SupervisorCanister,
    Turn,
    Usage,
    UserCanister,
    is_untrusted,
)
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import (
    EventHandler,
    Notice,
    NoticeEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
)
from vibe_llms.providers.interfaces import Model, TokenCount

if TYPE_CHECKING:
    from decimal import Decimal

    from vibe_llms.conversations.context_use import ContextUse
    from vibe_llms.conversations.outputs import OutputForm, OutputType

T = TypeVar("T")


class Conversation:
    """One conversation. Sessions create it: `await session.begin(...)`.

    It runs one turn at a time; a second one raises `ConversationBusy`. Forks are independent.
    """

    def __init__(
        self,
        history: History,
        settings: ConversationSettings,
        enter: Callable[[Conversation], object],
    ) -> None:
        """Create a conversation on a history; `enter` is called with it, and with each fork."""
        self._history = history
        self._settings = settings
        self._enter = enter
        self._memo = TurnMemo()
        self._running: RunningTurn | None = None
        self._steering = SteeringQueue()
        self._closed = False
        enter(self)

    def __repr__(self) -> str:
        model, count = self.model, len(self._history.canisters)
        return f"<Conversation {self.identity}: {model.provider}/{model.name}, {count} messages>"

    def _repr_markdown_(self) -> str:
        """Return Markdown for a notebook: messages and names of called tools, with HTML escaped."""
        from vibe_llms.messages.markdown import escape_html

        parts: list[str] = []
        for one in self._history.canisters:
            match one:
                case UserCanister():
                    parts += ["**You**", escape_html(text_of(one.contents))]
                case AssistantCanister():
                    parts.append(escape_html(text_of(one.contents)))
                case InvocationCanister(name=name):
                    parts.append(f"*called {escape_html(name)}*")
        return "\n\n".join(filter(None, parts))

    @property
    def settings(self) -> ConversationSettings:
        """The settings of its turns; a change creates a new value."""
        return self._settings

    @property
    def history(self) -> History:
        """Its messages and their storage."""
        return self._history

    @property
    def identity(self) -> str:
        """The identity in the archive. It changes only with a notice."""
        return self._history.identity

    @property
    def name(self) -> str:
        """The name of the conversation; may be empty."""
        return self._history.details.name

    @property
    def model(self) -> Model:
        """The model that answers the next turn."""
        return self._settings.model

    @property
    def canisters(self) -> tuple[Canister, ...]:
        """All messages of the history."""
        return tuple(self._history.canisters)

    @property
    def caching(self) -> tuple[RequestCaching, ...]:
        """Share of the prompt cache in each request whose usage was reported."""
        return tuple(measure_caching(self._history.canisters, self._memo.caching.reports))

    @property
    def busy(self) -> bool:
        """True if a turn is running."""
        return self._running is not None and not self._running.task.done()

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by name: its own, and those of ensembles."""
        return self._settings.invokers

    @property
    def ensembles(self) -> Sequence[Ensemble]:
        """The ensembles that provide its tools."""
        return self._settings.toolbox.ensembles

    @property
    def withheld(self) -> Sequence[str]:
        """Names of its tools that are not offered."""
        toolbox = self._settings.toolbox
        return [name for name in toolbox.all_tools if name not in toolbox.offered]

    @property
    def untrusted(self) -> Sequence[Canister]:
        """Messages with text from others: documents, files, and results from outside.

        While there are any, tools that may send data out ask before they run.
        """
        vouched = self._settings.vouched
        return [
            one
            for one in self._history.canisters
            if is_untrusted(one) and one.identity not in vouched
        ]

    def vouch(self, *identities: str) -> None:
        """Trust the text of some messages from the next turn on, here and in later forks.

        This lasts until the session ends. `DocumentCanister(trusted=True)` is stored.
        """
        vouched = self._settings.vouched.union(identities)
        self._settings = replace(self._settings, vouched=vouched)

    async def offer(self, name: str) -> None:
        """Offer a withheld tool or ensemble, or open a row of `[ensembles]` and offer it."""
        await self._become_free()

        async def open_row(row: str) -> Sequence[Ensemble]:
            settings = self._settings
            return await settings.services.open_ensembles([row], settings.event_handler)

        toolbox = await self._settings.toolbox.offer(name, open_row)
        self._settings = replace(self._settings, toolbox=toolbox)

    def withhold(self, name: str) -> None:
        """Stop offering a tool, or all tools of an ensemble, from the next turn on."""
        self._settings = replace(self._settings, toolbox=self._settings.toolbox.withhold(name))

    @property
    def hooks(self) -> Sequence[TurnHook]:
        """The hooks of its turns; see `vibe_llms.conversations.hooks`."""
        return self._settings.hooks

    def add_hook(self, hook: TurnHook) -> None:
        """Call a hook from the next turn on."""
        self._settings = replace(self._settings, hooks=tuple(dict.fromkeys((*self.hooks, hook))))

    def remove_hook(self, name: str) -> None:
        """Stop calling the hook with this name from the next turn on.

        Its work on earlier turns continues. Raises `RequestError` if no hook has this name.
        """
        if name not in (known := [hook.name for hook in self.hooks]):
            raise RequestError(
                f"hook {name!r} not found; known hooks: {', '.join(known) or 'none'}"
            )
        left = tuple(hook for hook in self.hooks if hook.name != name)
        self._settings = replace(self._settings, hooks=left)

    @overload
    async def converse(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        output: None = None,
        streaming: bool = True,
    ) -> Turn[None]: ...
    @overload
    async def converse(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        output: type[T],
        streaming: bool = True,
    ) -> Turn[T]: ...
    @overload
    async def converse(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        output: OutputType,
        streaming: bool = True,
    ) -> Turn[Any]: ...
    async def converse(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        output: OutputType = None,
        streaming: bool = True,
    ) -> Turn[Any]:
        """Send a message and run the turn to its end, including tool calls.

        Without a prompt, the model continues from the end of the history. `invokers` and
        `event_handler` replace the conversation's; `controls` are merged over them. With `output`,
        a type or a JSON Schema, the reply is converted to a value of it, the turn's `output`. If it
        does not match, the model is asked again, at most twice; then `OutputInvalid` is raised.

        When this returns, everything is durable. If it raises, or is cancelled, everything that had
        arrived is stored and marked as interrupted, and the next turn works.
        """
        await self._become_free()
        return await self._run_turn(
            self._produce_request(
                prompt,
                controls,
                output,
                invokers=invokers,
                event_handler=event_handler,
                streaming=streaming,
            )
        )

    async def _run_turn(self, request: TurnRequest) -> Turn[Any]:
        running = self._start(request)
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            # Cancelling the caller cancels the turn; wait for its end.
            await running.end()
            raise

    @overload
    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: None = None,
        streaming: bool = True,
    ) -> EventStream[None]: ...
    @overload
    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: type[T],
        streaming: bool = True,
    ) -> EventStream[T]: ...
    @overload
    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: OutputType,
        streaming: bool = True,
    ) -> EventStream[Any]: ...
    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: OutputType = None,
        streaming: bool = True,
    ) -> EventStream[Any]:
        """Run a turn like `converse`, as a loop over its text or its events:

        ```python
        async for text in conversation.stream("Why?").text():
            print(text, end="")

        async with conversation.stream("Why?") as events:
            async for event in events:
                ...
        ```

        Leaving the loop early cancels the turn. A slow loop slows the stream down. With `output`,
        `events.partial` is the part of it that has arrived.
        """
        stream: EventStream[Any] = EventStream()
        put, throttle = stream.channel.put, stream.throttle

        def start() -> RunningTurn:
            return self._start(
                self._produce_request(
                    prompt,
                    controls,
                    output,
                    invokers=invokers,
                    event_handler=put,
                    streaming=streaming,
                    throttle=throttle,
                )
            )

        async def start_later() -> RunningTurn:
            await self._become_free()
            return start()

        if self.busy and self._is_left:
            stream.begin_later(start_later)
        else:
            stream.begin(start())
        return stream

    def begin_recorded(
        self,
        said: Sequence[Canister],
        *,
        instructions: Sequence[SupervisorCanister],
        controls: Controls,
        form: OutputForm | None,
        event_handler: EventHandler,
        record: TurnRecord,
        steering: SteeringSource,
    ) -> RunningTurn:
        """Begin or continue the turn of a run; `session.start` makes runs.

        `said` and `controls` already request the `form`.
        """
        self._require_free()
        return self._start(
            TurnRequest(
                said=said,
                instructions=instructions,
                controls=controls,
                form=form,
                event_handler=event_handler,
                record=record,
                steering=steering,
            )
        )

    async def refresh(self) -> None:
        """Read messages that other processes have added, unless a turn is running."""
        if not self.busy:
            await self._history.refresh()

    async def add(self, said: Prompt) -> None:
        """Store messages without asking the model: instructions, documents, an example."""
        await self._become_free()
        await self._history.append(read_prompt(said), self._notify)

    async def cancel(self) -> None:
        """Cancel the running turn, if there is one, and wait for its end.

        What arrived is stored; `converse` returns a turn with the stop reason `interrupted`.
        """
        running = self._running
        if running is not None and not running.task.done():
            running.interrupt(quietly=True)
            # If this task is cancelled, do not wait for the end: it may be a tool of this turn.
            await asyncio.wait([running.task])

    async def steer(self, prompt: Prompt) -> str:
        """Add a message to the running turn and return its identity.

        The turn stores it and sends it with its next request, after the results of the calls. If
        the model has just given its last reply, the turn asks it again. If the turn is cancelled or
        fails first, the message remains in `queued` and is sent before the next prompt.

        Raises `SteeringRefused` if no turn is running or it is about to end, and the same errors as
        `converse` for a message that the model does not accept.
        """
        message = read_steering(prompt, self._settings.template)
        await self._access_steered().admit(message)
        run = self._access_steered()
        run.report(SteeringQueuedEvent(canister=message, conversation=self.identity))
        self._steering.add(message)
        return message.identity

    def hand_over_queued(self) -> Sequence[UserCanister]:
        """Remove all messages from `queued`, for the run that continues the turn; return them."""
        return self._steering.move()

    def queue_again(self, messages: Sequence[UserCanister]) -> None:
        """Put messages of `hand_over_queued` back, because no run could be created."""
        self._steering.put_back(messages)

    @property
    def queued(self) -> Sequence[UserCanister]:
        """The messages of `steer` that are not sent yet, in order."""
        return self._steering.messages

    async def take_back(self, identity: str) -> UserCanister:
        """Remove a message from `queued` and return it.

        Raises `SteeringRefused` if it is not there: it was sent, or taken back before.
        """
        message = self._steering.find(identity)
        run = None if self._running is None else self._running.run
        report = self._settings.event_handler if run is None else run.report
        report(SteeringWithdrawnEvent(canister=message, conversation=self.identity))
        self._steering.remove(identity)
        return message

    def _access_steered(self) -> TurnRun:
        """Return the running turn; raises `SteeringRefused` if it accepts no messages."""
        run = None if self._running is None or self._is_left else self._running.run
        if run is not None and run.recorded:
            raise SteeringRefused("this turn belongs to a run; use the `steer` method of the run")
        if run is None or not self._steering.open:
            raise SteeringRefused(
                "no turn is running that could take the message; send it with `converse`"
            )
        return run

    async def fork(
        self, at: str | int | None = None, *, name: str = "", open_calls: bool = False
    ) -> Conversation:
        """Create an independent conversation with everything up to and including `at`.

        `at` is the identity or the index of a canister, or None for everything. No content is
        copied. Raises `ForkPointInvalid`, with the nearest points where the history can be cut.
        With `open_calls`, the fork may end with calls of tools that run elsewhere.
        """
        await self._become_free()
        end = locate(self._history.canisters, at, open_calls=open_calls)
        history = await finish(self._history.fork(end, name=name))
        return self._twin(history)

    @property
    def running(self) -> RunningTurn | None:
        """The running turn, or None."""
        return self._running if self.busy else None

    async def undo(self, turns: int = 1) -> Conversation:
        """Create a fork without the last turns that takes over the name and the place in lists.

        This conversation stays in the archive, where `superseded=True` lists it.
        """
        return await self._rewind(turns, keep_prompt=False)

    async def regenerate(self) -> Conversation:
        """Create a fork that ends with the last prompt; `await it.converse()` answers it again.

        If the last prompt has no reply yet, for example after an error, returns this conversation.
        """
        await self._become_free()
        start = start_of_turn(self._history.canisters)
        if start is not None and not has_reply(self._history.canisters[start:]):
            return self
        return await self._rewind(1, keep_prompt=True)

    async def switch(self, model: str | Model) -> None:
        """Continue with another model, of any provider; the history does not change."""
        await self._become_free()
        if isinstance(model, str):
            model = await self._settings.services.access_model(model)
        self._settings = replace(self._settings, model=model)
        await self._history.revise(model=f"{model.provider}/{model.name}")

    async def rename(self, name: str) -> None:
        """Give the conversation a name."""
        await self._history.revise(name=name)

    async def compact(
        self,
        focus: str = "",
        *,
        event_handler: EventHandler | None = None,
    ) -> Turn[None]:
        """Let the model summarize the conversation, so that later requests are shorter.

        Instructions, the first request, the last messages of the user, pinned messages, and the
        last reply stay as they are. The stored messages do not change. `focus` is a wish for the
        summary, in words. The returned turn has the digest as its only message; it has none if the
        conversation is too short.
        """
        await self._become_free()
        if not self._history.canisters:
            raise RequestError("the conversation has no messages to compact")
        return await self._run_turn(TurnRequest(compacts=focus, event_handler=event_handler))

    async def pin(self, *identities: str) -> None:
        """Keep some messages word for word in every later request, here and in later forks.

        Calls and results stay together, although only the pinned ones of them are never shortened.
        Raises `ConversationNotFound` for an identity that this conversation does not have.
        """
        await self._become_free()
        messages = without_digests(self._history.canisters)
        for identity in {*identities} - {one.identity for one in messages}:
            raise ConversationNotFound(f"message {identity!r} not found in this conversation")
        self._memo.show(self._history)
        digest = self._memo.view.digest or DigestCanister()
        places = find_exchanges(messages, frozenset(identities)) if digest.last else ()
        kept = dict.fromkeys(
            (*digest.kept, *(messages[place].identity for place in sorted(places)))
        )
        pinning = revise_digest(
            digest,
            kept=tuple(kept),
            shortened={k: v for k, v in digest.shortened.items() if k not in identities},
            pinned=tuple(dict.fromkeys((*digest.pinned, *identities))),
        )
        await self._history.append([pinning], self._notify)

    async def measure_context(self) -> ContextUse:
        """Return the tokens of the next request, by what they are used for."""
        # Imported only here, because most conversations do not need it.
        from vibe_llms.conversations.context_use import ContextUse, divide_tokens

        count = await self.count_tokens()
        model, tools, messages = self._produce_request_parts()
        digest = self._memo.view.digest
        settings = self._settings.context
        window = await self._settings.services.access_windows().window_of(model)
        size = window or UNKNOWN_WINDOW
        every = without_digests(self._history.canisters)
        return ContextUse(
            tokens=count.tokens,
            window=size,
            parts=divide_tokens(count.tokens, messages, tools, digest),
            messages=len(every),
            covered=count_covered(every, digest),
            known=window is not None,
            estimated=count.estimated,
            compact_at=None if settings.mode == "off" else int(size * settings.compact_at),
            price=self._estimate_price(count.tokens),
        )

    async def count_tokens(self) -> TokenCount:
        """Count the tokens that the model would read for this history."""
        model, tools, messages = self._produce_request_parts()
        return await model.count_tokens(messages, tools, self._history.load)

    def _produce_request_parts(self) -> tuple[Model, Sequence[Invoker], Sequence[Canister]]:
        """Return the model, the tools, and the messages of the next request."""
        history = [*self._memo.show(self._history), *self._missing_instructions()]
        reread = self._memo.access_reread(self._history)
        invokers = self._settings.invokers
        if reread is not None:
            invokers = {reread.name: reread, **invokers}
        model, tools = self._settings.choose_tools(invokers)
        instructions = self._memo.instruct(self._settings.toolbox.instruct(tools))
        return model, tools, [*instructions, *self._memo.apply_documents(model, history)]

    def _estimate_price(self, tokens: int) -> Decimal | None:
        """Return the price of reading these tokens without a cache, or None if it is unknown."""
        if (estimate := self._settings.services.estimate_cost) is None:
            return None
        model = self.model
        request = AssistantCanister(
            provenance=Provenance("", model.provider, model.name),
            ending=Ending(StopReason.FINISHED, Usage(uncached_input_tokens=tokens)),
        )
        try:
            cost = estimate([request])
        except PackageMissing:
            return None
        return None if cost.unpriced else cost.dollars

    async def preview(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: OutputType = None,
        streaming: bool = True,
    ) -> str:
        """Return the first request of `converse` in the provider's format, without sending it.

        Raises the same errors as `converse` for a request that it would refuse. Nothing is stored.
        Hooks are called, and a server may be asked for its model's abilities.
        """
        request = self._produce_request(
            prompt, controls, output, invokers=invokers, streaming=streaming
        )
        run = TurnRun(self._history, self._settings, request, TurnMemo())
        return (await run.preview()).decode("utf-8", "replace")

    async def close(self) -> None:
        """Cancel a running turn and refuse further ones."""
        self._closed = True
        await self.cancel()

    def read_prompt(self, prompt: Prompt | None) -> Sequence[Canister]:
        """Return the messages of a prompt, with the template and instructions of its agent.

        Instructions that are already in the history are not repeated.
        """
        said, settings = read_prompt(prompt), self._settings
        if settings.template is not None:
            said = apply_template(said, settings.template)
        return [*self._missing_instructions(), *said]

    def _missing_instructions(self) -> Sequence[SupervisorCanister]:
        supervisor = self._settings.supervisor
        if is_instructed(self._history.canisters, supervisor):
            return ()
        return [SupervisorCanister.from_text(supervisor)]

    def _start(self, request: TurnRequest) -> RunningTurn:
        run = TurnRun(self._history, self._settings, request, self._memo)
        if request.steering is self._steering:
            self._steering.begin()
        self._running = RunningTurn(run, name=f"turn of {self.identity}")
        return self._running

    def _produce_request(
        self,
        prompt: Prompt | None,
        controls: Controls | None,
        output: OutputType,
        *,
        invokers: Iterable[Tool] | None,
        event_handler: EventHandler | None = None,
        streaming: bool,
        throttle: Callable[[], Awaitable[object]] | None = None,
    ) -> TurnRequest:
        said: Sequence[Canister] = [*as_prompt(self.queued), *self.read_prompt(prompt)]
        self._require_free()
        if not said and not self._history.canisters:
            raise RequestError("the conversation has no message to answer; add one")
        form = None
        if output is not None:
            from vibe_llms.conversations.outputs import produce_form

            form = produce_form(output)
            said, controls = form.request(self.model, said, controls or Controls())
        return TurnRequest(
            said=said,
            invokers=invokers,
            controls=controls,
            event_handler=event_handler,
            form=form,
            streaming=streaming,
            throttle=throttle,
            steering=self._steering,
        )

    def _notify(self, notice: Notice) -> None:
        self._settings.event_handler(NoticeEvent(notice=notice, conversation=self.identity))

    @property
    def _is_left(self) -> bool:
        """True if the caller left the loop over the last turn."""
        return self._running is not None and self._running.left

    async def _become_free(self) -> None:
        """Wait for the end of a turn whose loop was left; raises an error if another one runs."""
        if self._running is not None and self._is_left:
            await asyncio.wait([self._running.task])
        self._require_free()

    def _require_free(self) -> None:
        if self._closed:
            raise SessionClosed("the session of this conversation is closed; open another one")
        if self.busy:
            raise ConversationBusy(
                "a turn of this conversation is running; wait for it, cancel it, or fork"
            )

    async def _rewind(self, turns: int, *, keep_prompt: bool) -> Conversation:
        await self._become_free()
        twin = self._twin(await self._history.rewind(turns, keep_prompt=keep_prompt))
        twin._steering = SteeringQueue(self.hand_over_queued())
        left = {one.identity for one in twin.canisters}
        if pinned := [one for one in self._pinned if one in left and one not in twin._pinned]:
            # They were pinned in a turn that is undone, or after it.
            await twin.pin(*pinned)
        return twin

    @property
    def _pinned(self) -> Sequence[str]:
        self._memo.show(self._history)
        return () if self._memo.view.digest is None else self._memo.view.digest.pinned

    def _twin(self, history: History) -> Conversation:
        return Conversation(history, self._settings, self._enter)
