"""Transports for requests: bytes out; status, headers, and a stream of bytes back.

`http_transport.py` sends with a plain key, a provider's `package.py` through the official client.
Neither retries; `round_trip.py` does.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from vibe_llms.base.exceptions import (
    ConfigurationError,
    ProviderUnreachable,
    ReplyCut,
    ReplyTimeout,
)
from vibe_llms.base.network.connections import AddressKind, Resolver, encode_host, resolve
from vibe_llms.base.network.offline import permit_request
from vibe_llms.base.redaction import redact

#: Maximum number of idle connections, and the seconds for which they are kept.
KEPT_CONNECTIONS = 16
KEPT_SECONDS = 30.0
#: Longer headers are dropped, so that code that reads numbers and dates needs no limit.
_LONGEST_HEADER = 4_000
_REFUSED = "connection refused; is the server running? (base-url in config.toml)"
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
#: OpenSSL's message for a certificate whose authority it does not know.
_UNTRUSTED = re.compile("certificate verify failed: (unable to get|self[- ]signed)")
_ERRNO = re.compile(r"\[Errno (-?\d+)\]")


class Outgoing(Struct, frozen=True):
    """Request; the parts of `body` are sent one after another."""

    method: str
    path: str
    body: Sequence[bytes] = ()
    headers: Mapping[str, str] = {}

    @property
    def size(self) -> int:
        """Size of the body in bytes."""
        return sum(len(part) for part in self.body)


class Incoming(Struct, frozen=True):
    """Reply whose body has not been read; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """Sender of requests; failures on the way raise a `ProviderError`."""

    def prepare(self) -> None:
        """Raise a `ConfigurationError` if a key or a package is missing; send nothing.

        If real requests are forbidden, raise `RequestForbidden`; see `permit_request`.
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


class Endpoint(Struct, frozen=True, kw_only=True):
    """Address that a transport sends to, and its limits.

    `connect_seconds` limits connecting, and `idle_seconds` each write; waiting for the reply is
    limited by its reader. Idle connections are closed after `kept_seconds`. With `offline`, a key
    of the configuration, connections go only to this machine. With `kinds`, they go only to public
    addresses and those of these kinds, as `resolver` finds them. The errors name the `provider`.
    """

    provider: str
    base_url: str
    connect_seconds: float
    idle_seconds: float
    kept_seconds: float = KEPT_SECONDS
    offline: bool = False
    kinds: Collection[AddressKind] | None = None
    resolver: Resolver = resolve

    def not_connected(self, error: Exception) -> ProviderUnreachable:
        """Return the error of a connection that was not made because of `error`."""
        reason = _REFUSED if is_refused(error) else words_of(error)
        if _UNTRUSTED.search(reason):
            reason += "; SSL_CERT_FILE can name a file with the authority's certificate"
        unreachable = self.broken(reason)
        unreachable.connected = False
        return unreachable

    def broken(self, reason: str) -> ProviderUnreachable:
        """Return the error of a connection that broke before the reply began."""
        return ProviderUnreachable(f"{redact(self.base_url)}: {reason}", provider=self.provider)

    def cut(self, reason: str) -> ReplyCut:
        """Return the error of a reply that ended too early."""
        return ReplyCut(f"connection lost during the reply: {reason}", provider=self.provider)

    def connect_timeout(self) -> ReplyTimeout:
        """Return the error of connecting for longer than `connect_seconds`."""
        return ReplyTimeout(
            f"no connection to {redact(self.base_url)} in {self.connect_seconds:g} s "
            "(connect-seconds)",
            provider=self.provider,
            limit="connect-seconds",
            seconds=self.connect_seconds,
        )

    def write_timeout(self) -> ReplyTimeout:
        """Return the error of a server that accepted no bytes for `idle_seconds`."""
        return ReplyTimeout(
            f"the server accepted no data for {self.idle_seconds:g} s (idle-seconds)",
            provider=self.provider,
            limit="idle-seconds",
            seconds=self.idle_seconds,
        )


def permit_transport(
    address: str, provider: str, outgoing: Outgoing | None = None, *, offline: bool = False
) -> None:
    """Raise `RequestForbidden` if nothing may be sent to this address; transports call it first."""
    what = "" if outgoing is None else f" ({outgoing.method} {outgoing.path.partition('?')[0]})"
    permit_request(address, f"{provider}: a request{what}", offline=offline)


def check_address(text: str, provider: str) -> SplitResult:
    """Return the parts of a row's `base-url`; raise `ConfigurationError` if it is invalid."""
    reason = ""
    try:
        parts = urlsplit(text)
        encode_host(parts.hostname or "")
        if parts.port != 0 and parts.scheme in ("http", "https") and parts.hostname:
            return parts
    except ValueError as error:
        reason = f": {error}"
    raise ConfigurationError(
        f"{redact(text)!r} is not an http(s) address{reason}",
        table=f"providers.{provider}",
        key="base-url",
    )


def check_headers(headers: Mapping[str, str], provider: str) -> dict[str, str]:
    """Return the headers of a request, with names in lower case and stripped values.

    A `ConfigurationError` names what cannot be sent, but not its value, which may be a key.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            words = f"{name!r} is not a header name"
        elif not _HEADER_VALUE.fullmatch(value.strip(" \t")):
            words = (
                f"the value of the header {name!r} has a line break, another control character, or "
                "one that is not ASCII"
            )
        else:
            continue
        raise ConfigurationError(words, table=f"providers.{provider}")
    return {name.lower(): value.strip(" \t") for name, value in headers.items()}


def read_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of a reply, with names in lower case; drop values that are too long."""
    return {name.lower(): value for name, value in headers.items() if len(value) <= _LONGEST_HEADER}


def is_refused(error: BaseException | None) -> bool:
    """Return True if a connection was refused."""
    match error:
        case None:
            return False
        case ConnectionRefusedError():
            return True
        case BaseExceptionGroup(exceptions=several):
            return any(map(is_refused, several))
        case OSError(errno=None) if codes := set(_ERRNO.findall(str(error))):
            # asyncio reports the errors of several addresses as one.
            return codes == {str(errno.ECONNREFUSED)}
        case _:
            return is_refused(error.__cause__ or error.__context__)


def words_of(error: Exception) -> str:
    """Return the message of an exception, without keys, or its class name."""
    return redact(str(error)) or type(error).__name__
