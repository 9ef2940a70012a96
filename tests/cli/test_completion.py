"""Completion in the shell: the scripts, and what they are offered."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command import invoke, run, streams
from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from vibe_llms.cli.commands import COMMANDS, run_command


def complete(line: str, monkeypatch: pytest.MonkeyPatch, shell: str = "bash") -> list[str]:
    """What the shell is offered for the last word of a line."""
    words = line.split(" ")
    with monkeypatch.context() as patch, streams() as (output, errors):
        patch.setenv("_VIBE_LLMS_COMPLETE", f"{shell}_complete")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
        assert run_command([]) == 0
        assert errors.text == ""
        return [line for line in output.text.splitlines() if line]


def names(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return [offer.partition(",")[2] for offer in complete(line, monkeypatch)]


def test_commands_and_options_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names("vibe-llms ", monkeypatch) == list(COMMANDS)
    assert names("vibe-llms li", monkeypatch) == ["list"]
    assert names("vibe-llms keys s", monkeypatch) == ["set"]
    assert "--hide-reasoning" in names("vibe-llms chat --h", monkeypatch)
    assert "--limit" in names("vibe-llms list --", monkeypatch)
    assert names("vibe-llms completion f", monkeypatch) == ["fish"]


def test_models_are_completed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[aliases]\nfast = "scripted/demo"\n')
    offered = names("vibe-llms chat -m ", monkeypatch)
    assert offered[:2] == ["fast", "anthropic/claude-sonnet-5-5"]
    assert offered[-1] == "scripted/demo"
    assert names("vibe-llms -m f", monkeypatch) == ["fast"]


def test_conversations_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = invoke("--print-id", "hello").errors.splitlines()[-1]
    for line in ("show", "chat --cid", "fork", "rename", "tag", "rm -y"):
        assert names(f"vibe-llms {line} {identity[:2]}", monkeypatch) == [identity]
    assert names("vibe-llms show ~", monkeypatch) == []
    assert complete("vibe-llms show ", monkeypatch, "fish") == [f"plain,{identity}\thello"]
    assert complete("vibe-llms show ", monkeypatch, "zsh") == ["plain", identity, "hello"]


def test_paths_are_left_to_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("vibe-llms chat -f x", monkeypatch) == ["file,x"]


def test_a_shell_is_not_told_of_errors(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "config.toml").write_text("x = \n")
    assert names("vibe-llms chat -m ", monkeypatch) == []
    assert names("vibe-llms show ", monkeypatch) == []


@pytest.mark.parametrize(
    ("shell", "word"),
    [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --no-files")],
)
def test_every_shell_has_its_script(shell: str, word: str) -> None:
    outcome = invoke("completion", shell)
    assert outcome.status == 0
    assert word in outcome.output
    assert f"_VIBE_LLMS_COMPLETE={shell}_complete" in outcome.output
    assert invoke("completion", "tcsh").status == 2


def test_bash_really_completes(tmp_path: Path) -> None:
    command = tmp_path / "vibe-llms"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    program = (
        f'export PATH="{tmp_path}:$PATH"; eval "$(vibe-llms completion bash)"; '
        "COMP_WORDS=(vibe-llms sho); COMP_CWORD=1; "
        'spec=$(complete -p vibe-llms); function=$(sed "s/.*-F \\([^ ]*\\).*/\\1/" <<< "$spec"); '
        '"$function" vibe-llms sho vibe-llms; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        timeout=LONGEST_SECONDS,
        check=True,
    )
    assert done.stdout.decode().split() == ["show"]


def test_completion_starts_as_light_as_the_help() -> None:
    outcome = run(
        environment={
            "_VIBE_LLMS_COMPLETE": "bash_complete",
            "COMP_WORDS": "vibe-llms sea",
            "COMP_CWORD": "1",
        }
    )
    assert outcome.output == "plain,search\n"
