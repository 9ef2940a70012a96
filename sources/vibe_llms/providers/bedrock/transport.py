"""Transport to a service of AWS, which signs each request or sends the bearer token of the row."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from msgspec.structs import replace

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing, ProviderUnreachable
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.providers.bedrock.package import AwsLogin
from vibe_llms.providers.bedrock.signing import AwsIdentity, sign
from vibe_llms.providers.http_transport import HttpTransport, reveal_key
from vibe_llms.providers.transport import Incoming, Outgoing, permit_transport

#: Part of an address that stands for the region.
REGION = "REGION"
_REGION = re.compile(r"[a-z]+(?:-[a-z0-9]+){1,5}")


class BedrockTransport:
    """Transport over an `HttpTransport`, which is made when the region is known.

    `address` may contain `REGION`. Without a `region`, that of the AWS profile applies. A row whose
    credential is `package` signs its requests, unless it has a bearer token.
    """

    def __init__(
        self,
        provider: str,
        address: str,
        region: str,
        stream: StreamSettings,
        credential: Credential,
        login: AwsLogin,
        *,
        offline: bool = False,
    ) -> None:
        self._provider = provider
        self._address = address
        self._region = region
        self._stream = stream
        self._credential = credential
        self._login = login
        self._offline = offline
        self._bearer: Mapping[str, str] | None = None
        self._sender: HttpTransport | None = None

    def prepare(self) -> None:
        """Find the key, or check that requests can be signed; see `Transport`."""
        permit_transport(self._address, self._provider, offline=self._offline)
        if self._signs():
            self._login.check()
        else:
            self._place("")
        if self._region or REGION not in self._address:
            self._connect(self._region).prepare()

    async def log_in(self) -> None:
        """Load the credentials and find the region, if requests are signed; raise if one lacks."""
        if self._signs():
            permit_transport(self._address, self._provider, offline=self._offline)
            await self._load()

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and return its reply; see `Transport`."""
        permit_transport(self._address, self._provider, outgoing, offline=self._offline)
        region = self._region
        if self._signs():
            identity, region = await self._load()
            large = outgoing.size > LOOP_BYTES
            outgoing = await offload(large, self._sign, identity, region, outgoing)
        try:
            async with self._connect(region).open(outgoing, body) as incoming:
                yield incoming
        except ProviderUnreachable as error:
            if REGION not in self._address or not isinstance(error.__cause__, socket.gaierror):
                raise
            raise self._doubt(region) from error

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._sender is not None:
            await self._sender.close()

    async def _load(self) -> tuple[AwsIdentity, str]:
        """Return the credentials and the region, which a signature needs too."""
        granted = await self._login.access()
        if not (region := self._region or granted.region):
            raise self._miss_region()
        return granted.identity, region

    def _signs(self) -> bool:
        """Return True if requests are signed; otherwise the row has a token, or needs none."""
        if self._bearer is None:
            try:
                self._bearer = reveal_key(self._credential)
            except CredentialMissing as error:
                raise CredentialMissing(
                    f'{error.message}; to use AWS credentials, set credential = "package"',
                    table=f"providers.{self._provider}",
                ) from None
        return self._credential.kind == "package" and not self._bearer

    def _place(self, region: str) -> str:
        """Return the address in a region."""
        region = region or self._region
        if REGION in self._address and not region:
            raise self._miss_region()
        if region and not _REGION.fullmatch(region):
            # It becomes a part of the address that keys are sent to.
            raise ConfigurationError(
                f"{region!r} is not a region of AWS, such as us-east-1",
                table=f"providers.{self._provider}",
                key="region",
            )
        return self._address.replace(REGION, region).rstrip("/")

    def _connect(self, region: str) -> HttpTransport:
        if self._sender is None:
            self._sender = HttpTransport(
                self._provider,
                self._place(region),
                lambda: self._bearer or {},
                connect_seconds=self._stream.connect_seconds,
                idle_seconds=self._stream.idle_seconds,
                offline=self._offline,
            )
        return self._sender

    def _sign(self, identity: AwsIdentity, region: str, outgoing: Outgoing) -> Outgoing:
        url = self._place(region) + outgoing.path
        headers, moment = outgoing.headers, datetime.now(UTC)
        added = sign(identity, region, outgoing.method, url, headers, outgoing.body, moment)
        return replace(outgoing, headers={**headers, **added})

    def _doubt(self, region: str) -> ProviderUnreachable:
        """Return the error of a region whose server has no address."""
        region = region or self._region
        doubted = ProviderUnreachable(
            f"{self._place(region)} is not known; does Bedrock have the region {region!r}? Set "
            "region of the row, or AWS_REGION",
            provider=self._provider,
        )
        doubted.connected = False
        return doubted

    def _miss_region(self) -> ConfigurationError:
        return ConfigurationError(
            "the AWS region is not known; set AWS_REGION, or region of the row",
            table=f"providers.{self._provider}",
            key="region",
        )
