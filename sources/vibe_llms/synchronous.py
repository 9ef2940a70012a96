"""The same sessions and conversations for code that does not `await`.

Each session has a daemon thread with its own event loop, so it also works where a loop is already
running, such as in a notebook. Ctrl-C cancels the turn, waits until what arrived is kept, and then
raises `KeyboardInterrupt`. Event handlers run in the session's thread.

>>> with open_session(home=home) as session:
...     conversation = session.begin("scripted/demo")
...     turn = conversation.converse("Hello!")
>>> turn.text.startswith("Hello!")
True
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from vibe_llms import hooks, opening
from vibe_llms import session as sessions
from vibe_llms.agents import Agent
from vibe_llms.conversations import conversation as asynchronous
from vibe_llms.conversations import streams
from vibe_llms.endings import close_at_end, forget
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.events import Event, MessageProgressEvent, TextChunk
from vibe_llms.exceptions import RequestError, SessionClosed, StorageError
from vibe_llms.hooks import TurnHook
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Cost, T, Turn
from vibe_llms.providers.interfaces import Model

if TYPE_CHECKING:
    from vibe_llms.controls import Controls
    from vibe_llms.conversations.outputs import OutputType
    from vibe_llms.conversations.prompts import Prompt
    from vibe_llms.invocation.approval import Decision
    from vibe_llms.invocation.questions import ElicitationAnswer
    from vibe_llms.messages.canisters import InvocationCanister
    from vibe_llms.runs.events import RunEvent
    from vibe_llms.runs.interfaces import CallApproval, RunQuestion, RunRecord, RunStatus
    from vibe_llms.runs.run import Run as RecordedRun

P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741  (the asynchronous thing within)

_QUEUED_EVENTS = 256
_ROOM_SECONDS = 0.005
#: A Ctrl-C that comes when a wait is about to begin does not end it, and is seen so much later.
_UNSEEN_SECONDS = 0.25


def _await(outcome: Future[Any]) -> None:
    """Wait for an outcome, whatever it is."""
    while not wait([outcome], timeout=_UNSEEN_SECONDS).done:
        pass


def _take(events: queue.Queue[T]) -> T:
    """The next of a queue, waited for in the same way."""
    while True:
        with suppress(queue.Empty):
            return events.get(timeout=_UNSEEN_SECONDS)


class Portal:
    """A daemon thread with an event loop, and calls into it that wait for their end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="vibe-llms session"
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether the thread has not been ended."""
        return not self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the loop; Ctrl-C cancels it and waits for its end."""
        errand = Errand(self.require(work))
        try:
            errand.begin(self._loop)
            _await(errand.outcome)
        except KeyboardInterrupt:
            errand.end()
            raise
        return errand.outcome.result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Errand[T]:
        """Begin work on the loop without waiting for it."""
        errand = Errand(self.require(work))
        errand.begin(self._loop)
        return errand

    def require(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The work, if it can be carried out; an error where waiting for it would never end."""
        if self._loop.is_closed():
            work.close()
            raise SessionClosed("the session is closed; open another one")
        if threading.current_thread() is self._thread:
            work.close()
            raise RequestError(
                "this cannot be waited for in the session's own thread, where event handlers run"
            )
        return work

    def close(self) -> None:
        """End the thread."""
        self.call(self._loop.shutdown_asyncgens())
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Errand(Generic[T]):
    """Work on the loop of another thread, and its outcome for this one."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand the work over."""
        self._loop = loop
        loop.call_soon_threadsafe(self._start, loop)

    def end(self) -> None:
        """Cancel the work, and wait until it has ended.

        `StorageError` is raised if something could not be stored.
        """
        if self._loop is None:
            self._work.close()
            return
        self._loop.call_soon_threadsafe(self._cancel)
        _await(self.outcome)
        if isinstance(error := self.outcome.exception(), StorageError):
            raise error

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._work)
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            # Ctrl-C came while it was handed over.
            self._work.close()
            self.outcome.set_exception(asyncio.CancelledError())

    def _settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class _Face(Generic[I]):
    """A thing of the library, and the portal through which it is called."""

    def __init__(self, portal: Portal, inner: I) -> None:
        self._portal = portal
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


def _through(
    method: Callable[Concatenate[I, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Face[I], P], T]:
    """A method of the inner thing, waited for."""

    @functools.wraps(method)
    def call(self: _Face[I], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(method(self._inner, *args, **kwargs))

    return call


def _produces(
    method: Callable[Concatenate[I, P], Coroutine[Any, Any, asynchronous.Conversation]],
) -> Callable[Concatenate[_Face[I], P], Conversation]:
    """A method of the inner thing that makes a conversation, waited for."""

    @functools.wraps(method)
    def call(self: _Face[I], /, *args: P.args, **kwargs: P.kwargs) -> Conversation:
        made = self._portal.call(method(self._inner, *args, **kwargs))
        return Conversation(self._portal, made)

    return call


class EventStream(Generic[T]):
    """The events of a turn, for a `for` loop; leaving it early cancels the turn.

    The turn starts with the first step of the loop.
    """

    def __init__(self, portal: Portal, start: Callable[[], streams.EventStream[T]]) -> None:
        self._started: list[streams.EventStream[T]] = []
        self._events = _pump(portal, start, self._started)

    @property
    def turn(self) -> Turn[T] | None:
        """The finished turn, once the loop has ended."""
        return self._started[0].turn if self._started else None

    def text(self) -> Iterator[str]:
        """The pieces of text as they arrive; leaving the loop early cancels the turn."""
        for event in self:
            match event:
                case MessageProgressEvent(chunk=TextChunk(text)):
                    yield text

    def close(self) -> None:
        """Cancel the turn if it runs."""
        self._events.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)


def _pump(
    portal: Portal,
    start: Callable[[], streams.EventStream[T]],
    started: list[streams.EventStream[T]],
) -> Generator[Event, None, None]:
    """The events of a turn; not a method, so that an abandoned loop ends at once."""
    events: queue.Queue[Event | None] = queue.Queue()

    async def pump() -> None:
        started.append(start())
        async with started[0] as stream:
            async for event in stream:
                events.put(event)
                while events.qsize() >= _QUEUED_EVENTS:  # noqa: ASYNC110  (another thread takes)
                    await asyncio.sleep(_ROOM_SECONDS)

    errand = portal.begin(pump())
    errand.outcome.add_done_callback(lambda _: events.put(None))
    try:
        while (event := _take(events)) is not None:
            yield event
    finally:
        if not errand.outcome.done():
            errand.end()
    errand.outcome.result()


def _streams(
    method: Callable[Concatenate[asynchronous.Conversation, P], streams.EventStream[T]],
) -> Callable[Concatenate[Conversation, P], EventStream[T]]:
    """A method of the inner thing that streams a turn, for a `for` loop."""

    @functools.wraps(method)
    def call(self: Conversation, /, *args: P.args, **kwargs: P.kwargs) -> EventStream[T]:
        return EventStream(self._portal, lambda: method(self._inner, *args, **kwargs))

    return call


class Conversation(_Face[asynchronous.Conversation]):
    """A conversation, as `vibe_llms.Conversation`, for callers that do not `await`."""

    def _repr_markdown_(self) -> str:
        return self._inner._repr_markdown_()

    @property
    def identity(self) -> str:
        """The identity in the archive. It changes only with a notice."""
        return self._inner.identity

    @property
    def name(self) -> str:
        """Its name; empty without one."""
        return self._inner.name

    @property
    def model(self) -> Model:
        """The model that answers the next turn."""
        return self._inner.model

    @property
    def canisters(self) -> tuple[Canister, ...]:
        """All messages."""
        return self._inner.canisters

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by their names: its own, and those of ensembles."""
        return self._inner.invokers

    @property
    def ensembles(self) -> Sequence[Ensemble]:
        """The ensembles that its tools come from."""
        return self._inner.ensembles

    @property
    def withheld(self) -> Sequence[str]:
        """The names of its tools that are not offered."""
        return self._inner.withheld

    def withhold(self, name: str) -> None:
        """From the next turn on, do not offer a tool, or any tool of an ensemble."""
        self._inner.withhold(name)

    @property
    def untrusted(self) -> Sequence[Canister]:
        """The messages with text from others: documents, files, and results from outside.

        While there are any, tools that may send data out ask before they run.
        """
        return self._inner.untrusted

    def vouch(self, *identities: str) -> None:
        """From the next turn on, trust the text of some messages, here and in forks made later.

        This lasts until the session ends. `DocumentCanister(trusted=True)` is stored.
        """
        self._inner.vouch(*identities)

    @property
    def hooks(self) -> Sequence[TurnHook]:
        """The hooks of its turns; see `vibe_llms.hooks`."""
        return self._inner.hooks

    def add_hook(self, hook: TurnHook) -> None:
        """Call a hook from the next turn on."""
        self._inner.add_hook(hook)

    def remove_hook(self, name: str) -> None:
        """From the next turn on, no longer call the hook of this name.

        Its work on earlier turns continues. `RequestError` if there is no such hook.
        """
        self._inner.remove_hook(name)

    offer = _through(asynchronous.Conversation.offer)
    converse = _through(asynchronous.Conversation.converse)
    stream = _streams(asynchronous.Conversation.stream)
    add = _through(asynchronous.Conversation.add)
    cancel = _through(asynchronous.Conversation.cancel)
    fork = _produces(asynchronous.Conversation.fork)
    undo = _produces(asynchronous.Conversation.undo)
    regenerate = _produces(asynchronous.Conversation.regenerate)
    switch = _through(asynchronous.Conversation.switch)
    rename = _through(asynchronous.Conversation.rename)
    preview = _through(asynchronous.Conversation.preview)
    count_tokens = _through(asynchronous.Conversation.count_tokens)


class Run(_Face[Any], Generic[T]):
    """A run, as `vibe_llms.runs.Run`, for callers that do not `await`."""

    _inner: RecordedRun[T]

    @property
    def identity(self) -> str:
        """Its identity; any process finds the run by it."""
        return self._inner.identity

    @property
    def record(self) -> RunRecord:
        """What was known of it when it was last looked at."""
        return self._inner.record

    def access(self) -> RunRecord:
        """What is known of it now."""
        return self._portal.call(self._inner.access())

    def events(self, *, after: int = 0) -> Iterator[tuple[int, RunEvent]]:
        """The events after a cursor, each with its own cursor, until the run ends.

        It can be called at any time, also after the end. A follower that continues with the cursor
        of the last event that arrived gets every later one once. If they were deleted, some days
        after the end, it gets `RunExpired` in their place.
        """
        events = self._inner.events(after=after)

        async def step() -> tuple[int, RunEvent] | None:
            return await anext(events, None)

        while (event := self._portal.call(step())) is not None:
            yield event

    def survey_events(self) -> Sequence[RunEvent]:
        """The events that are recorded by now."""
        return self._portal.call(self._inner.survey_events())

    def survey_approvals(self) -> Sequence[CallApproval]:
        """The calls that it waits or waited for."""
        return self._portal.call(self._inner.survey_approvals())

    def decide(self, invocation: str | InvocationCanister, decision: Decision) -> CallApproval:
        """Decide on a call that the run waits for; it continues in any process that works on runs.

        `DecisionRefused` if it was decided otherwise before. What a decision remembers is not used:
        it holds for this call.
        """
        return self._portal.call(self._inner.decide(invocation, decision))

    def survey_questions(self) -> Sequence[RunQuestion]:
        """The questions that it asks or asked."""
        return self._portal.call(self._inner.survey_questions())

    def answer(self, question: str, answer: ElicitationAnswer) -> RunQuestion:
        """Answer a question of the run; it continues in any process that works on runs.

        `AnswerInvalid` if the answer does not fit the form, `DecisionRefused` if the question was
        answered otherwise before.
        """
        return self._portal.call(self._inner.answer(question, answer))

    def cancel(self) -> RunStatus:
        """Ask for its end; the worker that has it ends the request within a second.

        Returns its status. What arrived is kept.
        """
        return self._portal.call(self._inner.cancel())

    def result(self) -> Turn[T]:
        """The finished turn; waits for its end. `RunFailed` says why there is none.

        Its `output` is of the type that the run was begun with here; in other processes, and for
        runs that are found by their identity, it has plain values. `OutputInvalid` if the type
        refuses what its schema allows.
        """
        return self._portal.call(self._inner.result())

    def read(self) -> Turn[T]:
        """What is durable of its turn by now; it has no output before it has completed."""
        return self._portal.call(self._inner.read())


class Background(_Face[hooks.Background]):
    """The background work of a session, for callers that do not `await`."""

    @property
    def pending(self) -> int:
        """How many turns have work that is not done yet."""
        return self._inner.pending

    def cancel(self) -> None:
        """Cancel all work at once; a notice says how much was not done."""
        self._portal.call(_call(self._inner.cancel))

    wait = _through(hooks.Background.wait)


async def _call(function: Callable[[], T]) -> T:
    return function()


class Session(_Face[sessions.Session]):
    """A session, as `vibe_llms.Session`, for callers that do not `await`.

    It is closed with the block of `with`, by `close`, or at the end of the program.
    """

    def __init__(self, portal: Portal, inner: sessions.Session) -> None:
        super().__init__(portal, inner)
        close_at_end(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running turns and close all connections; safe to call twice.

        Waits for the work of hooks, each for at most its `close_seconds`.
        """
        forget(self.close)
        if self._portal.is_open:
            try:
                self._portal.call(self._inner.close())
            finally:
                self._portal.close()

    begin = _produces(sessions.Session.begin)
    resume = _produces(sessions.Session.resume)
    access_model = _through(sessions.Session.access_model)
    survey_models = _through(sessions.Session.survey_models)
    survey_conversations = _through(sessions.Session.survey_conversations)
    search = _through(sessions.Session.search)
    load = _through(sessions.Session.load)
    remove = _through(sessions.Session.remove)

    survey_runs = _through(sessions.Session.survey_runs)

    @overload
    def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: None = None,
    ) -> Run[None]: ...
    @overload
    def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: type[T],
    ) -> Run[T]: ...
    @overload
    def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: OutputType,
    ) -> Run[Any]: ...
    def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: OutputType = None,
    ) -> Run[Any]:
        """Begin a turn that does not depend on this process, and return at once.

        The turn is recorded: any process follows, cancels or approves it by its identity, and if
        this process dies, another one that works on runs continues it. `ConversationBusy` if the
        conversation has such a turn already; `RequestError` if no other process could rebuild it,
        for example because a tool was not given to `open_session(invokers=...)`. `controls` are
        merged over those of the conversation. `output` is as in `converse`, but any process checks
        the reply, so it is checked against the schema of the type; the type itself reads it where
        this run's `result` is called.
        """
        begun = self._inner.start(conversation._inner, prompt, controls=controls, output=output)
        return Run(self._portal, self._portal.call(begun))

    def detach(self, conversation: Conversation) -> Run:
        """Let the turn of a conversation that is running go on as a run, which any process follows.

        Its `converse` returns with the stop reason `suspended`. Calls that are running are waited
        for; a reply that has not arrived whole is asked for again. `RequestError` if no other
        process could continue it; then it goes on here.
        """
        left = self._inner.detach(conversation._inner)
        return Run(self._portal, self._portal.call(left))

    def access_run(self, run: str) -> Run:
        """A run, by its identity or at least the first 4 characters of it."""
        return Run(self._portal, self._portal.call(self._inner.access_run(run)))

    @property
    def background(self) -> Background:
        """The work that turns leave to hooks, such as memory: wait for it, or cancel it."""
        return Background(self._portal, self._inner.background)

    def access_memory(self) -> TurnHook:
        """The hook that recalls and remembers what a user says in conversations.

        `begin(memory=True)` adds it to a conversation, and so does `add_hook`.
        """
        return self._inner.access_memory()

    def survey_agents(self) -> Sequence[Agent]:
        """The agents of `[agents]`, in the order of the configuration.

        `ConfigurationError` if one of their rows is wrong.
        """
        return self._inner.survey_agents()

    def access_agent(self, name: str) -> Agent:
        """The agent of this name. Raises `AgentNotFound`."""
        return self._inner.access_agent(name)

    def estimate_cost(self, canisters: Iterable[Canister]) -> Cost:
        """The cost of the replies among some canisters, by the price list that each row names."""
        return self._inner.estimate_cost(canisters)


def _opens(opener: Callable[P, sessions.Session]) -> Callable[P, Session]:
    @functools.wraps(opener)
    def call(*args: P.args, **kwargs: P.kwargs) -> Session:
        opened = opener(*args, **kwargs)
        return Session(Portal(), opened)

    return call


#: A session, closed with the block or at the end of the program; the options are those of
#: `vibe_llms.open_session`.
open_session = _opens(opening.open_session)
