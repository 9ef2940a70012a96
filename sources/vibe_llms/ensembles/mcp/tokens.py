"""The result of signing in to a server: tokens and registration data, stored like keys.

The package's storage lacks a token's expiry time and the server that issues new tokens. Without
them, each new process would have to sign in again once the first token has expired.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from vibe_llms.base.network.connections import origin_of
from vibe_llms.base.redaction import remember
from vibe_llms.conversations.hosts import Vault

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

#: Prefix of the names under which an ensemble's values are stored.
PREFIX = "mcp."
#: Tokens count as expired this many seconds early.
_MARGIN_SECONDS = 10.0


class _Kept(Struct, frozen=True, omit_defaults=True):
    url: str
    tokens: dict[str, Any] = {}
    ends: float = 0.0
    client: dict[str, Any] = {}
    server: dict[str, Any] = {}
    resource: dict[str, Any] = {}
    origins: tuple[str, ...] = ()


class TokenStore:
    """The storage that the package requires, for one ensemble and its URL.

    Values for another URL are never used, so a row whose `url` changes cannot send a token
    elsewhere.
    """

    def __init__(self, ensemble: str, url: str, vault: Vault | None) -> None:
        self._name = PREFIX + ensemble
        self._vault = vault
        self._kept = _Kept(url)
        self._fixed: OAuthClientInformationFull | None = None
        self._provider: OAuthClientProvider | None = None

    async def load(self) -> None:
        """Read the stored values; unreadable ones count as missing."""
        if self._vault is None:
            return
        text = await asyncio.to_thread(self._vault.read, self._name)
        try:
            kept = msgspec.json.decode(text or "null", type=_Kept | None)
        except msgspec.MsgspecError:
            return
        if kept is not None and kept.url == self._kept.url:
            self._kept = kept
            _remember(kept.tokens, kept.client)

    @property
    def origins(self) -> frozenset[str]:
        """Origins of other servers that the user lets the server sign in through."""
        # Origins that were used by versions without this question are allowed too.
        used = (one for one in self._kept.server.values() if isinstance(one, str))
        known = {origin_of(one) for one in used if one.startswith("https://")}
        return frozenset(self._kept.origins) | known

    async def allow(self, origin: str) -> None:
        """Store that the user lets the server sign in through another one."""
        await self._keep(origins=(*self._kept.origins, origin))

    @property
    def signed_in(self) -> bool:
        """True if tokens are stored, valid or not."""
        return bool(self._kept.tokens)

    @property
    def redirect(self) -> str:
        """URL that the server redirects the browser to; may be empty."""
        addresses = self._kept.client.get("redirect_uris") or [""]
        return str(addresses[0])

    def attach(
        self, provider: OAuthClientProvider, fixed: OAuthClientInformationFull | None = None
    ) -> None:
        """Restore what the package forgets between processes; `fixed` is our registration."""
        from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata

        self._provider, self._fixed = provider, fixed
        context = provider.context
        context.token_expiry_time = self._kept.ends or None
        if self._kept.server:
            context.oauth_metadata = OAuthMetadata.model_validate(self._kept.server)
        if self._kept.resource:
            resource = ProtectedResourceMetadata.model_validate(self._kept.resource)
            context.protected_resource_metadata = resource
            context.auth_server_url = str(resource.authorization_servers[0])

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens; called by the package."""
        from mcp.shared.auth import OAuthToken

        return OAuthToken.model_validate(self._kept.tokens) if self._kept.tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens and the data that the next process needs; called by the package."""
        assert self._provider is not None
        context = self._provider.context
        lasts = tokens.expires_in
        ends = 0.0 if lasts is None else time.time() + max(0.0, lasts - _MARGIN_SECONDS)
        await self._keep(
            tokens=_plain(tokens),
            ends=ends,
            server=_plain(context.oauth_metadata),
            resource=_plain(context.protected_resource_metadata),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return our registration at the server; called by the package."""
        from mcp.shared.auth import OAuthClientInformationFull

        if self._fixed is not None:
            return self._fixed
        known = self._kept.client
        return OAuthClientInformationFull.model_validate(known) if known else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store our registration at the server; called by the package."""
        await self._keep(client=_plain(client_info))

    async def _keep(self, **members: Any) -> None:
        self._kept = msgspec.structs.replace(self._kept, **members)
        _remember(self._kept.tokens, self._kept.client)
        if self._vault is not None:
            text = msgspec.json.encode(self._kept).decode()
            await asyncio.to_thread(self._vault.keep, self._name, text)


def _plain(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    plain: dict[str, Any] = value.model_dump(mode="json", exclude_none=True)
    return plain


def _remember(tokens: dict[str, Any], client: dict[str, Any]) -> None:
    """Redact the secrets from all text from now on."""
    for secret in (
        tokens.get("access_token"),
        tokens.get("refresh_token"),
        client.get("client_secret"),
        client.get("registration_access_token"),
    ):
        if isinstance(secret, str):
            remember(secret)
