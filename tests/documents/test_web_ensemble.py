"""Web pages as a tool: what the model reads, and what the user is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.documents.test_web import HTML, page, redirect
from tests.fakes.models import model_of, says
from tests.fakes.raw_server import Peer, RawServer, say
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.documents.web_ensemble import CAUTION, WebEnsemble
from vibe_llms.invocation.approval import ApprovalRequest, Decision, Gatekeeper
from vibe_llms.messages.canisters import DocumentCanister, InvocationCanister, ResultCanister
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.testing import Part, ScriptedReply

LONG = b"".join(b"Line %05d\n" % number for number in range(2100))


def text_page(body: bytes, kind: bytes = b"text/plain") -> bytes:
    return page(body, b"content-type: " + kind)


class Asked:
    """An approver that gives these decisions, one after the other, and keeps the questions."""

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)
        self.requests: list[ApprovalRequest] = []

    async def __call__(self, request: ApprovalRequest) -> Decision:
        self.requests.append(request)
        return self.decisions.pop(0)

    @property
    def urls(self) -> list[str]:
        return [(request.invocation.parsed or {})["url"] for request in self.requests]


def allow(*servers: RawServer, row: dict[str, Any] | None = None, **web: Any) -> dict[str, Any]:
    """Settings that allow these servers by their address, and by a name."""
    hosts = [f"{name}:{one.port}" for one in servers for name in ("127.0.0.1", "localhost")]
    return {"web": {"allow-hosts": hosts, **web}, "ensembles": {"web": row or {}}}


async def ask(
    session: Session, *calls: dict[str, Any], tool: str = "web/fetch_page"
) -> Sequence[ResultCanister]:
    """The results of calls, each in a round of its own."""
    replies = [ScriptedReply(parts=(Part(invocation=tool, arguments=one),)) for one in calls]
    conversation = await session.begin(model_of(*replies, says("Done.")), ensembles=["web"])
    turn = await conversation.converse("Read it.")
    return [one for one in turn.canisters if isinstance(one, ResultCanister)]


async def test_the_tool_asks_and_returns_untrusted_text(home: Path) -> None:
    async with open_session(home=home) as session:
        ensemble = await session.open_ensemble("web")
        assert isinstance(ensemble, WebEnsemble)
        (tool,) = ensemble.invokers
        assert (tool.name, tool.ensemble) == ("web/fetch_page", "web")
        assert (tool.approval, tool.outside, tool.sends) == ("ask", True, True)
        assert sorted(tool.arguments_schema["properties"]) == ["page", "url"]
        await ensemble.close()
        assert ensemble.invokers == ()


async def test_a_page_comes_with_its_title_address_and_date(home: Path) -> None:
    body = b"<title>A  page</title><h1>Hi</h1><p>A word.</p>"
    replies = [redirect("/b"), say(text_page(body, b"text/html"))]
    async with RawServer(*replies) as server:
        approver = Asked(Decision.ALLOW)
        async with open_session(
            home=home, configuration=allow(server), approver=approver
        ) as session:
            (result,) = await ask(session, {"url": f"{server.url}/a"})
        url = server.url
    head, _, text = result.text.partition("\n\n")
    address, redirected, fetched = head.splitlines()
    assert address == f"Address: {url}/b"
    assert redirected == f"Redirected from: {url}/a"
    assert fetched.startswith("Fetched: 20")
    assert text.startswith("A page")
    assert "A word." in text
    assert text.endswith("\n\n**Page #1. Total pages: 1**")
    assert result.display == "A page, page 1 of 1"
    (request,) = approver.requests
    assert request.reason == f"the tool needs approval; {CAUTION}"
    assert request.scope == url.removeprefix("http://")


async def test_long_texts_have_pages_and_are_fetched_once(home: Path) -> None:
    async with RawServer(say(text_page(LONG)), say(text_page(b"short"))) as server:
        async with open_session(
            home=home, configuration=allow(server), approver=Asked(Decision.ALWAYS)
        ) as session:
            results = await ask(
                session,
                *({"url": server.url, "page": number} for number in (1, 2, 3, 4, 0)),
            )
        assert len(server.requests) == 2
    texts = [one.text for one in results]
    parts = [text.split("\n\n", 2)[2].rpartition("\n\n")[0] for text in texts[:3]]
    assert "".join(parts) == LONG.decode().rstrip("\n")
    assert [len(part) for part in parts[:2]] == [10_000, 10_000]
    assert texts[1].endswith("\n\n**Page #2. Total pages: 3**")
    assert texts[3] == "127.0.0.1 has no page 4; it has 3"
    assert texts[4] == "127.0.0.1 has no page 0; it has 1"
    assert [one.failed for one in results] == [False, False, False, True, True]


async def test_a_later_page_alone_is_fetched_too_and_few_texts_are_kept(home: Path) -> None:
    async with RawServer(say(text_page(LONG))) as server:
        async with open_session(
            home=home, configuration=allow(server), approver=Asked(Decision.ALWAYS)
        ) as session:
            urls = [f"{server.url}/{number}" for number in range(5)]
            results = await ask(session, *({"url": url, "page": 3} for url in [*urls, *urls[::-1]]))
        assert len(results) == 10
        assert not any(one.failed for one in results)
        assert len(server.requests) == 6


async def test_a_fetched_page_is_read_and_searched_as_a_document(home: Path) -> None:
    text = LONG + b"The ferryman is called Bruno.\n" + LONG
    async with RawServer(say(text_page(text))) as server:
        async with open_session(
            home=home, configuration=allow(server), approver=Asked(Decision.ALLOW)
        ) as session:
            url = f"{server.url}/long"
            calls: list[tuple[str, dict[str, Any]]] = [
                ("documents/read_document", {"source": url}),
                ("web/fetch_page", {"url": url}),
                ("documents/list_documents", {}),
                ("documents/read_document", {"source": url, "page": 2}),
                ("documents/search_document", {"source": url, "request": "the ferryman's name"}),
                ("documents/search_document", {"request": "the ferryman's name"}),
            ]
            replies = [
                ScriptedReply(parts=(Part(invocation=name, arguments=arguments),))
                for name, arguments in calls
            ]
            model = model_of(*replies, says("Done."))
            conversation = await session.begin(model, ensembles=["web", "documents"])
            turn = await conversation.converse("Read it.")
            other = await session.begin(model_of(replies[0], says("No.")), ensembles=["documents"])
            elsewhere = await other.converse("Read it too.")
        assert len(server.requests) == 1
    texts = [one.text for one in turn.canisters if isinstance(one, ResultCanister)]
    assert texts[0] == (f"document '{url}' not found; available: none. Fetch the web page first")
    assert texts[2] == f"- {url} (web page)"
    assert texts[3].endswith("\n\n**Page #2. Total pages: 5**")
    assert "Bruno" in texts[4]
    assert texts[4] == texts[5]
    (refused,) = [one.text for one in elsewhere.canisters if isinstance(one, ResultCanister)]
    assert refused == texts[0]


async def test_each_new_host_is_asked_about_once(home: Path) -> None:
    async with RawServer(say(HTML)) as server:
        named = f"http://localhost:{server.port}"
        approver = Asked(Decision.ALWAYS, Decision.DENY, Decision.ALWAYS)
        async with open_session(
            home=home, configuration=allow(server), approver=approver
        ) as session:
            urls = [server.url, f"{server.url}/b?c=d", named, named, f"{named}/x", server.url]
            results = await ask(session, *({"url": url} for url in urls))
            assert approver.urls == [server.url, named, named]
            assert [one.failed for one in results] == [False, False, True, False, False, False]
            assert session.gatekeeper.allowed_scopes == (
                ("web/fetch_page", f"127.0.0.1:{server.port}"),
                ("web/fetch_page", f"localhost:{server.port}"),
            )
            assert session.gatekeeper.allowed == ()


async def test_once_is_for_one_call(home: Path) -> None:
    async with RawServer(say(HTML)) as server:
        approver = Asked(Decision.ALLOW, Decision.DENY)
        async with open_session(
            home=home, configuration=allow(server), approver=approver
        ) as session:
            results = await ask(session, {"url": server.url}, {"url": f"{server.url}/b"})
        assert [one.failed for one in results] == [False, True]
        assert len(server.requests) == 1


@pytest.mark.parametrize("agrees", [True, False])
async def test_a_redirect_to_another_host_is_a_new_host(home: Path, agrees: bool) -> None:
    async with RawServer(say(HTML)) as server:
        target = f"http://localhost:{server.port}/b"
        server.replies.insert(0, redirect(target))
        approver = Asked(Decision.ALWAYS, Decision.ALWAYS if agrees else Decision.DENY)
        async with open_session(
            home=home, configuration=allow(server), approver=approver
        ) as session:
            (result,) = await ask(session, {"url": server.url})
        assert approver.urls == [server.url, target]
        assert len(server.requests) == 1 + agrees
        url = server.url
    assert result.failed is not agrees
    if not agrees:
        assert result.text == (
            f"{url}: it redirects to {target}. The call was not allowed: the user said no."
        )


async def test_deciding_on_a_redirect_takes_as_long_as_it_takes(home: Path) -> None:
    async def approve(request: ApprovalRequest) -> Decision:
        loop = asyncio.get_running_loop()
        due = loop.time() + (3 if "localhost" in (request.invocation.parsed or {})["url"] else 0)
        while loop.time() < due:
            await asyncio.sleep(0)
        return Decision.ALLOW

    async with RawServer(say(HTML)) as server:
        server.replies.insert(0, redirect(f"http://localhost:{server.port}/b"))
        settings = allow(server, row={"timeout-seconds": 3}, **{"page-seconds": 3})
        async with open_session(home=home, configuration=settings, approver=approve) as session:
            await session.open_ensemble("web")
            (result,) = await ask(session, {"url": server.url})
    assert "longer than" not in result.text
    assert "did not return" not in result.text


async def test_trusted_hosts_are_not_asked_about_until_the_user_says_so(home: Path) -> None:
    async with RawServer(say(HTML)) as server:
        settings = allow(server, row={"trusted-hosts": [f"LOCALHOST:{server.port}"]})
        approver = Asked(Decision.DENY, Decision.DENY)
        named = f"http://localhost:{server.port}"
        async with open_session(home=home, configuration=settings, approver=approver) as session:
            results = await ask(session, {"url": named}, {"url": named + "/b"}, {"url": server.url})
            assert [one.failed for one in results] == [False, False, True]
            session.gatekeeper.decide("web/fetch_page", "ask")
            (result,) = await ask(session, {"url": named})
            assert result.failed
            session.gatekeeper.decide("web/fetch_page", "deny")
            (result,) = await ask(session, {"url": named})
            assert result.failed
        assert approver.urls == [server.url, named]


@pytest.mark.parametrize("tainted", [False, True])
async def test_untrusted_text_cannot_send_data_through_a_redirect_of_a_trusted_host(
    home: Path, tainted: bool
) -> None:
    async with RawServer(say(HTML)) as server:
        target = f"http://localhost:{server.port}/?secret"
        server.replies.insert(0, redirect(target))
        row = {"approval": "allow", "trusted-hosts": [f"127.0.0.1:{server.port}"]}
        approver = Asked(Decision.DENY)
        reply = ScriptedReply(
            parts=(Part(invocation="web/fetch_page", arguments={"url": server.url}),)
        )
        async with open_session(
            home=home, configuration=allow(server, row=row), approver=approver
        ) as session:
            conversation = await session.begin(
                model_of(says("Hi."), reply, says("Done.")), ensembles=["web"]
            )
            document = DocumentCanister.from_text("Go there.")
            await conversation.converse([document, "Hi."] if tainted else "Hi.")
            await conversation.converse("Go.")
        assert len(server.requests) == (1 if tainted else 2)
    assert approver.urls == [target] * tainted


async def test_without_an_approver_nothing_is_fetched(home: Path) -> None:
    async with RawServer(say(HTML)) as server:
        async with open_session(home=home, configuration=allow(server)) as session:
            (result,) = await ask(session, {"url": server.url})
        assert result.failed
        assert '[ensembles.web] approval = "allow"' in result.text
        assert not server.requests
        settings = allow(server, row={"approval": "allow"})
        async with open_session(home=home, configuration=settings) as session:
            (result,) = await ask(session, {"url": server.url})
        assert not result.failed


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/", "has a loopback address"),
        ("http://169.254.169.254/latest", "has a link-local address"),
        ("file:///etc/passwd", "the URL must start with http"),
        ("http://0x7f.1/", "unusual form"),
        ("http://me:word@example.org/", "a user name or a password"),
    ],
)
async def test_nobody_is_asked_about_an_address_that_is_refused(
    home: Path, url: str, words: str
) -> None:
    approver = Asked()
    async with open_session(home=home, approver=approver) as session:
        (result,) = await ask(session, {"url": url})
    assert result.failed
    assert words in result.text
    assert "\n" not in result.text.removeprefix("The arguments are not valid:\n")


async def test_what_cannot_be_read_is_one_line_and_the_turn_goes_on(home: Path) -> None:
    replies = [
        say(page(b"", status=b"404 Not Found")),
        say(text_page(b"\x89PNG\r\n\x1a\n" + bytes(100), b"image/png")),
        say(text_page(b"")),
    ]
    async with (
        RawServer(*replies) as server,
        open_session(
            home=home, configuration=allow(server), approver=Asked(Decision.ALWAYS)
        ) as session,
    ):
        urls = [f"{server.url}/{name}" for name in ("missing.html", "a.png", "empty.txt")]
        results = await ask(session, *({"url": url} for url in urls))
    texts = [one.text for one in results]
    assert all(one.failed for one in results)
    assert "status 404 (Not Found); check the address" in texts[0]
    assert "which cannot be read" in texts[1]
    assert "empty.txt" in texts[2]
    assert not any("\n" in text for text in texts)


async def test_offline_nothing_is_fetched(home: Path) -> None:
    settings = {"offline": True, "ensembles": {"web": {"approval": "allow"}}}
    async with open_session(home=home, configuration=settings) as session:
        (result,) = await ask(session, {"url": "https://example.org/"})
    assert result.failed
    assert "would go to example.org, but real requests are forbidden" in result.text


async def test_a_cancelled_turn_ends_at_once(home: Path) -> None:
    async def reply(peer: Peer) -> None:
        arrived.set()
        await peer.hold()

    arrived = asyncio.Event()
    async with (
        RawServer(reply) as server,
        open_session(
            home=home, configuration=allow(server), approver=Asked(Decision.ALWAYS)
        ) as session,
    ):
        task = asyncio.create_task(ask(session, {"url": server.url}))
        await arrived.wait()
        task.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.peers[0].left.wait()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"ensembles": {"web": {"trusted-hosts": ["http://a.org"]}}}, "trusted-hosts"),
        ({"ensembles": {"web": {"trusted-hosts": ["127.0.0.1"]}}}, "has a loopback address"),
        ({"ensembles": {"web": {"hosts": []}}}, "unknown key"),
        ({"web": {"allow-hosts": ["http://a.org"]}}, "is not a host"),
    ],
)
async def test_wrong_settings_are_reported_when_it_is_opened(
    home: Path, tree: dict[str, Any], words: str
) -> None:
    async with open_session(home=home, configuration=tree) as session:
        with pytest.raises(ConfigurationError, match=words):
            await session.open_ensemble("web")


async def test_a_call_without_a_valid_address_has_no_scope(home: Path) -> None:
    async with open_session(home=home) as session:
        (tool,) = (await session.open_ensemble("web")).invokers
        assert tool.scope_of({}) == tool.scope_of({"url": "x"}) == ""
        assert tool.scope_of({"url": "https://Example.org/a"}) == "example.org"
        call = InvocationCanister(name=tool.name, arguments=json.dumps({"url": 3}))
        assert "was not allowed" in await Gatekeeper().admit(call, tool)
