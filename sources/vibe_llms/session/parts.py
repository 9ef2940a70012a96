"""The parts that a session is made of, as one value."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from vibe_llms.base.configuration import LOCAL, Configuration
from vibe_llms.base.keys import KeyVault
from vibe_llms.conversations.tools import Tool
from vibe_llms.invocation.approval import Approver
from vibe_llms.invocation.questions import Elicitor
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.breakers import Breakers
from vibe_llms.providers.limits import Limiters, Window
from vibe_llms.providers.provider_pool import ImportGuard, unguarded
from vibe_llms.storage.backends import Backend, StoreKind
from vibe_llms.storage.interfaces import Archive

if TYPE_CHECKING:
    from vibe_llms.documents.store import DocumentStore
    from vibe_llms.runs.accounts import BudgetStore
    from vibe_llms.runs.core import RunHost, Runs

#: Shared counts of requests to providers by several processes, if the backend supports them.
LIMIT_WINDOWS: StoreKind[Window] = StoreKind("limits")


@LIMIT_WINDOWS.register("postgres")
def _produce_postgres_window(backend: Backend) -> Window:
    from vibe_llms.storage.postgres.limits import produce_store

    return produce_store(backend)


class SessionParts(Struct, frozen=True, kw_only=True):
    """Parts of a session; `open_session` makes them from its keyword arguments."""

    configuration: Configuration
    archive: Archive
    event_handler: EventHandler = ignore_events
    #: API keys by row; they take precedence over all others.
    keys: Mapping[str, str] | None = None
    #: True if a person is present.
    interactive: bool = False
    import_guard: ImportGuard = unguarded
    approver: Approver | None = None
    elicitor: Elicitor | None = None
    tracer: Tracer | None = None
    #: Tools of turns begun with `start`, which another process finds by their names.
    invokers: Iterable[Tool] = ()
    produce_runs: Callable[[RunHost], Runs] | None = None
    budget_store: BudgetStore | None = None
    #: Stores runs, budgets and memory; None for the backend of the configuration.
    backend: Backend | None = None
    #: True if closing the session closes the backend too.
    owns_backend: bool = False
    user: str = LOCAL
    vault: KeyVault | None = None
    #: True if others may have made up the replies in given histories.
    claims: bool = False
    #: True if a turn stores its conversation again after it was deleted, instead of failing.
    revive: bool = True
    #: False if `*` among an agent's optional ensembles matches nothing.
    own_rows: bool = True
    #: Limiters shared with other sessions.
    limiters: Limiters | None = None
    #: Breakers shared with other sessions.
    breakers: Breakers | None = None
    #: Returns the store with the collections of documents, if that is not the user's own.
    access_library: Callable[[], DocumentStore] | None = None
    #: Names of the collections in that store that the user may search; None for all.
    offered_collections: Container[str] | None = None
