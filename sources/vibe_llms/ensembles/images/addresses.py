"""A picture that a server keeps elsewhere, read from the address that it names.

The address is somebody else's word: it is asked without a key, over https, and never leads to what
only this machine or its network can reach, unless the server itself runs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from vibe_llms.configuration import StreamSettings
from vibe_llms.connections import AddressKind, classify_address, resolve
from vibe_llms.exceptions import ProviderError, RequestRefused
from vibe_llms.offline import is_loopback
from vibe_llms.providers.exchanges import fetch
from vibe_llms.providers.transport import HttpTransport, Outgoing
from vibe_llms.redaction import redact


async def read_address(
    url: str,
    *,
    provider: str,
    base_url: str,
    limit: int,
    settings: StreamSettings,
    offline: bool,
) -> bytes:
    """The bytes at an address; `RequestRefused` where it is none that is read, or has too many."""
    origin, path = await _check(url, base_url, provider)
    # A server on this machine may have its pictures there.
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
        # Checked once more where the connection is made: the name may lead elsewhere by then.
        kinds=kinds,
    )

    def refuse(status: int, _headers: Mapping[str, str], _body: bytes) -> ProviderError:
        return RequestRefused(
            f"the picture cannot be read: its address answers with status {status}",
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
            f"the picture has more than {limit:,} bytes (picture-bytes)", provider=provider
        )
    return data


async def _check(url: str, base_url: str, provider: str) -> tuple[str, str]:
    """The origin and the path of an address that may be read."""

    def refuse(reason: str) -> RequestRefused:
        return RequestRefused(
            f"the picture is at {redact(url)[:200]}, which is not read: {reason}",
            provider=provider,
        )

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise refuse(f"it is no address ({error})") from error
    local = is_loopback(urlsplit(base_url).hostname or "")
    if not host or parts.username or parts.password:
        raise refuse("it has no host, or a name and a password")
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
        # Connecting fails for the same reason, or a proxy knows better.
        return ()
