"""The group of commands: help, what it costs to start, and the border of all errors."""

from __future__ import annotations

import sys

import click
import pytest

from tests.cli.command import Outcome, invoke, run
from tests.cli.terminal import COMMAND, PROMPT, Terminal
from vibe_llms import __version__
from vibe_llms.cli import commands
from vibe_llms.cli.commands import COMMANDS, command, run_command

_HEAVY = {
    "rich",
    "prompt_toolkit",
    "sqlite3",
    "pydantic",
    "anthropic",
    "openai",
    "asyncio",
    "msgspec",
}
_PROBE = """
import sys
sys.argv[0] = "vibe-llms"
from vibe_llms.cli.main import main
try:
    main()
except SystemExit as leaving:
    assert leaving.code == 0, leaving.code
print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def survey_modules(*arguments: str) -> set[str]:
    """The packages that are loaded when the command has done its work with pipes."""
    outcome = run(*arguments, command=(sys.executable, "-X", "frozen_modules=off", "-c", _PROBE))
    assert outcome.status == 0, outcome.errors
    return set(outcome.errors.splitlines()[-1].split())


def check_help_is_light(modules: set[str]) -> None:
    """Help and version need click, and nothing of weight besides."""
    assert not modules & _HEAVY, modules & _HEAVY
    ours = modules - set(sys.stdlib_module_names) - {"__main__", "click", "vibe_llms"}
    assert not {name for name in ours if not name.startswith(("_", "sitecustomize"))}, ours


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_next_to_nothing(option: str) -> None:
    check_help_is_light(survey_modules(option))


def test_a_command_that_is_loaded_for_the_help_would_be_seen() -> None:
    with pytest.raises(AssertionError):
        check_help_is_light(survey_modules("list", "--help"))


def test_one_answer_in_a_pipe_needs_nothing_for_terminals_nor_a_database() -> None:
    modules = survey_modules("chat", "-m", "scripted/demo", "hello")
    assert not modules & {"rich", "prompt_toolkit", "sqlite3", "pydantic", "anthropic", "pygments"}


def test_version_and_help() -> None:
    assert invoke("--version").output == f"vibe-llms {__version__}\n"
    outcome = invoke("-h")
    assert outcome.status == 0
    for name in COMMANDS:
        assert f"  {name} " in outcome.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_that_fits(name: str) -> None:
    outcome = invoke(name, "--help")
    assert outcome.status == 0
    assert outcome.output.startswith(f"Usage: vibe-llms {name} ")
    assert all(len(line) <= 80 for line in outcome.output.splitlines()), outcome.output
    context = click.Context(command)
    short = command.get_command(context, name)
    assert short is not None
    first = (short.help or "").partition("\n")[0]
    assert first.endswith("."), first


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    context = click.Context(command)
    group = command.get_command(context, name)
    assert group is not None
    inner = [group, *getattr(group, "commands", {}).values()]
    for one in inner:
        for parameter in one.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, (name, parameter.name)
                assert parameter.help.endswith((".", "PNG")), parameter.help


def test_a_prompt_needs_no_command() -> None:
    for arguments in (["hello"], ["-m", "scripted/demo", "hello"], ["-n", "hello", "there"]):
        outcome = invoke(*arguments)
        assert outcome.status == 0
        assert outcome.output.startswith("Hello!")


def test_a_prompt_that_is_the_name_of_a_command_can_be_asked() -> None:
    assert invoke("--", "list").output.startswith("I follow a script")


def test_without_arguments_piped_input_is_the_prompt() -> None:
    assert invoke(data=b"hello\n").output.startswith("Hello!")


def test_without_arguments_a_terminal_gets_the_repl() -> None:
    with Terminal() as terminal:
        terminal.expect("Ctrl-D leaves")
        terminal.expect(PROMPT)
        terminal.enter("quit")
        assert terminal.wait() == 0
    assert invoke("list", "--json").json == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["chat", "--bogus"],
        ["list", "--limit", "x"],
        ["rm"],
        ["chat", "-m"],
        ["keys", "x"],
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 2
    assert "--help" in outcome.error
    told = invoke(arguments[0], "--json", *arguments[1:])
    assert told.status == 2
    assert told.json["error"]["kind"] == "usage"


def check_bug_is_told(outcome: Outcome) -> None:
    assert outcome.status == 1
    assert outcome.error == "ZeroDivisionError: what no one foresaw (a bug; --debug shows where)"


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.option("--debug", is_flag=True)
    def broken(debug: bool) -> None:
        raise ZeroDivisionError("what no one foresaw")

    monkeypatch.setattr(commands._Commands, "get_command", lambda *_: broken)
    check_bug_is_told(invoke("list"))
    outcome = invoke("list", "--debug")
    assert "Traceback" in outcome.errors
    assert outcome.status == 1


def test_the_result_of_a_command_is_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands._Commands, "get_command", lambda *_: click.command()(lambda: 7))
    assert run_command(["list"]) == 7
    monkeypatch.setattr(commands._Commands, "get_command", lambda *_: click.command()(lambda: None))
    assert run_command(["list"]) == 0


def test_the_module_is_the_command() -> None:
    assert run("--version", command=COMMAND) == (0, f"vibe-llms {__version__}\n", "")
