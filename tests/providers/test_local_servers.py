"""Servers on this machine are found, or cost a moment; nothing but their list is asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.raw_server import Peer, RawServer, Reply, say
from tests.field.upstream import respond
from vibe_llms import NoticeEvent, open_session
from vibe_llms.base.network.offline import forbid_requests
from vibe_llms.providers import local_servers
from vibe_llms.providers.local_servers import choose_chat_model, is_on_this_machine

ROWS = ("ollama", "vllm", "lmstudio", "llamacpp-server")
CLOSED = "http://127.0.0.1:9"


def listing(*names: str) -> Reply:
    """Reply with a list of models in OpenAI's form."""
    body = {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
    return respond(200, "application/json", json.dumps(body).encode())


def tags(*names: str, family: str = "qwen3") -> Reply:
    """Reply with a list of models in Ollama's form."""
    models = [{"name": name, "model": name, "details": {"family": family}} for name in names]
    return respond(200, "application/json", json.dumps({"models": models}).encode())


async def hang(peer: Peer) -> None:
    await peer.hold()


async def babble(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
    await peer.flood(b"0," * 8192)


STRANGERS: dict[str, Reply] = {
    "hangs": hang,
    "endless": babble,
    "no HTTP": say(b"\x00\xff220 mail.example ESMTP\r\n", then="close"),
    "resets": say(b"", then="reset"),
    "web page": respond(200, "text/html", b"<!doctype html><title>Grafana</title>"),
    "not found": respond(404, "application/json", b'{"detail":"Not Found"}'),
    "redirect": respond(302, "text/plain", b"", {"location": "http://127.0.0.1:9/login"}),
    "wants a login": respond(401, "text/plain", b"", {"www-authenticate": "Basic"}),
    "breaks": respond(500, "text/plain", b"Traceback"),
    "other JSON": respond(200, "application/json", b'{"data":[{"name":"x"}],"models":7}'),
    "no models": respond(200, "application/json", b'{"object":"list","data":[],"models":[]}'),
    "vibe-llms": listing("scripted/demo", "ollama/qwen3:8b"),
    "embeds": listing("text-embedding-nomic-embed-text-v1.5", "BAAI/bge-m3"),
}


def list_models(*models: tuple[str, str]) -> list[Any]:
    """Return models with these names and titles."""
    return [
        SimpleNamespace(name=name, attributes=SimpleNamespace(title=title))
        for name, title in models
    ]


def settings(servers: Sequence[tuple[str, str]], **more: Any) -> dict[str, Any]:
    """Return the configuration that gives rows these addresses, and all others a closed port."""
    rows = {name: {"base-url": CLOSED} for name in ROWS}
    rows |= {name: {"base-url": url} for name, url in servers}
    return {"local-servers": True, "providers": rows, **more}


async def find(replies: dict[str, Reply], **more: Any) -> tuple[str, str, list[bytes]]:
    """Return the model that answers, the note, and all requests, with servers at these rows."""
    async with AsyncExitStack() as stack:
        servers = {
            row: await stack.enter_async_context(RawServer(reply)) for row, reply in replies.items()
        }
        given = [
            (row, server.url + ("" if row == "ollama" else "/v1"))
            for row, server in servers.items()
        ]
        session = await stack.enter_async_context(
            open_session(configuration=settings(given, **more))
        )
        model, note = await session.find_model()
        return model, note, [one for server in servers.values() for one in server.requests]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers get as long as a busy machine may need."""
    monkeypatch.setattr(local_servers, "SEARCH_SECONDS", 20.0)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.usefixtures("patient")
async def test_the_first_chat_model_of_a_local_server_answers(row: str) -> None:
    reply = tags("qwen3:8b") if row == "ollama" else listing("nomic-embed-text", "qwen3:8b")
    model, note, requests = await find({row: reply})
    assert model == f"{row}/qwen3:8b"
    assert f"no key is set, so {row}/qwen3:8b answers, from the server at http://127.0.0.1" in note
    path = b"/api/tags" if row == "ollama" else b"/v1/models"
    assert [one.partition(b" HTTP")[0] for one in requests] == [b"GET " + path]


@pytest.mark.usefixtures("patient")
async def test_no_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLLAMA_API_KEY", "LMSTUDIO_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "sk-secret-0123456789")
    replies = {"ollama": tags(), "vllm": listing(), "lmstudio": listing("m")}
    model, _, requests = await find(replies)
    assert (model, len(requests)) == ("lmstudio/m", 3)
    assert not [one for one in requests if b"authorization" in one.lower() or b"sk-" in one]


@pytest.mark.usefixtures("patient")
async def test_the_order_of_the_rows_decides() -> None:
    model, _, _ = await find({"lmstudio": listing("b"), "vllm": listing("a"), "ollama": tags()})
    assert model == "vllm/a"


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("row", ["ollama", "vllm"])
async def test_another_program_costs_a_moment_and_breaks_nothing(stranger: str, row: str) -> None:
    start = time.monotonic()
    model, note, requests = await find({row: STRANGERS[stranger]})
    # The search itself ends after 0.3 s; the rest is the machine's.
    assert time.monotonic() - start < 10
    # A busy machine may not come to ask it in that time.
    assert (model, len(requests) <= 1) == ("scripted/demo", True)
    assert "scripted/demo answers" in note


@pytest.mark.parametrize("stranger", ["hangs", "endless"])
async def test_a_program_that_hangs_hides_no_server(
    stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_servers, "SEARCH_SECONDS", 2.0)
    model, _, _ = await find({"ollama": STRANGERS[stranger], "llamacpp-server": listing("m")})
    assert model == "llamacpp-server/m"


@pytest.mark.usefixtures("patient")
async def test_no_server_is_asked_if_it_is_not_needed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = {"vllm": listing("m")}
    assert (await find(replies, **{"default-model": "scripted/demo"}))[2] == []
    assert (await find(replies, offline=True))[::2] == ("scripted/demo", [])
    assert (await find(replies, **{"local-servers": False}))[::2] == ("scripted/demo", [])
    with forbid_requests():
        assert (await find(replies))[::2] == ("scripted/demo", [])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-x")
    assert (await find(replies))[::2] == ("anthropic/claude-sonnet-5-5", [])


@pytest.mark.usefixtures("patient")
async def test_a_row_with_a_key_or_elsewhere_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__VLLM__CREDENTIAL", "key")
    assert (await find({"vllm": listing("m")}))[::2] == ("scripted/demo", [])
    elsewhere = [("ollama", "http://ollama.example:11434"), ("vllm", "http://10.0.0.7:8000/v1")]
    asked: list[str] = []

    async def note_address(client: Any) -> str:
        asked.append(client.address)
        return ""

    monkeypatch.setattr(local_servers, "_choose_served", note_address)
    monkeypatch.delenv("VIBE_LLMS_PROVIDERS__VLLM__CREDENTIAL")
    async with open_session(configuration=settings(elsewhere)) as session:
        assert (await session.find_model())[0] == "scripted/demo"
    assert asked == [CLOSED, CLOSED]


@pytest.mark.usefixtures("patient")
async def test_it_is_remembered_and_a_conversation_begins_with_it() -> None:
    async with RawServer(listing("qwen3")) as server:
        notes: list[str] = []
        async with open_session(
            configuration=settings([("vllm", f"{server.url}/v1")]),
            event_handler=lambda event: (
                notes.append(event.notice.text) if isinstance(event, NoticeEvent) else None
            ),
        ) as session:
            conversation = await session.begin()
            await session.begin()
        assert (conversation.model.provider, conversation.model.name) == ("vllm", "qwen3")
        assert len(server.requests) == 1
        assert len(notes) == 2
        assert "vllm/qwen3 answers" in notes[0]


async def test_no_row_is_lost_to_one_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_servers, "SEARCH_SECONDS", 20.0)
    async with RawServer(listing("m")) as server:
        given = settings([("lmstudio", f"{server.url}/v1")])
        given["providers"]["ollama"] = {"module": "no_such_module", "base-url": CLOSED}
        async with open_session(configuration=given) as session:
            assert (await session.find_model())[0] == "lmstudio/m"


@pytest.mark.parametrize(
    ("name", "chats"),
    [
        ("qwen3:8b", True),
        ("hf.co/Qwen/Qwen3-8B-GGUF", True),
        ("thenlper/gte-large", False),
        ("embeddinggemma:300m", False),
        ("text-embedding-nomic-embed-text-v1.5", False),
        ("intfloat/e5-mistral-7b-instruct", False),
        ("all-minilm:latest", False),
        ("BAAI/bge-reranker-v2-m3", False),
        ("openai/whisper-large-v3", False),
        ("gemma4:e4b", True),
        ("google/gemma-3n-E4B-it", True),
        ("eclipse-code:7b", True),
    ],
)
def test_models_that_only_embed_are_not_taken(name: str, chats: bool) -> None:
    assert choose_chat_model(list_models((name, ""))) == (name if chats else "")


def test_a_family_tells_what_a_name_does_not() -> None:
    models = list_models(("mine:latest", "nomic-bert 137M F16"), ("other:latest", "qwen3 8.2B"))
    assert choose_chat_model(models) == "other:latest"
    assert choose_chat_model([]) == ""


def test_addresses_of_this_machine() -> None:
    for here in ("http://127.0.0.1:1", "http://[::1]:8000/v1", "http://localhost:1234/v1"):
        assert is_on_this_machine(here)
    for there in ("http://10.0.0.7:8000", "https://ollama.com", "http://[", "", "127.0.0.1"):
        assert not is_on_this_machine(there)
