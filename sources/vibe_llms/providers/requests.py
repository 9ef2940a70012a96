"""Requests put together from encoded parts: history, tools, and controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import is_
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import (
    ConfigurationError,
    ControlInvalid,
    ProviderError,
    RequestTooLarge,
)
from vibe_llms.base.offloading import LOOP_MESSAGES, offload
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
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
    """Encoded messages of one conversation for one model."""

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Add the next canister; return notices of what is not sent unchanged."""
        ...


H = TypeVar("H", bound=GrowingHistory)
#: Number of tools whose schemas are rewritten in one step of the event loop.
_TOOLS = 200


class HistoryCache(Generic[H]):
    """Cache of a conversation for a model: its history and its tools, encoded once."""

    def __init__(self) -> None:
        self.history: H | None = None
        self._added = 0
        self._last: Canister | None = None
        self._tools: tuple[Sequence[Invoker], Sequence[Any], list[Fragment]] = ((), (), [])
        self._fitted: tuple[Sequence[Invoker], Sequence[Invoker]] = ((), ())

    def begin(self, history: H) -> None:
        """Replace the history by an empty one."""
        self.history, self._added = history, 0

    async def extend(
        self,
        canisters: Sequence[Canister],
        context: TurnContext,
        produce: Callable[[], H],
        check: Callable[[Canister], None],
        read: Callable[[Sequence[Canister], Loader], Awaitable[Mapping[str, bytes]]] = load_texts,
    ) -> H:
        """Return the history of these canisters; only new ones are added to it.

        `check` raises for unsupported contents in a canister of this call. `read` loads the texts
        of the new canisters.
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
        """Return the tools as `fit` rewrites them for the wire; repeat it only if they change."""
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
        """Return the declarations of tools as members of an array; `native` ones stay unchanged."""
        known, known_native, fragments = self._tools
        same = len(known) == len(invokers) and all(map(is_, known, invokers))
        if not fragments or not same or known_native != native:
            tools = [*native, *nativize(invokers)]
            fragments = interleave([(encode_json(tool),) for tool in tools])
            self._tools = (tuple(invokers), native, fragments)
        return fragments


class Request(Struct, frozen=True):
    """Request as encoded fragments, which begin a JSON object, and the members after them.

    `otherwise` returns another request, if any, when the server refuses this one. `path` replaces
    the usual path of the model.
    """

    fragments: Sequence[Fragment]
    members: Mapping[str, Any]
    load: Loader
    otherwise: Callable[[ProviderError], Request | None] | None = None
    path: str = ""

    @property
    def text_size(self) -> int:
        """Size in bytes without images and files."""
        size = sum(len(part) for part in self.fragments if not isinstance(part, Slot))
        return size + len(encode_json(self.members))

    async def produce_body(self, names: Sequence[str] | None = None) -> Sequence[bytes]:
        """Return the body in parts, with all members or only those that are named."""
        kept = {name: value for name, value in self.members.items() if not names or name in names}
        end = b"," + encode_json(kept)[1:] if kept else b"}"
        return await fill([*self.fragments, end], self.load)


def offer_tools(
    model: Model, invokers: Sequence[Invoker], choice: str | None, context: TurnContext
) -> tuple[Invoker, ...]:
    """Return the tools to offer: none if none may be called, or the model cannot call any."""
    if not invokers or choice == "none":
        return ()
    if model.attributes.tools != "native":
        send_notice(model, context, "the model cannot call tools, so none are offered to it")
        return ()
    return tuple(invokers)


def send_notice(model: Model, context: TurnContext, text: str, canister: str = "") -> None:
    """Send a notice of what is not sent to this model unchanged."""
    context.notify(Notice("conversion", f"{model.provider}/{model.name}: {text}", canister))


def read_native(model: Model, kind: type[T]) -> T:
    """Read the provider's own attributes of a model; raise `ConfigurationError` if invalid."""
    try:
        return msgspec.convert(model.attributes.native, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"invalid attributes of {model.name!r}: {error}",
            table=f"providers.{model.provider}.models",
            key="native",
        ) from error


def apply_controls(
    model: Model,
    controls: Controls,
    context: TurnContext,
    nativize: Callable[[Controls], T],
) -> tuple[T, Mapping[str, Any]]:
    """Return the members that the controls become, and the extras for this row.

    Raise `ControlInvalid`, also from `nativize`, for a control of this call that the model does not
    accept. A configured default is left out, with a notice.
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
    """Fit the fragments into the bytes that the model accepts; leave out the oldest media.

    `room` is the number of bytes sent with them. Raise `RequestTooLarge` if that is not enough.
    """
    limit = model.attributes.request_bytes
    if limit is None:
        return fragments
    fitted, dropped, size = fit(fragments, limit - room, context.fresh)
    if size + room > limit:
        raise RequestTooLarge(
            f"the request would have {size + room} bytes, {model.name} takes {limit}; compact the "
            "conversation, or leave images and files out",
            provider=model.provider,
        )
    for slot in dropped:
        reason = f"the request would have more than {limit} bytes"
        send_notice(model, context, f"{slot.label} is left out: {reason}", slot.origin)
    return fitted
