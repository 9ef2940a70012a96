"""No request leaves the machine where requests are forbidden, and nothing of the turn is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.testing.test_server import ROWS
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError, RequestForbidden
from vibe_llms.base.network.offline import is_loopback, permit_request
from vibe_llms.opening import open_session
from vibe_llms.providers import transport
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.testing import fake_server, forbid_requests, requests_forbidden

KEY = "sk-ant-real-0123456789"
FAR: dict[str, Any] = {"base-url": "https://far.test"}
HOSTED = {name: model for name, model in ROWS.items() if name != "ollama"}


@contextmanager
def choose(way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests are forbidden while the block runs, unless the configuration is to do it."""
    with forbid_requests() if way == "block" else nullcontext(), monkeypatch.context() as patch:
        if way == "variable":
            patch.setenv("VIBE_LLMS_OFFLINE", "1")
        yield


@pytest.mark.parametrize("way", ["block", "variable", "configuration"])
@pytest.mark.parametrize("interface", ROWS)
async def test_nothing_is_sent_and_nothing_kept(
    interface: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ROWS[interface]
    row = model.partition("/")[0]
    configuration: dict[str, Any] = {"providers": {row: FAR}}
    if way == "configuration":
        configuration["offline"] = True
    with choose(way, monkeypatch):
        async with open_session(home=tmp_path, configuration=configuration, keys={row: KEY}) as s:
            conversation = await s.begin(model)
            with pytest.raises(RequestForbidden) as caught:
                await conversation.converse("Hello?")
            assert conversation.canisters == ()
            with pytest.raises(RequestForbidden) as listed:
                await s.survey_models(row)
            assert not await s.survey_conversations()
    assert caught.value.host == "far.test"
    assert f"{row}: a request would go to far.test" in str(caught.value)
    assert "fake_server" in str(caught.value)
    assert f"{row}: a request (GET /" in str(listed.value)
    assert KEY not in str(caught.value) + str(listed.value)


def test_a_transport_that_does_not_ask_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = HttpTransport("far", "https://far.test", dict, connect_seconds=1, idle_seconds=1)
    with forbid_requests():
        with pytest.raises(RequestForbidden):
            far.prepare()
        monkeypatch.setattr(transport, "permit_request", lambda *args, **options: None)
        far.prepare()


@pytest.mark.parametrize("interface", HOSTED)
async def test_a_package_sends_nothing_either(
    interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    row = HOSTED[interface].partition("/")[0]
    configuration = {"providers": {row: {"credential": "package"}}}
    with forbid_requests():
        async with open_session(home=tmp_path, configuration=configuration) as session:
            conversation = await session.begin(HOSTED[interface])
            with pytest.raises(
                RequestForbidden, match=r"would go to (api|generative\w+)\."
            ) as caught:
                await conversation.converse("Hello?")
            with pytest.raises(RequestForbidden, match=r"\(GET "):
                await session.survey_models(row)
    assert KEY not in str(caught.value)


async def test_the_models_of_a_server_are_not_managed_either(tmp_path: Path) -> None:
    configuration = {"offline": True, "providers": {"ollama": FAR}}
    async with open_session(home=tmp_path, configuration=configuration) as session:
        model: Any = await session.access_model("ollama/qwen3:8b")
        async with model.client.produce_library() as library:
            with pytest.raises(RequestForbidden, match=r"far\.test"):
                await library.list()


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_of_tools_is_not_reached_either(kind: str, tmp_path: Path) -> None:
    row = {"module": "vibe_llms.ensembles.mcp", "url": "https://far.test/mcp", "transport": kind}
    configuration = {"offline": True, "ensembles": {"far": row}}

    async def hold() -> None:
        async with open_session(home=tmp_path, configuration=configuration) as session:
            conversation = await session.begin("scripted/demo", ensembles=["far"])
            await conversation.converse("Hello?")

    with pytest.raises(RequestForbidden, match=r"of the ensemble 'far' would go to far\.test"):
        await hold()


@pytest.mark.parametrize("interface", ROWS)
async def test_servers_on_this_machine_and_scripts_stay_allowed(
    interface: str, tmp_path: Path
) -> None:
    with forbid_requests():
        async with (
            fake_server(["Hi"]) as server,
            open_session(
                home=tmp_path,
                configuration={**server.configuration, "offline": True},
                keys=server.keys,
            ) as session,
        ):
            for model in (ROWS[interface], "scripted/demo"):
                conversation = await session.begin(model)
                assert (await conversation.converse("Hello!")).text


async def test_an_open_connection_is_not_used_any_more(tmp_path: Path) -> None:
    # As if this server were far away.
    async with (
        fake_server(["Hi"]) as server,
        open_session(home=tmp_path, configuration=server.configuration, keys=server.keys) as s,
    ):
        conversation = await s.begin("anthropic/claude-sonnet-5-5")
        await conversation.converse("Hello!")
        model: Any = conversation.model
        transport = model.client.transport
        far = msgspec.structs.replace(transport._endpoint, base_url="http://far.test")
        transport._endpoint = transport._sender._endpoint = far
        with forbid_requests(), pytest.raises(RequestForbidden):
            await conversation.converse("Hello!")
    assert len(server.received) == 1


def test_blocks_may_be_nested_and_hold_for_all_threads() -> None:
    assert not requests_forbidden()
    with forbid_requests():
        with forbid_requests():
            pass
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(requests_forbidden()))
        thread.start()
        thread.join()
        assert found == [True]
        assert requests_forbidden()
    assert not requests_forbidden()
    with pytest.raises(LookupError), forbid_requests():
        raise LookupError
    assert not requests_forbidden()


@pytest.mark.parametrize(
    ("value", "forbidden"),
    [("1", True), ("true", True), ("yes", True), ("0", False), ("false", False), ("", False)],
)
def test_the_variable_forbids_requests(
    value: str, forbidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_OFFLINE", value)
    assert requests_forbidden() is forbidden


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False)])
def test_the_variable_is_the_key_of_the_configuration(value: str, offline: bool) -> None:
    assert load_configuration(environment={"VIBE_LLMS_OFFLINE": value}).offline is offline
    assert load_configuration(environment={}).offline is False


@pytest.mark.parametrize("value", [2, "yes", []])
def test_any_other_value_of_the_key_is_an_error(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="offline"):
        load_configuration(overrides={"offline": value})


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("http://127.0.0.1:5", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:5/v1", True),
        ("http://localhost:5", True),
        ("http://a.localhost", True),
        ("https://api.anthropic.com", False),
        ("https://127.0.0.1.example.com", False),
        ("http://key:secret@10.0.0.1", False),
        ("http://0.0.0.0", False),
        ("no address", True),
        ("http://[", True),
    ],
)
def test_only_this_machine_is_allowed(address: str, allowed: bool) -> None:
    if allowed:
        permit_request(address, "a request", offline=True)
        return
    with pytest.raises(RequestForbidden) as caught:
        permit_request(address, "a request", offline=True)
    assert "secret" not in str(caught.value)
    permit_request(address, "a request")
    assert not is_loopback(caught.value.host)
