"""`SearchEndpoint`: requests to the HTTP interface of a search engine, and what its errors mean."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import SEARCH_ENGINES, fill_variables
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.base.exceptions import PageUnreadable, SearchFailed
from vibe_llms.documents.searching.interfaces import (
    SearchConfiguration,
    SearchResult,
)
from vibe_llms.documents.web import WebReply, check_url, exchange
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.http_errors import read_retry_after
from vibe_llms.providers.transport import Outgoing

#: A model often searches several times at once, and free plans allow one request a second. So a
#: request that is refused is sent once more if the wait, in seconds, is short.
_LONGEST_WAIT = 5.0
_LONGEST_TITLE, _LONGEST_SNIPPET, _LONGEST_REASON = 200, 1000, 300
_JSON_HEADERS = {"accept": "application/json"}


class EndpointKeys(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row whose engine has an HTTP interface.

    The host of `url` may have a private address. `extras` are additional parameters of each
    request, as the engine defines them.
    """

    url: str = ""
    credential: Literal["key", "none"] = "key"
    api_key_environment: str | tuple[str, ...] = ""
    api_key_command: tuple[str, ...] = ()
    extras: Mapping[str, str | int | bool] = {}


def _is_forbidden(received: WebReply) -> bool:
    return received.status in (401, 403)


class SearchEndpoint:
    """The HTTP interface of a search engine.

    `authorize` returns the headers with the key. `read_wait` returns the seconds after which a
    refused request may be repeated, and `refuses_key` tells if a response means a wrong key.
    """

    def __init__(
        self,
        name: str,
        configuration: SearchConfiguration,
        keys: EndpointKeys,
        *,
        authorize: Callable[[str], Mapping[str, str]],
        read_wait: Callable[[Mapping[str, str]], float | None] = read_retry_after,
        refuses_key: Callable[[WebReply], bool] = _is_forbidden,
    ) -> None:
        whole = configuration.configuration
        self.name = name
        self._whole = whole
        self._authorize, self._read_wait, self._refuses_key = authorize, read_wait, refuses_key
        parts = self._read_url(keys.url)
        # The user names this host, so it may be on this machine or its network.
        hosts = (*whole.web.allow_hosts, parts.netloc)
        self._web = msgspec.structs.replace(whole.web, allow_hosts=hosts)
        try:
            target = check_url(parts.geturl(), self._web)
        except PageUnreadable as error:
            raise whole.error(str(error), SEARCH_ENGINES, name, "url") from error
        self.host = target.host
        self._url, self._path = target.url.rstrip("/"), parts.path.rstrip("/")
        self._credential = Credential(
            name,
            keys.credential,
            keys.api_key_environment,
            keys.api_key_command,
            whole.places.keys_file,
            table=SEARCH_ENGINES,
        )
        self._secret: Secret | None = None
        self._turn = asyncio.Lock()

    def _read_url(self, text: str) -> SplitResult:
        place = (SEARCH_ENGINES, self.name, "url")
        try:
            parts = urlsplit(fill_variables(text, os.environ).strip())
        except KeyError as error:
            words = f"it uses ${{{error.args[0]}}}, which is not set in the environment; set it"
            raise self._whole.error(words, *place) from error
        except ValueError as error:
            raise self._whole.error(f"it is not a valid address: {error}", *place) from error
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise self._whole.error("it must start with http:// or https:// and a host", *place)
        if "@" in parts.netloc or parts.query:
            words = "it must not have a user name, a password, or a query"
            raise self._whole.error(words, *place)
        return parts

    async def open(self) -> None:
        """Find the key, or raise `CredentialMissing`."""
        if self._credential.kind == "key":
            # The system's keyring is slow.
            self._secret = await asyncio.to_thread(self._credential.find)

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}
    ) -> WebReply:
        """Send a request and return a response with status 200; raise `SearchFailed` otherwise.

        Requests are sent one after another, and repeated once after a short wait if the engine
        receives too many.
        """
        outgoing = Outgoing(
            method, self._path + path, (body,) if body else (), {**_JSON_HEADERS, **headers}
        )
        async with self._turn:
            received = await self._send(outgoing)
            wait = self._read_wait(received.headers)
            if received.status == HTTPStatus.TOO_MANY_REQUESTS and (wait or 0.0) <= _LONGEST_WAIT:
                await asyncio.sleep(1.0 if wait is None else wait)
                received = await self._send(outgoing)
        if received.status != HTTPStatus.OK:
            raise self._explain(received)
        return received

    async def _send(self, outgoing: Outgoing) -> WebReply:
        secret = self._secret
        try:
            return await exchange(
                self._url,
                outgoing,
                self._web,
                authorize=lambda: {} if secret is None else self._authorize(secret.reveal()),
                offline=self._whole.offline,
            )
        except PageUnreadable as error:
            raise self.fail(str(error)) from error

    def fail(self, message: str, received: WebReply | None = None) -> SearchFailed:
        """Return an error of this engine about a response."""
        if received is None:
            return SearchFailed(message, engine=self.name)
        wait = self._read_wait(received.headers)
        return SearchFailed(message, engine=self.name, status=received.status, retry_after=wait)

    def decode(self, received: WebReply) -> dict[str, Any]:
        """Return the JSON object of a response."""
        try:
            decoded = msgspec.json.decode(received.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if received.data.lstrip()[:1] == b"<":
                words = f"{self.host} answered with a web page instead of JSON; check url"
                raise self.fail(words, received) from error
            raise self.fail(f"{self.host} answered with invalid JSON: {error}", received) from error
        if not isinstance(decoded, dict):
            raise self.fail(f"{self.host} answered with JSON that is not an object", received)
        return decoded

    def _explain(self, received: WebReply) -> SearchFailed:
        reason = self._quote(received)
        if self._refuses_key(received):
            words = f"{self.host} refused the key (status {received.status}){reason}; "
            return self.fail(f"{words}check it, or run: vibe-llms keys set {self.name}", received)
        match received.status:
            case 429:
                wait = self._read_wait(received.headers)
                when = "later" if wait is None else f"in {max(1, round(wait))} s"
                words = f"{self.host} received too many requests{reason}; try again {when}"
                return self.fail(words, received)
            case status if 300 <= status < 400:
                words = f"{self.host} redirects to {received.headers.get('location', 'elsewhere')}"
                return self.fail(f"{words}, which is not followed; set url to it", received)
            case status:
                remedy = "; try again later" if status >= 500 else ""
                words = f"{self.host} answered with status {status}{reason}{remedy}"
                return self.fail(words, received)

    def _quote(self, received: WebReply) -> str:
        """Return the engine's own words about an error, in parentheses."""
        try:
            decoded = msgspec.json.decode(received.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        words = clean(_find_words(decoded), _LONGEST_REASON)
        return f" ({words})" if words else ""


def _find_words(decoded: object) -> str:
    """Return the message of an error, in the members in which the engines put it."""
    for name in ("error", "detail", "message"):
        if isinstance(decoded, dict) and name in decoded:
            return _find_words(decoded[name])
    return decoded if isinstance(decoded, str) else ""


def read_results(
    items: object, limit: int, *, title: str = "title", url: str = "url", snippet: str
) -> tuple[SearchResult, ...]:
    """Return the results in a decoded list, by the names of their members.

    Without a web address, an item is not a page and is left out.
    """
    found: dict[str, SearchResult] = {}
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        address = item.get(url)
        if not isinstance(address, str) or not _is_page(address):
            continue
        head, text = clean(item.get(title), _LONGEST_TITLE), clean(item.get(snippet))
        found.setdefault(address, SearchResult(head or address, address, text))
    return tuple([*found.values()][:limit])


def _is_page(address: str) -> bool:
    return (
        address.lower().startswith(("http://", "https://"))
        and address.isprintable()
        and " " not in address
    )


def clean(text: object, limit: int = _LONGEST_SNIPPET) -> str:
    r"""Return a text of a search engine on one line; empty if it is not text.

    >>> clean("Opening\n hours"), clean(None)
    ('Opening hours', '')
    """
    words = " ".join(repair_text(text).split()) if isinstance(text, str) else ""
    return words if len(words) <= limit else words[: limit - 1] + "…"


def list_names(names: Iterable[object]) -> str:
    """Return names for a sentence, without anything that is not text."""
    return ", ".join(clean(name, 60) for name in names if isinstance(name, str))
