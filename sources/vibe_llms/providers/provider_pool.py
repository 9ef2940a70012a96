"""Providers of a session: the rows of `[providers]`, their clients, models, and limiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import Configuration, Positive, Seconds, StreamSettings
from vibe_llms.base.credentials import Credential, Secret, check_key
from vibe_llms.base.exceptions import ModelNotFound, ProviderError, VibeLlmsError
from vibe_llms.base.redaction import redact
from vibe_llms.base.registries import Row
from vibe_llms.messages.controls import Controls, check_controls, read_controls
from vibe_llms.messages.events import EventHandler
from vibe_llms.plugins.pins import InstallSettings, Plugin, read_plugin
from vibe_llms.providers.caller_keys import CALLER, access_caller_key
from vibe_llms.providers.interfaces import Client, Model, Provider, ProviderConfiguration
from vibe_llms.providers.limits import Limiter, Limiters
from vibe_llms.providers.matching import list_some, match_model, suggest_models
from vibe_llms.providers.registry import access_provider, guard_row

if TYPE_CHECKING:
    from vibe_llms.providers.local_servers import LocalSearch

PROVIDERS = "providers"
FALLBACK = "scripted/demo"
# Seconds for which servers on this machine are asked for an unknown model.
_SERVED_SECONDS = 1.0
# Minimum similarity of a provider's name that is suggested.
_SIMILAR = 0.7
#: Context around the import of a module, which may take this many seconds.
ImportGuard: TypeAlias = Callable[[float], AbstractContextManager[object]]


def unguarded(_: float) -> AbstractContextManager[object]:
    """Return a context that sets no time limit for imports."""
    return nullcontext()


class _RowSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys that every row of a provider may have."""

    credential: Literal["key", "none", "package", "caller"] = "key"
    api_key_environment: str | tuple[str, ...] = ""
    api_key_command: tuple[str, ...] = ()
    default_model: str = ""
    known_models: tuple[str, ...] = ()
    models: dict[str, Any] = {}
    controls: dict[str, Any] = {}
    prices: str = ""
    install: InstallSettings | None = None
    import_seconds: Seconds = 30.0
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    fallback: tuple[str, ...] = ()


class ProviderStatus(Struct, frozen=True):
    """State of a row that is known without asking its server.

    `problem` says why it cannot be used; empty if it can. `address` is where requests are sent, if
    known, and `variable` the environment variable that it is from.
    """

    name: str
    module: str
    default_model: str
    credential: str
    present: bool
    problem: str = ""
    address: str = ""
    variable: str = ""

    @property
    def optional(self) -> bool:
        """True if the row has no key, so that it may be the user's own server, not running now."""
        return self.credential == "none"


class Providers:
    """Providers of the rows of `[providers]`, each loaded when it is first needed, and kept."""

    def __init__(
        self,
        configuration: Configuration,
        event_handler: EventHandler,
        *,
        keys: Mapping[str, str] | None = None,
        interactive: bool = False,
        import_guard: ImportGuard = unguarded,
        limiters: Limiters | None = None,
    ) -> None:
        """Create the pool; `limiters` may be shared with other pools."""
        check_controls(configuration)
        self._configuration = configuration
        self._event_handler = event_handler
        self._keys = {row: check_key(key, "the caller") for row, key in (keys or {}).items()}
        self._interactive = interactive
        self._import_guard = import_guard
        self._rows = {row.name: row for row in configuration.rows(PROVIDERS)}
        self._longest = max(map(len, self._rows), default=0)
        self._settings: dict[str, _RowSettings] = {}
        self._providers: dict[str, Provider] = {}
        self._clients: dict[str, Client] = {}
        self._limiters = limiters or Limiters()
        self._search: LocalSearch | None = None

    async def access_model(self, name: str) -> Model:
        """Return the model of an address, an alias (see `locate`), or a server that runs here.

        If no other name fits, servers that need no key are asked, for at most one second.
        """
        try:
            row, model = self.locate(name)
        except ModelNotFound:
            served = await self._locate_served(name)
            if served is None:
                raise
            row, model = served
        client = self.access_client(row)
        with guard_row(row):
            return await client.access_model(model)

    def access_client(self, row: Row) -> Client:
        """Return the client of a row, which is closed with the pool or its caller's request."""
        if self.is_of_callers(row.name):

            def produce(secret: Secret) -> Client:
                with guard_row(row), self._import_guard(self._read_row(row).import_seconds):
                    return self._produce_provider(row, secret).produce_client()

            return access_caller_key(row.name).access_client(row.name, produce)
        if row.name not in self._clients:
            provider = self._access_provider(row)
            with guard_row(row), self._import_guard(self._read_row(row).import_seconds):
                self._clients[row.name] = provider.produce_client()
        return self._clients[row.name]

    def is_of_callers(self, row: str) -> bool:
        """Return True if a row is used with the keys of a server's callers."""
        return row in self._rows and self._rows[row].settings.get("credential") == CALLER

    def locate(self, name: str) -> tuple[Row, str]:
        """Return the row and the model's own name for an address `provider/model` or an alias.

        A known model's name, or a unique part of it, also works. Raise `ModelNotFound` otherwise.
        """
        address = self._configuration.aliases.get(name, name)
        if found := self._split(address):
            return found
        if address in self._rows and (default := self._read_row(self._rows[address]).default_model):
            return self._rows[address], default
        known = self._survey_known()
        if match := match_model(address, known):
            return self._rows[match[0]], match[1]
        hint = f" (from the alias {name!r})" if address != name else ""
        raise ModelNotFound(self._explain(address, known, hint))

    def _split(self, address: str) -> tuple[Row, str] | None:
        # The longest name of a row that the address begins with.
        for place in range(min(len(address) - 1, self._longest), 0, -1):
            if address[place] in "/:" and (row := self._rows.get(address[:place])) is not None:
                return row, address[place + 1 :]
        return None

    def _explain(self, address: str, known: Sequence[tuple[str, str]], hint: str) -> str:
        if not address:
            return "no model is given; write provider/model"
        text = f"model {address!r}{hint} not found"
        if suggested := suggest_models(address, known):
            return f"{text}; did you mean {list_some(suggested)}? See: vibe-llms models"
        row, separator, _ = address.partition("/")
        if not separator:
            return f"{text}; write provider/model, see: vibe-llms models"
        return f"{address!r}{hint}: {self._explain_provider(row)}"

    def _explain_provider(self, name: str) -> str:
        from difflib import get_close_matches

        close = get_close_matches(name, self._rows, n=1, cutoff=_SIMILAR)
        meant = f"; did you mean {close[0]!r}? See: " if close else "; see: "
        return f"provider {name!r} not found{meant}vibe-llms providers"

    def _survey_known(self) -> Sequence[tuple[str, str]]:
        """Return the rows and models that are known without asking, usable ones first."""
        found: list[tuple[bool, str, str]] = []
        for row in self._rows.values():
            settings = self._read_row(row)
            models = dict.fromkeys((settings.default_model, *settings.known_models))
            if any(models):
                present = self._produce_credential(row, settings).present()
                found += [(not present, row.name, model) for model in models if model]
        return [(row, model) for _, row, model in sorted(found, key=lambda one: one[0])]

    async def _locate_served(self, name: str) -> tuple[Row, str] | None:
        """Find a model of this name on the user's own servers."""
        if not name or "/" in name:
            return None
        known: list[tuple[str, str]] = []

        async def ask(row: Row) -> None:
            with suppress(VibeLlmsError):
                known.extend((row.name, model.name) for model in await self._survey_models(row))

        rows = [row for row in self._rows.values() if self._read_row(row).credential == "none"]
        with suppress(TimeoutError):
            async with asyncio.timeout(_SERVED_SECONDS), asyncio.TaskGroup() as group:
                for row in rows:
                    group.create_task(ask(row))
        found = match_model(name, known)
        return None if found is None else (self._rows[found[0]], found[1])

    def choose(self) -> tuple[str, str]:
        """Return the address of the default model and a notice; see `Session.choose_model`."""
        if self._configuration.default_model:
            return self._configuration.default_model, ""
        for row in self._rows.values():
            settings = self._read_row(row)
            credential = self._produce_credential(row, settings)
            if credential.kind == "key" and settings.default_model and credential.present():
                return f"{row.name}/{settings.default_model}", ""
        return FALLBACK, (
            "no key is set, so scripted/demo answers; choose a model with -m, set a key with "
            "`vibe-llms keys set anthropic`, or set default-model in config.toml"
        )

    async def find(self) -> tuple[str, str]:
        """Return what `choose` does, or a model of a local server; see `Session.find_model`."""
        chosen = self.choose()
        configuration = self._configuration
        if not chosen[1] or not configuration.local_servers or configuration.offline:
            return chosen
        # Programs with a key or a default model do not import this.
        from vibe_llms.providers.local_servers import LocalSearch

        if self._search is None:
            self._search = LocalSearch(self._survey_local)
        return await self._search.find() or chosen

    def _survey_local(self) -> Iterator[tuple[str, str, Client]]:
        """Yield the names, addresses and clients of rows that need no key."""
        for row in self._rows.values():
            # A row that does not load breaks only itself.
            with suppress(VibeLlmsError):
                if self._read_row(row).credential == "none":
                    address = getattr(self._access_provider(row), "address", None)
                    if address is not None:
                        yield row.name, address.url, self.access_client(row)

    async def survey_models(self, provider: str | None = None) -> Sequence[Model]:
        """Ask servers for the models of one provider, or of all that can be used."""
        if provider is not None:
            if provider not in self._rows:
                raise ModelNotFound(self._explain_provider(provider))
            return await self._survey_models(self._rows[provider])
        models: list[Model] = []
        for status in self.survey():
            if not status.present or status.problem:
                continue
            try:
                models += await self._survey_models(self._rows[status.name])
            except ProviderError:
                if not status.optional:
                    raise
        return models

    def survey_addresses(self, *, usable: bool = False) -> Sequence[str]:
        """Return the names of models that are known without loading a provider, aliases first.

        With `usable`, leave out the models of rows whose key is not set.
        """
        addresses: list[str] = []
        for name, row in self._rows.items():
            settings = self._read_row(row)
            models = dict.fromkeys((settings.default_model, *settings.known_models))
            if usable and any(models) and not self._produce_credential(row, settings).present():
                continue
            addresses += [f"{name}/{model}" for model in models if model]
        return [*self._configuration.aliases, *addresses]

    def check(self, name: str) -> None:
        """Raise the errors of a row; import its module, but ask no server."""
        row = self._rows[name]
        self._produce_credential(row, self._read_row(row)).present()
        self._access_provider(row)

    def survey(self) -> Sequence[ProviderStatus]:
        """Return the state of each row: whether it loads, and whether its key is set."""
        statuses: list[ProviderStatus] = []
        for row in self._rows.values():
            problem, credential, present, default = "", "", False, ""
            address = None
            try:
                settings = self._read_row(row)
                credential, default = settings.credential, settings.default_model
                present = self._produce_credential(row, settings).present()
                # Providers of other modules need not have an address.
                address = getattr(self._access_provider(row), "address", None)
            except VibeLlmsError as error:
                problem = str(error)
            statuses.append(
                ProviderStatus(
                    row.name,
                    row.module,
                    default,
                    credential,
                    present,
                    problem,
                    *((redact(address.url), *address.variables[:1]) if address else ()),
                )
            )
        return statuses

    def access_controls(self, model: Model) -> Controls:
        """Return the configured controls for all models, and for those of this row."""
        row = self._rows.get(model.provider)
        own = {} if row is None else self._read_row(row).controls
        return read_controls({**self._configuration.controls, **own})

    def access_limiter(self, model: Model) -> Limiter | None:
        """Return the limiter that all conversations with this row share, if it has limits."""
        return self.access_row_limiter(model.provider)

    def access_row_limiter(self, name: str) -> Limiter | None:
        """Return the limiter of a row, if it has limits; rows with callers' keys have none."""
        if name not in self._rows or self.is_of_callers(name):
            return None
        settings = self._read_row(self._rows[name])
        requests, tokens = settings.requests_per_minute, settings.tokens_per_minute
        return self._limiters.access(name, requests, tokens)

    def access_fallback(self, model: Model) -> Sequence[str]:
        """Return the addresses of the models that answer if a model of this row fails."""
        row = self._rows.get(model.provider)
        return () if row is None else self._read_row(row).fallback

    def access_prices(self, row: str) -> str:
        """Return the name of a row's price list; empty if it names none."""
        return self._read_row(self._rows[row]).prices if row in self._rows else ""

    async def close(self) -> None:
        """Close all clients, even if closing one fails."""
        clients, self._clients = self._clients, {}
        async with AsyncExitStack() as stack:
            for client in clients.values():
                stack.push_async_callback(client.close)

    async def _survey_models(self, row: Row) -> Sequence[Model]:
        client = self.access_client(row)
        with guard_row(row):
            return list(await client.survey_models())

    def _access_provider(self, row: Row) -> Provider:
        if row.name not in self._providers:
            self._providers[row.name] = self._produce_provider(row)
        return self._providers[row.name]

    def _produce_provider(self, row: Row, secret: Secret | None = None) -> Provider:
        """Create the provider of a row, with the key of a caller if there is one."""
        settings = self._read_row(row)
        stream = {**_kebab(self._configuration.stream), **_pick(row.settings, StreamSettings)}
        credential = self._produce_credential(row, settings)
        if secret is not None:
            credential = Credential(row.name, given=secret)
        configuration = ProviderConfiguration(
            configuration=self._configuration,
            settings={
                key: value
                for key, value in row.settings.items()
                if key not in _COMMON and key not in stream
            },
            stream=self._configuration.read(StreamSettings, stream, PROVIDERS, row.name),
            credential=credential,
            interactive=self._interactive,
        )
        if settings.install is not None:
            from vibe_llms.plugins.loading import open_plugin

            open_plugin(read_plugin(self._configuration, row, settings.install))
        with guard_row(row), self._import_guard(settings.import_seconds):
            return access_provider(row, configuration, self._event_handler)

    def _read_row(self, row: Row) -> _RowSettings:
        if row.name not in self._settings:
            self._settings[row.name] = _read_row(self._configuration, row)
        return self._settings[row.name]

    def _produce_credential(self, row: Row, settings: _RowSettings) -> Credential:
        return Credential(
            row.name,
            settings.credential,
            settings.api_key_environment,
            settings.api_key_command,
            self._configuration.places.keys_file,
            self._keys.get(row.name),
        )


def survey_plugins(configuration: Configuration) -> list[Plugin]:
    """Return the packages that rows install on demand, installed or not."""
    return [
        read_plugin(configuration, row, install)
        for row in configuration.rows(PROVIDERS)
        if (install := _read_row(configuration, row).install) is not None
    ]


def _read_row(configuration: Configuration, row: Row) -> _RowSettings:
    values = _pick(row.settings, _RowSettings)
    return configuration.read(_RowSettings, values, PROVIDERS, row.name)


def _kebab(settings: StreamSettings) -> dict[str, Any]:
    names = zip(settings.__struct_encode_fields__, settings.__struct_fields__, strict=True)
    return {encoded: getattr(settings, name) for encoded, name in names}


def _pick(values: Mapping[str, Any], cls: type[Struct]) -> dict[str, Any]:
    return {name: values[name] for name in cls.__struct_encode_fields__ if name in values}


_COMMON = frozenset(_RowSettings.__struct_encode_fields__)
