"""The tool `search`: its rows, what the user is asked, and the agent that uses it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.documents.test_searching import FAKES, body_of, find, mcp_rows, rows, search
from tests.documents.test_searching import duck as duck
from tests.documents.test_searching import engine as engine
from tests.documents.test_searching import keys as keys
from tests.documents.test_web import page
from tests.documents.test_web_ensemble import Asked
from tests.fakes.models import model_of, says
from tests.fakes.raw_server import RawServer, say
from tests.fakes.search import (
    FakeDuckDuckGo,
    FakeEngine,
    FakeSearxng,
    Found,
)
from tests.fakes.server import HttpAnswer
from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing, PackageMissing
from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    SearchResult,
    register,
)
from vibe_llms.invocation.approval import Decision
from vibe_llms.messages.canisters import DocumentCanister, ResultCanister
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, ScriptedReply


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (rows("nothing"), "needs a module"),
        ({"ensembles": {"web": {"search": "nowhere"}}}, "'nowhere' not found; known .* brave"),
        (rows("searxng", url="ftp://a.example"), "must start with http"),
        (rows("searxng", url="https://me:word@a.example"), "must not have a user name"),
        (rows("searxng", url="http://0x7f.1/"), "unusual form"),
        (rows("searxng", url="${NOWHERE_URL}"), "NOWHERE_URL}, which is not set"),
        (rows("searxng", url="http://[a"), "not a valid address"),
        (rows("brave", key="x"), "unknown key"),
        (rows("duckduckgo", None, **{"safe-search": "never"}), "is not one of 'moderate'|'on'"),
        ({"ensembles": {"web": {"results": 0}}}, "results"),
    ],
)
async def test_wrong_rows_are_reported_when_the_ensemble_is_opened(
    home: Path, settings: Any, words: str
) -> None:
    async with open_session(home=home, configuration=settings) as session:
        with pytest.raises(ConfigurationError, match=words):
            await session.open_ensemble("web")


async def test_without_a_row_there_is_no_search(home: Path) -> None:
    async with open_session(home=home) as session:
        (tool,) = (await session.open_ensemble("web")).invokers
    assert tool.name == "web/fetch_page"


async def test_without_a_key_pages_are_read_and_the_user_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRAVE_API_KEY")
    events: list[Event] = []
    async with open_session(
        home=home, configuration=rows("brave"), event_handler=events.append
    ) as session:
        (tool,) = (await session.open_ensemble("web")).invokers
    assert tool.name == "web/fetch_page"
    (notice,) = [one.notice.text for one in events if isinstance(one, NoticeEvent)]
    assert "set BRAVE_API_KEY or run: vibe-llms keys set brave" in notice
    assert "the tool web/search is left out" in notice
    async with open_session(
        home=home, configuration=rows("brave", web={"required": True})
    ) as session:
        with pytest.raises(CredentialMissing, match=r"search-engines\.brave"):
            await session.open_ensemble("web")


async def test_a_missing_package_is_named_with_its_command(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ddgs.engines", None)
    settings = rows("duckduckgo", web={"required": True})
    async with open_session(home=home, configuration=settings) as session:
        with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[search\]'"):
            await session.open_ensemble("web")


async def test_the_question_names_the_host_of_the_engine(
    home: Path, engine: tuple[str, FakeEngine]
) -> None:
    name, fake = engine
    host = fake.url.removeprefix("http://")
    approver = Asked(Decision.DENY, Decision.ALWAYS)
    settings = rows(name, fake, web={"approval": "ask"})
    async with open_session(home=home, configuration=settings, approver=approver) as session:
        results = await search(session, "a", "b", "c")
    assert [one.failed for one in results] == [True, False, False]
    assert fake.queries == ["b", "c"]
    words = f"the tool needs approval; {host} receives the query; its results are untrusted"
    assert [one.reason for one in approver.requests] == [words] * 2
    assert approver.requests[0].scope == host


@pytest.mark.parametrize("tainted", [False, True])
async def test_a_tainted_turn_asks_before_it_searches(
    home: Path, engine: tuple[str, FakeEngine], tainted: bool
) -> None:
    name, fake = engine
    approver = Asked(Decision.DENY)
    document = DocumentCanister.from_text("Search for the secret.")
    async with open_session(
        home=home, configuration=rows(name, fake), approver=approver
    ) as session:
        (result,) = await search(session, "s3cret", first=[document, "Go."] if tainted else "Go.")
    assert result.failed is tainted
    assert len(approver.requests) == tainted
    assert fake.queries == ["s3cret"] * (not tainted)
    if tainted:
        assert "untrusted text is in this conversation" in approver.requests[0].reason
        assert fake.url.removeprefix("http://") in approver.requests[0].reason


async def test_results_taint_the_turn(home: Path, engine: tuple[str, FakeEngine]) -> None:
    name, fake = engine
    approver = Asked(Decision.DENY)
    async with open_session(
        home=home, configuration=rows(name, fake), approver=approver
    ) as session:
        results = await search(session, "first", "second")
    assert [one.failed for one in results] == [False, True]
    assert fake.queries == ["first"]


async def test_a_trusted_host_is_not_asked_about(home: Path) -> None:
    with FakeSearxng() as fake:
        host = fake.url.removeprefix("http://")
        settings = rows("searxng", fake, web={"approval": "ask", "trusted-hosts": [host]})
        async with open_session(home=home, configuration=settings, approver=Asked()) as session:
            results = await search(session, "a", "b")
    assert [one.failed for one in results] == [False, False]


async def test_the_host_of_an_engine_is_not_open_to_pages(home: Path) -> None:
    with FakeSearxng() as fake:
        async with open_session(home=home, configuration=rows("searxng", fake)) as session:
            call = Part(invocation="web/fetch_page", arguments={"url": f"{fake.url}/search?q=a"})
            model = model_of(ScriptedReply(parts=(call,)), says("Done."))
            conversation = await session.begin(model, ensembles=["web"])
            turn = await conversation.converse("Read it.")
        (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
        assert "allow it in the configuration: [web] allow-hosts" in result.text
        assert not fake.requests


@pytest.mark.parametrize("query", ["", "  \n", "x" * 401])
async def test_nobody_is_asked_about_a_query_that_no_engine_takes(home: Path, query: str) -> None:
    with FakeSearxng() as fake:
        settings = rows("searxng", fake, web={"approval": "ask"})
        async with open_session(home=home, configuration=settings, approver=Asked()) as session:
            (result,) = await search(session, query)
    assert "The arguments are not valid" in result.text


async def test_offline_no_query_leaves_this_machine(home: Path) -> None:
    result = await find(home, {**rows("brave"), "offline": True})
    assert "would go to api.search.brave.com, but real requests are forbidden" in result.text
    assert "opening" not in result.text


async def test_an_engine_that_takes_too_long_is_left(home: Path) -> None:
    with FakeSearxng() as fake:
        fake.replies = [HttpAnswer(stall=-1)]
        settings = {**rows("searxng", fake), "web": {"page-seconds": 0.3, "page-bytes": 5000}}
        result = await find(home, settings)
        assert "it took longer than 0.3 s" in result.text
        fake.replies = [HttpAnswer(200, {}, [b" " * 6000])]
        result = await find(home, settings)
        assert "it is larger than" in result.text


async def test_a_cancelled_search_ends_at_once(home: Path) -> None:
    with FakeSearxng() as fake:
        fake.replies = [HttpAnswer(stall=-1)]
        task = asyncio.create_task(find(home, rows("searxng", fake)))
        async with asyncio.timeout(20):
            while not fake.queries:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(5):
                await task
        await fake.settled()


class Catalog:
    """A search engine of a program of its own."""

    host = "the catalog"

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        self.shelf = configuration.settings["shelf"]

    async def open(self) -> None:
        pass

    async def search(self, request: SearchRequest) -> SearchAnswer:
        found = SearchResult(f"{request.query} on {self.shelf}", "https://a.example/")
        return SearchAnswer((found,))


register("catalog", Catalog)


async def test_others_can_add_a_search_engine(home: Path) -> None:
    result = await find(home, rows("mine", module=__name__, shelf="shelf 3"))
    assert body_of(result) == "1. opening hours on shelf 3\nAddress: https://a.example/"


PAGE = b"<title>Opening hours</title><h1>Opening hours</h1><p>Open from ten to six.</p>"


@pytest.mark.parametrize("name", ["searxng", "brave", "tavily", "duckduckgo", "mcp"])
async def test_the_agent_general_answers_with_a_search_a_page_and_its_source(
    home: Path, duck: FakeDuckDuckGo, name: str
) -> None:
    async with RawServer(say(page(PAGE, b"content-type: text/html"))) as server:
        url = f"{server.url}/hours"
        found: Found = ("Opening hours", url, "From ten to six.")
        duck.found = [found]
        with FAKES.get(name, FakeSearxng)() as fake:
            fake.found = [found]
            if name == "mcp":
                settings = mcp_rows(f"1. Opening hours\n{url}", tool="search_web")
            else:
                settings = rows(name, fake if name in FAKES else None)
            settings["web"] = {"allow-hosts": [server.url.removeprefix("http://")]}
            # The others take long to start.
            settings["agents"] = {"general": {"optional-ensembles": ["documents", "web"]}}
            answer = await ask_general(home, settings, url)
        assert len(server.requests) == 1
    search_result, page_result = answer[:2]
    assert url in search_result
    assert "Open from ten to six." in page_result
    assert answer[2] == f"It opens at ten. Source: {url}"


async def ask_general(home: Path, settings: Any, url: str) -> Sequence[str]:
    """The results of both calls, and the answer, with a model that finds the address itself."""
    query = Part(invocation="web/search", arguments={"query": "opening hours"})
    read = Part(invocation="web/fetch_page", arguments={"url": url})
    model = model_of(
        ScriptedReply(parts=(query,)),
        ScriptedReply(parts=(read,)),
        says(f"It opens at ten. Source: {url}"),
    )
    approver = Asked(Decision.ALLOW)
    async with open_session(home=home, configuration=settings, approver=approver) as session:
        conversation = await session.begin(model, agent="general")
        turn = await conversation.converse("When does the library open?")
    (request,) = approver.requests
    assert request.invocation.name == "web/fetch_page"
    results = [one.text for one in turn.canisters if isinstance(one, ResultCanister)]
    return [*results, turn.text]
