"""Signs in to an HTTP server: a user with a browser, or a program with its own key.

The package implements the protocol: it finds the authorization server, registers, proves with PKCE
that the code is ours, and refreshes. The session's elicitor asks the user, the browser returns to
this machine, and tokens are stored like keys. A server may sign in through another one only if the
user agrees.
"""

from __future__ import annotations

import asyncio
import html
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.credentials import Credential, get_logger
from vibe_llms.base.exceptions import ConfigurationError, SignInNeeded
from vibe_llms.base.files import read_trusted
from vibe_llms.base.network.connections import origin_of
from vibe_llms.base.network.guard import Admit
from vibe_llms.base.redaction import remember
from vibe_llms.ensembles.mcp.settings import McpSettings, OAuthSettings
from vibe_llms.ensembles.mcp.tokens import TokenStore
from vibe_llms.invocation.limits import SharedLimits
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationField, ElicitationRequest

if TYPE_CHECKING:
    import httpx2
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import AuthorizationCodeResult

#: Asks the user through the session's elicitor; time limits pause.
Asking = Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]]
_PATH = "/callback"
#: Path of the description of a server that is its own authorization server.
_DESCRIPTION = "/.well-known/oauth-authorization-server"
_LONGEST_REQUEST = 16 * 1024
_PAGE = (
    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n"
    "Content-Length: {length}\r\n\r\n{body}"
)


class SignIn(Struct, frozen=True):
    """The source of a token for each request; `agree` is called before one to another origin."""

    auth: httpx2.Auth | None
    agree: Admit


async def produce_sign_in(
    ensemble: str,
    settings: McpSettings,
    store: TokenStore,
    ask: Asking | None,
    notify: Callable[[Exception], None],
    limits: SharedLimits,
    keys_file: Path,
) -> SignIn:
    """Choose how to sign in to a server; `notify` is called with the error if that fails.

    No token is added if the row already has an `Authorization` header.
    """
    oauth = settings.oauth or OAuthSettings()
    agreement = _Agreement(ensemble, settings.url, oauth, store, ask, notify)
    if any(name.lower() == "authorization" for name in settings.headers):
        return SignIn(None, agreement)
    await store.load()
    return SignIn(
        await _produce_auth(ensemble, settings, oauth, store, ask, notify, limits, keys_file),
        agreement,
    )


async def _produce_auth(
    ensemble: str,
    settings: McpSettings,
    oauth: OAuthSettings,
    store: TokenStore,
    ask: Asking | None,
    notify: Callable[[Exception], None],
    limits: SharedLimits,
    keys_file: Path,
) -> httpx2.Auth:
    if oauth.grant == "client-credentials":
        secret = await asyncio.to_thread(_find_secret, ensemble, oauth, keys_file)
        provider = _produce_program(ensemble, settings.url, oauth, store, secret)
    elif ask is None and not store.signed_in:
        return _produce_refusal(ensemble, notify)
    else:
        needs_secret = oauth.client_secret_environment or oauth.client_secret_command
        secret = (
            await asyncio.to_thread(_find_secret, ensemble, oauth, keys_file)
            if needs_secret
            else ""
        )
        login = _Login(ensemble, ask, oauth.sign_in_seconds, limits, notify)
        provider = _produce_person(settings.url, oauth, store, login, secret)
    # The provider's modules may have added loggers after the package was imported.
    get_logger("mcp")
    return provider


def _find_secret(ensemble: str, oauth: OAuthSettings, keys_file: Path) -> str:
    if oauth.private_key_file:
        try:
            return read_trusted(Path(oauth.private_key_file).expanduser()).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the private key cannot be read: {error}", table=f"ensembles.{ensemble}.oauth"
            ) from error
    credential = Credential(
        f"{ensemble}.client-secret",
        variable=oauth.client_secret_environment,
        command=oauth.client_secret_command,
        keys_file=keys_file,
    )
    return credential.find().reveal()


def _produce_program(
    ensemble: str, url: str, oauth: OAuthSettings, store: TokenStore, secret: str
) -> OAuthClientProvider:
    """Make the provider of a program that signs in with its own key."""
    from mcp.client.auth.extensions import client_credentials as package

    if not oauth.client_id or not oauth.issuer:
        raise ConfigurationError(
            "client-credentials need client-id, and issuer: the server that may see the secret",
            table=f"ensembles.{ensemble}.oauth",
        )
    provider: OAuthClientProvider
    if oauth.private_key_file:
        signing = package.SignedJWTParameters(
            issuer=oauth.client_id,
            subject=oauth.client_id,
            signing_key=secret,
            signing_algorithm=oauth.signing_algorithm,
        )
        provider = package.PrivateKeyJWTOAuthProvider(
            url,
            store,
            oauth.client_id,
            signing.create_assertion_provider(),
            scope=oauth.scope or None,
            issuer=oauth.issuer,
        )
    else:
        provider = package.ClientCredentialsOAuthProvider(
            url,
            store,
            oauth.client_id,
            secret,
            scope=oauth.scope or None,
            issuer=oauth.issuer,
        )
    store.attach(provider)
    return provider


def _produce_person(
    url: str, oauth: OAuthSettings, store: TokenStore, login: _Login, secret: str
) -> OAuthClientProvider:
    """Make the provider of a user who signs in with a browser."""
    from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

    port = oauth.redirect_port or urlsplit(store.redirect).port or find_port()
    address = f"http://127.0.0.1:{port}{_PATH}"
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "vibe-llms",
            "redirect_uris": [address],
            "scope": oauth.scope or None,
        }
    )
    login.port = port
    provider = _choose_provider()(
        url,
        metadata,
        store,
        redirect_handler=login.begin,
        callback_handler=login.finish,
        client_metadata_url=oauth.client_metadata_url or None,
    )
    fixed = None
    if oauth.client_id:
        fixed = OAuthClientInformationFull.model_validate(
            {
                "client_id": oauth.client_id,
                "client_secret": secret or None,
                "redirect_uris": [address],
                "token_endpoint_auth_method": "client_secret_basic" if secret else "none",
                "issuer": oauth.issuer or None,
            }
        )
    store.attach(provider, fixed)
    return provider


def _choose_provider() -> type[OAuthClientProvider]:
    """Return the package's provider, extended for servers of 2025-03-26 that name a path.

    Such a server is its own authorization server, described at its root. The package refuses a
    description of an issuer with a path, as RFC 8414 demands, but servers of that time have one. An
    issuer at the server's own origin is the server itself.
    """
    import httpx2
    from mcp.client.auth import OAuthClientProvider

    class Provider(OAuthClientProvider):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            async with aclosing(super().async_auth_flow(request)) as flow:
                sent = await anext(flow)
                while True:
                    response = yield sent
                    try:
                        sent = await flow.asend(await self._correct_issuer(sent, response))
                    except StopAsyncIteration:
                        return

        async def _correct_issuer(
            self, request: httpx2.Request, response: httpx2.Response
        ) -> httpx2.Response:
            own = origin_of(self.context.server_url)
            described = request.url.path == _DESCRIPTION and origin_of(str(request.url)) == own
            if not described or self.context.auth_server_url or response.status_code != 200:
                return response
            try:
                about = msgspec.json.decode(await response.aread(), type=dict[str, Any])
            except msgspec.DecodeError:
                return response
            issuer = str(about.get("issuer"))
            if issuer != own and not issuer.startswith(f"{own}/"):
                return response
            # A server that repeats the issuer in its responses uses the one with the path.
            if about.get("authorization_response_iss_parameter_supported"):
                return response
            return httpx2.Response(200, json={**about, "issuer": own}, request=request)

    return Provider


class _Agreement:
    """Permission for sign-in requests to origins other than the server's; asked once for each."""

    def __init__(
        self,
        ensemble: str,
        url: str,
        oauth: OAuthSettings,
        store: TokenStore,
        ask: Asking | None,
        notify: Callable[[Exception], None],
    ) -> None:
        self._ensemble = ensemble
        self._server = origin_of(url)
        self._allowed = {origin_of(one) for one in (*oauth.allowed_origins, oauth.issuer) if one}
        self._store = store
        self._ask = ask
        self._notify = notify
        self._asking = asyncio.Lock()

    async def __call__(self, url: str) -> None:
        origin = origin_of(url)
        async with self._asking:
            if origin in self._allowed or origin in self._store.origins:
                return
            if self._server.startswith("https:") and not origin.startswith("https:"):
                raise self._failure(f"it signs in through {origin}, which does not use https")
            if self._ask is None:
                raise self._failure(
                    f"it signs in through another server, {origin}, which you have not allowed "
                    "(allowed-origins)"
                )
            answer = await self._ask(self._produce_question(origin))
            if answer.action != "accept" or not answer.values.get("allow"):
                raise self._failure(f"signing in through {origin} was declined")
            self._allowed.add(origin)
            await self._store.allow(origin)

    def _produce_question(self, origin: str) -> ElicitationRequest:
        return ElicitationRequest(
            ensemble=self._ensemble,
            message=f"{self._server} signs in through another server: {origin}",
            fields=(
                ElicitationField(
                    name="allow", kind="boolean", title=f"Allow {origin}?", required=True
                ),
            ),
        )

    def _failure(self, reason: str) -> SignInNeeded:
        error = SignInNeeded(reason, ensemble=self._ensemble)
        self._notify(error)
        return error


class _Login:
    """One sign-in by a user: opens the server's page, and receives the browser on a local port."""

    def __init__(
        self,
        ensemble: str,
        ask: Asking | None,
        seconds: float,
        limits: SharedLimits,
        notify: Callable[[Exception], None],
    ) -> None:
        self.port = 0
        self._ensemble = ensemble
        self._ask = ask
        self._seconds = seconds
        self._limits = limits
        self._notify = notify
        self._url = ""

    async def begin(self, url: str) -> None:
        """Store the URL of the sign-in page."""
        if self._ask is None:
            raise self._failure("the token has expired")
        self._url = url

    def _failure(self, reason: str) -> SignInNeeded:
        """Report and return an error; the package itself would only end the connection."""
        error = SignInNeeded(reason, ensemble=self._ensemble)
        self._notify(error)
        return error

    async def finish(self) -> AuthorizationCodeResult:
        """Open the page for the user, and wait for the browser to return."""
        from mcp.shared.auth import AuthorizationCodeResult

        assert self._ask is not None
        host = urlsplit(self._url).netloc
        request = ElicitationRequest(
            ensemble=self._ensemble, message=f"Sign in at {host}", url=self._url
        )
        try:
            with self._limits.paused():
                async with listen(self.port) as arrival, asyncio.timeout(self._seconds):
                    answer = await self._ask(request)
                    if answer.action != "accept":
                        raise self._failure("no user signed in")
                    found = await arrival
        except TimeoutError as error:
            reason = f"no user signed in within {self._seconds:g} s (sign-in-seconds)"
            raise self._failure(reason) from error
        except OSError as error:
            reason = f"port {self.port} is taken (redirect-port): {error.strerror}"
            raise self._failure(reason) from error
        if "error" in found:
            words = " ".join(filter(None, (found["error"], found.get("error_description"))))
            raise self._failure(f"signing in was refused: {words}")
        code = found.get("code", "")
        remember(code)
        return AuthorizationCodeResult(code=code, state=found.get("state"), iss=found.get("iss"))


@asynccontextmanager
async def listen(port: int) -> AsyncIterator[asyncio.Future[dict[str, str]]]:
    """Receive the parameters of the first browser request to this local port."""
    arrival: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n")
            target = urlsplit(head.decode("latin-1").split(" ")[1])
            found = {name: values[0] for name, values in parse_qs(target.query).items()}
            known = target.path == _PATH and ("code" in found or "error" in found)
            text = "You have signed in. You may close this page."
            if not known:
                text = "Not found."
            elif "error" in found:
                text = f"Signing in was refused: {found['error']}"
            body = f"<!doctype html><title>vibe-llms</title><p>{html.escape(text)}</p>"
            status = "200 OK" if known else "404 Not Found"
            page = _PAGE.format(status=status, length=len(body.encode()), body=body)
            writer.write(page.encode())
            await writer.drain()
            if known and not arrival.done():
                arrival.set_result(found)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
            # Ignore other requests to the port.
            pass
        except asyncio.LimitOverrunError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_LONGEST_REQUEST)
    try:
        yield arrival
    finally:
        server.close()
        arrival.cancel()


def find_port() -> int:
    """Return a free local port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _produce_refusal(ensemble: str, notify: Callable[[Exception], None]) -> httpx2.Auth:
    """Return an `Auth` without a token that reports a server's demand for one."""
    import httpx2

    class Refusal(httpx2.Auth):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            response = yield request
            if response.status_code == 401:
                notify(SignInNeeded("it requires signing in", ensemble=ensemble))

    return Refusal()
