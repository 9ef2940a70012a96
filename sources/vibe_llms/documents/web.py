"""Fetching of untrusted web addresses that a user or a model names.

No request goes to an address that only this machine or its network can reach, unless the
configuration allows its host. See documentation/adr/0055-addresses-that-may-be-fetched.md.
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import WebSettings
from vibe_llms.base.exceptions import (
    ConfigurationError,
    PageUnreadable,
    ProviderError,
    ReplyTimeout,
)
from vibe_llms.base.files import describe_size
from vibe_llms.base.network.connections import (
    PORTS,
    AddressKind,
    AddressRefused,
    Resolver,
    choose_proxy,
    classify_address,
    encode_host,
    is_address,
    resolve,
)
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.transport import Incoming, Outgoing, is_refused, words_of

#: Raises an error if a page's redirect to an address must not be followed.
Admit: TypeAlias = Callable[[str], Awaitable[None]]

_PURPOSE = "web"
_HEADERS = {"accept-encoding": "gzip"}
#: Kinds of addresses that allowed hosts may have besides public ones.
_ALLOWED: Sequence[AddressKind] = ("private", "loopback", "link-local")
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
#: Text that systems read as an IPv4 address or a part of one: decimal, octal, or hexadecimal.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE | re.ASCII)
#: Accepted encodings of texts. Python has others, some of which are very slow.
_ENCODINGS = re.compile(
    r"us-ascii|utf-(8|16|16le|16be)|iso-8859-([1-9]|1[0-6])|windows-125[0-8]|koi8-[ru]|gb2312|gbk|"
    r"gb18030|big5(-hkscs)?|shift_jis|euc-(jp|kr)"
)
_REDIRECTS = (301, 302, 303, 307, 308)
_LONGEST_NAME = 200


class Target(Struct, frozen=True):
    """A web address that may be fetched, judged by its text alone.

    `host` includes its port unless it is the scheme's default. `kinds` are the kinds of addresses
    that the host may have besides public ones.
    """

    origin: str
    path: str
    host: str
    kinds: Sequence[AddressKind] = ()

    @property
    def url(self) -> str:
        """Address without its fragment."""
        return self.origin + self.path


class WebReply(Struct, frozen=True):
    """Response to a request; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Fetched(Struct, frozen=True):
    """Response of a web address.

    `url` is the final address, after `redirects`. `name` is the last part of its path, for its
    suffix. `mimetype` and `charset` are empty if the server did not send them.
    """

    url: str
    data: bytes
    mimetype: str = ""
    charset: str = ""
    status: int = 200
    redirects: tuple[str, ...] = ()

    @property
    def document(self) -> bytes:
        """Data for a reader, as UTF-8 if it is text in an encoding that the server names."""
        if not self.mimetype.startswith("text/") or not _ENCODINGS.fullmatch(self.charset):
            return self.data
        return codecs.BOM_UTF8 + self.data.decode(self.charset, "replace").lstrip("\ufeff").encode()

    @property
    def name(self) -> str:
        """Last part of the path, or the host."""
        parts = urlsplit(self.url)
        last = unquote(parts.path.rpartition("/")[2])
        return (last or parts.hostname or "")[-_LONGEST_NAME:]


async def fetch(
    url: str,
    settings: WebSettings,
    *,
    offline: bool = False,
    admit: Admit | None = None,
    resolver: Resolver = resolve,
) -> Fetched:
    """Fetch a web address after its redirects, or raise `PageUnreadable` with the reason.

    `admit` is awaited before a redirect to another host is followed, which does not count toward
    the time limit. Raises `RequestForbidden` while requests are forbidden. Cookies, keys, and
    referrers are never sent.
    """
    target = check_url(url, settings)
    passed: list[str] = []
    try:
        async with asyncio.timeout(settings.page_seconds) as limit:
            while True:
                found = await _request(target, settings, offline, resolver)
                if isinstance(found, Fetched):
                    return msgspec.structs.replace(found, redirects=tuple(passed))
                passed.append(target.url)
                before, target = target, _check_redirect(found, target, passed, settings)
                if admit is not None and target.host != before.host:
                    await _pause(limit, admit(target.url))
    except TimeoutError as error:
        raise _time_out(target.url, settings) from error


async def _pause(limit: asyncio.Timeout, work: Awaitable[None]) -> None:
    """Await something while a time limit is paused."""
    clock = asyncio.get_running_loop().time
    due = limit.when()
    assert due is not None
    left = due - clock()
    limit.reschedule(None)
    await work
    limit.reschedule(clock() + left)


def check_url(url: str, settings: WebSettings) -> Target:
    """Check an address by its text alone, and return it or raise `PageUnreadable`.

    >>> check_url("HTTP://Example.org:80/a?b#c", WebSettings()).url
    'http://example.org/a?b'
    """
    url = url.strip(" ")
    if not url.isprintable():
        raise _invalid("the URL has control characters", repr(url)[1:-1])
    try:
        parts = urlsplit(url)
        port = PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
        host = _check_host(encode_host(parts.hostname or ""), url) if parts.netloc else ""
    except ValueError as error:
        raise _invalid(str(error), url) from error
    if parts.scheme not in PORTS or not host:
        raise PageUnreadable("the URL must start with http:// or https://", url=url)
    if "@" in parts.netloc:
        raise PageUnreadable(
            "the URL contains a user name or a password, which are never sent; remove them", url=url
        )
    named = f"[{host}]" if ":" in host else host
    if port != PORTS[parts.scheme]:
        named += f":{port}"
    kinds: Sequence[AddressKind] = _ALLOWED if _is_allowed(host, port, settings) else ()
    if not kinds and port not in PORTS.values():
        raise PageUnreadable(f"port {port} is neither 80 nor 443; {_remedy(named)}", url=url)
    if is_address(host) and (kind := classify_address(host)) not in ("public", *kinds):
        raise _refuse(url, named, kind)
    return Target(f"{parts.scheme}://{named}", _path_of(parts), named, kinds)


def _invalid(reason: str, url: str) -> PageUnreadable:
    return PageUnreadable(f"it is not a valid address: {reason}", url=url)


def _path_of(parts: SplitResult) -> str:
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _check_host(host: str, url: str) -> str:
    """Return an unambiguous host: a name, or an IP address in its usual form."""
    if ":" in host:
        if "%" in host:
            raise _invalid("it names a network interface", url)
        return str(ipaddress.IPv6Address(host))
    host = host.removesuffix(".")
    if not _HOST.fullmatch(host):
        raise _invalid(f"{host!r} is not a host", url)
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not is_address(host):
        raise PageUnreadable(
            f"{host} is an unusual form of an IP address; write it as four numbers", url=url
        )
    return host


def _is_allowed(host: str, port: int, settings: WebSettings) -> bool:
    return any(
        host == allowed and (port in PORTS.values() if place is None else port == place)
        for allowed, place in read_hosts(settings)
    )


def read_hosts(settings: WebSettings) -> Sequence[tuple[str, int | None]]:
    """Return the allowed hosts and their ports, or raise a `ConfigurationError`."""
    found = []
    for text in settings.allow_hosts:
        # An IPv6 address without a port may be written without brackets.
        named = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
        try:
            parts = urlsplit(f"//{named}")
            host, port = _check_host(encode_host(parts.hostname or ""), text), parts.port
        except (ValueError, PageUnreadable) as error:
            raise _not_a_host(text) from error
        if parts.netloc != named or "@" in named:
            raise _not_a_host(text)
        found.append((host, port))
    return found


def _not_a_host(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} is not a host, such as intranet.example or 127.0.0.1:8000",
        table="web",
        key="allow-hosts",
    )


def _remedy(host: str) -> str:
    return f'if you trust it, allow it in the configuration: [web] allow-hosts = ["{host}"]'


def _refuse(url: str, host: str, kind: AddressKind) -> PageUnreadable:
    remedy = f"; {_remedy(host)}" if kind in _ALLOWED else ""
    return PageUnreadable(f"{host} has a {kind} address, which is not read{remedy}", url=url)


def _check_redirect(
    location: str, before: Target, passed: Sequence[str], settings: WebSettings
) -> Target:
    """Return the target of a redirect if it may be followed."""
    try:
        url = urljoin(before.url, location)
    except ValueError as error:
        raise _invalid(str(error), location) from error
    target = check_url(url, settings)
    if target.kinds and not before.kinds:
        raise PageUnreadable(
            f"it redirects to {target.host}, which public pages may not refer to; if you "
            f"trust it, read {target.url} instead",
            url=passed[0],
        )
    if target.url in passed:
        raise PageUnreadable(f"it redirects in a circle through {target.url}", url=passed[0])
    if len(passed) > settings.redirects:
        raise PageUnreadable(
            f"it redirects more than {settings.redirects} times ([web] redirects)", url=passed[0]
        )
    return target


async def exchange(
    url: str,
    outgoing: Outgoing,
    settings: WebSettings,
    *,
    authorize: Callable[[], Mapping[str, str]] = dict,
    offline: bool = False,
) -> WebReply:
    """Send one request to the host of `url`, and return the response, of any status.

    `authorize` returns further headers, such as a key. Redirects are not followed. Raises
    `PageUnreadable` as `fetch` does; it contains `url`, but not the path of `outgoing`.
    """
    target = check_url(url, settings)
    try:
        async with (
            asyncio.timeout(settings.page_seconds),
            _open(target, outgoing, settings, authorize, offline=offline) as incoming,
        ):
            data = await _receive(incoming, target, settings)
            return WebReply(incoming.status, incoming.headers, data)
    except TimeoutError as error:
        raise _time_out(target.url, settings) from error


async def _request(
    target: Target, settings: WebSettings, offline: bool, resolver: Resolver
) -> Fetched | str:
    """Return the response of an address, or the location of its redirect."""
    outgoing = Outgoing("GET", target.path)
    async with _open(target, outgoing, settings, offline=offline, resolver=resolver) as incoming:
        return await _read(incoming, target, settings)


@asynccontextmanager
async def _open(
    target: Target,
    outgoing: Outgoing,
    settings: WebSettings,
    authorize: Callable[[], Mapping[str, str]] = dict,
    *,
    offline: bool,
    resolver: Resolver = resolve,
) -> AsyncIterator[Incoming]:
    """Send a request to the host of a target, and return the response while it arrives."""
    require_direct(target.origin, target.url, settings)
    transport = HttpTransport(
        _PURPOSE,
        target.origin,
        lambda: {**_HEADERS, **authorize()},
        connect_seconds=settings.page_seconds,
        idle_seconds=settings.page_seconds,
        offline=offline,
        kinds=target.kinds,
        resolver=resolver,
    )
    try:
        async with transport.open(outgoing, _send(outgoing.body)) as incoming:
            yield incoming
    except ProviderError as error:
        raise _explain(error, target, settings) from error
    finally:
        await transport.close()


def require_direct(origin: str, url: str, settings: WebSettings) -> None:
    """Raise `PageUnreadable` if an origin is behind a proxy that the settings do not allow."""
    if not settings.proxy and choose_proxy(origin) is not None:
        raise PageUnreadable(
            "your environment names a proxy, and what it connects to cannot be checked here; if "
            "you trust it, set in the configuration: [web] proxy = true",
            url=url,
        )


async def _send(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def _read(incoming: Incoming, target: Target, settings: WebSettings) -> Fetched | str:
    status, headers = incoming.status, incoming.headers
    if status in _REDIRECTS and (location := headers.get("location")):
        return _decode(location)
    if not 200 <= status < 300:
        raise PageUnreadable(_describe_status(status), url=target.url, status=status)
    data = await _receive(incoming, target, settings)
    kind = headers.get("content-type", "")
    charset = _CHARSET.search(kind)
    return Fetched(
        target.url,
        data,
        kind.partition(";")[0].strip().lower(),
        charset[1].lower() if charset else "",
        status,
    )


async def _receive(incoming: Incoming, target: Target, settings: WebSettings) -> bytes:
    """Return the body of a response that is not larger than `page-bytes`."""
    too_large = PageUnreadable(
        f"it is larger than {describe_size(settings.page_bytes)} ([web] page-bytes)",
        url=target.url,
        status=incoming.status,
    )
    if _length_of(incoming.headers) > settings.page_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for chunk in incoming.chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > settings.page_bytes:
            raise too_large
    return b"".join(parts)


def _length_of(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _decode(header: str) -> str:
    """Decode a header as UTF-8, which servers send although they should not."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _describe_status(status: int) -> str:
    try:
        words = f" ({HTTPStatus(status).phrase})"
    except ValueError:
        words = ""
    match status:
        case 401 | 403 | 407:
            remedy = "; it may need signing in, and no key is sent"
        case 404 | 410:
            remedy = "; check the address"
        case 408 | 425 | 429 | 500 | 502 | 503 | 504:
            remedy = "; try again later"
        case _:
            remedy = ""
    return f"the server answered with status {status}{words}{remedy}"


def _explain(error: ProviderError, target: Target, settings: WebSettings) -> PageUnreadable:
    """Return the reason of a failed request for someone who wants to read a page."""
    import ssl

    if isinstance(error, ReplyTimeout):
        return _time_out(target.url, settings)
    for cause in _causes(error):
        match cause:
            case AddressRefused():
                return _refuse(target.url, target.host, cause.kind)
            case socket.gaierror() | UnicodeError():
                return PageUnreadable(
                    f"host {target.host} not found; check the address and the network",
                    url=target.url,
                )
            case ssl.SSLCertVerificationError():
                return PageUnreadable(
                    f"its certificate is not valid: {cause.verify_message}; SSL_CERT_FILE can name "
                    "a file with the certificate of an authority that you trust",
                    url=target.url,
                )
            case ssl.SSLError():
                return PageUnreadable(f"the TLS connection failed: {cause}", url=target.url)
    if is_refused(error):
        return PageUnreadable("the connection was refused; check the address", url=target.url)
    words = words_of(error).removeprefix(f"{_PURPOSE}: ").removeprefix(f"{target.origin}: ")
    return PageUnreadable(words, url=target.url)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _time_out(url: str, settings: WebSettings) -> PageUnreadable:
    return PageUnreadable(
        f"it took longer than {settings.page_seconds:g} s; try again, or raise [web] page-seconds",
        url=url,
    )
