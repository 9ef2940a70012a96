"""One question and its answer, and what bad input gets: one clear line, a status, nothing lost."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke, run, script_of, write_script
from tests.cli.hostile import check_harmless, produce_payloads
from tests.cli.terminal import Screen, Terminal

pytestmark = pytest.mark.usefixtures("warm")

_MARKDOWN = "{ text = '''# Title\n\nSome **bold** text.\n\n- one\n- two\n''' }"


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of the archive that is the truth, and its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for place in ("conversations", "content")
        for path in sorted((folder / place).rglob("*"))
        if path.is_file()
    }


def test_on_a_terminal_the_answer_is_drawn_and_nothing_is_left_of_the_waiting(
    tmp_path: Path,
) -> None:
    model = write_script(tmp_path, script_of("{ delay-seconds = 0.8 }", _MARKDOWN))
    with Terminal("-m", model, "go") as terminal:
        terminal.expect("waiting for scripted/")
        assert terminal.wait() == 0
        assert Screen().feed(terminal.output).lines == [
            "Title", "", "Some bold text.", "", " • one", " • two",
        ]  # fmt: skip
        assert "\x1b[1m" in terminal.output


@pytest.mark.parametrize(
    ("flags", "environment"),
    [(["--raw"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})],
)
def test_markdown_is_unchanged_where_it_is_not_drawn(
    tmp_path: Path, flags: list[str], environment: dict[str, str]
) -> None:
    model = write_script(tmp_path, script_of(_MARKDOWN))
    with Terminal("-q", "-m", model, *flags, "go", environment=environment) as terminal:
        assert terminal.wait() == 0
        assert terminal.output == "# Title\r\n\r\nSome **bold** text.\r\n\r\n- one\r\n- two\r\n"


def test_the_waiting_shows_while_the_answer_goes_into_a_pipe(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of("{ delay-seconds = 0.8 }", "{ text = '**x**' }"))
    pipes = {"stdout": subprocess.PIPE}
    with Terminal("-m", model, "go", pipes=pipes) as terminal:
        terminal.expect("waiting for scripted/")
        assert terminal.wait() == 0
        assert terminal.process.stdout is not None
        assert terminal.process.stdout.read() == b"**x**\n"
        assert Screen().feed(terminal.output).text == ""
    with Terminal("-q", "-m", model, "go", pipes=pipes) as terminal:
        assert terminal.wait() == 0
        assert terminal.output == ""


def test_a_narrow_window_that_changes_its_size_loses_nothing(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(40)]
    parts = [f"{{ text = '{word} ' }}, {{ delay-seconds = 0.01 }}" for word in words]
    model = write_script(tmp_path, script_of(*parts))
    with Terminal("-m", model, "go", lines=8, columns=30) as terminal:
        terminal.expect("word9")
        terminal.resize(12, 50)
        assert terminal.wait() == 0
    said = re.sub(r"\x1b\[[\d;]*[a-zA-Z]", "", terminal.output)
    assert all(word in said for word in words)


def test_nothing_that_a_script_says_drives_the_terminal(tmp_path: Path) -> None:
    said = "".join(payload for payload in produce_payloads(4, 60) if "\0" not in payload)
    text = "".join(f"\\U{ord(c):08x}" for c in said)
    model = write_script(tmp_path, script_of(f'{{ reasoning = "{text}" }}, {{ text = "{text}" }}'))
    for flag in ("--render", "--raw"):
        with Terminal("-m", model, flag, "go") as terminal:
            assert terminal.wait() == 0
            check_harmless(terminal.output)
    piped = run("-m", model, "go")
    assert piped.output.encode() == f"{said}\n".encode()


def test_what_is_interrupted_without_being_kept_says_just_that(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of("{ text = 'a' }", "{ delay-seconds = 60.0 }"))
    with Terminal("-n", "-m", model, "go") as terminal:
        terminal.expect("a")
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert terminal.output.endswith("interrupted\r\n")
    with Terminal("-q", "--json", "-m", model, "go") as terminal:
        for _ in range(600):
            if invoke("list", "--json").json:
                break
            time.sleep(0.05)
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert '"stop_reason":"interrupted"' in terminal.output


# What bad input gets.


def check_refusal(outcome: Outcome, status: int, *words: str) -> None:
    """One clear line on stderr that says what to do, and the documented status."""
    assert outcome.status == status, outcome
    for word in words:
        assert word in outcome.error, outcome.error
    assert outcome.output == ""


def test_a_package_that_is_missing_is_named_with_its_command(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[providers.anthropic]\ncredential = "package"\n')
    hidden = tmp_path / "hidden" / "anthropic"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'anthropic'\", name='anthropic')\n"
    )
    environment = {"PYTHONPATH": str(hidden.parent)}
    outcome = run("-m", "anthropic/x", "hi", environment=environment)
    check_refusal(outcome, 78, "'anthropic'", "not installed", "pip install")
    reported = run("--json", "-m", "anthropic/x", "hi", environment=environment).json
    assert reported["error"]["kind"] == "package-missing"


_COMMANDS: list[list[str]] = [
    ["hi"],
    ["list"],
    ["show", "abcd"],
    ["search", "x"],
    ["models"],
    ["providers"],
    ["keys", "set", "anthropic"],
    ["config", "show"],
    ["config", "check"],
]


@pytest.mark.parametrize("arguments", _COMMANDS, ids=" ".join)
def test_a_configuration_that_does_not_parse_is_named_with_its_line(
    home: Path, arguments: list[str]
) -> None:
    home.mkdir()
    path = home / "config.toml"
    path.write_text("[aliases]\nfast = \n")
    check_refusal(invoke(*arguments), 78, str(path), "line 2")
    assert path.read_text() == "[aliases]\nfast = \n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wrong = 1", ["config.toml", "'wrong'"]),
        ("[stream]\nidle-seconds = 'x'", ["[stream]", "'idle-seconds'"]),
        ("[providers.x]\nbase-url = 'y'", ["[providers]", "module"]),
        ("[controls]\nwarmth = 1", ["[controls]", "warmth"]),
    ],
)
def test_a_setting_that_is_wrong_is_named(home: Path, text: str, words: list[str]) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    check_refusal(invoke("hi"), 78, *words)
    assert invoke("--json", "hi").json["error"]["status"] == 78


def test_a_setting_of_the_environment_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VIBE_LLMS_STREAM__IDLE_SECONDS", "soon")
    check_refusal(invoke("hi"), 78, "environment VIBE_LLMS_STREAM__IDLE_SECONDS")


def test_a_home_that_is_no_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_HOME", "relative/path")
    check_refusal(invoke("hi"), 78, "relative/path", "VIBE_LLMS_HOME")


def test_keys_that_others_may_read_are_refused(home: Path) -> None:
    home.mkdir()
    path = home / "keys.toml"
    path.write_text("anthropic = 'x'\n")
    path.chmod(0o644)
    check_refusal(invoke("-m", "anthropic/x", "hi"), 78, f"chmod 600 {path}")


def failing(number: int, home: Path) -> Callable[..., Any]:
    """`os.write` as it is where the disk under the home fails."""
    write = os.write

    def fail(descriptor: int, data: Any) -> int:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and place.startswith(str(home)):
            raise OSError(number, os.strerror(number))
        return write(descriptor, data)

    return fail


@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (errno.ENOSPC, "the disk is full", "storage-unavailable"),
        (errno.EDQUOT, "quota", "storage-unavailable"),
        (errno.EIO, "disk", "storage-error"),
    ],
)
def test_a_failing_disk_is_reported_and_nothing_is_lost(
    home: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, kind: str
) -> None:
    assert invoke("--name", "kept", "hello").status == 0
    before = snapshot(home)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(number, home))
        for arguments in (["hello"], ["-c", "hello"], ["fork", "kept"], ["rename", "kept", "x"]):
            check_refusal(
                invoke("-q", *arguments) if arguments[-1] == "hello" else invoke(*arguments),
                1,
                words,
            )
        reported = invoke("-c", "--json", "hello").json["error"]
        assert reported["kind"] == kind
        assert snapshot(home) == before
    assert invoke("-c", "hello").status == 0


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "permission denied")]
)
def test_a_home_that_cannot_be_written_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    make = os.mkdir

    def refuse(path: Any, *rest: Any, **options: Any) -> None:
        if str(path).startswith(str(home)):
            raise OSError(number, os.strerror(number), path)
        make(path, *rest, **options)

    monkeypatch.setattr(os, "mkdir", refuse)
    for arguments in (["-q", "hello"], ["list"], ["keys", "set", "anthropic"]):
        outcome = invoke(*arguments, data=b"sk-ant-test-0123456789\n")
        check_refusal(outcome, 1, words, "VIBE_LLMS_HOME")
    assert not home.exists()
    # Without an archive, no place for one is needed.
    assert invoke("-n", "hello").status == 0


def test_a_file_in_the_place_of_the_home_is_an_error(home: Path) -> None:
    home.write_text("x")
    outcome = invoke("-q", "hello")
    assert outcome.status in (1, 78)
    assert str(home) in outcome.error


def test_a_damaged_conversation_is_reported_with_its_line_and_stays_readable(home: Path) -> None:
    assert invoke("--name", "hurt", "hello").status == 0
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0][:20] + b"\n" + lines[1])
    before = path.read_bytes()
    check_refusal(invoke("-q", "-c", "hi"), 1, f"{path}:1", "doctor --repair")
    check_refusal(invoke("show", "hurt"), 1, f"{path}:1")
    lenient = invoke("show", "hurt", "--lenient")
    assert lenient.status == 0
    assert "line 1" in lenient.output
    assert "Hello!" in lenient.output
    assert path.read_bytes() == before


def test_an_archive_of_a_newer_version_is_an_error(home: Path) -> None:
    assert invoke("--name", "later", "hello").status == 0
    (path,) = home.glob("conversations/*/metadata.toml")
    path.write_text(path.read_text().replace("format = 1", "format = 99"))
    outcome = invoke("-q", "-c", "hi")
    assert outcome.status == 1
    assert "newer" in outcome.error
