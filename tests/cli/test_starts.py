"""What `serve` and `worker` print where what they keep cannot be used: at the start, and later."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from tests.cli.test_serving import Serving
from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from tests.faults.outages import Outage, change, closed, read_only
from vibe_llms.base.credentials import get_logger
from vibe_llms.cli.starts import warnings_printed


def configure(home: Path, dsn: str, **tables: Any) -> None:
    home.mkdir(exist_ok=True)
    archive = {"module": "vibe_llms.storage.postgres", "dsn": dsn, **tables}
    (home / "config.toml").write_text(tomli_w.dumps({"archive": archive}))


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, *command], stdout=pipe, stderr=pipe, text=True, env={**os.environ}
    ) as process:
        late = threading.Timer(LONGEST_SECONDS, process.kill)
        late.start()
        try:
            yield process
        finally:
            late.cancel()
            process.kill()


def read_to(process: subprocess.Popen[str], words: str) -> str:
    """The lines on stderr up to one that has some words."""
    assert process.stderr is not None
    lines = ""
    while words not in lines:
        line = process.stderr.readline()
        assert line, f"it has not printed {words!r}: {lines}"
        lines += line
    return lines


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its status, and what it printed since."""
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=LONGEST_SECONDS)
    return process.returncode, output, errors


@contextmanager
def changed(role: str, password: str) -> Iterator[None]:
    """The role has another password than programs give."""
    access_cluster().execute(f"alter role {role} password 'another'")
    yield
    access_cluster().execute(f"alter role {role} password '{password}'")


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["serve", "--no-key"], ["worker"]])
@pytest.mark.parametrize(
    ("bare", "complaint"),
    [
        (True, r"the database: .* the database is not migrated: vibe-llms archive migrate"),
        (False, r"the database has level 9999, which needs a newer version of vibe-llms \(.*\)"),
    ],
)
def test_a_database_of_another_level_is_one_line_and_the_end(
    bare: bool, complaint: str, command: list[str], home: Path
) -> None:
    with temporary_database(bare=bare) as place:
        configure(home, place.dsn)
        if not bare:
            change(place, "insert into vibe.migrations values (9999, 'later', 9999)")
        outcome = invoke(*command)
    assert (outcome.status, outcome.output) == (1, "")
    assert re.fullmatch(f"vibe-llms: {complaint}\n", outcome.errors)


@pytest.mark.parametrize(
    ("outage", "complaint"),
    [
        (closed, "not currently accepting connections"),
        (read_only, "in a read-only transaction; .* connect to a server that accepts writes"),
        (None, "password authentication failed for .*; check the user and the password"),
    ],
)
def test_what_is_away_at_the_first_start_is_waited_for_and_a_key_made_then(
    outage: Outage | None, complaint: str, place: TestDatabase, home: Path
) -> None:
    cluster = access_cluster()
    with cluster.guarded_role("secret") as role:
        configure(home, cluster.address(place.name, role, "secret"))
        away = changed(role, "secret") if outage is None else outage(place)
        with started("serve", "--port", "0", "--quiet") as process:
            with away:
                lines = read_to(process, "serving on").splitlines()
                assert len(lines) == 2
                said = f"not ready yet: the database cannot be used now: .*{complaint}"
                assert re.match(said, lines[0])
                server = Serving(process, lines[1])
                server.key = "none"
                assert server.ask("/health") == 200
                if outage is not read_only:
                    assert server.ask("/ready") == server.ask("/v1/models") == 503
                    assert re.search(f"req_.* failed: .*{complaint}", read_to(process, "failed"))
            read_to(process, "ready\n")
            server.read_key()
            assert server.ask("/ready") == server.ask("/v1/models") == 200
            status, output, errors = end(process)
            assert (status, output) == (0, "")
            assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("command", "line"),
    [(["serve", "--port", "0"], "serving on"), (["worker"], "working on runs")],
)
def test_a_bucket_that_does_not_exist_is_named_at_the_start(
    command: list[str], line: str, place: TestDatabase, home: Path
) -> None:
    bucket = access_bucket_server().produce_bucket(exists=False)
    row = {"module": "vibe_llms.storage.objects", **msgspec.to_builtins(bucket)}
    configure(home, place.dsn, contents=row)
    with started(*command) as process:
        read_to(process, line)
        assert (
            f"note: archive.contents: the bucket {bucket.bucket!r} at {bucket.endpoint} cannot be "
            "used now: The specified bucket does not exist; create it, or correct "
            "[archive.contents]\n"
        ) in read_to(process, "note: ")
        assert end(process)[0] == 0


def test_a_worker_prints_when_it_cannot_look_for_runs_and_when_it_can_again(
    place: TestDatabase, home: Path
) -> None:
    configure(home, place.dsn)
    with started("worker") as process:
        assert read_to(process, "working on runs") == "working on runs; Ctrl-C ends it\n"
        with closed(place):
            read_to(process, "cannot poll for runs: the database cannot be used now: ")
        read_to(process, "polling for runs works again\n")
        assert end(process) == (0, "", "")


def test_warnings_and_faults_are_printed_within_the_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = get_logger("vibe_llms.server")
    with warnings_printed(logger.name):
        logger.warning("%s failed: %s", "req_1", "a reason")
        logger.error("the request %s failed", "req_2", exc_info=ZeroDivisionError("none"))
    logger.warning("not this")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["req_1 failed: a reason", "the request req_2 failed"]
    assert lines[-1] == "ZeroDivisionError: none"
