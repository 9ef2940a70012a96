"""Contents in the database: once for each user, checked, never collected while used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.fakes.objects import BucketServer, access_bucket_server
from tests.fakes.postgres import TestDatabase
from vibe_llms.base.exceptions import (
    ContentDamaged,
    ContentMissing,
    StorageError,
    StorageUnavailable,
)
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.storage.deposits import Deposit
from vibe_llms.storage.objects import BucketSettings, BucketStore
from vibe_llms.storage.postgres import contents as module
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
async def database(place: TestDatabase) -> AsyncIterator[Database]:
    database = Database(PostgresSettings(dsn=place.dsn, connect_seconds=5))
    yield database
    await database.close()


@pytest.fixture
def bucket() -> BucketStore:
    return BucketStore(access_bucket_server().produce_bucket(least_bytes=0))


@pytest.fixture(params=["database", "bucket"])
def contents(request: pytest.FixtureRequest, database: Database) -> PostgresContents:
    objects = request.getfixturevalue("bucket") if request.param == "bucket" else None
    return PostgresContents(database, inline_bytes=1024, objects=objects)


async def use(contents: PostgresContents, reference: Reference, holder: str = "one") -> None:
    async with contents.database.transaction("ada") as connection:
        await contents.use(connection, "ada", [reference], holder)


async def test_bytes_come_back_to_their_user_and_to_no_other_one(
    contents: PostgresContents,
) -> None:
    reference = await contents.put("ada", b"picture")
    assert reference == Reference.from_bytes(b"picture")
    assert await contents.load("ada", reference) == b"picture"
    assert await contents.survey("ada") == [reference]
    assert await contents.find("ada", [reference.hash]) == {reference.hash: reference}
    with pytest.raises(ContentMissing, match=reference.hash[:12]):
        await contents.load("bob", reference)
    assert await contents.survey("bob") == []
    assert await contents.find("bob", [reference.hash]) == {}


async def test_many_contents_of_any_bytes_are_stored_and_loaded_together(
    contents: PostgresContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STATEMENT_BYTES", 100)
    data = [b"", b"\0", bytes(range(256)) * 10, *(b"%d" % n for n in range(50))]
    deposits = [Deposit.from_bytes(one) for one in (*data, *data)]
    await contents.put_all("ada", deposits)
    loaded = await contents.load_all("ada", [one.reference for one in deposits])
    assert loaded == {one.reference.hash: one.data for one in deposits}
    assert await contents.load_all("ada", []) == {}


async def test_a_content_too_large_for_the_database_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = PostgresContents(database, inline_bytes=1024)
    monkeypatch.setattr(module, "_LARGEST_VALUE", 10)
    with pytest.raises(StorageError, match=r"archive\.contents"):
        await contents.put("ada", b"x" * 11)
    assert await contents.survey("ada") == []


async def test_bytes_that_changed_are_seen_and_mended_by_putting_them_again(
    contents: PostgresContents, place: TestDatabase
) -> None:
    reference = await contents.put("ada", b"picture")
    if contents.objects is None:
        with psycopg.connect(place.admin_dsn) as connection:
            connection.execute("update vibe.contents set data = 'Picture'")
    else:
        await contents.objects.write("ada", reference.hash, b"Picture")
    with pytest.raises(ContentDamaged, match=reference.hash[:12]):
        await contents.load("ada", reference)
    await contents.put("ada", b"picture")
    assert await contents.load("ada", reference) == b"picture"


async def test_canisters_are_stored_with_their_contents_in_one_transaction(
    contents: PostgresContents, database: Database
) -> None:
    picture = ImageContent(b"picture", "image/png")
    said: list[Canister] = [SupervisorCanister.from_text("Be brief."), UserCanister((picture,))]
    prepared = await contents.prepare("ada", said)
    assert [one.contents[0].data for one in prepared.stored] == [  # type: ignore[union-attr]
        Reference.from_bytes(b"Be brief."),
        Reference.from_bytes(b"picture"),
    ]
    assert prepared.kept == tuple(said)
    with pytest.raises(ZeroDivisionError):
        await fail_after_storing(contents, said)
    async with database.transaction("ada") as connection:
        cursor = await connection.execute("select from vibe.content_uses")
        assert await cursor.fetchall() == []
    async with database.transaction("ada") as connection:
        await contents.store(connection, "ada", prepared, "conversation/one")
    assert len(await contents.find("ada", [one.hash for one in prepared.references])) == 2
    assert await contents.collect("ada", grace_seconds=0) == []


async def fail_after_storing(contents: PostgresContents, said: Sequence[Canister]) -> None:
    prepared = await contents.prepare("ada", said)
    async with contents.database.transaction("ada") as connection:
        await contents.store(connection, "ada", prepared, "conversation/one")
        raise ZeroDivisionError


async def test_a_canister_that_refers_to_what_is_not_there_is_refused(
    contents: PostgresContents, database: Database
) -> None:
    missing = UserCanister((TextualContent(Reference.from_bytes(b"nowhere")),))
    prepared = await contents.prepare("ada", [missing])
    with pytest.raises(ContentMissing, match=r"await archive\.put"):
        async with database.transaction("ada") as connection:
            await contents.store(connection, "ada", prepared, "conversation/one")


async def test_what_takes_long_is_stored_before_the_rows_of_others_are_held(
    database: Database,
) -> None:
    contents = PostgresContents(database, inline_bytes=1024)
    for size, first in ((100_000, False), (2_000_000, True)):
        said = [UserCanister((ImageContent(bytes(size), "image/png"),))]
        prepared = await contents.prepare("ada", said)
        assert bool(await contents.survey("ada")) == first
        async with database.transaction("ada") as connection:
            await contents.store(connection, "ada", prepared, "one")
        (reference,) = prepared.references
        assert await contents.load("ada", reference) == bytes(size)
        await contents.collect("ada", grace_seconds=-60)
        assert await contents.survey("ada") == [reference]
        async with database.transaction("ada") as connection:
            await contents.release(connection, "ada", "one", before=LATER)
        await contents.collect("ada", grace_seconds=-60)


async def test_what_nothing_uses_goes_after_the_grace_period(contents: PostgresContents) -> None:
    used, unused = await contents.put("ada", b"used"), await contents.put("ada", b"unused")
    foreign = await contents.put("bob", b"unused")
    await use(contents, used)
    assert await contents.collect("ada") == []
    assert await contents.collect("ada", grace_seconds=0) == [unused.hash]
    assert await contents.survey("ada") == [used]
    assert await contents.survey("bob") == [foreign]


async def test_what_was_released_goes_at_once_unless_it_was_put_again_or_is_used(
    contents: PostgresContents, database: Database
) -> None:
    gone, shared, again = [await contents.put("ada", one) for one in (b"gone", b"shared", b"again")]
    for reference in (gone, shared, again):
        await use(contents, reference, "conversation/one")
    await use(contents, shared, "conversation/other")
    async with database.transaction("ada") as connection:
        cursor = await connection.execute("select clock_timestamp()")
        row = await cursor.fetchone()
    assert row is not None
    await contents.put("ada", b"again")
    async with database.transaction("ada") as connection:
        await contents.release(connection, "ada", "conversation/one", before=row[0])
    assert await contents.collect("ada") == [gone.hash]
    assert {one.hash for one in await contents.survey("ada")} == {shared.hash, again.hash}


async def test_more_contents_than_one_transaction_takes_are_collected(
    contents: PostgresContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH", 40)
    deposits = [Deposit.from_bytes(b"%d" % number) for number in range(100)]
    await contents.put_all("ada", deposits)
    kept = deposits[50].reference
    await use(contents, kept)
    collected = await contents.collect("ada", grace_seconds=0)
    assert len(collected) == 99
    assert await contents.survey("ada") == [kept]


async def test_a_content_that_a_transaction_is_about_to_use_is_not_collected(
    contents: PostgresContents, database: Database
) -> None:
    reference = await contents.put("ada", b"picture")
    async with database.transaction("ada") as connection:
        await contents.use(connection, "ada", [reference], "conversation/one")
        # The use is not visible yet.
        assert await contents.collect("ada", grace_seconds=-1) == []
    assert await contents.collect("ada", grace_seconds=-1) == []
    assert await contents.load("ada", reference) == b"picture"


async def test_the_database_itself_deletes_no_content_that_is_used(
    contents: PostgresContents, place: TestDatabase
) -> None:
    reference = await contents.put("ada", b"picture")
    await use(contents, reference)
    with (
        psycopg.connect(place.admin_dsn) as connection,
        pytest.raises(psycopg.errors.ForeignKeyViolation),
    ):
        connection.execute("delete from vibe.contents")


async def check_collecting(contents: PostgresContents, count: int) -> None:
    """Few contents, put, used and released by several at once while others collect."""
    done = False

    async def store(data: bytes, holder: str) -> Reference:
        prepared = await contents.prepare("ada", [UserCanister((ImageContent(data),))])
        async with contents.database.transaction("ada") as connection:
            await contents.store(connection, "ada", prepared, holder)
        return prepared.references[0]

    async def write(number: int) -> None:
        for turn in range(count):
            data, holder = b"%d" % (turn % 3), f"conversation/{number}-{turn}"
            while True:
                # Without a grace period, a put may be too slow.
                with suppress(StorageUnavailable):
                    reference = await store(data, holder)
                    break
            loaded = await contents.load("ada", reference)
            assert loaded == data, "a content was deleted too early"
            async with contents.database.transaction("ada") as connection:
                await contents.release(connection, "ada", holder, before=LATER)

    async def collect() -> None:
        while not done:
            await contents.collect("ada", grace_seconds=-1)

    collecting = [asyncio.create_task(collect()) for _ in range(2)]
    written = await asyncio.gather(*map(write, range(4)), return_exceptions=True)
    done = True
    await asyncio.gather(*collecting)
    for failure in filter(None, written):
        raise failure
    await contents.collect("ada", grace_seconds=-1)
    assert await contents.survey("ada") == []


async def test_collecting_beside_writers_deletes_nothing_that_is_used(
    contents: PostgresContents,
) -> None:
    await check_collecting(contents, 15)


class Interrupted(PostgresContents):
    """Something begins to use a content after it was found unused, and before it is deleted."""

    reference = Reference.from_bytes(b"picture")

    async def _remove(self, values: Mapping[str, Any]) -> Sequence[str]:
        await use(self, self.reference)
        return await super()._remove(values)


async def check_late_use(database: Database) -> None:
    contents = Interrupted(database, inline_bytes=1024)
    await contents.put("ada", b"picture")
    assert await contents.collect("ada", grace_seconds=0) == []
    assert await contents.load("ada", contents.reference) == b"picture"


async def test_a_content_that_is_used_late_is_not_collected(database: Database) -> None:
    await check_late_use(database)


async def test_that_check_sees_a_collection_that_looks_for_uses_only_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DOOM", module._DOOM.partition("and not exists")[0])
    with pytest.raises(ContentMissing):
        await check_late_use(database)


async def test_small_contents_stay_in_the_database(database: Database) -> None:
    bucket = BucketStore(access_bucket_server().produce_bucket(least_bytes=10))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    small, large = await contents.put("ada", b"x" * 9), await contents.put("ada", b"x" * 10)
    assert await bucket.survey("ada") == {large.hash: 10}
    loaded = await contents.load_all("ada", [small, large])
    assert loaded == {small.hash: b"x" * 9, large.hash: b"x" * 10}
    # Without the bucket, only what is in the database is there.
    alone = PostgresContents(database, inline_bytes=1024)
    assert await alone.load("ada", small) == b"x" * 9
    with pytest.raises(StorageError, match=r"archive\.contents"):
        await alone.load("ada", large)


async def test_a_content_whose_object_is_gone_is_named_and_mended_by_putting_it_again(
    database: Database, bucket: BucketStore
) -> None:
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    reference = await contents.put("ada", b"picture")
    await bucket.remove("ada", [reference.hash])
    with pytest.raises(ContentMissing, match=f"vibe-llms/ada/{reference.hash}"):
        await contents.load("ada", reference)
    await contents.put("ada", b"picture")
    assert await contents.load("ada", reference) == b"picture"


async def test_what_a_bucket_that_is_away_did_not_take_is_missing_until_it_is_put_again(
    database: Database,
) -> None:
    server = BucketServer()
    bucket = BucketStore(server.produce_bucket(least_bytes=0))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    reference = Reference.from_bytes(b"picture")
    server.stop()
    with pytest.raises(StorageUnavailable):
        await contents.put("ada", b"picture")
    assert await contents.find("ada", [reference.hash]) == {}
    with pytest.raises(ContentMissing):
        await use(contents, reference)
    server.start()
    try:
        await contents.put("ada", b"picture")
        await use(contents, reference)
        assert await contents.load("ada", reference) == b"picture"
    finally:
        server.stop()


class Away(BucketStore):
    """It takes nothing while it is `away`, and counts who tries."""

    away = True
    tries = 0

    async def write(self, user: str, digest: str, data: bytes) -> None:
        self.tries += 1
        if self.away:
            raise StorageUnavailable("the bucket is away")
        await super().write(user, digest, data)


@pytest.fixture
def away() -> Away:
    return Away(access_bucket_server().produce_bucket(least_bytes=4))


async def say(contents: PostgresContents, user: str, *data: bytes) -> Sequence[Reference]:
    """Store pictures as a message does."""
    said = [UserCanister(tuple(ImageContent(one, "image/png") for one in data))]
    prepared = await contents.prepare(user, said)
    async with contents.database.transaction(user) as connection:
        await contents.store(connection, user, prepared, "conversation/one")
    return prepared.references


async def test_what_is_said_while_the_bucket_is_away_is_kept_and_moved_when_it_is_back(
    database: Database, away: Away, place: TestDatabase
) -> None:
    contents = PostgresContents(database, inline_bytes=1024, objects=away)
    mine = await say(contents, "ada", b"picture", b"another", b"png")
    (foreign,) = await say(contents, "bob", b"picture")
    assert away.tries == 2, "it was not tried again for each message"
    for reference in mine:
        assert await contents.load("ada", reference)
    with pytest.raises(StorageUnavailable, match="the bucket is away"):
        await contents.return_displaced()
    away.away = False
    for _ in range(2):
        await contents.return_displaced()
        assert await away.survey("ada") == {one.hash: 7 for one in mine if one.size == 7}
        assert await away.survey("bob") == {foreign.hash: 7}
    with psycopg.connect(place.admin_dsn) as connection:
        rows = connection.execute(
            "select octet_length(data) from vibe.contents where data is not null or displaced"
        ).fetchall()
    assert rows == [(3,)]
    for reference in mine:
        assert await contents.load("ada", reference)
    # It is used again at once.
    (later,) = await say(contents, "ada", b"later one")
    assert later.hash in await away.survey("ada")


async def test_what_the_bucket_has_already_is_kept_again_while_it_is_away(
    database: Database, away: Away
) -> None:
    contents = PostgresContents(database, inline_bytes=1024, objects=away)
    away.away = False
    (reference,) = await say(contents, "ada", b"picture")
    away.away = True
    assert await say(contents, "ada", b"picture") == (reference,)
    await away.remove("ada", [reference.hash])
    # It is read where it was put last.
    assert await contents.load("ada", reference) == b"picture"
    away.away = False
    await contents.return_displaced()
    assert await away.read("ada", reference.hash) == b"picture"


async def test_what_is_deleted_while_it_is_displaced_does_not_come_back(
    database: Database, away: Away
) -> None:
    contents = PostgresContents(database, inline_bytes=1024, objects=away)
    await say(contents, "ada", b"picture")
    async with database.transaction("ada") as connection:
        await contents.release(connection, "ada", "conversation/one", before=LATER)
    await contents.collect("ada", grace_seconds=-60)
    away.away = False
    await contents.return_displaced()
    assert await away.survey("ada") == {}


async def test_only_what_is_said_is_kept_while_the_bucket_is_away(
    database: Database, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = PostgresContents(database, inline_bytes=1024, objects=away)
    with pytest.raises(StorageUnavailable, match="the bucket is away"):
        await contents.put("ada", b"picture")
    monkeypatch.setattr(module, "_LARGEST_VALUE", 10)
    with pytest.raises(StorageUnavailable, match="the bucket is away"):
        await say(contents, "ada", b"larger than a value")
    assert await contents.survey("ada") == []


async def test_an_object_that_cannot_be_removed_now_goes_with_a_later_collection(
    database: Database,
) -> None:
    server = BucketServer()
    bucket = BucketStore(server.produce_bucket(least_bytes=0))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    reference = await contents.put("ada", b"picture")
    server.stop()
    with pytest.raises(StorageUnavailable):
        await contents.collect("ada", grace_seconds=0)
    # It may be gone, so nothing may begin to use it.
    assert await contents.find("ada", [reference.hash]) == {}
    server.start()
    try:
        assert await bucket.survey("ada") == {reference.hash: 7}
        assert await contents.collect("ada", grace_seconds=0) == [reference.hash]
        assert await bucket.survey("ada") == {}
    finally:
        server.stop()


class Stuck(BucketStore):
    """Nothing is removed before it is let go."""

    def __init__(self, settings: BucketSettings) -> None:
        super().__init__(settings)
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    async def remove(self, user: str, digests: Sequence[str]) -> None:
        self.begun.set()
        await self.free.wait()
        await super().remove(user, digests)


async def test_collections_that_wait_for_the_bucket_use_one_connection(place: TestDatabase) -> None:
    database = Database(PostgresSettings(dsn=place.dsn, connections=2, connect_seconds=1))
    bucket = Stuck(access_bucket_server().produce_bucket(least_bytes=0))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    users = ["ada", "bob", "cem"]
    references = [await contents.put(user, b"picture") for user in users]
    async with asyncio.TaskGroup() as group:
        for user in users:
            group.create_task(contents.collect(user, grace_seconds=0))
        await bucket.begun.wait()
        # Each of these gives way to a collection that waits for a connection.
        for _ in range(20):
            await contents.survey("dan")
        bucket.free.set()
    for user in users:
        assert await contents.find(user, [references[0].hash]) == {}
    await database.close()


class Observed(BucketStore):
    """It knows how often it was read, and by how many at once."""

    away = False
    reads = reading = most = 0

    async def read(self, user: str, digest: str) -> bytes:
        self.reads += 1
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            if self.away:
                raise StorageUnavailable("away")
            return await super().read(user, digest)
        finally:
            self.reading -= 1


async def test_of_many_objects_a_few_are_read_at_once(database: Database) -> None:
    bucket = Observed(access_bucket_server().produce_bucket(least_bytes=0))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    deposits = [Deposit.from_bytes(b"picture %d" % number) for number in range(50)]
    await contents.put_all("ada", deposits)
    references = [one.reference for one in deposits]
    loaded = await contents.load_all("ada", references)
    assert loaded == {one.reference.hash: one.data for one in deposits}
    assert 1 < bucket.most < 20
    # One that fails is not followed by more, each of which would take its time.
    bucket.away, bucket.reads = True, 0
    with pytest.raises(StorageUnavailable):
        await contents.load_all("ada", references)
    assert bucket.reads < 20


class Disturbed(BucketStore):
    """Something happens around the first write of an object."""

    before: Callable[[], Awaitable[object]] | None = None
    after: Callable[[], Awaitable[object]] | None = None

    async def write(self, user: str, digest: str, data: bytes) -> None:
        before, self.before = self.before, None
        if before is not None:
            await before()
        await super().write(user, digest, data)
        after, self.after = self.after, None
        if after is not None:
            await after()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_collection_in_the_middle_of_a_put_loses_nothing(
    database: Database, moment: str
) -> None:
    bucket = Disturbed(access_bucket_server().produce_bucket(least_bytes=0))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)
    setattr(bucket, moment, lambda: contents.collect("ada", grace_seconds=-1))
    reference = await contents.put("ada", b"picture")
    assert getattr(bucket, moment) is None
    assert await contents.load("ada", reference) == b"picture"
    assert await contents.collect("ada", grace_seconds=0) == [reference.hash]
    assert await bucket.survey("ada") == {}


async def check_two_puts_and_a_collection(database: Database) -> None:
    """One puts, another collects what it wrote, a third begins to put it and is stopped there."""
    bucket = Disturbed(access_bucket_server().produce_bucket(least_bytes=0))
    contents = PostgresContents(database, inline_bytes=1024, objects=bucket)

    async def stop() -> None:
        raise StorageUnavailable("stopped")

    async def disturb() -> None:
        await contents.collect("ada", grace_seconds=-1)
        bucket.before = stop
        with pytest.raises(StorageUnavailable):
            await contents.put("ada", b"picture")

    bucket.after = disturb
    reference = await contents.put("ada", b"picture")
    assert await contents.load("ada", reference) == b"picture"


async def test_a_put_does_not_vouch_for_the_row_of_another_one(database: Database) -> None:
    await check_two_puts_and_a_collection(database)


async def test_that_check_sees_a_put_that_does(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = module._ARRIVED.replace("and held.created = given.created", "")
    assert careless != module._ARRIVED
    monkeypatch.setattr(module, "_ARRIVED", careless)
    with pytest.raises(ContentMissing):
        await check_two_puts_and_a_collection(database)
