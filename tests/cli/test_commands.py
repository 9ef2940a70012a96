"""The group of commands: help, start-up, all errors, and prompts that look like commands."""

from __future__ import annotations

import sys

import click
import pytest

from tests.cli.command import Outcome, invoke, run
from tests.cli.terminal import COMMAND, PROMPT, Terminal
from vibe_llms import __version__
from vibe_llms.cli import commands, other_programs
from vibe_llms.cli.commands import COMMANDS, command, run_command
from vibe_llms.cli.typed_commands import find_command

pytestmark = pytest.mark.usefixtures("warm")

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
        terminal.expect("Ctrl-D exits")
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
    reported = invoke(arguments[0], "--json", *arguments[1:])
    assert reported.status == 2
    assert reported.json["error"]["kind"] == "usage"


def check_bug_is_reported(outcome: Outcome) -> None:
    assert outcome.status == 1
    assert outcome.error == "ZeroDivisionError: what no one foresaw (a bug; --debug shows where)"


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.option("--debug", is_flag=True)
    def broken(debug: bool) -> None:
        raise ZeroDivisionError("what no one foresaw")

    monkeypatch.setattr(commands._Commands, "get_command", lambda *_: broken)
    check_bug_is_reported(invoke("list"))
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


@pytest.mark.parametrize("path", [[], ["list"], ["keys"], ["keys", "set"], ["config", "check"]])
def test_help_prints_what_the_option_prints(path: list[str]) -> None:
    outcome = invoke("help", *path)
    assert outcome == invoke(*path, "--help")
    assert outcome.status == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (["lst"], "vibe-llms has no command 'lst'; did you mean 'list'?"),
        (["nonesuch"], "vibe-llms has no command 'nonesuch'."),
        (["keys", "sett"], "vibe-llms keys has no command 'sett'; did you mean 'set'?"),
        (["list", "x"], "vibe-llms list has no command 'x'."),
    ],
)
def test_help_for_an_unknown_command_is_bad_usage(path: list[str], words: str) -> None:
    outcome = invoke("help", *path)
    assert outcome.status == 2
    assert words in outcome.error


def test_a_prompt_may_begin_with_the_word() -> None:
    for words in (["help", "me", "with", "this"], ["help me with this"]):
        assert invoke(*words).output.startswith("I am **scripted")


def test_the_words_of_help_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli.test_completion import names

    assert names("vibe-llms help ", monkeypatch) == list(COMMANDS)
    assert names("vibe-llms help keys s", monkeypatch) == ["set"]
    assert names("vibe-llms help list s", monkeypatch) == []


#: Words that people begin a prompt with that they do not put in quotes.
_BEGINNINGS = """
a about add adapt all an analyse analyze and answer are as ask at be best brief briefly build
but by calculate can categorize chart check clean clear code combine comment compare complete
compute convert correct could count create criticize debug define describe design detect did
difference do document does draft draw each edit elaborate english estimate evaluate every
expand expert explain explore extract find fill first fix for format french from generate german
get give given go good group guess had has have hello her hey hi his how i identify if improve
in infer instead is it join just keep last let like long look make many may me merge mind model
more my name need next no not now of on one only or order organize our outline paraphrase parse
pick plan plant please point polish predict prepare pretend produce proofread propose prove
python put question quick rank rate read reduce refactor reformat rephrase reply respond rewrite
say see send shall she short shorten should simplify so solve some sort spell split sql step
story suggest sum summarise summarize sure table take tell test thanks that the then there these
they think this to today translate true turn two type use verify very was we were what when
where which who whose why will with word work would write yes you your
"""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lst", "list"),
        ("list", "list"),
        ("lsit", "list"),
        ("memroy add x", "memory"),
        ("model", "models"),
        ("modrls default", "models"),
        ("key set anthropic", "keys"),
        ("serach tea", "search"),
        ("upgrade", ""),
        ("upgrade everything", ""),
        ("ls", "list"),
        ("delete 3vdk", "rm"),
        ("version", "--version"),
        # Prompts.
        ("hello", None),
        ("remove the duplicate lines", None),
        ("Export regulations in Norway", None),
        ("list?", None),
        ("", None),
    ],
)
def test_a_first_word_may_look_like_a_command(typed: str, meant: str | None) -> None:
    assert find_command(typed.split(), COMMANDS) == meant


def test_a_prompt_in_quotes_never_looks_like_one() -> None:
    for prompt in ("list the planets", "lst of planets", "memroy", "show me"):
        looked_at = find_command([prompt], COMMANDS)
        assert (looked_at is None) == (" " in prompt), prompt


def test_the_words_that_prompts_begin_with_do_not_look_like_commands() -> None:
    questioned = {word for word in _BEGINNINGS.split() if find_command([word, "a", "b"], COMMANDS)}
    # These are commands, or so but for one letter.
    assert questioned <= {"ask", "model", "read"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lst"], "'lst' is not a command; did you mean: vibe-llms list?"),
        (["memroy", "add", "it's"], """vibe-llms -- memroy add 'it'"'"'s'."""),
        (["upgrade"], "'upgrade' is not a command."),
        (["-q", "list"], "'list' is a command; its options come after it: vibe-llms list"),
    ],
)
@pytest.mark.parametrize("terminals", ["", "stdin"])
def test_without_a_terminal_nothing_is_sent(
    arguments: list[str], words: str, terminals: str
) -> None:
    outcome = invoke(*arguments, terminals=terminals)
    assert outcome.status == 2
    assert words in outcome.error
    assert "To send it as a prompt: vibe-llms -- " in outcome.error
    assert outcome.output == ""
    assert invoke("list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prompt", "Say hi to everyone"], "did you mean: vibe-llms chat?"),
        (["logs", "list", "-n", "5"], "did you mean: vibe-llms list?"),
        (["logs", "-q", "tea", "-n", "3"], "did you mean: vibe-llms list?"),
        (["logs", "--since", "3d"], "did you mean: vibe-llms list?"),
        (["templates", "show", "poet"], "did you mean: vibe-llms agents?"),
        (["aliases", "set", "fast", "gpt-5"], "did you mean: vibe-llms config edit?"),
        (["embed-multi", "notes"], "did you mean: vibe-llms index add?"),
        (["--list-models"], "did you mean: vibe-llms models?"),
        (["--serve"], "did you mean: vibe-llms serve?"),
        (["--role", "poet", "hi"], "did you mean -A?"),
        (["--temperature", "1", "hi"], "did you mean -o temperature?"),
        (["--execute", "list files"], "No such option '--execute'."),
        ([".help"], "vibe-llms chat, and type /help there."),
        ([".model", "gpt-5"], "vibe-llms chat, and type /model NAME there."),
        (["/undo"], "'/undo' is not a command; start a chat: vibe-llms chat."),
        (["!multi"], "'!multi' is not a command; start a chat: vibe-llms chat."),
    ],
)
def test_commands_of_other_programs_are_answered_with_ours(
    arguments: list[str], words: str
) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 2
    assert words in outcome.error
    assert outcome.output == ""
    assert invoke("list", "--json").json == []


@pytest.mark.parametrize(
    "words",
    [
        "prompt engineering is a craft",
        "logs say that it failed",
        ".gitignore has which comments",
        "/etc/hosts is what",
        "templates",
    ],
)
def test_a_sentence_that_begins_like_a_command_elsewhere_can_be_sent(words: str) -> None:
    assert invoke("--", *words.split()).status == 0
    assert invoke("chat", *words.split()).status == 0
    if " " in words:
        assert invoke(*words.split()).status == 0
        assert invoke(words).status == 0


def test_what_is_offered_in_place_of_other_commands_exists() -> None:
    context = click.Context(command)
    chat = command.get_command(context, "chat")
    assert chat is not None
    options = {option for one in chat.params for option in one.opts}
    for here in {*other_programs.COMMANDS.values(), *other_programs.OPTIONS.values()} - {""}:
        words = here.split()
        if words[0].startswith("-"):
            assert words[0] in {*options, "--version"}, here
            continue
        outcome = invoke("help", *(one for one in words if not one.startswith("-")))
        assert outcome.status == 0 or words == ["models", "openai"], here
        assert all(one in outcome.output for one in words if one.startswith("-")), here


def test_models_list_lists_models() -> None:
    assert invoke("models", "list") == invoke("models")


@pytest.mark.parametrize(
    "arguments", [["--", "lst"], ["-q", "--", "list"], ["chat", "lst"], ["lst please do"]]
)
def test_a_prompt_can_be_forced(arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 0
    assert outcome.output.startswith("I follow a script")


@pytest.mark.parametrize("arguments", [["exit"], ["quit"], ["chat", "exit"], ["-q", "quit"]])
def test_the_words_that_leave_are_not_sent(arguments: list[str]) -> None:
    assert invoke(*arguments) == (0, "", "")
    assert invoke("--", "exit").output.startswith("I follow a script")
    assert invoke("exit", "strategies").output.startswith("I follow a script")
    assert len(invoke("list", "--json").json) == 2


def test_at_a_terminal_a_person_decides() -> None:
    with Terminal("lst") as terminal:
        terminal.expect(r"'lst' is not a command; did you mean: vibe-llms list\?")
        terminal.expect(r"Send it to the model as a prompt\? \[y/N\]")
        terminal.press("enter")
        assert terminal.wait() == 2
    assert invoke("list", "--json").json == []
    with Terminal("lst") as terminal:
        terminal.expect(r"\[y/N\]")
        terminal.enter("y")
        terminal.expect("I follow a script")
        assert terminal.wait() == 0
    with Terminal("lst") as terminal:
        terminal.expect(r"\[y/N\]")
        assert terminal.press_until_the_end("c-c") == 130
    assert len(invoke("list", "--json").json) == 1
