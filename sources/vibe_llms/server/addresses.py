"""Which web addresses clients may send in place of images and files: nothing else is passed on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Location
from vibe_llms.network.connections import AddressKind, AddressRefused, find_permitted
from vibe_llms.server.failures import Rejected

#: Stands for every host.
ANY = "*"
_KINDS: tuple[AddressKind, ...] = ("public",)
#: What programs read differently: the provider may find another host in the address than we do.
_UNSURE = re.compile(r"[\\ ]|//[^/?#]*@")


async def check_addresses(said: Iterable[Canister], hosts: Collection[str]) -> None:
    """`Rejected` for a web address whose host is not one of these, or is not a public one.

    The server fetches nothing itself; the provider does, and may be a server in a private network.
    """
    for canister in said:
        for content in canister.contents:
            if isinstance(place := getattr(content, "data", None), Location):
                await _check(place.url, hosts)


async def _check(url: str, hosts: Collection[str]) -> None:
    if _UNSURE.search(url) or not url.isprintable():
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
        await find_permitted(host, port, _KINDS)
    except (AddressRefused, OSError) as error:
        raise Rejected(
            f"addresses of {host} are not accepted here: {error}", code="address_not_allowed"
        ) from error
