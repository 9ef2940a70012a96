"""Connections to resources of Azure: endpoints, versions, keys, and logins with Entra ID.

The interfaces themselves are those of their makers; see `openai/azure.py` and `anthropic/azure.py`.

Source: https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle and
https://learn.microsoft.com/azure/ai-foundry/openai/reference (2026-11); `openai.lib.azure` of
openai 3.54.0 and `anthropic.lib.foundry` of anthropic 2.12.0.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    PaymentRequired,
    ProviderError,
    RateLimited,
    RequestRefused,
)
from vibe_llms.base.redaction import redact
from vibe_llms.providers.http_errors import ErrorMap, Remedy
from vibe_llms.providers.http_transport import HttpTransport, reveal_key
from vibe_llms.providers.logins import AccessToken, CloudLogin
from vibe_llms.providers.models import HttpClient, HttpModel
from vibe_llms.providers.transport import Incoming, Outgoing, permit_transport

#: Part of an address that stands for the name of the resource.
RESOURCE = "RESOURCE"
_DATED = re.compile(r"20\d\d-\d\d-\d\d(-preview)?")
_UNDATED = ("", "v1", "preview", "latest")
#: Reasons of `azure-identity` that say why a source was tried, and not what failed.
_UNAVAILABLE = re.compile(
    r"unavailable|not (be )?found|not installed|not been|not available|requires the|az login"
)
_FAILURE = re.compile(r"AADSTS\d+: *[^\r\n]*")
_LONGEST_REASON = 400
_LOGIN = (
    "run: az login, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET of a service "
    "principal"
)

#: What to do about an error: its codes say less.
REMEDIES = (
    Remedy(
        r"deployment for this resource does not exist",
        "is 'MODEL' a deployment of this resource, or only a model? See the Azure portal",
    ),
    Remedy(
        r"\AResource not found\Z",
        "are base-url and api-version of [providers.NAME] right? Leave the latter out for v1",
        RequestRefused,
    ),
    Remedy(
        r"api[- ]version",
        "set another api-version in [providers.NAME] or OPENAI_API_VERSION, or none for the v1 API",
    ),
    Remedy(
        r"lacks the required data action",
        "give the identity the role Cognitive Services OpenAI User on the resource",
    ),
    Remedy(
        r"key.based authentication is disabled|disableLocalAuth",
        'log in with Entra ID: set credential = "package" in [providers.NAME]',
    ),
    Remedy(
        r"access token is missing, invalid|token.{0,40}expired|audience",
        "run: az login; is scope of [providers.NAME] right?",
    ),
    Remedy(
        r"invalid subscription key or wrong API endpoint",
        "set the key of this resource: vibe-llms keys set NAME; is base-url right?",
    ),
    Remedy(
        r"(quota|limit) (of|is) 0\b",
        "the quota of the deployment is 0: raise it in the Azure portal",
        PaymentRequired,
    ),
)


class AzureErrors(ErrorMap, frozen=True):
    """The errors of an interface on Azure."""

    def complete(self, error: ProviderError, headers: Mapping[str, str]) -> ProviderError:
        """Return an error that waiting does not help for a rate limit of 0."""
        limits = [headers.get(f"x-ratelimit-limit-{one}", "") for one in ("requests", "tokens")]
        if not isinstance(error, RateLimited) or "0" not in limits:
            return error
        words = str(error).removeprefix(f"{error.provider}: ")
        return PaymentRequired(
            f"{words}: the quota of the deployment is 0; raise it in the Azure portal",
            provider=error.provider,
            status=error.status,
            code=error.code,
            request_id=error.request_id,
        )


class AzureSettings(Protocol):
    """Settings of rows of Azure.

    `RESOURCE` in the address is replaced by `resource`. `scope` is requested for the token of a
    login. `deployments` maps names of deployments to the models behind them, whose attributes
    apply; others have those of a model with the name of the deployment.
    """

    @property
    def base_url(self) -> str:
        """Endpoint of the resource."""
        ...

    @property
    def resource(self) -> str:
        """Name of the resource."""
        ...

    @property
    def scope(self) -> str:
        """Scope of the token of a login."""
        ...

    @property
    def deployments(self) -> Mapping[str, str]:
        """Models by the names of their deployments."""
        ...


class EntraLogin(CloudLogin[AccessToken]):
    """Login with Entra ID, from the sources that the programs of Azure share.

    This is the only class that uses `azure-identity`. Its sources are the environment, workload and
    managed identities, the Azure CLI and others; it asks metadata addresses, and follows no
    redirects.
    """

    package = "azure.identity"
    distribution = "azure-identity"
    extra = "azure"
    loggers = ("azure", "msal", "msal_extensions", "urllib3")
    authority = "https://login.microsoftonline.com"

    def __init__(self, provider: str, scope: str, *, offline: bool = False) -> None:
        super().__init__(provider, offline=offline)
        self._scope = scope
        self._credential: Any = None

    def load(self) -> None:
        """Import the package, and choose the sources of tokens."""
        from azure.identity import DefaultAzureCredential

        if self._credential is None:
            try:
                self._credential = DefaultAzureCredential()
            except ValueError as error:
                raise self.miss(f"the environment of azure-identity is wrong: {error}") from None

    def reset(self) -> None:
        """Drop the tokens that the package remembers."""
        self._credential = None

    def fetch(self) -> AccessToken:
        """Return a new token; raise `CredentialMissing` with what to do."""
        from azure.core.exceptions import AzureError

        try:
            token = self._credential.get_token(self._scope)
        except (AzureError, OSError, ValueError, RuntimeError) as error:
            # Another login may be found next time.
            self._credential = None
            raise self.miss(f"no token of Entra ID: {_explain(str(error))}; {_LOGIN}") from None
        return AccessToken(token.token, token.expires_on)


def _explain(message: str) -> str:
    """Return the reason of a failed login, from a message with a line for each source."""
    if failure := _FAILURE.search(message):
        reasons = [failure[0]]
    else:
        lines = [line.strip() for line in message.splitlines() if line.startswith("\t")]
        reasons = [line for line in lines if not _UNAVAILABLE.search(line)]
    words = redact("; ".join(reasons) or "azure-identity found no login").rstrip(". ")
    return words[:_LONGEST_REASON]


class AzureTransport:
    """Transport that adds the query of a version, and the token of a login if there is one."""

    def __init__(
        self,
        sender: HttpTransport,
        query: str,
        login: CloudLogin[AccessToken] | None,
        permit: Callable[..., None],
    ) -> None:
        self._sender = sender
        self._query = query
        self._login = login
        self._permit = permit

    def prepare(self) -> None:
        """Find the key, or check that a login is possible; see `Transport`."""
        self._permit()
        if self._login is not None:
            self._login.check()
        self._sender.prepare()

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and return its reply; see `Transport`."""
        self._permit(outgoing)
        headers = outgoing.headers
        if self._login is not None:
            token = await self._login.access()
            headers = {**headers, "authorization": f"Bearer {token.text}"}
        sent = replace(outgoing, path=outgoing.path + self._query, headers=headers)
        async with self._sender.open(sent, body) as incoming:
            if incoming.status == HTTPStatus.UNAUTHORIZED and self._login is not None:
                self._login.forget()
            yield incoming

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._sender.close()


M = TypeVar("M", bound=HttpModel[Any])


class AzureClient(HttpClient[M, Any]):
    """Connection to a resource of Azure, whose models are its deployments.

    Settings are `AzureSettings`. Deployments cannot be listed with the rights to use them, so those
    of the settings are.
    """

    #: Variable that names the endpoint.
    variable: str

    def find_place(self, endpoint: str) -> tuple[str, str]:
        """Return the base address at the endpoint of a resource, and the query of each request."""
        return endpoint, ""

    def produce_transport(self) -> AzureTransport:
        """Return the transport, with the key of the row or with a login."""
        settings: AzureSettings = self.settings
        if settings.resource:
            self.address = self.address.replace(RESOURCE, settings.resource)
        base_url, query = self.find_place(self.address)
        self.settings = replace(self.settings, base_url=self.address)
        login = None
        if self.credential.kind == "package":
            login = EntraLogin(self.provider, settings.scope, offline=self.offline)
        sender = HttpTransport(
            self.provider,
            base_url,
            lambda: {**self.model.headers(self.settings), **self._reveal_key()},
            connect_seconds=self.stream.connect_seconds,
            idle_seconds=self.stream.idle_seconds,
            offline=self.offline,
        )

        def permit(outgoing: Outgoing | None = None) -> None:
            if RESOURCE in base_url:
                raise ConfigurationError(
                    f"the resource is not known; set {self.variable} to its endpoint, or base-url "
                    "or resource of the row",
                    table=f"providers.{self.provider}",
                )
            permit_transport(base_url, self.provider, outgoing, offline=self.offline)

        return AzureTransport(sender, query, login, permit)

    def produce_model(self, name: str, reported: Mapping[str, Any] | None = None) -> M:
        """Return the model of a deployment, with the attributes of the model behind it."""
        settings: AzureSettings = self.settings
        known = settings.deployments.get(name, name)
        return self.model(self, name, self.attributes.integrate(known, further=reported))

    async def survey_models(self) -> Sequence[M]:
        """Return the models of the deployments in the settings."""
        settings: AzureSettings = self.settings
        return [self.produce_model(name) for name in settings.deployments]

    def _reveal_key(self) -> Mapping[str, str]:
        if self.credential.kind == "package":
            return {}
        try:
            return reveal_key(self.credential, self.model.authorize)
        except CredentialMissing as error:
            raise CredentialMissing(
                f'{error.message}; to log in with Entra ID, set credential = "package"',
                table=f"providers.{self.provider}",
            ) from None


def find_endpoint(address: str, maker: str) -> str:
    """Return the endpoint of a resource, from any address in it that its users copy.

    `maker` begins the path that is appended to an endpoint.

    >>> find_endpoint("https://r.openai.azure.com/openai/deployments/d/responses?a=1", "openai")
    'https://r.openai.azure.com'
    """
    try:
        scheme, host, path, _, _ = urlsplit(address)
    except ValueError:
        # The transport reports a wrong address.
        return address
    prefix = f"{path}/".partition(f"/{maker}/")[0].rstrip("/")
    return f"{scheme}://{host}{prefix}"


def is_dated(version: str, provider: str) -> bool:
    """Return True for a dated version, False for the v1 API; raise for anything else."""
    if version in _UNDATED:
        return False
    if _DATED.fullmatch(version):
        return True
    raise ConfigurationError(
        f"{redact(version)!r} is not a version; write it as 2024-10-21 or 2025-04-01-preview, or "
        "leave it out for the v1 API",
        table=f"providers.{provider}",
        key="api-version",
    )
