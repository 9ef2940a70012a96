"""ONNX models in this process, run by the real packages: tiny ones with vectors known by hand."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hub import FakeHub
from tests.fakes.onnx import (
    TABLE,
    WORDS,
    cross_encoder,
    embedding_model,
    make_folder,
    make_tokenizer,
)
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelUnavailable,
    PackageMissing,
    ReplyMalformed,
    SessionClosed,
)
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.strict import StrictEmbedder
from vibe_llms.memory.core import Memory

MINILM = "Xenova/all-MiniLM-L6-v2"
TEXTS = ("tea", "red tea lantern green coffee tea", "green lantern", "coffee", "nonsense red")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "models" / "mine")


def produce(address: object, reported: list[str] | None = None, **row: Any) -> StrictEmbedder:
    settings = {name.replace("_", "-"): row[name] for name in row}
    configuration = load_configuration(overrides={"embedders": {"onnx": settings}})
    notify = (reported if reported is not None else []).append
    return produce_embedder(configuration, f"onnx/{address}", notify=notify, served=False)


async def embed(address: object, *texts: str, **row: Any) -> list[list[float]]:
    embedder = produce(address, **row)
    try:
        return [[*vector] for vector in await embedder.embed(texts)]
    finally:
        await embedder.close()


def expect(text: str, *, tokens: int = 256, cls: bool = False) -> list[float]:
    """The vector of a text, calculated from the table."""
    words = [word if word in WORDS else "[UNK]" for word in text.split()][: tokens - 2]
    found = [TABLE[WORDS.index(word)] for word in ("[CLS]", *words, "[SEP]")]
    sums = found[0] if cls else [sum(column) for column in zip(*found, strict=True)]
    length = math.hypot(*sums)
    return [number / length for number in sums]


def near(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(one, other, strict=True))


# Vectors.


@pytest.mark.parametrize("batch_texts", [1, 2, 16])
async def test_vectors_are_means_of_the_tokens_without_what_fills_up(
    folder: Path, batch_texts: int
) -> None:
    found = await embed(folder, *TEXTS, batch_texts=batch_texts)
    for text, vector in zip(TEXTS, found, strict=True):
        assert near(vector, expect(text)), text
        assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-6)


def test_the_package_reports_nothing_and_stores_nothing_in_the_home_folder(
    folder: Path, tmp_path: Path
) -> None:
    home = tmp_path / "nobody"
    home.mkdir()
    # The number of the machine, which it would store, would be in `.cache/Microsoft`.
    code = (
        "import asyncio, tests.embedding.onnx.test_embedder as one, sys;"
        "asyncio.run(one.embed(sys.argv[1], 'red tea'))"
    )
    kept = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment = {**kept, "HOME": str(home), "VIBE_LLMS_HOME": str(tmp_path / "ours")}
    environment.pop("XDG_CACHE_HOME", None)
    subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=True)
    assert [*home.rglob("*")] == []


async def test_vectors_have_length_1_before_they_are_checked(folder: Path) -> None:
    embedder = produce(folder)
    (vector,) = await embedder.bare.embed(["red tea"])
    assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-6)
    await embedder.close()


async def test_many_texts_keep_their_order(folder: Path) -> None:
    texts = [" ".join(WORDS[4 + (n * k) % 5] for k in range(1 + n * 7 % 13)) for n in range(600)]
    for text, vector in zip(texts, await embed(folder, *texts), strict=True):
        assert near(vector, expect(text)), text


async def test_a_model_that_asks_for_less_gets_less(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", embedding_model(inputs=("input_ids", "attention_mask")))
    (vector,) = await embed(folder, "red tea")
    assert near(vector, expect("red tea"))


async def test_a_model_that_pools_by_itself_is_left_to_it(tmp_path: Path) -> None:
    model = embedding_model(sentence=True, output="sentence_embedding")
    # What its folder says about pooling is in the model then.
    folder = make_folder(tmp_path / "m", model, settings={"1_Pooling/config.json": {"x": 1}})
    (vector,) = await embed(folder, "red tea")
    assert near(vector, expect("red tea"))


@pytest.mark.parametrize("config", [{"pooling_mode": "cls"}, {"pooling_mode_cls_token": True}])
async def test_the_folder_says_how_to_pool(tmp_path: Path, config: Any) -> None:
    folder = make_folder(tmp_path / "m", settings={"1_Pooling/config.json": config})
    assert near((await embed(folder, "red tea"))[0], expect("red tea", cls=True))
    assert near((await embed(folder, "red tea", pooling="mean"))[0], expect("red tea"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"pooling_mode_max_tokens": True}, "'max'"),
        ({"pooling_mode": "lasttoken"}, "'lasttoken'"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "'cls and mean'"),
        ({}, "''"),
    ],
)
async def test_another_pooling_is_refused(tmp_path: Path, config: Any, named: str) -> None:
    folder = make_folder(tmp_path / "m", settings={"1_Pooling/config.json": config})
    with pytest.raises(ModelUnavailable, match=f"uses the pooling {named}"):
        await embed(folder, "tea")


async def test_layers_after_pooling_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", settings={"2_Dense/config.json": {}})
    with pytest.raises(ModelUnavailable, match="mean and 2_Dense"):
        await embed(folder, "tea")


async def test_vectors_may_have_fewer_numbers(folder: Path) -> None:
    embedder = produce(folder, dimensions=2)
    (vector,) = await embedder.embed(["red tea"])
    x, y, _ = expect("red tea")
    assert near([*vector], [x / math.hypot(x, y), y / math.hypot(x, y)])
    assert embedder.model.endswith(" dimensions=2")
    await embedder.close()


async def test_prompts_of_the_model_are_used(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "lantern ", "document": "green "}}
    settings = {"config_sentence_transformers.json": prompts}
    embedder = produce(make_folder(tmp_path / "m", settings=settings))
    assert near((await embedder.embed(["tea"]))[0], expect("green tea"))
    assert near((await embedder.embed(["tea"], question=True))[0], expect("lantern tea"))
    await embedder.close()


@pytest.mark.parametrize(
    ("settings", "row", "tokens"),
    [
        # The tokenizer cuts at 3 tokens: that is not what the model reads.
        ({}, {}, 256),
        ({"sentence_bert_config.json": {"max_seq_length": 5}}, {}, 5),
        ({"sentence_bert_config.json": {"max_seq_length": 5}}, {"max_tokens": 7}, 7),
        ({"config.json": {"max_position_embeddings": 6}}, {"max_tokens": 7}, 6),
        ({"tokenizer_config.json": {"model_max_length": 8}}, {}, 8),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, {}, 256),
    ],
)
async def test_long_texts_are_cut_and_that_is_reported_once(
    tmp_path: Path, settings: Any, row: Any, tokens: int
) -> None:
    folder = make_folder(tmp_path / "m", settings=settings)
    reported: list[str] = []
    embedder = produce(folder, reported, **row)
    fits = " ".join(["tea"] * (tokens - 3) + ["red"])
    assert near((await embedder.embed([fits]))[0], expect(fits))
    assert reported == []
    for text in (f"{fits} green green", f"{fits} lantern"):
        assert near((await embedder.embed([text]))[0], expect(fits))
    assert len(reported) == 1
    assert f"longer than {tokens} tokens" in reported[0]
    await embedder.close()


async def test_memory_finds_by_meaning(folder: Path, tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory", durable=False, embedder=produce(folder))
    for text in ("green lantern", "red", "coffee"):
        await memory.add(text)
    assert (await memory.search("tea"))[0].entry.content == "coffee"
    await memory.close()


# Names.


def test_a_model_has_one_name(folder: Path) -> None:
    for name in ("all-MiniLM-L6-v2", MINILM):
        assert produce(name).model == f"onnx/{MINILM}"
    file = "onnx/model.onnx"
    assert (
        produce(MINILM, file=file, max_tokens=9).model == f"onnx/{MINILM} file={file} max-tokens=9"
    )
    mark = produce(folder).model
    assert mark.startswith("onnx/mine@")
    (folder / "README.md").write_text("about")
    make_folder(folder, b"other weights", file="onnx/model.onnx")
    assert produce(folder).model == mark
    # Other files make other vectors.
    assert produce(folder, file="onnx/model.onnx").model.split()[0] != mark
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(WORDS[:6])))
    assert produce(folder).model != mark


async def test_without_a_quantized_model_another_of_the_folder_is_taken(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", file="model.onnx")
    assert near((await embed(folder, "tea"))[0], expect("tea"))
    make_folder(folder, embedding_model(output="other"), file="onnx/model_int8.onnx")
    assert near((await embed(folder, "tea", file="onnx/model_int8.onnx"))[0], expect("tea"))


# Work.


async def test_a_cancelled_embedding_leaves_a_model_that_works(folder: Path) -> None:
    embedder = produce(folder)
    await embedder.load()
    task = asyncio.create_task(embedder.embed(["red tea"] * 20_000))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert near((await embedder.embed(["tea"]))[0], expect("tea"))
    await embedder.close()


async def test_a_closed_embedder_raises_and_closes_twice(folder: Path) -> None:
    embedder = produce(folder)
    await embedder.embed(["tea"])
    await embedder.close()
    await embedder.close()
    with pytest.raises(SessionClosed):
        await embedder.embed(["tea"])


# What cannot be used.


@pytest.mark.parametrize("name", ["onnxruntime", "tokenizers"])
async def test_a_missing_package_is_reported_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    embedder = produce(folder)
    with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[onnx\]'"):
        await embedder.embed(["tea"])
    if name == "onnxruntime":
        with pytest.raises(PackageMissing):
            await embedder.inquire()
    await embedder.close()


async def test_a_folder_without_a_model_is_reported_before_it_is_loaded(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    other = make_folder(tmp_path / "other", file="onnx/model_q4.onnx")
    for path, file, words in (
        (tmp_path / "none", "", "none has no onnx/model_quantized.onnx"),
        (bare, "", "bare has no onnx/model_quantized.onnx"),
        (other, "", "in the row to one of onnx/model_q4.onnx"),
        (other, "x.onnx", "has no x.onnx; set"),
        (make_folder(tmp_path / "untold", tokenizer=False), "", "has no tokenizer.json"),
    ):
        embedder = produce(path, file=file)
        for work in (embedder.inquire(), embedder.embed(["tea"])):
            with pytest.raises(ModelUnavailable, match=words):
                await work
        await embedder.close()


async def test_a_good_folder_is_found_good_without_loading_it(folder: Path) -> None:
    embedder = produce(folder)
    (folder / "onnx/model_quantized.onnx").write_bytes(b"never read")
    await embedder.inquire()
    await embedder.close()


@pytest.mark.parametrize("size", [0, 1, 100, -1])
async def test_a_damaged_model_is_reported(tmp_path: Path, size: int) -> None:
    folder = make_folder(tmp_path / "m", embedding_model()[:size])
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        await embed(folder, "tea")


@pytest.mark.parametrize("text", ["", "{}", "[" * 5000, '{"model": {"type": "None"}}', "\0"])
async def test_a_damaged_tokenizer_is_reported(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        await embed(folder, "tea")


@pytest.mark.parametrize("text", ["", "[]", '{"max_seq_length": "x"}', "[" * 100_000])
async def test_damaged_settings_are_reported(folder: Path, text: str) -> None:
    (folder / "sentence_bert_config.json").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"sentence_bert_config\.json is invalid"):
        await embed(folder, "tea")


async def test_settings_that_are_no_file_are_reported(folder: Path) -> None:
    (folder / "tokenizer_config.json").mkdir()
    with pytest.raises(ModelUnavailable, match=r"tokenizer_config\.json cannot be read"):
        await embed(folder, "tea")


async def test_a_model_of_something_else_is_reported(tmp_path: Path) -> None:
    picture = make_folder(tmp_path / "p", embedding_model(inputs=("pixel_values",)))
    with pytest.raises(ModelUnavailable, match="not a text model: its inputs are pixel_values"):
        await embed(picture, "tea")
    ranking = make_folder(tmp_path / "r", cross_encoder())
    with pytest.raises(ModelUnavailable, match="returns logits with 2 dimensions"):
        await embed(ranking, "tea")


async def test_the_tokenizer_of_another_model_is_reported(folder: Path) -> None:
    words = (*WORDS, "more")
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(words)))
    with pytest.raises(ModelUnavailable, match=r"its tokenizer\.json may belong to another"):
        await embed(folder, "more")


async def test_a_text_that_the_tokenizer_cannot_read_is_reported(folder: Path) -> None:
    # tokenizers raises a plain Exception here.
    described = make_tokenizer()
    described["model"]["unk_token"] = "[NONE]"
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelUnavailable, match="cannot read a text: WordLevel error"):
        await embed(folder, "unheard")


async def test_a_text_of_which_no_token_is_left_is_reported(folder: Path) -> None:
    described = make_tokenizer() | {"post_processor": None}
    described["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "."},
        "behavior": "Removed",
        "invert": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ReplyMalformed, match="zero or not finite"):
        await embed(folder, "tea")


@pytest.mark.parametrize(
    "row", [{"pooling": "max"}, {"threads": -1}, {"fil": "x"}, {"max_tokens": 0}]
)
def test_an_invalid_row_is_reported(folder: Path, row: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        produce(folder, **row)
    assert caught.value.table == "embedders.onnx"


# The hub. What it gives is fetched by a process of its own, as its address is read at the start.

RUN = """
import asyncio, sys
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.embedding.rows import produce_embedder

async def main():
    embedder = produce_embedder(load_configuration(), sys.argv[1], notify=print, served=False)
    try:
        await embedder.inquire()
        print(len((await embedder.embed(["red tea"]))[0]))
    except VibeLlmsError as error:
        print(type(error).__name__, error)
    await embedder.close()

asyncio.run(main())
print(*sorted({"torch", "transformers", "sentence_transformers", "onnxruntime", "huggingface_hub"}
              & {*sys.modules}))
"""


def run(folder: Path, address: str, **environment: str) -> list[str]:
    """The lines of a process that embeds a text, in a home of its own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "VIBE_"))
    }
    home = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "VIBE_LLMS_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, address],
        env={**kept, **home, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """A hub on this machine that has the default model, and further files."""
    with FakeHub(MINILM, make_folder(tmp_path / "hub")) as server:
        server.further = {
            "onnx/model.onnx": b"other",
            "model.safetensors": b"weights",
            "README.md": b"about",
        }
        yield server


def test_a_folder_needs_no_hub_and_no_torch(folder: Path, tmp_path: Path) -> None:
    assert run(tmp_path, f"onnx/{folder}") == ["3", "onnxruntime"]


def test_a_model_is_fetched_once_and_only_the_file_that_is_used(
    hub: FakeHub, tmp_path: Path
) -> None:
    first, *_, size, loaded = run(tmp_path, "onnx", HF_ENDPOINT=hub.url)
    assert first == f"onnx/{MINILM}: downloading the model once from {hub.url}"
    assert (size, loaded) == ("3", "huggingface_hub onnxruntime")
    fetched = {Path(one.path).name for one in hub.requests if "/resolve/" in one.path}
    assert fetched == {"model_quantized.onnx", "tokenizer.json", "config.json"}
    # Then it is on the disk, whatever the network is like.
    hub.requests.clear()
    for environment in ({"HF_ENDPOINT": hub.url}, {"HF_HUB_OFFLINE": "1"}):
        assert run(tmp_path, "onnx", **environment)[0] == "3"
    assert hub.requests == []


def test_a_repository_without_that_file_is_reported(hub: FakeHub, tmp_path: Path) -> None:
    hub.folder = make_folder(tmp_path / "plain", file="other.onnx")
    *_, error, _ = run(tmp_path, f"onnx/{MINILM}", HF_ENDPOINT=hub.url)
    assert error.startswith("ModelUnavailable")
    assert "has no onnx/model_quantized.onnx" in error


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_without_a_network_one_line_says_how_to_get_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    error, _ = run(tmp_path, "onnx", **environment)
    command = f"hf download {MINILM} --include '*.json' --include 'onnx/model_quantized.onnx'"
    assert command in error
