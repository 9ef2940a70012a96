"""Assembly of requests that the models of both interfaces share."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from vibe_llms.base.configuration import merge, read_toml, shipped_folder
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import MediaContent
from vibe_llms.messages.controls import Controls, leave_choice
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.models import HttpModel, HttpSettings, ModelConnection
from vibe_llms.providers.openai.catalogue import decode_models
from vibe_llms.providers.openai.contents import unsupported
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.openai.errors import ERRORS
from vibe_llms.providers.openai.history import OpenAIHistory
from vibe_llms.providers.openai.package import OpenaiTransport
from vibe_llms.providers.pieces import Fragment
from vibe_llms.providers.requests import HistoryCache, Request, apply_controls, fit_request
from vibe_llms.providers.tool_names import nativize_name
from vibe_llms.providers.tool_schemas import BY_NAME, fit_tools

#: Version 0 of the package read `OPENAI_API_BASE`, and other programs still do.
BASE_URL = "${OPENAI_BASE_URL:-${OPENAI_API_BASE:-https://api.openai.com/v1}}"


class OpenaiSettings(HttpSettings, frozen=True):
    """Settings that the rows of both modules share.

    `organization` and `project` are sent with each request, for keys that serve several. With
    `cache_key`, requests name their conversation by an opaque key, so that they reach the machine
    that has cached its beginning. By default this is on for OpenAI's models at the addresses in
    `data/providers/openai.toml`; other servers may refuse it.
    """

    base_url: str = BASE_URL
    organization: str = ""
    project: str = ""
    cache_key: bool | None = None

    def takes_cache_key(self, *, by_model: bool) -> bool:
        """Return True if requests name their conversation; `by_model` if the model knows keys."""
        if self.cache_key is not None:
            return self.cache_key
        return by_model and _takes_cache_key(self.base_url)


@cache
def _takes_cache_key(address: str) -> bool:
    """Return True for the addresses in `data/providers/openai.toml`."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        # The transport reports a wrong address.
        return False
    hosts = read_toml(shipped_folder() / "providers" / "openai.toml")["takes-cache-key"]
    return any(fnmatchcase(host, one) for one in hosts)


S = TypeVar("S", bound=OpenaiSettings)


class PreparedRequest(Struct, frozen=True):
    """Parts of a request: the history, the member `tools`, and the other members."""

    history: OpenAIHistory[Any]
    tools: Sequence[Fragment]
    members: Mapping[str, Any]


class OpenAIModel(HttpModel[S]):
    """A model of either interface; subclasses know the form of requests.

    `reserved` lists members of a request that `extras` must not contain, since canisters or
    controls set them. `places` lists, by kind of content (`image`, `audio`, `file`), accepted forms
    of data other than bytes in the request: `url`, `upload`.
    """

    errors = ERRORS
    attributes_files = ("families", "openai")
    controls = None
    models_path = "/models"
    package = OpenaiTransport
    reserved: ClassVar[tuple[str, ...]]
    places: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(self, client: ModelConnection[S], name: str, attributes: ModelAttributes) -> None:
        super().__init__(client, name, attributes)
        self.native = read_native(self)
        self._names = self.settings.takes_cache_key(by_model=self.native.cache_key)

    @classmethod
    def headers(cls, settings: S) -> Mapping[str, str]:
        """Return the headers for the organization and the project to bill."""
        given = {
            "openai-organization": settings.organization,
            "openai-project": settings.project,
        }
        return {name: value for name, value in given.items() if value}

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Return the models in a list, with their reported attributes."""
        return {entry.id: entry.attributes() for entry in decode_models(body)}

    @abstractmethod
    def produce_history(self) -> OpenAIHistory[Any]:
        """Return an empty history for this model."""

    @abstractmethod
    def nativize_controls(self, controls: Controls, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the members for the controls; `names` maps names of tools to those on the wire."""

    @abstractmethod
    def nativize_invoker(self, invoker: Invoker) -> Mapping[str, Any]:
        """Return the declaration of a tool."""

    @abstractmethod
    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """Return the members that every request of this interface has."""

    def unsupported(self, content: MediaContent) -> str:
        """Return why the model does not accept a content, or an empty text if it does."""
        return unsupported(content, self, self.places)

    def check_controls(self, controls: Controls) -> None:
        """Raise `ControlInvalid` for controls that the interface does not take."""
        # The tools of the request are not known yet.
        self.nativize_controls(leave_choice(controls), {})

    def produce_cache(self) -> HistoryCache[OpenAIHistory[Any]]:
        """Return an empty cache of encoded history."""
        return HistoryCache()

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """Assemble the request of a round trip, with history from the cache where possible."""
        return self.build(await self.prepare(canisters, invokers, controls, context), context)

    async def prepare(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> PreparedRequest:
        """Prepare the parts of a request."""
        cache: HistoryCache[OpenAIHistory[Any]] = (
            context.cache if isinstance(context.cache, HistoryCache) else HistoryCache()
        )
        rules = BY_NAME[self.native.tool_schemas]
        invokers = await cache.fit_tools(invokers, lambda new: fit_tools(self, new, rules, context))
        members, tools = self.frame_controls(controls, invokers, context)
        history = await cache.extend(
            canisters,
            context,
            self.produce_history,
            self.check_canister,
        )
        return PreparedRequest(history, self.encode_tools(cache, invokers, tools), members)

    def build(
        self, prepared: PreparedRequest, context: TurnContext, *, later: bool = False
    ) -> Request:
        """Return the request; with `later`, without the history that the server keeps."""
        history = prepared.history.fragments(later=later)
        fragments = fit_request([*history, *prepared.tools], self, context)
        return Request(fragments, prepared.members, context.load)

    def frame_controls(
        self, controls: Controls, invokers: Sequence[Invoker], context: TurnContext
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        """Return the members other than the history, and the native tools from the extras."""
        rows = (controls.extras, context.default_controls.extras)
        found = (row[self.provider] for row in rows if "tools" in row.get(self.provider, ()))
        tools = read_tools(next(found, {}))
        names = collect_names(invokers, tools)
        members, extras = apply_controls(
            self, controls, context, lambda settled: self.nativize_controls(settled, names)
        )
        for name in self.reserved:
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be set in extras", control="extras", model=self.name
                )
        given = {name: value for name, value in extras.items() if name != "tools"}
        fixed = self.frame_members(streaming=context.streaming)
        if self._names and (root := context.root or context.conversation):
            fixed["prompt_cache_key"] = name_conversation(root)
        return {"model": self.name, **merge({**fixed, **members}, given)}, tools

    def encode_tools(
        self,
        cache: HistoryCache[OpenAIHistory[Any]],
        invokers: Sequence[Invoker],
        native: Sequence[Any],
    ) -> Sequence[Fragment]:
        """Return the member `tools`, or nothing without tools."""
        if not invokers and not native:
            return []
        encoded = cache.encode_tools(
            invokers, native, lambda new: [self.nativize_invoker(one) for one in new]
        )
        return [b',"tools":[', *encoded, b"]"]


def name_conversation(identity: str) -> str:
    """Return an opaque key for a conversation; OpenAI takes at most 64 characters."""
    return hashlib.sha256(f"vibe-llms/{identity}".encode()).hexdigest()[:32]


def describe(invoker: Invoker) -> dict[str, Any]:
    """Return the members that the declaration of a tool has in both interfaces."""
    described: dict[str, Any] = {"name": nativize_name(invoker.name)}
    if invoker.description:
        described["description"] = invoker.description
    described["parameters"] = invoker.arguments_schema
    return described


def collect_names(invokers: Sequence[Invoker], native: Sequence[Any]) -> Mapping[str, str]:
    """Return the wire names of all offered tools, by our names."""
    names: dict[str, str] = {}
    for tool in native:
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        if isinstance(name := function.get("name"), str):
            names[name] = name
    return {**names, **{one.name: nativize_name(one.name) for one in invokers}}


def read_tools(extras: Mapping[str, Any]) -> Sequence[Any]:
    """Return the native tools from the extras."""
    tools = extras.get("tools", ())
    return tools if isinstance(tools, list | tuple) else ()
