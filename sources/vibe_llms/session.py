"""The composition root: configuration, providers, clients and archive, opened and closed as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from msgspec import Struct

from vibe_llms.configuration import (
    Configuration,
    Places,
    Positive,
    Seconds,
    StreamSettings,
    load_configuration,
)
from vibe_llms.controls import Controls, read_controls
from vibe_llms.conversation import Conversation, ConversationDefaults, Tool
from vibe_llms.costs import Cost, estimate_cost
from vibe_llms.credentials import Credential, check_key
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.events import EventHandler, Notice, NoticeEvent, ignore_events
from vibe_llms.exceptions import (
    ModelNotFound,
    ProviderError,
    SessionClosed,
    VibeLlmsError,
)
from vibe_llms.invocation.approval import Approver, Gatekeeper
from vibe_llms.ledger import Ledger
from vibe_llms.messages.canisters import Canister, SupervisorCanister
from vibe_llms.messages.contents import Reference
from vibe_llms.plugins.loading import open_plugin
from vibe_llms.plugins.pins import InstallSettings, Plugin, read_plugin
from vibe_llms.prompts import Prompt, read_prompt
from vibe_llms.providers.core import access_provider, guard_row
from vibe_llms.providers.interfaces import Client, Model, Provider, ProviderConfiguration
from vibe_llms.providers.limits import Limiter
from vibe_llms.registries import Row
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Finding, Summary

PROVIDERS = "providers"
FALLBACK = "scripted/demo"
#: Surrounds the import of a module that may take so many seconds.
ImportGuard: TypeAlias = Callable[[float], AbstractContextManager[object]]


def unguarded(_: float) -> AbstractContextManager[object]:
    """An import takes as long as it takes."""
    return nullcontext()


class _RowSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that every row of a provider may have, whatever its module."""

    credential: Literal["key", "none", "package"] = "key"
    api_key_environment: str = ""
    api_key_command: tuple[str, ...] = ()
    default_model: str = ""
    models: dict[str, Any] = {}
    controls: dict[str, Any] = {}
    prices: str = ""
    install: InstallSettings | None = None
    import_seconds: Seconds = 30.0
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None


class ProviderStatus(Struct, frozen=True):
    """What is known of a row without asking its server.

    `problem` says why it cannot be used, if it cannot.
    """

    name: str
    module: str
    default_model: str
    credential: str
    present: bool
    problem: str = ""

    @property
    def optional(self) -> bool:
        """Whether it may be a server of the user's own that does not run now: it has no key."""
        return self.credential == "none"


class Session:
    """Opened by `open_session`; makes conversations and closes what they need."""

    def __init__(
        self,
        configuration: Configuration,
        archive: Archive,
        *,
        event_handler: EventHandler = ignore_events,
        keys: Mapping[str, str] | None = None,
        interactive: bool = False,
        import_guard: ImportGuard = unguarded,
        approver: Approver | None = None,
    ) -> None:
        self.configuration = configuration
        self.archive = archive
        self.event_handler = event_handler
        self._keys = {row: check_key(key, "the caller") for row, key in (keys or {}).items()}
        self._interactive = interactive
        self._import_guard = import_guard
        self.gatekeeper = Gatekeeper(approver)
        self._rows = {row.name: row for row in configuration.rows(PROVIDERS)}
        self._providers: dict[str, Provider] = {}
        self._clients: dict[str, Client] = {}
        self._limiters: dict[str, Limiter] = {}
        self._ensembles = Ensembles(configuration)
        self._conversations: WeakSet[Conversation] = WeakSet()
        self._closed = False

    async def begin(
        self,
        model: str | Model | None = None,
        *,
        supervisor: str | None = None,
        name: str = "",
        tags: Sequence[str] = (),
        history: Prompt | None = None,
        invokers: Iterable[Tool] = (),
        ensembles: Iterable[str | Ensemble] = (),
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        save: bool = True,
    ) -> Conversation:
        """A new conversation; without a model, with the one that `choose_model` chooses.

        `supervisor` is the system text, `history` what shall count as said already. `ensembles` are
        rows of `[ensembles]` by their names, or ensembles. It is stored with its first turn, or
        never if `save` is off.
        """
        self._require_open()
        chosen = await self._choose(model, event_handler)
        opened = await self._open_ensembles(ensembles, event_handler)
        instructions = SupervisorCanister.from_text(supervisor) if supervisor else None
        canisters = [*read_prompt(instructions), *read_prompt(history)]
        ledger = Ledger.begin(
            self.archive if save else None,
            name=name,
            model=f"{chosen.provider}/{chosen.name}",
            tags=tags,
            canisters=canisters,
        )
        return self._produce_conversation(ledger, chosen, invokers, opened, controls, event_handler)

    async def resume(
        self,
        conversation: str,
        *,
        model: str | Model | None = None,
        invokers: Iterable[Tool] = (),
        ensembles: Iterable[str | Ensemble] = (),
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
    ) -> Conversation:
        """A stored conversation, by its identity, a prefix of at least 4 characters, or its name.

        It goes on with the model that it had, unless another is given.
        """
        self._require_open()
        identity = await self.archive.resolve(conversation)
        ledger, notices = await Ledger.restore(self.archive, identity)
        handler = event_handler or self.event_handler
        for notice in notices:
            handler(NoticeEvent(notice=notice, conversation=identity))
        chosen = await self._choose(model or ledger.details.model or None, event_handler)
        address = f"{chosen.provider}/{chosen.name}"
        if model is not None and address != ledger.details.model:
            await ledger.revise(model=address)
        opened = await self._open_ensembles(ensembles, event_handler, identity)
        return self._produce_conversation(ledger, chosen, invokers, opened, controls, event_handler)

    async def access_model(self, name: str) -> Model:
        """The model of an address `provider/model`, or of an alias; `provider:model` serves too.

        `ModelNotFound` where no row of the configuration fits.
        """
        self._require_open()
        row, model = self.locate_model(name)
        client = self._access_client(row)
        with guard_row(row):
            return await client.access_model(model)

    def locate_model(self, name: str) -> tuple[Row, str]:
        """The row of an address, and the model's own name."""
        address = self.configuration.aliases.get(name, name)
        for row in sorted(self._rows, key=len, reverse=True):
            for separator in "/:":
                if address.startswith(row + separator):
                    return self._rows[row], address[len(row) + 1 :]
        if address in self._rows and (default := self._read_row(self._rows[address]).default_model):
            return self._rows[address], default
        known = ", ".join(self._rows)
        hint = f" (the alias {name!r} stands for it)" if address != name else ""
        raise ModelNotFound(
            f"{address!r}{hint} names no provider; write provider/model with one of {known}, "
            "or add a row to config.toml: vibe-llms config path"
        )

    def choose_model(self) -> tuple[str, str]:
        """The address of the model to use where none is given, and what there is to say of it.

        It is the configured default, else the default of the first row whose key is set, else the
        scripted one.
        """
        if self.configuration.default_model:
            return self.configuration.default_model, ""
        for row in self._rows.values():
            settings = self._read_row(row)
            credential = self._produce_credential(row, settings)
            if credential.kind == "key" and settings.default_model and credential.present():
                return f"{row.name}/{settings.default_model}", ""
        return FALLBACK, (
            "no key is set, so scripted/demo answers; choose a model with -m, set a key with "
            "`vibe-llms keys set anthropic`, or set default-model in config.toml"
        )

    async def survey_models(self, provider: str | None = None) -> Sequence[Model]:
        """The models that one provider offers, or all that can be used; asks their servers.

        Of all, those that need no key are passed over where no such server answers.
        """
        self._require_open()
        if provider is not None:
            if provider not in self._rows:
                raise ModelNotFound(
                    f"there is no provider {provider!r}; there are {', '.join(self._rows)}"
                )
            return await self._survey_models(self._rows[provider])
        models: list[Model] = []
        for status in self.survey_providers():
            if not status.present or status.problem:
                continue
            try:
                models += await self._survey_models(self._rows[status.name])
            except ProviderError:
                if not status.optional:
                    raise
        return models

    def survey_addresses(self) -> Sequence[str]:
        """The names of models that are known without loading a provider: aliases, and defaults."""
        rows = [(name, row.settings.get("default-model")) for name, row in self._rows.items()]
        return [*self.configuration.aliases, *(f"{name}/{model}" for name, model in rows if model)]

    def survey_providers(self) -> Sequence[ProviderStatus]:
        """The rows of the configuration, whether they load and whether a key is there."""
        statuses: list[ProviderStatus] = []
        for row in self._rows.values():
            problem, credential, present, default = "", "", False, ""
            try:
                settings = self._read_row(row)
                credential, default = settings.credential, settings.default_model
                present = self._produce_credential(row, settings).present()
                self._access_provider(row)
            except VibeLlmsError as error:
                problem = str(error)
            statuses.append(
                ProviderStatus(row.name, row.module, default, credential, present, problem)
            )
        return statuses

    def estimate_cost(self, canisters: Iterable[Canister]) -> Cost:
        """What the replies among some canisters cost, by the price list that each row names."""
        return estimate_cost(canisters, self._access_list)

    async def survey(self, *, limit: int | None = None, tag: str = "") -> Sequence[Summary]:
        """The stored conversations, the most recent first."""
        return await self.archive.survey(limit=limit, tag=tag)

    async def search(self, text: str, *, limit: int = 20) -> Sequence[Finding]:
        """Stored messages that hold all words of a text, the best first."""
        return await self.archive.search(text, limit=limit)

    async def load(self, reference: Reference) -> bytes:
        """The bytes of a reference that a content holds."""
        return await self.archive.load(reference)

    async def remove(self, conversation: str) -> None:
        """Give a stored conversation up, by its identity, a prefix of it, or its name."""
        await self.archive.remove(await self.archive.resolve(conversation))

    async def close(self) -> None:
        """Cancel running turns and close all connections; safe to call twice."""
        self._closed = True
        clients, self._clients = self._clients, {}
        async with AsyncExitStack() as stack:
            # Whatever fails or is cancelled on the way, the rest is closed too.
            stack.push_async_callback(self.archive.close)
            stack.push_async_callback(self._ensembles.close)
            for client in clients.values():
                stack.push_async_callback(client.close)
            async with asyncio.TaskGroup() as group:
                for conversation in list(self._conversations):
                    group.create_task(conversation.close())

    def _produce_conversation(
        self,
        ledger: Ledger,
        model: Model,
        invokers: Iterable[Tool],
        ensembles: Sequence[Ensemble],
        controls: Controls | None,
        event_handler: EventHandler | None,
    ) -> Conversation:
        defaults = ConversationDefaults(
            event_handler=self.event_handler,
            access_model=self.access_model,
            access_controls=self._configured_controls,
            access_limiter=self._access_limiter,
            enter=self._enter,
            tools=self.configuration.tools,
            gatekeeper=self.gatekeeper,
            open_ensembles=lambda named: self._open_ensembles(named, event_handler),
            survey_invokers=self._ensembles.survey_invokers,
        )
        return Conversation(
            ledger,
            model,
            defaults,
            invokers=invokers,
            ensembles=ensembles,
            controls=controls,
            event_handler=event_handler,
        )

    async def _open_ensembles(
        self,
        named: Iterable[str | Ensemble],
        event_handler: EventHandler | None,
        conversation: str = "",
    ) -> Sequence[Ensemble]:
        handler = event_handler or self.event_handler

        def tell(text: str) -> None:
            handler(NoticeEvent(notice=Notice("ensemble", text), conversation=conversation))

        return await self._ensembles.open(named, tell)

    def _enter(self, conversation: Conversation) -> None:
        self._require_open()
        self._conversations.add(conversation)

    def _configured_controls(self, model: Model) -> Controls:
        """The controls that the configuration has for all models, and for those of this row."""
        row = self._rows.get(model.provider)
        own = {} if row is None else self._read_row(row).controls
        return read_controls({**self.configuration.controls, **own})

    async def _choose(self, model: str | Model | None, event_handler: EventHandler | None) -> Model:
        if model is None:
            model, note = self.choose_model()
            if note:
                handler = event_handler or self.event_handler
                handler(NoticeEvent(notice=Notice("model", note)))
        return await self.access_model(model) if isinstance(model, str) else model

    def _access_client(self, row: Row) -> Client:
        self._require_open()
        if row.name not in self._clients:
            provider = self._access_provider(row)
            with guard_row(row), self._import_guard(self._read_row(row).import_seconds):
                self._clients[row.name] = provider.produce_client()
        return self._clients[row.name]

    async def _survey_models(self, row: Row) -> Sequence[Model]:
        client = self._access_client(row)
        with guard_row(row):
            return list(await client.survey_models())

    def _access_provider(self, row: Row) -> Provider:
        if row.name not in self._providers:
            settings = self._read_row(row)
            stream = {**_kebab(self.configuration.stream), **_pick(row.settings, StreamSettings)}
            configuration = ProviderConfiguration(
                configuration=self.configuration,
                settings={
                    key: value
                    for key, value in row.settings.items()
                    if key not in _COMMON and key not in stream
                },
                stream=self.configuration.read(StreamSettings, stream, PROVIDERS, row.name),
                credential=self._produce_credential(row, settings),
                interactive=self._interactive,
            )
            if settings.install is not None:
                open_plugin(read_plugin(self.configuration, row, settings.install))
            with guard_row(row), self._import_guard(settings.import_seconds):
                provider = access_provider(row, configuration, self.event_handler)
            self._providers[row.name] = provider
        return self._providers[row.name]

    def _access_limiter(self, model: Model) -> Limiter | None:
        """The limiter that all conversations with models of this row share, if it has limits."""
        name = model.provider
        if name not in self._limiters:
            if name not in self._rows:
                return None
            settings = self._read_row(self._rows[name])
            requests, tokens = settings.requests_per_minute, settings.tokens_per_minute
            if requests is None and tokens is None:
                return None
            self._limiters[name] = Limiter(name, requests=requests, tokens=tokens)
        return self._limiters[name]

    def _access_list(self, row: str) -> str:
        return self._read_row(self._rows[row]).prices if row in self._rows else ""

    def _read_row(self, row: Row) -> _RowSettings:
        return _read_row(self.configuration, row)

    def _produce_credential(self, row: Row, settings: _RowSettings) -> Credential:
        return Credential(
            row.name,
            settings.credential,
            settings.api_key_environment,
            settings.api_key_command,
            self.configuration.places.keys_file,
            self._keys.get(row.name),
        )

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosed("the session is closed; open another one")


@asynccontextmanager
async def open_session(
    *,
    event_handler: EventHandler = ignore_events,
    home: str | Path | None = None,
    configuration: Configuration | Mapping[str, Any] | None = None,
    archive: Archive | None = None,
    keys: Mapping[str, str] | None = None,
    interactive: bool = False,
    import_guard: ImportGuard = unguarded,
    approver: Approver | None = None,
) -> AsyncIterator[Session]:
    """A session, closed with the block::

        async with open_session() as session:
            conversation = await session.begin("scripted/demo")

    `home` puts configuration and archive under one folder, as `VIBE_LLMS_HOME` does.
    `configuration` is laid over the user's own, or replaces it if it is a `Configuration`. `keys`
    are keys by rows, used before any other. `interactive` tells providers that a person watches.
    `import_guard` surrounds the import of a provider's module, given the `import-seconds` of its
    row: by itself an import is not bounded, as none is in Python; the command bounds it.
    `approver` decides on calls of tools that ask before they run; without one they do not run.
    """
    if not isinstance(configuration, Configuration):
        places = None if home is None else _places_under(Path(home))
        configuration = load_configuration(places, overrides=configuration)
    session = Session(
        configuration,
        archive or DirectoryArchive(configuration.places.data, configuration.storage),
        event_handler=event_handler,
        keys=keys,
        interactive=interactive,
        import_guard=import_guard,
        approver=approver,
    )
    try:
        yield session
    finally:
        await session.close()


def survey_plugins(configuration: Configuration) -> list[Plugin]:
    """The packages that rows install on demand, whether they are installed or not."""
    return [
        read_plugin(configuration, row, install)
        for row in configuration.rows(PROVIDERS)
        if (install := _read_row(configuration, row).install) is not None
    ]


def _read_row(configuration: Configuration, row: Row) -> _RowSettings:
    values = _pick(row.settings, _RowSettings)
    return configuration.read(_RowSettings, values, PROVIDERS, row.name)


def _places_under(home: Path) -> Places:
    folder = home.expanduser().absolute()
    return Places(folder, folder, folder)


def _kebab(settings: StreamSettings) -> dict[str, Any]:
    names = zip(settings.__struct_encode_fields__, settings.__struct_fields__, strict=True)
    return {encoded: getattr(settings, name) for encoded, name in names}


def _pick(values: Mapping[str, Any], cls: type[Struct]) -> dict[str, Any]:
    return {name: values[name] for name in cls.__struct_encode_fields__ if name in values}


_COMMON = frozenset(_RowSettings.__struct_encode_fields__)
