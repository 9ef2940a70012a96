"""Fetching web addresses: which are refused, and what hostile servers can do."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fakes.raw_server import Peer, RawServer, Reply, say
from tests.providers.conftest import path as path
from vibe_llms.base.configuration import WebSettings, load_configuration
from vibe_llms.base.exceptions import (
    AttachmentUnreadable,
    ConfigurationError,
    PageUnreadable,
    RequestForbidden,
)
from vibe_llms.base.meta import __version__
from vibe_llms.documents.web import Fetched, check_url, fetch
from vibe_llms.testing import forbid_requests

PUBLIC = "93.184.215.14"
#: This machine and its networks, as they are.
HIDDEN = """
127.0.0.1 127.0.0.2 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 172.16.0.1
172.31.255.255 192.168.0.1 192.168.255.255 169.254.169.254 169.254.0.1 100.64.0.1 100.127.255.255
192.0.0.1 192.0.0.9 192.0.2.1 192.88.99.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9
224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 127.0.0.1.
[::1] [::] [0:0:0:0:0:0:0:1] [::2] [fc00::1] [fd12:3456::1] [fe80::1] [fec0::1] [ff02::1] [ff0e::1]
[100::1] [2001:db8::1] [2001:2::1] [2001:20::1] [3fff::1] [4000::1] [5f00::1]
"""
#: IPv6 addresses that contain an IPv4 address.
DISGUISED = """
[::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:10.0.0.1] [::ffff:169.254.169.254] [::127.0.0.1]
[::ffff:0:127.0.0.1] [64:ff9b::127.0.0.1] [64:ff9b::a00:1] [64:ff9b:1::8.8.8.8]
[64:ff9b:1:7f00:0:100:808:808] [2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:c0a8:1::1]
[2001:0:4136:e378:8000:63bf:80ff:fffe] [2606:4700::5efe:127.0.0.1] [2606:4700::200:5efe:a00:1]
[fd00::5efe:8.8.8.8]
"""
#: What some systems read as an address.
UNUSUAL = """
2130706433 0x7f000001 0x7f.0x0.0x0.0x1 0X7F.1 0177.0.0.1 017700000001 127.1 127.0.1 0 00000000.0
127.0.0.01 127.0.0.0x1 127.000.000.001 3232235521 0xc0a80001 2852039166 1.2.3.4.5 256.1.1.1
1.1.1.256 127\u30020\u30020\u30021 127.0.0\uff0e1 \uff11\uff12\uff17.0.0.1 \u2460\u2461.0.0.1
127%2e0%2e0%2e1 127.0.0.%31 [fe80::1%25eth0] [2606:4700::1%25lo] [v1.fe80::a] [::1 ::1
[127.0.0.1] []
"""
#: Names that are none, other ports, and users.
ODD = """
. example..org \0example.org exam\u200bple.org example.org\\@far.test user@example.org
user:word@example.org :@example.org example.org@127.0.0.1 example.org:0 example.org:22
example.org:8080 example.org:6379 example.org:99999 example.org:-80 example.org:80:80
example.org:\uff18\uff10 example.org:x
"""
REFUSED = [
    *(form for forms in (HIDDEN, DISGUISED, UNUSUAL, ODD) for form in forms.split()),
    *("", "exa mple.org", "exa\tmple.org", "exam\nple.org"),
]
PASSING = {
    "example.org": "example.org",
    "EXAMPLE.org": "example.org",
    "example.org.": "example.org",
    "example.org:80": "example.org",
    "example.org:": "example.org",
    "example.org:443": "example.org:443",
    "www.example.co.uk": "www.example.co.uk",
    "under_score.example.org": "under_score.example.org",
    "1.example.org": "1.example.org",
    "0x7f.example.org": "0x7f.example.org",
    "localhost.example.org": "localhost.example.org",
    "straße.example": "xn--strae-oqa.example",
    "xn--strae-oqa.example": "xn--strae-oqa.example",
    "bücher。example": "xn--bcher-kva.example",
    "9.9.9.9": "9.9.9.9",
    "1.1.1.1:443": "1.1.1.1:443",
    "172.15.255.255": "172.15.255.255",
    "172.32.0.1": "172.32.0.1",
    "100.63.255.255": "100.63.255.255",
    "169.253.255.255": "169.253.255.255",
    "[2606:4700:4700::1111]": "[2606:4700:4700::1111]",
    "[2606:4700:4700:0:0:0:0:1111]:80": "[2606:4700:4700::1111]",
    "[::ffff:9.9.9.9]": "[::ffff:909:909]",
    "[64:ff9b::9.9.9.9]": "[64:ff9b::909:909]",
    "[2002:909:909::1]": "[2002:909:909::1]",
}


def test_there_are_enough_forms() -> None:
    assert (len({*REFUSED}), len(PASSING)) >= (60, 15)


@pytest.mark.parametrize("host", REFUSED, ids=ascii)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_is_refused(host: str, scheme: str) -> None:
    with pytest.raises(PageUnreadable) as caught:
        check_url(f"{scheme}://{host}/path", WebSettings())
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("host", PASSING, ids=ascii)
def test_an_address_passes(host: str) -> None:
    target = check_url(f"http://{host}/path?a=b#c", WebSettings())
    assert target.host == PASSING[host]
    assert target.url == f"http://{target.host}/path?a=b"
    assert target.kinds == ()


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://example.org/", "gopher://example.org/", "data:text/plain,a"),
        *("javascript:1", "//example.org/", "example.org", "http:example.org", "http:/example.org"),
        *("http:\\\\example.org", "https://", "", " ", "http:///path", "about:blank", "ws://a.org"),
    ],
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(PageUnreadable, match=r"the URL must start with http://"):
        check_url(url, WebSettings())


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(PageUnreadable, match="never sent") as caught:
        check_url(f"https://me:pass-word@example.org/{'a' * 400}", WebSettings())
    assert "pass-word" not in str(caught.value) + caught.value.url
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("allowed", "host", "passes"),
    [
        ("intranet.example", "intranet.example", True),
        ("Intranet.Example", "intranet.example:443", True),
        ("intranet.example", "intranet.example:8000", False),
        ("intranet.example:8000", "intranet.example:8000", True),
        ("intranet.example:8000", "intranet.example", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1:8000", "127.0.0.1:8000", True),
        ("127.0.0.1:8000", "127.0.0.1", False),
        ("127.0.0.1:8000", "127.0.0.2:8000", False),
        ("127.0.0.1", "127.1", False),
        ("localhost:8000", "localhost:8000", True),
        ("::1", "[::1]", True),
        ("[::1]", "[0::1]", True),
        ("[::1]:8000", "[::1]:8000", True),
        ("[::1]:8000", "[::1]", False),
        ("10.0.0.1", "[::ffff:10.0.0.1]", False),
        ("0.0.0.0", "0.0.0.0", False),
        ("224.0.0.1", "224.0.0.1", False),
    ],
)
def test_a_host_that_the_configuration_allows_passes(allowed: str, host: str, passes: bool) -> None:
    settings = WebSettings(allow_hosts=(allowed,))
    if passes:
        target = check_url(f"http://{host}/", settings)
        assert target.kinds or allowed == "intranet.example:8000"
    else:
        with pytest.raises(PageUnreadable):
            check_url(f"http://{host}/", settings)


@pytest.mark.parametrize(
    "text",
    [
        *("http://a.org", "a.org/b", "a b", "", "u@a.org", "a.org:99999", "127.1", "*.a.org"),
        *("10.0.0.0/8", "[::1", "a.org?", "a.org#"),
    ],
)
def test_a_host_in_the_configuration_must_be_one(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[web\], key 'allow-hosts': .* is not a host"):
        check_url("http://example.org/", WebSettings(allow_hosts=(text,)))


def test_the_configuration_says_what_may_be_fetched() -> None:
    tree = {"web": {"allow-hosts": ["a.org"], "page-seconds": 3}}
    web = load_configuration(overrides=tree).web
    assert (web.allow_hosts, web.page_seconds, web.redirects) == (("a.org",), 3, 5)
    with pytest.raises(ConfigurationError, match="allow-hosts"):
        load_configuration(overrides={"web": {"allow-host": ["a.org"]}})


# Servers on this machine.


def page(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, lines, len(body), body)


def redirect(location: str, status: int = 302) -> Reply:
    return say(page(b"", b"location: " + location.encode(), status=b"%d Found" % status))


def allow(*servers: RawServer, **changes: Any) -> WebSettings:
    hosts = tuple(server.url.rpartition("/")[2] for server in servers)
    return WebSettings(**{"allow_hosts": hosts, "page_seconds": 20.0, **changes})


async def get(server: RawServer, path: str = "/", **changes: Any) -> Fetched:
    return await fetch(server.url + path, allow(server, **changes))


async def fail(server: RawServer, words: str, path: str = "/", **changes: Any) -> PageUnreadable:
    with pytest.raises(PageUnreadable, match=words) as caught:
        await get(server, path, **changes)
    assert isinstance(caught.value, AttachmentUnreadable)
    assert "\n" not in str(caught.value)
    return caught.value


HTML = page(b"<p>Hi</p>", b"Content-Type: Text/HTML; Charset=UTF-8")


@pytest.mark.usefixtures("path")
async def test_a_page_is_fetched_without_telling_who_reads_it() -> None:
    async with RawServer(say(HTML)) as server:
        fetched = await get(server, "/a/b%20c.html?d=e f#g")
        assert fetched.url == f"{server.url}/a/b%20c.html?d=e f"
        assert (fetched.data, fetched.mimetype, fetched.charset) == (
            b"<p>Hi</p>",
            "text/html",
            "utf-8",
        )
        assert (fetched.status, fetched.redirects, fetched.name) == (200, (), "b c.html")
        head, *lines = server.requests[0].decode().lower().strip().split("\r\n")
        assert head == "get /a/b%20c.html?d=e%20f http/1.1"
        headers = dict(line.split(": ", 1) for line in lines)
        assert headers.pop("connection", "keep-alive") == "keep-alive"
        assert headers == {
            "host": f"127.0.0.1:{server.port}",
            "user-agent": f"vibe-llms/{__version__}",
            "accept-encoding": "gzip",
            "accept": "*/*",
        }


async def test_cookies_are_never_sent_back() -> None:
    async with RawServer(
        say(page(b"", b"location: /b", b"set-cookie: a=b; Path=/", status=b"302 Found")), say(HTML)
    ) as server:
        await get(server)
        assert b"cookie" not in server.requests[1].lower()
        assert b"referer" not in server.requests[1].lower()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(status: int) -> None:
    replies = [redirect("/b", status), redirect("?c=d", status), redirect("../e/ü.txt#f", status)]
    async with RawServer(*replies, say(HTML)) as server:
        fetched = await get(server, "/a#x")
        assert fetched.url == f"{server.url}/e/ü.txt"
        assert fetched.redirects == tuple(f"{server.url}/{one}" for one in ("a", "b", "b?c=d"))
        assert server.requests[3].startswith(b"GET /e/%C3%BC.txt HTTP/1.1")


async def test_a_chain_of_redirects_has_a_limit() -> None:
    replies = [redirect(f"/{number}") for number in range(6)]
    async with RawServer(*replies, say(HTML)) as server:
        await fail(server, r"more than 5 times \(\[web\] redirects\)")
        assert len(server.requests) == 6
    async with RawServer(*replies[:5], say(HTML)) as server:
        assert len((await get(server)).redirects) == 5
    async with RawServer(*replies, say(HTML)) as server:
        await fail(server, "more than 0 times", redirects=0)
        assert len(server.requests) == 1


async def test_a_circle_of_redirects_is_noticed() -> None:
    async with RawServer(redirect("/b"), redirect("/a#c")) as server:
        await fail(server, "in a circle through .*/a", "/a")
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://127.0.0.1:1/", "port 1 is neither"),
        ("http://127.0.0.2/", "127.0.0.2 has a loopback address"),
        ("http://[::ffff:10.0.0.1]/", "has a private address"),
        ("http://169.254.169.254/latest/meta-data", "has a link-local address"),
        ("http://0x7f.1/", "unusual form"),
        ("file:///etc/passwd", "the URL must start with http"),
        ("//me:word@127.0.0.1/", "a user name or a password"),
        ("http://[", "not a valid address"),
        ("http://a b/", "not a valid address"),
        ("", "status 302"),
        ("/" + "a" * 5000, "status 302"),
    ],
)
async def test_each_redirect_is_checked(location: str, words: str) -> None:
    async with RawServer(redirect(location)) as server:
        await fail(server, words)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (b"404 Not Found", r"status 404 \(Not Found\); check the address"),
        (b"403 Forbidden", r"status 403 \(Forbidden\); it may need signing in"),
        (b"503 Busy", r"status 503 \(Service Unavailable\); try again later"),
        (b"304 Not Modified", "status 304"),
        (b"418 Tea", "status 418"),
        (b"799 Odd", "status 799$"),
    ],
)
async def test_a_status_that_is_no_page_is_an_error(status: bytes, words: str) -> None:
    async with RawServer(say(page(b"", status=status))) as server:
        error = await fail(server, words)
        assert error.status == int(status[:3])
        assert error.url == f"{server.url}/"


# Hostile bodies.

ENDLESS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ZIPPED = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n"


def flood(head: bytes, piece: bytes) -> Reply:
    async def reply(peer: Peer) -> None:
        await peer.send(head)
        await peer.flood(piece, 80_000_000)

    return reply


def stop_after(data: bytes) -> Reply:
    async def reply(peer: Peer) -> None:
        await peer.send(data)
        await peer.hold()

    return reply


@pytest.mark.usefixtures("path")
async def test_a_body_is_read_up_to_its_limit() -> None:
    body = b"a" * 1000
    async with RawServer(say(page(body))) as server:
        assert (await get(server, page_bytes=1000)).data == body
        await fail(server, r"larger than 999 bytes \(\[web\] page-bytes\)", page_bytes=999)
    async with RawServer(flood(ENDLESS, b"10000\r\n" + b"a" * 65536 + b"\r\n")) as server:
        await fail(server, "larger than 1 MiB", page_bytes=1024 * 1024)
        assert server.peers[0].sent < 16_000_000


async def test_a_length_that_is_too_large_is_believed_at_once() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
    async with RawServer(stop_after(head)) as server:
        await fail(server, "larger than 16 MiB", page_seconds=600.0)


@pytest.mark.usefixtures("path")
async def test_a_bomb_is_unpacked_up_to_its_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000), 9)
    async with RawServer(say(page(bomb, b"content-encoding: gzip"))) as server:
        tracemalloc.start()
        try:
            await fail(server, "larger than 1 MiB", page_bytes=1024 * 1024)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 30_000_000
    async with RawServer(say(page(gzip.compress(b"Hi"), b"content-encoding: gzip"))) as server:
        assert (await get(server)).data == b"Hi"


@pytest.mark.usefixtures("path")
async def test_what_unpacks_to_nothing_has_a_limit_too() -> None:
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(b"Hi") + packer.flush(zlib.Z_FULL_FLUSH)
    async with RawServer(flood(ZIPPED + head, b"\0\0\0\xff\xff" * 13_000)) as server:
        await fail(server, "longer than its content", page_seconds=600.0)
        assert server.peers[0].sent < 16_000_000


@pytest.mark.usefixtures("path")
async def test_huge_headers_are_refused() -> None:
    async with RawServer(flood(b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 5000 + b"\r\n")) as server:
        await fail(server, "headers|bytes|Receive buffer", page_seconds=600.0)
        assert server.peers[0].sent < 16_000_000


@pytest.mark.parametrize(
    "reply",
    [
        stop_after(b""),
        stop_after(b"HTTP/1.1 200 OK\r\n"),
        stop_after(ENDLESS + b"1\r\na\r\n"),
        flood(ENDLESS, b"1\r\na\r\n"),
    ],
    ids=["silence", "headers", "body", "single bytes"],
)
async def test_a_slow_page_has_a_limit(reply: Reply) -> None:
    async with RawServer(reply) as server:
        await fail(server, r"longer than 0.3 s; .*\[web\] page-seconds", page_seconds=0.3)


async def test_the_limit_is_one_for_all_redirects() -> None:
    async def reply(peer: Peer) -> None:
        await redirect(f"/{len(server.requests)}")(peer)

    async with RawServer(reply) as server:
        await fail(server, "longer than 0.5 s", page_seconds=0.5, redirects=1_000_000)
        assert len(server.requests) > 1


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\n", ENDLESS + b"1\r\na\r\n", b"hello"])
async def test_a_broken_reply_is_an_error(reply: bytes) -> None:
    async with RawServer(say(reply, then="close")) as server:
        error = await fail(server, ".")
        assert str(error).count("127.0.0.1") == 1
        assert "web:" not in str(error)


@pytest.mark.usefixtures("path")
async def test_a_cancelled_fetch_ends_at_once() -> None:
    async def reply(peer: Peer) -> None:
        await peer.send(ENDLESS)
        arrived.set()
        await peer.hold()

    arrived = asyncio.Event()
    async with RawServer(reply) as server:
        task = asyncio.create_task(get(server))
        await arrived.wait()
        task.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.peers[0].left.wait()


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with RawServer(say(HTML)) as server:
        url, settings = server.url, allow(server)
    with pytest.raises(PageUnreadable, match="the connection was refused; check the address"):
        await fetch(url, settings)


# Names and their addresses.


class Names:
    """A resolver that gives each name its addresses, one list after the other, then the last."""

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self.names = {name.replace("_", "."): list(lists) for name, lists in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        lists = self.names[host]
        return lists.pop(0) if len(lists) > 1 else lists[0]


class Internet:
    """Connections to addresses of the internet, which lead to servers on this machine."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.silent: set[str] = set()
        self.dialed: list[str] = []


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch) -> Internet:
    """The only network; no name is looked up in it."""
    there = Internet()
    connect = asyncio.BaseEventLoop.create_connection

    async def dial(self: Any, factory: Any, host: str, port: int, **options: Any) -> Any:
        there.dialed.append(host)
        if host in there.silent:
            await asyncio.Event().wait()
        place = there.ports.get(host, port)
        return await connect(self, factory, "127.0.0.1", place, **options)

    def look_up(host: Any, *_: object, **__: object) -> None:
        raise AssertionError(f"{host} was looked up again")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", dial)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return there


async def test_a_name_is_resolved_once_and_that_address_is_dialed(internet: Internet) -> None:
    names = Names(rebinds_test=[[PUBLIC], ["127.0.0.1"]])
    async with RawServer(say(HTML)) as server:
        internet.ports[PUBLIC] = server.port
        fetched = await fetch("http://Rebinds.test/a", WebSettings(), resolver=names)
        assert fetched.url == "http://rebinds.test/a"
        assert b"host: rebinds.test\r\n" in server.requests[0]
    assert (internet.dialed, names.asked) == ([PUBLIC], ["rebinds.test"])


async def test_each_redirect_is_resolved_and_checked_anew(internet: Internet) -> None:
    names = Names(rebinds_test=[[PUBLIC], ["127.0.0.1"]])
    async with RawServer(redirect("/b"), say(HTML)) as server:
        internet.ports[PUBLIC] = server.port
        with pytest.raises(PageUnreadable, match=r"rebinds\.test has a loopback address") as caught:
            await fetch("http://rebinds.test/a", WebSettings(), resolver=names)
        assert len(server.requests) == 1
    assert 'allow-hosts = ["rebinds.test"]' in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    assert (internet.dialed, names.asked) == ([PUBLIC], ["rebinds.test"] * 2)


@pytest.mark.parametrize(
    "addresses",
    [
        *(["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["fe80::1%eth0"]),
        *(["::ffff:127.0.0.1"], ["::ffff:0:127.0.0.1"], ["64:ff9b::7f00:1"], ["2002:7f00:1::1"]),
        *(["0.0.0.0"], ["100.64.0.1"], ["fd00::1"], ["224.0.0.1"]),
        *([PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC], ["2606:4700::1", "fd00::1"]),
    ],
    ids=str,
)
async def test_a_name_with_a_hidden_address_is_refused(
    addresses: list[str], internet: Internet
) -> None:
    names = Names(far_test=[addresses])
    with pytest.raises(PageUnreadable, match=r"far\.test has a [a-z-]+ address, which is not read"):
        await fetch("http://far.test/", WebSettings(), resolver=names)
    assert not internet.dialed


async def test_an_allowed_name_may_have_a_private_address(internet: Internet) -> None:
    names = Names(intranet_test=[["10.0.0.1"]])
    settings = WebSettings(allow_hosts=("intranet.test",))
    async with RawServer(say(HTML)) as server:
        internet.ports["10.0.0.1"] = server.port
        assert (await fetch("http://intranet.test/", settings, resolver=names)).data
    assert internet.dialed == ["10.0.0.1"]
    names = Names(intranet_test=[["224.0.0.1"]])
    with pytest.raises(PageUnreadable, match=r"has a reserved address, which is not read$"):
        await fetch("http://intranet.test/", settings, resolver=names)


@pytest.mark.parametrize("allowed", ["127.0.0.1:8000", "dev.test:8000", "[::1]:8000"])
@pytest.mark.parametrize("path", ["direct", "redirect", "rebinds"])
async def test_another_name_gets_nothing_at_an_allowed_port(
    allowed: str, path: str, internet: Internet
) -> None:
    first = [PUBLIC] if path == "rebinds" else ["127.0.0.1"]
    names = Names(evil_test=[first, ["127.0.0.1"]], far_test=[[PUBLIC]], dev_test=[["127.0.0.1"]])
    settings = WebSettings(allow_hosts=(allowed,))
    leads = redirect("http://evil.test/b" if path == "rebinds" else "http://evil.test:8000/")
    urls = {"direct": "evil.test:8000", "redirect": "far.test", "rebinds": "evil.test"}
    async with RawServer(leads, say(HTML)) as server:
        internet.ports[PUBLIC] = server.port
        with pytest.raises(PageUnreadable):
            await fetch(f"http://{urls[path]}/", settings, resolver=names)
        assert len(server.requests) == (path != "direct")
    assert "127.0.0.1" not in internet.dialed


async def test_a_page_of_the_internet_leads_to_no_allowed_host(internet: Internet) -> None:
    names = Names(far_test=[[PUBLIC]])
    async with RawServer(redirect("http://intranet.test/delete")) as server:
        internet.ports[PUBLIC] = server.port
        settings = WebSettings(allow_hosts=("intranet.test",))
        with pytest.raises(PageUnreadable, match="public pages may not refer to"):
            await fetch("http://far.test/", settings, resolver=names)
    assert names.asked == ["far.test"]


async def test_the_next_address_is_tried(internet: Internet) -> None:
    names = Names(far_test=[["2606:4700::1", PUBLIC]])
    async with RawServer(say(HTML)) as closed:
        port = closed.port
    async with RawServer(say(HTML)) as server:
        internet.ports = {"2606:4700::1": port, PUBLIC: server.port}
        assert (await fetch("http://far.test/", WebSettings(), resolver=names)).data
    assert internet.dialed == ["2606:4700::1", PUBLIC]


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    internet: Internet,
) -> None:
    names = Names(far_test=[["2606:4700::1", PUBLIC]])
    async with RawServer(say(HTML)) as server:
        internet.ports[PUBLIC] = server.port
        internet.silent.add("2606:4700::1")
        assert (await fetch("http://far.test/", WebSettings(page_seconds=3), resolver=names)).data


async def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(PageUnreadable, match=r"host far\.test not found; check the address"):
        await fetch("http://far.test/", WebSettings(), resolver=Names())


async def test_redirects_to_other_hosts_are_asked_about(internet: Internet) -> None:
    async def admit(url: str) -> None:
        asked.append(url)
        if "bad" in url:
            raise PageUnreadable("no", url=url)

    asked: list[str] = []
    names = Names(a_test=[[PUBLIC]], b_test=[[PUBLIC]], bad_test=[[PUBLIC]])
    replies = [redirect("/same"), redirect("http://b.test/x"), say(HTML)]
    async with RawServer(*replies, redirect("http://bad.test/")) as server:
        internet.ports[PUBLIC] = server.port
        fetched = await fetch("http://a.test/", WebSettings(), admit=admit, resolver=names)
        assert fetched.url == "http://b.test/x"
        with pytest.raises(PageUnreadable, match=r"bad\.test/: no"):
            await fetch("http://a.test/", WebSettings(), admit=admit, resolver=names)
    assert asked == ["http://b.test/x", "http://bad.test/"]
    assert "bad.test" not in names.asked


async def test_time_to_decide_counts_against_no_limit(internet: Internet) -> None:
    async def admit(url: str) -> None:
        # Longer than the limit, by the clock that it uses.
        loop = asyncio.get_running_loop()
        due = loop.time() + 0.4
        while loop.time() < due:
            await asyncio.sleep(0)

    names = Names(a_test=[[PUBLIC]], b_test=[[PUBLIC]])
    async with RawServer(redirect("http://b.test/x"), say(HTML)) as server:
        internet.ports[PUBLIC] = server.port
        settings = WebSettings(page_seconds=0.4)
        assert (await fetch("http://a.test/", settings, admit=admit, resolver=names)).data


# Proxies, and no network at all.


async def test_a_proxy_is_used_only_if_the_configuration_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(near_test=[["10.0.0.1"]])
    async with RawServer(say(HTML)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises(PageUnreadable, match=r"names a proxy.*\[web\] proxy = true"):
            await fetch("http://far.test/", WebSettings(), resolver=names)
        assert not proxy.requests
        settings = WebSettings(proxy=True)
        assert (await fetch("http://far.test/a", settings, resolver=names)).data
        assert proxy.requests[0].startswith(b"GET http://far.test/a HTTP/1.1\r\n")
        with pytest.raises(PageUnreadable, match=r"near\.test has a private address"):
            await fetch("http://near.test/", settings, resolver=names)
        assert len(proxy.requests) == 1


@pytest.mark.usefixtures("path")
async def test_nothing_is_fetched_while_requests_are_forbidden(internet: Internet) -> None:
    names = Names(far_test=[[PUBLIC]], localhost=[["127.0.0.1"]])
    with forbid_requests(), pytest.raises(RequestForbidden, match=r"would go to far\.test"):
        await fetch("http://far.test/", WebSettings(), resolver=names)
    with pytest.raises(RequestForbidden, match=r"would go to far\.test"):
        await fetch("http://far.test/", WebSettings(), offline=True, resolver=names)
    # This machine is reached then, but not where the addresses forbid it.
    with pytest.raises(PageUnreadable, match="localhost has a loopback address"):
        await fetch("http://localhost/", WebSettings(), offline=True, resolver=names)
    async with RawServer(say(HTML)) as server:
        with forbid_requests():
            assert (await fetch(server.url, allow(server))).data
    assert names.asked == ["localhost"]


# TLS.


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


def serve_with(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


class Unencrypted(RawServer):
    """Answers without TLS to whatever it is sent."""

    async def serve(self, peer: Peer) -> None:
        await peer.reader.read(1)
        await peer.send(HTML)


@pytest.mark.usefixtures("trusted")
async def test_the_certificate_is_checked_for_the_name(
    authority: trustme.CA, internet: Internet
) -> None:
    heard: list[str | None] = []
    tls = serve_with(authority.issue_cert("far.test"))
    tls.sni_callback = lambda _, name, __: heard.append(name)
    names = Names(far_test=[[PUBLIC]], other_test=[[PUBLIC]])
    async with RawServer(say(HTML), tls=tls) as server:
        internet.ports[PUBLIC] = server.port
        assert (await fetch("https://far.test/", WebSettings(), resolver=names)).data
        assert b"host: far.test\r\n" in server.requests[0]
        with pytest.raises(PageUnreadable, match="certificate is not valid: Hostname mismatch"):
            await fetch("https://other.test/", WebSettings(), resolver=names)
        assert (heard, len(server.requests)) == (["far.test", "other.test"], 1)


@pytest.mark.usefixtures("trusted")
async def test_an_unknown_authority_is_refused(internet: Internet) -> None:
    names = Names(far_test=[[PUBLIC]])
    async with RawServer(say(HTML), tls=serve_with(trustme.CA().issue_cert("far.test"))) as server:
        internet.ports[PUBLIC] = server.port
        with pytest.raises(PageUnreadable, match=r"not valid: .*; SSL_CERT_FILE can name"):
            await fetch("https://far.test/", WebSettings(), resolver=names)
    async with Unencrypted() as server:
        internet.ports[PUBLIC] = server.port
        with pytest.raises(PageUnreadable, match="the TLS connection failed"):
            await fetch("https://far.test/", WebSettings(), resolver=names)
