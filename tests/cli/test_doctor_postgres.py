"""The command `doctor` over a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
import tomli_w

from tests.cli.command import invoke
from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from tests.pictures import make_png


@pytest.fixture
def place(home: Path) -> Iterator[TestDatabase]:
    with temporary_database() as made:
        home.mkdir()
        (home / "config.toml").write_text(made.table)
        yield made


def find() -> list[str]:
    """What `doctor` finds: the subject, the path, and the text with its remedy."""
    outcome = invoke("doctor", "--json")
    members = ("subject", "path", "text", "remedy")
    return [" ".join(one[member] for member in members) for one in outcome.json]


def change(place: TestDatabase, statement: str) -> None:
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute(statement.encode())


def test_a_sound_database_is_called_so(place: TestDatabase, home: Path) -> None:
    assert invoke("doctor") == (0, "", "no problems found\n")
    assert invoke("tell me something").status == 0
    assert invoke("fork", "--", "-1").status == 0
    assert invoke("-c", "and more").status == 0
    assert invoke("memory", "add", "Ada keeps bees.").status == 0
    (home / "picture.png").write_bytes(make_png(2_000))
    assert invoke("-a", str(home / "picture.png"), "what is this").status == 0
    assert invoke("doctor") == (0, "", "no problems found\n")
    assert invoke("doctor", "--repair") == (0, "", "no problems found\n")


def test_each_damage_is_found(place: TestDatabase) -> None:
    assert invoke("-s", "x" * 3_000, "hello").status == 0
    assert invoke("another").status == 0
    change(place, "update vibe.messages set line = 'broken' where position = 0")
    change(place, "update vibe.contents set data = 'other'")
    found = find()
    assert sum("this line (6 bytes) cannot be read" in one for one in found) == 2
    assert sum("does not have its hash any more" in one for one in found) == 1
    assert invoke("doctor").status == 1
    change(place, "delete from vibe.content_uses; delete from vibe.contents")
    change(
        place,
        "update vibe.conversations set format = 2, "
        "metadata = replace(metadata, 'format = 1', 'format = 2') where messages = 2",
    )
    assert any("a newer version of vibe-llms wrote this" in one for one in find())


def test_a_content_that_is_missing_is_found(place: TestDatabase) -> None:
    assert invoke("-s", "x" * 3_000, "hello").status == 0
    change(place, "delete from vibe.content_uses; delete from vibe.contents")
    (found,) = find()
    assert "needs this content, but it is missing" in found
    assert "restore the database from a backup" in found


def test_rights_that_show_too_much_are_found(place: TestDatabase, home: Path) -> None:
    change(place, "alter table vibe.messages disable row level security")
    change(place, "alter table vibe.files disable row level security")
    places = [one.split()[:2] for one in find()]
    assert places == [["rights", "vibe.files"], ["rights", "vibe.messages"]]
    cluster = access_cluster()
    for statement in (
        "create role owner_of_tables nologin",
        "create role watcher login bypassrls in role vibe_llms",
        "grant postgres to watcher",
    ):
        cluster.execute(
            f"do $$ begin {statement}; exception when duplicate_object then null; end $$"
        )
    text = place.table.replace("//app@", "//watcher@")
    (home / "config.toml").write_text(text)
    assert "the role 'watcher' has BYPASSRLS" in find()[0]
    cluster.execute("alter role watcher nobypassrls")
    assert "the role 'watcher' owns the tables" in find()[0]
    cluster.execute("drop role watcher")
    cluster.execute("drop role owner_of_tables")


def test_policies_that_are_missing_or_show_too_much_are_found(place: TestDatabase) -> None:
    change(place, "drop policy owner on vibe.memory_tickets")
    change(place, "alter table vibe.memory_entries disable row level security")
    change(place, "create policy all_rows on vibe.memory_scopes using (true)")
    entries, scopes, tickets = find()
    assert entries.startswith("rights vibe.memory_entries its policies are not in force")
    assert scopes.startswith("rights vibe.memory_scopes a policy shows a user more")
    assert tickets.startswith("rights vibe.memory_tickets it has no policy")
    change(place, "drop policy all_rows on vibe.memory_scopes")
    for one in (entries, tickets):
        # The remedy is the end of it, and works.
        change(place, one[max(one.find("alter table"), one.find("create policy")) :])
    assert not find()


def test_entries_of_memory_that_cannot_be_read_are_found(place: TestDatabase) -> None:
    assert invoke("memory", "add", "Ada keeps bees.").status == 0
    assert invoke("memory", "add", "Ada has a boat.").status == 0
    assert not find()
    change(
        place,
        "update vibe.memory_entries set data = 'broken' where place = "
        "(select min(place) from vibe.memory_entries)",
    )
    (found,) = find()
    assert found.startswith("memory local/user-me/facts/")
    assert "it does not begin with front matter" in found
    assert found.endswith("restore the database from a backup")
    assert invoke("doctor").status == 1


def test_entries_of_memory_without_a_scope_are_found(place: TestDatabase) -> None:
    assert invoke("memory", "add", "Ada keeps bees.").status == 0
    assert invoke("Hello").status == 0
    change(
        place,
        "alter table vibe.memory_entries disable trigger all;"
        "alter table vibe.memory_scopes disable trigger all;"
        "delete from vibe.memory_scopes",
    )
    (found,) = find()
    assert found.startswith("memory local/user-me its entries are there, but the scope is not")


def test_vectors_without_their_extension_are_found(place: TestDatabase) -> None:
    change(place, "drop extension vector cascade")
    (found,) = find()
    assert found.startswith("memory vibe.memory_vectors it has no column for vectors")
    change(place, found[found.index("create extension") :])
    assert not find()


def test_a_database_that_cannot_be_used_is_one_problem(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        '[archive]\nmodule = "vibe_llms.storage.postgres"\ndsn = "postgresql://app@127.0.0.1:1/x"\n'
    )
    (found,) = find()
    assert "the database cannot be used now" in found
    with temporary_database(bare=True) as bare:
        (home / "config.toml").write_text(bare.table)
        (found,) = find()
        assert "vibe-llms archive migrate" in found
    (home / "config.toml").write_text(bare.table.replace("dsn", "dns"))
    assert any("did you mean 'dsn'?" in one for one in find())


def test_an_archive_module_that_cannot_be_used_is_named(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[archive]\nmodule = "nonesuch"\n')
    assert any("there is no module 'nonesuch'" in one for one in find())


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        ("delete from vibe.messages where position = 0", 1),
        ("delete from vibe.messages where position = 1", 1),
        ("delete from vibe.pieces", 0),
    ],
)
def test_messages_that_are_missing_are_found(damage: str, left: int, place: TestDatabase) -> None:
    assert invoke("hello").status == 0
    change(place, damage)
    (found,) = find()
    assert found.startswith("conversation local/")
    assert f" it has {left} of its 2 messages restore the database" in found


def test_a_bucket_that_cannot_be_used_is_found_before_anything_is_in_it(
    place: TestDatabase, home: Path
) -> None:
    server = access_bucket_server()
    bucket = server.produce_bucket(exists=False)
    contents = {"module": "vibe_llms.storage.objects", **msgspec.to_builtins(bucket)}
    archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn, "contents": contents}
    (home / "config.toml").write_text(tomli_w.dumps({"archive": archive}))
    (found,) = find()
    assert found.startswith(f"bucket archive.contents the bucket {bucket.bucket!r} at ")
    assert "create it, or correct [archive.contents]" in found
    server.make_bucket(bucket.bucket)
    assert invoke("doctor") == (0, "", "no problems found\n")
