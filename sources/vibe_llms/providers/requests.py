"""Requests put together out of what is encoded already: history, tools and controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import is_
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.controls import Controls
from vibe_llms.events import Notice
from vibe_llms.exceptions import ConfigurationError, ControlInvalid, ProviderError, RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.offloading import LOOP_MESSAGES, offload
from vibe_llms.providers.attributes import settle_controls
from vibe_llms.providers.interfaces import Loader, Model, TurnContext
from vibe_llms.providers.pieces import (
    Fragment,
    Slot,
    encode_json,
    fill,
    fit,
    interleave,
    load_texts,
)

T = TypeVar("T")


class GrowingHistory(Protocol):
    """The encoded messages of one conversation for one model."""

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Take the next canister; the notices say what of it is not sent as it is."""
        ...


H = TypeVar("H", bound=GrowingHistory)
#: Tools whose schemas are made to fit in one step of the event loop.
_TOOLS = 200


class HistoryCache(Generic[H]):
    """What a conversation keeps for a model: its history and its tools, encoded once."""

    def __init__(self) -> None:
        self.history: H | None = None
        self._added = 0
        self._last: Canister | None = None
        self._tools: tuple[Sequence[Invoker], Sequence[Any], list[Fragment]] = ((), (), [])
        self._fitted: tuple[Sequence[Invoker], Sequence[Invoker]] = ((), ())

    def begin(self, history: H) -> None:
        """Take an empty history instead of the present one."""
        self.history, self._added = history, 0

    async def extend(
        self,
        canisters: Sequence[Canister],
        context: TurnContext,
        produce: Callable[[], H],
        check: Callable[[Canister], None],
        read: Callable[[Sequence[Canister], Loader], Awaitable[Mapping[str, bytes]]] = load_texts,
    ) -> H:
        """The history of these canisters; what it has already is not looked at again.

        `check` raises for what a canister of this very call cannot hold; `read` loads what has to
        be read of the new ones.
        """
        grown = len(canisters) >= self._added
        same = not self._added or (grown and canisters[self._added - 1] is self._last)
        if self.history is None or not same:
            self.begin(produce())
        assert self.history is not None
        new = canisters[self._added :]
        for canister in new:
            if canister.identity in context.fresh:
                check(canister)
        texts = await read(new, context.load)
        notices: list[Notice] = []
        for number, canister in enumerate(new, 1):
            many = len(canister.contents) > LOOP_MESSAGES
            notices += await offload(many, self.history.add, canister, texts)
            self._added += 1
            self._last = canister
            if number % LOOP_MESSAGES == 0:
                # A long history that is new to this cache is encoded in slices.
                await asyncio.sleep(0)
        for notice in notices:
            context.notify(notice)
        return self.history

    async def fit_tools(
        self,
        invokers: Sequence[Invoker],
        fit: Callable[[Sequence[Invoker]], Sequence[Invoker]],
    ) -> Sequence[Invoker]:
        """The tools as `fit` makes them fit for the wire, once as long as they are the same."""
        known, fitted = self._fitted
        if len(known) != len(invokers) or not all(map(is_, known, invokers)):
            some: list[Invoker] = []
            for start in range(0, len(invokers), _TOOLS):
                if start:
                    await asyncio.sleep(0)
                some += fit(invokers[start : start + _TOOLS])
            fitted = tuple(some)
            self._fitted = (tuple(invokers), fitted)
        return fitted

    def encode_tools(
        self,
        invokers: Sequence[Invoker],
        native: Sequence[Any],
        nativize: Callable[[Sequence[Invoker]], Sequence[Any]],
    ) -> list[Fragment]:
        """The declarations of tools as members of an array; `native` are given as they are."""
        known, known_native, fragments = self._tools
        same = len(known) == len(invokers) and all(map(is_, known, invokers))
        if not fragments or not same or known_native != native:
            tools = [*native, *nativize(invokers)]
            fragments = interleave([(encode_json(tool),) for tool in tools])
            self._tools = (tuple(invokers), native, fragments)
        return fragments


class Request(Struct, frozen=True):
    """A request: what is encoded already, the start of an object, and the members after it.

    `otherwise` gives another request, if one can serve, where the server refuses this one.
    """

    fragments: Sequence[Fragment]
    members: Mapping[str, Any]
    load: Loader
    otherwise: Callable[[ProviderError], Request | None] | None = None

    @property
    def text_size(self) -> int:
        """The number of bytes without images and files."""
        size = sum(len(part) for part in self.fragments if not isinstance(part, Slot))
        return size + len(encode_json(self.members))

    async def produce_body(self, names: Sequence[str] | None = None) -> Sequence[bytes]:
        """The body in parts; of the members only those that are named, if any are."""
        kept = {name: value for name, value in self.members.items() if not names or name in names}
        end = b"," + encode_json(kept)[1:] if kept else b"}"
        return await fill([*self.fragments, end], self.load)


def offer_tools(
    model: Model, invokers: Sequence[Invoker], choice: str | None, context: TurnContext
) -> tuple[Invoker, ...]:
    """The tools to offer: none where none may be called, or the model cannot call any."""
    if not invokers or choice == "none":
        return ()
    if model.attributes.tools != "native":
        send_notice(model, context, "the model cannot call tools, so none are offered to it")
        return ()
    return tuple(invokers)


def send_notice(model: Model, context: TurnContext, text: str, canister: str = "") -> None:
    """A notice on what is not sent to this model as it is."""
    context.notify(Notice("conversion", f"{model.provider}/{model.name}: {text}", canister))


def read_native(model: Model, kind: type[T]) -> T:
    """What only its provider knows of a model; `ConfigurationError` where it is wrong."""
    try:
        return msgspec.convert(model.attributes.native, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"the attributes of {model.name!r} are wrong: {error}",
            table=f"providers.{model.provider}.models",
            key="native",
        ) from error


def apply_controls(
    model: Model,
    controls: Controls,
    context: TurnContext,
    nativize: Callable[[Controls], T],
) -> tuple[T, Mapping[str, Any]]:
    """What the controls become, and what of them is given to this row as it is.

    What this very call asks for and the model does not take is a `ControlInvalid`, of `nativize`
    too; a configured default is left out, with a notice.
    """
    settled, left_out = settle_controls(
        controls, context.default_controls, model.attributes, model.name
    )
    reported = list(left_out)
    while True:
        try:
            members = nativize(settled)
            break
        except ControlInvalid as error:
            if error.control in controls.given() or error.control not in settled.given():
                raise
            reported.append(f"the configured control {error.control} is not sent: {error}")
            open_ = {error.control.replace("-", "_"): None}
            settled = msgspec.structs.replace(settled, **open_)
    for text in reported:
        send_notice(model, context, text)
    return members, settled.extras.get(model.provider, {})


def fit_request(
    fragments: Sequence[Fragment], model: Model, context: TurnContext, *, room: int = 0
) -> Sequence[Fragment]:
    """The fragments within the bytes that the model takes: the oldest media are left out.

    `room` is the number of bytes that come with them. `RequestTooLarge` where that does not
    suffice.
    """
    limit = model.attributes.request_bytes
    if limit is None:
        return fragments
    fitted, dropped, size = fit(fragments, limit - room, context.fresh)
    if size + room > limit:
        raise RequestTooLarge(
            f"the request would have {size + room} bytes, {model.name} takes {limit}; continue in "
            "a fork from an earlier message, or leave images and files out",
            provider=model.provider,
        )
    for slot in dropped:
        reason = f"the request would have more than {limit} bytes"
        send_notice(model, context, f"{slot.label} is left out: {reason}", slot.origin)
    return fitted
