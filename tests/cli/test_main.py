"""The entry of the command: what it sets up, and how it ends when a stream breaks (C1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.command import invoke, script_of, streams, write_script
from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from vibe_llms.cli.main import main

_LOCALES = ("C", "C.UTF-8", "POSIX", "en_US.UTF-8")


@pytest.fixture
def identity() -> str:
    """A conversation to work on."""
    outcome = invoke("--print-id", "--name", "näme", "hello")
    return outcome.errors.splitlines()[-1]


def survey_runs(identity: str) -> Sequence[Sequence[str]]:
    """Twenty commands, each with something to say."""
    return [
        ["--help"],
        ["--version"],
        ["hello"],
        ["--json", "hello"],
        ["--jsonl", "hello"],
        ["--dry-run", "hello"],
        ["-n", "--no-stream", "what can you do?"],
        ["-c", "-x", "forks?"],
        ["list"],
        ["list", "--json"],
        ["show", identity],
        ["show", identity, "--json"],
        ["search", "hello"],
        ["fork", identity],
        ["models"],
        ["models", "default"],
        ["providers"],
        ["config", "show"],
        ["completion", "bash"],
        ["show", "nonesuch", "--json"],
    ]


def check_closed_pipe(
    arguments: Sequence[str], locale: str, command: Sequence[str] = COMMAND
) -> None:
    """The command ends quietly when its output is not read."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": locale},
            timeout=LONGEST_SECONDS,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 141, done
    for word in (b"Traceback", b"BrokenPipe", b"Exception ignored"):
        assert word not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.storm
def test_a_closed_pipe_ends_every_command_quietly_in_every_locale(
    identity: str, rounds: Callable[[int, int], int]
) -> None:
    locales = rounds(1, len(_LOCALES))
    for number, arguments in enumerate(survey_runs(identity)):
        for further in range(locales):
            check_closed_pipe(arguments, _LOCALES[(number + further) % len(_LOCALES)])


def test_a_closed_pipe_that_is_complained_of_would_be_seen() -> None:
    planting = "import vibe_llms.cli.main as m; m.BrokenPipeError = ZeroDivisionError"
    program = f"{planting}; m.main()"
    with pytest.raises(AssertionError):
        check_closed_pipe(["hello"], "C.UTF-8", (sys.executable, "-c", program))


def test_a_pipe_that_closes_in_the_middle_ends_it_quietly_and_keeps_what_was_said(
    tmp_path: Path,
) -> None:
    words = (f"{{ text = 'word{n} ' }}, {{ delay-seconds = 0.05 }}" for n in range(200))
    model = write_script(tmp_path, script_of(*words))
    with subprocess.Popen(
        [*COMMAND, "-m", model, "go"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"w"
        process.stdout.close()
        assert process.wait(LONGEST_SECONDS) == 141
        assert process.stderr.read() == b""
    (prompt, reply) = invoke("show", invoke("list", "--json").json[0]["id"], "--json").json[
        "messages"
    ]
    assert prompt["contents"][0]["data"] == "go"
    assert reply["contents"][0]["data"].startswith("word0")


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_any_locale_gets_all_it_can_show(tmp_path: Path, locale: str) -> None:
    model = write_script(tmp_path, script_of("{ text = 'naïve 東京' }"))
    for encoding, shown in (("", "naïve 東京\n"), ("ascii", "na?ve ??\n")):
        done = subprocess.run(
            [*COMMAND, "-m", model, "go"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "LC_ALL": locale, "PYTHONIOENCODING": encoding},
            timeout=LONGEST_SECONDS,
            check=True,
        )
        assert done.stdout == shown.encode()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_are_closed_from_the_start_do_no_harm(closed: str, home: Path) -> None:
    command = " ".join(COMMAND)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} hello {closed}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done
    assert b"Traceback" not in done.stderr
    # Nothing that was meant for a closed stream went into a file of ours.
    (messages,) = home.glob("conversations/*/messages.jsonl")
    assert len(messages.read_bytes().splitlines()) == 2
    assert all(line.startswith(b"{") for line in messages.read_bytes().splitlines())


def test_a_full_disk_under_stdout_is_one_line_and_loses_nothing() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "-q", "hello"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"vibe-llms: <stdout>: No space left on device\n")
    assert invoke("list", "--json").json[0]["messages"] == 2


def test_a_full_disk_under_stderr_does_not_spoil_the_answer() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "hello"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    assert done.returncode == 0
    assert done.stdout.startswith(b"Hello!")


def test_main_takes_the_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vibe-llms", "--version"])
    before = signal.getsignal(signal.SIGINT)
    try:
        with streams() as (output, _), pytest.raises(SystemExit) as leaving:
            main()
        # What is pressed after the end does not matter any more.
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert leaving.value.code == 0
    assert output.text.startswith("vibe-llms ")


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_an_error_without_a_message_sets_the_exit_status(
    error: type[BaseException], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Sequence[str]) -> int:
        raise error

    monkeypatch.setattr("vibe_llms.cli.commands.run_command", fail)
    outcome = invoke("list")
    assert (outcome.status, outcome.errors) == (status, "")
