"""Downloads an image from a URL that a server returned.

The URL is untrusted: it must use https and is requested without a key. Unless the server itself
runs on this machine, addresses that only this machine or its network can reach are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ProviderError, RequestRefused
from vibe_llms.base.network.connections import AddressKind, classify_address, resolve
from vibe_llms.base.network.offline import is_loopback
from vibe_llms.base.redaction import redact
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.round_trip import fetch
from vibe_llms.providers.transport import Outgoing


async def read_address(
    url: str,
    *,
    provider: str,
    base_url: str,
    limit: int,
    settings: StreamSettings,
    offline: bool,
) -> bytes:
    """Return the bytes at a URL; raise `RequestRefused` if it is not allowed or too large."""
    origin, path = await _check(url, base_url, provider)
    # A server on this machine may store its images here.
    kinds: Sequence[AddressKind] = (
        ("loopback",) if is_loopback(urlsplit(url).hostname or "") else ()
    )
    transport = HttpTransport(
        provider,
        origin,
        dict,
        connect_seconds=settings.connect_seconds,
        idle_seconds=settings.idle_seconds,
        offline=offline,
        # Checked again when connecting, because the name may resolve differently by then.
        kinds=kinds,
    )

    def refuse(status: int, _headers: Mapping[str, str], _body: bytes) -> ProviderError:
        return RequestRefused(
            f"the image cannot be downloaded: its URL answers with status {status}",
            provider=provider,
            status=status,
        )

    try:
        data = await fetch(
            transport,
            Outgoing("GET", path),
            provider=provider,
            settings=settings,
            read_error=refuse,
        )
    finally:
        await transport.close()
    if len(data) > limit:
        raise RequestRefused(
            f"the image has more than {limit:,} bytes (picture-bytes)", provider=provider
        )
    return data


async def _check(url: str, base_url: str, provider: str) -> tuple[str, str]:
    """Return the origin and the path of an allowed URL; raise `RequestRefused` for others."""

    def refuse(reason: str) -> RequestRefused:
        return RequestRefused(
            f"the image is at {redact(url)[:200]}, which is not allowed: {reason}",
            provider=provider,
        )

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise refuse(f"it is not a valid URL ({error})") from error
    local = is_loopback(urlsplit(base_url).hostname or "")
    if not host or parts.username or parts.password:
        raise refuse("it has no host, or contains a user name and password")
    if parts.scheme != "https" and not (parts.scheme == "http" and local and is_loopback(host)):
        raise refuse("it is not https")
    if not (local and is_loopback(host)):
        for address in await _find(host, port or 443):
            if classify_address(address) != "public":
                raise refuse(f"{host} is {address}, which is not on the internet")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}", f"{parts.path or '/'}{query}"


async def _find(host: str, port: int) -> Sequence[str]:
    try:
        return await resolve(host, port)
    except (OSError, UnicodeError):
        # Connecting fails for the same reason, or a proxy can resolve the name.
        return ()
