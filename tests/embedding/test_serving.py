"""A model that another process has loaded: found, asked, left, and never anybody else's."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.fakes.loading import SlowEmbedder, loads
from vibe_llms.base.configuration import Places
from vibe_llms.base.exceptions import (
    ArchiveLocked,
    ConfigurationError,
    ModelUnavailable,
    RequestRefused,
)
from vibe_llms.embedding.serving import (
    EmbedderServer,
    ServedEmbedder,
    find_server,
    find_socket,
    peer_of,
)

_LONG_SECONDS = 60


@pytest.fixture
def places(tmp_path: Path) -> Places:
    # The path of a socket may not be long.
    return Places.under(tmp_path / "s")


@pytest.fixture
def slow(tmp_path: Path) -> SlowEmbedder:
    (tmp_path / "gate").touch()
    return SlowEmbedder(tmp_path)


@asynccontextmanager
async def serving(embedder: SlowEmbedder, places: Places) -> AsyncIterator[EmbedderServer]:
    server = EmbedderServer(embedder, places, idle_minutes=60)
    ready = asyncio.Event()
    task = asyncio.create_task(server.serve(ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield server
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.wait([task])


def client(folder: Path, places: Places, minutes: float = 0.0) -> ServedEmbedder:
    return ServedEmbedder(SlowEmbedder(folder), "loading", "loading", places, minutes)


async def test_what_is_loaded_elsewhere_is_not_loaded_here(
    tmp_path: Path, slow: SlowEmbedder, places: Places
) -> None:
    async with serving(slow, places) as server:
        mode = os.stat(server.path).st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
        asked = client(tmp_path, places)
        await asked.load()
        found = await asyncio.gather(*(asked.embed([f"bees {n}", "goats"]) for n in range(20)))
        words = WordsEmbedder()
        assert found == [await words.embed([f"bees {n}", "goats"]) for n in range(20)]
        served = await find_server(places, "slow")
        assert served is not None
        assert (served.process, served.model) == (os.getpid(), "slow")
    assert len(loads(tmp_path)) == 1
    # It has gone, and this process does it.
    assert not server.path.exists()
    assert await find_server(places, "slow") is None
    await asked.embed(["bees"])
    assert len(loads(tmp_path)) == 2
    await asked.close()


async def test_a_request_while_the_model_loads_waits(tmp_path: Path, places: Places) -> None:
    slow = SlowEmbedder(tmp_path)
    server = EmbedderServer(slow, places, idle_minutes=60)
    task = asyncio.create_task(server.serve())
    while await find_server(places, "slow") is None:
        await asyncio.sleep(0)
    asked = [asyncio.create_task(client(tmp_path, places).load()) for _ in range(3)]
    (tmp_path / "gate").touch()
    await asyncio.gather(*asked)
    assert set(loads(tmp_path)) == {os.getpid()}
    task.cancel()
    await asyncio.wait([task])


async def test_an_idle_server_ends(slow: SlowEmbedder, places: Places) -> None:
    server = EmbedderServer(slow, places, idle_minutes=0.001)
    async with asyncio.timeout(_LONG_SECONDS):
        await server.serve()
    assert not server.path.exists()


async def test_there_is_one_server_of_a_model(slow: SlowEmbedder, places: Places) -> None:
    async with serving(slow, places) as server:
        with pytest.raises(ArchiveLocked):
            await EmbedderServer(slow, places, idle_minutes=60).serve()
        assert server.path.exists()


async def test_the_socket_of_one_that_has_died_is_in_nobodys_way(
    tmp_path: Path, slow: SlowEmbedder, places: Places
) -> None:
    path = find_socket(places, "slow")
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert await client(tmp_path, places).embed(["bees"])
    async with serving(slow, places):
        assert await find_server(places, "slow") is not None


async def test_where_no_process_can_be_started_this_one_embeds(
    tmp_path: Path, slow: SlowEmbedder, places: Places
) -> None:
    places.state.mkdir(parents=True)
    (places.state / "embedder.log").symlink_to(tmp_path / "elsewhere")
    assert await client(tmp_path, places, minutes=1.0).embed(["bees"])
    assert loads(tmp_path) == [os.getpid()]


async def test_another_user_is_not_served_and_not_asked(
    tmp_path: Path, slow: SlowEmbedder, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.getuid()
    async with serving(slow, places) as server:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server.path))
            assert peer_of(connection) == mine
        with socket.socket() as connection:
            assert peer_of(connection) in (-1, 0)
        # Each side sees a process that is another user's.
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
        assert await find_server(places, "slow") is None
        before = len(slow.words.batches)
        await client(tmp_path, places).embed(["bees"])
        assert len(slow.words.batches) == before
        reader, writer = await asyncio.open_unix_connection(str(server.path))
        async with asyncio.timeout(_LONG_SECONDS):
            assert await reader.read() == b""
        writer.close()


async def test_what_a_model_refuses_is_reported_as_it_is(
    tmp_path: Path, slow: SlowEmbedder, places: Places
) -> None:
    async with serving(slow, places):
        asked = client(tmp_path, places)
        slow.words.failure = RequestRefused("too long", provider="x")
        with pytest.raises(RequestRefused, match="too long") as refused:
            await asked.embed(["bees"])
        assert not isinstance(refused.value, ModelUnavailable)
        slow.words.failure = ModelUnavailable("no weights", provider="x")
        with pytest.raises(ModelUnavailable, match="no weights"):
            await asked.embed(["bees"])
        slow.words.failure = None
        with pytest.raises(RequestRefused, match="more than 256 texts"):
            await asked.embed(["bees"] * 257)
        assert await asked.embed(["bees"])


async def test_a_path_that_is_too_long_is_an_error(tmp_path: Path, slow: SlowEmbedder) -> None:
    with pytest.raises(ConfigurationError, match="of a socket path"):
        await EmbedderServer(slow, Places.under(tmp_path / ("x" * 100)), idle_minutes=60).serve()


async def test_a_model_that_cannot_be_loaded_is_reported(tmp_path: Path, places: Places) -> None:
    (tmp_path / "gate").write_text("there are no weights")
    server = EmbedderServer(SlowEmbedder(tmp_path), places, idle_minutes=60)
    with pytest.raises(ModelUnavailable, match="there are no weights"):
        await server.serve()
    assert not server.path.exists()


@pytest.mark.storm
async def test_nonsense_ends_no_server(
    slow: SlowEmbedder, places: Places, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    chance = random.Random(3)
    async with serving(slow, places) as server:
        for _ in range(rounds(50, 2000)):
            reader, writer = await asyncio.open_unix_connection(str(server.path))
            data = chance.randbytes(chance.randint(0, 40))
            if chance.random() < 0.5:
                data = len(data).to_bytes(4, "big") + data
            writer.write(data)
            if chance.random() < 0.5:
                writer.write_eof()
                async with asyncio.timeout(_LONG_SECONDS):
                    await reader.read()
            writer.close()
        assert await client(tmp_path, places).embed(["bees"])
    assert loads(tmp_path) == [os.getpid()]


async def test_a_server_that_says_nonsense_is_not_believed(
    tmp_path: Path, slow: SlowEmbedder, places: Places
) -> None:
    path = find_socket(places, "slow")
    path.parent.mkdir()
    chance = random.Random(4)

    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chance.randbytes(chance.randint(0, 40)))
        writer.close()

    server = await asyncio.start_unix_server(babble, str(path))
    for _ in range(20):
        assert await client(tmp_path, places).embed(["bees"])
    server.close()
