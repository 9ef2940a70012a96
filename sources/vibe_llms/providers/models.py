"""Providers that speak HTTP: a row, its connection, and its models.

A module of a provider derives a model and registers it. The model has the path, the encoding of a
conversation, the translator of the reply, and the errors; all else is here:

```python
class ShoutModel(HttpModel[ShoutSettings]):
    module = __name__
    path = "/shout"
    assimilator = ShoutAssimilator
    errors = ErrorMap({404: ModelUnavailable})

    def encode(self, given): ...

register("shout", HttpProvider.of(ShoutModel, ShoutSettings))
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import getattr_static
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import StreamSettings, fill_variables, merge
from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelNotFound,
    ProviderError,
    RegistrationError,
    ReplyMalformed,
)
from vibe_llms.base.redaction import quote
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister
from vibe_llms.messages.contents import MediaContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice, NoticeEvent
from vibe_llms.providers.addresses import Address, find_address, find_ignored, name_server
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.attributes import (
    ModelAttributes,
    find_problem,
    load_attributes,
    settle_controls,
)
from vibe_llms.providers.conversions import Conversion, check_contents, name_content
from vibe_llms.providers.histories import pair_calls
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
from vibe_llms.providers.round_trip import JSON_HEADERS, RoundTrip, fetch, run_round_trip
from vibe_llms.providers.row_models import RowClient, RowModel
from vibe_llms.providers.sdk_transport import OfficialTransport
from vibe_llms.providers.spending import access_spending, bound_media, reserve_output
from vibe_llms.providers.tokenizers import estimate_request, read_count
from vibe_llms.providers.tool_names import assimilate_names, nativize_name
from vibe_llms.providers.transport import Outgoing, Transport

_LOGGER = get_logger("vibe_llms.providers")


class HttpSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row, besides those that every row has; a provider adds its own.

    `${NAME}` and `${NAME:-else}` in their texts are replaced by environment variables.
    """

    base_url: str


T = TypeVar("T")
S = TypeVar("S", bound=HttpSettings)
S_co = TypeVar("S_co", bound=HttpSettings, covariant=True)


class ModelConnection(RowClient, Protocol[S_co]):
    """Part of the client that a model of a server uses."""

    @property
    def settings(self) -> S_co:
        """Keys of the row."""
        ...

    @property
    def transport(self) -> Transport:
        """Transport that sends requests."""
        ...

    async def fetch(self, outgoing: Outgoing, errors: ErrorMap, *, model: str = "") -> bytes:
        """Return the body of a response that is not a reply."""
        ...


class ModelInput(Struct, frozen=True):
    """Input of a request: the conversation, the tools on offer, and the controls to send.

    In `said`, each call has its result before the conversation goes on. `options` are the controls
    that are set, by their names on the wire.
    """

    said: Sequence[Conversion]
    invokers: Sequence[Invoker]
    controls: Controls
    streaming: bool
    options: Mapping[str, Any]

    @property
    def tools(self) -> Mapping[str, Invoker]:
        """The tools on offer by their names on the wire."""
        return {nativize_name(invoker.name): invoker for invoker in self.invokers}


class HttpModel(RowModel[ModelConnection[S]], Generic[S]):
    """Model of a server.

    `path` is where conversations are posted, `assimilator` translates a reply, `errors` are the
    errors of the interface. `attributes_files` are the sources of its models' attributes: names of
    shipped files, or paths.

    `controls` maps the controls that are sent to their names on the wire; others are refused, or
    left out with a notice if they are configured defaults. With `None` the attributes alone decide.

    `models_path` is where the server lists its models, for `read_models`. `count_path` is where it
    counts tokens, of the members `counted`; without it they are estimated. `package` is the
    transport of rows with `credential = "package"`; without it these send a key if there is one.
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

    def __init__(self, client: ModelConnection[S], name: str, attributes: ModelAttributes) -> None:
        super().__init__(client, name)
        self.attributes = attributes
        taken = attributes.controls
        self.caps_output = taken is None or "output-tokens" in taken

    @property
    def settings(self) -> S:
        """Keys of the row."""
        return self.client.settings

    @property
    def server(self) -> str:
        """Address of the server, without a user, a password, or a query."""
        return name_server(self.settings.base_url)

    # Defined by each provider.

    @classmethod
    def headers(cls, settings: S) -> Mapping[str, str]:
        """Return the headers of every request, besides those of `authorize`."""
        del settings
        return {}

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Return the headers with the key of the row, by default `Authorization: Bearer KEY`."""
        return send_bearer(key)

    @classmethod
    def read_address(cls, text: str) -> str:
        """Normalize an address from an environment variable in `base-url`."""
        return text

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Return the models in a list with their attributes; raise `ValueError` if it is invalid.

        The attributes are named as in TOML: `{"loud": {"context-tokens": 1000}}`.
        """
        raise NotImplementedError

    def unsupported(self, content: MediaContent) -> str:
        """Explain why the model cannot take a content; return an empty string if it can."""
        kind = str(content.__struct_config__.tag)
        taken = self.attributes.accept(kind, content.mimetype)
        return "" if taken else name_content(content)

    def check_controls(self, controls: Controls) -> None:
        """Raise `ControlInvalid` for values that the model's attributes do not refuse already."""

    def encode(self, given: ModelInput) -> Mapping[str, Any]:
        """Return the members of a request.

        To encode a long conversation only once, override `assemble` instead.
        """
        raise NotImplementedError

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """Return the request of a round trip; by default, encode all of it anew."""
        for canister in canisters:
            if canister.identity in context.fresh:
                self.check_canister(canister)
        settled, extras = apply_controls(self, controls, context, self._checked)
        texts = await load_texts(canisters, context.load)
        said = [Conversion(one, self, self.module, texts) for one in pair_calls(canisters)]
        names = self.controls or {}
        options = {names[key]: value for key, value in settled.given().items() if key in names}
        given = ModelInput(said, invokers, settled, context.streaming, options)
        members = self.encode(given)
        for conversion in said:
            for notice in conversion.notices:
                context.notify(notice)
        body = encode_json(merge(members, extras))[:-1]
        return Request(fit_request([body], self, context), {}, context.load)

    # Common to all providers.

    def produce_cache(self) -> object:
        """Return an empty cache of encoded history; by default None, as all is encoded anew."""
        return None

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for unsupported input or a missing key, before anything is stored."""
        self.client.transport.prepare()
        for canister in canisters:
            self.check_canister(canister)
        settled, _ = settle_controls(controls, Controls(), self.attributes, self.name)
        self.check_controls(settled)

    def check_canister(self, canister: Canister) -> None:
        """Raise `ContentUnsupported` if the model does not support a content of this canister."""
        check_contents(canister, self, self.unsupported)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """Make one round trip; see `vibe_llms.providers.interfaces.Model`."""
        request = await self.assemble(canisters, invokers, controls, context)
        if (spending := access_spending()) is not None:
            size = request.text_size + bound_media(canisters, self) if spending.bounded else 0
            controls = await reserve_output(spending, self, size, controls, context)
            request = await self.assemble(canisters, invokers, controls, context)
        names = assimilate_names(invokers)
        outgoing = self._post(request.path or self.path, await request.produce_body())
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
        return await run_round_trip(trip, outgoing, accumulator, otherwise=otherwise)

    async def _ask_otherwise(self, request: Request, error: ProviderError) -> Outgoing | None:
        other = None if request.otherwise is None else request.otherwise(error)
        if other is None:
            return None
        return self._post(other.path or self.path, await other.produce_body())

    def produce_assimilator(self, names: Mapping[str, str], request: Request) -> StreamAssimilator:
        """Return the translator of one reply; `names` maps names on the wire to canonical names."""
        made = self.assimilator(self.provider, lambda name: names.get(name, name))
        made.errors = self.errors
        return made

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Count the tokens that the model would read, by its server or an estimate."""
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
        """Return the body of the request that `converse` would send."""
        request = await self.assemble(canisters, invokers, controls, context)
        return b"".join(await request.produce_body())

    def _checked(self, controls: Controls) -> Controls:
        self.check_controls(controls)
        return controls

    @staticmethod
    def _post(path: str, body: Sequence[bytes]) -> Outgoing:
        return Outgoing("POST", path, body, JSON_HEADERS)


M = TypeVar("M", bound=HttpModel[Any])
C = TypeVar("C", bound="HttpClient[Any, Any]")


class HttpClient(Generic[M, S]):
    """Connection to the server of a row, with its models of the class `model`."""

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
        #: True if neither the row nor a variable names the server.
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
        """Return the transport for the requests of this row."""
        headers = self.model.headers(self.settings)
        if self.credential.kind == "package" and self.model.package is not None:
            # An address that nobody set is left to the package, which knows its profiles.
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
        """Return the model of this name, without checking that the server has it."""
        if not name:
            raise ModelNotFound(f"which model of {self.provider!r}? See: vibe-llms models")
        return self.produce_model(name)

    def produce_model(self, name: str, reported: Mapping[str, Any] | None = None) -> M:
        """Return a model of this name; `reported` holds its attributes from the server."""
        return self.model(self, name, self.attributes.integrate(name, further=reported))

    async def survey_models(self) -> Sequence[M]:
        """Return the models that the server lists, with the attributes that it reports."""
        if not self.model.models_path:
            return []
        settings = self.stream
        if self.credential.kind == "none":
            # A user's own server that is not running is not worth waiting for.
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
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Return the whole body of a response that is not a reply.

        The headers of the response are added to `headers`.
        """
        return await fetch(
            self.transport,
            outgoing,
            provider=self.provider,
            settings=settings or self.stream,
            read_error=partial(errors.read, self.provider, model=model, size=outgoing.size),
            slot=slot,
            headers=headers,
        )

    def read(self, decode: Callable[[bytes], T], body: bytes, what: str) -> T:
        """Decode a body, or raise `ReplyMalformed`."""
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
        """Report the address that keys are sent to, if a variable names it or is ignored."""
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
    """Return the settings with this address, and with the variables in other texts filled in."""
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
    """Row of a module that speaks HTTP."""

    def __init__(
        self, name: str, produce_client: Callable[[], C], address: Address | None = None
    ) -> None:
        self.name = name
        #: Address that requests are sent to, if the row or its variables name it.
        self.address = address
        self._produce_client = produce_client

    def produce_client(self) -> C:
        """Return a new client, which the caller must close."""
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
        """Return the factory of such rows, for `register`; `client` replaces `HttpClient`."""
        known = Controls.__struct_encode_fields__
        for control in model.controls or ():
            if control not in known:
                raise ValueError(
                    f"unknown control {control!r}; the controls are {', '.join(known)}"
                )
        for name in ("headers", "authorize", "read_address", "read_models"):
            if not isinstance(getattr_static(model, name), classmethod | staticmethod):
                raise TypeError(
                    f"{model.__name__}.{name} must be a class method, because it is called before "
                    "there is a model; write @classmethod above it"
                )

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
