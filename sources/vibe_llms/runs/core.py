"""`Runs`: starts the recorded turns of one user, and finds them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from vibe_llms.configuration import Configuration, RunSettings
from vibe_llms.controls import Controls
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.exceptions import ConversationNotFound, RequestError
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    StopReason,
    Turn,
    UserCanister,
    usage_of,
)
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.identities import produce_identity
from vibe_llms.runs.interfaces import (
    LOCAL,
    Recipe,
    RunRecord,
    RunStatus,
    RunStore,
    read_lines,
    write_lines,
)
from vibe_llms.runs.run import Run
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.runs.worker import RunWorker
from vibe_llms.storage.interfaces import Archive

_REASONS = {
    RunStatus.CANCELLED: StopReason.INTERRUPTED,
    RunStatus.WAITING: StopReason.SUSPENDED,
}


class RunHost(Struct, frozen=True, kw_only=True):
    """What runs ask of a session.

    `registered` are the names of tools, and `hooks` those of hooks, that every process finds.
    `is_row` says whether an ensemble is the one of its row, `open_run` gives the conversation of a
    run, and `restore` the messages of a conversation that another process may have continued.
    """

    registered: Collection[str]
    hooks: Collection[str]
    is_row: Callable[[Ensemble], bool]
    open_run: Callable[[RunRecord], Awaitable[Conversation]]
    restore: Callable[[str], Awaitable[Sequence[Canister]]]


class Runs:
    """The runs of one user. Closing it gives back what it works on."""

    def __init__(
        self, store: RunStore, host: RunHost, settings: RunSettings, *, user: str = LOCAL
    ) -> None:
        self.store = store
        self.user = user
        self._host = host
        self.worker = RunWorker(store, (user,), host.open_run, settings)

    async def start(self, conversation: Conversation, prompt: Sequence[Canister]) -> Run:
        """Record a turn and begin it; returns as soon as it is durable.

        `ConversationBusy` if the conversation has a run that has not ended, `RequestError` if
        another process could not rebuild it.
        """
        history = conversation.history
        if history.archive is None:
            raise RequestError("a run is stored, and this conversation is not: begin it with save")
        if not prompt:
            raise RequestError("a run needs a prompt")
        now = datetime.now(UTC)
        opening = () if history.stored else history.canisters
        record = RunRecord(
            identity=produce_identity(),
            user=self.user,
            conversation=conversation.identity,
            status=RunStatus.QUEUED,
            recipe=self._write_recipe(conversation),
            prompt=write_lines(prompt),
            opening=write_lines(opening),
            details=None if history.stored else history.details,
            created=now,
            updated=now,
        )
        await self.store.create(record)
        self.worker.poke()
        return self._produce_run(record)

    async def access(self, run: str) -> Run:
        """A run, by its identity or at least the first 4 characters of it."""
        return self._produce_run(await self.store.access(self.user, run))

    async def survey(
        self, *, status: RunStatus | None = None, limit: int | None = None
    ) -> Sequence[RunRecord]:
        """The runs, the newest first."""
        return await self.store.survey(self.user, status=status, limit=limit)

    def resume(self) -> None:
        """Work on runs that other processes left, until the session is closed."""
        self.worker.resume()

    async def close(self) -> None:
        """Give back what is being worked on, and close the store."""
        await self.worker.close()
        await self.store.close()

    def _produce_run(self, record: RunRecord) -> Run:
        return Run(record, self.store, self.worker, self._read_turn)

    async def _read_turn(self, record: RunRecord) -> Turn:
        """The turn of a run, from the history."""
        canisters = await self._host.restore(record.conversation)
        prompt = [*read_lines(record.prompt)]
        first = prompt[0].identity
        start = next((i for i, one in enumerate(canisters) if one.identity == first), None)
        added = () if start is None else _read_one_turn(canisters[start:], len(prompt))
        replies = [one for one in added if isinstance(one, AssistantCanister | InvocationCanister)]
        text = "".join(
            text_of(one.contents)
            for one in replies
            if isinstance(one, AssistantCanister) and one.reply == replies[-1].reply
        )
        ending = replies[-1].ending if replies else None
        reason = _REASONS.get(record.status) or (ending.reason if ending else StopReason.FINISHED)
        return Turn(added, text, None, usage_of(added), reason)

    def _write_recipe(self, conversation: Conversation) -> Recipe:
        settings = conversation.settings
        toolbox = settings.toolbox
        problems = [
            *(
                f"the tool {one.name!r} is known to this conversation only; give it to "
                "open_session(invokers=...)"
                for one in toolbox.own
                if one.name not in self._host.registered
            ),
            *(
                f"the ensemble {one.name!r} is no row of the configuration"
                for one in toolbox.ensembles
                if not self._host.is_row(one)
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
            ensembles=tuple(one.name for one in toolbox.ensembles),
            collections=settings.collections,
            invokers=tuple(one.name for one in toolbox.own),
            withheld=tuple(sorted(toolbox.withheld)),
            hooks=tuple(one.name for one in settings.hooks),
            tool_mode=settings.tool_mode,
            controls=write_controls(settings.controls),
        )


def _read_one_turn(canisters: Sequence[Canister], prompt: int) -> tuple[Canister, ...]:
    """The first turn of some messages, which begins with a prompt of so many."""
    for index, canister in enumerate(canisters):
        if index >= prompt and isinstance(canister, UserCanister | DocumentCanister):
            return tuple(canisters[:index])
    return tuple(canisters)


def write_controls(controls: Controls) -> Mapping[str, object]:
    """The controls that are set, as plain values."""
    values: Mapping[str, object] = msgspec.to_builtins(controls)
    return values


async def produce_history(archive: Archive, record: RunRecord) -> History:
    """The history of a run's conversation, whether it was stored before the run or not."""
    try:
        return (await History.restore(archive, record.conversation))[0]
    except ConversationNotFound:
        if record.details is None:
            raise
    opening = [*read_lines(record.opening)]
    return History(archive, record.details, identity=record.conversation, canisters=opening)


def produce_runs(
    configuration: Configuration, host: RunHost, *, store: RunStore | None, user: str
) -> Runs:
    """The runs of a user; without a store of their own, they are in the file of the home folder."""
    return Runs(store or _produce_store(configuration), host, configuration.runs, user=user)


async def forget_runs(
    configuration: Configuration, conversations: Collection[str], *, user: str = LOCAL
) -> None:
    """Delete the runs of conversations that are being removed, with their events."""
    store = _produce_store(configuration)
    if store.exists():
        try:
            for conversation in conversations:
                await store.remove(user, conversation)
        finally:
            await store.close()


def _produce_store(configuration: Configuration) -> SqliteRunStore:
    return SqliteRunStore(
        configuration.places.data / "server" / "runs.sqlite",
        lock_seconds=configuration.storage.lock_seconds,
        events_days=configuration.runs.events_days,
    )
