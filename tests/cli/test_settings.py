"""The command `config`."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND, LONGEST_SECONDS


def test_the_places_are_printed(home: Path) -> None:
    assert invoke("config", "path").output == f"{home / 'config.toml'}\n"
    assert invoke("config", "path", "--all").output == f"{home / 'config.toml'}\n{home}\n{home}\n"


def test_the_settings_are_shown_as_they_result(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[aliases]\nfast = "scripted/demo"\n')
    monkeypatch.setenv("VIBE_LLMS_STREAM__RETRIES", "7")
    shown = tomllib.loads(invoke("config", "show").output)
    assert shown["aliases"] == {"fast": "scripted/demo"}
    assert shown["stream"]["retries"] == 7
    assert json.loads(invoke("config", "show", "--json").output) == shown


def test_a_key_in_an_address_is_not_shown(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        '[providers.x]\nmodule = "y"\nbase-url = "https://e.org/?key=canary-0123456789"\n'
    )
    assert "canary" not in invoke("config", "show").output
    assert "e.org" in invoke("config", "show").output


def test_the_configuration_is_checked(home: Path) -> None:
    assert invoke("config", "check") == (0, "", "no problems found\n")
    home.mkdir()
    (home / "config.toml").write_text('[providers.x]\nmodule = "nonesuch"\n')
    outcome = invoke("config", "check")
    assert outcome.status == 78
    assert "nonesuch" in outcome.error


def test_the_file_is_opened_in_the_editor(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "config.toml"
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", "sed -i 's/^# default-model.*/default-model = \"scripted\"/'")
    assert invoke("config", "edit").status == 0
    assert 'default-model = "scripted"\n' in path.read_text()
    monkeypatch.setenv("VISUAL", "sh -c 'echo \"x = [\" >> $0'")
    outcome = invoke("config", "edit")
    assert outcome.status == 78
    assert str(path) in outcome.error


@pytest.mark.parametrize(
    ("editor", "words"),
    [("/nonesuch/editor", "cannot start"), ("false", "status 1"), ("'", "cannot start")],
)
def test_a_failing_editor_is_an_error(
    monkeypatch: pytest.MonkeyPatch, editor: str, words: str
) -> None:
    monkeypatch.setenv("VISUAL", editor)
    outcome = invoke("config", "edit")
    assert outcome.status == 2
    assert words in outcome.error


def test_values_that_are_set_at_once_leave_a_whole_file(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[aliases]\nkept = "scripted/demo"\n')
    running = [
        subprocess.Popen([*COMMAND, "models", "default", model], stderr=subprocess.PIPE)
        for model in ("scripted/demo", "anthropic/a", "anthropic/b", "anthropic/c")
    ]
    for process in running:
        _, errors = process.communicate(timeout=LONGEST_SECONDS)
        assert process.returncode == 0, errors
    tree = tomllib.loads((home / "config.toml").read_text())
    assert tree["aliases"] == {"kept": "scripted/demo"}
    assert tree["default-model"] in ("scripted/demo", "anthropic/a", "anthropic/b", "anthropic/c")
