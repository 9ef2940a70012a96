"""The command `keys`: keys are kept privately (K2), and shown only on request (K1)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND, LONGEST_SECONDS, Terminal
from vibe_llms.base.credentials import read_keys
from vibe_llms.base.keys import store_key

pytestmark = pytest.mark.usefixtures("warm")

_KEY = "sk-canary-0123456789abcdef"


def test_a_key_is_saved_printed_and_deleted(home: Path) -> None:
    outcome = invoke("keys", "set", "anthropic", data=f"  {_KEY}\n".encode())
    assert outcome == (0, "", f"saved in {home / 'keys.toml'}\n")
    assert invoke("keys", "list") == (0, "anthropic\n", "")
    assert invoke("keys", "get", "anthropic") == (0, f"{_KEY}\n", "")
    assert invoke("keys", "path") == (0, f"{home / 'keys.toml'}\n", "")
    assert invoke("keys", "rm", "anthropic") == (0, "", "deleted\n")
    assert invoke("keys", "list") == (0, "", "")
    for gone in ("get", "rm"):
        outcome = invoke("keys", gone, "anthropic")
        assert outcome.status == 77
        assert "'anthropic'" in outcome.error


def test_a_key_is_found_where_it_is_kept() -> None:
    assert invoke("keys", "set", "anthropic", data=_KEY.encode()).status == 0
    assert invoke("models", "default").output.startswith("anthropic/")


def test_a_search_engine_has_a_key_too(home: Path) -> None:
    assert invoke("keys", "set", "brave", data=_KEY.encode()).status == 0
    assert read_keys(home / "keys.toml") == {"brave": _KEY}


@pytest.mark.parametrize(
    ("name", "data", "status", "words"),
    [
        ("nonesuch", _KEY, 2, "see: vibe-llms config show"),
        ("anthropic", "", 78, "is empty"),
        ("anthropic", "two words", 78, "white space"),
        ("anthropic", "naïve", 78, "invalid characters"),
    ],
)
def test_what_cannot_be_a_key_is_refused(
    home: Path, name: str, data: str, status: int, words: str
) -> None:
    outcome = invoke("keys", "set", name, data=data.encode())
    assert outcome.status == status
    assert words in outcome.error
    assert not (home / "keys.toml").exists()


def test_a_key_is_typed_without_being_shown() -> None:
    with Terminal("keys", "set", "anthropic") as terminal:
        terminal.expect("Key for anthropic: ")
        terminal.enter(_KEY)
        terminal.expect(r"saved in\s")
        assert terminal.wait() == 0
        assert "canary" not in terminal.output
    assert invoke("keys", "get", "anthropic").output == f"{_KEY}\n"
    with Terminal("keys", "set", "anthropic") as terminal:
        terminal.expect("Key for anthropic: ")
        assert terminal.press_until_the_end("c-c") == 130
        assert "Traceback" not in terminal.output


def test_a_file_that_does_not_parse_is_not_written_over(home: Path) -> None:
    home.mkdir()
    path = home / "keys.toml"
    path.write_text("anthropic = \n")
    path.chmod(0o600)
    for arguments in (["set", "anthropic"], ["rm", "anthropic"], ["get", "x"], ["list"]):
        outcome = invoke("keys", *arguments, data=_KEY.encode())
        assert outcome.status == 78
        assert str(path) in outcome.error
    assert path.read_text() == "anthropic = \n"


def test_the_rest_of_the_file_stays(home: Path) -> None:
    home.mkdir()
    path = home / "keys.toml"
    path.write_text('other = "x"\n[more]\na = 1\n')
    path.chmod(0o600)
    store_key(path, "anthropic", "k" * 10)
    store_key(path, "other", "")
    assert path.read_text() == 'anthropic = "kkkkkkkkkk"\n\n[more]\na = 1\n'


def check_concurrent_setting(count: int, command: tuple[str, ...] = COMMAND) -> None:
    """Keys that are set by several processes at once are all kept."""
    running = [
        subprocess.Popen(
            [*command, "keys", "set", f"row{number}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                **{
                    f"VIBE_LLMS_PROVIDERS__ROW{n}__MODULE": "vibe_llms.providers.scripted"
                    for n in range(count)
                },
            },
        )
        for number in range(count)
    ]
    for number, process in enumerate(running):
        assert process.stdin is not None
        process.stdin.write(f"key-of-row-{number}\n".encode())
        process.stdin.flush()
    for process in running:
        _, errors = process.communicate(timeout=LONGEST_SECONDS)
        assert process.returncode == 0, errors
    keys = read_keys(Path(os.environ["VIBE_LLMS_HOME"]) / "keys.toml")
    assert keys == {f"row{number}": f"key-of-row-{number}" for number in range(count)}


def test_keys_that_are_set_at_once_are_all_kept() -> None:
    check_concurrent_setting(8)


@pytest.mark.slow
def test_a_change_without_the_lock_would_be_seen() -> None:
    # Reading and writing lie so far apart that the others' keys are lost.
    planting = (
        "import contextlib, time, vibe_llms.base.keys as k; replace = k.replace_file; "
        "k.locked = lambda *_, **__: contextlib.nullcontext(); "
        "k.replace_file = lambda *rest: (time.sleep(2), replace(*rest))"
    )
    program = f"{planting}; from vibe_llms.cli.main import main; main()"
    with pytest.raises(AssertionError):
        check_concurrent_setting(3, (sys.executable, "-c", program))


def check_private(work: Callable[[], object], home: Path, umask: int) -> None:
    """Whatever the mask, folders are made for their owner alone, and so are files."""
    before = os.umask(umask)
    try:
        work()
    finally:
        os.umask(before)
    for path in (home, *home.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:o}"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("deep", ["", "a/b/c"])
def test_every_file_is_private_from_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, umask: int, deep: str
) -> None:
    monkeypatch.setenv("VIBE_LLMS_HOME", str(home / deep))
    monkeypatch.setenv("EDITOR", "true")

    def work() -> None:
        assert invoke("keys", "set", "anthropic", data=_KEY.encode()).status == 0
        assert invoke("config", "edit").status == 0
        assert invoke("models", "default", "scripted/demo").status == 0
        assert invoke("hello " * 500).status == 0
        assert invoke("list").status == 0

    check_private(work, home, umask)


def test_a_file_that_others_can_read_would_be_seen(home: Path) -> None:
    home.mkdir(mode=0o700)
    with pytest.raises(AssertionError):
        check_private((home / "x").touch, home, 0o022)
