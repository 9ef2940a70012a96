"""`doctor` says what a server would stumble over, and what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.cli.command import invoke
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError, StorageError
from vibe_llms.runs.core import produce_store
from vibe_llms.server import inspection
from vibe_llms.server.settings import read_server_settings
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.users import find_users


@pytest.fixture
def server(home: Path) -> Path:
    """The folder of a server with a user."""
    find_users(load_configuration()).add("local")
    return home / "server"


def configure(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


def examine() -> list[tuple[str, str, str]]:
    """What `doctor` finds: the subject, the end of the path, and the text with its remedy."""
    outcome = invoke("doctor", "--json")
    assert outcome.status == (1 if outcome.json else 0)
    return [
        (one["subject"], Path(one["path"]).name, f"{one['text']}; {one['remedy']}")
        for one in outcome.json
    ]


async def count_runs() -> None:
    """Use the file of runs, which makes it."""
    store = produce_store(open_backend(load_configuration()))
    try:
        await store.survey("local")
    finally:
        await store.close()


def test_a_sound_server_has_no_problems(server: Path) -> None:
    configure(server.parent, '[server]\nhost = "0.0.0.0"\n[budgets.users.local]\ntokens = 5\n')
    assert examine() == []


def test_who_never_served_is_not_asked_for_packages(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        inspection, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    assert examine() == []
    configure(home, "[server]\nport = 0\n")
    assert examine() == [
        ("server", "server", "the server needs uvicorn; pip install 'vibe-llms[server]'")
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('host = "192.0.2.1"', "this machine does not have the address"),
        ('host = "no-such-host.invalid"', "it is not an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_used_is_found(server: Path, settings: str, words: str) -> None:
    configure(server.parent, f"[server]\n{settings}\n")
    ((subject, _, text),) = examine()
    assert subject == "server"
    assert words in text
    assert "host and port in [server]" in text


def test_the_port_of_a_running_server_is_no_problem(server: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        configure(server.parent, f"[server]\nport = {other.getsockname()[1]}\n")
        assert examine() == []


def test_a_first_start_that_others_reach_would_log_its_key(home: Path) -> None:
    configure(home, '[server]\nhost = "0.0.0.0"\nport = 0\n')
    ((subject, _, text),) = examine()
    assert subject == "users"
    assert "print a key to its log; vibe-llms users add local" in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("port = 70000", "<= 65535"),
        ("shutdown-seconds = -1", "shutdown-seconds"),
        ('allowed-hosts = ["https://chat.example.org"]', "write it like 'chat.example.org'"),
        ('allowed-hosts = ["Chat.example.org"]', "write it like 'chat.example.org'"),
        ('allowed-origins = ["chat.example.org"]', "write it like 'https://chat.example.org'"),
        ('allowed-origins = ["https://chat.example.org/"]', "write it like"),
        ('allowed-hots = ["a"]', "did you mean 'allowed-hosts'?"),
    ],
)
def test_wrong_settings_are_found_at_their_line(home: Path, settings: str, words: str) -> None:
    configure(home, f"[server]\n{settings}\n")
    ((subject, place, text),) = examine()
    assert (subject, place) == ("configuration", "config.toml:2")
    assert words in text
    with pytest.raises(ConfigurationError):
        read_server_settings(load_configuration())


def test_right_hosts_and_origins_are_accepted(home: Path) -> None:
    configure(
        home,
        '[server]\nallowed-hosts = ["chat.example.org", "my_server"]\n'
        'allowed-origins = ["http://localhost:3000", "http://[::1]:8080"]\n',
    )
    assert read_server_settings(load_configuration()).allowed_hosts[1] == "my_server"


def test_files_that_others_can_read_are_found_and_repaired(server: Path) -> None:
    (server / "users.sqlite").chmod(0o644)
    assert [one[:2] for one in examine()] == [("rights", "users.sqlite")]
    assert invoke("doctor", "--repair").status == 0
    assert examine() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ada]\nkey-hash = 1\n", "not a list of users"),
        ("x = \n", "not valid TOML"),
        (
            '["../ada"]\nkey-hash = "0"\ncreated = "2026-01-01T00:00:00Z"\n',
            "'../ada' is not a valid user name",
        ),
    ],
)
def test_a_broken_list_of_users_is_found(server: Path, text: str, words: str) -> None:
    (server / "users.toml").write_text(text)
    ((subject, place, found),) = examine()
    assert (subject, place) == ("users", "users.toml")
    assert words in found


def test_a_damaged_file_of_users_is_found(server: Path) -> None:
    (server / "users.sqlite").write_bytes(b"nonsense" * 1000)
    ((subject, place, found),) = examine()
    assert (subject, place) == ("users", "users.sqlite")
    assert "not a list of users: file is not a database" in found


def test_a_budget_of_no_user_is_found(server: Path) -> None:
    configure(server.parent, "[budgets.users.eve]\ntokens = 5\n")
    ((subject, place, text),) = examine()
    assert (subject, place) == ("budget", "budgets.users.eve")
    assert "vibe-llms users add eve" in text


def test_the_file_of_runs_is_checked(server: Path) -> None:
    asyncio.run(count_runs())
    assert examine() == []
    path = server / "runs.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("pragma user_version = 99")
    database.close()
    ((subject, place, text),) = examine()
    assert (subject, place) == ("runs", "runs.sqlite")
    assert "made by another version of vibe-llms (99;" in text
    path.write_text("no database at all, but long enough to be read as one")
    ((_, _, text),) = examine()
    assert "it cannot be read: file is not a database" in text
    assert "move the file away" in text


def test_a_network_file_system_is_refused(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("server.inspection", "runs.database"):
        monkeypatch.setattr(f"vibe_llms.{module}.find_network_mount", lambda _: "nfs4")
    ((subject, place, text),) = examine()
    assert (subject, place) == ("server", "server")
    assert "network file system (nfs4)" in text
    with pytest.raises(StorageError, match="network file system"):
        asyncio.run(count_runs())
    assert not (server / "runs.sqlite").exists()


def test_the_conversations_of_all_users_are_checked(server: Path) -> None:
    folder = server.parent / "users" / "ada" / "conversations" / "abcdefgh2345"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "metadata.toml").write_text("x = \n")
    assert any("users/ada/" in one["path"] for one in invoke("doctor", "--json").json)
