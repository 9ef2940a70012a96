"""Tavily's search (https://docs.tavily.com/documentation/api-reference/endpoint/search)."""

from __future__ import annotations

import msgspec

from vibe_llms.base.configuration import SEARCH_ENGINES
from vibe_llms.documents.searching.endpoints import EndpointKeys, SearchEndpoint, read_results
from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    register,
)
from vibe_llms.providers.http_transport import send_bearer

#: Most results of a request.
_MOST = 20


class TavilyEngine:
    """Tavily, which needs a key."""

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        whole = configuration.configuration
        self._keys = whole.read(EndpointKeys, configuration.settings, SEARCH_ENGINES, name)
        self._endpoint = SearchEndpoint(name, configuration, self._keys, authorize=send_bearer)

    @property
    def host(self) -> str:
        """Host of the interface."""
        return self._endpoint.host

    async def open(self) -> None:
        """Find the key."""
        await self._endpoint.open()

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the results."""
        fields = {
            **self._keys.extras,
            "query": request.query,
            "max_results": min(request.limit, _MOST),
        }
        received = await self._endpoint.request(
            "POST", "/search", msgspec.json.encode(fields), {"content-type": "application/json"}
        )
        decoded = self._endpoint.decode(received)
        return SearchAnswer(read_results(decoded.get("results"), request.limit, snippet="content"))


register("tavily", TavilyEngine)
