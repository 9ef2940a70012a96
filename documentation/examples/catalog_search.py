from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    SearchResult,
    register,
)

BOOKS = {"Tides": "https://catalog.example/tides", "Harbours": "https://catalog.example/harbours"}


class Catalog:
    host = "catalog.example"

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        pass

    async def open(self) -> None:
        pass

    async def search(self, request: SearchRequest) -> SearchAnswer:
        words = request.query.lower().split()
        found = [
            SearchResult(title, url, "A book of the library.")
            for title, url in BOOKS.items()
            if title.lower() in words
        ]
        return SearchAnswer(tuple(found[: request.limit]))


register("catalog", Catalog)
