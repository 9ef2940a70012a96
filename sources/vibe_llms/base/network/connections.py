"""Proxies, permitted addresses, certificates, and decoding for all connections.

Used by `guard.py` for requests through httpx2, and by `providers/direct_transport.py`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from vibe_llms.base.network.offline import is_loopback, requests_forbidden

if TYPE_CHECKING:
    import ssl


#: The kind of an address. `reserved` addresses belong to no single host, or are unused.
AddressKind: TypeAlias = Literal["public", "private", "loopback", "link-local", "reserved"]
#: Resolves a host to its addresses.
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

#: Default port of each permitted URL scheme.
PORTS = {"http": 80, "https": 443}
_ENCODINGS = ("gzip", "x-gzip", "deflate")
#: The `wbits` argument of `zlib.decompressobj`.
_GZIP_OR_ZLIB = 47
_PIECE_BYTES = 64 * 1024
#: Largest excess in bytes of a compressed body over its decoded contents.
_SURPLUS_BYTES = 1024 * 1024
#: Certificate files of common systems.
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
#: Networks whose last 32 bits are an IPv4 address: IPv4-mapped addresses and NAT64.
_EMBEDDING = (
    ipaddress.IPv6Network("::ffff:0:0/96"),
    ipaddress.IPv6Network("64:ff9b::/96"),
    _LOCAL_NAT64,
)
_COMPATIBLE = ipaddress.IPv6Network("::/96")
#: Private networks unknown to `ipaddress`: carrier-grade NAT, site-local, and local NAT64.
_PRIVATE = (
    ipaddress.IPv4Network("100.64.0.0/10"),
    ipaddress.IPv6Network("fec0::/10"),
    _LOCAL_NAT64,
)
#: Azure's host agent, which has this address on every virtual machine. Source:
#: https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
_AZURE = ipaddress.IPv4Address("168.63.129.16")
#: Contains all global unicast IPv6 addresses.
_UNICAST = ipaddress.IPv6Network("2000::/3")
#: Special blocks in the IANA registries that some versions of `ipaddress` report as public.
_SPECIAL = (
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("2001::/23"),
    ipaddress.ip_network("3fff::/20"),
)


def choose_proxy(url: str) -> str | None:
    """Return the proxy that the environment sets for an address, or None.

    Requests to this machine use no proxy, and no proxy is used while requests are forbidden.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if requests_forbidden() or is_loopback(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def origin_of(url: str) -> str:
    """Return the normalized origin of a web address; raises `ValueError` if it is invalid.

    >>> origin_of("https://Example.org:443/path?query"), origin_of("http://[::1]:80")
    ('https://example.org', 'http://[::1]')
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not a web address")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = f":{parts.port}" if parts.port and parts.port != PORTS[parts.scheme] else ""
    return f"{parts.scheme}://{host}{place}"


def encode_host(host: str) -> str:
    """Encode a host for DNS, as httpx2 does; raises `ValueError` if it cannot be encoded.

    >>> encode_host("Straße.example")
    'xn--strae-oqa.example'
    """
    if not host.isprintable() or " " in host:
        raise ValueError("a host has no spaces or control characters")
    if host.isascii():
        # The `idna` codec checks the lengths of the labels.
        return host.lower().encode("idna").decode("ascii")
    import idna

    return idna.encode(host.lower()).decode("ascii")


def classify_address(address: str) -> AddressKind:
    """Return the kind of an IP address; an embedded IPv4 address decides for an IPv6 address.

    Source: the registries of special-purpose addresses of IANA (2026-11).

    >>> [classify_address(one) for one in ("9.9.9.9", "::ffff:10.0.0.1", "169.254.169.254")]
    ['public', 'private', 'link-local']
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return _classify(ip)
    inner = _find_inner(ip)
    kind: AddressKind = "public" if inner is None else _classify(inner)
    if kind != "public" or (inner is not None and ip not in _LOCAL_NAT64 and not _is_isatap(ip)):
        return kind
    return _classify(ip)


def _classify(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> AddressKind:
    if ip.is_loopback:
        return "loopback"
    if ip.is_link_local or ip == _AZURE:
        return "link-local"
    if ip.is_unspecified or ip.is_multicast or any(ip in network for network in _SPECIAL):
        return "reserved"
    if any(ip in network for network in _PRIVATE) or (ip.is_private and not ip.is_reserved):
        return "private"
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _UNICAST:
        return "reserved"
    return "public" if ip.is_global else "reserved"


def _find_inner(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    number = int(ip)
    compatible = ip in _COMPATIBLE and number > 0xFFFF
    if compatible or _is_isatap(ip) or any(ip in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(number & 0xFFFF_FFFF)
    return None


def _is_isatap(ip: ipaddress.IPv6Address) -> bool:
    """Return True if the second half of an address contains an IPv4 address (RFC 5214)."""
    return int(ip) >> 32 & 0xFDFF_FFFF == 0x5EFE


def is_address(host: str) -> bool:
    """Return True if a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a host to its addresses; raises `OSError` if it has none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class AddressRefused(Exception):
    """A host has an address to which no request may be sent; the cause of a connection error."""

    def __init__(self, host: str, address: str, kind: AddressKind) -> None:
        which = host if host == address else f"{host} ({address})"
        super().__init__(f"requests to {which} are not allowed: it is a {kind} address")
        self.host = host
        self.kind: AddressKind = kind


def permitted_kinds(
    kinds: Collection[AddressKind] | None, *, offline: bool
) -> Collection[AddressKind] | None:
    """Return the kinds of addresses that may be connected to, or None if all are permitted.

    Public addresses are added to `kinds`. While requests are forbidden, only loopback addresses are
    permitted, unless `kinds` excludes them.
    """
    if not offline and not requests_forbidden():
        return None if kinds is None else {"public", *kinds}
    return ["loopback"] if kinds is None or "loopback" in kinds else []


async def find_permitted(
    host: str, port: int, kinds: Collection[AddressKind], resolver: Resolver = resolve
) -> Sequence[str]:
    """Return the addresses of a host; raises `AddressRefused` if one is of another kind."""
    addresses = await find_addresses(host, port, resolver)
    for address in addresses:
        if (kind := classify_address(address)) not in kinds:
            raise AddressRefused(host, address, kind)
    return addresses


async def find_addresses(host: str, port: int, resolver: Resolver = resolve) -> Sequence[str]:
    """Return the addresses of a host name or IP address; raises `OSError` if there are none."""
    return [host] if is_address(host) else await resolver(host, port)


async def inflate(chunks: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Decode a body in small pieces, to bound the memory for any result.

    Raises `ValueError` if the encoding is unknown, or the body is damaged or incomplete.
    """
    import zlib

    if encoding not in _ENCODINGS:
        raise ValueError(f"it is encoded as {encoding[:40]!r}")
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    empty = True
    surplus = 0
    async for chunk in chunks:
        rest = chunk
        surplus += len(chunk)
        while rest:
            empty = False
            if unpacker.eof:
                raise ValueError("unexpected data after the end of the compressed body")
            try:
                piece = unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            surplus -= len(piece)
            rest = unpacker.unconsumed_tail or unpacker.unused_data
            if piece:
                yield piece
            await asyncio.sleep(0)
        if surplus > _SURPLUS_BYTES:
            raise ValueError("the compressed body is longer than its content")
    if not unpacker.eof and not empty:
        raise ValueError("the compressed body is cut short")


def produce_tls_context() -> ssl.SSLContext:
    """Return a TLS context with the system's certificates.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` override them; raises `OSError` if those cannot be read.
    """
    import ssl

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and not folder and sys.platform in ("win32", "darwin"):
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if file or folder:
        context.load_verify_locations(file or None, folder or None)
        return context
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or paths.capath):
        # This Python was built for another system.
        file = next(filter(os.path.isfile, _CERTIFICATES), None)
    context.load_verify_locations(file) if file else context.load_default_certs()
    return context
