"""`UserSpaces`: a session for each user of the server, opened on the first request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vibe_llms.agents.definitions import access_agent, survey_names
from vibe_llms.base.configuration import LOCAL, Configuration
from vibe_llms.base.credentials import get_logger, read_keys
from vibe_llms.base.exceptions import CollectionNotFound, ModelNotFound, StorageError, VibeLlmsError
from vibe_llms.base.keys import KeyVault
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.importing.reports import ImportOptions, ImportReport, ProgressHandler
from vibe_llms.invocation.questions import decline
from vibe_llms.memory.hook import MemoryHook
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.breakers import Breakers
from vibe_llms.providers.caller_keys import CALLER, find_caller_key
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiters
from vibe_llms.providers.provider_pool import PROVIDERS
from vibe_llms.providers.spending import spend
from vibe_llms.runs.accounts import BudgetStore
from vibe_llms.runs.budgets import produce_budget_store
from vibe_llms.runs.core import RunHost, Runs, produce_store
from vibe_llms.runs.interfaces import UNFINISHED, RunRecord, RunStatus
from vibe_llms.runs.worker import RunWorker
from vibe_llms.server.changes import ChangeFeed
from vibe_llms.server.continuations import ContinuationStore
from vibe_llms.server.failures import Rejected
from vibe_llms.server.import_records import ImportRecordStore, find_imports, sweep
from vibe_llms.server.imports import PARALLEL, UserImports
from vibe_llms.server.indexing import CollectionIndexer
from vibe_llms.server.settings import ServerSettings
from vibe_llms.server.stores import produce_continuations, produce_import_records
from vibe_llms.server.watching import StorageWatch
from vibe_llms.session.core import Session
from vibe_llms.session.parts import LIMIT_WINDOWS, SessionParts
from vibe_llms.storage.backends import Backend, open_backend
from vibe_llms.storage.users import find_user_places, survey_homes

if TYPE_CHECKING:
    from vibe_llms.documents.store import DocumentStore

_LOGGER = get_logger("vibe_llms.server")
_RETRY_SECONDS = 1.0
#: Seconds for which lists of models from providers are cached.
_LISTED_SECONDS = 60.0


class _Slots:
    """Number of things of one kind that a user may have at once."""

    def __init__(self, most: int, name: str, code: str) -> None:
        self.used = 0
        self._most = most
        self._name = name
        self._code = code

    @contextmanager
    def take(self) -> Iterator[None]:
        """Take a slot for the block; `Rejected` if none is free."""
        if self.used >= self._most:
            raise Rejected(
                f"too many {self._name} at once ({self.used}); wait until one ends",
                status=429,
                type="rate_limit_error",
                code=self._code,
                retry_after=_RETRY_SECONDS,
            )
        self.used += 1
        try:
            yield
        finally:
            self.used -= 1


class UserSpace:
    """The session of one user and its resources."""

    def __init__(
        self,
        backend: Backend,
        user: str,
        settings: ServerSettings,
        budgets: BudgetStore,
        continuations: ContinuationStore,
        produce_runs: Callable[[RunHost], Runs],
        tracer: Tracer,
        limiters: Limiters,
        breakers: Breakers,
        access_library: Callable[[], DocumentStore],
        import_records: ImportRecordStore,
        import_slots: asyncio.Semaphore,
    ) -> None:
        configuration = backend.configuration
        places = find_user_places(configuration.places, user)
        own = msgspec.structs.replace(configuration, places=places)
        self.archive = archive = backend.open_archive(user, places)
        self.user = user
        self.limit = configuration.limits.find(user)
        # Agents whose prompt needs variables are excluded, because clients cannot set them.
        self._agents = [
            name
            for name in survey_names(configuration)
            if not access_agent(configuration, name).needed
        ]
        agents = [access_agent(configuration, name) for name in self._agents]
        offered = {name for agent in agents for name in agent.collections}
        keys = read_keys(configuration.places.keys_file)
        # The logins of a user are not shared with other users.
        vault = KeyVault(places.data / "secrets.toml", keyring=False) if user != LOCAL else None
        parts = SessionParts(
            configuration=own,
            archive=archive,
            keys=keys,
            vault=vault,
            # Served turns decline questions; runs let their users answer.
            elicitor=decline,
            user=user,
            budget_store=budgets,
            backend=backend,
            produce_runs=produce_runs,
            tracer=tracer,
            # Clients send whole histories, which may contain anything.
            claims=True,
            # A conversation deleted by its user must not reappear.
            revive=False,
            # The server's configuration does not belong to its users.
            own_rows=False,
            limiters=limiters,
            breakers=breakers,
            # Agents refer to collections of the server. Other collections of its home are private.
            access_library=access_library,
            offered_collections=None if user == LOCAL else offered,
        )
        self.session = Session(parts)
        self.continuations = continuations.open(user, places)
        self.imports = UserImports(
            import_records.open(user, places),
            find_imports(places),
            self._import,
            import_slots,
            hidden=(places.data, configuration.places.data),
        )
        self.changes = ChangeFeed(self.session, self.imports)
        self.entered = 0
        self._turns = _Slots(settings.user_turns, "turns", "too_many_turns")
        self._streams = _Slots(settings.user_streams, "event streams", "too_many_streams")
        rows = configuration.rows(PROVIDERS)
        self._for_callers = any(self.session.is_of_callers(row.name) for row in rows)
        self.settings = settings
        #: Names that the user may name; a model is None if its provider was not asked.
        self._listed: Mapping[str, Model | None] = {}
        self._listed_until = 0.0
        self.indexer = CollectionIndexer(self._index)
        self._removed = False
        self._collecting: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Number of running turns."""
        return self._turns.used

    def turn(self) -> AbstractContextManager[None]:
        """Count a turn while it runs; `Rejected` if the user has too many."""
        return self._turns.take()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Count provider requests without a conversation as a turn, and against budgets."""
        with self.turn():
            async with self._paying():
                yield

    def _paying(self) -> AbstractAsyncContextManager[None]:
        """Count provider requests without a conversation against budgets."""
        spending = self.session.access_spending({})
        return nullcontext() if spending is None else spend(spending)

    async def _index(self, collection: str, failed: bool) -> None:
        """Read the waiting files of a collection, and wait for their vectors."""
        documents = self.session.access_documents()
        # It may have been deleted meanwhile.
        with suppress(CollectionNotFound):
            async with self._paying():
                await documents.refresh(collection, failed=failed)
                await documents.store.finish()

    async def _import(
        self, path: Path, options: ImportOptions, progress: ProgressHandler
    ) -> ImportReport:
        return await self.session.import_conversations(path, options=options, progress=progress)

    def following(self) -> AbstractContextManager[None]:
        """Count a client that follows events; `Rejected` if the user has too many."""
        return self._streams.take()

    async def survey_models(self) -> Sequence[str]:
        """Return the names of agents and models that the user may name."""
        if time.monotonic() >= self._listed_until:
            listed = dict.fromkeys((*self._agents, *self._survey_known()), None)
            for status in self.session.survey_providers():
                if status.present and not status.problem:
                    # A provider that fails must not hide the others.
                    with suppress(VibeLlmsError):
                        models = await self.session.survey_models(status.name)
                        listed |= {f"{model.provider}/{model.name}": model for model in models}
            self._listed = listed
            self._listed_until = time.monotonic() + _LISTED_SECONDS
        return [*self._listed]

    async def access_model(self, name: str) -> Model | None:
        """Return the model of an address or alias, or None if this user cannot use it now."""
        if (found := self._listed.get(name)) is not None:
            return found
        with suppress(VibeLlmsError):
            return await self.session.access_model(name)
        return None

    async def resolve_model(self, name: str) -> tuple[str | None, str | None]:
        """Return the agent that a client names as a model, or else the model's address.

        The provider's name is optional. Only listed models are accepted, because other addresses
        may be paths of files on the server.
        """
        if name in self._agents:
            return name, None
        if not self._listed:
            self._listed = dict.fromkeys(self._survey_known(), None)
        for _ in range(2):
            if name in self._listed:
                return None, name
            found = [address for address in self._listed if address.partition("/")[2] == name]
            if len(found) == 1:
                return None, found[0]
            await self.survey_models()
        raise ModelNotFound(f"model {name!r} not found; GET /v1/models lists them")

    @property
    def agents(self) -> Sequence[str]:
        """Names of the agents that the user may name."""
        return self._agents

    def find_agent(self, name: str) -> str | None:
        """Return the name if an agent has it, or None."""
        return name if name in self._agents else None

    def find_model(self, agent: str | None) -> str | None:
        """Return the model that an agent names, or None."""
        return self.session.access_agent(agent).model or None if agent else None

    def uses_memory(self, agent: str | None, model: str | None) -> bool | None:
        """Return True if a turn uses memory, or None to follow the agent's setting.

        Memory is off with a caller's key, which is no longer available when the turn is remembered.
        """
        if self.needs_caller_key(agent, model):
            return False
        if agent is not None and self.session.access_agent(agent).memory is not None:
            return None
        return self.session.configuration.memory_enabled

    @property
    def memory(self) -> MemoryHook:
        """The user's memory."""
        hook = self.session.access_memory()
        assert isinstance(hook, MemoryHook)
        return hook

    def collect_later(self) -> None:
        """Delete unneeded contents soon, in the background."""
        self._removed = True
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        while self._removed:
            self._removed = False
            # An unreadable conversation may still need contents.
            with suppress(StorageError):
                await self.archive.collect()

    def needs_caller_key(self, agent: str | None, model: str | None) -> bool:
        """Return True if the model needs the key that the request brings."""
        if not self._for_callers:
            return False
        address = model or (self.session.access_agent(agent).model if agent else "")
        row, _ = self.session.locate_model(address or self.session.choose_model()[0])
        return self.session.is_of_callers(row.name)

    async def is_busy(self, conversation: str) -> bool:
        """Return True if a run of the conversation has not ended."""
        return bool(
            await self.session.survey_runs(statuses=UNFINISHED, conversation=conversation, limit=1)
        )

    async def close(self) -> None:
        """Cancel running turns and close everything."""
        if self._collecting is not None:
            await self._collecting
        await self.indexer.close()
        await self.imports.close()
        try:
            await self.session.close()
        finally:
            await self.continuations.close()

    def _survey_known(self) -> Sequence[str]:
        present = {
            status.name
            for status in self.session.survey_providers()
            if status.present or status.credential == CALLER
        }
        aliases = self.session.configuration.aliases
        return [
            address
            for address in self.session.survey_addresses()
            if address in aliases or address.partition("/")[0] in present
        ]


def require_caller_key(name: str) -> None:
    """Raise `Rejected` if the request has no key of the caller, which the model needs."""
    if find_caller_key() is None:
        raise Rejected(
            f"{name} needs the key of your own provider account in the header X-Provider-Key",
            code="caller_key",
        )


class UserSpaces:
    """The spaces of all active users; idle ones are closed."""

    def __init__(
        self,
        configuration: Configuration,
        settings: ServerSettings,
        tracer: Tracer = Tracer(),
    ) -> None:
        """Create spaces that share the limits on provider requests."""
        self._settings = settings
        self._tracer = tracer
        self._spaces: dict[str, UserSpace] = {}
        # Opened with the first request under a budget.
        self.backend = backend = open_backend(configuration)
        self.limiters = Limiters(LIMIT_WINDOWS.find(backend))
        self._breakers = Breakers()
        self._budgets = produce_budget_store(backend)
        self._continuations = produce_continuations(backend)
        self._import_records = produce_import_records(backend)
        self._import_slots = asyncio.Semaphore(PARALLEL)
        self._runs = produce_store(backend)
        parallel = settings.parallel_runs
        limits = msgspec.structs.replace(configuration.runs, parallel=parallel)
        self._limits = limits
        self.worker = RunWorker(self._runs, None, self._open_run, limits)
        self.watch = StorageWatch(backend, self.worker)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._library: DocumentStore | None = None

    @property
    def running(self) -> int:
        """Number of running turns."""
        return sum(space.running for space in self._spaces.values())

    @contextmanager
    def enter(self, user: str) -> Iterator[UserSpace]:
        """Yield the space of a user, which stays open within the block."""
        if (timer := self._timers.pop(user, None)) is not None:
            timer.cancel()
        if user not in self._spaces:
            produce = partial(self._produce_runs, user)
            self._spaces[user] = UserSpace(
                self.backend,
                user,
                self._settings,
                self._budgets,
                self._continuations,
                produce,
                self._tracer,
                self.limiters,
                self._breakers,
                self._access_library,
                self._import_records,
                self._import_slots,
            )
        space = self._spaces[user]
        space.entered += 1
        try:
            yield space
        finally:
            space.entered -= 1
            if not space.entered and user in self._spaces:
                self._close_later(user)

    async def count_runs(self) -> Mapping[RunStatus, int]:
        """Return the number of unfinished runs of all servers, by status."""
        return await self._runs.count_unfinished() if self._runs.exists() else {}

    @property
    def ended_runs(self) -> Mapping[RunStatus, int]:
        """Number of runs that this process has ended, by status."""
        return self._runs.ended

    def start(self, end: Callable[[], object] = lambda: None) -> None:
        """Continue the runs that other servers of this home leave, now and later.

        `end` is called if this version cannot continue; see `StorageWatch`.
        """
        for places in survey_homes(self.backend.configuration):
            sweep(find_imports(places))
        self.watch.start(end)
        self.worker.resume()

    async def close(self) -> None:
        """Close all spaces; running turns are cancelled, and runs are released."""
        await self.watch.close()
        await self.worker.close()
        for timer in self._timers.values():
            timer.cancel()
        spaces, self._spaces = [*self._spaces.values()], {}
        try:
            closing = *self._closing, *(space.close() for space in spaces)
            for failure in await asyncio.gather(*closing, return_exceptions=True):
                if failure is not None:
                    raise failure
        finally:
            if self._library is not None:
                await self._library.close()
            await self.limiters.close()
            await self._budgets.close()
            await self._runs.close()
            await self.backend.close()

    def _access_library(self) -> DocumentStore:
        """Return the store with the server's collections, which all users share."""
        if self._library is None:
            # Imported only for agents that read documents.
            from vibe_llms.documents.store import produce_store as produce_document_store

            self._library = produce_document_store(
                self.backend.configuration, notify=_LOGGER.warning
            )
        return self._library

    def _produce_runs(self, user: str, host: RunHost) -> Runs:
        most = self._settings.user_turns
        return Runs(self._runs, host, self._limits, user=user, worker=self.worker, most=most)

    async def _open_run(self, record: RunRecord) -> Conversation:
        with self.enter(record.user) as space:
            return await space.session.access_runs().open(record)

    def _close_later(self, user: str) -> None:
        seconds = self._settings.idle_seconds
        self._timers[user] = asyncio.get_running_loop().call_later(seconds, self._leave, user)

    def _leave(self, user: str) -> None:
        del self._timers[user]
        space = self._spaces[user]
        if user in self.worker.users or space.indexer.busy or space.imports.busy:
            self._close_later(user)
            return
        task = asyncio.ensure_future(self._spaces.pop(user).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
