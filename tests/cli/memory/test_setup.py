"""`memory setup`: the light embedder by one command, from a strict hub on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Outcome, invoke
from tests.fakes.onnx import embedding_model, make_tokenizer
from tests.fakes.weights import FakeStore, FakeWeightsHub
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.embedding import weights
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.weights import PinnedFile, PinnedWeights, hub_address, read_weights
from vibe_llms.testing.listening import HttpAnswer

MODEL = "onnx/model.onnx"
FILES = {"tokenizer.json": json.dumps(make_tokenizer()).encode(), MODEL: embedding_model()}
WEIGHTS = PinnedWeights(
    "tiny",
    "some/tiny",
    "c0ffee",
    [PinnedFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()],
)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    monkeypatch.setattr(weights, "read_weights", lambda: WEIGHTS)
    monkeypatch.setenv("VIBE_LLMS_STREAM__RETRIES", "0")
    with (
        FakeStore(FILES) as made,
        FakeWeightsHub("/some/tiny/resolve/c0ffee/", made) as hub,
    ):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield made


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "models" / "tiny"


def set_up(*options: str) -> Outcome:
    return invoke("memory", "setup", "-y", *options)


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(folder: Path) -> set[str]:
    return {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}


async def test_memory_uses_what_was_fetched(store: FakeStore, folder: Path) -> None:
    done = await asyncio.to_thread(set_up, "--json")
    assert done.status == 0, done.errors
    assert done.json == {
        "folder": str(folder),
        "embedder": f"onnx/{folder}",
        "fetched": [*FILES],
        "set": True,
    }
    assert names(folder) == {*FILES}
    address = load_configuration().tree["memory"]["embedder"]
    embedder = produce_embedder(load_configuration(), address, served=False)
    try:
        (vector,) = await embedder.embed(["red tea"])
    finally:
        await embedder.close()
    assert len(vector) > 1


def test_a_second_call_verifies_and_fetches_nothing(store: FakeStore, folder: Path) -> None:
    assert set_up().status == 0
    asked = len(store.requests)
    again = invoke("memory", "setup", "--json")
    assert (again.status, again.json["fetched"], again.json["set"]) == (0, [], False)
    assert len(store.requests) == asked
    put(folder, MODEL, FILES[MODEL][:-1] + b"!")
    assert set_up("--json").json["fetched"] == [MODEL]
    assert (folder / MODEL).read_bytes() == FILES[MODEL]


def test_a_cut_connection_is_continued_by_the_next_call(store: FakeStore, folder: Path) -> None:
    put(folder, "tokenizer.json", FILES["tokenizer.json"])
    size = len(FILES[MODEL])
    store.answers = [HttpAnswer(200, {"content-length": str(size)}, [FILES[MODEL]], cut=100)]
    refused = set_up()
    assert refused.status == 69
    assert names(folder) == {"tokenizer.json", f"{MODEL}.part"}
    assert not (folder.parents[1] / "config.toml").exists()
    assert set_up().status == 0
    assert store.requests[-1].headers["range"] == "bytes=100-"
    assert (folder / MODEL).read_bytes() == FILES[MODEL]


def test_a_cut_connection_is_continued_at_once(
    store: FakeStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_STREAM__RETRIES", "1")
    put(folder, "tokenizer.json", FILES["tokenizer.json"])
    size = len(FILES[MODEL])
    store.answers = [HttpAnswer(200, {"content-length": str(size)}, [FILES[MODEL]], cut=100)]
    assert set_up().status == 0
    assert store.requests[-1].headers["range"] == "bytes=100-"


def test_a_server_without_ranges_sends_the_whole_file_again(store: FakeStore, folder: Path) -> None:
    put(folder, "tokenizer.json", FILES["tokenizer.json"])
    put(folder, f"{MODEL}.part", b"wrong")
    data = FILES[MODEL]
    store.answers = [HttpAnswer(200, {"content-length": str(len(data))}, [data])]
    assert set_up().status == 0
    assert (folder / MODEL).read_bytes() == data


@pytest.mark.parametrize("start", [b"", b"wrong"])
def test_a_wrong_hash_leaves_nothing(store: FakeStore, folder: Path, start: bytes) -> None:
    put(folder, "tokenizer.json", FILES["tokenizer.json"])
    if start:
        put(folder, f"{MODEL}.part", start)
    else:
        store.files[MODEL] = FILES[MODEL][:-1] + b"!"
    refused = set_up()
    assert "another SHA-256" in refused.error
    assert names(folder) == {"tokenizer.json"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HttpAnswer(200, {"content-length": "3"}, [b"abc"]), "has 3 bytes, not"),
        (HttpAnswer(200, {}, [b"a" * 99999]), "longer than its pinned size"),
        (HttpAnswer(404, {"content-length": "0"}, []), "answered with status 404"),
        (HttpAnswer(429, {"content-length": "0"}, []), "is busy (status 429)"),
        (HttpAnswer(503, {"content-length": "0"}, []), "is busy (status 503)"),
        (HttpAnswer(206, {"content-length": "1"}, [b"a"]), "was not continued at byte 0"),
        (HttpAnswer(200, {}, [b"abc"]), "ended after 3 of"),
    ],
)
def test_wrong_answers_are_named_with_the_files_to_copy(
    store: FakeStore, folder: Path, answer: HttpAnswer, words: str
) -> None:
    store.answers = [answer]
    refused = set_up()
    assert words in refused.error
    assert f"SHA-256 {WEIGHTS.files[1].sha256}" in refused.errors
    assert not names(folder) & {*FILES}


def test_a_busy_server_is_asked_again(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_STREAM__RETRIES", "1")
    store.answers = [HttpAnswer(429, {"content-length": "0", "retry-after": "0"}, [])]
    assert set_up().status == 0


@pytest.mark.parametrize("variable", ["VIBE_LLMS_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_the_files_are_named_and_copies_are_verified(
    store: FakeStore, folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example.org")
    monkeypatch.setenv(variable, "1")
    refused = set_up()
    assert refused.status == 66
    for name, data in FILES.items():
        assert f"https://mirror.example.org/some/tiny/resolve/c0ffee/{name}" in refused.errors
        assert f"{folder / name}\n  with {len(data)} bytes" in refused.errors
        put(folder, name, data)
    assert set_up().status == 0


def test_a_hub_that_does_not_answer_is_named(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused = set_up()
    assert refused.status == 69
    assert "copy these files by hand" in refused.errors


def test_the_address_of_a_mirror_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="HF_ENDPOINT"):
        hub_address({"HF_ENDPOINT": "ftp://mirror"})
    with pytest.raises(ConfigurationError, match="HF_ENDPOINT"):
        hub_address({"HF_ENDPOINT": "https://me:secret@mirror"})
    assert hub_address({}) == "https://huggingface.co"


def test_without_a_terminal_nothing_is_fetched_unasked(store: FakeStore, folder: Path) -> None:
    refused = invoke("memory", "setup")
    assert "use -y" in refused.error
    assert not store.requests
    assert not folder.exists()


def test_no_changes_nothing(store: FakeStore, folder: Path) -> None:
    refused = invoke("memory", "setup", data=b"n\n", terminals="stdin stderr")
    assert refused.status == 1
    assert not store.requests
    assert not folder.exists()


def test_the_missing_package_is_named_first(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = set_up()
    assert "python -m pip install 'vibe-llms[onnx]'" in refused.error
    assert not store.requests


def test_the_shipped_pins_are_whole() -> None:
    found = read_weights()
    assert [one.path for one in found.files] == ["tokenizer.json", MODEL]
    assert all(len(bytes.fromhex(one.sha256)) == 32 for one in found.files)
    assert len(bytes.fromhex(found.revision)) == 20
