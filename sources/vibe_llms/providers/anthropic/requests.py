"""Requests put together: history, controls and tools become the body of one request.

What a request consists of is the processors' affair; here it is settled what of it is sent. Sending
is done in `client.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from vibe_llms.configuration import merge
from vibe_llms.controls import Controls
from vibe_llms.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, DocumentCanister
from vibe_llms.messages.contents import FileContent
from vibe_llms.providers.anthropic.controls import AnthropicControlsProcessor
from vibe_llms.providers.anthropic.framing import History
from vibe_llms.providers.anthropic.invocations import AnthropicInvocationsProcessor
from vibe_llms.providers.anthropic.messages import AnthropicMessagesProcessor
from vibe_llms.providers.attributes import settle_controls
from vibe_llms.providers.interfaces import Model, TurnContext
from vibe_llms.providers.pieces import Fragment, append_member, encode_json
from vibe_llms.providers.requests import (
    HistoryCache,
    Request,
    fit_request,
    nativize_controls,
    tell,
)

#: How long Anthropic shall keep the prefix of a conversation for the next turn.
CacheDuration: TypeAlias = Literal["5m", "1h", "off"]
_MARKS: dict[CacheDuration, bytes] = {
    "5m": b'"cache_control":{"type":"ephemeral"}',
    "1h": b'"cache_control":{"type":"ephemeral","ttl":"1h"}',
    "off": b"",
}
#: What is said with canisters, or by which model and how a conversation is held.
_OURS = ("messages", "system", "model", "stream")


class Cache(HistoryCache[History]):
    """What a conversation keeps for a model; `citing` tells whether its documents can be cited."""

    def __init__(self) -> None:
        super().__init__()
        self.citing = True


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
        self._mark = _MARKS[cache]
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
        (members, extras), _ = nativize_controls(
            model,
            controls,
            context,
            lambda settled: self._nativize_controls(settled, invokers, context, model),
        )
        tools = extras.pop("tools", ())
        members = {"model": model.name, **merge(members, extras), "stream": context.streaming}
        citing = self._decide_citing(members, canisters, context, model)
        cache = context.cache if isinstance(context.cache, Cache) else Cache()
        if cache.citing != citing:
            cache.citing = citing
            cache.begin(History(self._messages, model, citing=citing))
        history = await cache.extend(
            canisters,
            context,
            lambda: History(self._messages, model, citing=citing),
            lambda canister: self._messages.check(canister, model),
        )
        if history.forbids_thinking and _kind_of(members, "thinking") == "enabled":
            del members["thinking"]
            text = "reasoning-tokens is not sent while calls go on that began without reasoning"
            tell(model, context, text)
        fragments = history.messages(self._mark)
        if system := history.system(self._mark):
            fragments += [b',"system":[', *system, b"]"]
        if invokers or tools:
            encoded = self._encode_tools(cache, invokers, tools, model)
            fragments += [b',"tools":[', *encoded, b"]"]
        room = len(encode_json(members))
        return Request(fit_request(fragments, model, context, room=room), members, context.load)

    def _nativize_controls(
        self, controls: Controls, invokers: Sequence[Invoker], context: TurnContext, model: Model
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The members that the controls become, and those that are given as they are."""
        extras = self._pick_extras(controls, model)
        native = extras.get("tools", ())
        names = {tool["name"]: tool["name"] for tool in native if "name" in tool}
        for invoker in invokers:
            names[invoker.name] = self._invocations.nativize_name(invoker.name)
        members = dict(self._controls.nativize(controls, model, streaming=context.streaming))
        offered = bool(invokers or native)
        choice = self._controls.nativize_choice(controls, names, offered=offered)
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
            tell(model, context, "documents are not cited in a reply that follows a schema")
        return False

    def _encode_tools(
        self,
        cache: Cache,
        invokers: Sequence[Invoker],
        native: Sequence[Mapping[str, Any]],
        model: Model,
    ) -> Sequence[Fragment]:
        *before, last = cache.encode_tools(
            invokers, native, lambda invokers: self._invocations.nativize(invokers, model)
        )
        # Marks are few, so one that was given as it is stands for ours.
        if self._mark and not any("cache_control" in tool for tool in native):
            return [*before, *append_member((last,), self._mark)]
        return [*before, last]


def _kind_of(members: Mapping[str, Any], name: str) -> object:
    member = members.get(name)
    return member.get("type") if isinstance(member, dict) else None


def _is_document(canister: Canister) -> bool:
    return isinstance(canister, DocumentCanister) or any(
        isinstance(content, FileContent) for content in canister.contents
    )
