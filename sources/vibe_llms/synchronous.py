"""Synchronous sessions and conversations.

Each session has a daemon thread with its own event loop, so it also works if a loop is already
running, as in a notebook. Ctrl-C cancels the turn, waits until the part that arrived is stored, and
then raises `KeyboardInterrupt`. Event handlers run in the session's thread.

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
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from vibe_llms import opening
from vibe_llms.agents.definitions import Agent
from vibe_llms.base.endings import close_at_end, forget
from vibe_llms.base.exceptions import RequestError, SessionClosed, StorageError
from vibe_llms.conversations import conversation as asynchronous
from vibe_llms.conversations import hook_runner, streams
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Cost, T, Turn, UserCanister
from vibe_llms.messages.events import Event, MessageProgressEvent, TextChunk
from vibe_llms.providers.interfaces import Loader, Model, refuse_loading
from vibe_llms.session import core as sessions

if TYPE_CHECKING:
    from vibe_llms.conversations.document_texts import DocumentText
    from vibe_llms.conversations.outputs import OutputType
    from vibe_llms.conversations.prompts import Prompt
    from vibe_llms.documents import core as documents  # noqa: F401  (the string below)
    from vibe_llms.documents.core import Found
    from vibe_llms.documents.store import Refreshed
    from vibe_llms.invocation.approval import Decision
    from vibe_llms.invocation.questions import ElicitationAnswer
    from vibe_llms.messages.caching import RequestCaching
    from vibe_llms.messages.canisters import DocumentCanister, InvocationCanister
    from vibe_llms.messages.contents import FileContent
    from vibe_llms.messages.controls import Controls
    from vibe_llms.providers import windows as learned  # noqa: F401  (the string below)
    from vibe_llms.providers.windows import LearnedWindow
    from vibe_llms.runs import core as runs  # noqa: F401  (the string below)
    from vibe_llms.runs.events import RunEvent
    from vibe_llms.runs.interfaces import (
        CallApproval,
        RequestKey,
        RunQuestion,
        RunRecord,
        RunStatus,
    )
    from vibe_llms.runs.run import Run as RecordedRun
    from vibe_llms.skills.catalog import SkillCatalog

P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741  (the asynchronous thing within)

_QUEUED_EVENTS = 256
_ROOM_SECONDS = 0.005
#: Seconds between checks while waiting: a Ctrl-C right before a wait does not interrupt it.
_UNSEEN_SECONDS = 0.25


def _await(outcome: Future[Any]) -> None:
    """Wait until a future is done."""
    while not wait([outcome], timeout=_UNSEEN_SECONDS).done:
        pass


def _take(events: queue.Queue[T]) -> T:
    """Wait for the next item of a queue."""
    while True:
        with suppress(queue.Empty):
            return events.get(timeout=_UNSEEN_SECONDS)


class Portal:
    """A daemon thread with an event loop, and blocking calls into it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="vibe-llms session"
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """True until the thread is closed."""
        return not self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work on the loop; Ctrl-C cancels the work and waits for its end."""
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
        """Return the work; raises an error if waiting for it would never end."""
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
        """Schedule the work on a loop."""
        self._loop = loop
        loop.call_soon_threadsafe(self._start, loop)

    def end(self) -> None:
        """Cancel the work and wait for its end.

        Raises `StorageError` if something could not be stored.
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
            # Ctrl-C arrived before the loop started the work.
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
    """A blocking wrapper of an asynchronous object, with the portal for its calls."""

    def __init__(self, portal: Portal, inner: I) -> None:
        self._portal = portal
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


def _through(
    method: Callable[Concatenate[I, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Face[I], P], T]:
    """Return a blocking version of an asynchronous method."""

    @functools.wraps(method)
    def call(self: _Face[I], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(method(self._inner, *args, **kwargs))

    return call


def _produces(
    method: Callable[Concatenate[I, P], Coroutine[Any, Any, asynchronous.Conversation]],
) -> Callable[Concatenate[_Face[I], P], Conversation]:
    """Return a blocking version of an asynchronous method that returns a conversation."""

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
        """The finished turn, after the loop has ended."""
        return self._started[0].turn if self._started else None

    def text(self) -> Iterator[str]:
        """Yield the pieces of text as they arrive; leaving the loop early cancels the turn."""
        for event in self:
            match event:
                case MessageProgressEvent(chunk=TextChunk(text)):
                    yield text

    def close(self) -> None:
        """Cancel the turn if it is running."""
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
    """Yield the events of a turn. Not a method, so that an abandoned loop ends immediately."""
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
    """Return a version of a streaming method for a `for` loop."""

    @functools.wraps(method)
    def call(self: Conversation, /, *args: P.args, **kwargs: P.kwargs) -> EventStream[T]:
        return EventStream(self._portal, lambda: method(self._inner, *args, **kwargs))

    return call


class Conversation(_Face[asynchronous.Conversation]):
    """A synchronous `vibe_llms.Conversation`."""

    def _repr_markdown_(self) -> str:
        return self._inner._repr_markdown_()

    @property
    def identity(self) -> str:
        """The identity in the archive. It changes only with a notice."""
        return self._inner.identity

    @property
    def name(self) -> str:
        """The name of the conversation; may be empty."""
        return self._inner.name

    @property
    def model(self) -> Model:
        """The model that answers the next turn."""
        return self._inner.model

    @property
    def canisters(self) -> tuple[Canister, ...]:
        """All messages of the history."""
        return self._inner.canisters

    @property
    def caching(self) -> tuple[RequestCaching, ...]:
        """Share of the prompt cache in each request whose usage was reported."""
        return self._inner.caching

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by name: its own, and those of ensembles."""
        return self._inner.invokers

    @property
    def ensembles(self) -> Sequence[Ensemble]:
        """The ensembles that provide its tools."""
        return self._inner.ensembles

    @property
    def withheld(self) -> Sequence[str]:
        """Names of its tools that are not offered."""
        return self._inner.withheld

    def withhold(self, name: str) -> None:
        """Stop offering a tool, or all tools of an ensemble, from the next turn on."""
        self._inner.withhold(name)

    @property
    def untrusted(self) -> Sequence[Canister]:
        """Messages with text from others: documents, files, and results from outside.

        While there are any, tools that may send data out ask before they run.
        """
        return self._inner.untrusted

    def vouch(self, *identities: str) -> None:
        """Trust the text of some messages from the next turn on, here and in later forks.

        This lasts until the session ends. `DocumentCanister(trusted=True)` is stored.
        """
        self._inner.vouch(*identities)

    @property
    def queued(self) -> Sequence[UserCanister]:
        """The messages of `steer` that are not sent yet, in order."""
        return self._inner.queued

    @property
    def hooks(self) -> Sequence[TurnHook]:
        """The hooks of its turns; see `vibe_llms.conversations.hooks`."""
        return self._inner.hooks

    def add_hook(self, hook: TurnHook) -> None:
        """Call a hook from the next turn on."""
        self._inner.add_hook(hook)

    def remove_hook(self, name: str) -> None:
        """Stop calling the hook with this name from the next turn on.

        Its work on earlier turns continues. Raises `RequestError` if no hook has this name.
        """
        self._inner.remove_hook(name)

    offer = _through(asynchronous.Conversation.offer)
    converse = _through(asynchronous.Conversation.converse)
    stream = _streams(asynchronous.Conversation.stream)
    refresh = _through(asynchronous.Conversation.refresh)
    add = _through(asynchronous.Conversation.add)
    cancel = _through(asynchronous.Conversation.cancel)
    steer = _through(asynchronous.Conversation.steer)
    take_back = _through(asynchronous.Conversation.take_back)
    fork = _produces(asynchronous.Conversation.fork)
    undo = _produces(asynchronous.Conversation.undo)
    regenerate = _produces(asynchronous.Conversation.regenerate)
    switch = _through(asynchronous.Conversation.switch)
    rename = _through(asynchronous.Conversation.rename)
    preview = _through(asynchronous.Conversation.preview)
    count_tokens = _through(asynchronous.Conversation.count_tokens)
    compact = _through(asynchronous.Conversation.compact)
    pin = _through(asynchronous.Conversation.pin)
    measure_context = _through(asynchronous.Conversation.measure_context)


class Run(_Face[Any], Generic[T]):
    """A synchronous `vibe_llms.runs.Run`."""

    _inner: RecordedRun[T]

    @property
    def identity(self) -> str:
        """Identity by which any process finds the run."""
        return self._inner.identity

    @property
    def record(self) -> RunRecord:
        """The record as last read."""
        return self._inner.record

    def access(self) -> RunRecord:
        """Read the current record."""
        return self._portal.call(self._inner.access())

    def events(self, *, after: int = 0) -> Iterator[tuple[int, RunEvent]]:
        """Yield the events after a cursor, each with its cursor, until the run ends.

        May be called at any time, even after the end. A follower that resumes with the cursor of
        its last event gets each later event exactly once. If the events were deleted, some days
        after the end, it gets `RunExpired` instead.
        """
        events = self._inner.events(after=after)

        async def step() -> tuple[int, RunEvent] | None:
            return await anext(events, None)

        while (event := self._portal.call(step())) is not None:
            yield event

    def survey_events(self) -> Sequence[RunEvent]:
        """Return the events recorded so far."""
        return self._portal.call(self._inner.survey_events())

    def survey_approvals(self) -> Sequence[CallApproval]:
        """Return the calls that needed approval; their arguments are in `survey_calls`."""
        return self._portal.call(self._inner.survey_approvals())

    def survey_calls(self) -> Mapping[str, InvocationCanister]:
        """Return the stored calls of the turn with their arguments, by identity.

        An approval names its call in `invocation`. The call is stored before it is requested.
        """
        return self._portal.call(self._inner.survey_calls())

    def steer(self, prompt: Prompt) -> str:
        """Add a message to the turn and return its identity.

        The worker stores it and sends it with the next request, after the results of the calls; if
        the run waits for a decision, after that. If the model has just given its last reply, it is
        asked again. Raises `SteeringRefused` if the run has ended or is about to end, and
        `SteeringQueueFull` if too many messages wait.
        """
        return self._portal.call(self._inner.steer(prompt))

    def steer_once(self, prompt: Prompt, request: RequestKey | None) -> UserCanister:
        """Add a message like `steer` and return it, or the earlier message of the same request.

        Raises `RequestKeyReused` if the key belongs to another request.
        """
        return self._portal.call(self._inner.steer_once(prompt, request))

    def survey_queued(self) -> Sequence[UserCanister]:
        """Return the messages of `steer` that are not sent yet, in order."""
        return self._portal.call(self._inner.survey_queued())

    def take_back(self, message: str) -> UserCanister:
        """Remove a message that is not sent yet and return it.

        Raises `SteeringRefused` if it was sent, or taken back before.
        """
        return self._portal.call(self._inner.take_back(message))

    def decide(self, invocation: str | InvocationCanister, decision: Decision) -> CallApproval:
        """Decide on a call; any process that works on runs then continues the run.

        `Decision.ALWAYS_TOOL` also allows the later calls of the tool in this conversation, while
        its definition is the same, unless a call asks each time; any other decision applies to this
        call only. Raises `DecisionRefused` if it was decided differently before.
        """
        return self._portal.call(self._inner.decide(invocation, decision))

    def survey_questions(self) -> Sequence[RunQuestion]:
        """Return the questions that the run has asked."""
        return self._portal.call(self._inner.survey_questions())

    def answer(self, question: str, answer: ElicitationAnswer) -> RunQuestion:
        """Answer a question; any process that works on runs then continues the run.

        Raises `AnswerInvalid` if the answer does not fit the form, and `DecisionRefused` if the
        question was answered differently before.
        """
        return self._portal.call(self._inner.answer(question, answer))

    def cancel(self) -> RunStatus:
        """Request the end of the run, and return its status.

        Its worker stops within a second. Messages that arrived are kept.
        """
        return self._portal.call(self._inner.cancel())

    def result(self) -> Turn[T]:
        """Wait for the end, and return the finished turn.

        `output` has the type given when the run was started here, and plain values in other
        processes or for runs found by identity.

        Raises:
            RunFailed: The run failed.
            OutputInvalid: The output fits the schema but not the type.
        """
        return self._portal.call(self._inner.result())

    def read(self) -> Turn[T]:
        """Return the durable part of the turn; it has no output before the run has completed."""
        return self._portal.call(self._inner.read())


class Background(_Face[hook_runner.Background]):
    """The background work of a session, for synchronous callers."""

    @property
    def pending(self) -> int:
        """Number of turns with unfinished work."""
        return self._inner.pending

    def cancel(self) -> None:
        """Cancel all work immediately; a notice reports the amount of unfinished work."""
        self._portal.call(_call(self._inner.cancel))

    wait = _through(hook_runner.Background.wait)


class Windows(_Face["learned.Windows"]):
    """The context windows of models, for synchronous callers."""

    def window_of(self, model: Model) -> int | None:
        """Return the context window of a model in tokens, or None if nothing is known."""
        return self._portal.call(self._inner.window_of(model))

    def find(self, model: Model) -> LearnedWindow | None:
        """Return the learned window of a model, or None if there is none that still applies."""
        return self._portal.call(self._inner.find(model))

    def survey(self) -> Sequence[LearnedWindow]:
        """Return all learned windows, by address."""
        return self._portal.call(self._inner.survey())

    def forget(self, address: str | None = None) -> Sequence[LearnedWindow]:
        """Remove the learned window of a model `row/model`, or all; return the removed ones.

        Raises `StorageError` if the file cannot be written.
        """
        return self._portal.call(self._inner.forget(address))


class Documents(_Face["documents.Documents"]):
    """The service that reads and searches documents, for synchronous callers."""

    def read(self, document: FileContent, load: Loader = refuse_loading) -> DocumentText:
        """Return the text of a file, which is read once and kept. `load` reads references.

        Raises `DocumentUnreadable` with the reason, or `PackageMissing` with the command.
        """
        return self._portal.call(self._inner.read(document, load))

    def add(
        self,
        collection: str,
        paths: Iterable[str | Path],
        progress: Callable[[int, int, str], None] = lambda *_: None,
        *,
        follow_links: bool = False,
    ) -> Refreshed:
        """Add files and folders to a collection, and read what is new or changed in it.

        Creates the collection if necessary. `progress` and problems are as in
        `DocumentStore.refresh`.
        """
        added = self._inner.add(collection, paths, progress, follow_links=follow_links)
        return self._portal.call(added)

    def refresh(
        self,
        collection: str,
        progress: Callable[[int, int, str], None] = lambda *_: None,
        *,
        failed: bool = False,
    ) -> Refreshed:
        """Read the waiting files of a collection of uploads; see `Catalog.refresh`."""
        return self._portal.call(self._inner.refresh(collection, progress, failed=failed))

    def fetch(self, url: str) -> DocumentCanister:
        """Return a document from a web address: the main text of a page, or the file there.

        Raises `PageUnreadable` with the reason, such as a private address.
        """
        return self._portal.call(self._inner.fetch(url))

    def find(
        self,
        request: str,
        files: Sequence[FileContent],
        collections: Sequence[str] = (),
        load: Loader = refuse_loading,
    ) -> Sequence[Found]:
        """Return the passages of files and collections that fit a request best, best first.

        The files must have different names. Unreadable files are skipped, unless all are, which
        raises the first error. Raises `CollectionNotFound` for an unknown collection.
        """
        return self._portal.call(self._inner.find(request, files, collections, load))


class Runs(_Face["runs.Runs"]):
    """The service that works on runs, for synchronous callers; `Session` starts and finds them."""

    def resume(self) -> None:
        """Work on runs left by other processes until the session is closed."""
        self._portal.call(_call(self._inner.resume))

    def finish(self) -> None:
        """Work on runs, including those left by other processes, until none remain."""
        self._portal.call(self._inner.finish())


async def _call(function: Callable[[], T]) -> T:
    return function()


class Session(_Face[sessions.Session]):
    """A synchronous `vibe_llms.Session`.

    It is closed with the `with` block, by `close`, or at the end of the program.
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
    find_model = _through(sessions.Session.find_model)
    survey_models = _through(sessions.Session.survey_models)
    survey_conversations = _through(sessions.Session.survey_conversations)
    search = _through(sessions.Session.search)
    import_conversations = _through(sessions.Session.import_conversations)
    import_agents = _through(sessions.Session.import_agents)
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
        """Begin a turn that does not depend on this process, and return immediately.

        The turn is recorded: any process can follow, cancel, or approve it by its identity, and if
        this process dies, another worker continues it. `controls` are merged over those of the
        conversation. `output` is as in `converse`, but any process checks the reply, against the
        schema of the type; the type itself reads it where this run's `result` is called.

        The run is durable when this returns. A new conversation is stored later, by the worker,
        with the first message of the turn; until then, other processes find the run but not the
        conversation. `add` stores a conversation at once.

        Raises `ConversationBusy` if the conversation already has such a turn, `RequestError` if no
        other process could rebuild it, for example because a tool was not given to
        `open_session(invokers=...)`.
        """
        begun = self._inner.start(conversation._inner, prompt, controls=controls, output=output)
        return Run(self._portal, self._portal.call(begun))

    def detach(self, conversation: Conversation) -> Run:
        """Turn the running turn of a conversation into a run that any process can follow.

        Its `converse` returns with the stop reason `suspended`. Running calls are awaited; an
        incomplete reply is requested again. Raises `RequestError` if no other process could
        continue it; then it continues here.
        """
        left = self._inner.detach(conversation._inner)
        return Run(self._portal, self._portal.call(left))

    def access_run(self, run: str) -> Run:
        """Return a run by its identity or at least the first 4 characters of it."""
        return Run(self._portal, self._portal.call(self._inner.access_run(run)))

    def access_runs(self) -> Runs:
        """Return the service that starts, finds, and executes runs."""
        return Runs(self._portal, self._inner.access_runs())

    def access_documents(self) -> Documents:
        """Return the service that reads and searches the documents of conversations."""
        return Documents(self._portal, self._inner.access_documents())

    @property
    def background(self) -> Background:
        """The work of hooks after turns, such as memory's: wait for it, or cancel it."""
        return Background(self._portal, self._inner.background)

    @property
    def windows(self) -> Windows:
        """The context windows of models, declared or learned from refusals."""
        return Windows(self._portal, self._inner.windows)

    def access_memory(self) -> TurnHook:
        """Return the hook that recalls and remembers the user's messages.

        `begin(memory=True)` adds it to a conversation, and so does `add_hook`.
        """
        return self._inner.access_memory()

    def survey_agents(self) -> Sequence[Agent]:
        """Return the agents of `[agents]`, in the order of the configuration.

        Raises `ConfigurationError` if one of their rows is invalid.
        """
        return self._inner.survey_agents()

    def access_agent(self, name: str) -> Agent:
        """Return the agent with this name; raises `AgentNotFound`."""
        return self._inner.access_agent(name)

    def survey_skills(self) -> SkillCatalog:
        """Return the skills in the user's folders, with the reasons why some are not offered."""
        return self._portal.call(self._inner.survey_skills())

    def choose_skills(self, agent: str | None) -> Sequence[str] | None:
        """Return the `skills` of a chat for `begin`: all of this user, unless the agent has a list.

        None means those of the agent. Users of a server have only the skills of their agents.
        """
        return self._inner.choose_skills(agent)

    def estimate_cost(self, canisters: Iterable[Canister]) -> Cost:
        """Estimate the cost of the replies among some canisters, by the price list of each row."""
        return self._inner.estimate_cost(canisters)


def _opens(opener: Callable[P, sessions.Session]) -> Callable[P, Session]:
    @functools.wraps(opener)
    def call(*args: P.args, **kwargs: P.kwargs) -> Session:
        opened = opener(*args, **kwargs)
        return Session(Portal(), opened)

    return call


#: Open a session, closed with the block or at the end of the program, with the options of
#: `vibe_llms.open_session`.
open_session = _opens(opening.open_session)
