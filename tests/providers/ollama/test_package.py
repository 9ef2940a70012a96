"""The models of a server through the official package: listed, shown, pulled."""

from __future__ import annotations

import sys

import httpx
import ollama
import pytest

from tests.fakes.ollama import FakeOllama, answer_json, failure, stream
from tests.fakes.ollama_clients import STREAM, produce_client
from tests.fakes.server import HttpAnswer, ReceivedRequest
from vibe_llms.base.exceptions import (
    ModelUnavailable,
    PackageMissing,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    ReplyTimeout,
    RequestRefused,
)
from vibe_llms.providers.ollama.package import OllamaLibrary, PullProgress
from vibe_llms.testing.wires.ollama_replies import MODEL


def produce_library(server: FakeOllama) -> OllamaLibrary:
    return produce_client(server.url).produce_library()


async def test_models_are_listed_and_shown(fake_ollama: FakeOllama) -> None:
    async with produce_library(fake_ollama) as library:
        (model,) = await library.list()
        assert (model.name, model.size, model.family) == (MODEL, 5_200_000_000, "qwen3")
        entry = await library.show(MODEL)
        assert (entry.context_tokens, "tools" in entry.capabilities) == (40_960, True)
        with pytest.raises(ModelUnavailable, match="ollama pull llama9"):
            await library.show("llama9")


async def test_a_model_is_pulled_with_progress(fake_ollama: FakeOllama) -> None:
    async with produce_library(fake_ollama) as library:
        steps = [step async for step in library.pull("phi4")]
        assert steps[0] == PullProgress("pulling manifest")
        assert steps[1] == PullProgress("pulling 1", "sha256:1", 4, 10)
        assert [step.text for step in steps[:2]] == [
            "pulling manifest",
            "pulling 1: 4 of 10 bytes (40 %)",
        ]
        assert steps[-1].status == "success"
        assert "phi4" in [model.name for model in await library.list()]
        with pytest.raises(ProviderOverloaded, match="file does not exist"):
            [step async for step in library.pull("nonesuch")]


BREAKS: list[tuple[HttpAnswer, type[ProviderError]]] = [
    (stream([{"status": "pulling manifest"}]), ReplyCut),
    (stream([{"status": "pulling manifest"}, {"status": "x"}], cut=40), ReplyCut),
    (failure(500, "odd"), ProviderOverloaded),
    (failure(400, "odd"), RequestRefused),
    (stream([{"status": 7}]), ReplyMalformed),
    (HttpAnswer(200, {"content-type": "text/html"}, [b"<html>\n"]), ReplyMalformed),
]


@pytest.mark.parametrize(("answer", "kind"), BREAKS)
async def test_what_goes_wrong_in_a_pull_is_one_of_our_errors(
    fake_ollama: FakeOllama,
    answer: HttpAnswer,
    kind: type[ProviderError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake_ollama, "respond", lambda request: answer)
    async with produce_library(fake_ollama) as library:
        with pytest.raises(kind):
            [step async for step in library.pull("phi4")]


async def test_a_server_that_is_not_there_or_says_nothing_is_reported(
    fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with produce_client("http://127.0.0.1:9").produce_library() as library:
        with pytest.raises(ProviderUnreachable, match="ollama serve"):
            await library.list()
        with pytest.raises(ProviderUnreachable, match="ollama serve"):
            [step async for step in library.pull("phi4")]

    def stall(request: ReceivedRequest) -> HttpAnswer:
        return HttpAnswer(stall=-1)

    monkeypatch.setattr(fake_ollama, "respond", stall)
    library = OllamaLibrary("ollama", fake_ollama.url, dict, connect_seconds=5, idle_seconds=0.1)
    async with library:
        with pytest.raises(ReplyTimeout, match="idle-seconds"):
            await library.list()
    monkeypatch.setattr(fake_ollama, "respond", lambda request: answer_json({"models": 7}))
    async with produce_library(fake_ollama) as library:
        with pytest.raises(ReplyMalformed):
            await library.list()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ollama.RequestError("odd"), RequestRefused),
        (ollama.ResponseError("odd", 503), ProviderOverloaded),
        (ollama.ResponseError("odd"), ProviderOverloaded),
        (ConnectionError("no"), ProviderUnreachable),
        (httpx.ConnectError("no"), ProviderUnreachable),
        (httpx.ConnectTimeout("no"), ReplyTimeout),
        (httpx.ReadTimeout("no"), ReplyTimeout),
        (httpx.RemoteProtocolError("no"), ReplyCut),
        (ValueError("no"), ReplyMalformed),
    ],
)
def test_every_error_of_the_package_is_one_of_ours(
    error: Exception, kind: type[ProviderError]
) -> None:
    library = produce_client("http://127.0.0.1:9").produce_library()
    with pytest.raises(kind) as caught, library._translated("x"):
        raise error
    assert caught.value.__cause__ is error


async def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ollama", None)
    with pytest.raises(PackageMissing, match=r"vibe-llms\[ollama\]"):
        async with produce_client().produce_library():
            pass


async def test_a_library_is_used_while_it_is_open() -> None:
    library = produce_client(stream=STREAM).produce_library()
    with pytest.raises(RuntimeError):
        await library.list()
