"""The commands `serve` and `users`, as their users see them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from vibe_llms.base.configuration import load_configuration
from vibe_llms.runs.core import produce_store
from vibe_llms.runs.interfaces import Recipe, RunRecord, RunStatus
from vibe_llms.storage.backends import open_backend, opened_backend
from vibe_llms.storage.user_stores import produce_logins

CHAT = "/v1/chat/completions"
CANARY = "the-horse-of-Troy"


class Serving:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], first: str) -> None:
        self.process = process
        self.first = first
        self.url = first.split()[2].rstrip(";")
        self.key = ""

    def read_link(self) -> str:
        """The code in the link that `web` prints."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        note = self.process.stderr.readline()
        assert note.endswith(" this link, which works once and for 10 minutes:\n")
        address, _, code = self.process.stdout.readline().partition("/#code=")
        assert address == self.url
        return code.strip()

    def log_in(self, code: str) -> str:
        """The user whom a code logs in."""
        request = self.produce_request("/api/login", {"code": code})
        with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as response:
            user: str = json.load(response)["user"]
            return user

    def read_key(self) -> None:
        """Take the two lines that the first start prints."""
        assert self.process.stdout is not None
        address, key = (self.process.stdout.readline() for _ in range(2))
        assert address == f"export OPENAI_BASE_URL={self.url}/v1\n"
        found = re.fullmatch(r"export OPENAI_API_KEY=(vl-[\w-]{43})\n", key)
        assert found is not None
        self.key = found[1]

    def produce_request(self, path: str, body: Any = None) -> urllib.request.Request:
        """A request with the key."""
        data = json.dumps(body).encode() if body else None
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        return urllib.request.Request(f"{self.url}{path}", data, headers)

    def ask(self, path: str, **body: Any) -> int:
        """The status of a request."""
        request = self.produce_request(path, body)
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as response:
                response.read()
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def accepts(self) -> bool:
        """Whether it still takes connections."""
        try:
            return self.ask("/ready") in (200, 503)
        except OSError:
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Its status, and what it printed since."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=LONGEST_SECONDS)
        return self.process.returncode, output, errors


@contextmanager
def serving(*options: str, command: str = "serve", **variables: str) -> Iterator[Serving]:
    port = [] if "--port" in options or command == "web" else ["--port", "0"]
    with subprocess.Popen(
        [*COMMAND, command, *port, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        try:
            assert process.stderr is not None
            yield Serving(process, process.stderr.readline())
        finally:
            process.kill()


def test_the_first_start_prints_what_a_client_needs_and_no_later_one_does(home: Path) -> None:
    with serving() as server:
        server.read_key()
        assert server.ask("/v1/models") == 200
        assert server.end()[:2] == (0, "")
    key = server.key
    with serving() as again:
        again.key = key
        assert again.ask("/v1/models") == 200
        assert again.end()[:2] == (0, "")
    assert key.encode() not in (home / "server" / "users.sqlite").read_bytes()


def test_a_server_that_starts_with_the_lines_of_the_tutorial_refuses_its_own_requests(
    home: Path,
) -> None:
    with serving() as server:
        server.read_key()
        server.end()
    # As in a shell that has read server.env: the server starts again, at the same place.
    port = server.url.rpartition(":")[2]
    variables = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.key}
    with serving("--port", port, **variables) as again:
        again.key = server.key
        assert again.process.stderr is not None
        note = again.process.stderr.readline()
        assert f"openai: requests are sent to {server.url}/v1 (OPENAI_BASE_URL), " in note
        assert "which is this server" in note
        message = {"role": "user", "content": "Hello"}
        for model in ("openai/gpt-6.1-sol", "openai-chat/gpt-5.5"):
            assert again.ask(CHAT, model=model, messages=[message]) == 400
        assert again.ask(CHAT, model="scripted/demo", messages=[message]) == 200
        _, _, errors = again.end()
    assert errors.count("sent the request to itself") == 2


def test_the_page_is_opened_in_a_browser_that_is_logged_in(home: Path) -> None:
    home.mkdir()
    opened, browser = home / "opened", home / "browser"
    # It runs until the user closes it.
    lines = (
        "#!/bin/sh",
        f'printf "%s %s" "$$" "$1" > {opened}.new',
        f"mv {opened}.new {opened}",
        "exec sleep 600",
    )
    browser.write_text("\n".join(lines))
    browser.chmod(0o700)
    with serving("--port", "0", command="web", BROWSER=f"{browser} %s") as server:
        code = server.read_link()
        deadline = time.monotonic() + LONGEST_SECONDS
        while not opened.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process, address = opened.read_text().split()
        try:
            assert address == f"{server.url}/#code={code}"
            assert server.log_in(code) == "local"
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(timeout=LONGEST_SECONDS) == 0
        finally:
            os.kill(int(process), signal.SIGKILL)
    # No key was made, because nobody has seen one.
    assert invoke("users", "list", "--json").json == []


def test_without_a_screen_the_link_is_only_printed(home: Path) -> None:
    none = {"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with serving("--port", "0", command="web", **none) as server:
        assert server.log_in(server.read_link()) == "local"
        assert server.end() == (0, "", "")


def test_the_page_takes_a_free_port_if_its_own_is_in_use(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        home.mkdir()
        # Other machines do not reach the page.
        (home / "config.toml").write_text(f'[server]\nhost = "0.0.0.0"\nport = {port}\n')
        with serving("--no-open", command="web") as server:
            assert server.first == f"port {port} is in use; taking a free one\n"
            assert server.process.stderr is not None
            server.url = server.process.stderr.readline().split()[2].rstrip(";")
            assert server.url.startswith("http://127.0.0.1:")
            assert server.log_in(server.read_link()) == "local"
            assert server.end()[0] == 0
        status, _, errors = invoke("web", "--no-open", "--port", port)
        assert status == 2
        assert "the port is in use; choose another: --port" in errors


def test_a_page_that_is_turned_off_is_not_opened(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[server]\npage = false\n")
    status, _, errors = invoke("web")
    assert (status, errors) == (
        2,
        "vibe-llms: the web page is turned off; set page = true in [server]\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_with_status_0(number: signal.Signals) -> None:
    with serving("--no-key", "--quiet") as server:
        assert server.ask("/health") == 200
        assert server.end(number) == (0, "", "")


def test_a_second_signal_ends_it_at_once(home: Path) -> None:
    home.mkdir()
    script = home / "stall.toml"
    script.write_text('[[replies]]\nparts = [{ text = "first " }, { stall = true }]\n')
    (home / "config.toml").write_text(
        f'[server]\nshutdown-seconds = 600\n[providers.scripted.scripts]\nstall = "{script}"\n'
    )
    with serving("--no-key", "--quiet") as server:
        message = {"role": "user", "content": "Hello"}
        body = {"model": "scripted/stall", "messages": [message], "stream": True}
        with urllib.request.urlopen(server.produce_request(CHAT, body)) as response:
            assert response.readline().startswith(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            while server.accepts():
                pass
            assert server.process.poll() is None
            assert server.end() == (0, "", "")


def test_the_log_has_neither_content_nor_keys(home: Path) -> None:
    with serving() as server:
        server.read_key()
        body = {"model": "scripted/demo", "messages": [{"role": "user", "content": CANARY}]}
        assert server.ask(CHAT, **body) == 200
        assert server.ask(f"/v1/models/{CANARY}") == 404
        assert server.ask(f"/{CANARY}?key={CANARY}") == 404
        assert server.ask(CHAT, model=CANARY) == 400
        status, output, errors = server.end()
    assert (status, output) == (0, "")
    # What the first start says may be read with its first line.
    lines = [line for line in errors.splitlines() if " ms " in line]
    assert [line.split()[1:4] for line in lines] == [
        ["POST", CHAT, "200"],
        ["GET", "/v1/models/{model...}", "404"],
        ["GET", "other", "404"],
        ["POST", CHAT, "400"],
    ]
    assert CANARY not in errors
    assert server.key not in errors


def test_each_request_is_a_line_with_its_time_and_the_identity_that_its_client_gets() -> None:
    asked, began = [], datetime.now(UTC)
    with serving("--no-key") as server:
        message = {"role": "user", "content": "Hello"}
        for body in (
            {"model": "scripted/demo", "messages": [message]},
            {"model": "scripted/demo", "messages": [message], "stream": True},
            {"model": "nope", "messages": [message]},
        ):
            request = server.produce_request(CHAT, body)
            try:
                with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as response:
                    response.read()
                    asked.append(response.headers["x-request-id"])
            except urllib.error.HTTPError as error:
                asked.append(error.headers["x-request-id"])
        assert server.ask("/ready") == 200
        errors = server.end()[2]
    lines = [line.split() for line in errors.splitlines() if " ms " in line]
    assert [line[6] for line in lines] == asked
    assert len({*asked}) == 3
    assert all(began <= datetime.fromisoformat(line[0]) <= datetime.now(UTC) for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--no-key", "--host", "0.0.0.0"), "without keys the server listens on this machine only"),
        (("--host", "192.0.2.1"), "this machine does not have the address"),
        (("--host", "no-such-host.invalid"), "it is not an address of this machine"),
        (("--port", "65536"), "is not in the range"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line(
    home: Path, options: tuple[str, ...], words: str
) -> None:
    outcome = invoke("serve", *options)
    assert (outcome.status, outcome.output) == (2, "")
    assert words in outcome.error
    assert not home.exists()


def test_a_wrong_agent_is_one_line_that_names_its_row_and_key(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[agents.clerk]\nensembles = ["pyton"]\n')
    outcome = invoke("serve", "--port", "0")
    assert (outcome.status, outcome.output) == (78, "")
    assert (
        f"{home}/config.toml, [agents.clerk], key 'ensembles': 'pyton' not found" in outcome.error
    )
    assert not (home / "server").exists()


def test_users_are_added_listed_rotated_and_removed(home: Path) -> None:
    assert invoke("users", "list").errors.startswith("no users;")
    assert invoke("users", "list", "--json").json == []
    added = invoke("users", "add", "ada")
    assert re.fullmatch(r"vl-[\w-]{43}\n", added.output)
    rotated = invoke("users", "rotate", "ada", "--json").json
    assert rotated["name"] == "ada"
    assert rotated["key"] != added.output.strip()
    (listed,) = invoke("users", "list", "--json").json
    assert listed["name"] == "ada"
    assert re.fullmatch(r"ada  \d{4}-\d\d-\d\d\n", invoke("users", "list").output)
    assert invoke("users", "rm", "ada", "-y") == (0, "", "removed ada\n")
    assert invoke("users", "list", "--json").json == []


def begin_login(user: str, client: str) -> None:
    """Log a browser in, as a server does."""

    async def begin() -> None:
        async with opened_backend(load_configuration()) as backend:
            await produce_logins(backend).begin(user, "", 60, client)

    asyncio.run(begin())


def test_sessions_are_listed_and_ended(home: Path) -> None:
    assert invoke("users", "sessions").errors.startswith("no sessions;")
    assert invoke("users", "sessions", "--json").json == []
    invoke("users", "add", "ada")
    begin_login("ada", "Laptop")
    begin_login("ada", "Phone \x1b[2J")
    begin_login("local", "Desk")
    listed = invoke("users", "sessions", "--json").json
    assert [one["client"] for one in listed] == ["Desk", "Phone [2J", "Laptop"]
    desk, phone, laptop = (one["id"] for one in listed)
    times = r"since \d{4}-\d\d-\d\d \d\d:\d\d, until \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    lines = invoke("users", "sessions", "ada").output.splitlines()
    assert re.fullmatch(rf"{phone}  ada  {times} Phone \[2J", lines[0])
    assert re.fullmatch(rf"{laptop}  ada  {times} Laptop", lines[1])
    assert len(lines) == 2
    # Of two, one of which is another user's, none is ended.
    status, _, errors = invoke("users", "sessions", "ada", "--end", phone, "--end", desk)
    assert status == 2
    assert errors == (f"vibe-llms: session '{desk}' not found; see: vibe-llms users sessions ada\n")
    assert len(invoke("users", "sessions", "--json").json) == 3
    ended = invoke("users", "sessions", "--end", phone, "--end", desk)
    assert ended.errors == (
        f"ended the session {desk} of local\nended the session {phone} of ada\n"
    )
    assert [one["id"] for one in invoke("users", "sessions", "--json").json] == [laptop]
    assert invoke("users", "sessions", "local", "--json").json == []
    assert invoke("users", "sessions", "ada", "--end", laptop, "--json").json[0]["user"] == "ada"
    assert invoke("users", "sessions", "eve").status == 2


def test_what_a_removed_user_leaves_is_said_and_who_gets_it(home: Path) -> None:
    invoke("users", "add", "ada")
    folder = home / "users" / "ada"
    folder.mkdir(parents=True)
    invoke("users", "add", "eve")
    (home / "users" / "eve").mkdir()
    removed = invoke("users", "rm", "eve", "-y", "--json").json
    assert removed == {
        "name": "eve",
        "cancelled_runs": 0,
        "folder": str(home / "users" / "eve"),
    }
    assert f"rm -r {folder}" in invoke("users", "rm", "ada", "-y").errors
    assert folder.exists()
    assert "an earlier user had this name" in invoke("users", "add", "ada").errors
    invoke("users", "add", "local")
    removed = invoke("users", "rm", "local", "-y").errors
    assert removed == "removed local; the conversations of this command are kept\n"


def test_the_runs_of_a_removed_user_are_cancelled(home: Path) -> None:
    now = datetime.now(UTC)
    kept = RunRecord(
        identity="r",
        user="ada",
        conversation="c",
        status=RunStatus.QUEUED,
        recipe=Recipe(model="scripted/demo"),
        prompt=b"",
        created=now,
        updated=now,
    )

    async def survey(*records: RunRecord) -> list[RunStatus]:
        store = produce_store(open_backend(load_configuration()))
        for record in records:
            await store.create(record)
        found = [one.status for user in ("ada", "eve") for one in await store.survey(user)]
        await store.close()
        return found

    invoke("users", "add", "ada")
    asyncio.run(survey(kept, replace(kept, user="eve")))
    assert invoke("users", "rm", "ada", "-y").errors == "cancelled 1 run\nremoved ada\n"
    assert asyncio.run(survey()) == [RunStatus.CANCELLED, RunStatus.QUEUED]
    invoke("users", "add", "eve")
    removed = {"name": "eve", "cancelled_runs": 1, "folder": None}
    assert invoke("users", "rm", "eve", "-y", "--json").json == removed
    assert asyncio.run(survey()) == [RunStatus.CANCELLED, RunStatus.CANCELLED]


@pytest.mark.parametrize("name", ["", "Ada", "../ada", "a b", "-a", "a" * 65, "ä"])
def test_a_bad_name_is_refused(home: Path, name: str) -> None:
    outcome = invoke("users", "add", "--", name)
    assert outcome.status == 2
    assert "is not a valid user name" in outcome.error
    assert not (home / "server" / "users.sqlite").exists()


@pytest.mark.parametrize("command", [("rotate",), ("rm",), ("rm", "-y")])
def test_a_user_who_is_not_there_is_an_error(home: Path, command: tuple[str, ...]) -> None:
    outcome = invoke("users", *command, "eve")
    assert outcome.status == 2
    assert "user 'eve' not found" in outcome.error


def test_a_user_is_not_removed_without_being_asked(home: Path) -> None:
    invoke("users", "add", "ada")
    assert invoke("users", "rm", "ada").status == 2
    assert invoke("users", "add", "ada").error.endswith("a new key: vibe-llms users rotate ada")
    assert len(invoke("users", "list", "--json").json) == 1
