"""Strict fakes of search engines: SearXNG, Brave, Tavily, and DuckDuckGo under the package `ddgs`.

Their formats are those of `searx/webapp.py` and `searx/webutils.py` of SearXNG (2026-08-22), of the
documentations of Brave and Tavily, and of `ddgs/engines/duckduckgo.py` (9.16.1).
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest

BRAVE_KEY = "BSA-strict-0123456789abcdefghij"
TAVILY_KEY = "tvly-dev-strict0123456789abcdefghij"
FORBIDDEN = (
    "<!doctype html>\n<html lang=en>\n<title>403 Forbidden</title>\n<h1>Forbidden</h1>\n"
    "<p>You don&#39;t have the permission to access the requested resource. It is either "
    "read-protected or not readable by the server.</p>\n"
)
#: Title, address and snippet.
Found = tuple[str, str, str]


def answer_json(body: Any, status: int = 200, **headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(body).encode()
    return HttpAnswer(status, {"content-type": "application/json", **named}, [data])


def answer_page(text: str, status: int = 200, **headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    kind = "text/html; charset=utf-8"
    return HttpAnswer(status, {"content-type": kind, **named}, [text.encode()])


class FakeEngine(FakeServer):
    """Answers with the next of `replies`, else with `found`; `queries` are the accepted ones."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Found] = []
        self.replies: list[HttpAnswer] = []
        self.queries: list[str] = []

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        parts = urlsplit(request.path)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        refusal = self.check(request, parts.path, given)
        if refusal is not None:
            return refusal
        return self.replies.pop(0) if self.replies else self.answer()

    def check(
        self, request: ReceivedRequest, path: str, given: Mapping[str, str]
    ) -> HttpAnswer | None:
        """Return the answer to a request that the real engine would refuse."""
        raise NotImplementedError

    def answer(self) -> HttpAnswer:
        raise NotImplementedError


class FakeSearxng(FakeEngine):
    """An instance with the given `formats`, and engines that do not answer."""

    def __init__(self, *formats: str) -> None:
        super().__init__()
        self.formats = formats or ("html", "json")
        self.unresponsive: list[list[str]] = []

    def check(
        self, request: ReceivedRequest, path: str, given: Mapping[str, str]
    ) -> HttpAnswer | None:
        if request.method != "GET" or path != "/search":
            return answer_page("<title>404 Not Found</title>", 404)
        form = given.get("format", "html")
        if form not in self.formats:
            return answer_page(FORBIDDEN, 403)
        if not given.get("q"):
            return answer_json({"error": "No query"}, 400)
        if form != "json":
            return answer_page("<!doctype html><title>SearXNG</title>")
        self.queries.append(given["q"])
        return None

    def answer(self) -> HttpAnswer:
        results = [
            {
                "url": url,
                "engine": "mojeek",
                "parsed_url": [*urlsplit(url)[:3], "", "", ""],
                "template": "default.html",
                "title": title,
                "content": snippet,
                "publishedDate": None,
                "engines": ["mojeek"],
                "positions": [number],
                "score": 1 / number,
                "category": "general",
            }
            for number, (title, url, snippet) in enumerate(self.found, 1)
        ]
        return answer_json(
            {
                "query": self.queries[-1],
                "number_of_results": 0,
                "results": results,
                "answers": [],
                "corrections": [],
                "infoboxes": [],
                "suggestions": [],
                "unresponsive_engines": self.unresponsive,
            }
        )


class FakeBrave(FakeEngine):
    """Brave's web search, below `/res/v1`."""

    #: Parameters of the interface that a test uses; others are refused.
    known = ("q", "count", "country", "text_decorations", "result_filter")

    def check(
        self, request: ReceivedRequest, path: str, given: Mapping[str, str]
    ) -> HttpAnswer | None:
        if request.method != "GET" or path != "/res/v1/web/search":
            return brave_error(404, "NOT_FOUND", "Not Found")
        token = request.headers.get("x-subscription-token")
        if token != BRAVE_KEY:
            words = "The provided subscription token is invalid."
            return brave_error(422, "SUBSCRIPTION_TOKEN_INVALID", words)
        query = given.get("q", "")
        wrong = [*(given.keys() - self.known)]
        if not 0 < len(query) <= 400 or not 1 <= int(given.get("count", 20)) <= 20 or wrong:
            return brave_error(422, "VALIDATION", "Unable to validate request parameter(s)")
        self.queries.append(query)
        return None

    def answer(self) -> HttpAnswer:
        body: dict[str, Any] = {
            "type": "search",
            "query": {"original": self.queries[-1], "more_results_available": False},
        }
        if self.found:
            results = [
                {"type": "search_result", "title": title, "url": url, "description": snippet}
                for title, url, snippet in self.found
            ]
            body["web"] = {"type": "search", "results": results, "family_friendly": True}
        return answer_json(body)


def brave_error(status: int, code: str, detail: str, **headers: str) -> HttpAnswer:
    error = {"id": "6c2d", "status": status, "code": code, "detail": detail, "meta": {}}
    return answer_json(
        {"type": "ErrorResponse", "error": error, "time": 1773685964}, status, **headers
    )


class FakeTavily(FakeEngine):
    """Tavily's search."""

    def check(
        self, request: ReceivedRequest, path: str, given: Mapping[str, str]
    ) -> HttpAnswer | None:
        if (request.method, path) != ("POST", "/search"):
            return answer_json({"detail": "Not Found"}, 404)
        if request.headers.get("authorization") != f"Bearer {TAVILY_KEY}":
            words = "Unauthorized: missing or invalid API key."
            return answer_json({"detail": {"error": words}}, 401)
        if request.headers.get("content-type") != "application/json":
            return answer_json({"detail": {"error": "Invalid content type"}}, 422)
        body = request.json
        query = body.get("query")
        if not query or len(query) > 400:
            return answer_json({"detail": {"error": "Query is too long. Max 400."}}, 400)
        if not 0 <= body.get("max_results", 5) <= 20:
            return answer_json({"detail": {"error": "Invalid max_results"}}, 400)
        self.queries.append(query)
        return None

    def answer(self) -> HttpAnswer:
        results = [
            {"title": title, "url": url, "content": snippet, "score": 0.9, "raw_content": None}
            for title, url, snippet in self.found
        ]
        return answer_json(
            {
                "query": self.queries[-1],
                "follow_up_questions": None,
                "answer": None,
                "images": [],
                "results": results,
                "response_time": 0.8,
            }
        )


class _DuckPage:
    def __init__(self, status: int, text: str) -> None:
        self.status_code, self.text, self.content = status, text, text.encode()


class FakeDuckDuckGo:
    """Stands for `primp.Client`, the package's connection to html.duckduckgo.com."""

    def __init__(self, found: Sequence[Found] = ()) -> None:
        self.found = found
        self.status = 200
        self.error: Exception | None = None
        self.queries: list[str] = []
        self.options: dict[str, Any] = {}

    def __call__(self, **options: Any) -> FakeDuckDuckGo:
        self.options = options
        return self

    def headers_update(self, headers: Mapping[str, str]) -> None:
        assert not headers

    def request(self, method: str, url: str, *, data: Mapping[str, str]) -> _DuckPage:
        assert (method, url) == ("POST", "https://html.duckduckgo.com/html/")
        if self.error is not None:
            raise self.error
        self.queries.append(data["q"])
        if self.status != 200:
            return _DuckPage(self.status, "<p>If this persists, please email us.</p>")
        items = (
            '<div class="result results_links results_links_deep web-result">'
            '<div class="links_main links_deep result__body"><h2 class="result__title">'
            f'<a class="result__a" href="{html.escape(url)}">{html.escape(title)}</a></h2>'
            f'<a class="result__snippet" href="{html.escape(url)}">{html.escape(snippet)}</a>'
            "</div></div>"
            for title, url, snippet in self.found
        )
        return _DuckPage(200, f"<!doctype html><div id='links'>{''.join(items)}</div>")
