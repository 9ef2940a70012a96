"""The command `archive copy`: between a home folder and PostgreSQL, for all users."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND
from tests.fakes.objects import BucketServer, access_bucket_server
from tests.fakes.postgres import TestDatabase, temporary_database
from tests.faults.archives import FAST, produce_details, say
from vibe_llms.base.configuration import load_configuration
from vibe_llms.cli.archive_copy import find_backend
from vibe_llms.memory.entries import GLOBAL, Entry, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.runs.core import produce_store
from vibe_llms.runs.interfaces import Recipe, RunRecord, RunStatus
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.home import HomeBackend
from vibe_llms.storage.objects import BucketSettings
from vibe_llms.storage.user_stores import produce_users
from vibe_llms.storage.users import UserFile, find_users


def write_configuration(home: Path, place: TestDatabase, bucket: BucketSettings) -> None:
    """Name PostgreSQL, with a bucket for large contents."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f"{place.table}[archive.contents]\n"
        'module = "vibe_llms.storage.objects"\n'
        f'bucket = "{bucket.bucket}"\nendpoint = "{bucket.endpoint}"\nregion = "us-east-1"\n'
        "least-bytes = 2000\nskip-signature = true\n"
    )


@pytest.fixture
def archive(home: Path, place: TestDatabase) -> None:
    write_configuration(home, place, access_bucket_server().produce_bucket())


def fill(folder: Path, count: int = 3) -> DirectoryArchive:
    """The files of a user."""
    archive = DirectoryArchive(folder, FAST)
    for number in range(count):
        picture = ImageContent(bytes([number % 256]) * 3_000, "image/png")
        said = [*say(f"number {number}"), UserCanister((TextualContent("look"), picture))]
        archive.create_now(f"conversation{number:04}", produce_details(), said)
    archive.upload_now(b"uploaded", "notes.txt", "text/plain")
    memory = MemoryFiles(folder / "memory", durable=False)
    for number, scope in enumerate((GLOBAL, Scope.of_user("me"))):
        with memory.changing(scope):
            fact = f"A fact of {scope}."
            memory.write(
                Entry(
                    content=fact, identity=f"fact{number}", scope=scope, created=datetime.now(UTC)
                )
            )
    return archive


def read_files(folder: Path) -> dict[str, bytes]:
    """What of a home is copied, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and {"conversations", "content", "files", "facts"} & {*path.relative_to(folder).parts}
        # What a kill left behind goes with a collection.
        and not any(part.startswith(".new-") for part in path.parts)
        # The MIME type in it is a hint.
        and not (path.name == "metadata.toml" and "content" in path.parts)
    }


async def find_users_of(place: str, keys: Iterable[str]) -> list[str | None]:
    """The names of those who have keys."""
    backend = find_backend(place, load_configuration())
    try:
        return [await produce_users(backend).find(key) for key in keys]
    finally:
        await backend.close()


@pytest.mark.usefixtures("archive")
def test_all_users_are_copied_to_the_database_and_to_another_home(
    home: Path, tmp_path: Path
) -> None:
    fill(home)
    fill(home / "users" / "ada", 2)
    before = read_files(home)
    store = find_users(load_configuration())
    keys = {name: store.add(name) for name in ("ada", "local")}
    outcome = invoke("archive", "copy", "home", "archive")
    assert (outcome.status, outcome.output.splitlines()) == (
        0,
        [
            f"{user}: copied {count} of {count} conversations, 1 of 1 files, 2 of 2 memories, "
            f"1 of 1 keys, {count + 1} contents (0.0 MB)"
            for user, count in (("local", 3), ("ada", 2))
        ],
    )
    assert read_files(home) == before
    other = tmp_path / "other"
    found = invoke("archive", "copy", "archive", str(other), "--json").json
    assert found["problems"] == []
    assert {one["user"]: one["copied_conversations"] for one in found["users"]} == {
        "ada": 2,
        "local": 3,
    }
    assert read_files(other) == before
    assert not (other / "users" / "local").exists()
    # Their keys are valid in all three places.
    assert store.survey() == UserFile(other / "server" / "users.sqlite").survey()
    for place in ("archive", "home", str(other)):
        assert asyncio.run(find_users_of(place, keys.values())) == [*keys]
    again = store.rotate("ada")
    assert "1 of 1 keys" in invoke("archive", "copy", "home", "archive").output
    assert asyncio.run(find_users_of("archive", [again, keys["ada"]])) == ["ada", None]
    # What the configuration names is used from now on.
    listed = {one["id"] for one in invoke("list", "--json").json}
    assert listed == {f"conversation{number:04}" for number in range(3)}


@pytest.mark.usefixtures("archive")
def test_a_second_copy_brings_what_is_new_and_names_what_was_continued_elsewhere(
    home: Path, tmp_path: Path
) -> None:
    source, other = fill(home), tmp_path / "other"
    invoke("archive", "copy", "home", "archive")
    source.append_now("conversation0001", say("more"), None)
    assert "copied 1 of 3 conversations" in invoke("archive", "copy", "home", "archive").output
    invoke("archive", "copy", "archive", str(other))
    DirectoryArchive(other, FAST).append_now("conversation0000", say("here"), None)
    source.append_now("conversation0002", say("more"), None)
    outcome = invoke("archive", "copy", "home", str(other))
    assert (outcome.status, outcome.output) == (
        1,
        "local: copied 1 of 3 conversations, 0 of 1 files, 0 of 2 memories\n",
    )
    assert "not copied: local: conversation0000: " in outcome.errors
    assert "the conversation was continued here" in outcome.errors
    (problem,) = invoke("archive", "copy", "home", str(other), "--json").json["problems"]
    assert problem["subject"] == "conversation0000"


@pytest.mark.usefixtures("archive")
def test_a_copy_that_is_killed_again_and_again_is_completed(
    home: Path, place: TestDatabase, tmp_path: Path
) -> None:
    fill(home, 60)
    before = read_files(home)
    other = tmp_path / "other"

    def count_rows() -> int:
        with psycopg.connect(place.admin_dsn) as connection:
            row = connection.execute("select count(*) from vibe.conversations").fetchone()
        return row[0] if row else 0

    def count_folders() -> int:
        return len([*(other / "conversations").glob("conversation*")])

    def copy_and_kill(source: str, target: str, count: Callable[[], int], least: int) -> bool:
        """Kill a copy once there are some conversations; returns whether it was not done."""
        arguments = [*COMMAND, "archive", "copy", source, target]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
            while count() < least and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGINT if least == 20 else signal.SIGKILL)
        return count() < 60

    broken = 0
    for source, target, count in (
        ("home", "archive", count_rows),
        ("archive", str(other), count_folders),
    ):
        for least in (1, 20):
            broken += copy_and_kill(source, target, count, least)
        (user,) = (found := invoke("archive", "copy", source, target, "--json").json)["users"]
        assert (found["problems"], user["conversations"]) == ([], 60)
        assert user["copied_conversations"] < 60
    assert broken, "no copy was killed in the middle"
    assert read_files(other) == before
    (user,) = invoke("archive", "copy", "home", str(other), "--json").json["users"]
    assert (user["copied_conversations"], user["copied_contents"]) == (0, 0)


@pytest.mark.usefixtures("archive")
def test_a_source_with_runs_that_have_not_ended_is_refused_at_the_end(home: Path) -> None:
    fill(home)
    assert invoke("archive", "copy", "home", "archive", "--final").status == 0
    now = datetime.now(UTC)
    record = RunRecord(
        identity="run",
        user="local",
        conversation="conversation0000",
        status=RunStatus.WAITING,
        recipe=Recipe(model="scripted/demo"),
        prompt=b"a prompt",
        created=now,
        updated=now,
    )

    async def start() -> None:
        store = produce_store(HomeBackend(load_configuration()))
        await store.create(record)
        await store.close()

    asyncio.run(start())
    outcome = invoke("archive", "copy", "home", "archive", "--final")
    assert outcome.status == 2
    assert "1 run has not ended in FROM" in outcome.error
    assert invoke("archive", "copy", "home", "archive").status == 0


def test_a_bucket_that_is_away_ends_a_copy_that_another_one_completes(
    home: Path, place: TestDatabase
) -> None:
    server = BucketServer()
    bucket = server.produce_bucket()
    fill(home)
    write_configuration(home, place, bucket)
    server.stop()
    outcome = invoke("archive", "copy", "home", "archive")
    assert outcome.status == 1
    assert "the bucket 'bucket-" in outcome.error
    assert "cannot be used now" in outcome.error
    server.start()
    try:
        (user,) = invoke("archive", "copy", "home", "archive", "--json").json["users"]
        assert (user["copied_conversations"], user["copied_contents"]) == (3, 4)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("home", "home", "FROM and TO are the same"),
        ("home", ".", "FROM and TO are the same"),
        ("elsewhere", "home", "'elsewhere' is not home, archive, a folder or a .toml file"),
        ("missing.toml", "home", "missing.toml"),
    ],
)
def test_places_that_make_no_sense_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str, words: str
) -> None:
    fill(home)
    monkeypatch.chdir(home)
    outcome = invoke("archive", "copy", source, target)
    assert outcome.status not in (0, 1)
    assert words in outcome.errors


def test_a_name_that_cannot_be_that_of_a_folder_is_refused(
    home: Path, place: TestDatabase, tmp_path: Path
) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(place.table)
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute(
            "insert into vibe.contents (owner, hash, size, data, present) "
            "values ('../evil', repeat('0', 64), 1, 'x', true)"
        )
    outcome = invoke("archive", "copy", "archive", str(tmp_path / "other"))
    assert outcome.status == 1
    assert "'../evil' is not a valid user name" in outcome.errors
    assert not (tmp_path / "other").exists()


def test_a_configuration_file_names_a_place_too(
    home: Path, place: TestDatabase, tmp_path: Path
) -> None:
    fill(home)
    file = tmp_path / "server.toml"
    file.write_text(place.table)
    file.chmod(0o600)
    assert "copied 3 of 3 conversations" in invoke("archive", "copy", "home", str(file)).output
    # This home still uses its files.
    assert "FROM and TO are the same" in invoke("archive", "copy", "home", "archive").errors


def test_a_database_that_is_not_migrated_or_away_is_one_error(home: Path) -> None:
    home.mkdir(exist_ok=True)
    DirectoryArchive(home, FAST).create_now("one", produce_details(), say("one"))
    with temporary_database(bare=True) as place:
        (home / "config.toml").write_text(place.table)
        outcome = invoke("archive", "copy", "home", "archive")
        assert outcome.status == 1
        assert "vibe-llms archive migrate" in outcome.errors
    outcome = invoke("archive", "copy", "home", "archive")
    assert (outcome.status, outcome.output) == (1, "")
    assert "the database cannot be used now" in outcome.errors
