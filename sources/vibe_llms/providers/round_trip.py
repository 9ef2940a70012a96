"""Round trip over a transport: send, wait within limits, translate, accumulate, retry.

This is the only place that sends anything twice, and only while nothing of the reply has been seen.
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

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import (
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
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.messages.events import Notice
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.accumulators import EMPTY_REPLY, Accumulator
from vibe_llms.providers.deltas import Delta
from vibe_llms.providers.interfaces import Notifier, ignore_notices
from vibe_llms.providers.limits import LimiterSlot, access_slot
from vibe_llms.providers.spending import Spending, access_spending
from vibe_llms.providers.transport import Incoming, Outgoing, Transport
from vibe_llms.providers.watch import Watch

T = TypeVar("T")

ERROR_BODY_BYTES = 1024 * 1024
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
DRAIN_SECONDS = 0.5
#: Larger chunks are processed in pieces; other tasks run if a piece exceeds `BUSY_SECONDS`.
PIECE_BYTES = 16 * 1024
BUSY_SECONDS = 0.01
#: Step count for large chunks, whose handler time is credited piece by piece.
ALL_OURS = 1_000_000_000
JSON = "application/json"
#: Headers of a request whose body is JSON.
JSON_HEADERS = {"content-type": JSON}
HTML = "text/html"
_REASONS = frozenset(StopReason)
#: Statuses of servers that are too busy to begin.
_TURNED_AWAY = (503, 529)


class Assimilator(Protocol):
    """Translator of one reply's bytes, created for every attempt."""

    def feed(self, chunk: bytes) -> Iterable[Delta]:
        """Return the deltas of more bytes of the stream."""
        ...

    def conclude(self) -> Iterable[Delta]:
        """Return the deltas of the stream's end; raise `ReplyCut` if it came too early."""
        ...

    def assimilate(self, body: bytes) -> Iterable[Delta]:
        """Return the deltas of a reply that was not streamed."""
        ...


#: Descriptions of an error in the notice of another attempt.
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
    """Settings of a round trip to a provider.

    `read_error` returns the error for an unsuccessful status, its headers, and its body.
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


async def run_round_trip(
    trip: RoundTrip,
    outgoing: Outgoing,
    accumulator: Accumulator,
    *,
    otherwise: Callable[[ProviderError], Awaitable[Outgoing | None]] | None = None,
) -> tuple[ReplyCanister, ...]:
    """Send a request and return the canisters of its reply; events are sent as they occur.

    `otherwise` may return another request in place of a refused one, such as the whole history if
    the server has forgotten the part that it should have kept.
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
    """Attempts to send one request, or another in its place."""

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
    """Make attempts until one succeeds, something of a reply was seen, or none is left.

    `attempt` feeds the accumulator and sets the limit of the watch for each wait. On every exit,
    including cancellation, the failure of an open message has been reported.
    """
    slot = access_slot()
    accumulator.refuses_empty = True
    if (spending := access_spending()) is not None:
        attempt = _charge_budgets(attempt, spending, accumulator)

    traced = partial(_trace, attempt, tracer, count(1))
    # The watch is inside, so that the accumulator sees its timeout, not a cancellation.
    with accumulator:
        if slot is None:
            await _repeat(traced, accumulator.reset, provider, settings, notify)
        else:
            through = _pass_limiter(traced, slot, settings, notify)
            try:
                await _repeat(through, accumulator.reset, provider, settings, notify)
            finally:
                slot.record_usage(accumulator.usage)
    _report_doubts(accumulator.canisters, notify, provider)
    return accumulator.canisters


def _report_doubts(canisters: Sequence[ReplyCanister], notify: Notifier, provider: str) -> None:
    """Send a notice of what may be wrong with a reply that is kept."""
    ending = canisters[-1].ending if canisters else None
    if ending is None:
        return
    identity = canisters[-1].identity
    if ending.reason not in _REASONS:
        text = f"{provider}: the reply ended for an unknown reason: {ending.reason!r}"
        notify(Notice("reply", text, identity))
    elif ending.reason == StopReason.FINISHED and all(map(_has_only_reasoning, canisters)):
        notify(
            Notice(
                "reply", f"{provider}: the reply contains only reasoning and no answer", identity
            )
        )


def _has_only_reasoning(canister: ReplyCanister) -> bool:
    contents = canister.contents if isinstance(canister, AssistantCanister) else ()
    # A text without words only has a signature.
    said = [one for one in contents if not (isinstance(one, TextualContent) and one.data == "")]
    return bool(said) and all(isinstance(one, ReasoningContent) for one in said)


def _charge_budgets(
    attempt: Callable[[Watch], Awaitable[None]], spending: Spending, accumulator: Accumulator
) -> Callable[[Watch], Awaitable[None]]:
    """Return the attempt, counted against budgets; no time limit runs while it waits for them."""

    async def reserve_and_attempt(watch: Watch) -> None:
        watch.rest()
        await spending.send()
        watch.expect("reply-seconds")
        # A reply that is cut off has no final usage.
        usage: Usage | None = None
        try:
            await attempt(watch)
            if accumulator.ended and accumulator.usage != Usage():
                usage = accumulator.usage
        except ProviderError as error:
            if error.code == EMPTY_REPLY:
                # It ended, so its usage is known.
                usage = accumulator.usage
            elif accumulator.usage is None and not accumulator.visible and is_free(error):
                usage = Usage()
            raise
        finally:
            await spending.record_usage(usage)

    return reserve_and_attempt


def is_free(error: ProviderError) -> bool:
    """Return True if a provider has certainly done nothing for a request that failed."""
    if isinstance(error, ProviderUnreachable):
        return not error.connected
    if isinstance(error, ProviderOverloaded):
        return error.status in _TURNED_AWAY
    return isinstance(error, RequestRefused | CredentialRefused | PaymentRequired | RateLimited)


def _pass_limiter(
    attempt: Callable[[Watch], Awaitable[T]],
    slot: LimiterSlot,
    settings: StreamSettings,
    notify: Notifier,
) -> Callable[[Watch], Awaitable[T]]:
    """Return the attempt, made when the limits of the row allow it; no time limit runs before."""

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
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return the whole body of a response that is not a reply, such as a list of models.

    A `costly` request is sent again only if it was refused: after a broken connection it may have
    been done, and be charged twice. A request that counts against the limits of a row has a `slot`.
    The headers of the response are added to `headers`.
    """
    refused = True

    async def attempt(watch: Watch) -> bytes:
        nonlocal refused
        sent = _hand_over(outgoing, watch, settings.first_byte_seconds)
        try:
            async with transport.open(outgoing, sent) as incoming:
                body = await _read_whole(incoming, provider, settings, read_error, watch)
                if headers is not None:
                    headers.update(incoming.headers)
                return body
        except ProviderError as error:
            refused = isinstance(error, RateLimited | ProviderOverloaded)
            raise

    through = attempt if slot is None else _pass_limiter(attempt, slot, settings, notify)
    return await _repeat(through, lambda: refused or not costly, provider, settings, notify)


async def _repeat(
    attempt: Callable[[Watch], Awaitable[T]],
    reset: Callable[[], bool],
    provider: str,
    settings: StreamSettings,
    notify: Notifier,
) -> T:
    """Return the first successful result; `reset` returns True if another attempt is allowed."""
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
            # Also if streaming was requested: some servers do not stream.
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
            ending = getattr(assimilator, "ending", False)
            if ending and await _read_rest(incoming, assimilator, accumulator):
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
    """Process a large chunk in pieces, so that other tasks run in between."""
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
    """Return the body of an unstreamed response, or raise its error."""
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
    """Read to the end of a complete reply, so that its connection can be reused."""
    with suppress(ProviderError, TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in incoming.chunks:
                pass


async def _read_rest(
    incoming: Incoming, assimilator: Assimilator, accumulator: Accumulator
) -> bool:
    """Read for `DRAIN_SECONDS` after what looks like the end; return False if it was not."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            chunks = aiter(incoming.chunks)
            while not accumulator.ended:
                try:
                    chunk = await anext(chunks)
                except (StopAsyncIteration, ProviderError):
                    # The reply is complete; its connection may lack a clean end.
                    break
                for delta in assimilator.feed(chunk):
                    accumulator.accept(delta)
                if not getattr(assimilator, "ending", True):
                    return False
    return True


def _kind_of(incoming: Incoming) -> str:
    return incoming.headers.get("content-type", "").partition(";")[0].strip().lower()


def _wait_before_retry(error: ProviderError, retry: int, settings: StreamSettings) -> float | None:
    """Return the seconds to wait before a retry, counted from 1, or `None` for no retry."""
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
