"""One round trip over a transport: send, wait within limits, translate, accumulate, retry.

This is the only place that sends anything twice, and it does so only while nothing of the reply has
been seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

from msgspec import Struct

from vibe_llms.configuration import StreamSettings
from vibe_llms.events import Notice
from vibe_llms.exceptions import (
    CredentialRefused,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
)
from vibe_llms.messages.canisters import AssistantCanister, ReplyCanister, StopReason, Usage
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.providers.accumulators import EMPTY_REPLY, Accumulator
from vibe_llms.providers.deltas import Delta
from vibe_llms.providers.interfaces import Notifier, ignore_notices
from vibe_llms.providers.limits import LimiterSlot, access_slot
from vibe_llms.providers.spending import Spending, access_spending
from vibe_llms.providers.transport import Incoming, Outgoing, Transport
from vibe_llms.providers.watch import Watch
from vibe_llms.tracing import Tracer

T = TypeVar("T")

ERROR_BODY_BYTES = 1024 * 1024
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
DRAIN_SECONDS = 0.5
#: More than this is worked on piece by piece, and others get their turn when it takes longer.
PIECE_BYTES = 16 * 1024
BUSY_SECONDS = 0.01
#: So many steps that no time is given back for them.
ALL_OURS = 1_000_000_000
JSON = "application/json"
#: Of a request whose body is JSON.
JSON_HEADERS = {"content-type": JSON}
HTML = "text/html"
_REASONS = frozenset(StopReason)
#: Statuses of servers that are too busy to begin.
_TURNED_AWAY = (503, 529)


class Assimilator(Protocol):
    """Translates the bytes of one reply; made anew for every attempt."""

    def feed(self, chunk: bytes) -> Iterable[Delta]:
        """The steps that some more bytes of the stream make."""
        ...

    def conclude(self) -> Iterable[Delta]:
        """The steps that the end of the stream makes; `ReplyCut` if it came too early."""
        ...

    def assimilate(self, body: bytes) -> Iterable[Delta]:
        """The steps of a reply that was not streamed."""
        ...


#: What the notice of another attempt says of the error before it.
_BRIEFLY: tuple[tuple[type[ProviderError], str], ...] = (
    (RateLimited, "rate limited"),
    (ProviderOverloaded, "overloaded"),
    (ReplyCut, "connection lost"),
    (ProviderError, "no connection"),
)


def _describe_briefly(error: ProviderError) -> str:
    if isinstance(error, ReplyCut) and error.code:
        return "empty reply" if error.code == EMPTY_REPLY else f"failed reply ({error.code})"
    return next(words for kind, words in _BRIEFLY if isinstance(error, kind))


class RoundTrip(Struct, frozen=True, kw_only=True):
    """What a round trip needs to know of its provider.

    `read_error` makes the error of a status other than success out of the body and the headers.
    """

    provider: str
    transport: Transport
    settings: StreamSettings
    produce_assimilator: Callable[[], Assimilator]
    read_error: Callable[[int, Mapping[str, str], bytes], ProviderError]
    notify: Notifier
    throttle: Callable[[], Awaitable[object]] | None = None
    kept: Callable[[], Awaitable[str]] | None = None
    streaming: bool = True
    tracer: Tracer = Tracer()


async def hold(
    trip: RoundTrip,
    outgoing: Outgoing,
    accumulator: Accumulator,
    *,
    otherwise: Callable[[ProviderError], Awaitable[Outgoing | None]] | None = None,
) -> tuple[ReplyCanister, ...]:
    """Send a request and return the canisters of its reply; events go out as they arise.

    `otherwise` may give another request in place of one that was refused: the whole history, say,
    where the server has forgotten the part of it that it should have kept.
    """
    return await attempt_reply(
        _Sending(trip, outgoing, accumulator, otherwise).attempt,
        accumulator,
        provider=trip.provider,
        settings=trip.settings,
        notify=trip.notify,
        tracer=trip.tracer,
    )


class _Sending:
    """The attempts to send one request, or another in its place."""

    def __init__(
        self,
        trip: RoundTrip,
        outgoing: Outgoing,
        accumulator: Accumulator,
        otherwise: Callable[[ProviderError], Awaitable[Outgoing | None]] | None,
    ) -> None:
        self._trip = trip
        self._outgoing = outgoing
        self._accumulator = accumulator
        self._otherwise = otherwise

    async def attempt(self, watch: Watch) -> None:
        """Send the request, and once another one if it is refused."""
        try:
            await _attempt(self._trip, self._outgoing, self._accumulator, watch)
        except RequestRefused as error:
            otherwise, self._otherwise = self._otherwise, None
            other = None if otherwise is None else await otherwise(error)
            if other is None or not self._accumulator.reset():
                raise
            self._outgoing = other
            await _attempt(self._trip, other, self._accumulator, watch)


async def _trace(
    attempt: Callable[[Watch], Awaitable[None]],
    tracer: Tracer,
    number: Iterator[int],
    watch: Watch,
) -> None:
    with tracer.attempt(next(number)):
        await attempt(watch)


async def attempt_reply(
    attempt: Callable[[Watch], Awaitable[None]],
    accumulator: Accumulator,
    *,
    provider: str,
    settings: StreamSettings,
    notify: Notifier,
    tracer: Tracer = Tracer(),
) -> tuple[ReplyCanister, ...]:
    """Make attempts at a reply until one succeeds, something of it was seen, or none is left.

    `attempt` feeds the accumulator and sets the limit of the watch for each wait. On every way out
    of here, also a cancel, the failure of an open message has been reported.
    """
    slot = access_slot()
    accumulator.refuses_empty = True
    if (spending := access_spending()) is not None:
        attempt = _pay(attempt, spending, accumulator)

    traced = partial(_trace, attempt, tracer, count(1))
    # The watch is the inner one: the accumulator has to see its timeout, not a cancel.
    with accumulator:
        if slot is None:
            await _repeat(traced, accumulator.reset, provider, settings, notify)
        else:
            through = _pass(traced, slot, settings, notify)
            try:
                await _repeat(through, accumulator.reset, provider, settings, notify)
            finally:
                slot.settle(accumulator.usage)
    _tell_doubts(accumulator.canisters, notify, provider)
    return accumulator.canisters


def _tell_doubts(canisters: Sequence[ReplyCanister], notify: Notifier, provider: str) -> None:
    """Give a notice of what may be wrong with a reply that is kept."""
    ending = canisters[-1].ending if canisters else None
    if ending is None:
        return
    identity = canisters[-1].identity
    if ending.reason not in _REASONS:
        text = f"{provider}: the reply ended for a reason that is not known: {ending.reason!r}"
        notify(Notice("reply", text, identity))
    elif ending.reason == StopReason.FINISHED and all(map(_only_thinks, canisters)):
        notify(Notice("reply", f"{provider}: the model thought, and gave no answer", identity))


def _only_thinks(canister: ReplyCanister) -> bool:
    contents = canister.contents if isinstance(canister, AssistantCanister) else ()
    return bool(contents) and all(isinstance(one, ReasoningContent) for one in contents)


def _pay(
    attempt: Callable[[Watch], Awaitable[None]], spending: Spending, accumulator: Accumulator
) -> Callable[[Watch], Awaitable[None]]:
    """The attempt, counted against budgets; no time limit runs while it waits for them."""

    async def reserve_and_attempt(watch: Watch) -> None:
        watch.rest()
        await spending.send()
        watch.expect("reply-seconds")
        # Of a reply that is cut, no usage is the last one.
        usage: Usage | None = None
        try:
            await attempt(watch)
            if accumulator.ended and accumulator.usage != Usage():
                usage = accumulator.usage
        except ProviderError as error:
            if error.code == EMPTY_REPLY:
                # It came to its end, so what it cost is known.
                usage = accumulator.usage
            elif accumulator.usage is None and not accumulator.visible and is_free(error):
                usage = Usage()
            raise
        finally:
            await spending.settle(usage)

    return reserve_and_attempt


def is_free(error: ProviderError) -> bool:
    """Whether a provider has surely done nothing for a request that failed."""
    if isinstance(error, ProviderUnreachable):
        return not error.connected
    if isinstance(error, ProviderOverloaded):
        return error.status in _TURNED_AWAY
    return isinstance(error, RequestRefused | CredentialRefused | PaymentRequired | RateLimited)


def _pass(
    attempt: Callable[[Watch], Awaitable[T]],
    slot: LimiterSlot,
    settings: StreamSettings,
    notify: Notifier,
) -> Callable[[Watch], Awaitable[T]]:
    """The attempt, made when the limits of the row allow it; no time limit runs before."""

    async def wait_and_attempt(watch: Watch) -> T:
        watch.rest()
        await slot.enter(notify, settings.retry_wait_seconds)
        watch.expect("reply-seconds")
        try:
            return await attempt(watch)
        except ProviderError as error:
            slot.fail(error)
            raise

    return wait_and_attempt


async def fetch(
    transport: Transport,
    outgoing: Outgoing,
    *,
    provider: str,
    settings: StreamSettings,
    read_error: Callable[[int, Mapping[str, str], bytes], ProviderError],
    notify: Notifier = ignore_notices,
    costly: bool = False,
    slot: LimiterSlot | None = None,
) -> bytes:
    """The whole body of a reply that is no conversation: a list of models, a count of tokens.

    What is `costly` is sent again only where it was refused: after a broken connection it may have
    been done, and be paid for twice. What counts against the limits of a row has a `slot`.
    """
    refused = True

    async def attempt(watch: Watch) -> bytes:
        nonlocal refused
        body = _hand_over(outgoing, watch, settings.first_byte_seconds)
        try:
            async with transport.open(outgoing, body) as incoming:
                return await _read_whole(incoming, provider, settings, read_error, watch)
        except ProviderError as error:
            refused = isinstance(error, RateLimited | ProviderOverloaded)
            raise

    through = attempt if slot is None else _pass(attempt, slot, settings, notify)
    return await _repeat(through, lambda: refused or not costly, provider, settings, notify)


async def _repeat(
    attempt: Callable[[Watch], Awaitable[T]],
    reset: Callable[[], bool],
    provider: str,
    settings: StreamSettings,
    notify: Notifier,
) -> T:
    """The result of the first attempt that succeeds; `reset` says whether another may be made."""
    async with Watch(provider, settings.reply_seconds) as watch:
        retry = 0
        while True:
            retry += 1
            try:
                return await attempt(watch)
            except ProviderError as error:
                wait = _wait_before_retry(error, retry, settings)
                if wait is None or not reset():
                    raise
                brief = _describe_briefly(error)
                seconds = f"{wait:.1f}".removesuffix(".0")
                turn = f"{retry} of {settings.retries}"
                text = f"{brief}; retrying in {seconds} s ({turn})"
            notify(Notice("retry", text))
            watch.expect("reply-seconds")
            await asyncio.sleep(wait)


async def _attempt(
    trip: RoundTrip, outgoing: Outgoing, accumulator: Accumulator, watch: Watch
) -> None:
    settings = trip.settings
    first_byte = settings.first_byte_seconds if trip.streaming else None
    assimilator = trip.produce_assimilator()
    accept = accumulator.accept
    async with trip.transport.open(outgoing, _hand_over(outgoing, watch, first_byte)) as incoming:
        if trip.kept is not None:
            watch.rest()
            accumulator.conversation = await trip.kept()
            watch.expect("idle-seconds", settings.idle_seconds)
        if (
            incoming.status != 200
            or not trip.streaming
            # Also where streaming was asked for: some servers do not stream and answer whole.
            or _kind_of(incoming) in (JSON, HTML)
        ):
            body = await _read_whole(incoming, trip.provider, settings, trip.read_error, watch)
            watch.rest()
            for delta in assimilator.assimilate(body):
                accept(delta)
            return
        size = 0
        async for chunk in incoming.chunks:
            watch.work()
            size += len(chunk)
            if size > settings.reply_bytes:
                raise _exceed(trip.provider, settings)
            steps = 1
            if len(chunk) > PIECE_BYTES:
                await _work_through(chunk, assimilator, accumulator, watch)
                steps = ALL_OURS
            else:
                for steps, delta in enumerate(assimilator.feed(chunk), 1):  # noqa: B007
                    accept(delta)
            if accumulator.ended:
                await _drain(incoming)
                return
            if getattr(assimilator, "ending", False):
                await _read_rest(incoming, assimilator, accumulator)
                break
            if trip.throttle is not None:
                watch.rest()
                await trip.throttle()
            watch.expect("idle-seconds", settings.idle_seconds, steps)
        watch.rest()
        if not accumulator.ended:
            for delta in assimilator.conclude():
                accept(delta)


async def _work_through(
    chunk: bytes, assimilator: Assimilator, accumulator: Accumulator, watch: Watch
) -> None:
    """Take in a large chunk; others get their turn in between."""
    clock = asyncio.get_running_loop().time
    accept = accumulator.accept
    for start in range(0, len(chunk), PIECE_BYTES):
        begun, steps = clock(), 1
        piece = chunk[start : start + PIECE_BYTES]
        for steps, delta in enumerate(assimilator.feed(piece), 1):  # noqa: B007
            accept(delta)
        if accumulator.ended:
            return
        watch.spare(clock() - begun, steps)
        if clock() - begun > BUSY_SECONDS:
            await asyncio.sleep(0)


def _exceed(provider: str, settings: StreamSettings) -> ReplyMalformed:
    return ReplyMalformed(
        f"the reply has more than {settings.reply_bytes:,} bytes (reply-bytes)", provider=provider
    )


async def _hand_over(
    outgoing: Outgoing, watch: Watch, first_byte_seconds: float | None
) -> AsyncIterator[bytes]:
    for part in outgoing.body:
        yield part
    if first_byte_seconds is not None:
        watch.expect("first-byte-seconds", first_byte_seconds)


async def _read_whole(
    incoming: Incoming,
    provider: str,
    settings: StreamSettings,
    read_error: Callable[[int, Mapping[str, str], bytes], ProviderError],
    watch: Watch,
) -> bytes:
    """The body of an answer that is no stream; raises the error that it may be."""
    limit = settings.reply_bytes if incoming.status == 200 else ERROR_BODY_BYTES
    parts: list[bytes] = []
    size = 0
    watch.expect("idle-seconds", settings.idle_seconds)
    async for chunk in incoming.chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            if incoming.status == 200:
                raise _exceed(provider, settings)
            break
        watch.expect("idle-seconds", settings.idle_seconds)
    body = b"".join(parts)
    if incoming.status != 200:
        raise read_error(incoming.status, incoming.headers, body)
    if _kind_of(incoming) == HTML:
        raise ReplyMalformed(
            "the server answered with a web page instead of a reply; is base-url right?",
            provider=provider,
        )
    return body


async def _drain(incoming: Incoming) -> None:
    """Read to the end of a reply that is complete, so that its connection can serve again."""
    with suppress(ProviderError, TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in incoming.chunks:
                pass


async def _read_rest(
    incoming: Incoming, assimilator: Assimilator, accumulator: Accumulator
) -> None:
    """Read for `DRAIN_SECONDS` after an early `[DONE]`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            chunks = aiter(incoming.chunks)
            while not accumulator.ended:
                try:
                    chunk = await anext(chunks)
                except (StopAsyncIteration, ProviderError):
                    # The reply has said its end; it may lack a clean one of its connection.
                    return
                for delta in assimilator.feed(chunk):
                    accumulator.accept(delta)


def _kind_of(incoming: Incoming) -> str:
    return incoming.headers.get("content-type", "").partition(";")[0].strip().lower()


def _wait_before_retry(error: ProviderError, retry: int, settings: StreamSettings) -> float | None:
    """Seconds to wait before a retry, counted from 1; `None` where there shall be none."""
    if retry > settings.retries:
        return None
    if isinstance(error, RateLimited | ProviderOverloaded) and error.retry_after is not None:
        advised: float = error.retry_after
        return advised if advised <= settings.retry_wait_seconds else None
    if not isinstance(error, RateLimited | ProviderOverloaded | ProviderUnreachable | ReplyCut):
        return None
    import random

    longest = min(FIRST_WAIT_SECONDS * 2 ** (retry - 1), LONGEST_WAIT_SECONDS)
    return float(longest * (0.5 + random.random() / 2))  # noqa: S311
