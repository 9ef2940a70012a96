"""What a single question leaves to be remembered: taken in by a process of its own, and lost never.

The process is killed with the scripts of the tests, never by luck: what it waits for is a reply.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.command import invoke, run, write_script
from tests.cli.terminal import COMMAND, LONGEST_SECONDS, Terminal
from vibe_llms.base.configuration import load_configuration
from vibe_llms.cli.memory.ingesting import survey_ingestion

pytestmark = pytest.mark.usefixtures("warm")

_FACT = json.dumps({"facts": [{"statement": "The user has a cat called Tom"}]})
SCRIPT = f"""
[[replies]]
when = "The user said"
parts = [{{ text = '{_FACT}' }}]
[[replies]]
when = "."
parts = [{{ text = "That is a fine name." }}]
"""
#: The model never answers what the facts are.
STUCK = SCRIPT.replace(f"{{ text = '{_FACT}' }}", "{ delay-seconds = 3600 }")
BROKEN = SCRIPT.replace(f"{{ text = '{_FACT}' }}", '{ error = "overloaded" }')


@pytest.fixture(autouse=True)
def quiet(home: Path) -> Iterator[None]:
    """No other questions of memory, and no process that outlives a test."""
    home.mkdir()
    (home / "config.toml").write_text(
        "[stream]\nretries = 0\n[memory.ingestion]\nneighbours = 0\nsummaries = false\n"
    )
    yield
    while (process := ingestion()["process"]) is not None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def ingestion() -> Any:
    """What `memory status` says, without starting anything."""
    return msgspec.to_builtins(survey_ingestion(load_configuration()))


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < end, ingestion()
        time.sleep(0.02)


def facts() -> list[str]:
    return [one["content"] for one in invoke("memory", "list", "--json").json]


def is_running() -> bool:
    now: dict[str, Any] = ingestion()
    return now["running"] == 1 and now["process"] is not None


def test_the_answer_is_the_end_though_the_model_of_memory_never_answers(
    home: Path, tmp_path: Path
) -> None:
    model = write_script(tmp_path, STUCK)
    # The pipes are read to their end: nothing that goes on holds them.
    asked = run("chat", "-m", model, "--memory", "My cat is called Tom.")
    assert (asked.status, asked.output, asked.errors) == (0, "That is a fine name.\n", "")
    wait_until(is_running)
    status = ingestion()
    reported = invoke("memory", "status").output
    assert "turns to be remembered: 1 running since 20" in reported
    assert f"(process {status['process']})" in reported
    assert os.getsid(status["process"]) == status["process"]
    assert os.getpriority(os.PRIO_PROCESS, status["process"]) == 19

    os.kill(status["process"], signal.SIGKILL)
    wait_until(lambda: ingestion()["process"] is None)
    assert ingestion()["queued"] == 1
    # The next command goes on, whatever it is about.
    write_script(tmp_path, SCRIPT)
    invoke("memory", "search", "cat")
    wait_until(facts)
    assert facts() == ["The user has a cat called Tom"]
    wait_until(lambda: ingestion()["running"] == 0)
    assert invoke("memory", "status", "--json").json["ingestion"]["queued"] == 0


def test_a_closed_window_ends_nothing(tmp_path: Path) -> None:
    model = write_script(tmp_path, SCRIPT)
    with Terminal("chat", "-m", model, "--memory", "My cat is called Tom.") as terminal:
        terminal.expect("fine name")
        terminal.hang_up()
        terminal.process.wait(LONGEST_SECONDS)
    wait_until(facts)
    assert facts() == ["The user has a cat called Tom"]


def test_keys_are_no_arguments_of_a_process(tmp_path: Path) -> None:
    command = ("chat", "-m", write_script(tmp_path, STUCK), "--set", "credential=key")
    assert run(*command, "--key", "my-key-4711", "--memory", "My cat.").status == 0
    wait_until(is_running)
    process = ingestion()["process"]
    for name in ("cmdline", "environ"):
        with suppress(FileNotFoundError):
            assert b"my-key-4711" not in Path(f"/proc/{process}/{name}").read_bytes()


@pytest.mark.parametrize("how", ["option", "configuration"])
def test_the_command_waits_if_asked_to(home: Path, tmp_path: Path, how: str) -> None:
    model = write_script(tmp_path, SCRIPT)
    options = ["--wait"] if how == "option" else []
    if how == "configuration":
        (home / "config.toml").write_text("[memory]\nwait = true\n")
    assert run("chat", "-m", model, "--memory", *options, "My cat is called Tom.").status == 0
    assert ingestion()["running"] + ingestion()["queued"] == 0
    assert facts() == ["The user has a cat called Tom"]
    assert not (home / "ingestion.log").exists()


def test_a_failure_is_reported_and_tried_again(home: Path, tmp_path: Path) -> None:
    model = write_script(tmp_path, BROKEN)
    assert run("chat", "-m", model, "--memory", "My cat is called Tom.").status == 0
    wait_until(lambda: ingestion()["failure"] and ingestion()["process"] is None)
    assert ingestion()["queued"] == 1
    for _ in range(2):
        invoke("memory", "ingest")
    reported = invoke("memory", "status")
    assert "turns to be remembered: 1 failed since 20" in reported.output
    assert "last failure: no facts were extracted: scripted: " in reported.output
    assert "to retry: vibe-llms memory ingest" in reported.output
    assert "no facts were extracted" in (home / "ingestion.log").read_text()
    # By itself it is tried no more.
    assert ingestion()["process"] is None
    write_script(tmp_path, SCRIPT)
    done = invoke("memory", "ingest")
    assert "remembered: The user has a cat called Tom\nprocessed 1 turn\n" in done.errors
    assert invoke("memory", "ingest", "--json").json == {
        "taken_in": 0,
        "running": 0,
        "queued": 0,
        "failed": 0,
        "since": None,
        "failure": "",
        "process": None,
        "log": "",
    }


def test_unsaved_conversations_start_no_background_process(home: Path, tmp_path: Path) -> None:
    model = write_script(tmp_path, SCRIPT)
    assert run("chat", "-n", "-m", model, "--memory", "My cat is called Tom.").status == 0
    assert run("chat", "-m", model, "My cat is called Tom.").status == 0
    assert not (home / "ingestion.log").exists()
    assert not (home / "ingestion").exists()


@pytest.mark.storm
def test_a_process_that_is_killed_anywhere_loses_nothing_and_doubles_nothing(
    home: Path, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(3, 40)
    chance = random.Random(7)
    replies = [
        "[[replies]]\n"
        f"when = '(?s)The user said.*hive {number}[.]'\n"
        "parts = [{ delay-seconds = 0.1 }, { text = '"
        + json.dumps({"facts": [{"statement": f"The user keeps bees in hive {number}."}]})
        + "' }]\n"
        for number in range(count)
    ]
    model = write_script(
        tmp_path,
        "".join(replies)
        + '[[replies]]\nwhen = "."\nparts = [{ text = "Bees make honey in summer." }]\n',
    )
    for number in range(count):
        said = f"I keep bees in hive {number}."
        assert (
            invoke("chat", "-m", model, "--memory", said).output == "Bees make honey in summer.\n"
        )
        end = time.monotonic() + chance.random() * 0.8
        while time.monotonic() < end:
            if (process := ingestion()["process"]) is not None and chance.random() < 0.1:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                break
    wait_until(lambda: ingestion()["process"] is None)
    while ingestion()["running"] + ingestion()["queued"]:
        invoke("memory", "ingest")
    assert sorted(facts()) == sorted(f"The user keeps bees in hive {n}." for n in range(count))
    turns = [
        one["content"]
        for scope in (home / "memory" / "entries").glob("conversation-*")
        for one in invoke("memory", "list", "--json", "--scope", scope.name).json
    ]
    assert sorted(turns) == sorted(
        [f"I keep bees in hive {n}." for n in range(count)] + ["Bees make honey in summer."] * count
    )


def test_two_processes_do_not_take_in_the_same(home: Path, tmp_path: Path) -> None:
    model = write_script(tmp_path, STUCK)
    assert run("chat", "-m", model, "--memory", "My cat is called Tom.").status == 0
    wait_until(is_running)
    first = ingestion()["process"]
    for arguments in (["memory", "ingest"], ["memory", "ingest", "--detached"]):
        other = subprocess.run(
            [sys.executable, *COMMAND[1:], *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
        assert other.returncode == 0, other.stderr
    assert ingestion()["process"] == first
    assert is_running()
