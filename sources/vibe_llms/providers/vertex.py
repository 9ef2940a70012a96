"""Connections to Vertex AI: addresses of locations, projects, and logins with Google.

The interfaces themselves are those of their makers; see `gemini/vertex.py` and
`anthropic/vertex.py`.

Source: `_api_client.py` and `models.py` of google-genai 3.6.1, `anthropic.lib.vertex` of anthropic
2.14.0, and https://cloud.google.com/vertex-ai/generative-ai/docs/learn/locations (2026-11).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from http import HTTPStatus
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    ProviderUnreachable,
)
from vibe_llms.base.redaction import redact
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.http_transport import HttpTransport, reveal_key
from vibe_llms.providers.logins import AccessToken, CloudLogin
from vibe_llms.providers.models import HttpClient, HttpModel
from vibe_llms.providers.transport import Incoming, Outgoing, permit_transport
from vibe_llms.providers.vertex_errors import LOGIN

#: Parts of an address and of a path that stand for the location and for the project.
LOCATION = "LOCATION"
PROJECT = "{project}"
HOST = f"{LOCATION}-aiplatform.googleapis.com"
#: Version of the API that lists models.
PREVIEW = "/v1beta1"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: Locations that stand for several regions.
_SEVERAL = ("us", "eu")
_LOCATION = re.compile(r"[a-z]+(?:-[a-z0-9]+){0,4}")
#: Seconds for which a token without an end is used.
_ENDLESS_SECONDS = 3600.0
_LONGEST_REASON = 400


class VertexSettings(Protocol):
    """Settings of rows of Vertex AI.

    `LOCATION` in the address is replaced by `location`. Without a `project`, that of the
    credentials applies.
    """

    @property
    def base_url(self) -> str:
        """Address of the server."""
        ...

    @property
    def project(self) -> str:
        """ID of the project."""
        ...

    @property
    def location(self) -> str:
        """Region, multi-region, or `global`."""
        ...


class GoogleToken(AccessToken, frozen=True):
    """Token of a login with Google, the project of its credentials, and the one that pays."""

    project: str = ""
    payer: str = ""


class GoogleLogin(CloudLogin[GoogleToken]):
    """Login with application default credentials.

    This is the only class that uses `google-auth`. Its sources are the file that
    `GOOGLE_APPLICATION_CREDENTIALS` names, the login of `gcloud`, workload identities, and the
    service account of the machine, for which it asks a metadata address; no redirect is followed.
    """

    package = "google.auth"
    distribution = "google-auth[requests]"
    extra = "vertex"
    loggers = ("google", "requests", "urllib3")
    authority = "https://oauth2.googleapis.com"

    def __init__(self, provider: str, *, offline: bool = False) -> None:
        super().__init__(provider, offline=offline)
        self._credentials: Any = None
        self._project = ""

    def load(self) -> None:
        """Import the package with its HTTP client."""
        import google.auth.compute_engine.credentials
        import google.auth.transport.requests
        import google.oauth2.credentials
        import google.oauth2.service_account  # noqa: F401

    def reset(self) -> None:
        """Search for credentials again, as the user may have logged in."""
        self._credentials = None

    def fetch(self) -> GoogleToken:
        """Return a new token; raise `CredentialMissing` with what to do."""
        from google.auth import default
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        request: Any = Request()
        request.session.max_redirects = 0
        try:
            if self._credentials is None:
                self._credentials, project = default(scopes=[SCOPE], request=request)
                self._project = project or ""
            credentials = self._credentials
            credentials.refresh(request)
        except (GoogleAuthError, OSError, ValueError, RuntimeError, TypeError) as error:
            # The package raises a `TypeError` for an answer that is text. The user may log in
            # before the next attempt.
            self._credentials = None
            raise self.miss(f"no token of Google: {_explain(error)}") from None
        if not credentials.token:
            self._credentials = None
            raise self.miss(f"no token of Google: the credentials give none; run: {LOGIN}")
        payer = credentials.quota_project_id or ""
        ends = time.time() + _ENDLESS_SECONDS
        if credentials.expiry is not None:
            ends = credentials.expiry.replace(tzinfo=UTC).timestamp()
        return GoogleToken(credentials.token, ends, self._project or payer, payer)


def _explain(error: Exception) -> str:
    """Return the reason of a failed login, with what to do about it."""
    from google.auth.exceptions import DefaultCredentialsError, TransportError

    said = str(error.args[0]) if error.args else type(error).__name__
    words = redact(" ".join(repair_text(said).split())).rstrip(". ")[:_LONGEST_REASON]
    if isinstance(error, DefaultCredentialsError) and "were not found" in words:
        words = "google-auth found no login"
    if isinstance(error, TransportError):
        return f"{words}; is the network reachable? Otherwise run: {LOGIN}"
    if "JWT" in words:
        return f"{words}; is the service account's key still valid, and this machine's clock right?"
    if LOGIN in words:
        return words.replace("`", "")
    return (
        f"{words}; run: {LOGIN}, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a service "
        "account"
    )


class VertexTransport:
    """Transport over an `HttpTransport`, with a key of the row or the token of a login.

    `PROJECT` in a path is replaced. With `express`, requests with a key have no project and no
    location in their paths, so that `home`, where these are, is left out.
    """

    def __init__(
        self,
        provider: str,
        settings: VertexSettings,
        stream: StreamSettings,
        credential: Credential,
        headers: Mapping[str, str],
        authorize: Callable[[str], Mapping[str, str]],
        *,
        address: str,
        home: str,
        express: bool,
        offline: bool,
    ) -> None:
        self._provider = provider
        self._settings = settings
        self._credential = credential
        self._authorize = authorize
        self._address = address
        self._home = home
        self._express = express
        self._offline = offline
        self._key: Mapping[str, str] | None = None
        self._login = GoogleLogin(provider, offline=offline)
        self._sender = HttpTransport(
            provider,
            address,
            lambda: {**headers, **self._find_key()},
            connect_seconds=stream.connect_seconds,
            idle_seconds=stream.idle_seconds,
            offline=offline,
        )

    def prepare(self) -> None:
        """Find the key, or check that a login is possible; see `Transport`."""
        self._permit()
        if self._logs_in():
            self._login.check()
        elif not (self._express and self._find_key()):
            self._place(PROJECT, "")
        self._sender.prepare()

    async def log_in(self) -> None:
        """Fetch a token, if requests have one; raise if there is none, or no project."""
        if self._logs_in():
            self._permit()
            self._place(PROJECT, (await self._login.access()).project)

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and return its reply; see `Transport`."""
        self._permit(outgoing)
        path, headers, project = outgoing.path, {**outgoing.headers}, ""
        if self._logs_in():
            token = await self._login.access()
            project = token.project
            headers["authorization"] = f"Bearer {token.text}"
            if token.payer:
                headers["x-goog-user-project"] = token.payer
        elif self._express and self._find_key():
            path = path.replace(self._home, "", 1)
        sent = replace(outgoing, path=self._place(path, project), headers=headers)
        try:
            async with self._sender.open(sent, body) as incoming:
                if incoming.status == HTTPStatus.UNAUTHORIZED:
                    self._login.forget()
                yield incoming
        except ProviderUnreachable as error:
            region = LOCATION in self._settings.base_url and "-" in self._settings.location
            if region and isinstance(error.__cause__, socket.gaierror):
                raise self._doubt() from error
            raise

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._sender.close()

    def _permit(self, outgoing: Outgoing | None = None) -> None:
        permit_transport(self._address, self._provider, outgoing, offline=self._offline)

    def _find_key(self) -> Mapping[str, str]:
        if self._key is None:
            try:
                self._key = reveal_key(self._credential, self._authorize)
            except CredentialMissing as error:
                raise CredentialMissing(
                    f'{error.message}; to log in with Google, set credential = "package"',
                    table=f"providers.{self._provider}",
                ) from None
        return self._key

    def _logs_in(self) -> bool:
        return self._credential.kind == "package" and not self._find_key()

    def _place(self, path: str, project: str) -> str:
        """Return a path with the project of the row, or with the one given."""
        if PROJECT not in path:
            return path
        if not (project := self._settings.project or project):
            raise ConfigurationError(
                "the Google Cloud project is not known; set GOOGLE_CLOUD_PROJECT, or project of "
                "the row",
                table=f"providers.{self._provider}",
                key="project",
            )
        return path.replace(PROJECT, quote(project, safe=":"))

    def _doubt(self) -> ProviderUnreachable:
        """Return the error of a location whose server has no address."""
        doubted = ProviderUnreachable(
            f"{self._address} is not known; does Vertex AI have the location "
            f"{self._settings.location!r}? Set location of the row, such as global",
            provider=self._provider,
        )
        doubted.connected = False
        return doubted


class PublisherModel(Struct):
    """An item of the list of models."""

    name: str


class PublisherPage(Struct, rename="camel"):
    """One page of the list of models. Source: `_ListModelsResponse_from_vertex` of google-genai."""

    publisher_models: list[PublisherModel] = []
    next_page_token: str | None = None


_PAGE = msgspec.json.Decoder(PublisherPage)
M = TypeVar("M", bound=HttpModel[Any])


class VertexClient(HttpClient[M, Any]):
    """Connection to Vertex AI; settings are `VertexSettings`.

    `publisher` is the maker of the models, and `family` a pattern of the names of those that
    answer. With `express`, a key is that of express mode; otherwise it is a token.
    """

    publisher: ClassVar[str]
    family: ClassVar[re.Pattern[str]]
    express: ClassVar[bool] = False

    def find_place(self, address: str) -> tuple[str, str]:
        """Return the address without the version of the API, and the path of the version."""
        raise NotImplementedError

    def produce_transport(self) -> VertexTransport:
        """Return the transport, with the key of the row or with a login."""
        settings: VertexSettings = self.settings
        if not _LOCATION.fullmatch(settings.location):
            # It becomes a part of the address that tokens are sent to.
            raise ConfigurationError(
                f"{redact(settings.location)!r} is not a location, such as us-east5, eu, or global",
                table=f"providers.{self.provider}",
                key="location",
            )
        #: Path of the project and the location, and what comes before it.
        home = f"/projects/{PROJECT}/locations/{settings.location}"
        self.address, version = self.find_place(place(self.address, settings.location))
        self.version = version
        self.root = f"{version}{home}"
        transport = VertexTransport(
            self.provider,
            settings,
            self.stream,
            self.credential,
            self.model.headers(self.settings),
            self.model.authorize,
            address=self.address,
            home=home,
            express=self.express,
            offline=self.offline,
        )
        self.settings = replace(self.settings, base_url=self.address)
        self._vertex = transport
        return transport

    async def log_in(self) -> None:
        """Fetch a token, so that an expired login is reported before anything is stored."""
        await self._vertex.log_in()

    def locate(self, name: str) -> str:
        """Return the path of a model, or of an endpoint whose name is its path."""
        if name.startswith("projects/"):
            return f"{self.version}/{quote(name, safe='/@:')}"
        return f"{self.root}/publishers/{self.publisher}/models/{quote(name, safe='@:')}"

    async def survey_models(self) -> Sequence[M]:
        """Return the models of the publisher, which the project may still have to enable."""
        models: list[M] = []
        token, seen = "", set[str]()
        while token not in seen:
            seen.add(token)
            rest = f"&pageToken={quote(token, safe='')}" if token else ""
            path = f"{PREVIEW}/publishers/{self.publisher}/models?pageSize=100{rest}"
            body = await self.fetch(Outgoing("GET", path), self.model.errors)
            page = self.read(_PAGE.decode, body, "the list of models")
            names = (repair_text(one.name).rpartition("/")[2] for one in page.publisher_models)
            models += [self.produce_model(name) for name in names if self.family.match(name)]
            token = page.next_page_token or ""
        return models


def place(address: str, location: str) -> str:
    """Return an address in a location.

    >>> [place(f"https://{HOST}", one) for one in ("us-east5", "eu", "global")]
    ['https://us-east5-aiplatform.googleapis.com', 'https://aiplatform.eu.rep.googleapis.com', \
'https://aiplatform.googleapis.com']
    """
    host = HOST
    if location in _SEVERAL:
        host = f"aiplatform.{LOCATION}.rep.googleapis.com"
    elif location == "global":
        host = "aiplatform.googleapis.com"
    return address.replace(HOST, host).replace(LOCATION, location)
