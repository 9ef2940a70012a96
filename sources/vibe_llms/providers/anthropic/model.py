"""A model of Anthropic's Messages interface, and how its requests are assembled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from vibe_llms.base.configuration import merge, read_toml, shipped_folder
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, DocumentCanister
from vibe_llms.messages.contents import FileContent, MediaContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.anthropic.controls import nativize_choice, nativize_controls, read_native
from vibe_llms.providers.anthropic.errors import ERRORS
from vibe_llms.providers.anthropic.history import AnthropicHistory
from vibe_llms.providers.anthropic.messages import MODULE, unsupported
from vibe_llms.providers.anthropic.package import AnthropicTransport
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.models import HttpModel, HttpSettings, ModelConnection
from vibe_llms.providers.pieces import Fragment, append_member, encode_json
from vibe_llms.providers.requests import (
    HistoryCache,
    Request,
    apply_controls,
    fit_request,
    send_notice,
)
from vibe_llms.providers.tool_names import nativize_name
from vibe_llms.providers.tool_schemas import ANTHROPIC, fit_tools

BASE_URL = "${ANTHROPIC_BASE_URL:-https://api.anthropic.com}"
#: Version of the interface that is requested.
VERSION = "2026-10-21"
#: Time for which Anthropic caches the prefix of a conversation.
CacheDuration: TypeAlias = Literal["auto", "5m", "1h", "off"]
#: Name of an experimental feature, in the characters that a header may contain.
Beta: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+\Z")]
_MINUTES = b'"cache_control":{"type":"ephemeral"}'
_HOUR = b'"cache_control":{"type":"ephemeral","ttl":"1h"}'
#: Most blocks with `cache_control` in a request; two are in the messages.
_MOST_MARKS = 4
#: Feature that summarizes a conversation on request.
_COMPACTION_BETA = "compact-2026-09-04"
#: Members that a request for a summary cannot have.
_REPLY_MEMBERS = frozenset({"context_management", "stop_sequences", "output_format"})
#: Members of the body that cannot be given as extras.
_OURS = ("messages", "system", "model", "stream")


class AnthropicSettings(HttpSettings, frozen=True):
    """Settings of a provider row.

    `cache` is the time for which Anthropic caches the prefix of a conversation; with `auto`, the
    pauses between requests decide. It is the default for the addresses in
    `data/providers/anthropic.toml`, and `5m` for others, which may refuse `1h`. With `citations`,
    documents are sent so that the model can cite them. `beta` lists the names of experimental
    features. With `compaction = "native"`, Anthropic summarizes a long conversation in place of our
    own request for it. With `replays_unsigned_thinking`, thinking that came without a signature is
    sent back: some servers with this interface need it after tool calls, and Anthropic refuses it.
    By default it is on for the addresses in `data/providers/anthropic.toml`.
    """

    base_url: str = BASE_URL
    cache: CacheDuration | None = None
    citations: bool = True
    beta: tuple[Beta, ...] = ()
    compaction: Literal["own", "native"] = "own"
    replays_unsigned_thinking: bool | None = None

    @property
    def wants_unsigned_thinking(self) -> bool:
        """True if thinking without a signature is sent back to its server."""
        if self.replays_unsigned_thinking is not None:
            return self.replays_unsigned_thinking
        return self._is_listed("replays-unsigned-thinking")

    @property
    def cache_duration(self) -> CacheDuration:
        """Time for which the prefix is cached, or `auto`."""
        return self.cache or ("auto" if self._is_listed("takes-hour") else "5m")

    def _is_listed(self, name: str) -> bool:
        """Return True if the address is in a list of the shipped file."""
        address = f"{self.base_url.rstrip('/')}/"
        return any(address.startswith(f"{one}/") for one in _read_shipped()[name])


@cache
def _read_shipped() -> Mapping[str, Any]:
    return read_toml(shipped_folder() / "providers" / "anthropic.toml")


class AnthropicCache(HistoryCache[AnthropicHistory]):
    """Encoded history of a conversation; `citing` is True if its documents can be cited."""

    def __init__(self) -> None:
        super().__init__()
        self.citing = True


class AnthropicModel(HttpModel[AnthropicSettings]):
    """One of Anthropic's models."""

    module = MODULE
    path = "/v1/messages"
    assimilator = AnthropicAssimilator
    errors = ERRORS
    attributes_files = ("anthropic",)
    controls = None
    count_path = "/v1/messages/count_tokens"
    #: Members that the counting endpoint accepts in addition to the messages.
    counted = ("model", "output_config", "thinking", "tool_choice")
    package = AnthropicTransport

    def __init__(
        self, client: ModelConnection[AnthropicSettings], name: str, attributes: ModelAttributes
    ) -> None:
        super().__init__(client, name, attributes)
        self._duration = self.settings.cache_duration
        self._unsigned = self.settings.wants_unsigned_thinking
        read_native(self)

    @classmethod
    def headers(cls, settings: AnthropicSettings) -> Mapping[str, str]:
        """Return the headers for the version and for experimental features."""
        wanted = dict.fromkeys(settings.beta)
        if settings.compaction == "native":
            wanted[_COMPACTION_BETA] = None
        beta = {"anthropic-beta": ",".join(wanted)} if wanted else {}
        return {"anthropic-version": VERSION, **beta}

    @property
    def compacts(self) -> bool:
        """True if Anthropic summarizes long conversations."""
        return self.settings.compaction == "native"

    def produce_cache(self) -> AnthropicCache:
        """Return an empty cache of encoded history."""
        return AnthropicCache()

    def unsupported(self, content: MediaContent) -> str:
        """Return why the model does not accept a content, or an empty text if it does."""
        return unsupported(content, self)

    def check_controls(self, controls: Controls) -> None:
        """Raise `ControlInvalid` for controls that the interface does not take."""
        self._pick_extras(controls)
        nativize_controls(controls, self)

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """Assemble the request of a round trip, with history from the cache where possible."""
        cache = context.cache if isinstance(context.cache, AnthropicCache) else AnthropicCache()
        invokers = await cache.fit_tools(
            invokers, lambda new: fit_tools(self, new, ANTHROPIC, context)
        )
        (members, extras), _ = apply_controls(
            self, controls, context, lambda settled: self._nativize(settled, invokers, context)
        )
        tools = extras.pop("tools", ())
        members = {"model": self.name, **merge(members, extras), "stream": context.streaming}
        if context.compacts:
            members = _request_compaction(members, context.summary_prompt)
        citing = self._decide_citing(members, canisters, context)
        if cache.citing != citing:
            cache.citing = citing
            cache.begin(self._produce_history(citing=citing))
        history = await cache.extend(
            canisters,
            context,
            lambda: self._produce_history(citing=citing),
            self.check_canister,
        )
        if history.forbids_thinking and _kind_of(members, "thinking") == "enabled":
            del members["thinking"]
            text = (
                "reasoning-tokens is not sent until calls that began without reasoning are complete"
            )
            send_notice(self, context, text)
        given = [tool["cache_control"] for tool in tools if tool.get("cache_control")]
        mark = b"" if "cache_control" in members else self._choose_mark(history, given)
        marks = _MOST_MARKS - len(given)
        fragments = history.messages(mark, min(marks, 2))
        if system := history.system(mark if marks > 2 else b""):
            fragments += [b',"system":[', *system, b"]"]
        if invokers or tools:
            # A mark given in a native tool replaces ours.
            encoded = self._encode_tools(cache, invokers, tools, b"" if given else mark)
            fragments += [b',"tools":[', *encoded, b"]"]
        room = len(encode_json(members))
        return Request(fit_request(fragments, self, context, room=room), members, context.load)

    def _produce_history(self, *, citing: bool) -> AnthropicHistory:
        return AnthropicHistory(self, citing=citing, unsigned=self._unsigned)

    def _choose_mark(self, history: AnthropicHistory, given: Sequence[Any]) -> bytes:
        """Return the member that marks the end of a cached prefix, or nothing.

        Marks of an hour must come before others, so a shorter one in a native tool shortens all.
        """
        if self._duration == "off":
            return b""
        hour = self._duration == "1h" or (self._duration == "auto" and history.rhythm.wants_hour)
        longest = all(isinstance(one, dict) and one.get("ttl") == "1h" for one in given)
        return _HOUR if hour and longest else _MINUTES

    def _nativize(
        self, controls: Controls, invokers: Sequence[Invoker], context: TurnContext
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the members for the controls, and the extras that are sent unchanged."""
        extras = self._pick_extras(controls)
        native = extras.get("tools", ())
        names = {tool["name"]: tool["name"] for tool in native if "name" in tool}
        for invoker in invokers:
            names[invoker.name] = nativize_name(invoker.name)
        members = dict(nativize_controls(controls, self, streaming=context.streaming))
        offered = bool(invokers or native)
        choice = nativize_choice(controls, names, offered=offered)
        if choice is not None:
            members["tool_choice"] = choice
        return members, extras

    def _pick_extras(self, controls: Controls) -> dict[str, Any]:
        """Return the extras for this provider, after checking the members that we set or read."""
        extras = dict(controls.extras.get(self.provider, {}))
        for name in _OURS:
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be set in extras; it is part of the conversation",
                    control="extras",
                    model=self.name,
                )
        tools = extras.get("tools", ())
        if not isinstance(tools, list | tuple) or not all(isinstance(one, dict) for one in tools):
            raise ControlInvalid(
                "'tools' must be a list of tables", control="extras", model=self.name
            )
        return extras

    def _decide_citing(
        self,
        members: Mapping[str, Any],
        canisters: Sequence[Canister],
        context: TurnContext,
    ) -> bool:
        """Return True if documents can be cited in this request.

        A reply that follows a schema cannot contain citations; the interface answers 400 to a
        request for both. Source:
        https://platform.claude.com/docs/en/build-with-claude/structured-outputs (2026-11).
        """
        citations, output = self.settings.citations, members.get("output_config")
        if not citations or not isinstance(output, dict) or "format" not in output:
            return citations
        if any(_is_document(canister) for canister in canisters):
            send_notice(self, context, "documents are not cited in a reply that follows a schema")
        return False

    def _encode_tools(
        self,
        cache: AnthropicCache,
        invokers: Sequence[Invoker],
        native: Sequence[Mapping[str, Any]],
        mark: bytes,
    ) -> Sequence[Fragment]:
        *before, last = cache.encode_tools(
            invokers, native, lambda new: [nativize_invoker(one) for one in new]
        )
        return [*before, *append_member((last,), mark)] if mark else [*before, last]


def _request_compaction(members: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Return the members of a request for a summary, without those that only shape a reply.

    An empty prompt leaves Anthropic its own. Source: `BetaCompactionConfigParam`, and
    `_without_compaction_incompatible_params`, of the package anthropic 2.14.
    """
    kept = _without_format({k: value for k, value in members.items() if k not in _REPLY_MEMBERS})
    if _kind_of(members, "tool_choice") in ("any", "tool"):
        del kept["tool_choice"]
    if isinstance(fallbacks := members.get("fallbacks"), list | tuple):
        kept["fallbacks"] = [
            _without_format(one) if isinstance(one, dict) else one for one in fallbacks
        ]
    instructions = {"instructions": prompt} if prompt else {}
    return {**kept, "compaction": {"type": "summarize", **instructions}}


def _without_format(members: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(members)
    if isinstance(output := members.get("output_config"), dict):
        kept["output_config"] = {name: one for name, one in output.items() if name != "format"}
    return kept


def _kind_of(members: Mapping[str, Any], name: str) -> object:
    member = members.get(name)
    return member.get("type") if isinstance(member, dict) else None


def _is_document(canister: Canister) -> bool:
    return isinstance(canister, DocumentCanister) or any(
        isinstance(content, FileContent) for content in canister.contents
    )


def nativize_invoker(invoker: Invoker) -> dict[str, Any]:
    """Return the declaration of a tool."""
    return {
        "name": nativize_name(invoker.name),
        **({"description": invoker.description} if invoker.description else {}),
        "input_schema": invoker.arguments_schema,
    }
