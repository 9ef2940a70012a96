"""SearXNG, by its JSON interface (https://docs.searxng.org/dev/search_api.html)."""

from __future__ import annotations

from urllib.parse import urlencode

from vibe_llms.base.configuration import SEARCH_ENGINES
from vibe_llms.base.exceptions import SearchFailed
from vibe_llms.documents.searching.endpoints import (
    EndpointKeys,
    SearchEndpoint,
    clean,
    list_names,
    read_results,
)
from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    register,
)
from vibe_llms.providers.http_transport import send_bearer


class SearxngEngine:
    """An instance of SearXNG, usually of one's own."""

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        whole = configuration.configuration
        self._keys = whole.read(EndpointKeys, configuration.settings, SEARCH_ENGINES, name)
        self._endpoint = SearchEndpoint(name, configuration, self._keys, authorize=send_bearer)

    @property
    def host(self) -> str:
        """Host of the instance."""
        return self._endpoint.host

    async def open(self) -> None:
        """Find the key, if the row needs one."""
        await self._endpoint.open()

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the instance's results; notes name its engines that did not answer."""
        query = urlencode({**self._keys.extras, "q": request.query, "format": "json"})
        try:
            received = await self._endpoint.request("GET", f"/search?{query}")
        except SearchFailed as error:
            raise self._advise(error) from error
        decoded = self._endpoint.decode(received)
        results = read_results(decoded.get("results"), request.limit, snippet="content")
        silent = _list_silent(decoded.get("unresponsive_engines"))
        if silent and not results:
            words = f"{self.host} found nothing, because its engines did not answer: {silent}"
            raise self._endpoint.fail(words, received)
        return SearchAnswer(results, notes=(f"no answer from {silent}",) if silent else ())

    def _advise(self, error: SearchFailed) -> SearchFailed:
        """Return an error that says which setting of the instance it comes from."""
        match error.status:
            case 403:
                words = (
                    f"{self.host} refused the query (status 403); add json to formats under "
                    "search in its settings.yml"
                )
            case 429:
                words = (
                    f"{self.host} received too many requests; try again later, or let its limiter "
                    "pass this machine (limiter.toml)"
                )
            case _:
                return error
        return SearchFailed(
            words, engine=error.engine, status=error.status, retry_after=error.retry_after
        )


def _list_silent(pairs: object) -> str:
    """Return the names of engines that did not answer, with the reasons."""
    found = [
        f"{clean(pair[0], 60)} ({clean(pair[1], 60)})"
        for pair in (pairs if isinstance(pairs, list) else ())
        if isinstance(pair, list) and len(pair) == 2
    ]
    return list_names(found)


register("searxng", SearxngEngine)
