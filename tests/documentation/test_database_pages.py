"""The pages about a database, executed from an empty cluster: set up, back up, restore, upgrade."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psycopg
import pytest
import tomli_w

from tests.cli.command import Outcome, invoke
from tests.documentation.pages import EXAMPLES
from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import Cluster, bare_cluster
from vibe_llms.storage.postgres import migrations
from vibe_llms.storage.postgres.migrations import Migration, survey_migrations

_HOW_TO = EXAMPLES.parent / "how-to"
_SET_UP = ("run-several-servers.md", "Set up the database")
_BACK_UP = ("copy-and-back-up-an-archive.md", "Back up PostgreSQL and the bucket")
_RESTORE = ("copy-and-back-up-an-archive.md", "Restore")
_HOME, _PROGRAM = "/var/lib/vibe-llms", "/opt/vibe-llms/bin/vibe-llms"


class Machine:
    """What the commands of the pages are run on."""

    def __init__(self, cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.roles = ["app", "owner", "vibe_llms"]
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        text = self._move((EXAMPLES / "config_several_servers.toml").read_text())
        tables = tomllib.loads(text)
        # The bucket of the page is one of AWS.
        tables["archive"]["contents"] |= msgspec.to_builtins(
            access_bucket_server().produce_bucket()
        )
        (self.home / "config.toml").write_text(tomli_w.dumps(tables))
        self._folder = folder
        self._monkeypatch = monkeypatch

    def _move(self, text: str) -> str:
        return text.replace("host=db.example.org", f"host={self.cluster.socket}")

    def execute(self, page: str, heading: str, *users: str) -> Sequence[Outcome]:
        """Run the commands below a heading of a page; only those of some users, if given."""
        section = (_HOW_TO / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
        commands = [shlex.split(line) for line in section.splitlines() if line[:8] == "sudo -u "]
        assert commands
        return [
            outcome
            for one in commands
            if not users or one[2] in users
            for outcome in self._run(one[2], one[3:])
        ]

    def _run(self, user: str, command: Sequence[str]) -> Iterator[Outcome]:
        if user == "postgres":
            # There is no terminal to type a password at.
            program, *arguments = (one for one in command if one != "--pwprompt")
            subprocess.run(
                [self.cluster.programs / program, *arguments],
                check=True,
                cwd=self._folder,
                env={"PGHOST": str(self.cluster.socket), "PGUSER": "postgres"},
            )
            return
        assert user == "vibe-llms"
        env, *rest = command
        assert env == "env"
        given = dict(one.split("=", 1) for one in rest if re.match(r"[A-Z_]+=", one))
        program, *arguments = rest[len(given) :]
        assert program == _PROGRAM
        assert given.pop("VIBE_LLMS_HOME") == _HOME
        yield self.run(*arguments, home=self.home, **given)

    def run(self, *arguments: str, home: Path, **given: str) -> Outcome:
        """Run a command of ours with some variables."""
        with self._monkeypatch.context() as patch:
            for name, value in {**given, "VIBE_LLMS_HOME": str(home)}.items():
                patch.setenv(name, self._move(value))
            return invoke(*arguments)

    def forget(self) -> None:
        """Make the cluster as empty as that of a new machine."""
        self.cluster.drop("chat")
        for role in self.roles:
            self.cluster.execute(f"drop role if exists {role}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with bare_cluster() as made:
        yield made


@pytest.fixture
def machine(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(cluster, tmp_path, monkeypatch)
    yield made
    made.forget()


_ADMIN: Mapping[str, str] = {
    "VIBE_LLMS_ARCHIVE__ADMIN_DSN": "host=db.example.org dbname=chat user=owner"
}


def test_a_database_is_set_up_backed_up_restored_and_upgraded_as_the_pages_say(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = machine.cluster
    made, sound, added = machine.execute(*_SET_UP)
    address = f"postgresql://{cluster.socket}:5432/chat"
    # A plain owner has made the tables.
    assert (made.status, made.errors) == (0, f"migrated {address}\n")
    assert (sound.status, sound.output) == (0, ""), sound
    assert f"checking {address} (named in {machine.home}/config.toml)" in sound.errors
    key = added.output
    assert key.startswith("vl-")

    # Another home has another configuration; that is not silent.
    elsewhere = machine.run("archive", "migrate", home=tmp_path / "elsewhere", **_ADMIN)
    assert elsewhere.status == 78
    assert "not used by an archive in files" in elsewhere.errors
    calm = machine.run("doctor", home=tmp_path / "elsewhere")
    assert (
        f"checking {tmp_path}/elsewhere ({tmp_path}/elsewhere/config.toml not found)" in calm.errors
    )
    # So are other roles.
    for role, complaint in (("owner", "the same role"), ("nobody", 'create role "nobody"')):
        dsn = f"host=db.example.org dbname=chat user={role}"
        wrong = {**_ADMIN, "VIBE_LLMS_ARCHIVE__DSN": dsn}
        refused = machine.run("archive", "migrate", home=machine.home, **wrong)
        assert refused.status == 1
        assert complaint in refused.errors
    dsn = "host=db.example.org dbname=chat user=owner"
    owner = machine.run("doctor", home=machine.home, VIBE_LLMS_ARCHIVE__DSN=dsn)
    assert owner.status == 1
    assert "the role 'owner' owns the tables" in owner.output
    assert "drop policy" not in owner.output

    assert machine.run("-s", "x" * 3_000, "hello", home=machine.home).status == 0
    before = machine.run("show", "-1", "--json", home=machine.home).json
    machine.execute(*_BACK_UP)
    machine.forget()
    migrated, sound = machine.execute(*_RESTORE)
    assert (migrated.status, migrated.output) == (0, "")
    assert migrated.errors == f"nothing to do: {address} has this version\n"
    assert sound.status == 0, sound
    assert machine.run("show", "-1", "--json", home=machine.home).json == before
    users = machine.run("users", "list", "--json", home=machine.home).json
    assert [one["name"] for one in users] == ["ada"]

    # The owner changes the restored tables, and lets another role use them.
    steps = [*survey_migrations()]
    text = "alter table vibe.contents add column later text"
    monkeypatch.setattr(
        migrations, "_read_all", lambda: [*steps, Migration(9999, "later", 8, text)]
    )
    cluster.execute("create role other login")
    machine.roles.insert(0, "other")
    dsn = "host=db.example.org dbname=chat user=other"
    other = {**_ADMIN, "VIBE_LLMS_ARCHIVE__DSN": dsn}
    upgraded = machine.run("archive", "migrate", home=machine.home, **other)
    assert (upgraded.status, upgraded.output.splitlines()) == (
        0,
        ["applied 9999 later", "granted vibe_llms to other"],
    )
    listed = machine.run("list", "--json", home=machine.home, VIBE_LLMS_ARCHIVE__DSN=dsn)
    assert len(listed.json) == 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("alter role owner nocreaterole", 'alter role "owner" createrole'),
        ("alter database chat owner to postgres", 'grant create on database "chat" to "owner"'),
        ("drop extension vector", "create extension vector"),
        (
            "create role vibe_llms nologin",
            'grant vibe_llms to "owner" with admin option',
        ),
    ],
)
def test_what_a_superuser_is_told_to_do_lets_the_owner_make_the_tables(
    damage: str, said: str, machine: Machine
) -> None:
    machine.execute(*_SET_UP, "postgres")
    with psycopg.connect(machine.cluster.address("chat"), autocommit=True) as connection:
        connection.execute(damage.encode())
        refused = machine.run("archive", "migrate", home=machine.home, **_ADMIN)
        assert refused.status == 1
        advice = refused.errors.rstrip().rpartition("in this database: ")[2]
        assert advice == said
        connection.execute(advice.encode())
    assert machine.run("archive", "migrate", home=machine.home, **_ADMIN).status == 0
