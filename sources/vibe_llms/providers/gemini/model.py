"""A model of Gemini's interface, and how its requests are assembled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from vibe_llms.base.configuration import Number, merge
from vibe_llms.base.exceptions import ControlInvalid, ProviderError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import MediaContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.conversions import load_words
from vibe_llms.providers.gemini.catalogue import COUNTED, GENERATE
from vibe_llms.providers.gemini.controls import nativize_choice, nativize_controls, read_native
from vibe_llms.providers.gemini.errors import ERRORS, is_gone
from vibe_llms.providers.gemini.files import FileStore
from vibe_llms.providers.gemini.history import GeminiHistory
from vibe_llms.providers.gemini.messages import (
    MODULE,
    WEB,
    MediaSlot,
    begin_with_letter,
    name_tool,
    unsupported,
)
from vibe_llms.providers.gemini.streams import GeminiAssimilator
from vibe_llms.providers.interfaces import (
    Loader,
    Notifier,
    TokenCount,
    TurnContext,
    ignore_notices,
    refuse_loading,
)
from vibe_llms.providers.models import HttpModel, HttpSettings, ModelConnection
from vibe_llms.providers.pieces import Fragment, Slot, encode_json
from vibe_llms.providers.requests import (
    HistoryCache,
    Request,
    apply_controls,
    fit_request,
    offer_tools,
)
from vibe_llms.providers.tool_schemas import GEMINI, fit_tools

T = TypeVar("T")

BASE_URL = "${GOOGLE_GEMINI_BASE_URL:-https://generativelanguage.googleapis.com}"
#: Members of the body that cannot be given as extras.
_OURS = ("contents", "systemInstruction", "model")
#: Members that count as input.
_COUNTED = ("cachedContent", "toolConfig")
#: Size in bytes of the part that stands for an uploaded file.
_FILE_BYTES = 200
#: Address of a file in the preview of a request, which uploads nothing.
_PREVIEWED = "files/uploaded-when-sent"


class GoogleSettings(HttpSettings, frozen=True):
    """Settings of each row with Gemini's models.

    `base_url` is the address of the server without `api_version`.
    """

    api_version: str = "v1beta"


class GeminiSettings(GoogleSettings, frozen=True):
    """Settings of a provider row; see `GoogleSettings`.

    Media of `upload_bytes` and more
    are uploaded with the Files API, which keeps them for 48 hours, and others only if the request
    would be too large; with 0, none is uploaded. `file_seconds` is the time in which the server
    must have processed an uploaded file.
    """

    base_url: str = BASE_URL
    upload_bytes: Number = 10_000_000
    file_seconds: float = 600.0


class GeminiConnection(ModelConnection[GoogleSettings], Protocol):
    """The members of a client that its models use."""

    @property
    def files(self) -> FileStore | None:
        """Files that the server keeps, or None if it keeps none."""
        ...

    def locate(self, name: str) -> str:
        """Return the path of a model."""
        ...

    def read(self, decode: Callable[[bytes], T], body: bytes, what: str) -> T:
        """Decode a body, or raise `ReplyMalformed`."""
        ...


class UploadSlot(MediaSlot, frozen=True, gc=False):
    """Slot of a medium that is sent by the address of its uploaded file."""

    @property
    def encoded_size(self) -> int:
        """Size of the part in bytes, approximately."""
        return _FILE_BYTES

    def encode(self, uri: str) -> bytes:
        """Return the part with the address in place of the data."""
        data = encode_json({"mimeType": self.mimetype, "fileUri": uri})
        return b'{"fileData":' + data + self.after[1:]


class GeminiRequest(Request, frozen=True):
    """Request whose large media are uploaded before it is sent."""

    files: FileStore | None = None
    notify: Notifier = ignore_notices

    async def produce_body(self, names: Sequence[str] | None = None) -> Sequence[bytes]:
        """Return the body in parts; upload the files that it names first."""
        fragments: list[Fragment] = []
        for fragment in self.fragments:
            if isinstance(fragment, UploadSlot):
                uri = _PREVIEWED
                if self.files is not None:
                    uri = await self.files.provide(fragment, self.load, self.notify)
                fragments.append(fragment.encode(uri))
            else:
                fragments.append(fragment)
        ready = Request(fragments, self.members, self.load)
        return await ready.produce_body(names)


class GeminiModel(HttpModel[GoogleSettings]):
    """One of Gemini's models.

    `schemes` are the beginnings of addresses that the server reads. `identifies_calls` is True if
    the interface knows ids of calls.
    """

    client: GeminiConnection
    module = MODULE
    path = ""
    assimilator = GeminiAssimilator
    errors = ERRORS
    attributes_files = ("gemini",)
    controls = None
    schemes: ClassVar[Sequence[str]] = WEB
    identifies_calls: ClassVar[bool] = True

    def __init__(self, client: GeminiConnection, name: str, attributes: ModelAttributes) -> None:
        super().__init__(client, name, attributes)
        read_native(self)

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Return the header with the key, which must not be in the address."""
        return {"x-goog-api-key": key}

    def produce_cache(self) -> HistoryCache[GeminiHistory]:
        """Return an empty cache of encoded history."""
        return HistoryCache()

    def unsupported(self, content: MediaContent) -> str:
        """Return why the model does not accept a content, or an empty text if it does."""
        return unsupported(content, self, self.schemes)

    def check_controls(self, controls: Controls) -> None:
        """Raise `ControlInvalid` for controls that the interface does not take."""
        self._pick_extras(controls)
        nativize_controls(controls, self)

    def locate(self, method: str) -> str:
        """Return the path of a method of this model."""
        return f"{self.client.locate(self.name)}:{method}"

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> GeminiRequest:
        """Assemble the request of a round trip, with history from the cache where possible."""
        cache: HistoryCache[GeminiHistory] = HistoryCache()
        if isinstance(context.cache, HistoryCache):
            cache = context.cache
        choice = controls.tool_choice or context.default_controls.tool_choice
        offered = offer_tools(self, invokers, "auto" if choice == "none" else choice, context)
        offered = tuple(
            await cache.fit_tools(offered, lambda new: fit_tools(self, new, GEMINI, context))
        )
        (members, extras), _ = apply_controls(
            self, controls, context, lambda settled: self._nativize(settled, offered)
        )
        native = extras.pop("tools", ())
        members = merge(members, extras)
        history = await cache.extend(
            canisters,
            context,
            lambda: GeminiHistory(self, schemes=self.schemes, identified=self.identifies_calls),
            self.check_canister,
            load_words,
        )
        fragments = history.contents()
        if system := history.system():
            fragments += [b',"systemInstruction":{"parts":[', *system, b"]}"]
        if offered or native:
            fragments += [b',"tools":[', *self._encode_tools(cache, offered, native), b"]"]
        room = len(encode_json(members))
        fitted = fit_request(self._place_files(fragments, room), self, context, room=room)
        streamed = context.streaming
        method = f"stream{GENERATE[0].upper()}{GENERATE[1:]}?alt=sse" if streamed else GENERATE
        request = GeminiRequest(
            fitted,
            members,
            context.load,
            path=self.locate(method),
            files=self.client.files,
            notify=context.notify,
        )
        return msgspec.structs.replace(request, otherwise=partial(_renew, request))

    def _nativize(
        self, controls: Controls, invokers: Sequence[Invoker]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the members for the controls, and the extras that are sent unchanged."""
        extras = self._pick_extras(controls)
        declared = [one for tool in extras.get("tools", ()) for one in _names_of(tool)]
        names = {name: name for name in declared}
        for invoker in invokers:
            names[invoker.name] = name_tool(invoker.name)
        members = dict(nativize_controls(controls, self))
        choice = nativize_choice(controls, names, offered=bool(names))
        if choice is not None:
            members["toolConfig"] = choice
        return members, extras

    def _pick_extras(self, controls: Controls) -> dict[str, Any]:
        """Return the extras for this provider, after checking the members that we set or read."""
        extras = dict(controls.extras.get(self.provider, {}))
        words = ""
        for name in _OURS:
            if name in extras:
                words = f"{name!r} cannot be set in extras; it is part of the conversation"
        tools, config = extras.get("tools", ()), extras.get("generationConfig", {})
        if not isinstance(tools, list | tuple) or not all(isinstance(one, dict) for one in tools):
            words = "'tools' must be a list of tables"
        if not isinstance(config, dict):
            words = "'generationConfig' must be a table"
        elif config.get("candidateCount", 1) != 1:
            words = "'candidateCount' must be 1: a conversation goes on with one reply"
        if words:
            raise ControlInvalid(words, control="extras", model=self.name)
        return extras

    def _encode_tools(
        self,
        cache: HistoryCache[GeminiHistory],
        invokers: Sequence[Invoker],
        native: Sequence[Mapping[str, Any]],
    ) -> Sequence[Fragment]:
        return cache.encode_tools(
            invokers,
            native,
            lambda new: [{"functionDeclarations": [_declare(one) for one in new]}] if new else [],
        )

    def _place_files(self, fragments: Sequence[Fragment], room: int) -> Sequence[Fragment]:
        """Return the fragments with uploads in place of large media.

        The largest others are uploaded too while the request is too large.
        """
        if self.client.files is None or not (bound := self.client.files.upload_bytes):
            return fragments
        placed = list(fragments)
        media = [
            (fragment.encoded_size, place, fragment)
            for place, fragment in enumerate(fragments)
            if isinstance(fragment, MediaSlot)
        ]
        if not media:
            return fragments
        sizes = (one.encoded_size if isinstance(one, Slot) else len(one) for one in fragments)
        left = (self.attributes.request_bytes or 0) - room - sum(sizes)
        for size, place, slot in sorted(media, key=lambda one: -one[0]):
            small = size * 3 // 4 < bound
            if small and (left >= 0 or self.attributes.request_bytes is None):
                break
            fields = {name: getattr(slot, name) for name in MediaSlot.__struct_fields__}
            placed[place] = UploadSlot(**fields)
            left += size - _FILE_BYTES
        return placed

    def produce_assimilator(self, names: Mapping[str, str], request: Request) -> StreamAssimilator:
        """Return the translator of one reply; `names` maps names on the wire to canonical names."""
        return super().produce_assimilator(
            {begin_with_letter(native): name for native, name in names.items()}, request
        )

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Return the number of tokens that the server counts."""
        request = await self.assemble(
            canisters, invokers, Controls(), TurnContext(load=load, streaming=False)
        )
        outgoing = self._post(self.locate("countTokens"), await self.frame_count(request))
        body = await self.client.fetch(outgoing, self.errors, model=self.name)
        counted = self.client.read(COUNTED.decode, body, "the number of tokens")
        return TokenCount(counted.total_tokens, estimated=False)

    async def frame_count(self, request: Request) -> Sequence[bytes]:
        """Return the body that asks for the number of tokens of a request."""
        inner = await request.produce_body(_COUNTED)
        head = b'{"generateContentRequest":{"model":' + encode_json(find_resource(self.name)) + b","
        return [head, inner[0][1:], *inner[1:], b"}"]

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """Return the body of the request that `converse` would send; nothing is uploaded."""
        request = await self.assemble(canisters, invokers, controls, context)
        request = msgspec.structs.replace(request, files=None)
        return b"".join(await request.produce_body())


def _renew(request: GeminiRequest, error: ProviderError) -> GeminiRequest | None:
    """Return the same request with its files looked up anew, if one of them was gone."""
    if request.files is None or not is_gone(error):
        return None
    request.files.forget()
    return request


def find_resource(name: str) -> str:
    """Return the name of a model with its collection, which only tuned models have in theirs."""
    return name if "/" in name else f"models/{name}"


def _declare(invoker: Invoker) -> Mapping[str, Any]:
    """Return the declaration of a tool; one without arguments has no schema."""
    declared: dict[str, Any] = {"name": name_tool(invoker.name)}
    if invoker.description:
        declared["description"] = invoker.description
    if invoker.arguments_schema.get("properties"):
        declared["parameters"] = invoker.arguments_schema
    return declared


def _names_of(tool: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the functions that a native tool declares."""
    declared = tool.get("functionDeclarations") or ()
    return [str(one["name"]) for one in declared if isinstance(one, dict) and "name" in one]
