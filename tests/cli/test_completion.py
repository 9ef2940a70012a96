"""Completion in the shell: the scripts, and what they are offered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.command import invoke, run, streams, teach
from tests.cli.terminal import COMMAND, LONGEST_SECONDS, Terminal
from tests.fakes import mcp_described
from tests.fakes.ollama import FakeOllama
from vibe_llms.cli.commands import COMMANDS, run_command
from vibe_llms.cli.completion import (
    choose,
    offer_control_values,
    offer_controls,
    recall_tools,
    remember_tools,
)
from vibe_llms.providers import local_servers
from vibe_llms.providers.attributes import ModelAttributes


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


def test_a_shell_gets_no_errors(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_controls_and_their_values_are_completed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "vibe-llms chat -m anthropic/claude-sonnet-5-5 -o "
    offered = names(line, monkeypatch)
    assert "effort" in offered
    assert "temperature" not in offered
    assert names(f"{line}eff", monkeypatch) == ["effort"]
    assert names(f"{line}effort ", monkeypatch) == ["low", "medium", "high", "xhigh", "max"]
    assert names(f"{line}effort m", monkeypatch) == ["medium", "max"]
    assert names(f"{line}seed ", monkeypatch) == []
    assert complete(f"{line}eff", monkeypatch, "fish") == [
        "plain,effort\tlow, medium, high, xhigh, max"
    ]
    assert complete(f"{line}tool-choice n", monkeypatch, "zsh") == ["plain", "none", "_"]
    # Also where the model is the default one, and without the name of the command.
    home.mkdir()
    (home / "config.toml").write_text('default-model = "anthropic/claude-opus-4-6"\n')
    assert names("vibe-llms -o effort ", monkeypatch) == ["low", "medium", "high", "max"]
    assert names("vibe-llms -o effort high -o e", monkeypatch) == ["effort", "extras"]


def test_controls_are_those_of_the_model_that_would_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        '[agents.poet]\nmodel = "anthropic/claude-opus-4-6"\n'
        '[providers.ollama.models."qwen3.*".controls]\neffort.choices = ["little", "much"]\n'
    )
    assert names("vibe-llms -A poet -o effort ", monkeypatch) == ["low", "medium", "high", "max"]
    # The demo answers, which has no values of its own.
    assert names("vibe-llms -o effort ", monkeypatch) == []
    with FakeOllama() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        monkeypatch.setenv("VIBE_LLMS_LOCAL_SERVERS", "1")
        monkeypatch.setattr(local_servers, "SEARCH_SECONDS", 20.0)
        for name in ("VLLM", "LMSTUDIO", "LLAMACPP_SERVER"):
            monkeypatch.setenv(f"VIBE_LLMS_PROVIDERS__{name}__BASE_URL", "http://127.0.0.1:9/v1")
        # Without a key, the model of a server on this machine answers.
        assert names("vibe-llms -o effort ", monkeypatch) == ["little", "much"]


def test_rows_and_keys_are_completed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        '[ensembles.clock]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = ["x"]\n'
    )
    (home / "keys.toml").write_text('openai = "sk-x"\n')
    (home / "keys.toml").chmod(0o600)
    for line in ("chat -T c", "chat --mcp c", "tools list c"):
        assert names(f"vibe-llms {line}", monkeypatch) == ["clock"]
    assert names("vibe-llms mcp test ", monkeypatch) == ["python", "clock"]
    assert names("vibe-llms keys set anth", monkeypatch) == ["anthropic"]
    assert names("vibe-llms keys rm ", monkeypatch) == ["openai"]
    assert names("vibe-llms models sc", monkeypatch) == ["scripted"]
    assert names("vibe-llms models def", monkeypatch) == ["default"]
    assert names("vibe-llms models default anthropic/claude-opus-5-", monkeypatch) == [
        "anthropic/claude-opus-5-5"
    ]


def test_models_with_a_learned_window_are_completed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach(home)
    assert names("vibe-llms models for", monkeypatch) == ["forget"]
    assert names("vibe-llms models forget ", monkeypatch) == ["scripted/demo"]


def test_tools_that_were_listed_are_completed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    described = tmp_path / "tools.json"
    tool = {
        "name": "look",
        "description": "Look around.\nAgain.",
        "inputSchema": {"type": "object"},
    }
    described.write_text(json.dumps([tool]))
    server = [sys.executable, mcp_described.__file__, str(described)]
    (home / "config.toml").write_text(
        f'[ensembles.fake]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = {json.dumps(server)}\n'
    )
    assert names("vibe-llms tools show ", monkeypatch) == []
    listed = invoke("tools", "list")
    assert listed.output.startswith("fake/look"), listed
    for command in ("show", "call"):
        offered = complete(f"vibe-llms tools {command} fake/", monkeypatch, "fish")
        assert offered == ["plain,fake/look\tLook around."]
    (home / "config.toml").write_text("")
    assert names("vibe-llms tools show ", monkeypatch) == []
    (home / "known-tools.json").write_text("[")
    assert names("vibe-llms tools show ", monkeypatch) == []


def test_facts_are_completed_with_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("The cat is called Tom", "Tea is better than coffee"):
        assert invoke("memory", "add", text).status == 0
    ids = {one["id"][-12:]: one["content"] for one in invoke("memory", "list", "--json").json}
    for command in ("rm", "show", "edit", "log"):
        offered = complete(f"vibe-llms memory {command} ", monkeypatch, "fish")
        assert set(offered) == {f"plain,{short}\t{text}" for short, text in ids.items()}
    short = next(iter(ids))
    assert names(f"vibe-llms memory rm {short[:6]}", monkeypatch) == [short]


def test_a_value_is_found_by_a_part_of_it_or_of_its_description(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = names("vibe-llms -m sonnet-5", monkeypatch)
    assert "anthropic/claude-sonnet-5-5" in found
    assert all("sonnet-5" in one for one in found)
    identity = invoke("--print-id", "--name", "Dinner plans", "hello").errors.splitlines()[-1]
    assert names("vibe-llms show dinner", monkeypatch) == [identity]
    # What begins with the word comes alone; two letters are in too many.
    assert choose([("one", "two"), ("two", "")], "two") == [("two", "")]
    assert choose([("one", "two")], "tw") == []


def test_the_controls_of_an_unknown_model_are_all_controls() -> None:
    known = [name for name, _ in offer_controls(ModelAttributes())]
    assert {"effort", "temperature", "extras"} <= set(known)
    assert offer_control_values(ModelAttributes(), "tool_choice") == [
        ("auto", ""),
        ("any", ""),
        ("none", ""),
    ]


def test_the_tools_of_one_ensemble_replace_those_that_were_kept_for_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    remember_tools(state, {"a/one": "1", "b/two": "2"})
    remember_tools(state, {"a/new": "3"})
    assert sorted(recall_tools(state)) == [("a/new", "3"), ("b/two", "2")]
    (tmp_path / "file").write_text("")
    # A folder that cannot be made is no failure.
    remember_tools(tmp_path / "file", {"a/one": "1"})
    assert recall_tools(tmp_path / "file") == []


# By the shells themselves.


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command under its name, where a shell finds it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "vibe-llms"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def check_tab(shell: Sequence[str], setup: str) -> None:
    """Press Tab in a shell: a word with one completion is completed, and many are listed."""
    invoke("--print-id", "--name", "a title, with: marks", "hello")
    (identity,) = [one["id"] for one in invoke("list", "--json").json]
    with Terminal(command=shell, columns=120) as terminal:
        terminal.enter("PS1='$ '; " + setup + "; echo rea''dy")
        terminal.expect(r"[\r\n]ready\r")
        for typed, completed in (
            ("vibe-llms sho", "show"),
            (f"vibe-llms show {identity[:5]}", identity),
            ("vibe-llms -m anthropic/claude-sonnet-5-5 -o effort xh", "xhigh"),
            ("vibe-llms keys set anth", "anthropic"),
        ):
            terminal.send(typed)
            terminal.press("tab")
            word = typed.rpartition(" ")[2]
            terminal.expect(re.escape(completed.removeprefix(word)))
            # Clears the line.
            terminal.send_bytes(b"\x15")
        terminal.send("vibe-llms -m anthropic/claude-sonnet-5-5 -o effort ")
        terminal.press("tab", "tab")
        terminal.expect("low(?s:.*)medium(?s:.*)high(?s:.*)xhigh(?s:.*)max")
        terminal.send_bytes(b"\x15")
        terminal.enter("exit")
        terminal.wait()


def test_bash_completes(installed: Path) -> None:
    check_tab(("bash", "--norc", "--noprofile", "-i"), 'eval "$(vibe-llms completion bash)"')


@pytest.mark.shells
def test_zsh_completes(installed: Path) -> None:
    setup = 'autoload -Uz compinit; compinit -u -D; eval "$(vibe-llms completion zsh)"'
    check_tab(("zsh", "-f", "-i"), setup)


@pytest.mark.shells
def test_zsh_shows_titles(installed: Path) -> None:
    for title in ("first, with: marks", "second"):
        invoke("--name", title, "hello")
    with Terminal(command=("zsh", "-f", "-i"), columns=120) as terminal:
        setup = 'autoload -Uz compinit; compinit -u -D; eval "$(vibe-llms completion zsh)"'
        terminal.enter(f"PS1='$ '; {setup}; echo rea''dy")
        terminal.expect(r"[\r\n]ready\r")
        terminal.send("vibe-llms chat --cid ")
        # Once completes what all identities begin with, if chance gave them something in common.
        terminal.press("tab", "tab")
        terminal.expect("second(?s:.*)first, with: marks")
        terminal.send_bytes(b"\x03")
        terminal.enter("exit")


@pytest.mark.shells
def test_fish_completes(installed: Path) -> None:
    invoke("--name", "a title, with: marks", "hello")
    (identity,) = [one["id"] for one in invoke("list", "--json").json]

    def ask(line: str) -> list[str]:
        program = f"vibe-llms completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program],
            capture_output=True,
            timeout=LONGEST_SECONDS,
            check=True,
        )
        assert done.stderr == b""
        return done.stdout.decode().splitlines()

    assert ask("vibe-llms sho")[0].startswith("show\t")
    (offered,) = ask(f"vibe-llms show {identity[:5]}")
    assert offered.startswith(f"{identity}\ta title")
    effort = "vibe-llms -m anthropic/claude-sonnet-5-5 -o effort "
    assert {line.strip() for line in ask(effort)} == {"low", "medium", "high", "xhigh", "max"}
    assert ask("vibe-llms keys set anth") == ["anthropic"]


def test_completion_starts_as_light_as_the_help() -> None:
    outcome = run(
        environment={
            "_VIBE_LLMS_COMPLETE": "bash_complete",
            "COMP_WORDS": "vibe-llms sea",
            "COMP_CWORD": "1",
        }
    )
    assert outcome.output == "plain,search\n"
