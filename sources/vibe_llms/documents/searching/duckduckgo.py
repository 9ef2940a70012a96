"""Search without a key through the package `ddgs`, which reads the pages of search engines.

The package has a transport of its own, so `[web]` does not check what it connects to.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from vibe_llms.base.configuration import SEARCH_ENGINES
from vibe_llms.base.exceptions import PackageMissing, PageUnreadable, SearchFailed
from vibe_llms.base.network.connections import choose_proxy
from vibe_llms.base.network.offline import permit_request
from vibe_llms.documents.searching.endpoints import read_results
from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    register,
)
from vibe_llms.documents.web import require_direct
from vibe_llms.invocation.threads import run_in_thread

_NOTHING = "No results found."


class DuckDuckGoSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of the package `ddgs`, which defines their values.

    `backend` is the one search engine that receives the queries.
    """

    backend: str = "duckduckgo"
    region: str = "us-en"
    safe_search: Literal["on", "moderate", "off"] = "moderate"


class DuckDuckGoEngine:
    """DuckDuckGo, or another search engine that the package `ddgs` can read."""

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        whole = configuration.configuration
        self._name = name
        self._whole = whole
        self._settings = whole.read(
            DuckDuckGoSettings, configuration.settings, SEARCH_ENGINES, name
        )
        self._origin = ""

    @property
    def host(self) -> str:
        """Host of the search engine, once it is open."""
        return urlsplit(self._origin).netloc

    async def open(self) -> None:
        """Import the package, or raise `PackageMissing`; check that it knows the backend."""
        engines = await asyncio.to_thread(_import_engines)
        backend = self._settings.backend
        # The package would take other search engines than the one that it does not know.
        if backend not in engines:
            known = ", ".join(sorted(engines))
            words = f"{backend!r} is not a search engine that ddgs knows: {known}"
            raise self._whole.error(words, SEARCH_ENGINES, self._name, "backend")
        parts = urlsplit(engines[backend].search_url)
        self._origin = f"{parts.scheme}://{parts.netloc}"

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the results of the search engine's first page."""
        web = self._whole.web
        permit_request(self._origin, "a search", offline=self._whole.offline)
        try:
            require_direct(self._origin, self._origin, web)
        except PageUnreadable as error:
            raise self._fail(str(error)) from error
        proxy = choose_proxy(self._origin)
        try:
            async with asyncio.timeout(web.page_seconds):
                items = await run_in_thread(lambda: self._ask(request, proxy))
        except TimeoutError as error:
            words = f"{self.host} took longer than {web.page_seconds:g} s ([web] page-seconds)"
            raise self._fail(words) from error
        return SearchAnswer(read_results(items, request.limit, url="href", snippet="body"))

    def _ask(self, request: SearchRequest, proxy: str | None) -> list[dict[str, Any]]:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException, TimeoutException

        settings = self._settings
        try:
            client = DDGS(proxy=proxy, timeout=max(1, int(self._whole.web.page_seconds)))
            return client.text(
                request.query,
                backend=settings.backend,
                region=settings.region,
                safesearch=settings.safe_search,
                max_results=request.limit,
            )
        except TimeoutException as error:
            raise self._fail(f"{self.host} did not answer in time; try again later") from error
        except DDGSException as error:
            if str(error) == _NOTHING:
                # The package does not tell an empty page from one that refuses to search.
                raise self._fail(
                    f"{self.host} sent no results: nothing matches, or it received too many "
                    "requests; try other words, or try again later"
                ) from error
            raise self._fail(f"{self.host} cannot be searched: {error}") from error

    def _fail(self, message: str) -> SearchFailed:
        return SearchFailed(message, engine=self._name)


def _import_engines() -> dict[str, Any]:
    try:
        from ddgs.engines import ENGINES
    except ImportError as error:
        raise PackageMissing(
            "searching with DuckDuckGo",
            package="ddgs",
            command="python -m pip install 'vibe-llms[search]'",
        ) from error
    return dict(ENGINES["text"])


register("duckduckgo", DuckDuckGoEngine)
