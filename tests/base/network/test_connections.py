"""Where requests go: never to a proxy from this machine to itself, never to a hidden address."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.ensembles.images.test_ensemble import make
from tests.ensembles.images.test_ensemble import produce as produce_images
from tests.ensembles.mcp.servers import opened
from tests.fakes.images import KEY as IMAGES_KEY
from tests.fakes.images import FakeImages
from tests.fakes.mcp_http import FakeMcp
from tests.testing.test_server import ROWS
from vibe_llms.base.exceptions import ProviderError, RequestForbidden, VibeLlmsError
from vibe_llms.base.network.connections import (
    AddressKind,
    AddressRefused,
    choose_proxy,
    classify_address,
    find_permitted,
    origin_of,
    resolve,
)
from vibe_llms.base.network.guard import AddressGuard
from vibe_llms.opening import open_session
from vibe_llms.testing import fake_server, forbid_requests
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

KEY = "sk-canary-0123456789"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
HOSTED = {name: model for name, model in ROWS.items() if name != "ollama"}


class Recorder(Listener):
    """A proxy that keeps what it is sent, and passes nothing on."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """Say that it does not want to."""
        return HttpAnswer(502, headers={"content-length": "0"})


class Plain(Listener):
    """Answers every request with a few bytes."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """The same for all."""
        return HttpAnswer(chunks=[b"so"])


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A proxy that all variables of the environment name."""
    with Recorder() as recorder:
        for name in VARIABLES:
            monkeypatch.setenv(name, recorder.url)
        yield recorder


@pytest.fixture
def server() -> Iterator[Plain]:
    with Plain() as server:
        yield server


@pytest.fixture(params=["free", "offline"])
def offline(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "offline")


@pytest.mark.parametrize("interface", ROWS)
async def test_a_provider_on_this_machine_is_reached_without_a_proxy(
    interface: str, proxy: Recorder, offline: bool, tmp_path: Path
) -> None:
    async with (
        fake_server(["Hi"]) as server,
        open_session(
            home=tmp_path,
            configuration={**server.configuration, "offline": offline},
            keys=server.keys,
        ) as session,
    ):
        conversation = await session.begin(ROWS[interface])
        assert (await conversation.converse("Hello!")).text == "Hi"
        assert server.received
    assert not proxy.heads


@pytest.mark.parametrize("interface", HOSTED)
async def test_a_package_reaches_this_machine_without_a_proxy(
    interface: str,
    proxy: Recorder,
    offline: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = HOSTED[interface].partition("/")[0]
    async with fake_server(["Hi"]) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", server.keys[row])
        monkeypatch.setenv("OPENAI_API_KEY", server.keys[row])
        monkeypatch.setenv("GEMINI_API_KEY", server.keys[row])
        rows: Any = server.configuration["providers"]
        tree = {"providers": {row: {**rows[row], "credential": "package"}}, "offline": offline}
        async with open_session(home=tmp_path, configuration=tree) as session:
            conversation = await session.begin(HOSTED[interface])
            assert (await conversation.converse("Hello!")).text == "Hi"
    assert not proxy.heads


async def test_the_models_of_a_server_are_managed_without_a_proxy(
    proxy: Recorder, offline: bool, tmp_path: Path
) -> None:
    async with fake_server(["Hi"]) as server:
        tree = {**server.configuration, "offline": offline}
        async with open_session(home=tmp_path, configuration=tree) as session:
            model: Any = await session.access_model("ollama/qwen3:8b")
            async with model.client.produce_library() as library:
                assert await library.list()
    assert not proxy.heads


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_of_tools_on_this_machine_is_reached_without_a_proxy(
    proxy: Recorder, transport: str
) -> None:
    async with FakeMcp() as server:
        if transport == "sse":
            with pytest.raises(VibeLlmsError, match=r"HTTP 40[45]|40[45]"):
                async with opened(url=f"{server.url}/sse", transport="sse"):
                    pass
        else:
            async with opened(url=f"{server.url}/mcp") as ensemble:
                assert (await ensemble.invoke("echo", '{"text": "hi"}')).text == "hi"
        assert server.heads
    assert not proxy.heads


async def test_a_picture_is_fetched_without_a_proxy(
    proxy: Recorder, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", IMAGES_KEY)
    with FakeImages() as fake:
        row = {"providers": {"openai": {"base-url": f"{fake.url}/v1"}}, "ensembles": {"images": {}}}
        async with produce_images({**row, "offline": offline}) as ensemble:
            assert not (await make(ensemble)).failed
        assert fake.heads
    assert not proxy.heads


@pytest.mark.parametrize("package", [False, True])
async def test_requests_to_other_hosts_go_through_the_proxy(
    package: bool, proxy: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    row = {"base-url": "http://far.test", **({"credential": "package"} if package else {})}
    tree = {"providers": {"anthropic": row}, "stream": {"retries": 0}}
    async with open_session(home=tmp_path, configuration=tree) as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5")
        with pytest.raises(ProviderError):
            await conversation.converse("Hello!")
    assert proxy.heads == ["POST http://far.test/v1/messages HTTP/1.1"]


async def test_while_requests_are_forbidden_none_goes_to_the_proxy(
    proxy: Recorder,
) -> None:
    async with httpx2.AsyncClient(transport=AddressGuard("a request")) as client:
        with forbid_requests(), pytest.raises(RequestForbidden, match=r"would go to far\.test"):
            await client.get("http://far.test")
        with pytest.raises(RequestForbidden):
            await httpx2.AsyncClient(transport=AddressGuard("a request", offline=True)).get(
                "http://far.t"
            )
    assert not proxy.heads


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"HTTP_PROXY": "http://p:1"}, "http://far.test", "http://p:1"),
        ({"http_proxy": "p:1"}, "http://far.test", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://far.test", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://far.test", "http://p:1"),
        ({"ALL_PROXY": "socks5://p:1"}, "https://far.test", "socks5://p:1"),
        ({"all_proxy": "http://p:1", "https_proxy": "http://q:1"}, "https://f.test", "http://q:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "far.test"}, "http://far.test", None),
        ({"HTTP_PROXY": "http://p:1", "no_proxy": ".test"}, "http://far.test:80", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, "http://far.test", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "other"}, "http://far.test", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1:8080", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://[::1]:8080", None),
        ({"ALL_PROXY": "http://p:1"}, "https://a.localhost", None),
        ({}, "http://far.test", None),
    ],
)
def test_one_function_reads_the_environment(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert choose_proxy(url) == proxy
    with forbid_requests():
        assert choose_proxy(url) is None


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("9.9.9.9", "public"),
        ("2620:fe::fe", "public"),
        ("10.1.2.3", "private"),
        ("172.31.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fd00::1", "private"),
        ("fec0::1", "private"),
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("0.0.0.0", "reserved"),
        ("::", "reserved"),
        ("224.0.0.1", "reserved"),
        ("ff02::1", "reserved"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "link-local"),
        ("168.63.129.16", "link-local"),
        ("::ffff:168.63.129.16", "link-local"),
        ("::ffff:9.9.9.9", "public"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::9.9.9.9", "public"),
        ("64:ff9b:1::a9fe:a9fe", "link-local"),
        ("2002:7f00:1::", "loopback"),
        ("2002:a9fe:a9fe::1", "link-local"),
    ],
)
def test_an_address_is_known_in_every_disguise(address: str, kind: AddressKind) -> None:
    assert classify_address(address) == kind


@pytest.mark.parametrize("url", ["file:///etc/passwd", "javascript:1", "https://", "far.test", ""])
def test_what_is_no_address_of_the_web_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match="not a web address"):
        origin_of(url)


class Names:
    """A resolver that answers with these addresses, one list after the other, then the last."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the resolver of a test finds a name."""

    def find(host: str, *_: object, **__: object) -> None:
        raise AssertionError(f"{host} was looked up once more")

    monkeypatch.setattr(socket, "getaddrinfo", find)


@pytest.mark.usefixtures("alone")
async def test_a_connection_goes_to_the_address_that_was_checked(server: Plain) -> None:
    port = server.url.rpartition(":")[2]
    names = Names(["127.0.0.1"])
    async with httpx2.AsyncClient(
        transport=AddressGuard("a request", kinds={"loopback"}, resolver=names)
    ) as client:
        assert (await client.get(f"http://auth.test:{port}/a")).text == "so"
    assert server.requests[0].headers["host"] == f"auth.test:{port}"
    assert names.asked == ["auth.test"]


@pytest.mark.usefixtures("alone")
async def test_two_hosts_at_one_address_share_no_connection(server: Plain) -> None:
    port = server.url.rpartition(":")[2]
    guard = AddressGuard("a request", kinds={"loopback"}, resolver=Names(["127.0.0.1"]))
    async with httpx2.AsyncClient(transport=guard) as client:
        for host in ("one.test", "two.test", "one.test"):
            assert (await client.get(f"http://{host}:{port}/")).text == "so"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("wanted", "sent"), [("gzip, deflate, br, zstd", "gzip"), ("identity", "identity")]
)
async def test_a_server_is_asked_only_for_what_is_unpacked_here(
    wanted: str, sent: str, server: Plain
) -> None:
    async with httpx2.AsyncClient(transport=AddressGuard("a request")) as client:
        await client.get(server.url, headers={"accept-encoding": wanted})
    assert server.requests[0].headers["accept-encoding"] == sent


@pytest.mark.parametrize("encoding", ["br", "GZIP, br", "x-" + "y" * 60])
async def test_another_content_encoding_is_an_error(
    encoding: str, server: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = HttpAnswer(chunks=[gzip.compress(b"so")], headers={"content-encoding": encoding})
    monkeypatch.setattr(server, "respond", lambda request: answer)
    async with httpx2.AsyncClient(transport=AddressGuard("a request")) as client:
        with pytest.raises(httpx2.DecodingError, match=encoding.lower()[:40]) as caught:
            await client.get(server.url)
    assert len(str(caught.value)) < 70


async def test_a_name_that_is_not_found_is_left_to_a_proxy_if_there_is_one(
    proxy: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    for through in (True, False):
        if not through:
            for name in VARIABLES:
                monkeypatch.delenv(name)
        guard = AddressGuard("a request", kinds=(), resolver=fail)
        async with httpx2.AsyncClient(transport=guard) as client:
            if through:
                assert (await client.get("http://far.test/")).status_code == 502
            else:
                with pytest.raises(httpx2.ConnectError, match=r"far\.test: no such name"):
                    await client.get("http://far.test/")
    assert len(proxy.requests) == 1


async def test_the_addresses_of_a_host_are_named_once() -> None:
    found = await resolve("localhost", 80)
    assert set(found) <= {"127.0.0.1", "::1"}
    assert len(found) == len(set(found)) > 0


@pytest.mark.usefixtures("alone")
async def test_of_several_addresses_the_next_is_tried(server: Plain) -> None:
    port = server.url.rpartition(":")[2]
    guard = AddressGuard("a request", kinds={"loopback"}, resolver=Names(["::1", "127.0.0.1"]))
    async with httpx2.AsyncClient(transport=guard) as client:
        posted = await client.post(f"http://auth.test:{port}/a", content=b"all of it")
    assert posted.text == "so"
    assert server.requests[0].body == b"all of it"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::ffff:127.0.0.1"], ["9.9.9.9", "127.0.0.1"], ["64:ff9b::7f00:1"]],
)
async def test_a_name_that_leads_home_is_refused(server: Plain, addresses: list[str]) -> None:
    port = server.url.rpartition(":")[2]
    guard = AddressGuard("a request", kinds=(), resolver=Names(addresses))
    async with httpx2.AsyncClient(transport=guard) as client:
        with pytest.raises(httpx2.ConnectError, match="it is a loopback address") as caught:
            await client.get(f"http://auth.test:{port}/a")
    assert isinstance(caught.value.__cause__, AddressRefused)
    assert not server.connections


async def test_an_address_that_is_refused_is_named_once() -> None:
    with pytest.raises(
        AddressRefused, match=r"to 127\.0\.0\.1 are not allowed: it is a loopback address"
    ):
        await find_permitted("127.0.0.1", 80, {"public"})


@pytest.mark.usefixtures("alone")
async def test_a_name_that_changes_its_mind_is_refused(server: Plain) -> None:
    port = server.url.rpartition(":")[2]
    names = Names(["127.0.0.1"], ["127.0.0.1"], ["169.254.169.254"])
    guard = AddressGuard("a request", kinds=(), resolver=names)
    guard.kinds = await guard.find_kinds(f"http://auth.test:{port}")
    async with httpx2.AsyncClient(transport=guard) as client:
        assert (await client.get(f"http://auth.test:{port}/a")).text == "so"
        with pytest.raises(httpx2.ConnectError, match=r"auth.test \(169.254.169.254\)"):
            await client.get(f"http://auth.test:{port}/b")
    assert len(server.requests) == 1


@pytest.mark.usefixtures("alone")
async def test_offline_even_localhost_is_looked_up_before_it_is_believed(server: Plain) -> None:
    port = server.url.rpartition(":")[2]
    for addresses, allowed in ((["127.0.0.1"], True), (["10.0.0.1"], False)):
        guard = AddressGuard("a request", offline=True, resolver=Names(addresses))
        async with httpx2.AsyncClient(transport=guard) as client:
            if allowed:
                assert (await client.get(f"http://localhost:{port}/")).text == "so"
            else:
                with pytest.raises(httpx2.ConnectError, match="it is a private address"):
                    await client.get(f"http://localhost:{port}/")
