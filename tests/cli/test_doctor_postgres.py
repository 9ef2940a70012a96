"""The command `doctor` over a database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
import tomli_w

from tests.cli.command import invoke
from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from tests.faults.outages import full, read_only
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


def assert_sound(*options: str) -> None:
    """It finds nothing, and says where it has looked."""
    outcome = invoke("doctor", *options)
    assert (outcome.status, outcome.output) == (0, "")
    checked, found = outcome.errors.splitlines()
    assert checked.startswith("checking postgresql:")
    assert "config.toml" in checked
    assert found == "no problems found"


def change(place: TestDatabase, statement: str) -> None:
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute(statement.encode())


def test_a_sound_database_is_called_so(place: TestDatabase, home: Path) -> None:
    assert_sound()
    assert invoke("tell me something").status == 0
    assert invoke("fork", "--", "-1").status == 0
    assert invoke("-c", "and more").status == 0
    assert invoke("memory", "add", "Ada keeps bees.").status == 0
    (home / "picture.png").write_bytes(make_png(2_000))
    assert invoke("-a", str(home / "picture.png"), "what is this").status == 0
    assert_sound()
    assert_sound("--repair")


def test_each_damage_is_found(place: TestDatabase) -> None:
    assert invoke("-s", "x" * 3_000, "hello").status == 0
    assert invoke("another").status == 0
    change(place, "update vibe.messages set line = 'broken' where position = 0")
    change(place, "update vibe.contents set data = 'other'")
    found = find()
    assert sum("this line (6 bytes) cannot be read" in one for one in found) == 2
    assert sum("no longer matches its hash" in one for one in found) == 1
    assert invoke("doctor").status == 1
    change(place, "delete from vibe.content_uses; delete from vibe.contents")
    change(
        place,
        "update vibe.conversations set format = 2, "
        "metadata = replace(metadata, 'format = 1', 'format = 2') where messages = 2",
    )
    assert any("written by a newer version of vibe-llms" in one for one in find())


def test_a_content_that_is_missing_is_found(place: TestDatabase) -> None:
    assert invoke("-s", "x" * 3_000, "hello").status == 0
    change(place, "delete from vibe.content_uses; delete from vibe.contents")
    (found,) = find()
    assert "needs this content, but it is missing" in found
    assert "restore a backup into another database, and copy these rows" in found


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
    assert scopes.endswith('drop policy "all_rows" on vibe.memory_scopes')
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
    assert "no front matter between two lines `---`" in found
    assert found.endswith("and copy this row from its vibe.memory_entries")
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
    assert any("module 'nonesuch' not found" in one for one in find())


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
    assert f" it has {left} of its 2 messages restore a backup" in found


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
    assert_sound()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("revoke insert on vibe.run_events from vibe_llms", "insert on vibe.run_events"),
        ("revoke all on vibe.messages, vibe.runs from vibe_llms", "select on vibe.runs and 6 more"),
        ("revoke execute on function vibe.claim_run from vibe_llms", "execute on vibe.claim_run("),
        ("revoke usage on schema vibe from vibe_llms", "permission denied for schema vibe"),
        ("revoke vibe_llms from app", "permission denied for schema vibe"),
    ],
)
def test_a_right_that_was_revoked_is_found_and_granted_again(
    damage: str, problem: str, place: TestDatabase
) -> None:
    change(place, damage)
    try:
        found = find()[0]
        assert problem in found
        assert found.rstrip().endswith("vibe-llms archive migrate")
    finally:
        assert invoke("archive", "migrate").status == 0
    assert find() == []


def test_a_database_that_takes_no_row_is_found(place: TestDatabase) -> None:
    with full(place):
        (found,) = find()
        assert "No space left on device; free space on its disk" in found
    with read_only(place):
        (found,) = find()
        assert "connect to a server that accepts writes" in found
    assert find() == []


@pytest.mark.parametrize("rights", ["superuser", "bypassrls in role vibe_llms", "in role postgres"])
def test_as_another_role_only_the_role_is_wrong(
    rights: str, place: TestDatabase, home: Path
) -> None:
    cluster = access_cluster()
    cluster.execute(f"create role other login {rights}")
    try:
        (home / "config.toml").write_text(place.table.replace("//app@", "//other@"))
        (found,) = find()
        assert "the role 'other'" in found
        assert found.endswith("name it in dsn, and run: vibe-llms archive migrate")
        # What it says is done.
        (home / "config.toml").write_text(place.table)
        assert invoke("archive", "migrate").status == 0
        assert find() == []
    finally:
        cluster.execute("drop role other")


def test_what_is_lost_comes_back_from_a_backup_and_nothing_else_is_lost(
    place: TestDatabase,
) -> None:
    """As the advice says: missing rows are copied from a backup in another database."""
    assert invoke("-s", "x" * 3_000, "hello").status == 0
    assert invoke("memory", "add", "Ada keeps bees.").status == 0
    cluster, backup = access_cluster(), f"{place.name}_backup"
    cluster.execute(f"create database {backup} template {place.name}")
    try:
        assert invoke("said after the backup").status == 0
        later = invoke("list", "--json").json[0]["id"]
        for damage, tables in (
            ("delete from vibe.messages where position = 0", ("messages",)),
            ("update vibe.messages set line = 'broken' where position = 1", ("messages",)),
            ("delete from vibe.content_uses; delete from vibe.contents", _CONTENTS),
            ("update vibe.contents set data = 'other'", _CONTENTS),
            ("update vibe.memory_entries set data = 'broken'", ("memory_entries",)),
            (_FORGET_SCOPES, ("memory_scopes",)),
        ):
            change(place, damage)
            # What was said after the backup is in none.
            found = [one for one in find() if later not in one]
            assert found
            assert all(f"vibe.{table}" in one for one in found for table in tables), found
            assert all("restore a backup into another database, and copy" in one for one in found)
            for table in tables:
                copy_rows(cluster.address(backup), place.admin_dsn, table)
            assert [one for one in find() if later not in one] == [], damage
        assert len(invoke("list", "--json").json) == 2
    finally:
        cluster.drop(backup)


_CONTENTS = ("contents", "content_uses")
_FORGET_SCOPES = (
    "alter table vibe.memory_entries disable trigger all;"
    "alter table vibe.memory_scopes disable trigger all;"
    "delete from vibe.memory_scopes"
)


def copy_rows(source: str, target: str, table: str) -> None:
    """Replace the rows of a table that another database has too by those of that one."""
    with psycopg.connect(source) as one, psycopg.connect(target) as other:
        name = f"vibe.{table}".encode()
        with one.cursor().copy(b"copy %b to stdout" % name) as rows:
            data = b"".join(rows)
        other.execute(b"set session_replication_role = replica")
        other.execute(b"create temp table backup (like %b)" % name)
        with other.cursor().copy(b"copy backup from stdin") as rows:
            rows.write(data)
        (key,) = other.execute(
            "select pg_get_constraintdef(oid) from pg_constraint "
            "where contype = 'p' and conrelid = %s::regclass",
            (f"vibe.{table}",),
        ).fetchone() or ("",)
        columns = key.removeprefix("PRIMARY KEY ").encode()
        other.execute(
            b"delete from %b where %b in (select %b from backup)" % (name, columns, columns[1:-1])
        )
        other.execute(b"insert into %b overriding system value select * from backup" % name)


def test_an_object_that_is_lost_or_damaged_is_put_back(place: TestDatabase, home: Path) -> None:
    server = access_bucket_server()
    bucket = server.produce_bucket()
    contents = {"module": "vibe_llms.storage.objects", **msgspec.to_builtins(bucket)}
    archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn, "contents": contents}
    (home / "config.toml").write_text(tomli_w.dumps({"archive": archive}))
    assert invoke("-s", "x" * 3_000, "hello").status == 0
    key = f"{bucket.prefix}/local/{hashlib.sha256(b'x' * 3_000).hexdigest()}"
    for method, data in (("DELETE", None), ("PUT", b"other")):
        server.request(method, f"/{bucket.bucket}/{key}", data)
        (found,) = find()
        advice = f"copy the object {key} from a copy of the bucket, under the same name"
        assert found.endswith(advice)
        server.request("PUT", f"/{bucket.bucket}/{key}", b"x" * 3_000)
        assert find() == []
