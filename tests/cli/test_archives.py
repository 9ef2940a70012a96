"""The command `archive`, and the others over an archive in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import Outcome, invoke
from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from vibe_llms.storage.postgres import migrations
from vibe_llms.storage.postgres.migrations import Migration, survey_migrations


@pytest.fixture
def place(home: Path) -> Iterator[TestDatabase]:
    """A migrated database that the configuration of the home names."""
    with temporary_database() as made:
        configure(home, made.table)
        yield made


@pytest.fixture
def bare(home: Path) -> Iterator[TestDatabase]:
    """The same, not migrated."""
    with temporary_database(bare=True) as made:
        configure(home, made.table)
        yield made


def configure(home: Path, table: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(table)


def test_migrate_applies_what_is_missing_and_says_so(bare: TestDatabase) -> None:
    refused = invoke("list")
    assert refused.status == 1
    assert "vibe-llms archive migrate" in refused.errors
    names = [f"{one.number:04} {one.name}" for one in survey_migrations()]
    outcome = invoke("archive", "migrate")
    # It says which database that was.
    address = f"postgresql://{access_cluster().socket}:5432/{bare.name}"
    assert (outcome.status, outcome.errors) == (0, f"migrated {address}\n")
    assert outcome.output.splitlines() == [f"applied {name}" for name in names]
    again = invoke("archive", "migrate")
    assert (again.status, again.output) == (0, "")
    assert again.errors == f"nothing to do: {address} has this version\n"
    done = {"archive": address, "applied": [], "granted": []}
    assert invoke("archive", "migrate", "--json").json == done
    assert invoke("list").status == 0


def test_migrate_prints_the_steps_as_json(bare: TestDatabase) -> None:
    names = [f"{one.number:04} {one.name}" for one in survey_migrations()]
    printed = invoke("archive", "migrate", "--json").json
    assert (printed["applied"], printed["granted"]) == (names, [])


def test_files_need_no_migration(home: Path) -> None:
    outcome = invoke("archive", "migrate")
    assert (outcome.status, outcome.output) == (0, "")
    assert f"nothing to do: {home}" in outcome.errors
    assert not home.exists()


@pytest.mark.parametrize("command", [["archive", "migrate"], ["list"], ["users", "list"]])
@pytest.mark.parametrize("key", ["DSN", "ADMIN_DSN", "CONTENTS__BUCKET"])
def test_settings_of_a_database_without_its_module_are_an_error(
    key: str, command: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As under another home, or as another user.
    monkeypatch.setenv(f"VIBE_LLMS_ARCHIVE__{key}", "postgresql://owner@db.example.org/chat")
    outcome = invoke(*command)
    assert (outcome.status, outcome.output) == (78, "")
    assert 'add module = "vibe_llms.storage.postgres"' in outcome.errors
    (found, *_) = invoke("doctor", "--json").json
    assert 'add module = "vibe_llms.storage.postgres"' in found["text"]


def test_a_step_that_ends_older_programs_is_asked_for(
    place: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [*survey_migrations()]
    breaking = Migration(9999, "breaking", 9999, "select 1")
    monkeypatch.setattr(migrations, "_read_all", lambda: [*steps, breaking])
    refused = invoke("archive", "migrate")
    assert (refused.status, refused.output) == (2, "")
    assert f"(level {steps[-1].number}) cannot use the tables" in refused.errors
    assert "use -y to skip the question" in refused.errors
    with psycopg.connect(place.admin_dsn) as connection:
        rows = connection.execute("select max(number) from vibe.migrations").fetchall()
    assert rows == [(steps[-1].number,)]
    done = invoke("archive", "migrate", "-y")
    assert (done.status, done.output) == (0, "applied 9999 breaking\n")
    assert "cannot use the tables" in done.errors


def test_a_step_that_older_programs_work_with_is_not_asked_for(
    place: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [*survey_migrations()]
    gentle = Migration(9999, "gentle", steps[-1].number, "select 1")
    monkeypatch.setattr(migrations, "_read_all", lambda: [*steps, gentle])
    assert invoke("archive", "migrate").output == "applied 9999 gentle\n"


def test_migrate_grants_what_was_revoked(place: TestDatabase) -> None:
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("revoke insert, update on vibe.run_events from vibe_llms")
        connection.execute("revoke usage on sequence vibe.strands from vibe_llms")
        connection.execute("revoke execute on function vibe.find_user from vibe_llms")
    assert invoke("archive", "migrate").output.splitlines() == [
        "granted insert on vibe.run_events",
        "granted update on vibe.run_events",
        "granted usage on vibe.strands",
        "granted execute on vibe.find_user(text)",
    ]
    assert "nothing to do" in invoke("archive", "migrate").errors


@pytest.mark.parametrize(
    ("dsn", "admin", "complaint"),
    [
        (
            "{app}",
            "",
            "[archive], key 'admin-dsn': migrations run as the role that owns",
        ),
        ("{nobody}", "{admin}", "create it: create role \"nobody\" login password '...'"),
        ("{admin}", "{admin}", "dsn and admin-dsn name the same role, 'postgres'"),
        ("{app}", "{app}", "dsn and admin-dsn name the same role, 'app'"),
        ("{app}", "{weak}", "grant create on database"),
        ("{app}", "postgresql://postgres@127.0.0.1:1/x", "the database cannot be used now"),
        ("{super}", "{admin}", "the role 'boss' is a superuser, so it sees the rows of all users"),
        ("{app}", "no connection string", "missing"),
    ],
)
def test_migrate_says_what_is_wrong_and_changes_nothing(
    dsn: str, admin: str, complaint: str, bare: TestDatabase, home: Path
) -> None:
    cluster = access_cluster()
    for name, rights in (("weak", ""), ("boss", "superuser")):
        cluster.execute(
            f"do $$ begin create role {name} login {rights}; "
            "exception when duplicate_object then null; end $$"
        )
    addresses = {
        "app": bare.dsn,
        "admin": bare.admin_dsn,
        "nobody": cluster.address(bare.name, "nobody"),
        "weak": cluster.address(bare.name, "weak"),
        "super": cluster.address(bare.name, "boss"),
    }
    text = f'[archive]\nmodule = "vibe_llms.storage.postgres"\ndsn = "{dsn}"\n'
    text += f'admin-dsn = "{admin}"\n' if admin else ""
    configure(home, text.format(**addresses))
    outcome = invoke("archive", "migrate")
    assert outcome.status in (1, 78)
    assert complaint in outcome.errors
    assert len(outcome.errors.splitlines()) == 1
    with psycopg.connect(bare.admin_dsn) as connection:
        found = connection.execute("select to_regnamespace('vibe')").fetchone()
    assert found == (None,)


@pytest.mark.parametrize("given", ["", "not-it"])
def test_a_wrong_password_is_one_error_that_does_not_show_it(
    given: str, place: TestDatabase, home: Path
) -> None:
    cluster = access_cluster()
    complaint = "password authentication failed for user" if given else "no password supplied"
    with cluster.guarded_role("secret") as role:
        dsn = cluster.address(place.name, role, given)
        configure(home, place.table.replace(place.dsn, dsn))
        for command in (
            ["list"],
            ["-m", "scripted/demo", "hello"],
            ["show", "-1"],
            ["memory", "list"],
        ):
            outcome = invoke(*command)
            assert (outcome.status, outcome.output) == (1, "")
            (line,) = outcome.errors.splitlines()
            assert complaint in line
            assert "check the user and the password" in line
            assert "not-it" not in line
        (found,) = invoke("doctor", "--json").json
        assert complaint in found["text"]
        assert "not-it" not in str(found)
        configure(home, place.table.replace(place.dsn, cluster.address(place.name, role, "secret")))
        assert invoke("hello there").status == 0
        (listed,) = invoke("list", "--json").json
        assert listed["messages"] == 2
        assert invoke("doctor").status == 0


def test_migrate_with_a_wrong_password_changes_nothing(bare: TestDatabase, home: Path) -> None:
    cluster = access_cluster()
    with cluster.guarded_role("secret", "superuser") as role:

        def migrate(password: str) -> Outcome:
            admin = cluster.address(bare.name, role, password)
            configure(home, bare.table.replace(bare.admin_dsn, admin))
            return invoke("archive", "migrate")

        refused = migrate("not-it")
        assert refused.status == 1
        (line,) = refused.errors.splitlines()
        assert f'password authentication failed for user "{role}"' in line
        assert "not-it" not in line
        with psycopg.connect(bare.admin_dsn) as connection:
            found = connection.execute("select to_regnamespace('vibe')").fetchone()
        assert found == (None,)
        assert migrate("secret").status == 0
        assert invoke("list").status == 0
        # What it owns would keep it.
        cluster.drop(bare.name)


def test_a_newer_database_is_left_as_it_is(place: TestDatabase) -> None:
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("insert into vibe.migrations values (9998, 'later', 1)")
    assert "nothing to do" in invoke("archive", "migrate").errors
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("insert into vibe.migrations values (9999, 'breaking', 9999)")
    outcome = invoke("archive", "migrate")
    assert outcome.status == 1
    assert "needs a newer version of vibe-llms" in outcome.errors


def test_the_commands_work_on_a_database_as_on_files(place: TestDatabase, home: Path) -> None:
    assert invoke("--name", "harbor walk", "tell me of the harbor").status == 0
    assert invoke("-c", "and of the lighthouse").status == 0
    (listed,) = invoke("list", "--json").json
    identity = listed["id"]
    assert (listed["name"], listed["messages"]) == ("harbor walk", 4)
    shown = invoke("show", "harbor", "--json").json
    assert len(shown["messages"]) == 4
    assert "lighthouse" in invoke("show", identity).output
    found = invoke("search", "lighthouse", "--json").json
    assert {one["conversation"] for one in found} == {identity}
    fork = invoke("fork", "harbor", "--json").json
    assert fork["messages"] == 4
    assert invoke("rename", fork["id"], "the twin").status == 0
    assert invoke("tag", "twin", "later").status == 0
    (tagged,) = invoke("list", "--tag", "later", "--json").json
    assert (tagged["name"], tagged["forked_from"]) == ("the twin", identity)
    assert "lighthouse" in invoke("export", "twin").output
    assert "lighthouse" in invoke("export", "twin", "--format", "html").output
    assert "no conversation named 'zz'" in invoke("show", "zz").errors
    assert invoke("rm", "-y", "harbor walk").status == 0
    assert [one["name"] for one in invoke("list", "--json").json] == ["the twin"]
    assert len(invoke("show", "-1", "--json").json["messages"]) == 4
    assert invoke("search", "harbor", "--json").json
    assert not (home / "conversations").exists()
