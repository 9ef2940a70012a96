"""The command `config`."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND, LONGEST_SECONDS

pytestmark = pytest.mark.usefixtures("warm")


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


def test_names_that_nothing_has_are_problems(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        'default-model = "nonesuch/a"\n'
        '[aliases]\nfast = "nonesuch/b"\nsame = "fast"\nlocal = "a-model-of-some-server"\n'
        'right = "openai/gpt-of-tomorrow"\n'
        '[documents]\nembedder = "nonesuch/c"\n'
        '[ensembles.far]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = ["true"]\n'
        'sampling-model = "nonesuch/d"\n'
    )
    outcome = invoke("config", "check")
    assert outcome.status == 78
    lines = outcome.errors.splitlines()
    for line, words in zip(
        lines,
        [
            ":1: default-model: 'nonesuch/a': provider",
            ":3: [aliases] fast: 'nonesuch/b': provider",
            ":4: [aliases] same: 'fast' is also an alias; use the name of the model",
            ":8: [documents] embedder: embedder 'nonesuch/c' not found",
            ":12: [ensembles.far] sampling-model: 'nonesuch/d': provider",
        ],
        strict=True,
    ):
        assert words in line


def test_a_key_is_set_in_the_file_whose_comments_stay(home: Path) -> None:
    home.mkdir()
    file = home / "config.toml"
    file.write_text(
        '# mine\ndefault-model = "a"   # the best\n\n# of streams\n[stream]\nretries = 3  # few\n'
        "\n# of tools\n[tools]\nmax-rounds = 4\n"
    )
    for key, value in (
        ("default-model", "scripted/demo"),
        ("stream.retries", "5"),
        ("stream.idle-seconds", "9.5"),
        ("offline", "false"),
        ("providers.openai.default-model", '"7"'),
        ('providers.openai.models."gpt-.*".title', "The one"),
        ("tools.max-rounds", "6"),
    ):
        outcome = invoke("config", "set", key, value)
        assert (outcome.status, outcome.errors) == (0, f"set {key} in {file}\n")
    assert file.read_text() == (
        '# mine\ndefault-model = "scripted/demo"   # the best\noffline = false\n\n'
        "# of streams\n[stream]\nretries = 5  # few\nidle-seconds = 9.5\n\n"
        "# of tools\n[tools]\nmax-rounds = 6\n\n"
        '[providers.openai]\ndefault-model = "7"\n\n'
        '[providers.openai.models."gpt-.*"]\ntitle = "The one"\n'
    )
    assert invoke("config", "unset", "stream.idle-seconds").status == 0
    assert "idle-seconds" not in file.read_text()
    assert invoke("config", "unset", "stream.idle-seconds").status == 2


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("stream.retires", "3", "[stream] retires: unknown key; did you mean 'retries'?"),
        ("stream.retries", "many", "[stream] retries: "),
        ("default-model", "nonesuch/x", "default-model: 'nonesuch/x': provider"),
        ("memory.enabld", "true", "[memory] enabld: unknown key"),
        ("two words", "3", "'two words' is not a key"),
        ("a.b\nc", "3", "is not a key"),
        ("", "3", "'' is not a key"),
    ],
)
def test_what_would_be_wrong_is_not_set(home: Path, key: str, value: str, words: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text("# mine\n")
    outcome = invoke("config", "set", key, value)
    assert outcome.status in (2, 78)
    assert words in outcome.error
    assert (home / "config.toml").read_text() == "# mine\n"


def test_an_older_problem_does_not_keep_a_key_from_being_set(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[stream]\nretries = 'many'\n")
    assert invoke("config", "set", "default-model", "scripted/demo").status == 0
    assert invoke("config", "set", "stream.retries", "2").status == 0
    assert invoke("config", "check").status == 0


def test_the_keys_of_a_file_are_set_together_or_not_at_all(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    file, other = home / "config.toml", tmp_path / "other.toml"
    file.write_text('# mine\n[aliases]\nfast = "scripted/demo"  # quick\n')
    other.write_text('[aliases]\nslow = "scripted/demo"\n[agents.a]\nmodel = "scripted/demo"\n')
    outcome = invoke("config", "merge", str(other))
    assert outcome.errors == f"set aliases.slow, agents.a.model in {file}\n"
    text = file.read_text()
    assert text.startswith('# mine\n[aliases]\nfast = "scripted/demo"  # quick\nslow = "scripted/')
    assert tomllib.loads(text)["agents"] == {"a": {"model": "scripted/demo"}}
    piped = invoke("config", "merge", "-", data=b"[tools]\nmax-rounds = 1\n[stream]\nretires = 1\n")
    assert piped.status == 78
    assert file.read_text() == text


def test_a_row_that_a_variable_begins_can_be_completed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__MINE__BASE_URL", "http://127.0.0.1:9")
    (tmp_path / "mine.toml").write_text(
        '[providers.mine]\nmodule = "vibe_llms.providers.openai.chat_completions"\n'
    )
    assert invoke("config", "check").status == 78
    assert invoke("config", "merge", str(tmp_path / "mine.toml")).status == 0
    assert invoke("config", "check").status == 0


def test_what_is_not_installed_yet_can_be_set_and_is_a_problem(home: Path) -> None:
    text = (
        '[providers.mine]\nmodule = "mine"\n[providers.mine.install]\n'
        'index = "https://pypi.test/simple"\n[providers.mine.install.requirements]\n'
        f'"mine==1.0" = ["sha256:{"0" * 64}"]\n'
    )
    assert invoke("config", "merge", "-", data=text.encode()).status == 0
    assert tomllib.loads((home / "config.toml").read_text()) == tomllib.loads(text)
    assert "vibe-llms plugins install mine" in invoke("config", "check").errors
