"""Brave Search API (https://api-dashboard.search.brave.com/documentation)."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from vibe_llms.base.configuration import SEARCH_ENGINES
from vibe_llms.documents.searching.endpoints import EndpointKeys, SearchEndpoint, read_results
from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    SearchResult,
    register,
)
from vibe_llms.documents.web import WebReply
from vibe_llms.providers.http_errors import read_retry_after

#: Most results of a request.
_MOST = 20
_TAG = re.compile(r"</?strong>")
#: Code of a wrong key, in a reply with status 422.
_WRONG_KEY = b"SUBSCRIPTION_TOKEN_INVALID"


class BraveEngine:
    """Brave Search, which needs a key."""

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        whole = configuration.configuration
        self._keys = whole.read(EndpointKeys, configuration.settings, SEARCH_ENGINES, name)
        self._endpoint = SearchEndpoint(
            name,
            configuration,
            self._keys,
            authorize=_send_token,
            read_wait=read_wait,
            refuses_key=_refuses_key,
        )

    @property
    def host(self) -> str:
        """Host of the interface."""
        return self._endpoint.host

    async def open(self) -> None:
        """Find the key."""
        await self._endpoint.open()

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the web results."""
        query = urlencode(
            {
                "text_decorations": "false",
                "result_filter": "web",
                **self._keys.extras,
                "q": request.query,
                "count": min(request.limit, _MOST),
            }
        )
        received = await self._endpoint.request("GET", f"/web/search?{query}")
        decoded = self._endpoint.decode(received)
        # Without results, the reply has no `web`.
        web = decoded.get("web")
        items = web.get("results") if isinstance(web, dict) else None
        results = read_results(items, request.limit, snippet="description")
        return SearchAnswer(tuple(map(_unmark, results)))


def _send_token(key: str) -> Mapping[str, str]:
    return {"x-subscription-token": key}


def _refuses_key(received: WebReply) -> bool:
    return received.status in (401, 403) or _WRONG_KEY in received.data


def _unmark(result: SearchResult) -> SearchResult:
    """Return a result without the markup that Brave's texts may have."""
    title, snippet = (html.unescape(_TAG.sub("", text)) for text in (result.title, result.snippet))
    return msgspec.structs.replace(result, title=title, snippet=snippet)


def read_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until every exhausted limit of a plan is reset.

    The limits, of a second and of a month, are in one header each.

    >>> read_wait({"x-ratelimit-remaining": "0, 1985", "x-ratelimit-reset": "1, 1419704"})
    1.0
    """
    if (wait := read_retry_after(headers)) is not None:
        return wait
    pairs = zip(
        headers.get("x-ratelimit-remaining", "").split(","),
        headers.get("x-ratelimit-reset", "").split(","),
        strict=False,
    )
    waits = [float(reset) for left, reset in pairs if left.strip() == "0" and _is_count(reset)]
    return max(waits, default=None)


def _is_count(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and len(text) < 12


register("brave", BraveEngine)
