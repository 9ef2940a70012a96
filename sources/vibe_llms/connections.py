"""What every connection needs: its proxy, permitted addresses, certificates, and decoding.

`guard.py` decides with it for all that is sent through httpx2, and
`providers/direct_transport.py` for connections of our own.
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

from vibe_llms.offline import is_loopback, requests_forbidden

if TYPE_CHECKING:
    import ssl


#: The kind of an address. `reserved` addresses belong to no single host, or are unused.
AddressKind: TypeAlias = Literal["public", "private", "loopback", "link-local", "reserved"]
#: Resolves a host to its addresses.
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

#: The ports of the schemes that can be sent to.
PORTS = {"http": 80, "https": 443}
_ENCODINGS = ("gzip", "x-gzip", "deflate")
#: The `wbits` argument of `zlib.decompressobj`.
_GZIP_OR_ZLIB = 47
_PIECE_BYTES = 64 * 1024
#: Where systems keep their certificates.
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
#: IPv6 addresses that contain an IPv4 address: NAT64, and its local form.
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_SHARED = ipaddress.IPv4Network("100.64.0.0/10")


def choose_proxy(url: str) -> str | None:
    """The proxy that the environment names for an address, if any.

    None for this machine, and none while requests are forbidden.
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
    """The scheme, host and port of a web address, normalized; `ValueError` if it is none.

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
    """A host in the characters of DNS, as httpx2 encodes it; `ValueError` if it has none.

    >>> encode_host("Straße.example")
    'xn--strae-oqa.example'
    """
    if not host.isprintable() or " " in host:
        raise ValueError("a host has no spaces or control characters")
    if host.isascii():
        # For the lengths of its labels.
        return host.lower().encode("idna").decode("ascii")
    import idna

    return idna.encode(host.lower()).decode("ascii")


def classify_address(address: str) -> AddressKind:
    """The kind of an IP address; an IPv6 address that contains an IPv4 address has its kind.

    >>> [classify_address(one) for one in ("9.9.9.9", "::ffff:10.0.0.1", "169.254.169.254")]
    ['public', 'private', 'link-local']
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (inner := _find_inner(ip)) is not None:
        ip = inner
    if ip.is_loopback:
        return "loopback"
    if ip.is_link_local:
        return "link-local"
    if ip.is_unspecified or ip.is_multicast:
        return "reserved"
    if ip in _SHARED or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local):
        return "private"
    if ip.is_global:
        return "public"
    return "private" if ip.is_private and not ip.is_reserved else "reserved"


def _find_inner(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    embedded = any(ip in network for network in _NAT64) or (ip in _COMPATIBLE and int(ip) > 0xFFFF)
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if embedded else None


def is_address(host: str) -> bool:
    """Whether a host is given as an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host; `OSError` if there are none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class AddressRefused(Exception):
    """A host has an address that nothing may be sent to; the cause of an error to connect."""


async def find_permitted(
    host: str, port: int, kinds: Collection[str], resolver: Resolver = resolve
) -> Sequence[str]:
    """The addresses of a host; `AddressRefused` if one of them is not of these kinds."""
    addresses = await find_addresses(host, port, resolver)
    for address in addresses:
        if (kind := classify_address(address)) not in kinds:
            which = host if host == address else f"{host} ({address})"
            raise AddressRefused(f"no request is sent to {which}: it is a {kind} address")
    return addresses


async def find_addresses(host: str, port: int, resolver: Resolver = resolve) -> Sequence[str]:
    """The addresses of a host, which may be given as one; `OSError` if there are none."""
    return [host] if is_address(host) else await resolver(host, port)


async def inflate(chunks: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Decode a body in small pieces, however large the result is.

    `ValueError` if it is encoded in another way, is broken, or ends before its end was seen.
    """
    import zlib

    if encoding not in _ENCODINGS:
        raise ValueError(f"it is encoded as {encoding[:40]!r}")
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    empty = True
    async for chunk in chunks:
        rest = chunk
        while rest:
            empty = False
            if unpacker.eof:
                raise ValueError("something follows the end of the compressed body")
            try:
                piece = unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            rest = unpacker.unconsumed_tail or unpacker.unused_data
            if piece:
                yield piece
            await asyncio.sleep(0)
    if not unpacker.eof and not empty:
        raise ValueError("the compressed body is cut short")


def produce_tls_context() -> ssl.SSLContext:
    """The context of encrypted connections, with the certificates of this system.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` name others; `OSError` if those cannot be read.
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
        # Python was built for another system than this.
        file = next(filter(os.path.isfile, _CERTIFICATES), None)
    context.load_verify_locations(file) if file else context.load_default_certs()
    return context
