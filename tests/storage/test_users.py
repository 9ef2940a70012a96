"""The users of a server, in a home and in PostgreSQL, and what all servers share besides."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import invoke
from tests.fakes.postgres import TestDatabase, temporary_database
from vibe_llms.base.configuration import LOCAL, Configuration, Places, load_configuration
from vibe_llms.base.exceptions import RequestError, StorageUnavailable
from vibe_llms.base.files import LARGEST_SETTINGS
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.server.continuations import ContinuationPlace
from vibe_llms.server.stores import produce_continuations, produce_secrets
from vibe_llms.storage import users as server_users
from vibe_llms.storage.backends import Backend, opened_backend
from vibe_llms.storage.interfaces import Details
from vibe_llms.storage.logins import MOST_LOGINS
from vibe_llms.storage.postgres import users as postgres_users
from vibe_llms.storage.user_stores import produce_logins, produce_users
from vibe_llms.storage.users import User, UserFile, hash_key

_SERVERS = 4


def configure(home: Path, place: TestDatabase | None) -> Configuration:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text("" if place is None else place.table)
    return load_configuration(Places.under(home), environment={})


@pytest.fixture(params=["home", "postgres"])
def configuration(request: pytest.FixtureRequest, home: Path) -> Iterator[Configuration]:
    if request.param == "home":
        yield configure(home, None)
        return
    with temporary_database() as place:
        yield configure(home, place)


@pytest.fixture
async def backends(configuration: Configuration) -> AsyncIterator[list[Backend]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(opened_backend(configuration)) for _ in range(_SERVERS)
        ]


async def test_of_servers_that_start_at_once_one_makes_the_first_key(
    backends: list[Backend],
) -> None:
    stores = [produce_users(one) for one in backends]
    keys = [key for key in await asyncio.gather(*(one.add_first() for one in stores)) if key]
    assert len(keys) == 1
    assert {await one.find(keys[0]) for one in stores} == {LOCAL}
    assert await stores[0].add_first() == ""


async def test_no_first_key_is_made_where_there_are_users(backends: list[Backend]) -> None:
    users = produce_users(backends[0])
    await users.add("ada")
    assert await users.add_first() == ""
    assert [*await users.survey()] == ["ada"]


async def test_no_first_key_is_made_while_another_process_adds_a_user(home: Path) -> None:
    with temporary_database() as place:
        async with opened_backend(configure(home, place)) as backend:
            users = produce_users(backend)
            with psycopg.connect(place.dsn) as adding, psycopg.connect(place.admin_dsn) as watching:
                watching.autocommit = True
                adding.execute("select set_config('vibe.user', 'ada', true)")
                adding.execute("select pg_advisory_xact_lock(%s)", (postgres_users._LOCK,))
                adding.execute(postgres_users._ADD.encode(), ("ada", "hash"))
                first = asyncio.create_task(users.add_first())
                waiting = "select from pg_locks where locktype = 'advisory' and not granted"
                while not (first.done() or watching.execute(waiting).fetchall()):
                    await asyncio.sleep(0.01)
                adding.commit()
                assert await first == ""
            assert [*await users.survey()] == ["ada"]


async def test_users_of_an_earlier_version_are_moved_once_however_many_they_are(
    home: Path,
) -> None:
    folder = home / "server"
    folder.mkdir(parents=True)
    row = '[user{0}]\nkey-hash = "{1}"\ncreated = "2026-01-01T00:00:00Z"\n'
    text = "".join(row.format(one, hash_key(f"key{one}")) for one in range(9_000))
    (folder / "users.toml").write_text(text)
    assert len(text) > LARGEST_SETTINGS
    async with opened_backend(configure(home, None)) as backend:
        users = produce_users(backend)
        assert await users.find("key8999") == "user8999"
        assert len(await users.survey()) == 9_000
        await users.remove("user8999")
        assert await users.find("key8999") is None
        # Such as from a backup.
        (folder / "users.toml").write_text(text)
        assert await users.find("key8999") is None
        (folder / "users.toml").unlink()
    assert sorted(one.name for one in folder.iterdir()) == ["users.sqlite", "users.toml.moved"]
    assert (folder / "users.toml.moved").read_text() == text


async def test_a_key_is_looked_up_in_the_file_only_after_a_change(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_backend(configure(home, None)) as backend:
        users = produce_users(backend)
        ada, bob = await users.add("ada"), await users.add("bob")
        assert await users.find(ada) == "ada"
        opened: list[Path] = []
        monkeypatch.setattr(server_users, "open_database", opened.append)
        assert await users.find(ada) == "ada"
        assert opened == []
        monkeypatch.undo()
        # In the same moment, and without a change to the size of the file.
        assert await users.rotate("ada") != ada
        assert await users.find(ada) is None
        assert await users.find(bob) == "bob"


async def test_a_file_that_another_process_locks_holds_up_nobody_who_is_known(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_users, "_LOCK_SECONDS", 0.5)
    async with opened_backend(configure(home, None)) as backend:
        users = produce_users(backend)
        ada = await users.add("ada")
        assert await users.find(ada) == "ada"
        with closing(sqlite3.connect(home / "server" / "users.sqlite")) as other:
            other.execute("begin exclusive")
            stranger = asyncio.create_task(users.find("vl-unknown"))
            await asyncio.sleep(0)
            assert await users.find(ada) == "ada"
            assert not stranger.done()
            with pytest.raises(StorageUnavailable, match="another process"):
                await stranger


async def test_what_one_server_changes_holds_for_the_next_request_at_another(
    backends: list[Backend],
) -> None:
    one, other, *_ = map(produce_users, backends)
    first, bob = await one.add("ada"), await one.add("bob")
    assert await other.find(first) == "ada"
    assert await other.find(bob) == "bob"
    second = await one.rotate("ada")
    assert (await other.find(first), await other.find(second)) == (None, "ada")
    assert [*await other.survey()] == ["ada", "bob"]
    await other.remove("ada")
    assert await one.find(second) is None
    assert await one.find("vl-\ud800\0") is None
    with pytest.raises(RequestError, match="user 'bob' already exists"):
        await one.add("bob")
    with pytest.raises(RequestError, match="not a valid user name"):
        await one.add("../bob")
    for change in (one.rotate, one.remove, one.require):
        with pytest.raises(RequestError, match="user 'ada' not found"):
            await change("ada")
    assert first != await one.add("ada")


async def test_all_servers_have_the_same_secret(backends: list[Backend]) -> None:
    made = await asyncio.gather(*(produce_secrets(one).access() for one in backends))
    assert len({*made}) == 1
    assert len(made[0]) == 32
    assert await produce_secrets(backends[0]).access() == made[0]


async def test_another_server_finds_where_a_history_ends(
    backends: list[Backend], tmp_path: Path
) -> None:
    ada, bob = [Places.under(tmp_path / name) for name in ("ada", "bob")]
    first, second = [produce_continuations(one) for one in backends[:2]]
    one, other = first.open("ada", ada), second.open("ada", ada)
    stranger = second.open("bob", bob)
    place, later = ContinuationPlace("c1", "m1", b"s"), ContinuationPlace("c2", "m2", b"")
    assert await other.find(b"\0chain") is None
    await one.put(b"\0chain", place)
    assert await other.find(b"\0chain") == place
    assert await stranger.find(b"\0chain") is None
    await other.put(b"\0chain", later)
    assert await one.find(b"\0chain") == later
    for opened in (one, other, stranger):
        await opened.close()


async def test_no_history_ends_in_a_conversation_that_is_gone(
    backends: list[Backend], tmp_path: Path
) -> None:
    places = Places.under(tmp_path / "ada")
    archive = backends[0].open_archive("ada", places)
    continuations = produce_continuations(backends[0]).open("ada", places)
    for one in ("gone", "kept"):
        details = Details(model="scripted/demo", created=datetime.now(UTC))
        await archive.create(one, details, [UserCanister.from_text("Hi")])
        await continuations.put(one.encode(), ContinuationPlace(one, "m", b""))
    await archive.remove("gone")
    await continuations.forget("gone")
    assert await continuations.find(b"gone") is None
    assert await continuations.find(b"kept") == ContinuationPlace("kept", "m", b"")
    await continuations.close()
    await archive.close()


def test_the_commands_manage_them(configuration: Configuration) -> None:
    key = invoke("users", "add", "ada", "--json").json["key"]
    assert invoke("users", "rotate", "ada").output.strip() not in ("", key)
    (row,) = invoke("users", "list", "--json").json
    assert row["name"] == "ada"
    assert invoke("users", "rm", "ada", "-y", "--json").json["cancelled_runs"] == 0
    assert invoke("users", "list", "--json").json == []
    assert configuration.budgets.users == {}


def test_a_user_of_another_store_is_kept_once(home: Path) -> None:
    file = UserFile(home / "users.sqlite")
    ada = User(hash_key("one"), datetime.now(UTC))
    assert [file.keep("ada", ada), file.keep("ada", ada)] == [True, False]
    assert file.keep("ada", User(hash_key("two"), ada.created))
    assert (file.find("one"), file.find("two")) == (None, "ada")


def test_the_database_shows_no_key_of_another_user_and_no_secret() -> None:
    with (
        temporary_database() as place,
        psycopg.connect(place.dsn, autocommit=True) as connection,
    ):
        connection.execute("select set_config('vibe.user', 'ada', false)")
        connection.execute("insert into vibe.users (owner, key_hash) values ('ada', 'x')")
        connection.execute("select set_config('vibe.user', 'bob', false)")
        assert connection.execute("select * from vibe.users").fetchall() == []
        assert connection.execute("update vibe.users set key_hash = 'y'").rowcount == 0
        assert connection.execute("select vibe.find_user('x')").fetchone() == ("ada",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select * from vibe.secrets")


async def test_a_login_is_known_to_all_servers_until_it_ends(backends: list[Backend]) -> None:
    users, stores = produce_users(backends[0]), [produce_logins(one) for one in backends]
    key = await users.add("ada")
    token, login = await stores[0].begin("ada", key, 60, "Laptop\0")
    assert (login.user, login.client) == ("ada", "Laptop")
    for one in stores:
        found = await one.find(token)
        assert found is not None
        assert (found.id, found.user, found.client) == (login.id, "ada", "Laptop")
        assert abs(found.expires - login.expires) < timedelta(milliseconds=1)
        assert await one.find(f"{token}x") is None
        assert await one.find("") is None
        assert [one.id for one in await one.survey("ada")] == [login.id]
        assert await one.survey("eve") == []
    later, _ = await stores[1].begin("eve", "", 60, "")
    assert [one.user for one in await stores[2].survey()] == ["eve", "ada"]
    await stores[3].end(login)
    assert [await one.find(token) for one in stores] == [None] * _SERVERS
    assert await stores[0].find(later) is not None


@pytest.mark.parametrize("change", ["rotate", "remove", "remove and add", "keep"])
async def test_a_login_ends_when_the_key_of_its_user_is_another(
    backends: list[Backend], change: str
) -> None:
    users, other = produce_users(backends[0]), produce_users(backends[1])
    logins = produce_logins(backends[2])
    key = await users.add("ada")
    token, _ = await logins.begin("ada", key, 60, "")
    by_code, _ = await logins.begin("ada", "", 60, "")
    assert await logins.find(token) is not None
    assert await logins.find(by_code) is not None
    if change == "rotate":
        await other.rotate("ada")
    elif change == "keep":
        await other.keep("ada", User(hash_key("another"), datetime.now(UTC)))
    else:
        await other.remove("ada")
    if change == "remove and add":
        await other.add("ada")
    assert [await logins.find(one) for one in (token, by_code)] == [None, None]
    assert await logins.survey() == []
    # The old key begins nothing, even if it was checked before it was replaced.
    late, _ = await logins.begin("ada", key, 60, "")
    assert await logins.find(late) is None


async def test_a_user_without_a_key_is_logged_in_until_there_is_one(
    backends: list[Backend],
) -> None:
    users, logins = produce_users(backends[0]), produce_logins(backends[1])
    token, _ = await logins.begin(LOCAL, "", 60, "")
    assert await logins.find(token) is not None
    await users.add_first()
    assert await logins.find(token) is None


async def test_of_many_logins_the_newest_are_kept(backends: list[Backend]) -> None:
    logins = produce_logins(backends[0])
    late, _ = await logins.begin("ada", "", -1, "")
    assert await logins.find(late) is None
    tokens = [(await logins.begin("ada", "", 60, ""))[0] for _ in range(MOST_LOGINS + 2)]
    found = [await logins.find(one) for one in tokens]
    assert [one is not None for one in found] == [False, False, *[True] * MOST_LOGINS]
    assert len(await logins.survey("ada")) == MOST_LOGINS


async def test_a_file_of_users_from_before_there_were_logins_is_upgraded(home: Path) -> None:
    async with opened_backend(configure(home, None)) as backend:
        users = produce_users(backend)
        key = await users.add("ada")
        with closing(sqlite3.connect(home / "server" / "users.sqlite")) as database:
            database.execute("drop table logins")
            database.execute("pragma user_version = 1")
        assert await users.find(key) == "ada"
        token, _ = await produce_logins(backend).begin("ada", key, 60, "")
        found = await produce_logins(backend).find(token)
        assert found is not None
        assert found.user == "ada"


def test_a_change_of_several_statements_is_made_whole_or_not_at_all(home: Path) -> None:
    file = UserFile(home / "users.sqlite")
    file.add("ada")
    with suppress(KeyError), file.changing() as database:
        database.execute("delete from users where name = 'ada'")
        raise KeyError
    assert [*file.survey()] == ["ada"]
