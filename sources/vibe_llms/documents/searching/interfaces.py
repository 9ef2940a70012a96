"""Interface of the search engines, built-in or third-party, and their registration.

A module registers a factory, and a row of `[search-engines]` names the module:

```toml
[search-engines.catalog]
module = "my_package.catalog"
```

The row's other keys are the engine's own. `[ensembles.web]` names the row in `search`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import SEARCH_ENGINES, Configuration
from vibe_llms.base.registries import Registry, Row
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.invocation.invokers import InvocationContext


class SearchResult(Struct, frozen=True):
    """One page that a search engine found."""

    title: str
    url: str
    snippet: str = ""


class SearchRequest(Struct, frozen=True):
    """A query for at most `limit` results; `context` is the call of the tool."""

    query: str
    limit: int
    context: InvocationContext


class SearchAnswer(Struct, frozen=True):
    """Results of a query, best first, or a `text` that already lists them.

    `notes` are sentences for the model, such as which sources of the engine did not answer.
    """

    results: tuple[SearchResult, ...] = ()
    text: str = ""
    notes: tuple[str, ...] = ()


class SearchEngine(Protocol):
    """A service that finds web pages."""

    @property
    def host(self) -> str:
        """Host that receives the queries, for the question to the user; known once it is open."""
        ...

    async def open(self) -> None:
        """Look for the key and the package, without sending anything.

        Raises a `ConfigurationError`, such as `CredentialMissing`, if something is missing.
        """
        ...

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return what a query finds; raises `SearchFailed` with the reason."""
        ...


class SearchConfiguration(Struct, frozen=True):
    """Arguments of a search engine's factory besides its name.

    `settings` are the row's own keys, unchecked. To convert them to a type, with the file and key
    in errors, use `configuration.read(Settings, settings, "search-engines", name)`.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    host: EnsembleHost = EnsembleHost()


SearchEngineFactory: TypeAlias = Callable[[str, SearchConfiguration], SearchEngine]

_REGISTRY: Registry[SearchEngineFactory] = Registry(SEARCH_ENGINES)


def register(name: str, factory: SearchEngineFactory) -> None:
    """Register a search engine's factory for the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_search_engine(row: Row, configuration: SearchConfiguration) -> SearchEngine:
    """Import a row's module and return its search engine, not yet open.

    Raises `RegistrationError` if the module or factory cannot be found, `ConfigurationError` if the
    engine does not accept the other keys of the row.
    """
    return _REGISTRY.access(row)(row.name, configuration)
