"""Requests put together: history, controls and tools become the body of one request.

What a request consists of is the processors' affair; here it is settled what of it is sent, kept
encoded from turn to turn, and made to fit. Sending is done in `client.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.configuration import merge
from vibe_llms.controls import Controls
from vibe_llms.events import Notice
from vibe_llms.exceptions import ControlInvalid, RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, DocumentCanister
from vibe_llms.messages.contents import FileContent
from vibe_llms.providers.anthropic.controls import AnthropicControlsProcessor
from vibe_llms.providers.anthropic.framing import History
from vibe_llms.providers.anthropic.invocations import AnthropicInvocationsProcessor
from vibe_llms.providers.anthropic.messages import AnthropicMessagesProcessor
from vibe_llms.providers.attributes import settle_controls
from vibe_llms.providers.interfaces import Loader, Model, TurnContext
from vibe_llms.providers.pieces import (
    Block,
    Fragment,
    append_member,
    encode_json,
    fill,
    fit,
    interleave,
    load_texts,
)

#: How long Anthropic shall keep the prefix of a conversation for the next turn.
CacheDuration: TypeAlias = Literal["5m", "1h", "off"]
#: What is said with canisters, or by which model and how a conversation is held.
_OURS = ("messages", "system", "model", "stream")


class HistoryCache:
    """What a conversation keeps for a model: its history and its tools, encoded once."""

    def __init__(self) -> None:
        self.history: History | None = None
        self.citing = True
        self.added = 0
        self.last: Canister | None = None
        self.tools: tuple[Sequence[Invoker], Sequence[Any], list[Fragment]] = ((), (), [])


class Request(Struct, frozen=True):
    """A request: what is encoded already, and the members after it."""

    fragments: Sequence[Fragment]
    members: Mapping[str, Any]
    load: Loader

    async def produce_body(self, names: Sequence[str] = ()) -> Sequence[bytes]:
        """The body in parts; of the members only those that are named, if any are."""
        kept = {name: value for name, value in self.members.items() if not names or name in names}
        return await fill([*self.fragments, b",", encode_json(kept)[1:]], self.load)


class RequestsAssembler:
    """Puts the requests of one row together.

    `cache` is how long the provider shall keep what it has read, `citations` whether documents are
    sent so that the model can cite them.
    """

    def __init__(
        self,
        controls: AnthropicControlsProcessor,
        messages: AnthropicMessagesProcessor,
        invocations: AnthropicInvocationsProcessor,
        *,
        cache: CacheDuration,
        citations: bool,
    ) -> None:
        self._controls = controls
        self._messages = messages
        self._invocations = invocations
        self._mark = _produce_mark(cache)
        self._citations = citations

    def check(self, canisters: Sequence[Canister], controls: Controls, model: Model) -> None:
        """Raise for what a model cannot take of a call's own contents and controls."""
        for canister in canisters:
            self._messages.check(canister, model)
        settled, _ = settle_controls(controls, Controls(), model.attributes, model.name)
        self._pick_extras(settled, model)
        self._controls.nativize(settled, model)

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
        model: Model,
    ) -> Request:
        """The request of a round trip, its history taken from the cache as far as that goes."""
        members, extras = self._nativize_controls(controls, invokers, context, model)
        tools = extras.pop("tools", ())
        members = {"model": model.name, **merge(members, extras), "stream": context.streaming}
        citing = self._decide_citing(members, canisters, context, model)
        cache = context.cache if isinstance(context.cache, HistoryCache) else HistoryCache()
        history = await self._extend(cache, canisters, context, model, citing=citing)
        if history.forbids_thinking and _kind_of(members, "thinking") == "enabled":
            del members["thinking"]
            _notify(
                context,
                model,
                "reasoning-tokens is not sent while calls go on that began without reasoning",
            )
        fragments = history.messages(self._mark)
        if system := history.system(self._mark):
            fragments += [b',"system":[', *system, b"]"]
        if invokers or tools:
            encoded = self._encode_tools(cache, invokers, tools, model)
            fragments += [b',"tools":[', *encoded, b"]"]
        room = len(encode_json(members))
        return Request(_fit(fragments, room, context, model), members, context.load)

    def _nativize_controls(
        self, controls: Controls, invokers: Sequence[Invoker], context: TurnContext, model: Model
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The members that the controls become, and those that are given as they are."""
        settled, left_out = settle_controls(
            controls, context.default_controls, model.attributes, model.name
        )
        extras = self._pick_extras(settled, model)
        native = extras.get("tools", ())
        names = {tool["name"]: tool["name"] for tool in native if "name" in tool}
        for invoker in invokers:
            names[invoker.name] = self._invocations.nativize_name(invoker.name)
        told = list(left_out)
        while True:
            try:
                members = dict(self._controls.nativize(settled, model, streaming=context.streaming))
                choice = self._controls.nativize_choice(
                    settled, names, offered=bool(invokers or native)
                )
                break
            except ControlInvalid as error:
                if error.control in controls.given():
                    raise
                told.append(f"the configured control {error.control} is not sent: {error}")
                opened = {error.control.replace("-", "_"): None}
                settled = msgspec.structs.replace(settled, **opened)
        for text in told:
            _notify(context, model, text)
        if choice is not None:
            members["tool_choice"] = choice
        return members, extras

    def _pick_extras(self, controls: Controls, model: Model) -> dict[str, Any]:
        """What goes to the wire as it is, checked as far as we have to do with it."""
        extras = dict(controls.extras.get(model.provider, {}))
        for name in _OURS:
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be given as it is; it is a part of the conversation",
                    control="extras",
                    model=model.name,
                )
        tools = extras.get("tools", ())
        if not isinstance(tools, list | tuple) or not all(isinstance(one, dict) for one in tools):
            raise ControlInvalid(
                "'tools' must be a list of tables", control="extras", model=model.name
            )
        return extras

    def _decide_citing(
        self,
        members: Mapping[str, Any],
        canisters: Sequence[Canister],
        context: TurnContext,
        model: Model,
    ) -> bool:
        """Whether documents can be cited in this request.

        A reply that follows a schema has no place for citations, and the interface answers 400 to
        both at once. Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs
        (2026-11).
        """
        output = members.get("output_config")
        if not self._citations or not isinstance(output, dict) or "format" not in output:
            return self._citations
        if any(_is_document(canister) for canister in canisters):
            _notify(context, model, "documents are not cited in a reply that follows a schema")
        return False

    async def _extend(
        self,
        cache: HistoryCache,
        canisters: Sequence[Canister],
        context: TurnContext,
        model: Model,
        *,
        citing: bool,
    ) -> History:
        grown = cache.added and len(canisters) >= cache.added
        known = grown and cache.citing == citing and canisters[cache.added - 1] is cache.last
        if cache.history is None or not known:
            cache.history = History(self._messages, model, citing=citing)
            cache.added, cache.citing = 0, citing
        new = canisters[cache.added :]
        for canister in new:
            if canister.identity in context.fresh:
                self._messages.check(canister, model)
        texts = await load_texts(new, context.load)
        notices: list[Notice] = []
        for canister in new:
            notices += cache.history.add(canister, texts)
            cache.added += 1
            cache.last = canister
        for notice in notices:
            context.notify(notice)
        return cache.history

    def _encode_tools(
        self,
        cache: HistoryCache,
        invokers: Sequence[Invoker],
        native: Sequence[Mapping[str, Any]],
        model: Model,
    ) -> list[Fragment]:
        known, known_native, fragments = cache.tools
        same = len(known) == len(invokers) and all(map(is_, known, invokers))
        if not fragments or not same or known_native != native:
            tools = [*native, *self._invocations.nativize(invokers, model)]
            blocks: list[Block] = [(encode_json(tool),) for tool in tools]
            # Marks are few, so one that was given as it is stands for ours.
            if self._mark and not any("cache_control" in tool for tool in native):
                blocks[-1] = append_member(blocks[-1], self._mark)
            fragments = interleave(blocks)
            cache.tools = (tuple(invokers), native, fragments)
        return fragments


def _produce_mark(cache: CacheDuration) -> bytes:
    """The member that marks the end of what shall be cached; empty where nothing shall."""
    match cache:
        case "off":
            return b""
        case "5m":
            return b'"cache_control":{"type":"ephemeral"}'
        case "1h":
            return b'"cache_control":{"type":"ephemeral","ttl":"1h"}'


def _fit(
    fragments: Sequence[Fragment], room: int, context: TurnContext, model: Model
) -> Sequence[Fragment]:
    """The fragments, the oldest media left out where they and `room` bytes more are too many."""
    limit = model.attributes.request_bytes
    if limit is None:
        return fragments
    fitted, dropped, size = fit(fragments, limit - room, context.fresh)
    if size + room > limit:
        raise RequestTooLarge(
            f"the request would have {size + room} bytes, {model.name} takes {limit}; go on in a "
            "fork of an earlier point, or leave pictures and files out",
            provider=model.provider,
        )
    for slot in dropped:
        reason = f"the request would have more than {limit} bytes"
        _notify(context, model, f"{slot.label} is left out: {reason}", slot.origin)
    return fitted


def _notify(context: TurnContext, model: Model, text: str, canister: str = "") -> None:
    context.notify(Notice("conversion", f"{model.provider}/{model.name}: {text}", canister))


def _kind_of(members: Mapping[str, Any], name: str) -> object:
    member = members.get(name)
    return member.get("type") if isinstance(member, dict) else None


def _is_document(canister: Canister) -> bool:
    contents: Iterable[object] = getattr(canister, "contents", ())
    return isinstance(canister, DocumentCanister) or any(
        isinstance(content, FileContent) for content in contents
    )
