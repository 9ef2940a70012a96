"""Checks of the web addresses that clients send in place of images and files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from vibe_llms.base.network.connections import AddressKind, AddressRefused, find_permitted
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Location
from vibe_llms.server.failures import Rejected

#: Matches every host.
ANY = "*"
_ALLOWED_KINDS: tuple[AddressKind, ...] = ("public",)
#: Characters that URL parsers treat differently: a provider might see another host.
_AMBIGUOUS = re.compile(r"[\\ ]|//[^/?#]*@")


async def check_addresses(said: Iterable[Canister], hosts: Collection[str]) -> None:
    """Raise `Rejected` for a web address whose host is not allowed or not public.

    The server itself fetches nothing, but the provider does, and may be a server in a private
    network.
    """
    for canister in said:
        for content in canister.contents:
            if isinstance(place := getattr(content, "data", None), Location):
                await _check(place.url, hosts)


async def _check(url: str, hosts: Collection[str]) -> None:
    if _AMBIGUOUS.search(url) or not url.isprintable():
        raise Rejected(f"{url!r} is not a valid address")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
    except ValueError as error:
        raise Rejected(f"{url!r} is not a valid address") from error
    if not host or (host not in hosts and ANY not in hosts):
        raise Rejected(
            f"addresses of {host or 'no host'} are not accepted here (media-hosts); send the data",
            code="address_not_allowed",
        )
    try:
        await find_permitted(host, port, _ALLOWED_KINDS)
    except (AddressRefused, OSError) as error:
        raise Rejected(
            f"addresses of {host} are not accepted here: {error}", code="address_not_allowed"
        ) from error
