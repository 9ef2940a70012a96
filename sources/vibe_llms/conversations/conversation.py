"""`Conversation`: messages, a model, tools; asked, streamed, forked, switched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec.structs import replace

from vibe_llms.controls import Controls
from vibe_llms.conversations.history import History, has_reply, locate, start_of_turn
from vibe_llms.conversations.prompts import Prompt, apply_template, is_instructed, read_prompt
from vibe_llms.conversations.settings import (
    ConversationSettings,
    TurnMemo,
    TurnRecord,
    TurnRequest,
)
from vibe_llms.conversations.streams import EventStream, RunningTurn
from vibe_llms.conversations.tools import Tool
from vibe_llms.conversations.turns import TurnRun
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.events import EventHandler, Notice, NoticeEvent
from vibe_llms.exceptions import ConversationBusy, RequestError, SessionClosed
from vibe_llms.futures import finish
from vibe_llms.hooks import TurnHook
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    SupervisorCanister,
    Turn,
    UserCanister,
    is_untrusted,
)
from vibe_llms.messages.contents import text_of
from vibe_llms.providers.interfaces import Model, TokenCount

if TYPE_CHECKING:
    from vibe_llms.conversations.outputs import OutputForm, OutputType

T = TypeVar("T")


class Conversation:
    """One conversation. Made by a session: `await session.begin(...)`.

    One turn at a time; a second one raises `ConversationBusy`. Forks are independent of it.
    """

    def __init__(
        self,
        history: History,
        settings: ConversationSettings,
        enter: Callable[[Conversation], object],
    ) -> None:
        """A conversation on a history; `enter` is called with it, and with each fork."""
        self._history = history
        self._settings = settings
        self._enter = enter
        self._memo = TurnMemo()
        self._running: RunningTurn | None = None
        self._closed = False
        enter(self)

    def __repr__(self) -> str:
        model, count = self.model, len(self._history.canisters)
        return f"<Conversation {self.identity}: {model.provider}/{model.name}, {count} messages>"

    def _repr_markdown_(self) -> str:
        """Markdown for a notebook: the messages, and the names of called tools; HTML is escaped."""
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
        """What its turns use; a change makes a new value."""
        return self._settings

    @property
    def history(self) -> History:
        """Its messages, and where they are stored."""
        return self._history

    @property
    def identity(self) -> str:
        """The identity in the archive. It changes only with a notice."""
        return self._history.identity

    @property
    def name(self) -> str:
        """Its name; empty without one."""
        return self._history.details.name

    @property
    def model(self) -> Model:
        """The model that answers the next turn."""
        return self._settings.model

    @property
    def canisters(self) -> tuple[Canister, ...]:
        """All messages."""
        return tuple(self._history.canisters)

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""
        return self._running is not None and not self._running.task.done()

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by their names: its own, and those of ensembles."""
        return self._settings.invokers

    @property
    def ensembles(self) -> Sequence[Ensemble]:
        """The ensembles that its tools come from."""
        return self._settings.toolbox.ensembles

    @property
    def withheld(self) -> Sequence[str]:
        """The names of its tools that are not offered."""
        toolbox = self._settings.toolbox
        return [name for name in toolbox.every if name not in toolbox.offered]

    @property
    def untrusted(self) -> Sequence[Canister]:
        """The messages with text from others: documents, files, and results from outside.

        While there are any, tools that may send data out ask before they run.
        """
        vouched = self._settings.vouched
        return [
            one
            for one in self._history.canisters
            if is_untrusted(one) and one.identity not in vouched
        ]

    def vouch(self, *identities: str) -> None:
        """From the next turn on, trust the text of some messages, here and in forks made later.

        This lasts until the session ends. `DocumentCanister(trusted=True)` is stored.
        """
        vouched = self._settings.vouched.union(identities)
        self._settings = replace(self._settings, vouched=vouched)

    async def offer(self, name: str) -> None:
        """Offer a tool or an ensemble that was withheld, or open a row of `[ensembles]` for it."""
        await self._become_free()

        async def open_row(row: str) -> Sequence[Ensemble]:
            settings = self._settings
            return await settings.services.open_ensembles([row], settings.event_handler)

        toolbox = await self._settings.toolbox.offer(name, open_row)
        self._settings = replace(self._settings, toolbox=toolbox)

    def withhold(self, name: str) -> None:
        """From the next turn on, do not offer a tool, or any tool of an ensemble."""
        self._settings = replace(self._settings, toolbox=self._settings.toolbox.withhold(name))

    @property
    def hooks(self) -> Sequence[TurnHook]:
        """The hooks of its turns; see `vibe_llms.hooks`."""
        return self._settings.hooks

    def add_hook(self, hook: TurnHook) -> None:
        """Call a hook from the next turn on."""
        self._settings = replace(self._settings, hooks=tuple(dict.fromkeys((*self.hooks, hook))))

    def remove_hook(self, name: str) -> None:
        """From the next turn on, no longer call the hook of this name.

        Its work on earlier turns continues. `RequestError` if there is no such hook.
        """
        if name not in (known := [hook.name for hook in self.hooks]):
            raise RequestError(f"no hook {name!r}; known are: {', '.join(known) or 'none'}")
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
        """Send a message and run the turn to its end, tool calls included.

        Without a prompt the model continues from the end of the history. `invokers` and
        `event_handler` replace the conversation's; `controls` are merged over them. With `output`,
        a type or a JSON Schema, the reply becomes a value of it, the turn's `output`. If it does
        not fit, the model is asked again, at most twice; then `OutputInvalid` is raised.

        When this returns, everything is durable. If it raises, or is cancelled, what had arrived is
        kept, marked as interrupted, and the next turn works.
        """
        await self._become_free()
        running = self._start(
            self._produce_request(
                prompt,
                controls,
                output,
                invokers=invokers,
                event_handler=event_handler,
                streaming=streaming,
            )
        )
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            # The caller was cancelled, so the turn is; its end is waited for.
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
        """The same turn as a loop over its text, or over its events::

            async for text in conversation.stream("Why?").text():
                print(text, end="")

            async with conversation.stream("Why?") as events:
                async for event in events:
                    ...

        Leaving it early cancels the turn. A slow loop slows the stream down. With `output`,
        `events.partial` is what has arrived of it so far.
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
    ) -> RunningTurn:
        """Begin the turn of a run, or continue it; `session.start` makes runs.

        What is said and the controls ask for the `form` already.
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
            )
        )

    async def refresh(self) -> None:
        """Read what other processes have added; nothing changes while a turn runs."""
        if not self.busy:
            await self._history.refresh()

    async def add(self, said: Prompt) -> None:
        """Keep messages without asking the model: instructions, documents, an example."""
        await self._become_free()
        await self._history.append(read_prompt(said), self._notify)

    async def cancel(self) -> None:
        """Cancel the running turn, if there is one, and wait for its end.

        What arrived is kept; `converse` returns a turn whose stop reason is `interrupted`.
        """
        running = self._running
        if running is not None and not running.task.done():
            running.interrupt(quietly=True)
            # Not to the end if the task is cancelled: it may be a tool of this very turn.
            await asyncio.wait([running.task])

    async def fork(
        self, at: str | int | None = None, *, name: str = "", open_calls: bool = False
    ) -> Conversation:
        """An independent conversation with everything up to and including `at`.

        `at` is the identity or the index of a canister; without it, everything is included. No
        content is copied. `ForkPointInvalid` names the nearest points where a history can be cut.
        With `open_calls`, it may end with calls of tools that run elsewhere, to answer them anew.
        """
        await self._become_free()
        end = locate(self._history.canisters, at, open_calls=open_calls)
        history = await finish(self._history.fork(end, name=name))
        return self._twin(history)

    @property
    def running(self) -> RunningTurn | None:
        """The turn that is running."""
        return self._running if self.busy else None

    async def undo(self, turns: int = 1) -> Conversation:
        """A fork without the last turns. It takes over the name and the place in lists.

        This conversation stays in the archive, where `superseded=True` lists it.
        """
        return await self._rewind(turns, keep_prompt=False)

    async def regenerate(self) -> Conversation:
        """A fork that ends with the last prompt; `await it.converse()` answers it again.

        If the last prompt has no reply yet, for example after an error, it is this conversation.
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

    async def count_tokens(self) -> TokenCount:
        """How many tokens the model would read for this history."""
        model, tools = self._settings.settle(self._settings.invokers)
        instructions = self._memo.instruct(self._settings.toolbox.instruct(tools))
        documents = self._memo.documents
        history = [*self._history.canisters, *self._missing_instructions()]
        messages = [*instructions, *documents.apply(model, history)]
        return await model.count_tokens(messages, tools, self._history.load)

    async def preview(
        self,
        prompt: Prompt | None = None,
        *,
        invokers: Iterable[Tool] | None = None,
        controls: Controls | None = None,
        output: OutputType = None,
        streaming: bool = True,
    ) -> str:
        """The first request that `converse` would send, as its provider writes it.

        Raises where `converse` would refuse. Nothing is kept and no message is sent; hooks are
        called, and a server may be asked what its model can do.
        """
        request = self._produce_request(
            prompt, controls, output, invokers=invokers, streaming=streaming
        )
        run = TurnRun(self._history, self._settings, request, TurnMemo())
        return (await run.preview()).decode("utf-8", "replace")

    async def close(self) -> None:
        """Cancel a running turn, and refuse further ones."""
        self._closed = True
        await self.cancel()

    def read_prompt(self, prompt: Prompt | None) -> Sequence[Canister]:
        """The messages of a prompt, as its agent has them: by its template, with its instructions.

        Instructions that the history has are not said again.
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
        said = self.read_prompt(prompt)
        self._require_free()
        if not said and not self._history.canisters:
            raise RequestError("there is nothing to answer yet; say something")
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
        )

    def _notify(self, notice: Notice) -> None:
        self._settings.event_handler(NoticeEvent(notice=notice, conversation=self.identity))

    @property
    def _is_left(self) -> bool:
        """True if the caller left the loop over the last turn."""
        return self._running is not None and self._running.left

    async def _become_free(self) -> None:
        """Wait for the end of a turn whose loop was left; raises if another one runs."""
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
        return self._twin(await self._history.rewind(turns, keep_prompt=keep_prompt))

    def _twin(self, history: History) -> Conversation:
        return Conversation(history, self._settings, self._enter)
