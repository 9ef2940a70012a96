"""Logins of browsers at the server: one-time codes, cookies, and checks of the sending page."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.server.exchanges import HttpExchange, UntilDone
from vibe_llms.server.failures import Rejected
from vibe_llms.server.secrets import SecretStore
from vibe_llms.server.settings import CODE_SECONDS
from vibe_llms.storage.logins import Login, LoginStore
from vibe_llms.storage.users import hash_key

#: Failed logins of all clients together that are possible in a number of seconds.
_MOST_FAILURES, _FAILURE_SECONDS = 5, 1.0
#: Begins the name of a cookie that browsers accept only with TLS, and from this host.
_HOST_PREFIX = "__Host-"
#: Seconds between looks if the login of a request that takes long has ended.
_WATCH_SECONDS = 10.0
_READING = ("GET", "HEAD")


class Logins:
    """Logins at a server. One-time codes are known to this process only."""

    def __init__(self, store: LoginStore, secret: SecretStore, seconds: float) -> None:
        """Create logins that last for a number of seconds."""
        self.store = store
        self._secret = secret
        self._seconds = seconds
        self._name = ""
        #: User and end of each code that is not used yet, by its hash.
        self._codes: dict[str, tuple[str, float]] = {}
        self._failures: deque[float] = deque(maxlen=_MOST_FAILURES)

    def invite(self, user: str) -> str:
        """Return a code with which one browser can log in as a user, once and soon."""
        code = secrets.token_urlsafe(32)
        self._codes[hash_key(code)] = user, time.monotonic() + CODE_SECONDS
        return code

    def redeem(self, code: str) -> str | None:
        """Return the user of a code, which is then used up."""
        # The lookup uses a hash, so its time does not reveal anything about codes.
        user, end = self._codes.pop(hash_key(code), (None, 0.0))
        return user if time.monotonic() < end else None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Count the block as a failed login if it raises; `Rejected` if there are too many."""
        now = time.monotonic()
        failures = self._failures
        if len(failures) == _MOST_FAILURES and now - failures[0] < _FAILURE_SECONDS:
            raise Rejected(
                "too many logins have failed; try again in a moment",
                status=429,
                type="rate_limit_error",
                code="too_many_logins",
                retry_after=_FAILURE_SECONDS,
            )
        # Counted before it is known, because many may be tried at once.
        failures.append(now)
        yield
        # Later ones may have displaced it.
        with suppress(ValueError):
            failures.remove(now)

    async def begin(self, exchange: HttpExchange, user: str, key: str) -> Login:
        """Begin a login, and send its cookie with the response."""
        client = exchange.headers.get(b"user-agent", b"").decode("latin-1")
        token, login = await self.store.begin(user, key, self._seconds, client)
        await self._set_cookie(exchange, token, int(self._seconds))
        return login

    async def find(self, exchange: HttpExchange) -> Login | None:
        """Return the login whose cookie a request has."""
        if b"cookie" not in exchange.headers:
            return None
        name, cookies = await self._access_name(), _read_cookies(exchange)
        token = cookies.get(_HOST_PREFIX + name) or cookies.get(name)
        return await self.store.find(token) if token else None

    async def end(self, exchange: HttpExchange, login: Login) -> None:
        """End the login of a request, and remove its cookie."""
        await self.store.end(login)
        await self._set_cookie(exchange, "", 0)

    @asynccontextmanager
    async def holding(self, exchange: HttpExchange) -> AsyncIterator[None]:
        """Cancel the block if the login of the request ends meanwhile, and raise `Rejected`.

        Streams last for hours, so that looking once is not enough.
        """
        ended = asyncio.get_running_loop().create_future()
        error = Rejected("the login has ended; log in again", status=401, code="login_ended")
        watching = asyncio.create_task(self._watch(exchange, ended))
        try:
            async with UntilDone(ended, error):
                yield
        finally:
            watching.cancel()

    async def _watch(self, exchange: HttpExchange, ended: asyncio.Future[None]) -> None:
        known = True
        while known:
            await asyncio.sleep(_WATCH_SECONDS)
            # A storage that cannot be asked now does not say that the login has ended.
            with suppress(VibeLlmsError):
                known = await self.find(exchange) is not None
        ended.set_result(None)

    async def _set_cookie(self, exchange: HttpExchange, token: str, seconds: int) -> None:
        name = await self._access_name()
        form = f"{name}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}"
        # Only the browser knows if there is TLS, which a proxy may end.
        if exchange.headers.get(b"origin", b"").startswith(b"https://"):
            form = f"{_HOST_PREFIX}{form}; Secure"
        cookie = (b"set-cookie", form.encode("latin-1"))
        exchange.headers_sent = (*exchange.headers_sent, cookie)

    async def _access_name(self) -> str:
        """Return the name of the cookie: all ports of a host share cookies, but not homes."""
        if not self._name:
            secret = await self._secret.access()
            self._name = f"vibe-llms-{hashlib.sha256(b'cookie' + secret).hexdigest()[:16]}"
        return self._name


def comes_from_own_page(exchange: HttpExchange) -> bool:
    """Return True if the browser says that a page of this server sends a request."""
    return exchange.headers.get(b"sec-fetch-site") == b"same-origin"


def check_page(exchange: HttpExchange, *, browser: bool) -> None:
    """Raise `Rejected` if a request was not sent by a page of this server.

    Browsers say who sends a request in `Sec-Fetch-Site`, or if the address has neither TLS nor is
    of this machine, in `Origin`, except for requests that only read. If it is known that a
    `browser` sends the request, one of the headers must be there.
    """
    headers = exchange.headers
    reads = exchange.method in _READING
    if (site := headers.get(b"sec-fetch-site")) is not None:
        # `none`: the user typed the address.
        own = comes_from_own_page(exchange) or (reads and site == b"none")
    elif (origin := headers.get(b"origin")) is not None:
        own = origin.partition(b"://")[2] == headers.get(b"host")
    else:
        own = reads or not browser
    if not own:
        raise Rejected(
            "logins are used by the page of this server only; send Authorization: Bearer KEY",
            status=403,
            code="page_not_allowed",
        )


def _read_cookies(exchange: HttpExchange) -> dict[str, str]:
    header = exchange.headers.get(b"cookie", b"").decode("latin-1")
    pairs = (one.strip().partition("=") for one in header.split(";"))
    return {name: value for name, _, value in pairs}
