"""Contents in a bucket, over HTTP: there, gone, away, forbidden, and back again."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fakes.objects import BucketServer, access_bucket_server
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContentMissing,
    RegistrationError,
    StorageUnavailable,
)
from vibe_llms.storage import objects
from vibe_llms.storage.objects import (
    BucketSettings,
    BucketStore,
    check_objects,
    produce_object_store,
)

ONE, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def server() -> BucketServer:
    return access_bucket_server()


async def test_objects_are_written_read_listed_and_removed_by_user(server: BucketServer) -> None:
    settings = server.produce_bucket()
    store = BucketStore(settings)
    await store.write("ada", ONE, b"one")
    await store.write("ada", OTHER, b"other")
    await store.write("bob", ONE, b"one")
    assert await store.read("ada", OTHER) == b"other"
    assert await store.survey("ada") == {ONE: 3, OTHER: 5}
    assert server.request("GET", f"/{settings.bucket}/vibe-llms/bob/{ONE}") == b"one"
    await store.remove("ada", [ONE, "c" * 64])
    assert await store.survey("ada") == {OTHER: 5}
    assert await store.read("bob", ONE) == b"one"
    with pytest.raises(ContentMissing):
        await store.read("ada", ONE)


async def test_bytes_that_are_there_are_written_anew(server: BucketServer) -> None:
    settings = server.produce_bucket(prefix="")
    store = BucketStore(settings)
    server.request("PUT", f"/{settings.bucket}/ada/{ONE}", b"damaged")
    await store.write("ada", ONE, b"one")
    assert await store.read("ada", ONE) == b"one"


async def test_an_object_of_several_parts_comes_back(server: BucketServer) -> None:
    store = BucketStore(server.produce_bucket())
    data = bytes(range(256)) * (70 * 1024)
    await store.write("ada", ONE, data)
    assert await store.read("ada", ONE) == data


async def test_a_bucket_that_does_not_exist_is_named_and_used_once_it_is_made(
    server: BucketServer,
) -> None:
    settings = server.produce_bucket(exists=False)
    store = BucketStore(settings)
    wanted = f"{settings.bucket}' at {server.endpoint} cannot be used now: "
    wanted += "The specified bucket does not exist; create it"
    for attempt in (
        store.write("ada", ONE, b"one"),
        store.read("ada", ONE),
        store.remove("ada", [ONE]),
        store.survey("ada"),
        check_objects(store),
    ):
        with pytest.raises(StorageUnavailable, match=wanted):
            await attempt
    server.make_bucket(settings.bucket)
    await check_objects(store)
    await store.write("ada", ONE, b"one")
    assert await store.read("ada", ONE) == b"one"


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        (
            {"AWS_ACCESS_KEY_ID": "nobody"},
            "Access Key Id you provided does not exist .*; check AWS_ACCESS_KEY_ID and AWS_SECRET",
        ),
        ({"AWS_SECRET_ACCESS_KEY": "x"}, "signature .*; check AWS_ACCESS_KEY_ID and AWS_SECRET"),
        ({}, "Access Denied; its credentials need s3:GetObject, s3:PutObject"),
    ],
)
async def test_credentials_that_are_wrong_are_named_and_used_once_they_are_right(
    variables: Mapping[str, str],
    complaint: str,
    server: BucketServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user, login = server.make_login()
    settings = server.produce_bucket(skip_signature=False)
    for name, value in {**login, **variables}.items():
        monkeypatch.setenv(name, value)
    store = BucketStore(settings)
    with server.checking():
        for attempt in (
            store.write("ada", ONE, b"one"),
            store.read("ada", ONE),
            store.survey("ada"),
            check_objects(store),
        ):
            with pytest.raises(StorageUnavailable, match=complaint):
                await attempt
        for name, value in login.items():
            monkeypatch.setenv(name, value)
        server.allow(user)
        # A store reads the environment once.
        store = BucketStore(settings) if variables else store
        await store.write("ada", ONE, b"one")
        assert await store.read("ada", ONE) == b"one"


async def test_credentials_that_are_not_there_are_named(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    store = BucketStore(server.produce_bucket(skip_signature=False))
    with pytest.raises(StorageUnavailable, match="no credentials; set AWS_ACCESS_KEY_ID"):
        await store.read("ada", ONE)


async def test_a_store_that_is_away_is_named_and_used_again_when_it_is_back() -> None:
    server = BucketServer()
    store = BucketStore(server.produce_bucket())
    await store.write("ada", ONE, b"one")
    server.stop()
    for attempt in (store.write("ada", OTHER, b"other"), store.read("ada", ONE)):
        with pytest.raises(StorageUnavailable, match="cannot be used now"):
            await attempt
    server.start()
    try:
        assert await store.read("ada", ONE) == b"one"
        assert await store.survey("ada") == {ONE: 3}
    finally:
        server.stop()


async def test_a_store_that_does_not_answer_is_given_up(server: BucketServer) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = BucketStore(
            BucketSettings("b", endpoint=endpoint, timeout_seconds=0.2, skip_signature=True)
        )
        with pytest.raises(StorageUnavailable, match="did not answer in time"):
            await store.read("ada", ONE)


def read(folder: Path, text: str) -> object:
    (folder / "config.toml").write_text(f"[archive]\n[archive.contents]\n{text}")
    return produce_object_store(load_configuration(Places.under(folder), environment={}))


def test_the_configuration_names_the_store_and_its_bucket(tmp_path: Path) -> None:
    assert produce_object_store(load_configuration(Places.under(tmp_path), environment={})) is None
    row = 'module = "vibe_llms.storage.objects"\n'
    store = read(tmp_path, row + 'bucket = "b"\nleast-bytes = 5\nendpoint = "https://s3.example"')
    assert isinstance(store, BucketStore)
    assert store.settings == BucketSettings("b", endpoint="https://s3.example", least_bytes=5)
    assert store.least_bytes == 5
    with pytest.raises(ConfigurationError, match="bucket"):
        read(tmp_path, row)
    with pytest.raises(ConfigurationError, match="did you mean 'region'"):
        read(tmp_path, row + 'bucket = "b"\nregoin = "x"')
    for address in ("localhost:9000", "http://a b", "http://:80", "http://h:port", "//h"):
        with pytest.raises(ConfigurationError, match=r"'endpoint': '.*' is not an address"):
            read(tmp_path, row + f'bucket = "b"\nendpoint = "{address}"')
    with pytest.raises(RegistrationError, match="no_such_module"):
        read(tmp_path, 'module = "no_such_module"')


def test_threads_of_the_store_end_before_python_does(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without that, 5 of 25 programs that ended right after a request were aborted, with status 134.
    registered: list[tuple[object, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call: registered.append(call))
    objects._end_quietly.cache_clear()
    for _ in range(2):
        BucketStore(server.produce_bucket())._access()
    assert registered == [(time.sleep, 0.05)]
