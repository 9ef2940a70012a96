"""The table of subcommands, each loaded when it is called; reports all errors.

Only click is imported here, to make `--help` and completion start fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import CompletionItem, shell_complete

from vibe_llms.base.meta import __version__
from vibe_llms.cli import other_programs
from vibe_llms.cli.failures import report
from vibe_llms.cli.shared_options import COMPLETION_VARIABLE, PROGRAM
from vibe_llms.cli.typed_commands import FORCED, IMPLICIT, OPTION, describe_command, find_command

_OWN_OPTIONS = frozenset({"-h", "--help", "--version"})
#: Subcommands, with the module in this package that defines each and its line in the help.
COMMANDS = {
    "chat": ("chat", "Ask a question, or start a chat."),
    "ask": ("ask", "Ask about files; the answer names its sources."),
    "index": ("index", "Manage collections of documents."),
    "list": ("conversations", "List conversations, newest first."),
    "show": ("conversations", "Show a conversation."),
    "export": ("export", "Export a conversation as Markdown, HTML or JSON."),
    "import": ("importing", "Import conversations of other programs."),
    "search": ("conversations", "Search the messages of all conversations."),
    "fork": ("conversations", "Fork a conversation, whole or up to a message."),
    "rename": ("conversations", "Rename a conversation."),
    "tag": ("conversations", "Add tags to a conversation, or remove them."),
    "rm": ("conversations", "Delete conversations."),
    "archive": ("archives", "Prepare a database, or copy everything to another place."),
    "runs": ("runs", "List, follow, steer, decide and cancel turns in the background."),
    "models": ("providers", "List models; show or set the default model."),
    "agents": ("agents", "List, show, add and import agents: models with instructions and tools."),
    "providers": ("providers", "List providers and their status; check one."),
    "read": ("reading", "Print the text of a document."),
    "tools": ("tools", "List, show and call tools."),
    "mcp": ("servers", "Manage MCP servers."),
    "skills": ("skills", "List, show and check skills: folders with instructions."),
    "memory": ("memory", "Manage what is remembered across conversations."),
    "web": ("serving", "Open the web page in a browser."),
    "serve": ("serving", "Answer requests of OpenAI clients over HTTP."),
    "acp": ("acp", "Answer an editor that speaks the Agent Client Protocol."),
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


class _Commands(click.Group):
    """The group of subcommands; other arguments are a prompt for `chat`."""

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
            ctx.meta[IMPLICIT] = True
            ctx.meta[OPTION] = args[1] if args[1:] and args[1].startswith("-") else ""
            args = ["chat", *args]
        ctx.meta[FORCED] = "--" in args
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
    """Run the command that the arguments name; return the exit status.

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
        # Don't blame the options of another program's command, such as `logs --since`.
        if other_programs.is_command(arguments):
            hint = describe_command(PROGRAM, arguments, COMMANDS)
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
    """Return the context of the command that the words name."""
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
