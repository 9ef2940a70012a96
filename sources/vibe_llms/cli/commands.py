"""The subcommands, each loaded when it is called; prompts that look like one; all error reports.

A mistyped `lst` is not sent to a model without asking. A first word looks like a command if it is
the name of one, or one typing slip away from it, or a command of another program, as
`other_programs` knows them. A prompt in quotes is one word with spaces and is never checked, nor is
a prompt after `--` or `chat`.

Only click is imported here, so that `--help` and completion start fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

import click
from click.shell_completion import CompletionItem, shell_complete

from vibe_llms.cli import other_programs
from vibe_llms.cli.failures import report
from vibe_llms.cli.terminal import note
from vibe_llms.meta import __version__

PROGRAM = "vibe-llms"
COMPLETION_VARIABLE = "_VIBE_LLMS_COMPLETE"

#: Each subcommand with the module in this package that defines it, and its line in the help.
COMMANDS = {
    "chat": ("chat", "Ask a question, or start a chat."),
    "ask": ("ask", "Ask about files; the answer names its sources."),
    "index": ("index", "Manage collections of documents."),
    "list": ("conversations", "List conversations, newest first."),
    "show": ("conversations", "Show a conversation."),
    "export": ("export", "Export a conversation as Markdown, HTML or JSON."),
    "search": ("conversations", "Search the messages of all conversations."),
    "fork": ("conversations", "Fork a conversation, whole or up to a message."),
    "rename": ("conversations", "Rename a conversation."),
    "tag": ("conversations", "Add tags to a conversation, or remove them."),
    "rm": ("conversations", "Delete conversations."),
    "archive": ("archives", "Prepare a database, or copy everything to another place."),
    "runs": ("runs", "List, follow, decide and cancel turns in the background."),
    "models": ("providers", "List models; show or set the default model."),
    "agents": ("agents", "List, show and add agents: models with instructions and tools."),
    "providers": ("providers", "List providers and their status."),
    "read": ("reading", "Print the text of a document."),
    "tools": ("tools", "List, show and call tools."),
    "mcp": ("servers", "Manage MCP servers."),
    "memory": ("memory", "Manage what is remembered across conversations."),
    "serve": ("serving", "Answer requests of OpenAI clients over HTTP."),
    "users": ("serving", "Manage the users of the server."),
    "worker": ("serving", "Work on runs of all users, without a server."),
    "budgets": ("budgets", "Show what users may spend, and have spent."),
    "plugins": ("providers", "Install and remove plugins that the configuration pins."),
    "keys": ("settings", "Manage API keys."),
    "config": ("settings", "Show, check and edit the configuration."),
    "doctor": ("doctor", "Check conversations, memory and configuration; repair damage."),
    "examples": ("examples", "List and copy the files that the documentation uses."),
    "completion": ("completion", "Print the completion script of a shell."),
    "help": ("commands", "Print the help of a command."),
}
#: Options that many commands have.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
follow_links_option = click.option(
    "--follow-links",
    is_flag=True,
    help="In folders, also read files that symbolic links lead to.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Skip the question.")

#: The words that leave the REPL, and do nothing as the whole prompt.
LEAVING = frozenset({"exit", "quit"})
_OWN_OPTIONS = frozenset({"-h", "--help", "--version"})
#: Set on the context: the prompt came without `chat`, or after `--`; an option at its second place.
_IMPLICIT, _FORCED, _OPTION = "vibe_llms.implicit", "vibe_llms.forced", "vibe_llms.option"
# Words that often begin prompts, although they are commands or one slip away from one.
_PLAIN = frozenset({"as", "cat", "chart", "expert", "for", "help", "ready", "red"})
_SHORTEST = 3
_LONG = 5


class _Commands(click.Group):
    """The group of subcommands; anything else is a prompt for `chat`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "help":
            return show_help
        module = import_module(f"vibe_llms.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            args = ["chat"]
        elif args and not _is_command(args) and args[0] not in _OWN_OPTIONS:
            ctx.meta[_IMPLICIT] = True
            ctx.meta[_OPTION] = args[1] if args[1:] and args[1].startswith("-") else ""
            args = ["chat", *args]
        ctx.meta[_FORCED] = "--" in args
        return super().parse_args(ctx, args)


def _is_command(args: Sequence[str]) -> bool:
    # "help me with this" is a prompt.
    if args[0] == "help" and len(args) > 2:
        return args[1] in COMMANDS
    return args[0] in COMMANDS


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def command() -> None:
    """Chat with large language models, and keep every conversation.

    A prompt needs no command: vibe-llms "What can you do?"
    """


def run_command(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; returns the exit status.

    All errors are reported here except a closed pipe, which is raised.
    """
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return shell_complete(command, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
    try:
        with command.make_context(PROGRAM, list(arguments)) as context:
            status = command.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        raise
    except (click.BadOptionUsage, click.BadParameter, click.NoSuchOption) as error:
        # The options of another program's command, such as `logs --since`, are not the fault.
        if other_programs.is_command(arguments):
            hint = _describe_command(PROGRAM, arguments, COMMANDS)
            return report(click.UsageError(hint or "", error.ctx), arguments)
        return report(error, arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (the border of the terminal)
        return report(error, arguments)
    return status if isinstance(status, int) else 0


def _complete_commands(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    group = _descend(context.find_root(), context.params.get("path") or ())
    if not isinstance(group.command, click.Group):
        return []
    return [
        CompletionItem(name)
        for name in group.command.list_commands(group)
        if name.startswith(incomplete)
    ]


@click.command("help")
@click.argument("path", nargs=-1, metavar="[COMMAND]...", shell_complete=_complete_commands)
@click.pass_context
def show_help(context: click.Context, path: tuple[str, ...]) -> None:
    """Print the help of a command, like COMMAND --help."""
    click.echo(_descend(context.find_root(), path).get_help(), color=context.color)


def _descend(context: click.Context, path: tuple[str, ...]) -> click.Context:
    """The context of the command that the words name."""
    for word in path:
        group = context.command
        found = group.get_command(context, word) if isinstance(group, click.Group) else None
        if found is None:
            names = group.list_commands(context) if isinstance(group, click.Group) else []
            meant = find_command([word], names)
            hint = f"; did you mean {meant!r}?" if meant in names else "."
            raise click.UsageError(f"{context.command_path} has no command {word!r}{hint}", context)
        context = click.Context(found, parent=context, info_name=word)
    return context


def is_meant(context: click.Context, words: Sequence[str]) -> bool:
    """Whether to send the words of `chat` to a model.

    If they look like a command, asks at a terminal; raises `UsageError` without one.
    """
    root = context.find_root()
    program, group = root.info_name, root.command
    if is_forced(context) or not root.meta.get(_IMPLICIT) or not isinstance(group, click.Group):
        return True
    typed = [*words]
    if words and (option := root.meta.get(_OPTION)):
        # `logs -n 5` of llm; here -n is a flag, and 5 would be a second word of a prompt.
        typed.insert(1, option)
    if (hint := _describe_command(program or PROGRAM, typed, group.list_commands(root))) is None:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        import shlex

        forced = f"{program} -- {shlex.join(words)}"
        raise click.UsageError(f"{hint} To send it as a prompt: {forced}.", root)
    note(hint)
    return click.confirm("Send it to the model as a prompt?", err=True)


def _describe_command(program: str, words: Sequence[str], names: Iterable[str]) -> str | None:
    """Return what to type instead of words that look like a command; `None` for a prompt."""
    first = words[0] if words else ""
    if (in_chat := other_programs.find_at_shell(words)) is not None:
        return f"{first!r} is not a command; start a chat: {program} chat{in_chat}."
    meant = find_command(words, names)
    if meant is None:
        return None
    if meant == first:
        return f"{meant!r} is a command; its options come after it: {program} {meant} …"
    if meant:
        return f"{first!r} is not a command; did you mean: {program} {meant}?"
    return f"{first!r} is not a command."


def is_forced(context: click.Context) -> bool:
    """Return True if the words of `chat` came after `--`, which marks them as a prompt."""
    return bool(context.find_root().meta.get(_FORCED))


def leaves(context: click.Context, words: Sequence[str]) -> bool:
    """Whether the words of `chat` are only `exit` or `quit`."""
    return " ".join(words) in LEAVING and not is_forced(context)


def find_command(words: Sequence[str], commands: Iterable[str]) -> str | None:
    """The command that words look like; empty if only other tools have it, `None` for a prompt."""
    first = words[0] if words else ""
    if other_programs.is_command(words):
        return other_programs.COMMANDS[first]
    # Commands are lower-case letters; "Export" or "list?" begins a sentence.
    if not (first.isalpha() and first.islower()) or first in _PLAIN:
        return None
    names = list(commands)
    if first in names:
        return first
    return next((name for name in names if is_slip(first, name)), None)


def is_slip(word: str, name: str) -> bool:
    """Whether a word is a name with one typing slip behind its first letter.

    A slip is a letter too many or too few, two letters swapped, or, in names of five letters or
    more, a wrong letter.

    >>> [is_slip(word, "list") for word in ("lst", "lisst", "lsit", "last", "mist")]
    [True, True, True, False, False]
    """
    if len(name) < _SHORTEST or word[:1] != name[:1]:
        return False
    start = next((i for i, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), None)
    if start is None:
        return abs(len(word) - len(name)) == 1
    a, b = word[start:], name[start:]
    return (
        a[1:] == b
        or a == b[1:]
        or (a[:2] == b[1::-1] and a[2:] == b[2:])
        or (len(name) >= _LONG and a[1:] == b[1:])
    )
