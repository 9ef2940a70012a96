"""Search engines: what they are sent, what the model reads, and what the user is asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import primp
import pytest

from tests.documents.test_web_ensemble import Asked
from tests.fakes import mcp_search
from tests.fakes.models import model_of, says
from tests.fakes.search import (
    BRAVE_KEY,
    TAVILY_KEY,
    FakeBrave,
    FakeDuckDuckGo,
    FakeEngine,
    FakeSearxng,
    FakeTavily,
    Found,
    answer_json,
    answer_page,
    brave_error,
)
from tests.fakes.server import HttpAnswer
from tests.fakes.warm import warm_command
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.documents.searching.brave import read_wait
from vibe_llms.invocation.approval import Decision
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.testing import Part, ScriptedReply, forbid_requests

pytestmark = pytest.mark.usefixtures("warm_process")

HOURS: Found = ("Opening hours", "https://library.example/hours", "From ten to six & later.")
NEWS: Found = ("News", "https://library.example/news?a=1&b=2", "")
KEYS = {"brave": BRAVE_KEY, "tavily": TAVILY_KEY}
FAKES: dict[str, type[FakeEngine]] = {
    "searxng": FakeSearxng,
    "brave": FakeBrave,
    "tavily": FakeTavily,
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", BRAVE_KEY)
    monkeypatch.setenv("TAVILY_API_KEY", TAVILY_KEY)


@pytest.fixture(params=FAKES)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, FakeEngine]]:
    with FAKES[request.param]() as fake:
        fake.found = [HOURS, NEWS]
        yield request.param, fake


@pytest.fixture
def duck(monkeypatch: pytest.MonkeyPatch) -> FakeDuckDuckGo:
    fake = FakeDuckDuckGo([HOURS, NEWS])
    monkeypatch.setattr(primp, "Client", fake)
    return fake


def rows(name: str, fake: FakeEngine | None = None, *, web: Any = None, **row: Any) -> Any:
    """Settings whose ensemble `web` asks this engine, at the address of its fake."""
    if fake is not None:
        row["url"] = fake.url + "/res/v1" * (name == "brave")
    return {
        "search-engines": {name: row},
        "ensembles": {"web": {"search": name, "approval": "allow", **(web or {})}},
    }


async def search(session: Session, *queries: str, first: Any = "Search it.") -> list[Any]:
    """The results of queries, each in a round of its own."""
    replies = [
        ScriptedReply(parts=(Part(invocation="web/search", arguments={"query": query}),))
        for query in queries
    ]
    model = model_of(*replies, says("Done."))
    conversation = await session.begin(model, ensembles=["web"])
    turn = await conversation.converse(first)
    return [one for one in turn.canisters if isinstance(one, ResultCanister)]


async def find(home: Path, settings: Any, *queries: str) -> Any:
    async with open_session(
        home=home, configuration=settings, approver=Asked(*[Decision.ALLOW] * 9)
    ) as session:
        return (await search(session, *(queries or ("opening hours",))))[0]


def body_of(result: ResultCanister) -> str:
    return result.text.partition("\n\n")[2]


async def test_a_search_lists_titles_addresses_and_snippets(
    home: Path, engine: tuple[str, FakeEngine]
) -> None:
    name, fake = engine
    result = await find(home, rows(name, fake))
    assert not result.failed
    host = fake.url.removeprefix("http://")
    head, searched = result.text.partition("\n\n")[0].splitlines()
    assert head == f"Search engine: {host}"
    assert searched.startswith("Searched: 20")
    assert body_of(result) == (
        "1. Opening hours\nAddress: https://library.example/hours\nFrom ten to six & later.\n\n"
        "2. News\nAddress: https://library.example/news?a=1&b=2"
    )
    assert result.display == f"2 results of {host}: {HOURS[1]}, {NEWS[1]}"
    assert fake.queries == ["opening hours"]


async def test_results_are_limited_and_pages_without_an_address_are_left_out(
    home: Path, engine: tuple[str, FakeEngine]
) -> None:
    name, fake = engine
    fake.found = [
        ("No page", "javascript:alert(1)", ""),
        ("Two\nlines", "https://a.example/\nAddress: x", ""),
        *((f"Title\n{number}", f"https://a.example/{number}", "x" * 3000) for number in range(9)),
    ]
    result = await find(home, rows(name, fake, web={"results": 2}))
    lines = body_of(result).splitlines()
    assert [line for line in lines if line.startswith(("1.", "2.", "3."))] == [
        "1. Title 0",
        "2. Title 1",
    ]
    assert "javascript" not in result.text
    assert max(map(len, lines)) == 1000


async def test_no_results_is_not_an_error(home: Path, engine: tuple[str, FakeEngine]) -> None:
    name, fake = engine
    fake.found = []
    result = await find(home, rows(name, fake))
    assert (result.failed, body_of(result)) == (False, "No results. Try other words.")
    assert result.display.startswith("no results of 127.0.0.1")


async def test_extras_are_sent_and_cannot_replace_the_query(home: Path) -> None:
    with FakeBrave() as fake:
        await find(home, rows("brave", fake, extras={"country": "DE", "q": "other"}))
        assert "country=DE" in fake.requests[0].path
        assert fake.queries == ["opening hours"]
        result = await find(home, rows("brave", fake, extras={"contry": "DE"}))
        assert "status 422 (Unable to validate request parameter(s))" in result.text


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer_page("<!doctype html>"), "with a web page instead of JSON; check url"),
        (HttpAnswer(200, {}, [b'{"results": [']), "answered with invalid JSON"),
        (HttpAnswer(200, {}, [b"[" * 100_000]), "answered with invalid JSON"),
        (answer_json([]), "JSON that is not an object"),
        (answer_json({}, 503), "answered with status 503; try again later"),
        (HttpAnswer(301, {"location": "https://b.example/"}, []), "set url to it"),
        (HttpAnswer(drop="reset"), "127.0.0.1"),
        (answer_json({}, 429, retry_after="60"), "too many requests"),
    ],
)
async def test_what_an_engine_does_wrong_is_one_clear_line(
    home: Path, engine: tuple[str, FakeEngine], reply: HttpAnswer, words: str
) -> None:
    name, fake = engine
    fake.replies = [reply]
    result = await find(home, rows(name, fake))
    assert result.failed
    assert result.text.startswith(f"search engine '{name}': ")
    assert words in result.text
    assert "\n" not in result.text
    assert "opening" not in result.text
    assert KEYS.get(name, "?") not in result.text


async def test_members_of_wrong_types_are_left_out(
    home: Path, engine: tuple[str, FakeEngine]
) -> None:
    name, fake = engine
    items: list[Any] = [
        None,
        3,
        {},
        {"url": 5},
        {"url": "https://a.example/", "title": None, "content": []},
    ]
    fake.replies = [answer_json({"results": items, "web": {"results": items}, "query": None})]
    result = await find(home, rows(name, fake))
    assert body_of(result) == "1. https://a.example/\nAddress: https://a.example/"
    fake.replies = [answer_json({"results": "no", "web": "no", "unresponsive_engines": 1})]
    result = await find(home, rows(name, fake))
    assert body_of(result) == "No results. Try other words."


@pytest.mark.parametrize("name", ["brave", "tavily"])
async def test_a_wrong_key_is_named_but_not_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wrong-0123456789-abcdefghij"
    monkeypatch.setenv(f"{name.upper()}_API_KEY", wrong)
    with FAKES[name]() as fake:
        result = await find(home, rows(name, fake))
    assert f"refused the key (status {422 if name == 'brave' else 401})" in result.text
    assert result.text.endswith(f"check it, or run: vibe-llms keys set {name}")
    assert wrong not in result.text + caplog.text


async def test_an_engine_that_quotes_the_key_does_not_reveal_it(home: Path) -> None:
    with FakeTavily() as fake:
        fake.replies = [answer_json({"detail": {"error": f"bad key {TAVILY_KEY}"}}, 401)]
        result = await find(home, rows("tavily", fake))
    assert "bad key" in result.text
    assert TAVILY_KEY not in result.text


async def test_a_short_wait_is_waited_for_once(home: Path) -> None:
    limits = {"x_ratelimit_remaining": "0, 1985", "x_ratelimit_reset": "1, 1419704"}
    with FakeBrave() as fake:
        fake.found = [HOURS]
        fake.replies = [brave_error(429, "RATE_LIMITED", "Request rate limit exceeded", **limits)]
        result = await find(home, rows("brave", fake))
        assert not result.failed
        assert len(fake.requests) == 2
        fake.replies = [answer_json({}, 429, retry_after="0")] * 2
        result = await find(home, rows("brave", fake))
        assert "received too many requests; try again in 1 s" in result.text
        assert len(fake.requests) == 4


def test_the_longest_of_the_exhausted_limits_decides() -> None:
    both = {"x-ratelimit-remaining": "0, 0", "x-ratelimit-reset": "1, 1419704"}
    assert read_wait(both) == 1419704.0
    assert read_wait({**both, "retry-after": "7"}) == 7.0
    assert read_wait({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}) is None
    assert read_wait({}) is None


async def test_searches_of_one_reply_are_sent_one_after_another(home: Path) -> None:
    with FakeBrave() as fake:
        fake.found = [HOURS]
        limits = {"retry_after": "0"}
        fake.replies = [brave_error(429, "RATE_LIMITED", "exceeded", **limits)]
        calls = tuple(
            Part(invocation="web/search", arguments={"query": query}) for query in ("a", "b")
        )
        async with open_session(
            home=home, configuration=rows("brave", fake), approver=Asked()
        ) as session:
            model = model_of(ScriptedReply(parts=calls), says("Done."))
            conversation = await session.begin(model, ensembles=["web"])
            turn = await conversation.converse("Search both.")
        results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
        assert [one.failed for one in results] == [False, False]
        assert fake.queries[0] == fake.queries[1]


async def test_searxng_without_json_says_which_setting_is_missing(home: Path) -> None:
    with FakeSearxng("html") as fake:
        result = await find(home, rows("searxng", fake))
    assert "add json to formats under search in its settings.yml" in result.text


async def test_the_limiter_of_searxng_is_named(home: Path) -> None:
    with FakeSearxng() as fake:
        fake.replies = [answer_page("Too Many Requests", 429, retry_after="3600")]
        result = await find(home, rows("searxng", fake))
    assert "limiter.toml" in result.text


async def test_engines_of_searxng_that_do_not_answer_are_named(home: Path) -> None:
    with FakeSearxng() as fake:
        fake.unresponsive = [["brave", "Suspended: too many requests"]]
        fake.found = [HOURS]
        result = await find(home, rows("searxng", fake))
        note = "Note: no answer from brave (Suspended: too many requests)"
        assert note in result.text.splitlines()
        assert not result.failed
        fake.found = []
        result = await find(home, rows("searxng", fake))
    assert result.failed
    assert "its engines did not answer: brave (Suspended: too many requests)" in result.text


async def test_searxng_may_be_below_a_path_and_at_an_address_of_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeSearxng() as fake:
        fake.found = [HOURS]
        monkeypatch.setenv("SEARXNG_URL", f"{fake.url}/")
        result = await find(home, rows("searxng"))
        assert not result.failed
        result = await find(home, rows("searxng", url=f"{fake.url}/searxng/"))
        assert "answered with status 404" in result.text
        assert fake.requests[-1].path.startswith("/searxng/search?")


async def test_markup_of_brave_is_removed(home: Path) -> None:
    with FakeBrave() as fake:
        fake.found = [("A &amp; B", "https://a.example/", "The <strong>cat</strong>&#x27;s")]
        result = await find(home, rows("brave", fake))
    assert body_of(result) == "1. A & B\nAddress: https://a.example/\nThe cat's"


async def test_duckduckgo_is_searched_through_the_package(home: Path, duck: FakeDuckDuckGo) -> None:
    result = await find(home, rows("duckduckgo"))
    assert body_of(result).startswith(
        "1. Opening hours\nAddress: https://library.example/hours\nFrom ten to six & later."
    )
    assert result.text.startswith("Search engine: html.duckduckgo.com\n")
    assert duck.queries == ["opening hours"]
    assert duck.options["proxy"] is None
    assert duck.options["verify"] is True


async def test_duckduckgo_does_not_say_whether_nothing_matches(
    home: Path, duck: FakeDuckDuckGo
) -> None:
    duck.status = 202
    result = await find(home, rows("duckduckgo"))
    assert result.failed
    assert "nothing matches, or it received too many requests" in result.text


async def test_errors_of_the_package_are_ours(home: Path, duck: FakeDuckDuckGo) -> None:
    duck.error = primp.TimeoutError("operation timed out")
    result = await find(home, rows("duckduckgo"))
    assert result.text.endswith("did not answer in time; try again later")
    duck.error = primp.ConnectError("no route")
    result = await find(home, rows("duckduckgo"))
    assert "html.duckduckgo.com cannot be searched: ConnectError" in result.text


async def test_the_package_sends_nothing_offline_or_behind_a_proxy(
    home: Path, duck: FakeDuckDuckGo, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await find(home, {**rows("duckduckgo"), "offline": True})
    assert "real requests are forbidden" in result.text
    with forbid_requests():
        result = await find(home, rows("duckduckgo"))
    assert "a search would go to html.duckduckgo.com" in result.text
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    result = await find(home, rows("duckduckgo"))
    assert "[web] proxy = true" in result.text
    assert not duck.queries
    result = await find(home, {**rows("duckduckgo"), "web": {"proxy": True}})
    assert not result.failed
    assert duck.options["proxy"] == "http://proxy.example:3128"


async def test_a_search_engine_that_the_package_does_not_know_is_refused(home: Path) -> None:
    async with open_session(home=home, configuration=rows("duckduckgo", backend="duck")) as session:
        with pytest.raises(ConfigurationError, match=r"'duck' is not a search engine .* yahoo"):
            await session.open_ensemble("web")


def server_of(text: str) -> dict[str, Any]:
    command = warm_command(mcp_search.__file__, text)
    return {"command": command, "open-seconds": 60, "list-seconds": 60, "approval": "ask"}


def mcp_rows(text: str, *, server: Any = None, **row: Any) -> Any:
    settings = rows("mine", module="vibe_llms.documents.searching.mcp", **{"server": "duck", **row})
    module = {"module": "vibe_llms.ensembles.mcp"}
    settings["ensembles"]["duck"] = {**module, **server_of(text), **(server or {})}
    return settings


async def test_the_text_of_an_mcp_server_is_taken_as_it_is(home: Path) -> None:
    settings = mcp_rows("Found QUERY, MAX\n\n1. x", tool="search_web", extras={"max_results": 3})
    # The first result is untrusted text. The server's tool does not ask a second time.
    approver = Asked(Decision.ALLOW, Decision.ALLOW)
    async with open_session(home=home, configuration=settings, approver=approver) as session:
        results = await search(session, "opening hours", "nothing", "broken")
    assert [one.invocation.name for one in approver.requests] == ["web/search"] * 2
    assert body_of(results[0]) == "Found opening hours, 3\n\n1. x"
    assert results[0].text.startswith("Search engine: the MCP server duck\n")
    assert body_of(results[1]) == "No results. Try other words."
    assert results[2].failed
    assert "duck/search_web: Error executing tool search_web" in results[2].text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tool": "find"}, "duck has no tool 'find'; it has: duck/search_web"),
        ({"tool": "search_web", "argument": "q"}, "duck/search_web needs other arguments"),
        ({"tool": "search_web", "server": {"approval": "deny"}}, "its row denies this tool"),
        ({"tool": "search_web", "server": {"command": ["/nowhere"]}}, "cannot be started"),
    ],
)
async def test_an_mcp_tool_that_cannot_be_called_is_a_clear_error(
    home: Path, row: Any, words: str
) -> None:
    changes = {"server": row.pop("server", None)}
    settings = mcp_rows("x", **row)
    settings["ensembles"]["duck"].update(changes["server"] or {})
    result = await find(home, settings)
    assert result.failed
    assert words in result.text


async def test_an_mcp_server_must_be_one(home: Path) -> None:
    settings = mcp_rows("x", tool="search")
    settings["search-engines"]["mine"]["server"] = "web"
    async with open_session(home=home, configuration=settings) as session:
        with pytest.raises(ConfigurationError, match=r"MCP server 'web' not found .*: .*duck"):
            await session.open_ensemble("web")
