"""Providers that speak HTTP: a row, its connection, and its models.

A module of a provider derives a model and registers it. It says its path, how a conversation is
encoded, what translates the reply, and its errors; all else is here::

    class ShoutModel(HttpModel[ShoutSettings]):
        module = __name__
        path = "/shout"
        assimilator = ShoutAssimilator
        errors = ErrorMap({404: ModelUnavailable})

        def encode(self, given): ...


    register("shout", HttpProvider.of(ShoutModel, ShoutSettings))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

import msgspec
from msgspec import Struct

from vibe_llms.configuration import StreamSettings, fill_variables, merge
from vibe_llms.controls import Controls
from vibe_llms.credentials import get_logger
from vibe_llms.events import EventHandler, Notice, NoticeEvent
from vibe_llms.exceptions import (
    ConfigurationError,
    ModelNotFound,
    ProviderError,
    RegistrationError,
    ReplyMalformed,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister
from vibe_llms.messages.contents import MediaContent
from vibe_llms.providers.addresses import Address, find_address, find_ignored
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.attributes import (
    ModelAttributes,
    find_problem,
    load_attributes,
    settle_controls,
)
from vibe_llms.providers.conversions import Conversion, check_contents, name_content
from vibe_llms.providers.http_errors import ErrorMap
from vibe_llms.providers.http_transport import produce_http_transport, send_bearer
from vibe_llms.providers.interfaces import (
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.limits import LimiterSlot
from vibe_llms.providers.pieces import encode_json, load_texts
from vibe_llms.providers.requests import Request, apply_controls, fit_request
from vibe_llms.providers.round_trip import JSON_HEADERS, RoundTrip, fetch, hold
from vibe_llms.providers.row_models import RowClient, RowModel
from vibe_llms.providers.sdk_transport import OfficialTransport
from vibe_llms.providers.spending import access_spending, bound_media, reserve_output
from vibe_llms.providers.tokenizers import estimate_request, read_count
from vibe_llms.providers.tool_names import assimilate_names
from vibe_llms.providers.transport import Outgoing, Transport
from vibe_llms.redaction import quote

_LOGGER = get_logger("vibe_llms.providers")


class HttpSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row, besides those that every row has; a provider adds its own.

    `${NAME}` and `${NAME:-else}` in any text of them are environment variables.
    """

    base_url: str


T = TypeVar("T")
S = TypeVar("S", bound=HttpSettings)
S_co = TypeVar("S_co", bound=HttpSettings, covariant=True)


class Connection(RowClient, Protocol[S_co]):
    """What a model of a server needs of the client that made it."""

    @property
    def settings(self) -> S_co:
        """The keys of the row."""
        ...

    @property
    def transport(self) -> Transport:
        """What sends requests."""
        ...

    async def fetch(self, outgoing: Outgoing, errors: ErrorMap, *, model: str = "") -> bytes:
        """The body of an answer that is no reply."""
        ...


class ModelInput(Struct, frozen=True):
    """What a request is made of: what was said, the tools on offer, and the controls to send.

    `options` are the controls that are set, by their names on the wire.
    """

    said: Sequence[Conversion]
    invokers: Sequence[Invoker]
    controls: Controls
    streaming: bool
    options: Mapping[str, Any]


class HttpModel(RowModel[Connection[S]], Generic[S]):
    """A model of a server.

    `path` is where conversations are posted, `assimilator` translates a reply, `errors` are the
    errors of the interface. `attributes_files` are what is
    known of its models: names of shipped files, or paths. `headers` go with every request.

    `controls` are the names on the wire of the controls that are sent; others are refused, or left
    out with a notice where they are configured defaults. With `None` the attributes alone decide.

    `models_path` is where the server lists its models, for `read_models`. `count_path` is where it
    counts tokens, of the members `counted`; without one they are estimated. `package` is the
    transport of rows with `credential = "package"`; without one these send a key if there is one.
    """

    path: ClassVar[str]
    assimilator: ClassVar[type[StreamAssimilator]]
    errors: ClassVar[ErrorMap] = ErrorMap()
    attributes_files: ClassVar[Sequence[str | Path]] = ()
    controls: ClassVar[Mapping[str, str] | None] = {}
    models_path: ClassVar[str] = ""
    count_path: ClassVar[str] = ""
    counted: ClassVar[Sequence[str]] = ()
    package: ClassVar[type[OfficialTransport] | None] = None

    def __init__(self, client: Connection[S], name: str, attributes: ModelAttributes) -> None:
        super().__init__(client, name)
        self.attributes = attributes
        taken = attributes.controls
        self.caps_output = taken is None or "output-tokens" in taken

    @property
    def settings(self) -> S:
        """The keys of the row."""
        return self.client.settings

    # What a provider says of itself.

    @classmethod
    def headers(cls, settings: S) -> Mapping[str, str]:
        """The headers of every request, besides those of `authorize`."""
        del settings
        return {}

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """The headers that hold the key of the row: `Authorization: Bearer KEY`."""
        return send_bearer(key)

    @classmethod
    def read_address(cls, text: str) -> str:
        """The address that an environment variable in `base-url` means."""
        return text

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """The models in a list, with what it says of them; `ValueError` where it is none.

        What it says are attributes, named as in TOML: `{"loud": {"context-tokens": 1000}}`.
        """
        raise NotImplementedError

    def unsupported(self, content: MediaContent) -> str:
        """Why the model cannot take a content, in words; empty where it can."""
        kind = str(content.__struct_config__.tag)
        taken = self.attributes.accept(kind, content.mimetype)
        return "" if taken else name_content(content)

    def check_controls(self, controls: Controls) -> None:
        """`ControlInvalid` for what the attributes of the model do not refuse already."""

    def encode(self, given: ModelInput) -> Mapping[str, Any]:
        """The members of a request.

        A conversation that grows long is better encoded once: see `assemble`.
        """
        raise NotImplementedError

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """The request of a round trip; by itself, all of it encoded anew."""
        for canister in canisters:
            if canister.identity in context.fresh:
                self.check_canister(canister)
        settled, extras = apply_controls(self, controls, context, self._settle)
        texts = await load_texts(canisters, context.load)
        said = [Conversion(canister, self, self.module, texts) for canister in canisters]
        names = self.controls or {}
        options = {names[key]: value for key, value in settled.given().items() if key in names}
        given = ModelInput(said, invokers, settled, context.streaming, options)
        members = self.encode(given)
        for conversion in said:
            for notice in conversion.notices:
                context.notify(notice)
        body = encode_json(merge(members, extras))[:-1]
        return Request(fit_request([body], self, context), {}, context.load)

    # What follows from it.

    def produce_cache(self) -> object:
        """A fresh cache of encoded history; there is none where all is encoded anew."""
        return None

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take, or what is missing, before anything is kept."""
        self.client.transport.prepare()
        for canister in canisters:
            self.check_canister(canister)
        settled, _ = settle_controls(controls, Controls(), self.attributes, self.name)
        self.check_controls(settled)

    def check_canister(self, canister: Canister) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""
        check_contents(canister, self, self.unsupported)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip; see `vibe_llms.providers.interfaces.Model`."""
        request = await self.assemble(canisters, invokers, controls, context)
        if (spending := access_spending()) is not None:
            size = request.text_size + bound_media(canisters, self)
            controls = await reserve_output(spending, self, size, controls, context)
            request = await self.assemble(canisters, invokers, controls, context)
        names = assimilate_names(invokers)
        outgoing = self._post(self.path, await request.produce_body())
        trip = RoundTrip(
            provider=self.provider,
            transport=self.client.transport,
            settings=self.client.stream,
            produce_assimilator=partial(self.produce_assimilator, names, request),
            read_error=partial(
                self.errors.read, self.provider, model=self.name, size=outgoing.size
            ),
            notify=context.notify,
            throttle=context.throttle,
            kept=context.kept,
            streaming=context.streaming,
            tracer=context.tracer,
        )
        accumulator = self.produce_accumulator(context)
        accumulator.may_stop_at_once = bool(controls.stop or context.default_controls.stop)
        otherwise = None if request.otherwise is None else partial(self._ask_otherwise, request)
        return await hold(trip, outgoing, accumulator, otherwise=otherwise)

    async def _ask_otherwise(self, request: Request, error: ProviderError) -> Outgoing | None:
        other = None if request.otherwise is None else request.otherwise(error)
        return None if other is None else self._post(self.path, await other.produce_body())

    def produce_assimilator(self, names: Mapping[str, str], request: Request) -> StreamAssimilator:
        """The translator of one reply; `names` are canonical names by those on the wire."""
        made = self.assimilator(self.provider, lambda name: names.get(name, name))
        made.errors = self.errors
        return made

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read, as its server counts them or estimated."""
        context = TurnContext(load=load)
        request = await self.assemble(canisters, invokers, Controls(), context)
        if not self.count_path:
            return await estimate_request(request, canisters, self, load)
        outgoing = self._post(self.count_path, await request.produce_body(self.counted))
        return read_count(await self.client.fetch(outgoing, self.errors), self.provider)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """The body of the request that `converse` would send."""
        request = await self.assemble(canisters, invokers, controls, context)
        return b"".join(await request.produce_body())

    def _settle(self, controls: Controls) -> Controls:
        self.check_controls(controls)
        return controls

    @staticmethod
    def _post(path: str, body: Sequence[bytes]) -> Outgoing:
        return Outgoing("POST", path, body, JSON_HEADERS)


M = TypeVar("M", bound=HttpModel[Any])
C = TypeVar("C", bound="HttpClient[Any, Any]")


class HttpClient(Generic[M, S]):
    """A connection to the server of a row, and its models of the class `model`."""

    def __init__(
        self,
        model: type[M],
        provider: str,
        configuration: ProviderConfiguration,
        event_handler: EventHandler,
        settings: S,
    ) -> None:
        self.model = model
        self.provider = provider
        self.event_handler = event_handler
        found = find_address(settings.base_url, provider, read=model.read_address)
        self.address = found.url
        #: Whether neither the row nor a variable says where the server is.
        self.unaddressed = not found.variables and settings.base_url == _default_of(settings)
        self.settings = _fill_settings(settings, provider, self.address)
        self.stream = configuration.stream
        self.credential = configuration.credential
        self.offline = configuration.configuration.offline
        self.transport = self.produce_transport()
        if self.credential.kind != "none":
            self._announce(found, configuration)
        self.attributes = load_attributes(
            configuration.configuration,
            provider,
            *model.attributes_files,
            sent=model.controls,
        )

    def produce_transport(self) -> Transport:
        """What sends the requests of this row."""
        headers = self.model.headers(self.settings)
        if self.credential.kind == "package" and self.model.package is not None:
            # What nobody says is left to the package, which knows its profiles.
            own = None if self.unaddressed else self.address
            return self.model.package(
                self.provider, own, self.stream, headers, offline=self.offline
            )
        return produce_http_transport(
            self.provider,
            self.address,
            self.stream,
            self.credential,
            headers,
            authorize=self.model.authorize,
            offline=self.offline,
        )

    async def access_model(self, name: str) -> M:
        """The model of this name; whether the server has it shows when it is spoken with."""
        if not name:
            raise ModelNotFound(f"which model of {self.provider!r}? See: vibe-llms models")
        return self.produce_model(name)

    def produce_model(self, name: str, reported: Mapping[str, Any] | None = None) -> M:
        """A model of this name; `reported` is what the server says about it."""
        return self.model(self, name, self.attributes.integrate(name, further=reported))

    async def survey_models(self) -> Sequence[M]:
        """The models that the server lists, with what it says of them."""
        if not self.model.models_path:
            return []
        settings = self.stream
        if self.credential.kind == "none":
            # A server of one's own that does not run is not worth waiting for.
            settings = msgspec.structs.replace(settings, retries=0)
        outgoing = Outgoing("GET", self.model.models_path)
        body = await self.fetch(outgoing, self.model.errors, settings=settings)
        listed = self.read(self.model.read_models, body, "the list of models")
        for name, reported in listed.items():
            if problem := find_problem(reported):
                raise RegistrationError(
                    f"read_models of {self.model.module!r} returned wrong attributes for the model "
                    f"{name!r}: {problem}",
                    table=f"providers.{self.provider}",
                )
        return [self.produce_model(name, reported) for name, reported in listed.items()]

    async def fetch(
        self,
        outgoing: Outgoing,
        errors: ErrorMap,
        *,
        model: str = "",
        settings: StreamSettings | None = None,
        slot: LimiterSlot | None = None,
    ) -> bytes:
        """The whole body of an answer that is no reply."""
        return await fetch(
            self.transport,
            outgoing,
            provider=self.provider,
            settings=settings or self.stream,
            read_error=partial(errors.read, self.provider, model=model, size=outgoing.size),
            slot=slot,
        )

    def read(self, decode: Callable[[bytes], T], body: bytes, what: str) -> T:
        """What a body says; `ReplyMalformed` where it cannot be read."""
        try:
            return decode(body)
        except (ValueError, RecursionError) as error:
            raise ReplyMalformed(
                f"{what} cannot be read from {quote(body)}", provider=self.provider
            ) from error

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self.transport.close()

    def _announce(self, found: Address, configuration: ProviderConfiguration) -> None:
        """Say where keys are sent to, if a variable says so, or is ignored."""
        ignored = find_ignored(configuration.configuration, self.provider, found)
        if found.variables:
            text = f"{self.provider}: requests are sent to {found.describe()}"
        elif ignored is not None:
            text = (
                f"{self.provider}: requests are sent to {found.describe()}, its base-url; "
                f"{ignored[0]} is not used"
            )
        else:
            return
        _LOGGER.info(text)
        self.event_handler(NoticeEvent(notice=Notice("address", text)))


def _default_of(settings: HttpSettings) -> object:
    fields = msgspec.structs.fields(settings)
    return next(field.default for field in fields if field.name == "base_url")


def _fill_settings(settings: S, provider: str, address: str) -> S:
    """The settings with this address, and the variables in other texts filled in."""
    filled: dict[str, Any] = {"base_url": address}
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, str) and name not in filled:
            try:
                filled[name] = fill_variables(value, os.environ).strip()
            except KeyError as error:
                raise ConfigurationError(
                    f"it uses ${{{error.args[0]}}}, which is not set in the environment; set it",
                    table=f"providers.{provider}",
                    key=name.replace("_", "-"),
                ) from error
    return msgspec.structs.replace(settings, **filled)


class HttpProvider(Generic[C]):
    """A row of a module that speaks HTTP."""

    def __init__(
        self, name: str, produce_client: Callable[[], C], address: Address | None = None
    ) -> None:
        self.name = name
        #: Where requests are sent to, as far as the row and its variables say.
        self.address = address
        self._produce_client = produce_client

    def produce_client(self) -> C:
        """A new client; the caller closes it."""
        return self._produce_client()

    @overload
    @classmethod
    def of(
        cls, model: type[M], settings: type[S]
    ) -> Callable[[str, ProviderConfiguration, EventHandler], HttpProvider[HttpClient[M, S]]]: ...

    @overload
    @classmethod
    def of(
        cls, model: type[M], settings: type[S], client: Callable[..., C]
    ) -> Callable[[str, ProviderConfiguration, EventHandler], HttpProvider[C]]: ...

    @classmethod
    def of(
        cls, model: type[Any], settings: type[Any], client: Callable[..., Any] = HttpClient
    ) -> Any:
        """The factory of such rows, for `register`; `client` is for what no model can say."""
        known = Controls.__struct_encode_fields__
        for control in model.controls or ():
            if control not in known:
                raise ValueError(f"there is no control {control!r}, only {', '.join(known)}")

        def produce(
            name: str, configuration: ProviderConfiguration, event_handler: EventHandler
        ) -> HttpProvider[Any]:
            read = configuration.configuration.read
            keys = read(settings, configuration.settings, "providers", name)
            return cls(
                name,
                lambda: client(model, name, configuration, event_handler, keys),
                find_address(keys.base_url, name, read=model.read_address),
            )

        return produce
