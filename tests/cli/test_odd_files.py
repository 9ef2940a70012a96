"""One odd file in the archive or the home: every command ends soon, in bounded memory, with a clear
error or with an answer that only lacks what cannot be read.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.command import Outcome, invoke, run
from tests.faults.archives import hand_over
from tests.faults.odd_files import ODD_FILES, put_in_place
from tests.faults.waits import at_most
from tests.pictures import make_png
from vibe_llms.storage.archive import DirectoryArchive

Rounds = Callable[[int, int], int]

_SECONDS = 60.0
_DEEP = [name for name in ODD_FILES if name.startswith("deep-")]
_MEMORY = 3 * 1024**3
#: Every reader of a file that a user names.
_NAMED: Sequence[tuple[str, ...]] = (
    ("chat", "-a", "{}", "Hello"),
    ("chat", "-f", "{}", "Hello"),
    ("chat", "--at", "{}", "image/png", "Hello"),
    ("chat", "--system-file", "{}", "Hello"),
    ("chat", "-m", "scripted/{}", "Hello"),
    ("mcp", "import", "{}"),
    ("memory", "import", "{}"),
)
#: Every file in a home that commands read, with commands that read it.
_HELD: dict[str, Sequence[tuple[str, ...]]] = {
    "conversations/{}/messages.jsonl": (),
    "conversations/{}/metadata.toml": (),
    "config.toml": (("chat", "Hello"), ("config", "show"), ("config", "check")),
    "keys.toml": (("keys", "list"), ("keys", "set", "anthropic")),
    "memory/entries/default/entry.md": (("memory", "list"), ("memory", "search", "lantern")),
}


def start(home: Path, *, words: str = "lantern") -> Sequence[str]:
    """Two conversations; the identities, the one to be spoilt first."""
    for name in ("spoilt", "whole"):
        assert invoke("chat", "-q", "--name", name, "-a", str(_picture(home)), words).status == 0
    return [invoke("list", "--json").json[index]["id"] for index in (1, 0)]


def _picture(home: Path) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "picture.png"
    path.write_bytes(make_png())
    return path


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def call(*arguments: str, apart: bool) -> Outcome:
    """Run a command, in bounded time; apart, in bounded memory."""
    with at_most(_SECONDS):
        outcome = run(*arguments, preexec_fn=_limit_memory) if apart else invoke(*arguments)
    assert "Traceback" not in outcome.errors, (arguments, outcome.errors)
    assert "(a bug" not in outcome.errors, (arguments, outcome.errors)
    assert outcome.status in (0, 1, 2, 66, 78), (arguments, outcome)
    return outcome


def check_archive(home: Path, part: str, kind: str, *, apart: bool) -> None:
    """A conversation that cannot be read is one line; the other one is as it was."""
    spoilt, whole = start(home)
    put_in_place(kind, home / part.format(spoilt))
    listed = call("list", apart=apart)
    assert listed.status == 0
    assert whole in listed.output
    assert spoilt in listed.output
    # One line that cannot be read spoils that message, and not the conversation.
    lines = part.endswith(".jsonl") and kind in ("huge-line", "locked", *_DEEP)
    assert lines or "cannot be read: " in listed.output
    assert call("search", "lantern", apart=apart).output.count(whole) == 1
    assert call("show", whole, apart=apart).status == 0
    shown = call("show", spoilt, apart=apart)
    assert shown.status in (1, 66) or (lines and "an incomplete message" in shown.errors), shown
    assert call("chat", "-q", "--cid", whole, "again", apart=apart).status == 0
    assert call("chat", "-q", "--cid", spoilt, "again", apart=apart).status == shown.status
    assert spoilt in call("doctor", apart=apart).output
    removed = call("rm", "-y", spoilt, apart=apart)
    assert removed.status == 0, removed
    assert [one["id"] for one in invoke("list", "--json").json] == [whole]


@pytest.mark.parametrize("part", ["messages.jsonl", "metadata.toml"])
@pytest.mark.parametrize("kind", ["pipe", "sparse", "deep-keys", "deep-arrays", "folder"])
def test_one_bad_folder_spoils_nothing_else(home: Path, part: str, kind: str) -> None:
    check_archive(home, f"conversations/{{}}/{part}", kind, apart=False)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "sparse", "folder", "vanished"])
def test_a_file_that_is_named_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    put_in_place(kind, path)
    for command in _NAMED:
        outcome = call(*(word.format(path) for word in command), apart=False)
        assert outcome.status, command
        assert len(outcome.error.splitlines()) == 1
        assert "odd" in outcome.error, (command, outcome.error)


@pytest.mark.parametrize("kind", ["pipe", "sparse", "deep-keys", "deep-tables"])
@pytest.mark.parametrize("part", [part for part in _HELD if "{}" not in part])
def test_an_odd_file_in_the_home_is_an_error(home: Path, part: str, kind: str) -> None:
    path = home / part
    path.parent.mkdir(parents=True)
    put_in_place(kind, path)
    for command in (*_HELD[part], ("doctor",)):
        outcome = call(*command, apart=False)
        if part != "memory/entries/default/entry.md" and "chat" not in command:
            assert outcome.status, (command, outcome)


def test_a_content_that_cannot_be_read_spoils_no_list(home: Path) -> None:
    _, whole = start(home)
    data = next((home / "content").iterdir()) / "data"
    for kind in ("pipe", "sparse", "folder"):
        shutil.rmtree(data) if data.is_dir() else data.unlink()
        put_in_place(kind, data)
        assert whole in call("list", apart=False).output
        assert "needs this content" in call("doctor", apart=False).output
    outcome = call("show", whole, "--json", apart=False)
    assert outcome.status == 0


def test_a_file_descriptor_of_the_shell_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"some notes")
    os.close(writing)
    outcome = invoke("chat", "-f", f"/dev/fd/{reading}", "--dry-run", "Hello")
    os.close(reading)
    assert outcome.status == 0, outcome
    assert "some notes" in outcome.output


@pytest.mark.parametrize("place", [".", "config.toml"])
def test_the_configuration_of_another_user_is_not_obeyed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    home.mkdir()
    ran = tmp_path / "ran"
    (home / "config.toml").write_text(
        f'[providers.anthropic]\napi-key-command = ["touch", "{ran}"]\n', "utf-8"
    )
    hand_over(home / place, monkeypatch)
    for command in (("chat", "-m", "anthropic/x", "Hi"), ("list",), ("models",), ("doctor",)):
        outcome = invoke(*command)
        assert outcome.status in (1, 78), (command, outcome)
        assert "not to you" in outcome.output + outcome.errors
        assert "chown" in outcome.output + outcome.errors
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.storm
def test_no_reader_hangs_or_grows(home: Path, tmp_path: Path, rounds: Rounds) -> None:
    kinds = list(ODD_FILES)[: rounds(1, len(ODD_FILES))]
    for kind in kinds:
        path = tmp_path / f"odd-{kind}"
        put_in_place(kind, path)
        for command in _NAMED:
            call(*(word.format(path) for word in command), apart=True)
        for part in _HELD:
            shutil.rmtree(home, ignore_errors=True)
            if "{}" in part:
                if kind != "locked":
                    check_archive(home, part, kind, apart=True)
                continue
            (home / part).parent.mkdir(parents=True)
            put_in_place(kind, home / part)
            for command in (*_HELD[part], ("doctor",)):
                call(*command, apart=True)
    assert DirectoryArchive(home).folder == home
