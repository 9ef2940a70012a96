"""`Runs`: starts the recorded turns of one user, and finds them later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from vibe_llms.agents.ensemble import AgentsEnsemble
from vibe_llms.base.configuration import LOCAL, RunSettings
from vibe_llms.base.exceptions import (
    ContentMissing,
    ConversationNotFound,
    OutputInvalid,
    RequestError,
    RequestRepeated,
)
from vibe_llms.base.futures import finish
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.conversations.outputs import (
    OutputForm,
    OutputMismatch,
    OutputType,
    produce_form,
)
from vibe_llms.conversations.settings import SKILLS, TurnState
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Cost,
    InvocationCanister,
    StopReason,
    Turn,
    UserCanister,
    is_large,
    usage_of,
)
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import Loader
from vibe_llms.providers.pieces import with_texts
from vibe_llms.runs.interfaces import (
    UNFINISHED,
    DeclaredTool,
    Outline,
    Recipe,
    RequestKey,
    RunRecord,
    RunStatus,
    RunStore,
    outline_lines,
    read_lines,
    write_lines,
)
from vibe_llms.runs.run import Run
from vibe_llms.runs.steering import end_cancelled
from vibe_llms.runs.stores import RUN_STORES
from vibe_llms.runs.takeover import find_own, find_unanswered
from vibe_llms.runs.worker import RunWorker
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.conversations import produce_conversation_identity
from vibe_llms.storage.interfaces import Archive

#: Seconds between polls in `finish`.
_POLL_SECONDS = 0.2
#: Longest wait for a run to end before it is deleted, in seconds.
_END_SECONDS = 2.0
_REASONS = {
    RunStatus.CANCELLED: StopReason.INTERRUPTED,
    RunStatus.WAITING: StopReason.SUSPENDED,
    RunStatus.FAILED: StopReason.FAILED,
}


class RunHost(Struct, frozen=True, kw_only=True):
    """The operations that runs need from a session.

    `registered` and `hooks` are the names of tools and hooks that every process has.
    `is_of_callers` tells if a provider's keys come with requests to a server, and `is_row` if an
    ensemble is the one configured in its row. `rebuild` creates the conversation of a run from its
    recipe, `restore` reads the messages of a conversation that another process may have continued,
    and `load` reads their texts. `estimate_cost` uses the price lists of the rows.
    """

    registered: Collection[str]
    hooks: Collection[str]
    is_of_callers: Callable[[str], bool]
    is_row: Callable[[Ensemble], bool]
    rebuild: Callable[[RunRecord], Awaitable[Conversation]]
    restore: Callable[[str], Awaitable[Sequence[Canister]]]
    load: Loader
    estimate_cost: Callable[[Iterable[Canister]], Cost]


class Runs:
    """The runs of one user.

    A given `worker` also serves other users; then neither it nor the store is closed here. `most`
    limits how many runs may be queued or running at once.
    """

    def __init__(
        self,
        store: RunStore,
        host: RunHost,
        settings: RunSettings,
        *,
        user: str = LOCAL,
        worker: RunWorker | None = None,
        most: int | None = None,
    ) -> None:
        self.store = store
        self.user = user
        self._most = most
        self._host = host
        self._owns = worker is None
        self.worker = worker or RunWorker(store, user, self.open, settings, known=host.registered)
        #: Conversations of runs started here, while anything else references them.
        self._begun: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        #: Conversations of runs whose first epoch this process works on or worked on.
        self._opened: WeakValueDictionary[str, Conversation] = WeakValueDictionary()

    async def start(
        self,
        conversation: Conversation,
        prompt: Sequence[Canister],
        *,
        instructions: Sequence[str] = (),
        controls: Controls | None = None,
        output: OutputType = None,
        origin: bytes = b"",
        request: RequestKey | None = None,
        awaited: bool = False,
    ) -> Run:
        """Record a turn and start it; return as soon as it is durable.

        Args:
            prompt: First messages of the turn. If empty, the turn answers the last messages of the
                history, as if it had been interrupted after them.
            instructions: System instructions for this turn only.
            controls: Merged over the controls of the conversation.
            output: Type whose schema the reply is checked against.
            origin: Opaque data kept in the record.
            request: If a run already has this key, it is returned instead.
            awaited: Fail at the user's limit for a minute instead of waiting for it.

        Raises:
            ConversationBusy: The conversation has a run that has not ended.
            TooManyRuns: The user has too many runs queued or running.
            RequestError: Another process could not rebuild the run.
        """
        prompt = prompt or find_unanswered(conversation.canisters)
        controls = controls or Controls()
        form = None if output is None else produce_form(output)
        if form is not None:
            prompt, controls = form.request(conversation.model, prompt, controls)
        recipe = self._write_recipe(conversation, instructions, controls, form)
        recipe = msgspec.structs.replace(recipe, awaited=awaited)
        return await self._create(
            conversation, prompt, recipe, form=form, origin=origin, request=request
        )

    async def detach(self, conversation: Conversation) -> Run:
        """Continue the running turn of a conversation as a run.

        Waits for running tool calls. An incomplete reply is requested again. Raises `RequestError`
        if no other process could continue the turn, which then continues here.
        """
        running = conversation.running
        if running is None:
            raise RequestError("no turn of this conversation is running")
        request = running.handover.request
        if not request.said:
            raise RequestError("only a turn with a prompt can continue as a run")
        if request.invokers is not None or request.record is not None:
            raise RequestError("a turn with its own tools cannot continue as a run")
        controls, form = request.controls or Controls(), request.form
        recipe = self._write_recipe(conversation, (), controls, form)
        state = (await running.suspend()).state

        async def create() -> Run:
            queued = conversation.hand_over_queued()
            with ExitStack() as undo:
                undo.callback(conversation.queue_again, queued)
                run = await self._create(
                    conversation, request.said, recipe, form=form, state=state, steering=queued
                )
                undo.pop_all()
            return run

        # A cancellation must not leave the messages in both queues, or in none.
        return await finish(create())

    async def _create(
        self,
        conversation: Conversation,
        prompt: Sequence[Canister],
        recipe: Recipe,
        *,
        form: OutputForm | None,
        origin: bytes = b"",
        request: RequestKey | None = None,
        state: TurnState = TurnState(),
        steering: Sequence[UserCanister] = (),
    ) -> Run:
        history, now = conversation.history, datetime.now(UTC)
        opening = () if history.stored else history.canisters
        large = is_large([*prompt, *opening])
        lines = await offload(large, lambda: [*map(write_lines, (prompt, opening))])
        record = RunRecord(
            # As short as conversation identities, because people type it.
            identity=produce_conversation_identity(),
            user=self.user,
            conversation=conversation.identity,
            status=RunStatus.QUEUED,
            recipe=recipe,
            prompt=lines[0],
            opening=lines[1],
            outline=Outline(
                *await offload(large, lambda: [*map(outline_lines, (prompt, opening))])
            ),
            details=None if history.stored else history.details,
            created=now,
            updated=now,
            origin=origin,
            request=request,
            state=state,
            steering=steering,
        )
        self._begun[record.identity] = conversation
        # A recorded run is worked on even if its caller is cancelled meanwhile.
        try:
            created = await finish(self.worker.create(record, self._most))
        except RequestRepeated as error:
            created = await self.store.access(self.user, error.run)
        return self._produce_run(created, conversation, form)

    async def open(self, record: RunRecord) -> Conversation:
        """Return the conversation of a run: the one it was started with here, or a rebuilt one."""
        conversation = self._begun.get(record.identity)
        if conversation is None or conversation.busy:
            conversation = await self._host.rebuild(record)
        elif record.epoch > 1:
            await conversation.refresh()
        if record.epoch == 1:
            self._opened[record.identity] = conversation
        return conversation

    async def find(self, request: RequestKey) -> Run | None:
        """Return the run of a request or None; `RequestKeyReused` if its key has another one."""
        if not self.store.exists():
            return None
        try:
            await self.store.find_request(self.user, request)
        except RequestRepeated as error:
            return await self.access(error.run)
        return None

    async def access(self, run: str) -> Run:
        """Return a run by its identity or a unique prefix of at least 4 characters."""
        return self._produce_run(await self.store.access(self.user, run))

    async def survey(
        self,
        *,
        statuses: Collection[RunStatus] = (),
        conversation: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """Return runs, newest first; see `RunStore.survey`."""
        # Listing must not create the store.
        if not self.exists():
            return ()
        return await self.store.survey(
            self.user, statuses=statuses, conversation=conversation, after=after, limit=limit
        )

    def exists(self) -> bool:
        """Return True if any user has ever had a run."""
        return self.store.exists()

    async def forget(self, conversation: str) -> None:
        """Delete the runs and events of a conversation that is being removed.

        A run that has not ended is cancelled first, and its followers see the end.
        """
        for record in await self.survey(statuses=UNFINISHED, conversation=conversation):
            await self._end(self._produce_run(record))
        await self.store.remove(self.user, conversation)

    async def _end(self, run: Run) -> None:
        await run.cancel()
        with suppress(TimeoutError):
            # If the worker does not answer, it loses the run.
            async with asyncio.timeout(_END_SECONDS):
                async for _ in run.events():
                    pass

    def resume(self) -> None:
        """Work on runs left by other processes until the session is closed."""
        self.worker.resume()

    async def finish(self) -> None:
        """Work on runs, including those left by other processes, until none remain."""
        self.worker.resume()
        while self.worker.busy or await self.are_left():  # noqa: ASYNC110  (of other processes)
            await asyncio.sleep(_POLL_SECONDS)

    async def are_left(self) -> bool:
        """Return True if there are runs without a worker that this process could continue."""
        known = self._host.registered
        return (await self.store.read_orders(self.user, (), known=known)).claimable

    async def close(self) -> None:
        """Close the store."""
        if self._owns:
            await self.store.close()

    async def give_back(self) -> None:
        """Stop working on runs, so that another process can continue them."""
        if self._owns:
            await self.worker.close()

    def _produce_run(
        self,
        record: RunRecord,
        conversation: Conversation | None = None,
        form: OutputForm | None = None,
    ) -> Run:
        read = partial(self._read_turn, form=form)
        return Run(record, self.store, self.worker, read, conversation)

    async def _read_turn(self, record: RunRecord, form: OutputForm | None) -> Turn:
        """Return the stored turn of a run, or an empty turn.

        The output is parsed with the `form` passed here, or else with the recorded schema.
        """
        opened = self._opened.get(record.identity)
        canisters: Sequence[Canister] = ()
        if opened is not None and record.epoch == 1 and opened.identity == record.conversation:
            # Only this process has worked on the run.
            canisters = opened.canisters
        else:
            with suppress(ConversationNotFound):
                canisters = await self._host.restore(record.conversation)
        elsewhere = {one.name for one in record.recipe.declared}
        prompt = await offload(len(record.prompt) > LOOP_BYTES, read_lines, record.prompt)
        own = find_own(canisters, prompt, elsewhere)
        try:
            added = tuple(await with_texts(own, self._host.load))
        except ContentMissing:
            # If the run was removed with its conversation, that is the error.
            await self.store.refresh(record)
            raise
        replies = [one for one in added if isinstance(one, AssistantCanister | InvocationCanister)]
        text = "".join(
            text_of(one.contents)
            for one in replies
            if isinstance(one, AssistantCanister) and one.reply == replies[-1].reply
        )
        reason = _REASONS.get(record.status) or record.reason or StopReason.FINISHED
        output = None
        if record.recipe.output is not None and record.status is RunStatus.COMPLETED:
            output = await _read_output(form or produce_form(record.recipe.output), text, record)
        turn = Turn(added, text, output, usage_of(added), reason)
        return turn.price(self._host.estimate_cost)

    def _write_recipe(
        self,
        conversation: Conversation,
        instructions: Sequence[str],
        controls: Controls,
        form: OutputForm | None,
    ) -> Recipe:
        if conversation.history.archive is None:
            raise RequestError("a run needs a stored conversation; begin it with save")
        settings = conversation.settings
        toolbox = settings.toolbox
        problems = [
            *(
                [f"the key of {settings.model.provider!r} is part of one request"]
                if self._host.is_of_callers(settings.model.provider)
                else ()
            ),
            *(
                f"the tool {one.name!r} is known to this conversation only; pass it to "
                "open_session(invokers=...)"
                for one in toolbox.own
                if not one.elsewhere and one.name not in self._host.registered
            ),
            *(
                f"the ensemble {one.name!r} is not in the configuration"
                for one in toolbox.ensembles
                if not (
                    self._host.is_row(one)
                    or isinstance(one, AgentsEnsemble)
                    or (one.name == SKILLS and settings.skills)
                )
            ),
            *(
                f"the hook {one.name!r} is known to this conversation only"
                for one in settings.hooks
                if one.name not in self._host.hooks
            ),
        ]
        if problems:
            raise RequestError(f"no other process could continue this run: {'; '.join(problems)}")
        return Recipe(
            model=f"{settings.model.provider}/{settings.model.name}",
            agent=settings.agent,
            agents=any(isinstance(one, AgentsEnsemble) for one in toolbox.ensembles),
            claims=settings.claims,
            declared=tuple(
                DeclaredTool(one.name, one.arguments_schema, one.description)
                for one in toolbox.own
                if one.elsewhere
            ),
            instructions=tuple(instructions),
            ensembles=tuple(one.name for one in toolbox.ensembles if self._host.is_row(one)),
            collections=settings.collections,
            skills=settings.skills,
            invokers=tuple(one.name for one in toolbox.own if not one.elsewhere),
            unshown=tuple(name for name, one in settings.invokers.items() if not one.show_in_stage),
            withheld=tuple(sorted(toolbox.withheld)),
            singled=tuple(sorted(toolbox.singled)),
            hooks=tuple(one.name for one in settings.hooks),
            tool_mode=settings.tool_mode,
            fallback=settings.fallback,
            context_mode=settings.context_mode,
            controls=write_controls(controls.over(settings.controls)),
            output=None if form is None else form.value_schema,
            parent=settings.tracer.write_parent(),
        )


async def _read_output(form: OutputForm, text: str, record: RunRecord) -> object:
    """Parse the output of a completed run; its type may be stricter than its schema."""
    try:
        return await form.run(text)
    except OutputMismatch as mismatch:
        raise OutputInvalid(
            f"the output fits the schema of {form.name}, but not the type: {mismatch}",
            provider=record.recipe.model.partition("/")[0],
        ) from mismatch


def write_controls(controls: Controls) -> Mapping[str, object]:
    """Return the controls that are set, as plain values."""
    values: Mapping[str, object] = msgspec.to_builtins(controls)
    return values


async def produce_history(archive: Archive, record: RunRecord) -> History:
    """Return the history of a run's conversation, stored or rebuilt from the record."""
    try:
        return (await History.restore(archive, record.conversation))[0]
    except ConversationNotFound:
        if record.details is None:
            raise
    opening = read_lines(record.opening)
    return History(archive, record.details, identity=record.conversation, canisters=opening)


def produce_runs(backend: Backend, host: RunHost) -> Runs:
    """Return the runs of the local user."""
    return Runs(produce_store(backend), host, backend.configuration.runs)


async def forget_runs(
    backend: Backend, conversations: Collection[str], *, user: str = LOCAL
) -> None:
    """Delete the runs and events of conversations that are being removed."""
    store = produce_store(backend)
    if store.exists():
        try:
            for conversation in conversations:
                await store.remove(user, conversation)
        finally:
            await store.close()


async def cancel_runs(backend: Backend, user: str) -> int:
    """Cancel the unfinished runs of a user; return how many there were."""
    store = produce_store(backend)
    if not store.exists():
        return 0
    try:
        going = await store.survey(user, statuses=UNFINISHED)
        for record in going:
            await store.cancel(user, record.identity, end_cancelled)
        return len(going)
    finally:
        await store.close()


def produce_store(backend: Backend) -> RunStore:
    """Open the store with the runs of all users."""
    return RUN_STORES.produce(backend)
