"""Sending requests: bytes out; status, headers and a stream of bytes back.

`HttpTransport` sends through httpx2 with a plain key. A provider's `package.py` may send through
the official client instead. Neither retries; `round_trip.py` does.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from msgspec import Struct

from vibe_llms.configuration import StreamSettings
from vibe_llms.connections import AddressKind, Guard
from vibe_llms.credentials import Credential, guard_loggers
from vibe_llms.exceptions import (
    ConfigurationError,
    ProviderError,
    ProviderUnreachable,
    ReplyCut,
    ReplyTimeout,
)
from vibe_llms.meta import __version__
from vibe_llms.offline import permit_request
from vibe_llms.redaction import redact

if TYPE_CHECKING:
    import ssl

    import httpx2

# How many idle connections are kept, and for how long. Few, because a request that finds them stale
# closes them all before it is sent: with 200 streams at once, one waited 2 s for that.
KEPT_CONNECTIONS = 16
KEPT_SECONDS = 30.0
HELD_UP_SECONDS = 0.05
#: Longer headers are dropped, so that code that reads numbers and dates needs no limit.
_LONGEST_HEADER = 4_000


class Outgoing(Struct, frozen=True):
    """A request; the parts of `body` are sent one after the other."""

    method: str
    path: str
    body: Sequence[bytes] = ()
    headers: Mapping[str, str] = {}

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return sum(len(part) for part in self.body)


class Incoming(Struct, frozen=True):
    """A reply whose body has not been read; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """Sends requests; failures on the way raise a `ProviderError`."""

    def prepare(self) -> None:
        """Raise a `ConfigurationError` if a key or a package is missing; nothing is sent.

        Where real requests are forbidden it raises `RequestForbidden`; see `permit_request`.
        """
        ...

    def open(
        self, outgoing: Outgoing, body: AsyncIterator[bytes]
    ) -> AbstractAsyncContextManager[Incoming]:
        """Send a request; leaving the context closes the reply."""
        ...

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        ...


class HttpTransport:
    """Requests through httpx2.

    `authorize` gives the headers that hold the key; it is called once, when they are needed.
    `connect_seconds` bounds the connecting and `idle_seconds` each write; waiting for the reply is
    bounded by its reader. With `offline`, the key of the configuration, it connects
    only to this machine. With `kinds`, it connects only to public addresses and those of these
    kinds. A task closes all connections `kept_seconds` after the last request, so that no request
    has to close what others left.
    """

    def __init__(
        self,
        provider: str,
        base_url: str,
        authorize: Callable[[], Mapping[str, str]],
        *,
        connect_seconds: float,
        idle_seconds: float,
        kept_seconds: float = KEPT_SECONDS,
        offline: bool = False,
        kinds: Collection[AddressKind] | None = None,
    ) -> None:
        self._provider = provider
        self._offline = offline
        self._kinds = kinds
        self._base_url = base_url.rstrip("/")
        self._authorize = authorize
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._kept_seconds = kept_seconds
        self._client: httpx2.AsyncClient | None = None
        self._headers: Mapping[str, str] | None = None
        self._tls: ssl.SSLContext | None = None
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def prepare(self) -> None:
        """Find the key and check the address; see `Transport`."""
        permit_transport(self._base_url, self._provider, offline=self._offline)
        if self._client is None:
            self._connect()

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and give the reply; see `Transport`."""
        import httpx2

        permit_transport(self._base_url, self._provider, outgoing, offline=self._offline)
        client = self._client or self._connect()
        self._engage()
        try:
            headers = dict(outgoing.headers)
            if outgoing.body:
                headers["content-length"] = str(outgoing.size)
            try:
                request = client.build_request(
                    outgoing.method,
                    self._base_url + outgoing.path,
                    content=body if outgoing.body else None,
                    headers=headers,
                )
                response = await client.send(request, stream=True)
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                raise translate_error(
                    error,
                    self._provider,
                    self._base_url,
                    connect_seconds=self._connect_seconds,
                    idle_seconds=self._idle_seconds,
                ) from error
            try:
                yield produce_incoming(response, self._provider)
            finally:
                await response.aclose()
        finally:
            self._release()

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        self._give_up()
        if self._closing:
            await asyncio.wait(self._closing)

    def _engage(self) -> None:
        self._running += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        self._running -= 1
        if not self._running and self._client is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._kept_seconds, self._give_up)

    def _give_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            task = asyncio.get_running_loop().create_task(client.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _connect(self) -> httpx2.AsyncClient:
        import httpx2

        guard_loggers("httpx2", "httpcore2")
        check_address(self._base_url, self._provider)
        if self._headers is None:
            self._headers = {
                "user-agent": f"vibe-llms/{__version__}",
                "accept-encoding": "identity",
                **self._authorize(),
            }
        try:
            if self._tls is None:
                self._tls = httpx2.create_ssl_context()
            guard = Guard(
                f"{self._provider}: a request",
                offline=self._offline,
                kinds=self._kinds,
                verify=self._tls,
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=KEPT_CONNECTIONS,
                    keepalive_expiry=self._kept_seconds,
                ),
            )
            guard.connect(self._base_url)
            self._client = httpx2.AsyncClient(
                headers=self._headers,
                transport=guard,
                timeout=httpx2.Timeout(
                    connect=self._connect_seconds, write=self._idle_seconds, read=None, pool=None
                ),
                follow_redirects=False,
            )
        except (ImportError, OSError, ValueError, httpx2.InvalidURL) as error:
            raise ConfigurationError(
                "no connection can be made with the proxies and certificates that the environment "
                f"names (HTTPS_PROXY, SSL_CERT_FILE and their kin): {_words(error)}"
            ) from error
        return self._client


def send_bearer(key: str) -> Mapping[str, str]:
    """The header `Authorization: Bearer KEY`."""
    return {"authorization": f"Bearer {key}"}


def reveal_key(
    credential: Credential, authorize: Callable[[str], Mapping[str, str]] = send_bearer
) -> Mapping[str, str]:
    """The headers with the key of a row; none for a row that needs no key."""
    return {} if credential.kind == "none" else authorize(credential.find().reveal())


def produce_http_transport(
    provider: str,
    base_url: str,
    stream: StreamSettings,
    credential: Credential,
    headers: Mapping[str, str] = {},
    *,
    authorize: Callable[[str], Mapping[str, str]] = send_bearer,
    offline: bool = False,
) -> HttpTransport:
    """A transport that sends these headers, and those that `authorize` makes of the row's key."""
    return HttpTransport(
        provider,
        base_url,
        lambda: {**headers, **reveal_key(credential, authorize)},
        connect_seconds=stream.connect_seconds,
        idle_seconds=stream.idle_seconds,
        offline=offline,
    )


def permit_transport(
    address: str, provider: str, outgoing: Outgoing | None = None, *, offline: bool = False
) -> None:
    """Raise `RequestForbidden` if nothing may be sent to this address; transports call it first."""
    what = "" if outgoing is None else f" ({outgoing.method} {outgoing.path.partition('?')[0]})"
    permit_request(address, f"{provider}: a request{what}", offline=offline)


def check_address(text: str, provider: str) -> None:
    """Raise `ConfigurationError` if the `base-url` of a row is not a valid address."""
    import httpx2

    place = {"table": f"providers.{provider}", "key": "base-url"}
    try:
        address = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise ConfigurationError(f"{redact(text)!r} is not an address: {error}", **place) from error
    if address.scheme not in ("http", "https") or not address.host:
        raise ConfigurationError(f"{redact(text)!r} is not an http(s) address", **place)


def produce_incoming(response: httpx2.Response, provider: str) -> Incoming:
    """A response of httpx2 as a reply."""
    return Incoming(
        response.status_code, read_headers(response.headers), _chunks(response, provider)
    )


def read_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a reply, their names in lower case; those that are too long are left out."""
    return {name.lower(): value for name, value in headers.items() if len(value) <= _LONGEST_HEADER}


async def _chunks(response: httpx2.Response, provider: str) -> AsyncIterator[bytes]:
    import httpx2

    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        raise ReplyCut(
            f"connection lost during the reply: {_words(error)}", provider=provider
        ) from error


_REFUSED = "connection refused; is the server running? (base-url in config.toml)"


def translate_error(
    error: Exception, provider: str, address: str, *, connect_seconds: float, idle_seconds: float
) -> ProviderError:
    """The library's error for a failure before a reply began."""
    import httpx2

    match error:
        case httpx2.ConnectTimeout():
            return ReplyTimeout(
                f"no connection to {redact(address)} in {connect_seconds:g} s (connect-seconds)",
                provider=provider,
                limit="connect-seconds",
                seconds=connect_seconds,
            )
        case httpx2.WriteTimeout():
            return ReplyTimeout(
                f"the server took no bytes for {idle_seconds:g} s (idle-seconds)",
                provider=provider,
                limit="idle-seconds",
                seconds=idle_seconds,
            )
        case _:
            reason = _REFUSED if _is_refused(error) else _words(error)
            return ProviderUnreachable(f"{redact(address)}: {reason}", provider=provider)


def _is_refused(error: BaseException | None) -> bool:
    """Whether a connection was refused; clients wrap that in errors of their own."""
    match error:
        case None:
            return False
        case ConnectionRefusedError():
            return True
        case BaseExceptionGroup(exceptions=several):
            return any(map(_is_refused, several))
        case _:
            return _is_refused(error.__cause__ or error.__context__)


class Watch:
    """Ends a wait when a limit runs out, as a `ReplyTimeout` that names the limit.

    Time counts from `expect`. After `work` only `reply-seconds` runs, the limit of the whole reply;
    `expect` checks it too, because a flood leaves no time for a timer. After `rest` no limit runs
    until the next `expect`: readers may take as long as they want, and `spare` gives back the time
    of slow handlers. One timer serves all limits, so that a chunk starts none.
    """

    def __init__(self, provider: str, reply_seconds: float) -> None:
        self._provider = provider
        self._reply_seconds = reply_seconds
        self._scope = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + reply_seconds
        self._due = math.inf
        self._limit = ("reply-seconds", reply_seconds)
        self._rested: float | None = None
        self._worked = math.inf
        self._armed = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._fired: tuple[str, float] | None = None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._arm(self._end)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fired, self._fired = self._fired, self._fired or self._limit
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            assert fired is not None
            raise self._failure(*fired) from timeout

    def expect(self, limit: str, seconds: float = math.inf, steps: int = 1) -> None:
        """Require that something arrives within so many seconds.

        `steps` are those of the work before; the time of its handlers is given back.
        """
        now = self._loop.time()
        if self._rested is not None:
            self._end += now - self._rested
            self._rested = None
        elif now - self._worked > HELD_UP_SECONDS:
            self.spare(now - self._worked, steps)
        self._worked = math.inf
        if now >= self._end:
            raise self._failure("reply-seconds", self._reply_seconds)
        self._due = due = now + seconds
        self._limit = (limit, seconds)
        if due < self._armed or self._timer is None:
            self._arm(due)

    def work(self) -> None:
        """Record that something arrived and is being processed."""
        self._due = math.inf
        self._worked = self._loop.time()

    def spare(self, seconds: float, steps: int = 1) -> None:
        """Give back the time of so many steps if it exceeds what they take without a handler."""
        if seconds > HELD_UP_SECONDS * steps:
            self._end += seconds

    def rest(self) -> None:
        """Stop the clock: nothing is expected."""
        self._due = self._worked = math.inf
        if self._rested is None:
            self._rested = self._loop.time()

    def _failure(self, limit: str, seconds: float) -> ReplyTimeout:
        whole = limit == "reply-seconds"
        words = "the reply was not complete" if whole else "no answer"
        return ReplyTimeout(
            f"{words} within {seconds:g} s ({limit})",
            provider=self._provider,
            limit=limit,
            seconds=seconds,
        )

    def _arm(self, when: float) -> None:
        if self._fired is not None:
            # An expired scope cannot expire again.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed = min(when, self._end)
        self._timer = self._loop.call_at(self._armed, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        late = now - self._armed > HELD_UP_SECONDS
        self._armed = math.inf
        self._timer = None
        if self._rested is not None:
            return
        if late:
            # The loop was blocked: what arrived in that time has not been delivered yet.
            self._armed = now + HELD_UP_SECONDS
            self._timer = self._loop.call_at(self._armed, self._tick)
        elif now >= self._end:
            self._expire("reply-seconds", self._reply_seconds)
        elif now >= self._due:
            self._expire(*self._limit)
        else:
            self._arm(self._due)

    def _expire(self, limit: str, seconds: float) -> None:
        self._fired = (limit, seconds)
        self._scope.reschedule(self._loop.time())


def _words(error: Exception) -> str:
    return redact(str(error)) or type(error).__name__
